/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pointer.c - cuPointerGetAttribute and its kin.
 *
 * The table of allocations answers questions about an address; SYNC_MEMOPS and a descriptor of a range make memory
 * known to others. Of pageable host memory nothing is known.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "sim.h"

#define PUT(type, value)                                                                                               \
    do {                                                                                                               \
        type v_ = (value);                                                                                             \
        memcpy(out, &v_, sizeof(type));                                                                                \
        return CUDA_SUCCESS;                                                                                           \
    } while (0)

static bool is_device(const struct sim_alloc *a)
{
    return a->kind == SIM_MEM_DEVICE || a->kind == SIM_MEM_ASYNC;
}

static CUresult answer(void *out, CUpointer_attribute attr, uint64_t ptr, struct sim_alloc *a, int dev)
{
    bool host = a->kind == SIM_MEM_HOST || a->kind == SIM_MEM_REGISTERED, managed = a->kind == SIM_MEM_MANAGED;

    switch ((int)attr) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(CUcontext, a->kind == SIM_MEM_VMM ? NULL : a->ctx);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        PUT(CUdeviceptr, ptr);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!host && !managed)
            return CUDA_ERROR_INVALID_VALUE;
        PUT(CUdeviceptr, ptr);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        PUT(int, a->sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        PUT(unsigned long long, a->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        PUT(int, managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, a->dev);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        PUT(int, a->kind == SIM_MEM_DEVICE);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        PUT(CUdeviceptr, a->addr);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        PUT(size_t, a->size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        PUT(int, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(unsigned long long, sim_vmm_handle_types(a));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        PUT(int, a->kind == SIM_MEM_DEVICE || a->kind == SIM_MEM_VMM);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        PUT(unsigned, sim_vmm_reaches(a, dev) ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
                                              : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        PUT(CUmemoryPool, a->kind == SIM_MEM_ASYNC ? sim_pool_of(a->dev) : NULL);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: /* small allocations share one of 2 MiB */
        if (!is_device(a) && a->kind != SIM_MEM_HOST && a->kind != SIM_MEM_VMM)
            return CUDA_ERROR_INVALID_VALUE;
        PUT(size_t, (a->size + SIM_PAGE - 1) & ~(SIM_PAGE - 1));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        if (!is_device(a) && a->kind != SIM_MEM_HOST && a->kind != SIM_MEM_VMM)
            return CUDA_ERROR_INVALID_VALUE;
        PUT(CUdeviceptr, is_device(a) ? a->addr & ~(uint64_t)(SIM_PAGE - 1) : a->addr);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* for a driver that moves the memory, so this is set, too */
        if (!is_device(a))
            return CUDA_ERROR_NOT_SUPPORTED;
        a->sync_memops = true;
        memset(out, 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

/* The current device, and the memory at an address; *ret_a is NULL for pageable memory. The error of a context is no
 * reason not to answer. */
static CUresult asked(CUdeviceptr ptr, bool anywhere, struct sim_alloc **ret_a, int *ret_dev)
{
    CUcontext ctx;
    CUresult r = sim_current(&ctx);
    bool nowhere = r == CUDA_ERROR_INVALID_CONTEXT || r == CUDA_ERROR_CONTEXT_IS_DESTROYED;

    if (nowhere && !anywhere)
        return r;
    *ret_a = sim_alloc_find(ptr);
    *ret_dev = !nowhere ? ctx->dev : *ret_a ? (*ret_a)->dev : 0;
    return CUDA_SUCCESS;
}

/* This one needs no current context. */
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attr, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerGetAttribute);
    struct sim_alloc *a = NULL;
    int dev = 0;

    if (!data)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = asked(ptr, true, &a, &dev);
    if (r == CUDA_SUCCESS)
        r = a ? answer(data, attr, ptr, a, dev) : CUDA_ERROR_INVALID_VALUE;
    return r;
}

/* Unknown addresses are not an error here: the answers are zero, the device is -2. */
CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attrs, void **data, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerGetAttributes);
    struct sim_alloc *a = NULL;
    int dev = 0;

    if (n == 0 || !attrs || !data)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = asked(ptr, false, &a, &dev);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < n; i++) {
        if (a && answer(data[i], attrs[i], ptr, a, dev) == CUDA_SUCCESS)
            continue;
        if (attrs[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
            memset(data[i], 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
            continue;
        }
        bool small = attrs[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attrs[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
                     attrs[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED || attrs[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
                     attrs[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE ||
                     attrs[i] == CU_POINTER_ATTRIBUTE_MAPPED ||
                     attrs[i] == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE ||
                     attrs[i] == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS;
        memset(data[i], 0, small ? 4 : 8);
        if (attrs[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = -2;
    }
    return r;
}

/* SYNC_MEMOPS is remembered, not acted upon. Memory of the virtual-memory calls cannot have it (801). */
CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attr, CUdeviceptr ptr)
{
    SIM_ENTER(cuPointerSetAttribute);
    CUcontext ctx;

    if (!value || attr != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find(ptr) : NULL;
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    if (r == CUDA_SUCCESS && !a)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && a->kind == SIM_MEM_VMM)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS)
        a->sync_memops = *(const unsigned *)value;
    return r;
}

/* A descriptor that a network card's driver could take. Here it is of the device's whole memory; nobody reads through
 * it, but a library that watches the call sees it succeed. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                                       unsigned long long flags)
{
    SIM_ENTER(cuMemGetHandleForAddressRange);
    CUcontext ctx;

    if (!handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || size == 0 || size % 4096 || ptr % 4096)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find(ptr) : NULL;
    if (r == CUDA_SUCCESS && (!a || !a->host || size > a->span - (ptr - a->addr) ||
                              (a->kind != SIM_MEM_DEVICE && a->kind != SIM_MEM_ASYNC && a->kind != SIM_MEM_VMM)))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        int fd = fcntl(sim_memory_fd(a->dev), F_DUPFD_CLOEXEC, 0);
        if (fd < 0)
            r = CUDA_ERROR_OPERATING_SYSTEM;
        else
            *(int *)handle = fd;
    }
    return r;
}
