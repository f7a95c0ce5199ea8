/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_calls.c - the exported functions of the driver that end a context, or give up a reference to one.
 * context/context_end.c takes the context's pool away; this file tells it of the call and of its result.
 *
 * Locking: none.
 */
#include "context/capture_gate.h"
#include "context/context_end.h"
#include "context/enter.h"
#include "context/facts.h"
#include "context/registry.h"
#include "context/strict.h"
#include "context/vmm_kept.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "real/real.h"

/* Errors of a call that had no effect. Any other error comes from earlier work, and the context is gone
 * nevertheless. */
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

/* A context during a call that may end it. */
struct going {
    struct context *context; /* as context_leaving has returned it; NULL: nothing is to be done */
    CUcontext handle;        /* of one without an entry, whose captures are forgotten here; NULL: it is not needed */
    unsigned int captures;   /* capture_total before the call */
};

/* Before a call that ends a context. */
static struct going leaving(CUcontext handle)
{
    struct going going = {.captures = atomic_load(&capture_total)};

    if (process_is_passive())
        return going;
    going.context = context_leaving(handle);
    if (!context_handle(going.context))
        going.handle = handle;
    return going;
}

static struct going leaving_primary(CUdevice device)
{
    struct going going = {.captures = atomic_load(&capture_total)};
    const struct real_driver *driver;

    if (process_is_passive())
        return going;
    going.context = context_leaving_primary(device);
    driver = capture_active() && !context_handle(going.context) ? real_driver_get() : NULL;
    if (driver)
        (void)facts_primary(driver, device, &going.handle);
    return going;
}

/* After it. A context that is not pooled has captures, too, which must not be forgotten before: it may be pooled
 * during one. */
static void gone(const struct going *going, bool is_over)
{
    if (is_over)
        capture_forget(going->handle, going->captures);
    context_gone(going->context, is_over);
}

static CUresult after_leaving(const struct going *going, CUresult result)
{
    gone(going, !did_nothing(result));
    return result;
}

static void after_leaving_primary(const struct going *going, CUdevice device)
{
    const struct real_driver *driver = going->handle ? real_driver_get() : NULL;

    if (driver && context_primary_is_over(driver, device))
        capture_forget(going->handle, going->captures);
    context_primary_gone(going->context);
}

/* The versions of each function differ in their symbol alone. */
static CUresult primary_reset(enum real_symbol symbol, CUdevice device)
{
    const struct going going = leaving_primary(device);

    vmm_kept_context_ends();
    return after_leaving(&going, ((__typeof__(&cuDevicePrimaryCtxReset))real_find(symbol))(device));
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return primary_reset(REAL_cuDevicePrimaryCtxReset, device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return primary_reset(REAL_cuDevicePrimaryCtxReset_v2, device);
}

/* After a call that has released a reference, if it succeeded; the primary context ends with the last one. */
static void after_release(const struct going *going, CUdevice device, CUresult result)
{
    const struct real_driver *driver = vmm_kept_existing() ? real_driver_get() : NULL;
    unsigned int flags;
    int active = 1;

    if (driver && !result && driver->cuDevicePrimaryCtxGetState &&
        (driver->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active))
        vmm_kept_context_ends();
    after_leaving_primary(going, device);
}

static CUresult primary_release(enum real_symbol symbol, CUdevice device)
{
    const struct going going = leaving_primary(device);
    const CUresult result = ((__typeof__(&cuDevicePrimaryCtxRelease))real_find(symbol))(device);

    after_release(&going, device, result);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return primary_release(REAL_cuDevicePrimaryCtxRelease, device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return primary_release(REAL_cuDevicePrimaryCtxRelease_v2, device);
}

static CUresult destroy(enum real_symbol symbol, CUcontext handle)
{
    const struct going going = leaving(handle);
    CUresult result;

    vmm_kept_context_ends();
    result = after_leaving(&going, ((__typeof__(&cuCtxDestroy))real_find(symbol))(handle));
    if (!result)
        policy_context_gone(handle);
    return result;
}

EXPORT CUresult cuCtxDestroy(CUcontext handle)
{
    return destroy(REAL_cuCtxDestroy, handle);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext handle)
{
    return destroy(REAL_cuCtxDestroy_v2, handle);
}

/* It gives up a reference to the current context, which ends with the last one, and is current no more then. */
EXPORT CUresult cuCtxDetach(CUcontext handle)
{
    const struct going going = leaving(handle);
    CUresult result;
    bool is_over;

    vmm_kept_context_ends();
    result = real_next(cuCtxDetach)(handle);
    is_over = going.context && !did_nothing(result) && context_is_over(going.context, handle);
    gone(&going, is_over);
    if (is_over)
        policy_context_gone(handle);
    return result;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    const CUresult result = real_next(cuCtxFromGreenCtx)(context, green);

    if (!result && !process_is_passive())
        context_exempt(*context);
    return result;
}

/* Its context's handle may be reused for a context that is pooled. And it has a reference to its device's primary
 * context, which may be the last one. */
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    const struct real_driver *driver = process_is_passive() ? NULL : real_driver_get();
    struct going going, primary = {0};
    CUcontext handle = NULL;
    CUresult result;
    int device = -1;

    if (driver && !real_next(cuCtxFromGreenCtx)(&handle, green))
        device = context_device_of(driver, handle);
    going = leaving(handle);
    if (device >= 0)
        primary = leaving_primary(device);
    result = after_leaving(&going, real_next(cuGreenCtxDestroy)(green));
    if (device >= 0)
        after_release(&primary, device, result);
    return result;
}
