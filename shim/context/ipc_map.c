/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_map.c - see ipc_map.h. No locks. */
#include "context/ipc_map.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "context/registry.h"
#include "context/vmm_map.h"
#include "real/real.h"

/* A descriptor of the memory that is mapped at addr. CUDA_ERROR_INVALID_VALUE: it is not virtual memory. */
static CUresult descriptor_make(uint64_t addr, int *ret_fd)
{
    __typeof__(&cuMemExportToShareableHandle) export = real_next(cuMemExportToShareableHandle);
    __typeof__(&cuMemRetainAllocationHandle) retain = real_next(cuMemRetainAllocationHandle);
    CUmemGenericAllocationHandle handle;
    uint64_t number;
    CUresult result;
    int fd = vmm_descriptor_get(addr, &number);

    if (fd >= 0) {
        *ret_fd = fd;
        return CUDA_SUCCESS;
    }
    result = retain(&handle, (void *)(uintptr_t)addr); /* NOLINT: an address */
    if (result)
        return result;
    result = export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    real_next(cuMemRelease)(handle);
    if (result) {
        *ret_fd = -1;
        return result;
    }
    *ret_fd = file_aside(fd);
    file_mark(*ret_fd, number);
    vmm_descriptor_keep(addr, number, *ret_fd);
    return CUDA_SUCCESS;
}

CUresult ipc_map_describe(const struct context *owner, uint64_t segment, size_t size, struct ipc_segment *ret_segment)
{
    const struct real_driver *driver = real_driver_get();
    __typeof__(&cuIpcGetMemHandle) get = real_next(cuIpcGetMemHandle);
    struct ipc_segment as = {.addr = segment, .size = size, .fd = -1};
    CUipcMemHandle handle;
    CUresult result;
    CUuuid uuid;

    if (driver && driver->cuDeviceGetUuid_v2 && !driver->cuDeviceGetUuid_v2(&uuid, context_device(owner)))
        memcpy(as.card, uuid.bytes, sizeof(as.card));
    if (vmm_find(segment)) {
        as.how = IPC_DESCRIPTOR;
        as.front = vmm_front(segment);
        result = descriptor_make(segment, &as.fd);
    } else {
        as.how = IPC_NATIVE;
        result = get(&handle, segment);
        if (!result)
            memcpy(as.handle, &handle, sizeof(as.handle));
    }
    *ret_segment = as;
    return result;
}

static bool is_card(const struct real_driver *driver, int device, const unsigned char *card)
{
    CUuuid uuid;

    return !driver->cuDeviceGetUuid_v2(&uuid, device) && memcmp(uuid.bytes, card, sizeof(uuid.bytes)) == 0;
}

int ipc_map_device(const unsigned char *card)
{
    static atomic_int last; /* the device that was found last: an importer mostly opens memory of one */
    const struct real_driver *driver = real_driver_get();
    int device = atomic_load(&last), count = 0;

    if (!driver || !driver->cuDeviceGetUuid_v2 || !driver->cuDeviceGetCount)
        return -1;
    if (is_card(driver, device, card))
        return device;
    if (driver->cuDeviceGetCount(&count))
        return -1;
    for (device = 0; device < count && !is_card(driver, device, card); device++)
        ;
    if (device >= count)
        return -1;
    atomic_store(&last, device);
    return device;
}

static CUresult access_give(const struct real_driver *driver, const struct vmm_mapping *mapping, int device)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return driver->cuMemSetAccess(mapping->addr, mapping->size, &access, 1);
}

CUresult ipc_map_take(int fd, CUmemGenericAllocationHandle *ret_handle)
{
    return real_next(cuMemImportFromShareableHandle)(ret_handle, (void *)(intptr_t)fd, /* NOLINT: a number */
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult ipc_map_place(CUmemGenericAllocationHandle handle, uint64_t addr, size_t size, int device)
{
    const struct real_driver *driver = real_driver_get();
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult result = driver ? driver->cuMemMap(addr, size, 0, handle, 0) : CUDA_ERROR_DEINITIALIZED;

    if (!result && (result = driver->cuMemSetAccess(addr, size, &access, 1)))
        driver->cuMemUnmap(addr, size);
    return result;
}

static CUresult descriptor_map(const struct ipc_grant *grant, int fd, uint64_t *ret_addr)
{
    const struct real_driver *driver = real_driver_get();
    CUmemGenericAllocationHandle handle;
    struct vmm_mapping *mapping;
    CUdevice current;
    CUresult result;
    int owner;

    if (!driver || !driver->cuMemAddressReserve || !driver->cuMemMap || !driver->cuMemUnmap || !driver->cuMemSetAccess)
        return CUDA_ERROR_NOT_SUPPORTED;
    result = driver->cuCtxGetDevice(&current);
    if (result)
        return result;
    owner = ipc_map_device(grant->card);
    if (owner < 0) /* it is not visible: the current device stands for it */
        owner = current;
    vmm_reach(driver, owner, current);
    result = ipc_map_take(fd, &handle);
    if (result)
        return result;
    result = vmm_map_handle(driver, owner, handle, grant->segment_size, &mapping);
    driver->cuMemRelease(handle); /* the mapping keeps the memory */
    if (result)
        return result;
    *ret_addr = mapping->addr;
    /* Where the device has no way there, natively that is an error of the open: the driver is asked which. */
    if (owner != current && !vmm_reaches(owner, current) && (result = access_give(driver, mapping, current)))
        vmm_unmap(driver, mapping);
    return result;
}

CUresult ipc_map_open(const struct ipc_grant *grant, int fd, uint64_t *ret_addr)
{
    __typeof__(&cuIpcOpenMemHandle_v2) open = real_next(cuIpcOpenMemHandle_v2);
    CUipcMemHandle handle;
    CUdeviceptr addr = 0;
    CUresult result;

    if (grant->how == IPC_DESCRIPTOR)
        return descriptor_map(grant, fd, ret_addr);
    memcpy(&handle, grant->handle, sizeof(handle));
    result = open(&addr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    *ret_addr = addr;
    return result;
}

CUresult ipc_map_close(enum ipc_how how, uint64_t addr)
{
    const struct real_driver *driver = real_driver_get();
    struct vmm_mapping *mapping;

    if (how == IPC_NATIVE)
        return real_next(cuIpcCloseMemHandle)(addr);
    mapping = vmm_find(addr);
    if (!driver || !mapping)
        return CUDA_ERROR_DEINITIALIZED;
    return vmm_unmap(driver, mapping);
}
