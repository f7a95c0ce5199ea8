/* SPDX-License-Identifier: Apache-2.0 */
/* enter.c - see enter.h. No locks and no state. */
#include "context/enter.h"

#include "context/context_state.h"

void context_pop(const struct real_driver *driver)
{
    CUcontext ignored;

    /* Tried again if it fails: the program's calls must not end up in another context. */
    if (driver->cuCtxPopCurrent_v2(&ignored))
        driver->cuCtxPopCurrent_v2(&ignored);
}

int context_device_of(const struct real_driver *driver, CUcontext handle)
{
    CUresult result = driver->cuCtxPushCurrent_v2(handle);
    CUdevice device;

    /* Each is tried again if it fails: the memory of a context that ends unseen would be handed out. */
    if (result)
        result = driver->cuCtxPushCurrent_v2(handle);
    if (result)
        return -1;
    result = driver->cuCtxGetDevice(&device);
    if (result)
        result = driver->cuCtxGetDevice(&device);
    context_pop(driver);
    return result ? -1 : device;
}

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
    capture_mode_restore(context->driver, visit->relaxed, visit->mode);
    if (visit->pushed)
        context_pop(context->driver);
}

CUresult context_event_ask(const struct context *context, CUevent event)
{
    const CUresult result = context->driver->cuEventQuery(event);

    /* Asked again, because the caller waits for this work, and the program relies on that. */
    return result && result != CUDA_ERROR_NOT_READY ? context->driver->cuEventQuery(event) : result;
}
