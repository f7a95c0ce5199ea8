/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointers.c - the exported functions of the driver that answer what an address is, or make a handle of it for devices
 * that are no GPU: the program learns of its block what it would natively learn of its allocation.
 *
 * Locking: none.
 */
#include "exports/export.h"
#include "exports/vmm_served.h"
#include "real/real.h"
#include "serve/serve.h"

/* The address to ask the driver about: its allocation outlives the program's block. */
static CUdeviceptr asked_for(CUdeviceptr ptr, const void *caller)
{
    vmm_served_asked(ptr);
    return serve_is_freed(ptr, caller) ? NOWHERE : ptr;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    const CUresult result = real_next(cuMemGetAddressRange_v2)(base, size, asked_for(ptr, CALLER));
    uint64_t block;
    size_t length;

    if (result || !serve_range(ptr, CALLER, &block, &length))
        return result;
    if (!length)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block;
    if (size)
        *size = length;
    return CUDA_SUCCESS;
}

/* After the driver has answered: where an attribute is one of the allocation, replace it by the block's. */
static CUresult block_tell(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, const void *caller)
{
    uint64_t block;
    size_t length;

    /* Virtual memory has no context. Libraries that pass memory on enter the context, so they are told, too. */
    if (attribute == CU_POINTER_ATTRIBUTE_CONTEXT)
        serve_context(ptr, data);
    if ((attribute != CU_POINTER_ATTRIBUTE_RANGE_START_ADDR && attribute != CU_POINTER_ATTRIBUTE_RANGE_SIZE &&
         attribute != CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES) ||
        !serve_range(ptr, caller, &block, &length))
        return CUDA_SUCCESS;
    if (!length)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        *(CUdeviceptr *)data = block;
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)data = length;
    else
        *(unsigned long long *)data = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result;

    serve_pointer_asked(ptr, attribute, CALLER);
    ptr = asked_for(ptr, CALLER);
    result = real_next(cuPointerGetAttribute)(data, attribute, ptr);
    return result ? result : block_tell(data, attribute, ptr, CALLER);
}

EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                       CUdeviceptr ptr)
{
    CUresult result;

    for (unsigned int i = 0; attributes && i < count; i++)
        serve_pointer_asked(ptr, attributes[i], CALLER);
    ptr = asked_for(ptr, CALLER);
    result = real_next(cuPointerGetAttributes)(count, attributes, data, ptr);
    for (unsigned int i = 0; attributes && data && !result && i < count; i++)
        result = block_tell(data[i], attributes[i], ptr, CALLER);
    return result;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        serve_rdma_prepared(ptr, CALLER);
    vmm_served_shared(ptr, 1);
    return real_next(cuPointerSetAttribute)(value, attribute, asked_for(ptr, CALLER));
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                                              unsigned long long flags)
{
    serve_rdma_prepared(ptr, CALLER);
    vmm_served_shared(ptr, size);
    return real_next(cuMemGetHandleForAddressRange)(handle, asked_for(ptr, CALLER), size, type, flags);
}
