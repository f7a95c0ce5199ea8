/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctxcalls.c - the calls on a live context: questions, synchronising, peers, cuCtxRecordEvent and cuCtxWaitEvent.
 *
 * Each exported function is a few lines on top of engine.c and capture.c. The life of contexts is in context.c.
 *
 * Locking: each takes sim_lock() itself.
 */
#include "sim.h"

CUresult cuCtxGetDevice(CUdevice *dev)
{
    SIM_ENTER(cuCtxGetDevice);
    CUcontext ctx;

    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    if (ctx) { /* known even when the context is dead */
        *dev = ctx->dev;
        r = CUDA_SUCCESS;
    }
    return r;
}

CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx)
{
    SIM_ENTER(cuCtxGetDevice_v2);
    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!ctx)
        sim_current(&ctx);
    if (!ctx || ctx->magic != SIM_MAGIC_CTX)
        return CUDA_ERROR_INVALID_CONTEXT;
    *dev = ctx->dev;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long *id)
{
    SIM_ENTER(cuCtxGetId);
    if (!id)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    if (!ctx)
        sim_current(&ctx);
    if (!ctx || ctx->magic != SIM_MAGIC_CTX || !ctx->active)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *id = ctx->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    SIM_ENTER(cuCtxGetFlags);
    CUcontext ctx;

    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    *flags = ctx->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    SIM_ENTER(cuCtxSetFlags);
    CUcontext ctx;

    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    ctx->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
{
    SIM_ENTER(cuCtxGetApiVersion);
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    SIM_ENTER(cuCtxGetLimit);
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    *value = limit == CU_LIMIT_STACK_SIZE ? 1024 : (size_t)8 << 20;
    return CUDA_SUCCESS;
}

SIM_CALL(cuCtxSetLimit, (CUlimit limit, size_t value), CUDA_SUCCESS)

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    SIM_ENTER(cuCtxGetStreamPriorityRange);
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

static CUresult peer_set(CUcontext peer, bool on)
{
    CUcontext ctx;

    SIM_LOCKED();
    CUresult r = sim_current(&ctx);
    if (r == CUDA_SUCCESS && (!peer || sim_ctx_check(peer) || peer->dev == ctx->dev))
        r = CUDA_ERROR_INVALID_CONTEXT;
    if (r == CUDA_SUCCESS) {
        uint64_t bit = (uint64_t)1 << peer->dev;
        if (on && (ctx->peers & bit))
            r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        else if (!on && !(ctx->peers & bit))
            r = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
        else
            ctx->peers ^= bit;
    }
    return r;
}

SIM_CALL(cuCtxEnablePeerAccess, (CUcontext peer, unsigned int flags),
         flags ? CUDA_ERROR_INVALID_VALUE : peer_set(peer, true))
SIM_CALL(cuCtxDisablePeerAccess, (CUcontext peer), peer_set(peer, false))

static CUresult synchronize(CUcontext ctx)
{
    SIM_LOCKED();
    if (!ctx)
        sim_current(&ctx);
    SIM_TRY(sim_ctx_check(ctx));
    SIM_TRY(sim_capture_sync(ctx));
    sim_ctx_wait(ctx);
    return ctx->error;
}

SIM_CALL(cuCtxSynchronize, (void), synchronize(NULL))
SIM_CALL(cuCtxSynchronize_v2, (CUcontext ctx), synchronize(ctx))

static bool event_ok(CUevent event)
{
    return event && event->magic == SIM_MAGIC_EVENT && event->gen == event->ctx->gen;
}

/* Symbols cannot be hidden from dlsym per run; on a simulated older driver the two calls say that they are not
 * supported. */
static bool too_old(void)
{
    return sim_settings.driver_version < 12050;
}

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
    SIM_ENTER(cuCtxRecordEvent);
    if (too_old())
        return CUDA_ERROR_NOT_SUPPORTED;
    SIM_LOCKED();
    if (!ctx)
        sim_current(&ctx);
    SIM_TRY(sim_ctx_check(ctx));
    if (!event_ok(event) || event->ctx != ctx)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_TRY(sim_ctx_stalled(ctx));
    SIM_TRY(sim_capture_sync(ctx));
    sim_point_drop(&event->point);
    event->cap_id = 0;
    event->recorded = true;
    event->time = 0;
    if (!sim_ctx_idle(ctx)) {
        event->point.ctx = ctx;
        event->point.seq = ctx->last_seq;
    } else if (!(event->flags & CU_EVENT_DISABLE_TIMING)) {
        event->time = sim_now();
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
    SIM_ENTER(cuCtxWaitEvent);
    if (too_old())
        return CUDA_ERROR_NOT_SUPPORTED;
    SIM_LOCKED();
    if (!ctx)
        sim_current(&ctx);
    CUresult r = sim_ctx_check(ctx);
    if (r == CUDA_SUCCESS && !event_ok(event))
        r = CUDA_ERROR_INVALID_HANDLE;
    struct sim_capture *cap = r == CUDA_SUCCESS && event->cap_id ? sim_capture_by_id(event->cap_id) : NULL;
    if (cap) {
        sim_capture_lose(cap);
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (r == CUDA_SUCCESS)
        r = sim_capture_sync(ctx);
    if (r == CUDA_SUCCESS)
        sim_ctx_fence(ctx, &event->point);
    return r;
}
