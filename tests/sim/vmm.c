/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - the virtual-memory calls (cuMemCreate, cuMemMap, ...). Memory can be mapped in a part of a reservation; what
 * is mapped at once is unmapped and given access at once.
 *
 * Physical memory counts when it is created and gets its bytes where it is mapped. Memory mapped this way is neither
 * legacy-IPC capable nor can cuMemFree free it, like ncclMemAlloc's memory. It is no context's and outlives them, a
 * device reaches it only once it has been given access, and unmapping it does not wait for the device: work that is in
 * the middle of it, or comes later, finds an illegal address. A handle cannot be mapped several times; a multicast
 * object can be made, and has no memory.
 *
 * Memory that is exported lies in a file of its own from then on, and its descriptor is the handle that is shared. The
 * file ends with a page that describes the memory (struct shared), so that another process can import it. As with
 * CUDA IPC (ipc.c), memory that only an importer still has does not count as used.
 *
 * SIMGPU_VMM=0: the devices have no such calls. SIMGPU_FABRIC=1: memory can be shared over a fabric, which takes a
 * service that machines seldom have.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "pages.h"

#include <sys/stat.h>

#define MAGIC 0x53564d4du

struct physical {
    uint32_t magic;
    int dev;
    size_t size;
    int refs; /* the handle's and the mapping's */
    CUmemAllocationHandleType handle_types;
    struct sim_alloc *at; /* where it is mapped; NULL: nowhere */
    int fd;               /* of the file that holds its bytes; 0: it has none */
    bool imported;        /* from another process: it counts as used there */
};

/* In the last page of the file of exported memory. */
struct shared {
    uint64_t magic;
    CUmemGenericAllocationHandle handle; /* in this process: */
    int pid, dev;
    size_t size;
};
#define SHARED_MAGIC UINT64_C(0x7367705f73686d31)
#define SHARED_PAGE  ((size_t)4096)

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
    if (!p->imported)
        sim_memory_discharge(p->dev, p->size);
    if (p->fd)
        close(p->fd);
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
static int location_device(const CUmemLocation *location)
{
    if ((int)location->type == 6)
        return location->id & 0xff;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *ret, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    SIM_ENTER(cuMemCreate);
    int dev = prop ? location_device(&prop->location) : -1;

    if (!ret || size == 0 || size % SIM_PAGE || dev < 0 || dev >= sim_settings.devices)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sim_vmm_supported())
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) && !setting("SIMGPU_FABRIC", false))
        return CUDA_ERROR_NOT_PERMITTED;
    SIM_LOCKED();
    CUresult r = sim_memory_charge(dev, size) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS) {
        struct physical *p = calloc(1, sizeof(*p));
        *p = (struct physical){
            .magic = MAGIC, .dev = dev, .size = size, .refs = 1, .handle_types = prop->requestedHandleTypes};
        *ret = (uintptr_t)p;
    }
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

/* Let the memory have a file of its own. May drop the lock meanwhile. False: it is gone, or there is no file. */
static bool file_give(CUmemGenericAllocationHandle handle)
{
    struct physical *p = physical_of(handle);
    struct shared shared = {.magic = SHARED_MAGIC, .handle = handle, .pid = (int)getpid()};
    uint64_t offset;
    int fd;

    if (!p || p->fd)
        return p != NULL;
    fd = p->at ? sim_memory_export(p->at, &offset) : file_make(p->size);
    p = physical_of(handle);
    if (fd < 0 || !p)
        return false;
    shared.dev = p->dev;
    shared.size = p->size;
    p->fd = p->at ? fcntl(fd, F_DUPFD_CLOEXEC, 500) : fd;
    return p->fd > 0 && ftruncate(p->fd, (off_t)(p->size + SHARED_PAGE)) == 0 &&
           pwrite(p->fd, &shared, sizeof(shared), (off_t)p->size) == (ssize_t)sizeof(shared);
}

CUresult cuMemExportToShareableHandle(void *ret, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags)
{
    SIM_ENTER(cuMemExportToShareableHandle);
    int fd = -1;

    sim_lock();
    CUresult r = ret && physical_of(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS && file_give(handle))
        fd = fcntl(physical_of(handle)->fd, F_DUPFD_CLOEXEC, 3);
    sim_unlock();
    if (r != CUDA_SUCCESS)
        return r;
    if (fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    *(int *)ret = fd;
    return CUDA_SUCCESS;
}

/* The description at the end of such a file. */
static bool shared_read(int fd, struct shared *ret)
{
    struct stat st;

    return fstat(fd, &st) == 0 && (size_t)st.st_size > SHARED_PAGE &&
           pread(fd, ret, sizeof(*ret), st.st_size - (off_t)SHARED_PAGE) == (ssize_t)sizeof(*ret) &&
           ret->magic == SHARED_MAGIC && ret->size + SHARED_PAGE == (size_t)st.st_size && ret->dev >= 0 &&
           ret->dev < sim_settings.devices;
}

/* Memory of this process, by its handle; or of another one. */
static struct physical *import(int fd, const struct shared *shared)
{
    struct physical *p = shared->pid == (int)getpid() ? physical_of(shared->handle) : NULL;

    if (p) {
        p->refs++;
    } else if (shared->pid != (int)getpid()) {
        p = calloc(1, sizeof(*p));
        *p = (struct physical){.magic = MAGIC,
                               .dev = shared->dev,
                               .size = shared->size,
                               .refs = 1,
                               .handle_types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                               .fd = fcntl(fd, F_DUPFD_CLOEXEC, 500),
                               .imported = true};
    }
    return p;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret, void *shared, CUmemAllocationHandleType type)
{
    SIM_ENTER(cuMemImportFromShareableHandle);
    struct shared read;

    if (!ret || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !shared_read((int)(intptr_t)shared, &read))
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    struct physical *p = import((int)(intptr_t)shared, &read);
    if (p)
        *ret = (uintptr_t)p;
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret, void *ptr)
{
    SIM_ENTER(cuMemRetainAllocationHandle);
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_find((uintptr_t)ptr);
    struct physical *p = ret && a && a->kind == SIM_MEM_VMM ? a->physical : NULL;
    if (p) {
        p->refs++;
        *ret = (uintptr_t)p;
    }
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemRelease);
    SIM_LOCKED();
    struct physical *p = physical_of(handle);
    if (p)
        physical_drop(p);
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t align, CUdeviceptr addr, unsigned long long flags)
{
    SIM_ENTER(cuMemAddressReserve);
    struct sim_alloc *a = NULL;
    CUcontext ctx;

    if (!ptr || size == 0 || size % SIM_PAGE || align > SIM_PAGE)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    /* Here each device has addresses of its own. */
    int dev = sim_current(&ctx) == CUDA_SUCCESS ? ctx->dev : 0;
    owners[dev].dev = dev;
    SIM_TRY(sim_device_alloc(&owners[dev], size, SIM_MEM_VMM, &a));
    *ptr = a->range = a->addr;
    a->range_size = size;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemAddressFree);
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_find(ptr);
    CUresult r = a && a->kind == SIM_MEM_VMM && a->addr == ptr && a->size == size && a->range == ptr &&
                         a->range_size == size && !a->physical
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        sim_alloc_free(a);
    return r;
}

/* These addresses of a part of a reservation become a part of their own. */
static struct sim_alloc *cut_out(struct sim_alloc *a, CUdeviceptr ptr, size_t size)
{
    if (ptr > a->addr)
        a = sim_alloc_split(a, ptr - a->addr);
    if (size < a->size)
        sim_alloc_split(a, size);
    return a;
}

/* The part at addr, of the same reservation, if nothing is mapped there. */
static struct sim_alloc *unmapped_beside(const struct sim_alloc *a, CUdeviceptr addr)
{
    struct sim_alloc *other = sim_alloc_find(addr);

    return other && other->kind == SIM_MEM_VMM && other->range == a->range && !other->physical ? other : NULL;
}

/* A part where nothing is mapped any more, and those beside it, are one. */
static void join(struct sim_alloc *a)
{
    struct sim_alloc *before = unmapped_beside(a, a->addr - 1), *behind = unmapped_beside(a, a->addr + a->size);

    if (behind)
        sim_alloc_join(a, behind);
    if (before)
        sim_alloc_join(before, a);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    SIM_ENTER(cuMemMap);
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_find(ptr);
    struct physical *p = physical_of(handle);
    CUresult r = CUDA_SUCCESS;
    if (!a || !p || a->kind != SIM_MEM_VMM || a->physical || offset > p->size || size > p->size - offset ||
        ptr % SIM_PAGE || size == 0 || size % SIM_PAGE || size > a->size - (ptr - a->addr))
        r = CUDA_ERROR_INVALID_VALUE;
    else if (p->at || p->dev != a->dev)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS) {
        a = cut_out(a, ptr, size);
        p->refs++;
        p->at = a;
        a->physical = p;
        if (p->fd)
            sim_memory_view(a, p->fd);
        sim_alloc_renew(a);
    }
    return r;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t n)
{
    SIM_ENTER(cuMemSetAccess);
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_find(ptr);
    bool ok = a && a->kind == SIM_MEM_VMM && a->physical && a->addr == ptr && a->size == size && desc && n;
    for (size_t i = 0; ok && i < n; i++)
        ok = location_device(&desc[i].location) < sim_settings.devices;
    for (size_t i = 0; ok && i < n; i++) {
        int dev = location_device(&desc[i].location);
        uint64_t bit = dev < 0 ? 0 : (uint64_t)1 << dev; /* of the host's access nothing is simulated */
        a->access = desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE ? a->access & ~bit : a->access | bit;
    }
    if (ok)
        a->host = a->access ? sim_memory_host(a->dev, a->addr) : NULL;
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
    p->at = NULL;
    physical_drop(p);
    join(a);
}

static struct sim_alloc *mapping_at(CUdeviceptr ptr, size_t size)
{
    struct sim_alloc *a = sim_alloc_find(ptr);

    return a && a->kind == SIM_MEM_VMM && a->physical && a->addr == ptr && a->size == size ? a : NULL;
}

/* The mapping at this address, which no operation finds from now on. Those that are in the middle of it fail when they
 * look again (work.c); their bytes stay until then, and the lock is dropped meanwhile. NULL: there is none. */
static struct sim_alloc *mapping_leave(CUdeviceptr ptr, size_t size)
{
    struct sim_alloc *a;

    while ((a = mapping_at(ptr, size))) {
        a->host = NULL;
        if (!a->pins)
            break;
        sim_unlock();
        usleep(20);
        sim_lock();
    }
    return a;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    SIM_ENTER(cuMemUnmap);
    SIM_LOCKED();
    struct sim_alloc *a = mapping_leave(ptr, size);
    if (a)
        unmap(a);
    return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemGetAccess);
    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_find(ptr);
    int dev = flags && location && a && a->kind == SIM_MEM_VMM && a->physical ? location_device(location) : -1;
    if (dev >= 0)
        *flags = a->access >> dev & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return dev >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    SIM_ENTER(cuMemGetAllocationPropertiesFromHandle);
    SIM_LOCKED();
    struct physical *p = physical_of(handle);
    if (p && prop)
        *prop = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = p->handle_types,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = p->dev}};
    return p && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
