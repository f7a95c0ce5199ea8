/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retry.h - calls of the driver that take memory which the pool does not serve: if the driver refuses, and the pools
 * have memory to give back, the call is made once more.
 *
 *     struct retry retry = retry_begin();
 *
 *     do
 *         result = real_next(SYMBOL)(...);
 *     while (retry_again(&retry, result));
 *
 * It does not call the driver's function itself.
 *
 * Threads: any thread; a struct retry belongs to one call. No locks.
 */
#ifndef CUPOOL_SHIM_EXPORTS_RETRY_H
#define CUPOOL_SHIM_EXPORTS_RETRY_H

#include "base/process.h"
#include "serve/serve.h"

struct retry {
    unsigned int arrivals; /* serve_arrivals() before the first call */
    bool done;             /* a second call has been considered; there is no third */
};

static inline struct retry retry_begin(void)
{
    return (struct retry){.arrivals = serve_arrivals()};
}

static inline bool retry_is_worth_it(struct retry *retry, CUresult result)
{
    const bool first = !retry->done;

    retry->done = true;
    return first && result == CUDA_ERROR_OUT_OF_MEMORY;
}

/* True: make the call again. */
static inline bool retry_again(struct retry *retry, CUresult result)
{
    return retry_is_worth_it(retry, result) && serve_give_back(retry->arrivals);
}

/* As retry_again, for a call that NCCL makes inside ncclMemAlloc: there NCCL must not be called to take a segment
 * back. */
static inline bool retry_again_outside(struct retry *retry, CUresult result)
{
    return !process_is_inside() && retry_again(retry, result);
}

/* As retry_again, for a call that takes memory of this device and needs no current context. */
static inline bool retry_again_on_device(struct retry *retry, CUresult result, CUdevice device)
{
    return retry_is_worth_it(retry, result) && !process_is_inside() &&
           (serve_release(device, "oom") || serve_arrivals() != retry->arrivals);
}

#endif
