/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - contexts: a primary one per device, others on request, and each thread's stack of current ones.
 *
 * The file has their life, and the calls that concern a context as a whole, cuCtxRecordEvent and cuCtxWaitEvent among
 * them. The order of operations is in engine.c.
 *
 * Locking: sim_lock() for everything but the calling thread's own stack. A primary context keeps its address over a
 * reset; its gen tells old handles from new ones.
 */
#include "sim.h"

#define STACK_MAX 32

static struct CUctx_st primaries[SIM_DEVICES_MAX];
static CUcontext created;
static uint64_t ids;
static bool lost[SIM_DEVICES_MAX]; /* a context ended that had an error: the process gets none there any more */
static __thread struct {
    CUcontext ctx;
    bool gone; /* it had been destroyed before it was made current */
} stack[STACK_MAX];
static __thread int depth; /* number of entries; the last one is current and may be NULL */

static CUcontext current(void)
{
    return depth ? stack[depth - 1].ctx : NULL;
}

static bool alive(CUcontext ctx)
{
    return ctx->magic == SIM_MAGIC_CTX && ctx->active && !ctx->stopping;
}

CUresult sim_ctx_check(CUcontext ctx)
{
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!alive(ctx))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return ctx->error;
}

CUresult sim_current(CUcontext *ret)
{
    CUcontext ctx = current();
    CUresult r = depth && stack[depth - 1].gone ? CUDA_ERROR_INVALID_CONTEXT : sim_ctx_check(ctx);

    /* An object made in a green context belongs to the primary one. */
    *ret = ctx && ctx->green && r == CUDA_SUCCESS ? &primaries[ctx->dev] : ctx;
    return r == CUDA_SUCCESS ? sim_ctx_check(*ret) : r;
}

static void ctx_start(CUcontext ctx, int dev, unsigned flags)
{
    ctx->magic = SIM_MAGIC_CTX;
    ctx->dev = dev;
    ctx->flags = flags;
    ctx->active = true;
    ctx->id = ++ids;
    ctx->error = CUDA_SUCCESS;
    ctx->peers = 0;
    sim_stream_init(&ctx->legacy, ctx, 0, 0);
    ctx->legacy.legacy = true;
    ctx->legacy.blocking = false;
    ctx->legacy.last = ctx->legacy.done = ctx->last_seq;
}

/* Another thread's stop drops the lock while it waits for the work. */
static void stopped_wait(CUcontext ctx)
{
    while (ctx->stopping) {
        sim_unlock();
        usleep(20);
        sim_lock();
    }
}

/* Everything that belongs to it goes, once its work is done. */
static void ctx_stop(CUcontext ctx)
{
    ctx->stopping = true;
    lost[ctx->dev] = lost[ctx->dev] || ctx->error;
    sim_streams_kill(ctx);
    sim_ctx_stall(ctx);
    while (ctx->allocs)
        sim_alloc_free(ctx->allocs);
    ctx->gen++;
    ctx->active = ctx->stopping = false;
}

CUcontext sim_primary(int dev)
{
    return &primaries[dev];
}

CUcontext sim_ctx_new(int dev, unsigned flags)
{
    CUcontext ctx = calloc(1, sizeof(*ctx));

    ctx_start(ctx, dev, flags);
    ctx->next = created;
    created = ctx;
    return ctx;
}

void sim_ctx_end(CUcontext ctx)
{
    ctx_stop(ctx);
    ctx->magic = SIM_MAGIC_ENDED;
}

CUcontext sim_primary_take(int dev)
{
    CUcontext ctx = &primaries[dev];

    /* A context that is about to go has gone before another one comes. */
    stopped_wait(ctx);
    ctx->primary = true;
    if (!ctx->active)
        ctx_start(ctx, dev, ctx->flags);
    ctx->refs++;
    return ctx;
}

void sim_primary_drop(int dev)
{
    CUcontext ctx = &primaries[dev];

    if (ctx->refs > 0 && --ctx->refs == 0)
        ctx_stop(ctx);
}

static CUresult dev_check(CUdevice dev)
{
    return dev >= 0 && dev < sim_settings.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    SIM_ENTER(cuDevicePrimaryCtxRetain);
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (dev_check(dev))
        return dev_check(dev);
    SIM_LOCKED();
    stopped_wait(&primaries[dev]);
    if (lost[dev])
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    *pctx = sim_primary_take(dev);
    return CUDA_SUCCESS;
}

static CUresult primary_release(CUdevice dev)
{
    if (dev_check(dev))
        return dev_check(dev);
    SIM_LOCKED();
    CUresult r = primaries[dev].refs > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    sim_primary_drop(dev);
    return r;
}

SIM_CALL(cuDevicePrimaryCtxRelease, (CUdevice dev), primary_release(dev))
SIM_CALL(cuDevicePrimaryCtxRelease_v2, (CUdevice dev), primary_release(dev))

/* References survive a reset: a later retain, or the next use by cudart, starts the context anew. */
static CUresult primary_reset(CUdevice dev)
{
    if (dev_check(dev))
        return dev_check(dev);
    SIM_LOCKED();
    CUcontext ctx = &primaries[dev];
    stopped_wait(ctx);
    ctx->refs = 0;
    if (ctx->active)
        ctx_stop(ctx);
    return CUDA_SUCCESS;
}

SIM_CALL(cuDevicePrimaryCtxReset, (CUdevice dev), primary_reset(dev))
SIM_CALL(cuDevicePrimaryCtxReset_v2, (CUdevice dev), primary_reset(dev))

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
    SIM_ENTER(cuDevicePrimaryCtxGetState);
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    if (dev_check(dev))
        return dev_check(dev);
    SIM_LOCKED();
    *flags = primaries[dev].flags;
    *active = primaries[dev].active && !primaries[dev].stopping;
    return CUDA_SUCCESS;
}

static CUresult primary_flags(CUdevice dev, unsigned int flags)
{
    if (dev_check(dev))
        return dev_check(dev);
    SIM_LOCKED();
    primaries[dev].flags = flags;
    return CUDA_SUCCESS;
}

SIM_CALL(cuDevicePrimaryCtxSetFlags, (CUdevice dev, unsigned int flags), primary_flags(dev, flags))
SIM_CALL(cuDevicePrimaryCtxSetFlags_v2, (CUdevice dev, unsigned int flags), primary_flags(dev, flags))

static CUresult push(CUcontext ctx)
{
    if (!ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == STACK_MAX)
        return CUDA_ERROR_OPERATING_SYSTEM;
    stack[depth].ctx = ctx;
    stack[depth++].gone = false;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice dev)
{
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    if (dev_check(dev))
        return dev_check(dev);
    sim_lock();
    CUcontext ctx = lost[dev] ? NULL : sim_ctx_new(dev, flags);
    sim_unlock();
    if (!ctx)
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    *pctx = ctx;
    return push(ctx);
}

SIM_CALL(cuCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev), create(pctx, flags, dev))
SIM_CALL(cuGLCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev), create(pctx, flags, dev))
SIM_CALL(cuGLCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), create(pctx, flags, dev))
SIM_CALL(cuVDPAUCtxCreate, (CUcontext * pctx, unsigned int flags, CUdevice dev, unsigned int display, void *get),
         create(pctx, flags, dev))
SIM_CALL(cuVDPAUCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev, unsigned int display, void *get),
         create(pctx, flags, dev))
SIM_CALL(cuCtxCreate_v2, (CUcontext * pctx, unsigned int flags, CUdevice dev), create(pctx, flags, dev))
SIM_CALL(cuCtxCreate_v3, (CUcontext * pctx, CUexecAffinityParam *params, int n, unsigned int flags, CUdevice dev),
         create(pctx, flags, dev))
SIM_CALL(cuCtxCreate_v4, (CUcontext * pctx, CUctxCreateParams *params, unsigned int flags, CUdevice dev),
         create(pctx, flags, dev))

static CUresult destroy(CUcontext ctx)
{
    sim_lock();
    CUresult r = !ctx || !alive(ctx) || ctx->primary || ctx->green ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        sim_ctx_end(ctx);
    sim_unlock();
    if (r == CUDA_SUCCESS && current() == ctx)
        depth--;
    return r;
}

SIM_CALL(cuCtxDestroy, (CUcontext ctx), destroy(ctx))
SIM_CALL(cuCtxDestroy_v2, (CUcontext ctx), destroy(ctx))
/* Of the context that is current, which began with one reference. */
CUresult cuCtxAttach(CUcontext *pctx, unsigned int flags)
{
    SIM_ENTER(cuCtxAttach);
    CUcontext ctx;

    if (!pctx || flags)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult r = sim_ctx_check(current());
    ctx = current();
    if (r == CUDA_SUCCESS)
        ctx->refs++;
    sim_unlock();
    *pctx = ctx;
    return r;
}

static CUresult detach(CUcontext ctx)
{
    if (!ctx || current() != ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    sim_lock();
    const bool stays = alive(ctx) && !ctx->primary && ctx->refs;
    if (stays)
        ctx->refs--;
    sim_unlock();
    return stays ? CUDA_SUCCESS : destroy(ctx);
}

SIM_CALL(cuCtxDetach, (CUcontext ctx), detach(ctx))
SIM_CALL(cuCtxPushCurrent, (CUcontext ctx), push(ctx))
SIM_CALL(cuCtxPushCurrent_v2, (CUcontext ctx), push(ctx))

static CUresult pop(CUcontext *pctx)
{
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext ctx = stack[--depth].ctx;
    if (pctx)
        *pctx = ctx;
    return CUDA_SUCCESS;
}

SIM_CALL(cuCtxPopCurrent, (CUcontext * pctx), pop(pctx))
SIM_CALL(cuCtxPopCurrent_v2, (CUcontext * pctx), pop(pctx))

CUresult cuCtxSetCurrent(CUcontext ctx)
{
    SIM_ENTER(cuCtxSetCurrent);
    if (!ctx) {
        if (depth)
            depth--;
        return CUDA_SUCCESS;
    }
    sim_lock();
    uint32_t magic = ctx->magic;
    sim_unlock();
    if (magic != SIM_MAGIC_CTX && magic != SIM_MAGIC_ENDED)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0)
        depth = 1;
    stack[depth - 1].ctx = ctx;
    stack[depth - 1].gone = magic == SIM_MAGIC_ENDED;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    SIM_ENTER(cuCtxGetCurrent);
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = current();
    return CUDA_SUCCESS;
}
