/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leaving.c - how contexts end: which calls may end one, which threads are waited for, and which counters remain. See
 * context.h and context_internal.h. It makes no call that ends a context itself; the exported functions do.
 *
 * A call of the program that may end a context has three steps. First the context is marked as leaving: no new request,
 * pin or free begins to use its pool. This thread then waits for all threads in a call on the context, because they
 * pass its handles to the driver, except those that wait for the device in the driver, as they natively do beside such
 * a call. Second the program's call is made. Third, if the context is gone, this thread waits for all threads and
 * destroys the pool. If a thread does not leave within a second, the pool lingers, and is destroyed when another
 * context comes or goes.
 *
 * Locking: contexts.lock, never held over a wait or a call of the driver.
 */
#include "clock.h"
#include "context/calls.h"
#include "context/capture.h"
#include "context/context_internal.h"
#include "context/policy.h"
#include "lock.h"
#include "nccl/nccl.h"
#include "nccl/use.h"
#include "report/debug.h"

/* The longest wait for threads in calls, before and after the call that ends their context, in nanoseconds. */
#define CALLS_WAIT_NS 1000000000
/* How many turns of lock_relax a call that may end a context leaves to waiting threads: about a millisecond. */
#define LET_GO_TURNS 1020u

__thread unsigned int context_endings __attribute__((tls_model("initial-exec")));
atomic_uint contexts_closing;
atomic_uint context_waiters;

bool context_pin(struct context *context)
{
    if (!calls_pin(context))
        return false;
    if (!atomic_load(&context->leaving) && atomic_load(&context->handle) && context->pool)
        return true;
    calls_unpin(context);
    return false;
}

void context_unpin(struct context *context)
{
    calls_unpin(context);
}

/* Wait until no thread is in a call on the context. False: a thread was in one for more than a second. */
static bool calls_wait(const struct context *context, const struct pool *pool, bool sleepers)
{
    const uint64_t limit = now_ns() + CALLS_WAIT_NS;

    calls_fence();
    for (unsigned int i = 0; calls_busy(context, pool, sleepers); i++) {
        if (now_ns() >= limit)
            return false;
        lock_relax(i);
    }
    return true;
}

/* True while a call of another thread decides whether the context stays. */
static bool is_decided_on(const struct context *context)
{
    return atomic_load(&context->leaving) && !atomic_load(&context->ending) && !atomic_load(&context->undecided);
}

bool context_stays(const struct context *context)
{
    while (is_decided_on(context)) {
        if (context_endings)
            return false;
        /* The context may end beside this thread, which makes no call of the driver until that is decided. */
        call_sleep(context);
        atomic_fetch_add(&context_waiters, 1);
        for (unsigned int i = 0; is_decided_on(context); i++)
            lock_relax(i);
        atomic_fetch_sub(&context_waiters, 1);
        call_wake();
    }
    return !atomic_load(&context->ending);
}

enum context_free context_may_free(uint64_t addr, uint64_t limit)
{
    const struct pool *pool = pool_of(addr);
    const struct context *context = pool ? context_of(pool) : NULL;

    if (!context)
        return FREE_NOW;
    if (atomic_load(&context->ending))
        return FREE_NEVER;
    if (!is_decided_on(context))
        return FREE_NOW;
    return context_endings || now_ns() >= limit ? FREE_LATER : FREE_WAIT;
}

/* Stands for a context without an entry; an entry may be about to be made. */
static struct context unknown;

/* From now on no thread makes an entry. Threads that an earlier ending made wait go first: a program that retains and
 * releases a primary context all the time would leave them no moment. */
static void ending_begin(void)
{
    for (unsigned int i = 0; !context_endings && i < LET_GO_TURNS && atomic_load(&context_waiters); i++)
        lock_relax(i);
    context_endings++;
    pthread_mutex_lock(&contexts.lock);
    atomic_fetch_add(&contexts.endings, 1);
    pthread_mutex_unlock(&contexts.lock);
    capture_asks_pause();
}

static void ending_end(void)
{
    capture_asks_resume();
    context_endings--;
    atomic_fetch_add(&contexts.ended, 1);
    atomic_fetch_sub(&contexts.endings, 1);
}

/* Mark the entry as leaving, after ending_begin. NULL: there is no such entry. */
static struct context *entry_leaving(CUcontext handle)
{
    struct context *context;

    /* If the entry came to mean another context in between, it is left alone. */
    while ((context = handle ? context_entry_find(handle) : NULL)) {
        atomic_fetch_add(&context->leaving, 1);
        if (atomic_load(&context->handle) == handle)
            break;
        atomic_fetch_sub(&context->leaving, 1);
    }
    if (!context)
        return NULL;
    atomic_fetch_add(&contexts_closing, 1);
    atomic_store(&context->captures, atomic_load(&capture_total));
    context_changed();
    calls_wait(context, context->pool, /* sleepers: */ false);
    return context;
}

struct context *context_leaving(CUcontext handle)
{
    struct context *context;

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

/* --- counters --- */

/* The counters of an entry's pool, which may be about to be destroyed. False: it has none. ending: at exit, see
 * context.h. */
static bool stats_get(struct context *context, int device, bool ending, struct pool_stats *ret_stats)
{
    const bool pinned = calls_pin(context);
    struct pool *const pool = context->pool; /* read once, so that the pool checked is the pool read */
    const bool there = (pinned || ending) && atomic_load(&context->handle) && !atomic_load(&context->ending) && pool &&
                       context->device == device;

    if (there)
        pool_stats_get(pool, ret_stats);
    if (pinned)
        calls_unpin(context);
    return there;
}

/* All members but the peaks add up over contexts; peaks add up over contexts that exist at the same time. */
static void stats_add(struct pool_stats *sum, const struct pool_stats *more)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;

    _Static_assert(sizeof(*sum) % sizeof(*to) == 0, "counters only");
    for (unsigned int i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}

static void peak_raise(struct pool_stats *to, uint64_t peak_live, uint64_t peak_held)
{
    to->peak_live = peak_live > to->peak_live ? peak_live : to->peak_live;
    to->peak_held = peak_held > to->peak_held ? peak_held : to->peak_held;
}

/* Add the counters of an ending context to those of its device. */
static void past_add(struct context *context, const struct pool_stats *stats)
{
    struct past *past = &contexts.past[context->device % DEVICES_MAX];
    struct pool_stats beside = *stats, other, gone = *stats;

    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++)
        if (stats_get(atomic_load(&contexts.entries[i]), context->device, /* ending: */ false, &other))
            stats_add(&beside, &other);
    /* The memory that it still held went with it. */
    gone.segments_free = gone.segments_alloc;
    gone.held = gone.live = gone.idle = gone.peak_live = gone.peak_held = 0;
    pthread_mutex_lock(&contexts.lock);
    past->any = true;
    stats_add(&past->stats, &gone);
    peak_raise(&past->stats, beside.peak_live, beside.peak_held);
    past->bypassed += atomic_load(&context->bypassed);
    pthread_mutex_unlock(&contexts.lock);
}

/* The counters of a device's contexts that are gone. At exit the lock is not waited for. */
static struct past past_get(int device, bool ending)
{
    struct past past;

    if (!ending)
        pthread_mutex_lock(&contexts.lock);
    past = contexts.past[device];
    if (!ending)
        pthread_mutex_unlock(&contexts.lock);
    return past;
}

void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg)
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        const struct past past = past_get(device, ending);
        struct pool_stats sum = past.stats, stats;
        uint64_t bypassed = past.bypassed;
        bool any = past.any;

        sum.peak_live = sum.peak_held = 0;
        for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
            struct context *context = atomic_load(&contexts.entries[i]);

            if (!stats_get(context, device, ending, &stats))
                continue;
            stats_add(&sum, &stats);
            bypassed += atomic_load(&context->bypassed);
            any = true;
        }
        peak_raise(&sum, past.stats.peak_live, past.stats.peak_held);
        if (any)
            each(arg, device, &sum, bypassed);
    }
}

/* --- gone --- */

/* Destroy the pool. No thread is in a call on it, and none begins one. */
static void pool_end(struct context *context, struct pool *pool)
{
    struct pool_stats stats;

    debug_context_gone(context);
    pool_stats_get(pool, &stats);
    past_add(context, &stats);
    pthread_mutex_lock(&contexts.lock);
    context->pool = NULL;
    pthread_mutex_unlock(&contexts.lock);
    pool_destroy(pool);
    nccl_owner_lost(context);
}

void context_lingering_end(void)
{
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);
        struct pool *pool = atomic_load(&context->lingering);

        if (!pool || calls_busy(context, pool, /* sleepers: */ true) ||
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
    use_context_gone(context);
    if (pool)
        lingers = !calls_wait(context, pool, /* sleepers: */ true);
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
    if (context && context != &unknown)
        entry_gone(context, gone);
    else if (context && gone)
        capture_forget_unpooled();
    if (context)
        ending_end();
}

static void entry_primary_gone(struct context *context)
{
    const struct real_driver *driver = context->driver;
    unsigned long long id;
    unsigned int flags;
    int active = 1;

    for (unsigned int i = 0; atomic_load(&contexts.probing[context->device % DEVICES_MAX]); i++)
        lock_relax(i);
    /* Asked twice. If the driver cannot say, the entry stays marked as leaving: no request may be served from a pool
     * that may be gone. */
    if (driver->cuDevicePrimaryCtxGetState &&
        driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS &&
        driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS) {
        atomic_store(&context->undecided, true);
        return;
    }
    /* The program may have created another primary context meanwhile, with the same handle. */
    id = active ? context_id(driver, atomic_load(&context->handle)) : 0;
    entry_gone(context, !active || (id && id != context->id));
}

void context_primary_gone(struct context *context)
{
    if (context && context != &unknown)
        entry_primary_gone(context);
    else if (context)
        capture_forget_unpooled();
    if (context)
        ending_end();
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
    ending_end();
}
