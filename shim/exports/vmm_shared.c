/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_shared.c - the exported functions of the driver's virtual memory management that tell of memory which may be kept
 * (CUPOOL_VMM=1), or by which others get hold of it: it is then settled before, or kept no more.
 *
 * vmm.c has the calls that take such memory and give it up. Every call is passed on unchanged.
 *
 * Locking: none.
 */
#include "exports/export.h"
#include "exports/retry.h"
#include "exports/vmm_served.h"
#include "real/real.h"

CUresult vmm_served_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access, size_t count)
{
    struct vmm_cache *cache = vmm_kept_existing();
    struct vmm_access list[VMM_ACCESS_MAX];
    CUresult result;
    bool fits;

    if (vmm_served_refuses(ptr))
        return CUDA_ERROR_INVALID_VALUE;
    if (!cache)
        return real_next(cuMemSetAccess)(ptr, size, access, count);
    fits = vmm_kept_access(access, count, list);
    if (vmm_cache_set_access(cache, ptr, size, list, fits ? count : 0, vmm_kept_serves()))
        return CUDA_SUCCESS;
    result = real_next(cuMemSetAccess)(ptr, size, access, count);
    vmm_cache_access_set(cache, ptr, size, list, fits ? count : 0, fits && !result);
    return result;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    struct vmm_cache *cache = vmm_kept_existing();

    vmm_served_asked(ptr);
    if (cache && flags && location &&
        vmm_cache_hides_access(cache, ptr, (uint32_t)location->type, (uint32_t)location->id)) {
        *flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
        return CUDA_SUCCESS;
    }
    return real_next(cuMemGetAccess)(flags, location, ptr);
}

/* A handle that the program has released is to be invalid at the driver, too. */
EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle handle)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache)
        vmm_cache_settle_handle(cache, handle);
    return real_next(cuMemGetAllocationPropertiesFromHandle)(properties, handle);
}

static void handle_shared(CUmemGenericAllocationHandle handle)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache)
        vmm_cache_forget_handle(cache, handle);
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t object_offset,
                                   CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                                   unsigned long long flags)
{
    handle_shared(handle);
    return real_next(cuMulticastBindMem)(object, object_offset, handle, offset, size, flags);
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t object_offset,
                                      CUmemGenericAllocationHandle handle, size_t offset, size_t size,
                                      unsigned long long flags)
{
    handle_shared(handle);
    return real_next(cuMulticastBindMem_v2)(object, device, object_offset, handle, offset, size, flags);
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t object_offset, CUdeviceptr ptr,
                                    size_t size, unsigned long long flags)
{
    vmm_served_shared(ptr, size);
    return real_next(cuMulticastBindAddr)(object, object_offset, ptr, size, flags);
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t object_offset,
                                       CUdeviceptr ptr, size_t size, unsigned long long flags)
{
    vmm_served_shared(ptr, size);
    return real_next(cuMulticastBindAddr_v2)(object, device, object_offset, ptr, size, flags);
}

static CUresult map_arrays(enum real_symbol symbol, CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    struct retry retry = retry_begin_elsewhere();
    CUresult result;

    for (unsigned int i = 0; list && i < count; i++)
        if (list[i].memHandleType == CU_MEM_HANDLE_TYPE_GENERIC)
            handle_shared(list[i].memHandle.memHandle);
    do
        result = ((__typeof__(&cuMemMapArrayAsync))real_find(symbol))(list, count, stream);
    while (retry_again(&retry, result));
    return result;
}

EXPORT CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    return map_arrays(REAL_cuMemMapArrayAsync, list, count, stream);
}

EXPORT CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream)
{
    return map_arrays(REAL_cuMemMapArrayAsync_ptsz, list, count, stream);
}
