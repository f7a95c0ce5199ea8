/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - the virtual-memory calls (cuMemCreate, cuMemMap, ...), enough for a segment at a time.
 *
 * Physical memory counts when it is created and gets its bytes where it is mapped. Memory mapped this way is neither
 * legacy-IPC capable nor can cuMemFree free it, like ncclMemAlloc's memory. It is no context's and outlives them, a
 * device reaches it only once it has been given access, and unmapping it does not wait for the device: work that comes
 * later finds an illegal address. A handle cannot be mapped several times or shared with other processes (a file
 * descriptor names the memory within this one); a multicast object can be made, and has no memory.
 *
 * SIMGPU_VMM=0: the devices have no such calls. SIMGPU_FABRIC=1: memory can be shared over a fabric, which takes a
 * service that machines seldom have.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "sim.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x53564d4du

struct physical {
    uint32_t magic;
    int dev;
    size_t size;
    int refs; /* the handle's and the mapping's */
    CUmemAllocationHandleType handle_types;
    bool mapped;
};

/* Addresses belong to no context. */
static struct CUctx_st owners[SIM_DEVICES_MAX];

static bool setting(const char *name, bool def)
{
    const char *text = getenv(name);

    return text && *text ? *text != '0' : def;
}

bool sim_vmm_supported(void)
{
    return setting("SIMGPU_VMM", true);
}

static void physical_drop(struct physical *p)
{
    if (--p->refs)
        return;
    sim_memory_discharge(p->dev, p->size);
    p->magic = 0;
    free(p);
}

static struct physical *physical_of(CUmemGenericAllocationHandle handle)
{
    struct physical *p = (struct physical *)(uintptr_t)handle; /* NOLINT: handles are our own pointers */

    return p && p->magic == MAGIC ? p : NULL;
}

CUresult cuMemGetAllocationGranularity(size_t *ret, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags flags)
{
    SIM_ENTER(cuMemGetAllocationGranularity);
    if (!ret || !prop)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = SIM_PAGE;
    return CUDA_SUCCESS;
}

/* Or of which it is a part (CUDA 13.5, where the lowest byte of the id names it); -1: none. */
static int device_of(const CUmemLocation *location)
{
    if ((int)location->type == 6)
        return location->id & 0xff;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *ret, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    SIM_ENTER(cuMemCreate);
    int dev = prop ? device_of(&prop->location) : -1;

    if (!ret || size == 0 || size % SIM_PAGE || dev < 0 || dev >= sim_settings.devices)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_vmm_supported())
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) && !setting("SIMGPU_FABRIC", false))
        return CUDA_ERROR_NOT_PERMITTED;
    sim_lock();
    CUresult r = sim_memory_charge(dev, size) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS) {
        struct physical *p = calloc(1, sizeof(*p));
        *p = (struct physical){
            .magic = MAGIC, .dev = dev, .size = size, .refs = 1, .handle_types = prop->requestedHandleTypes};
        *ret = (uintptr_t)p;
    }
    sim_unlock();
    return r;
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *ret, const CUmulticastObjectProp *prop)
{
    SIM_ENTER(cuMulticastCreate);
    if (!ret || !prop || prop->size == 0 || prop->size % SIM_PAGE || prop->numDevices == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *p = calloc(1, sizeof(*p));
    *p = (struct physical){.magic = MAGIC, .refs = 1};
    *ret = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *ret, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    SIM_ENTER(cuMemExportToShareableHandle);
    sim_lock();
    CUresult r = ret && physical_of(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        r = CUDA_ERROR_NOT_SUPPORTED;
    sim_unlock();
    if (r != CUDA_SUCCESS)
        return r;
    int fd = memfd_create("simgpu-shared", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &handle, sizeof(handle)) != sizeof(handle))
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)ret = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret, void *shared, CUmemAllocationHandleType type)
{
    SIM_ENTER(cuMemImportFromShareableHandle);
    CUmemGenericAllocationHandle handle;

    if (!ret || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread((int)(intptr_t)shared, &handle, sizeof(handle), 0) != sizeof(handle))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    struct physical *p = physical_of(handle);
    if (p) {
        p->refs++;
        *ret = handle;
    }
    sim_unlock();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret, void *ptr)
{
    SIM_ENTER(cuMemRetainAllocationHandle);
    sim_lock();
    struct sim_alloc *a = sim_alloc_find((uintptr_t)ptr);
    struct physical *p = ret && a && a->kind == SIM_MEM_VMM ? a->physical : NULL;
    if (p) {
        p->refs++;
        *ret = (uintptr_t)p;
    }
    sim_unlock();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemRelease);
    sim_lock();
    struct physical *p = physical_of(handle);
    if (p)
        physical_drop(p);
    sim_unlock();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
    SIM_ENTER(cuMemAddressReserve);
    struct sim_alloc *a = NULL;
    CUcontext ctx;

    if (!ptr || size == 0 || size % SIM_PAGE || align > SIM_PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    /* Here each device has addresses of its own. */
    int dev = sim_current(&ctx) == CUDA_SUCCESS ? ctx->dev : 0;
    owners[dev].dev = dev;
    CUresult r = sim_device_alloc(&owners[dev], size, SIM_MEM_VMM, &a);
    if (r == CUDA_SUCCESS)
        *ptr = a->addr;
    sim_unlock();
    return r;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemAddressFree);
    sim_lock();
    struct sim_alloc *a = sim_alloc_find(ptr);
    CUresult r = a && a->kind == SIM_MEM_VMM && a->addr == ptr && a->size == size && !a->physical
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        sim_alloc_free(a);
    sim_unlock();
    return r;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIM_ENTER(cuMemMap);
    sim_lock();
    struct sim_alloc *a = sim_alloc_find(ptr);
    struct physical *p = physical_of(handle);
    CUresult r = CUDA_SUCCESS;
    if (!a || !p || a->kind != SIM_MEM_VMM || a->physical || offset > p->size || size > p->size - offset)
        r = CUDA_ERROR_INVALID_VALUE;
    else if (a->addr != ptr || a->size != size || p->mapped || p->dev != a->dev)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS) {
        p->refs++;
        p->mapped = true;
        a->physical = p;
        sim_alloc_renew(a);
    }
    sim_unlock();
    return r;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t n)
{
    SIM_ENTER(cuMemSetAccess);
    sim_lock();
    struct sim_alloc *a = sim_alloc_find(ptr);
    bool ok = a && a->kind == SIM_MEM_VMM && a->physical && a->addr == ptr && a->size == size && desc && n;
    for (size_t i = 0; ok && i < n; i++)
        ok = device_of(&desc[i].location) < sim_settings.devices;
    for (size_t i = 0; ok && i < n; i++) {
        int dev = device_of(&desc[i].location);
        uint64_t bit = dev < 0 ? 0 : (uint64_t)1 << dev; /* of the host's access nothing is simulated */
        a->access = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? a->access & ~bit : a->access | bit;
    }
    if (ok)
        a->host = a->access ? sim_memory_host(a->dev, a->addr) : NULL;
    sim_unlock();
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sim_vmm_reaches(const struct sim_alloc *a, int dev)
{
    return a->kind != SIM_MEM_VMM || (a->access >> dev & 1);
}

unsigned long long sim_vmm_handle_types(const struct sim_alloc *a)
{
    const struct physical *p = a->kind == SIM_MEM_VMM ? a->physical : NULL;

    return p ? (unsigned long long)p->handle_types : 0;
}

static void unmap(struct sim_alloc *a)
{
    struct physical *p = a->physical;

    a->host = NULL;
    a->physical = NULL;
    a->access = 0;
    sim_alloc_renew(a);
    sim_memory_punch(a->dev, a->addr, a->span);
    p->mapped = false;
    physical_drop(p);
}

/* The mapping at this address, and nothing running on it at this moment; drops the lock meanwhile. NULL: none. */
static struct sim_alloc *mapping_at(CUdeviceptr ptr, size_t size)
{
    struct sim_alloc *a;

    while ((a = sim_alloc_find(ptr)) && a->pins) {
        sim_unlock();
        usleep(20);
        sim_lock();
    }
    return a && a->kind == SIM_MEM_VMM && a->physical && a->addr == ptr && a->size == size ? a : NULL;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemUnmap);
    sim_lock();
    struct sim_alloc *a = mapping_at(ptr, size);
    if (a)
        unmap(a);
    sim_unlock();
    return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemGetAccess);
    sim_lock();
    struct sim_alloc *a = sim_alloc_find(ptr);
    int dev = flags && location && a && a->kind == SIM_MEM_VMM && a->physical ? device_of(location) : -1;
    if (dev >= 0)
        *flags = a->access >> dev & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    sim_unlock();
    return dev >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
    sim_lock();
    struct physical *p = physical_of(handle);
    if (p && prop)
        *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = p->handle_types,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = p->dev}};
    sim_unlock();
    return p && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
