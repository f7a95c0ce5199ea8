/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.c - the exported functions of the driver that end a context, or give up a reference to one.
 * context/leaving.c takes the context's pool away; this file tells it of the call and of its result.
 *
 * Locking: none.
 */
#include "context/context.h"
#include "context/policy.h"
#include "exports/export.h"
#include "real/real.h"

/* Errors of a call that had no effect. Any other error comes from earlier work, and the context is gone all the
 * same. */
static bool did_nothing(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_DEINITIALIZED:
        return true;
    default:
        return false;
    }
}

/* A call that ends a context. */
#define LEAVE(found, call)                                                                                             \
    __extension__({                                                                                                    \
        struct context *leaving_ = process_is_passive() ? NULL : (found);                                              \
        const CUresult left_ = (call);                                                                                 \
        context_gone(leaving_, !did_nothing(left_));                                                                   \
        left_;                                                                                                         \
    })

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return LEAVE(context_leaving_primary(device), real_next(cuDevicePrimaryCtxReset)(device));
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return LEAVE(context_leaving_primary(device), real_next(cuDevicePrimaryCtxReset_v2)(device));
}

/* A call that releases a reference; the primary context ends with the last one. */
#define RELEASE(device, call)                                                                                          \
    __extension__({                                                                                                    \
        struct context *leaving_ = process_is_passive() ? NULL : context_leaving_primary(device);                      \
        const CUresult left_ = (call);                                                                                 \
        context_primary_gone(leaving_);                                                                                \
        left_;                                                                                                         \
    })

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return RELEASE(device, real_next(cuDevicePrimaryCtxRelease)(device));
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return RELEASE(device, real_next(cuDevicePrimaryCtxRelease_v2)(device));
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    const CUresult result = LEAVE(context_leaving(context), real_next(cuCtxDestroy)(context));

    if (!result)
        policy_context_gone(context);
    return result;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    const CUresult result = LEAVE(context_leaving(context), real_next(cuCtxDestroy_v2)(context));

    if (!result)
        policy_context_gone(context);
    return result;
}

/* True once a context has been made from a green context. */
static atomic_bool green_exempt;

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    const CUresult result = real_next(cuCtxFromGreenCtx)(context, green);

    if (!result && !process_is_passive()) {
        context_exempt(*context);
        atomic_store(&green_exempt, true);
    }
    return result;
}

/* Its context's handle may be reused for a context that is pooled. */
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext context = NULL;

    if (!process_is_passive() && atomic_load(&green_exempt) && real_next(cuCtxFromGreenCtx)(&context, green))
        context = NULL;
    return LEAVE(context_leaving(context), real_next(cuGreenCtxDestroy)(green));
}
