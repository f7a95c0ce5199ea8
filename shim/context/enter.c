/* SPDX-License-Identifier: Apache-2.0 */
/* enter.c - see enter.h. No locks and no state. */
#include "context/enter.h"

#include "context/context_state.h"

bool capture_mode_relax(const struct real_driver *driver, CUstreamCaptureMode *ret_mode)
{
    *ret_mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    return driver->cuThreadExchangeStreamCaptureMode &&
           driver->cuThreadExchangeStreamCaptureMode(ret_mode) == CUDA_SUCCESS;
}

void capture_mode_restore(const struct real_driver *driver, bool relaxed, CUstreamCaptureMode mode)
{
    /* Tried again if it fails: the program's own calls must go on to disturb captures as natively. */
    if (relaxed && driver->cuThreadExchangeStreamCaptureMode(&mode))
        driver->cuThreadExchangeStreamCaptureMode(&mode);
}

CUresult context_enter(const struct context *context, struct visit *visit)
{
    const struct real_driver *driver = context->driver;
    const CUcontext handle = atomic_load_explicit(&context->handle, memory_order_relaxed);
    CUcontext current = NULL;
    CUresult result = driver->cuCtxGetCurrent(&current);

    *visit = (struct visit){0};
    /* Each is tried again if it fails: without the context a free does not wait, and the program relies on that. */
    if (result)
        result = driver->cuCtxGetCurrent(&current);
    if (!result && current != handle) {
        result = driver->cuCtxPushCurrent_v2(handle);
        if (result)
            result = driver->cuCtxPushCurrent_v2(handle);
        visit->pushed = result == CUDA_SUCCESS;
    }
    visit->relaxed = !result && capture_mode_relax(driver, &visit->mode);
    return result;
}

void context_leave(const struct context *context, struct visit *visit)
{
    CUcontext ignored;

    capture_mode_restore(context->driver, visit->relaxed, visit->mode);
    /* Tried again if it fails: the program's calls must not end up in another context. */
    if (visit->pushed && context->driver->cuCtxPopCurrent_v2(&ignored))
        context->driver->cuCtxPopCurrent_v2(&ignored);
}
