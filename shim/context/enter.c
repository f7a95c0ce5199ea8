/* SPDX-License-Identifier: Apache-2.0 */
/* enter.c - see enter.h. No locks and no state. */
#include "context/enter.h"

#include "context/context_state.h"

CUresult context_enter(const struct context *context, struct visit *visit)
{
    const struct real_driver *driver = context->driver;
    const CUcontext handle = atomic_load_explicit(&context->handle, memory_order_relaxed);
    CUcontext current = NULL;
    CUresult result = driver->cuCtxGetCurrent(&current);

    *visit = (struct visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    if (!result && current != handle) {
        result = driver->cuCtxPushCurrent_v2(handle);
        visit->pushed = result == CUDA_SUCCESS;
    }
    visit->relaxed = !result && driver->cuThreadExchangeStreamCaptureMode &&
                     driver->cuThreadExchangeStreamCaptureMode(&visit->mode) == CUDA_SUCCESS;
    return result;
}

void context_leave(const struct context *context, struct visit *visit)
{
    CUcontext ignored;

    if (visit->relaxed)
        context->driver->cuThreadExchangeStreamCaptureMode(&visit->mode);
    /* Tried again if it fails: the program's calls must not end up in another context. */
    if (visit->pushed && context->driver->cuCtxPopCurrent_v2(&ignored))
        context->driver->cuCtxPopCurrent_v2(&ignored);
}
