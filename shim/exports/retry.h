/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retry.h - calls of the driver that take memory which the pool does not serve: if the driver refuses, and the pools
 * have memory to give back, the call is made again, and again if other processes have given some back: as often as
 * there was some, for a limited time, because other threads and processes may take it before the call does.
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
#include "clock.h"
#include "context/arrivals.h"
#include "context/limits.h"
#include "pool.h"
#include "serve/serve.h"

/*
 * The calling thread is in a call of NCCL that its hook makes again (on). There NCCL must not be called to undo a
 * registration or to take a segment back, so a call of the driver that is refused is not made again, and the hook
 * learns of that (refused).
 */
extern __thread struct retry_later {
    bool on, refused;
} retry_later __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* So often a call of known size is made again although the driver has too little free with all that goes back. */
#define RETRY_HOPES 8

struct retry {
    size_t wanted;             /* the bytes that the call takes, or less; 0: not known */
    size_t enough;             /* the bytes of other processes with which it succeeds; 0: not known */
    unsigned int arrivals;     /* serve_arrivals() before the call was made last */
    uint64_t limit;            /* the time until which this process's pools give back; 0: none has */
    unsigned int tries;        /* so often it was refused */
    bool elsewhere;            /* it may be memory of another device */
    bool went;                 /* all devices have given back, once at least */
    struct pool_asking asking; /* of other processes; over if the pool's request that this call stands for has asked */
};

static inline struct retry retry_begin(void)
{
    return (struct retry){.arrivals = serve_arrivals(), .asking.over = serve_has_asked()};
}

/* For a call whose stream, pool, graph or memory may be of another device than the current one. */
static inline struct retry retry_begin_elsewhere(void)
{
    struct retry retry = retry_begin();

    retry.elsewhere = true;
    return retry;
}

/* True: the driver has refused memory, and this thread may look for some. */
static inline bool retry_may(CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    retry_later.refused |= retry_later.on;
    return !retry_later.on;
}

/* The call was refused. True if this process's pools may be asked to give back: the time has not passed. */
static inline bool retry_lasts(struct retry *retry)
{
    const uint64_t now = now_ns();

    retry->tries++;
    if (!retry->limit)
        retry->limit = now + ARRIVALS_OTHERS_NS;
    return now < retry->limit;
}

/* True: the driver's figure of free memory may say that it is hopeless. Not for requests of streams: a pool of the
 * driver's keeps what it has gathered for one that it then refuses. */
static inline bool retry_is_often(const struct retry *retry)
{
    return retry->tries > RETRY_HOPES && !retry->elsewhere;
}

/* True: make the call again, because this process's pools have given memory back. */
static inline bool retry_by_own(struct retry *retry, CUresult result)
{
    bool lasts, gave = false;

    if (!retry_may(result))
        return false;
    lasts = retry_lasts(retry);
    if (lasts)
        gave = serve_give_back(retry->arrivals, retry->wanted, retry_is_often(retry));
    if (!gave && retry->elsewhere && (lasts || !retry->went)) {
        gave = serve_give_back_anywhere(retry->wanted);
        retry->went = true;
    }
    retry->arrivals = serve_arrivals();
    return gave;
}

/* True: make the call again, because other processes have. */
static inline bool retry_by_others(struct retry *retry, CUresult result)
{
    return retry_may(result) && serve_ask(retry->wanted, retry->enough, &retry->asking);
}

/* True: make the call again. */
static inline bool retry_again(struct retry *retry, CUresult result)
{
    return retry_by_own(retry, result) || retry_by_others(retry, result);
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
    bool gave = false;

    if (process_is_inside() || !retry_may(result))
        return false;
    if (retry_lasts(retry)) {
        gave = serve_give_back_on(device, retry->arrivals, retry->wanted, retry_is_often(retry));
        retry->arrivals = serve_arrivals();
    }
    return gave || serve_ask_on(device, retry->wanted, &retry->asking);
}

#endif
