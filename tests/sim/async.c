/* SPDX-License-Identifier: Apache-2.0 */
/*
 * async.c - stream-ordered allocation, as far as programs can tell.
 *
 * The call takes memory; a free takes its turn in the stream. Pools can be made, and keep nothing, so trimming and
 * thresholds have no effect. Captures are not supported.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "sim.h"

/* One default pool per device, then those that programs make; the handle is the address of its slot. */
#define POOLS_MAX 256
static struct pool {
    bool made;
    int dev;
} pools[SIM_DEVICES_MAX + POOLS_MAX];

CUmemoryPool sim_pool_of(int dev)
{
    pools[dev].dev = dev;
    return (CUmemoryPool)(void *)&pools[dev];
}

static bool pool_ok(CUmemoryPool pool)
{
    struct pool *p = (struct pool *)(void *)pool;

    return p >= pools && p < pools + SIM_DEVICES_MAX + POOLS_MAX && (p < pools + sim_settings.devices || p->made);
}

static int pool_device(CUmemoryPool pool)
{
    return ((struct pool *)(void *)pool)->dev;
}

/* Whether the processor can reach a pool's memory makes no difference here. */
static CUresult pool_make(CUmemoryPool *ret, const CUmemPoolProps *props)
{
    const bool on_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    const int dev = on_device ? props->location.id : 0;

    if (!ret || !props || dev < 0 || dev >= sim_settings.devices || props->allocType == CU_MEM_ALLOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    for (struct pool *p = pools + SIM_DEVICES_MAX; p < pools + SIM_DEVICES_MAX + POOLS_MAX; p++) {
        if (!p->made) {
            *p = (struct pool){true, dev};
            *ret = (CUmemoryPool)(void *)p;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory that is out stays until it is freed. */
static CUresult pool_end(CUmemoryPool pool)
{
    SIM_LOCKED();
    if (!pool_ok(pool) || !((struct pool *)(void *)pool)->made)
        return CUDA_ERROR_INVALID_VALUE;
    ((struct pool *)(void *)pool)->made = false;
    return CUDA_SUCCESS;
}

SIM_CALL(cuMemPoolCreate, (CUmemoryPool * ret, const CUmemPoolProps *props), pool_make(ret, props))
SIM_CALL(cuMemPoolDestroy, (CUmemoryPool pool), pool_end(pool))

static CUresult pool_get(CUmemoryPool *ret, CUdevice dev)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    if (dev < 0 || dev >= sim_settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    *ret = sim_pool_of(dev);
    return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetDefaultMemPool, (CUmemoryPool * ret, CUdevice dev), pool_get(ret, dev))
SIM_CALL(cuDeviceGetMemPool, (CUmemoryPool * ret, CUdevice dev), pool_get(ret, dev))
SIM_CALL(cuDeviceSetMemPool, (CUdevice dev, CUmemoryPool pool), pool_ok(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
SIM_CALL(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), pool_ok(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)
SIM_CALL(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attr, void *value),
         pool_ok(pool) && value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    SIM_ENTER(cuMemPoolGetAttribute);
    if (!pool_ok(pool) || !value)
        return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, attr <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? sizeof(int) : sizeof(cuuint64_t));
    return CUDA_SUCCESS;
}

/* Everybody may reach everything. */
SIM_CALL(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *desc, size_t n),
         pool_ok(pool) && desc && n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE)

static CUresult get(CUdeviceptr *ptr, size_t size, CUstream handle, bool pt, int dev)
{
    CUstream s;
    struct sim_alloc *a = NULL;

    if (!ptr || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS && s->cap)
        r = CUDA_ERROR_NOT_SUPPORTED; /* natively a memory node */
    if (r == CUDA_SUCCESS && s->legacy)
        r = sim_capture_implicit(s->ctx);
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    if (r == CUDA_SUCCESS && dev >= 0 && dev != s->ctx->dev)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS)
        r = sim_device_alloc(s->ctx, size, SIM_MEM_ASYNC, &a);
    if (r == CUDA_SUCCESS)
        *ptr = a->addr;
    return r;
}

/* Memory from cuMemAlloc may be freed this way, too. */
static CUresult give_back(CUdeviceptr ptr, CUstream handle, bool pt)
{
    struct sim_work w = {.kind = SIM_FREE, .addr = ptr};
    CUstream s;

    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    struct sim_alloc *a = r == CUDA_SUCCESS ? sim_alloc_find(ptr) : NULL;
    sim_freed_again(a, ptr);
    /* While the stream captures, only memory of the graph may be freed, of which there is none. */
    if (r == CUDA_SUCCESS &&
        (s->cap || !a || a->addr != ptr || a->freeing || (a->kind != SIM_MEM_ASYNC && a->kind != SIM_MEM_DEVICE)))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = sim_capture_unsafe();
    if (r == CUDA_SUCCESS) {
        a->freeing = a->returning = true;
        r = sim_submit(s, &w, false);
        if (r != CUDA_SUCCESS && (a = sim_alloc_find(ptr)))
            a->freeing = a->returning = false;
    }
    return r;
}

SIM_PAIR(cuMemAllocAsync, cuMemAllocAsync_ptsz, (CUdeviceptr * ptr, size_t size, CUstream s), get(ptr, size, s, pt, -1))
SIM_CALL(cuMemAllocFromPoolAsync, (CUdeviceptr * ptr, size_t size, CUmemoryPool pool, CUstream s),
         pool_ok(pool) ? get(ptr, size, s, false, pool_device(pool)) : CUDA_ERROR_INVALID_VALUE)
SIM_CALL(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * ptr, size_t size, CUmemoryPool pool, CUstream s),
         pool_ok(pool) ? get(ptr, size, s, true, pool_device(pool)) : CUDA_ERROR_INVALID_VALUE)
SIM_PAIR(cuMemFreeAsync, cuMemFreeAsync_ptsz, (CUdeviceptr ptr, CUstream s), give_back(ptr, s, pt))
