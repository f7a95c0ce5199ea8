/* SPDX-License-Identifier: Apache-2.0 */
/*
 * green.c - green contexts.
 *
 * A green context is a handle of its own that can be current and keeps the primary context alive. Objects made in it
 * belong to the primary one: that one's events cover its streams and hold them back (measured on H200), so here its
 * frees wait for them, too. It is no partition: every resource is the whole device.
 *
 * Locking: each function takes sim_lock() itself. Green contexts stay mapped for good: handles may go stale.
 */
#include "sim.h"

struct CUgreenCtx_st {
    uint32_t magic;
    CUcontext ctx;
    CUgreenCtx next;
};

struct CUdevResourceDesc_st {
    uint32_t magic;
    int dev;
    struct CUdevResourceDesc_st *next;
};

static CUgreenCtx greens;                  /* every one, so that forgotten ones are no leaks of ours */
static struct CUdevResourceDesc_st *descs; /* likewise: natively nothing frees them */

static CUresult resource(CUdevice dev, CUdevResource *ret, CUdevResourceType type)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    if (dev < 0 || dev >= sim_settings.devices)
        return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memset(ret, 0, sizeof(*ret));
    ret->type = type;
    memcpy(ret->_internal_padding, &dev, sizeof(dev));
    ret->sm.smCount = 132;
    return CUDA_SUCCESS;
}

SIM_CALL(cuDeviceGetDevResource, (CUdevice dev, CUdevResource *ret, CUdevResourceType type), resource(dev, ret, type))

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *ret, CUdevResource *resources, unsigned int n)
{
    SIM_ENTER(cuDevResourceGenerateDesc);
    if (!ret || !resources || n == 0 || resources[0].type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUdevResourceDesc_st *desc = calloc(1, sizeof(*desc));
    desc->magic = SIM_MAGIC_DESC;
    memcpy(&desc->dev, resources[0]._internal_padding, sizeof(desc->dev));
    sim_lock();
    desc->next = descs;
    descs = desc;
    sim_unlock();
    *ret = desc;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxCreate(CUgreenCtx *ret, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
    SIM_ENTER(cuGreenCtxCreate);
    if (!ret || !desc || desc->magic != SIM_MAGIC_DESC || desc->dev != dev || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    CUgreenCtx green = calloc(1, sizeof(*green));
    sim_lock();
    sim_primary_take(dev);
    green->magic = SIM_MAGIC_GREEN;
    green->ctx = sim_ctx_new(dev, 0);
    green->ctx->green = true;
    green->next = greens;
    greens = green;
    sim_unlock();
    *ret = green;
    return CUDA_SUCCESS;
}

static bool green_ok(CUgreenCtx green)
{
    return green && green->magic == SIM_MAGIC_GREEN;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    SIM_ENTER(cuGreenCtxDestroy);
    SIM_LOCKED();
    bool ok = green_ok(green);
    if (ok) {
        int dev = green->ctx->dev;
        green->magic = 0;
        sim_ctx_end(green->ctx);
        sim_primary_drop(dev);
    }
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxFromGreenCtx(CUcontext *ret, CUgreenCtx green)
{
    SIM_ENTER(cuCtxFromGreenCtx);
    if (!ret || !green_ok(green))
        return CUDA_ERROR_INVALID_VALUE;
    *ret = green->ctx;
    return CUDA_SUCCESS;
}

CUresult cuGreenCtxStreamCreate(CUstream *ret, CUgreenCtx green, unsigned int flags, int priority)
{
    SIM_ENTER(cuGreenCtxStreamCreate);
    if (!ret || !green_ok(green) || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    *ret = sim_stream_make(sim_primary(green->ctx->dev), flags, priority);
    (*ret)->green = green->ctx;
    return CUDA_SUCCESS;
}

/* A default stream is the green context's that is current. */
CUresult cuStreamGetGreenCtx(CUstream handle, CUgreenCtx *ret)
{
    SIM_ENTER(cuStreamGetGreenCtx);
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext ctx;
    SIM_TRY(cuCtxGetCurrent(&ctx));
    SIM_LOCKED();
    CUstream s;
    SIM_TRY(sim_stream_resolve(handle, /* pt: */ false, &s));
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
        ctx = s->green;
    for (*ret = greens; *ret && ((*ret)->ctx != ctx || !green_ok(*ret));)
        *ret = (*ret)->next;
    return CUDA_SUCCESS;
}
