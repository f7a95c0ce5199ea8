/* SPDX-License-Identifier: Apache-2.0 */
/* vmm_create.c - see vmm_create.h. No locks; an atomic for each device. */
#include "context/vmm_create.h"

#include <stdatomic.h>

#include "base/log.h"
#include "context/limits.h"

/* The most that memory of a device can do, by handle types and RDMA; KNOWN: the driver has been asked. Reduced where
 * the driver refuses to make such memory: a device that has a fabric needs a service for it as well. */
#define KNOWN (1u << 31)
#define RDMA  (1u << 30)
static atomic_uint abilities[DEVICES_MAX];

static bool device_has(const struct real_driver *driver, CUdevice_attribute attribute, int device)
{
    int value = 0;

    return driver->cuDeviceGetAttribute && !driver->cuDeviceGetAttribute(&value, attribute, device) && value;
}

bool vmm_supported(const struct real_driver *driver, int device)
{
    return driver->cuMemCreate && driver->cuMemRelease && driver->cuMemAddressReserve && driver->cuMemAddressFree &&
           driver->cuMemMap && driver->cuMemUnmap && driver->cuMemSetAccess &&
           device_has(driver, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device);
}

static unsigned int abilities_of(const struct real_driver *driver, int device)
{
    unsigned int all = atomic_load(&abilities[device % DEVICES_MAX]);

    if (all)
        return all;
    all = KNOWN;
    if (device_has(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device))
        all |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    if (device_has(driver, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, device))
        all |= CU_MEM_HANDLE_TYPE_FABRIC;
    if (device_has(driver, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device))
        all |= RDMA;
    atomic_store(&abilities[device % DEVICES_MAX], all);
    return all;
}

/* One ability less, the one that is refused most often first; 0: there is none to leave out. */
static unsigned int reduced(unsigned int all)
{
    static const unsigned int order[] = {CU_MEM_HANDLE_TYPE_FABRIC, RDMA, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};

    for (unsigned int i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        if (all & order[i])
            return all & ~order[i];
    return 0;
}

static bool is_of_kind(CUresult result)
{
    return result == CUDA_ERROR_NOT_PERMITTED || result == CUDA_ERROR_NOT_SUPPORTED ||
           result == CUDA_ERROR_INVALID_VALUE;
}

CUresult vmm_create(const struct real_driver *driver, int device, size_t size, CUmemGenericAllocationHandle *ret_handle)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    unsigned int all = abilities_of(driver, device);
    CUresult result;

    for (;; all = reduced(all)) {
        properties.requestedHandleTypes = (CUmemAllocationHandleType)(all & ~(KNOWN | RDMA));
        properties.allocFlags.gpuDirectRDMACapable = (all & RDMA) != 0;
        result = driver->cuMemCreate(ret_handle, size, &properties, 0);
        if (!is_of_kind(result) || !reduced(all))
            break;
    }
    if (!result && all != atomic_load(&abilities[device % DEVICES_MAX])) {
        atomic_store(&abilities[device % DEVICES_MAX], all);
        log_write(LOG_INFO, "device %d: the driver makes memory with handle types %#x%s alone", device,
                  all & ~(KNOWN | RDMA), all & RDMA ? ", for RDMA" : "");
    }
    return result;
}
