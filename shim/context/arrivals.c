/* SPDX-License-Identifier: Apache-2.0 */
/* arrivals.c - see arrivals.h. No locks; counters are atomic. */
#include "context/arrivals.h"

#include <limits.h>
#include <stdatomic.h>

#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/own_stream.h"
#include "context/registry.h"
#include "context/vmm_memory.h"
#include "context/wait_context.h"
#include "lock.h"

/* The longest wait for memory that a thread has waited for in vain before, or that is only on its way, in
 * nanoseconds. */
#define ARRIVALS_AGAIN_NS 30000000u
/* The wait does not depend on who frees. */
#define WHOEVER_FREES UINT64_MAX

/* How often released memory has become available at a driver. */
static atomic_uint arrivals;

unsigned int context_arrivals(void)
{
    return atomic_load(&arrivals);
}

void context_arrived(void)
{
    atomic_fetch_add(&arrivals, 1);
}

/* Bytes given back so far, by either way, for which a thread may wait. */
static uint64_t arrivals_given(const struct context *context)
{
    return atomic_load(&context->given) + atomic_load(&context->departures.put);
}

/* The stream's part of what a thread waits for. */
struct wanted {
    uint64_t given, put;
    unsigned int most; /* segments of virtual memory at a time */
};

/* CUDA_SUCCESS: all that is wanted has arrived. Virtual memory whose work is over has gone, or the most of it. */
static CUresult look(struct context *context, const struct wanted *wanted)
{
    const CUresult departing = vmm_memory_collect(context, wanted->most);

    if (atomic_load(&context->departures.gone) < wanted->put)
        return departing ? departing : CUDA_ERROR_NOT_READY;
    return atomic_load(&context->arrived) < wanted->given ? own_stream_sync_idle(context) : CUDA_SUCCESS;
}

/*
 * Another thread that frees while this one waits for its own frees puts memory on the stream behind work that it has
 * launched since, and the stream is idle only after that work, which may wait for this thread. Natively that launch
 * would wait for this thread's free. From then on others_ns nanoseconds are left.
 */
static void others_come(const struct context *context, uint64_t *others_ns, uint64_t *limit)
{
    uint64_t end;

    if (*others_ns == WHOEVER_FREES || order_is_own(context))
        return;
    end = now_ns() + *others_ns;
    *limit = end < *limit ? end : *limit;
    *others_ns = WHOEVER_FREES;
}

static bool collect(struct context *context, uint64_t patience_ns, uint64_t others_ns, unsigned int most)
{
    const struct real_driver *driver = context->driver;
    const struct wanted wanted = {atomic_load(&context->given), atomic_load(&context->departures.put), most};
    const uint64_t gone = atomic_load(&context->departures.gone);
    uint64_t arrived = atomic_load(&context->arrived), limit = patience_ns ? now_ns() + patience_ns : 0;
    CUresult result = CUDA_ERROR_NOT_READY;
    struct visit visit;
    bool done = false;

    if (!arrivals_outstanding(context))
        return false;
    /* The thread is in relaxed mode, so a capture elsewhere is not disturbed. */
    if (!context_enter(context, &visit) && (visit.relaxed || !capture_active_now())) {
        for (unsigned int i = 0; (result = look(context, &wanted)) == CUDA_ERROR_NOT_READY; i++) {
            others_come(context, &others_ns, &limit);
            if (!limit || now_ns() >= limit || !context_stays(context))
                break;
            lock_relax(i);
        }
        /* If the stream cannot be queried, synchronise it, provided that the caller is ready to wait. */
        done = arrived < wanted.given &&
               (result == CUDA_SUCCESS || (result != CUDA_ERROR_NOT_READY && limit &&
                                           driver->cuStreamSynchronize(context->stream) == CUDA_SUCCESS));
    }
    context_leave(context, &visit);
    while (done && arrived < wanted.given && !atomic_compare_exchange_weak(&context->arrived, &arrived, wanted.given))
        ;
    done = done || atomic_load(&context->departures.gone) != gone;
    if (done)
        context_arrived();
    return done;
}

bool arrivals_collect(struct context *context, uint64_t patience_ns)
{
    return collect(context, patience_ns, WHOEVER_FREES, UINT_MAX);
}

bool arrivals_collect_one(struct context *context)
{
    return collect(context, 0, WHOEVER_FREES, 1);
}

/* When this thread's waits for other threads' memory end, in nanoseconds of the monotonic clock; 0: each on its own. */
static __thread uint64_t others_until __attribute__((tls_model("initial-exec")));

void arrivals_share_begin(uint64_t ns)
{
    others_until = now_ns() + ns;
}

void arrivals_share_end(void)
{
    others_until = 0;
}

/* others_ns, or what is left of it. */
static uint64_t others_left(uint64_t others_ns)
{
    const uint64_t now = now_ns(), left = others_until > now ? others_until - now : 0;

    return others_until && left < others_ns ? left : others_ns;
}

static bool orders_have_ended(struct context *context)
{
    struct visit visit;
    const bool ended = !context_enter(context, &visit) && order_is_over(context);

    context_leave(context, &visit);
    return ended;
}

/*
 * Memory of frees whose work has ended is only on its way, which takes the driver a moment, but longer than a thread
 * that asks takes from request to request. Not once another thread frees behind work that goes on.
 */
static bool collect_ended(struct context *context)
{
    const uint64_t limit = now_ns() + ARRIVALS_AGAIN_NS;
    bool any = false;

    for (unsigned int i = 0; !(any = arrivals_collect(context, 0)); i++) {
        if (!arrivals_outstanding(context) || now_ns() >= limit || !context_stays(context) ||
            !orders_have_ended(context))
            break;
        lock_relax(i);
    }
    return any;
}

/* How long this thread waits for memory that its own frees have released, or others'. */
static uint64_t patience_of(const struct context *context, bool is_own, uint64_t others_ns)
{
    const uint64_t patience = is_own ? ARRIVALS_OWN_NS : others_left(others_ns);
    const bool again = atomic_load(&context->gave_up[is_own]) == arrivals_given(context) + 1;

    return again && patience > ARRIVALS_AGAIN_NS ? ARRIVALS_AGAIN_NS : patience;
}

bool arrivals_collect_own(struct context *context, uint64_t others_ns)
{
    const bool is_own = order_wait_own(context);
    uint64_t given, patience, limit;
    bool any;

    if (!is_own && !others_ns)
        return collect_ended(context);
    given = arrivals_given(context);
    patience = patience_of(context, is_own, others_ns);
    limit = now_ns() + patience;
    any = collect(context, patience, is_own ? others_ns : WHOEVER_FREES, UINT_MAX);
    if (!any && patience && now_ns() >= limit) /* not if the stream could not be queried, during a capture */
        atomic_store(&context->gave_up[is_own], given + 1);
    return any;
}

bool arrivals_wait_freeing(struct context *context, bool is_own)
{
    const uint64_t given = arrivals_given(context);
    const uint64_t limit = now_ns() + patience_of(context, is_own, ARRIVALS_OTHERS_NS);

    for (unsigned int i = 0; atomic_load(&context->freeing); i++) {
        if (now_ns() >= limit || !context_stays(context)) {
            atomic_store(&context->gave_up[is_own], given + 1);
            return false;
        }
        lock_relax(i);
    }
    return true;
}

size_t arrivals_outstanding(const struct context *context)
{
    const uint64_t arrived = atomic_load(&context->arrived) + atomic_load(&context->departures.gone);
    const uint64_t given = arrivals_given(context);

    return given > arrived ? given - arrived : 0;
}
