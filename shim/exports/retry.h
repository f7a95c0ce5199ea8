/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retry.h - calls of the driver that take memory which the pool does not serve: if the driver refuses, and the pools
 * have memory to give back, the call is made once more; and once more if other processes have given some back.
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
#include "context/limits.h"
#include "serve/serve.h"

/*
 * The calling thread is in a call of NCCL that its hook makes again (on). There NCCL must not be called to undo a
 * registration or to take a segment back, so a call of the driver that is refused is not made again, and the hook
 * learns of that (refused).
 */
extern __thread struct retry_later {
    bool on, refused;
} retry_later __attribute__((tls_model("initial-exec"), visibility("hidden")));

struct retry {
    size_t wanted;         /* the bytes that the call takes, or less; 0: not known */
    size_t enough;         /* the bytes of other processes with which it succeeds; 0: not known */
    unsigned int arrivals; /* serve_arrivals() before the first call */
    bool gave;             /* the current device's pools have been asked to give back */
    bool elsewhere;        /* it may be memory of another device, and the other devices' pools have not been asked */
    bool asked; /* other processes have been asked, perhaps for the pool's request that this call stands for */
};

static inline struct retry retry_begin(void)
{
    return (struct retry){.arrivals = serve_arrivals(), .asked = serve_has_asked()};
}

/* For a call whose stream, pool, graph or memory may be of another device than the current one. */
static inline struct retry retry_begin_elsewhere(void)
{
    struct retry retry = retry_begin();

    retry.elsewhere = true;
    return retry;
}

/* True once. */
static inline bool retry_first(bool *done)
{
    const bool first = !*done;

    *done = true;
    return first;
}

/* True: the driver has refused memory, and this thread may look for some. */
static inline bool retry_may(CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    retry_later.refused |= retry_later.on;
    return !retry_later.on;
}

/* Once the current device's idle memory has not been enough. True: other devices' has gone. */
static inline bool retry_elsewhere(struct retry *retry)
{
    const bool elsewhere = retry->elsewhere;

    retry->elsewhere = false;
    return elsewhere && serve_give_back_anywhere(retry->wanted);
}

/* True: make the call again. */
static inline bool retry_again(struct retry *retry, CUresult result)
{
    return retry_may(result) &&
           ((retry_first(&retry->gave) && serve_give_back(retry->arrivals, retry->wanted)) || retry_elsewhere(retry) ||
            (retry_first(&retry->asked) && serve_ask(retry->wanted, retry->enough)));
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
    return !process_is_inside() && retry_may(result) &&
           ((retry_first(&retry->gave) && serve_give_back_on(device, retry->arrivals, retry->wanted)) ||
            (retry_first(&retry->asked) && serve_ask_on(device, retry->wanted)));
}

#endif
