/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_end.c - see context_end.h.
 *
 * Locking: contexts.lock, never held over a wait or a call of the driver.
 */
#include "context/context_end.h"

#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/counters.h"
#include "context/events.h"
#include "context/facts.h"
#include "context/nccl_given.h"
#include "context/pause_copies.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/strict.h"
#include "context/vmm_memory.h"
#include "lock.h"

/* The longest wait for threads in calls, before and after the call that ends their context, in nanoseconds. */
#define PINS_WAIT_NS 1000000000
/* How many calls of lock_relax a call that may end a context leaves to waiting threads: about a millisecond. */
#define LET_GO_CALLS 1020u

/* Wait until no thread is in a call on the context. False: a thread was in one for more than a second. */
static bool pins_wait(const struct context *context, const struct pool *pool, bool sleepers)
{
    const uint64_t limit = now_ns() + PINS_WAIT_NS;

    pins_fence();
    for (unsigned int i = 0; pins_any(context, pool, sleepers); i++) {
        if (now_ns() >= limit)
            return false;
        lock_relax(i);
    }
    return true;
}

/* Stands for a context without an entry; an entry may be about to be made. */
static struct context unknown;

/* From now on no thread makes an entry. Threads that an earlier ending made wait go first: a program that retains and
 * releases a primary context all the time would leave them no moment. */
static void ending_begin(void)
{
    for (unsigned int i = 0; !context_endings && i < LET_GO_CALLS && atomic_load(&context_waiters); i++)
        lock_relax(i);
    context_endings++;
    pthread_mutex_lock(&contexts.lock);
    atomic_fetch_add(&contexts.endings, 1);
    pthread_mutex_unlock(&contexts.lock);
    capture_asks_pause();
}

/* gone: a context has ended, or one that has no entry may have. */
static void ending_end(bool gone)
{
    capture_asks_resume();
    context_endings--;
    atomic_fetch_add(&contexts.ended, 1);
    atomic_fetch_sub(&contexts.endings, 1);
    if (gone)
        context_events.ending_over();
}

/* Mark the entry as leaving, after ending_begin. NULL: there is no such entry. */
static struct context *entry_leaving(CUcontext handle)
{
    struct context *context;

    /* If the entry came to mean another context in between, it is left alone. */
    while ((context = handle ? context_entry_find(handle) : NULL)) {
        if (!atomic_fetch_add(&context->leaving, 1))
            atomic_store(&context->waited_for, false);
        if (atomic_load(&context->handle) == handle)
            break;
        atomic_fetch_sub(&context->leaving, 1);
    }
    if (!context)
        return NULL;
    atomic_fetch_add(&contexts_closing, 1);
    atomic_store(&context->captures, atomic_load(&capture_total));
    context_changed();
    pins_wait(context, context->pool, /* sleepers: */ false);
    return context;
}

struct context *context_leaving(CUcontext handle)
{
    struct context *context = handle ? context_entry_find(handle) : NULL;

    /* Communicators of other contexts have its memory registered. Those of a primary one go with it. */
    if (context && context->pool && !context->primary)
        context_events.context_ends(context);
    ending_begin();
    context = entry_leaving(handle);
    return context ? context : &unknown;
}

struct context *context_leaving_primary(CUdevice device)
{
    ending_begin();
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);
        const CUcontext handle = atomic_load(&context->handle);

        if (handle && context->primary && context->device == device && (context = entry_leaving(handle)))
            return context;
    }
    return &unknown;
}

/* Destroy the pool. No thread is in a call on it, and none begins one. */
static void pool_end(struct context *context, struct pool *pool)
{
    struct pool_stats stats;

    context_events.pool_ending(context);
    pool_stats_get(pool, &stats);
    counters_keep(context, &stats);
    pthread_mutex_lock(&contexts.lock);
    context->pool = NULL;
    pthread_mutex_unlock(&contexts.lock);
    pool_destroy(pool);
    context_events.pool_ended(context);
    vmm_memory_ended(context);
    nccl_given_ended(context);
    pause_copies_ended(context);
}

void context_lingering_end(void)
{
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);
        struct pool *pool = atomic_load(&context->lingering);

        if (!pool || pins_any(context, pool, /* sleepers: */ true) ||
            !atomic_compare_exchange_strong(&context->lingering, &pool, NULL))
            continue;
        pool_end(context, pool);
        atomic_fetch_sub(&contexts_closing, 1);
        atomic_store(&context->ending, false); /* from now on the entry can be reused */
    }
}

/* Claim the end of a context for one of the threads that saw it end. False: another thread has claimed it. *ret_pool:
 * NULL for a green context, which has none. Threads that are in calls still find the pool in the entry. */
static bool entry_claim(struct context *context, struct pool **ret_pool)
{
    bool claimed;

    pthread_mutex_lock(&contexts.lock);
    claimed = atomic_load(&context->handle) && !atomic_load(&context->ending);
    if (claimed)
        atomic_store(&context->ending, true);
    *ret_pool = context->pool;
    pthread_mutex_unlock(&contexts.lock);
    return claimed;
}

static void forget(struct context *context, struct pool *pool)
{
    const CUcontext handle = atomic_load(&context->handle);
    bool lingers = false;

    capture_forget(handle, atomic_load(&context->captures));
    policy_context_gone(handle);
    context_events.context_ended(context);
    if (pool)
        lingers = !pins_wait(context, pool, /* sleepers: */ true);
    if (pool && !lingers)
        pool_end(context, pool);
    pthread_mutex_lock(&contexts.lock);
    atomic_store(&context->handle, NULL);
    pthread_mutex_unlock(&contexts.lock);
    if (lingers) {
        atomic_fetch_add(&contexts_closing, 1);
        atomic_store(&context->lingering, pool);
    } else {
        atomic_store(&context->ending, false);
    }
}

static void entry_gone(struct context *context, bool gone)
{
    struct pool *pool;

    if (gone && entry_claim(context, &pool))
        forget(context, pool);
    atomic_fetch_sub(&context->leaving, 1);
    atomic_fetch_sub(&contexts_closing, 1);
    context_changed();
    context_lingering_end();
}

void context_gone(struct context *context, bool gone)
{
    if (context && context != &unknown && !gone && !context->primary)
        context_events.context_stays(context);
    if (context && context != &unknown)
        entry_gone(context, gone);
    if (context)
        ending_end(gone);
}

bool context_is_over(const struct context *context, CUcontext handle)
{
    const struct real_driver *driver = real_driver_get();
    CUcontext current = NULL;

    if (!driver || driver->cuCtxGetCurrent(&current) || current != handle)
        return true;
    /* The thread may have made it current more than once. */
    return context && context != &unknown && context->id && context_id(driver, handle) != context->id;
}

static void probing_wait(int device)
{
    for (unsigned int i = 0; atomic_load(&contexts.probing[(unsigned int)device % DEVICES_MAX]); i++)
        lock_relax(i);
}

/* False: it has stayed. */
static bool entry_primary_gone(struct context *context)
{
    const struct real_driver *driver = context->driver;
    unsigned long long id;
    unsigned int flags;
    int active = 1;
    bool gone;

    probing_wait(context->device);
    /* Asked twice. If the driver cannot say, the entry stays marked as leaving: no request may be served from a pool
     * that may be gone. */
    if (driver->cuDevicePrimaryCtxGetState &&
        driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS &&
        driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS) {
        atomic_store(&context->undecided, true);
        return true;
    }
    /* The program may have created another primary context meanwhile, with the same handle. If one of the two numbers
     * is not known, that is the less likely. */
    id = active && context->id ? context_id(driver, atomic_load(&context->handle)) : 0;
    gone = !active || (id && id != context->id);
    entry_gone(context, gone);
    return gone;
}

void context_primary_gone(struct context *context)
{
    if (context)
        ending_end(context == &unknown || entry_primary_gone(context));
}

bool context_primary_is_over(const struct real_driver *driver, CUdevice device)
{
    unsigned int flags;
    int active = 1;

    probing_wait(device);
    return driver->cuDevicePrimaryCtxGetState &&
           driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active;
}

void context_sweep_begin(struct context_sweep *ret_sweep)
{
    *ret_sweep = (struct context_sweep){{0}};
    ending_begin();
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (atomic_load(&context->handle) && context->primary && entry_leaving(atomic_load(&context->handle)))
            ret_sweep->marked[i / 64] |= 1ull << i % 64;
    }
}

void context_sweep_end(const struct context_sweep *sweep)
{
    for (unsigned int i = 0; i < CONTEXTS_MAX; i++)
        if (sweep->marked[i / 64] >> i % 64 & 1)
            entry_primary_gone(atomic_load(&contexts.entries[i]));
    ending_end(true);
}
