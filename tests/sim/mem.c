/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem.c - the exported functions that get and give back memory, on the device and on the host.
 *
 * The functions keep their contracts: captures forbid some, a free waits for the GPU while an allocation does not,
 * errors have their codes. The allocator is in memory.c, stream-ordered allocation in async.c.
 *
 * Locking: each function takes sim_lock() itself; waiting drops it.
 */
#include "sim.h"

/* The context is missed before the size. Nothing, *ret as it was, is what a request for no host memory gets. */
static CUresult get(size_t size, enum sim_mem kind, struct sim_alloc **ret)
{
    CUcontext ctx;
    CUresult r = sim_current(&ctx);

    if (r == CUDA_SUCCESS && size == 0)
        return kind == SIM_MEM_HOST ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = sim_ctx_stalled(ctx);
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    if (r != CUDA_SUCCESS)
        return r;
    if (kind == SIM_MEM_DEVICE)
        return sim_device_alloc(ctx, size, kind, ret);
    return sim_host_alloc(ctx, 0, NULL, size, kind, ret);
}

static CUresult device_get(CUdeviceptr *ptr, size_t size, enum sim_mem kind)
{
    struct sim_alloc *a = NULL;

    if (!ptr)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(get(size, kind, &a));
    *ptr = a->addr;
    return CUDA_SUCCESS;
}

/* A free waits for all work of the memory's own context, whichever is current, and other threads' launches there stall.
 * That of stream-ordered memory waits for nothing. A free needs no current context; one that is no more, or that a
 * sticky error has killed, refuses. */
static CUresult give_back(uint64_t addr, unsigned kinds)
{
    CUcontext ctx;

    SIM_LOCKED();
    struct sim_alloc *a = sim_alloc_find(addr);
    CUresult r = sim_current(&ctx);
    sim_freed_again(a, addr);
    if (r == CUDA_ERROR_INVALID_CONTEXT)
        r = CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    if (r == CUDA_SUCCESS && (!a || a->addr != addr || a->freeing || !(kinds & 1u << a->kind)))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        uint32_t gen = a->ctx->gen;
        ctx = a->ctx;
        a->freeing = true;
        if (a->kind != SIM_MEM_ASYNC)
            sim_ctx_stall(ctx);
        if (ctx->gen == gen) /* else a reset took it meanwhile */
            sim_alloc_free(a);
        r = ctx->error;
    }
    return r;
}

/* A free of nothing does nothing, but it is a free: captures forbid it, and an error of the context is its result. */
static CUresult give_nothing(void)
{
    CUcontext ctx;

    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    if (r == CUDA_ERROR_INVALID_CONTEXT)
        r = CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    return r;
}

#define DEVICE_KINDS (1u << SIM_MEM_DEVICE | 1u << SIM_MEM_ASYNC | 1u << SIM_MEM_MANAGED)

SIM_CALL(cuMemAlloc_v2, (CUdeviceptr * ptr, size_t size), device_get(ptr, size, SIM_MEM_DEVICE))
SIM_CALL(cuMemFree_v2, (CUdeviceptr ptr), ptr ? give_back(ptr, DEVICE_KINDS) : give_nothing())

/* The first ABI had 32-bit pointers; it is here so that resolvers can be asked for it, and refuses. */
SIM_CALL(cuMemAlloc, (CUdeviceptr_v1 * ptr, unsigned int size), CUDA_ERROR_NOT_SUPPORTED)
SIM_CALL(cuMemFree, (CUdeviceptr_v1 ptr), CUDA_ERROR_NOT_SUPPORTED)

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int elem)
{
    SIM_ENTER(cuMemAllocPitch_v2);
    if (!pitch || width == 0 || height == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pitch = (width + 511) & ~(size_t)511;
    if (*pitch < width || height > SIZE_MAX / *pitch)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return device_get(ptr, *pitch * height, SIM_MEM_DEVICE);
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
    SIM_ENTER(cuMemAllocManaged);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return device_get(ptr, size, SIM_MEM_MANAGED);
}

CUresult cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
    SIM_ENTER(cuMemGetInfo_v2);
    CUcontext ctx;
    size_t avail, total;

    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    sim_memory_info(ctx->dev, &avail, &total);
    if (ret_free)
        *ret_free = avail;
    if (ret_total)
        *ret_total = total;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    SIM_ENTER(cuMemGetAddressRange_v2);
    CUcontext ctx;

    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find(ptr) : NULL;
    if (r == CUDA_SUCCESS && !a)
        r = CUDA_ERROR_NOT_FOUND;
    if (r == CUDA_SUCCESS) {
        if (base)
            *base = a->addr;
        if (size)
            *size = a->size;
    }
    return r;
}

static CUresult host_get(void **pp, size_t size, unsigned flags)
{
    struct sim_alloc *a = NULL;

    if (!pp)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(get(size, SIM_MEM_HOST, &a));
    *pp = a ? a->host : NULL;
    if (a)
        a->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP; /* all of it is */
    return CUDA_SUCCESS;
}

SIM_CALL(cuMemAllocHost_v2, (void **pp, size_t size), host_get(pp, size, 0))
SIM_CALL(cuMemHostAlloc, (void **pp, size_t size, unsigned int flags),
         flags > 7 ? CUDA_ERROR_INVALID_VALUE : host_get(pp, size, flags))
SIM_CALL(cuMemFreeHost, (void *p), p ? give_back((uintptr_t)p, 1u << SIM_MEM_HOST) : give_nothing())

static CUresult host_register(void *p, size_t size, unsigned flags)
{
    CUcontext ctx;
    struct sim_alloc *a;

    if (!p || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    if (r == CUDA_SUCCESS)
        r = sim_ctx_stalled(ctx);
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    struct sim_alloc *there = r == CUDA_SUCCESS ? sim_alloc_find((uintptr_t)p) : NULL;
    if (there)
        r = there->kind == SIM_MEM_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = sim_host_alloc(ctx, (uintptr_t)p, p, size, SIM_MEM_REGISTERED, &a);
    if (r == CUDA_SUCCESS)
        a->flags = flags;
    return r;
}

SIM_CALL(cuMemHostRegister, (void *p, size_t size, unsigned int flags), host_register(p, size, flags))
SIM_CALL(cuMemHostRegister_v2, (void *p, size_t size, unsigned int flags), host_register(p, size, flags))

CUresult cuMemHostUnregister(void *p)
{
    SIM_ENTER(cuMemHostUnregister);
    CUresult r = give_back((uintptr_t)p, 1u << SIM_MEM_REGISTERED);

    SIM_LOCKED();
    const struct sim_alloc *a = r == CUDA_ERROR_INVALID_VALUE ? sim_alloc_find((uintptr_t)p) : NULL;
    bool pinned = a && a->kind == SIM_MEM_HOST;
    return r == CUDA_ERROR_INVALID_VALUE && !pinned ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : r;
}

/* Arrays are not simulated. The calls that end one wait as natively, for the current context, whose other
 * threads' calls stall. */
static CUresult thing_goes(const void *thing)
{
    CUcontext ctx;

    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    SIM_TRY(sim_capture_unsafe());
    if (!thing)
        return CUDA_ERROR_INVALID_HANDLE;
    sim_ctx_stall(ctx);
    return ctx->error;
}

SIM_CALL(cuArrayDestroy, (CUarray array), thing_goes(array))
SIM_CALL(cuMipmappedArrayDestroy, (CUmipmappedArray array), thing_goes(array))

static CUresult host_find(void *p, CUdeviceptr *ret_ptr, unsigned *ret_flags)
{
    CUcontext ctx;

    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find((uintptr_t)p) : NULL;
    if (r == CUDA_SUCCESS &&
        (!a || (a->kind != SIM_MEM_HOST && a->kind != SIM_MEM_REGISTERED && a->kind != SIM_MEM_MANAGED)))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        *ret_ptr = (uintptr_t)p;
        *ret_flags = a->flags;
    }
    return r;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ptr, void *p, unsigned int flags)
{
    SIM_ENTER(cuMemHostGetDevicePointer_v2);
    unsigned ignored;

    return !ptr || flags ? CUDA_ERROR_INVALID_VALUE : host_find(p, ptr, &ignored);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p)
{
    SIM_ENTER(cuMemHostGetFlags);
    CUdeviceptr ignored;

    return !flags ? CUDA_ERROR_INVALID_VALUE : host_find(p, &ignored, flags);
}
