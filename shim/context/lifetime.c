/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.c - see lifetime.h.
 *
 * Locking: contexts.lock guards making entries; it is never held over a CUDA call.
 */
#include "context/lifetime.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/backend.h"
#include "context/capture_gate.h"
#include "context/context_end.h"
#include "context/context_state.h"
#include "context/facts.h"
#include "context/free_order.h"
#include "context/free_policy.h"
#include "context/limits.h"
#include "context/nccl_memory.h"
#include "context/own_stream.h"
#include "context/pins.h"
#include "context/pool_observer.h"
#include "context/registry.h"
#include "context/segment_driver.h"
#include "context/strict.h"
#include "context/vmm_map.h"
#include "lock.h"
#include "pool.h"
#include "trace/trace.h"

atomic_bool context_unmet;

static __thread struct {
    CUcontext handle;
    struct context *context;
    unsigned int epoch;
} here __attribute__((tls_model("initial-exec")));

/* Bounds of idle memory: no limit where giving memory back waits for the device, which a request must not do, and where
 * ranks have to lay memory out alike. */
static size_t idle_bound(size_t least, bool defers, enum backend backend)
{
    return (defers || backend == BACKEND_VMM) && !nccl_ranks_agree() ? least : SIZE_MAX / 2;
}

/* The backend of a context, whose device may not have the memory of the one that was chosen. */
static enum backend backend_of(enum backend chosen, bool maps)
{
    return chosen == BACKEND_VMM && !maps ? BACKEND_CUDA : chosen;
}

/* The limits that have been set since the start; by contexts.lock. */
static struct {
    bool set;
    uint64_t limit;
} limits[DEVICES_MAX];

static size_t limit_of(int device)
{
    const unsigned int i = (unsigned int)device % DEVICES_MAX;

    return limits[i].set ? limits[i].limit : conf_get()->limit.number;
}

/* Fill in an unused entry. The caller holds the lock. */
static void entry_fill(struct context *context, const struct facts *as, const char **ret_why)
{
    const enum backend backend = backend_of(backend_chosen(), as->maps);
    struct pool_config config = {.backend = &segment_ops,
                                 .order = conf_get()->fill.number == FILL_OFF ? &order_ops : &order_filling_ops,
                                 .observer = &observe_ops,
                                 .arg = context,
                                 .limit = limit_of(as->device),
                                 .break_max = as->capacity / SHARED_PART,
                                 .kind = backend,
                                 .capacity = as->capacity,
                                 .excess_min = idle_bound(EXCESS_MIN, as->defers, backend),
                                 .bound_min = idle_bound(BOUND_MIN, as->defers, backend)};
    struct pool *pool;

    if (conf_get()->free.number == FREE_RELAXED && as->orders) {
        config.deferred_min = DEFERRED_MIN;
        config.deferred_percent = conf_get()->slack.number < 1000 ? (unsigned int)conf_get()->slack.number : 1000;
    }

    /* The earlier context's events, stream and memory were destroyed with it. */
    for (int i = 0; i < SLOTS_ALL; i++)
        atomic_store(&context->slots[i].event, NULL);
    for (int i = 0; i < SLOTS; i++) {
        atomic_store(&context->batches[i].event, NULL);
        atomic_store(&context->batches[i].seq, 0);
        atomic_store(&context->batches[i].own_seq, 0);
    }
    atomic_store(&context->stream, NULL);
    atomic_store(&context->kept_byte, 0);
    atomic_store(&context->defers, as->defers);
    atomic_store(&context->mixed, false);
    context->maps = as->maps;
    atomic_store(&context->arrived, atomic_load(&context->given));
    atomic_store(&context->gave_up[0], 0);
    atomic_store(&context->gave_up[1], 0);
    context->driver = as->driver;
    context->device = as->device;
    context->primary = as->primary;
    atomic_store(&context->runtime_came, !as->primary);
    context->id = as->id;
    context->capacity = as->capacity;
    atomic_store(&context->device_free, as->capacity);
    atomic_store(&context->free_unsure, false);
    policy_init(&context->policy, as->device, as->orders, ret_why);
    free_streams_init(&context->free_streams);
    atomic_store(&context->failed, false);
    atomic_store(&context->bypassed, 0);
    atomic_store(&context->undecided, false);
    if (pool_create(&config, &pool))
        pool = NULL;
    atomic_store(&context->pool, pool);
}

/* How many calls that may end a context had begun when a thread last waited for one of them for a second. */
static atomic_uint endings_waited;

/* Wait until no call is under way that may end a context, because such a call may end one without an entry. False: a
 * call takes longer than a second, for which threads wait once, or this thread makes one. */
static bool endings_wait(unsigned int *ret_ended)
{
    const unsigned int begun = atomic_load(&contexts.ended) + atomic_load(&contexts.endings);
    const uint64_t limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;

    for (unsigned int i = 0;; i++) {
        *ret_ended = atomic_load(&contexts.ended);
        if (!atomic_load(&contexts.endings))
            return true;
        if (context_endings || begun == atomic_load(&endings_waited))
            return false;
        if (now_ns() >= limit) {
            atomic_store(&endings_waited, begun);
            return false;
        }
        lock_relax(i);
    }
}

/* The entry of the context with this handle, made if it is missing. False: a call that may end a context came in
 * between, so the facts may be out of date. */
static bool entry_enter(CUcontext handle, const struct facts *as, unsigned int ended, struct context **ret_context,
                        const char **ret_why)
{
    bool unchanged, made = false;
    struct context *context;

    pthread_mutex_lock(&contexts.lock);
    unchanged = !atomic_load(&contexts.endings) && atomic_load(&contexts.ended) == ended;
    context = unchanged ? context_entry_find(handle) : NULL;
    if (unchanged && !context) {
        context = context_entry_new();
        made = context != NULL;
    }
    if (made) {
        entry_fill(context, as, ret_why);
        atomic_store_explicit(&context->handle, handle, memory_order_release);
        atomic_store(&context_unmet, true);
    }
    pthread_mutex_unlock(&contexts.lock);
    *ret_context = context;
    return unchanged;
}

/* Natively a device's copies reach the memory of others without a call that says so, and its kernels after one. */
static void devices_reach(const struct real_driver *driver, int device)
{
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        const struct context *other = atomic_load(&contexts.entries[i]);

        if (!atomic_load(&other->handle) || !atomic_load(&other->pool))
            continue;
        vmm_reach(driver, other->device, device);
        vmm_reach(driver, device, other->device);
    }
}

static struct context *entry_make(const struct real_driver *driver, CUcontext handle)
{
    struct facts as = {.driver = driver};
    struct context *context = NULL;
    const char *why = NULL; /* set by the thread that makes the entry */
    unsigned int ended;

    backend_chosen(); /* called here because the decision must not be made with the lock held */
    do {
        if (!endings_wait(&ended) || !facts_find(handle, &as))
            return NULL;
        trace_open();
        context_lingering_end();
        devices_reach(driver, as.device); /* before another thread uses the context */
    } while (!entry_enter(handle, &as, ended, &context, &why));
    if (!context)
        log_once(LOG_WARN, "more than %d contexts at a time; the others are not pooled", CONTEXTS_MAX);
    if (!why)
        return context;
    devices_reach(driver, as.device); /* of contexts that came meanwhile */
    if (backend_chosen() == BACKEND_VMM && !as.maps)
        log_write(LOG_WARN,
                  "device %d has no virtual memory calls (CUPOOL_BACKEND=vmm): its memory comes from cudaMalloc",
                  as.device);
    device_trace(driver, as.device, as.capacity);
    trace_event("policy", "\"d\":%d,\"free\":\"%s\",\"why\":\"%s\"", as.device,
                policy_is_strict(&context->policy)        ? "strict"
                : conf_get()->free.number == FREE_RELAXED ? "relaxed"
                                                          : "ordered",
                why);
    policy_context_seen(handle, as.device);
    return context;
}

struct context *context_current(const struct real_driver *driver)
{
    const unsigned int epoch = atomic_load_explicit(&contexts.epoch, memory_order_acquire);
    CUcontext handle = NULL;
    struct context *context;
    bool leaving;

    if (driver->cuCtxGetCurrent(&handle) || !handle)
        return NULL;
    if (handle == here.handle && epoch == here.epoch)
        return here.context;
    /* Repeated if the entry came to mean another context meanwhile. */
    do {
        context = context_entry_find(handle);
        leaving = context && context_is_leaving(context);
    } while (context && atomic_load(&context->handle) != handle);
    if (!context)
        context = entry_make(driver, handle);
    if (!context)
        return NULL; /* not cached: the context may become usable later */
    here.handle = handle;
    here.context = context->pool && !leaving && !atomic_load(&context->failed) ? context : NULL;
    here.epoch = epoch;
    return here.context;
}

/* True once, for the runtime's first request in a context. */
static __attribute__((noinline)) bool runtime_comes(struct context *context)
{
    return !atomic_exchange(&context->runtime_came, true) && process_hooks_driver();
}

struct context *context_begin(const struct real_driver *driver, bool by_runtime, struct pins **ret_own)
{
    CUcontext handle = NULL;
    bool is_new;

    /* Repeated if an entry changed, or a context began to end, before this thread's mark was visible. */
    do {
        if (driver->cuCtxGetCurrent(&handle) || !handle)
            return NULL;
        *ret_own = pin_begin((uintptr_t)here.context);
        if (handle == here.handle && atomic_load_explicit(&contexts.epoch, memory_order_acquire) == here.epoch) {
            is_new = by_runtime && here.context &&
                     !atomic_load_explicit(&here.context->runtime_came, memory_order_relaxed) &&
                     runtime_comes(here.context);
            if (!is_new)
                return here.context;
            pin_end(*ret_own);
            return NULL;
        }
        pin_end(*ret_own);
    } while (context_current(driver));
    return NULL;
}

void context_met_runtime(struct context *context)
{
    atomic_store_explicit(&context->runtime_came, true, memory_order_relaxed);
}

/* Whether there still is one. A thread that makes an entry meanwhile says so after it. */
static void unmet_look(void)
{
    bool any = false;

    atomic_store(&context_unmet, false);
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        const struct context *context = atomic_load(&contexts.entries[i]);

        any |= atomic_load(&context->handle) && context->pool && !atomic_load(&context->runtime_came);
    }
    if (any)
        atomic_store(&context_unmet, true);
}

struct context *context_unmet_current(const struct real_driver *driver)
{
    struct context *context;
    CUcontext handle;

    if (capture_active() || driver->cuCtxGetCurrent(&handle))
        return NULL;
    context = context_find(handle);
    if (context && !atomic_load(&context->runtime_came))
        return context;
    unmet_look();
    return NULL;
}

void context_back(enum backend backend)
{
    /* With the lock, of two calls made at once one decides for all contexts, new ones included, and no pool is
     * destroyed meanwhile. */
    pthread_mutex_lock(&contexts.lock);
    backend_choose(backend);
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        const bool defers = atomic_load(&context->defers);
        const enum backend its = backend_of(backend, context->maps);

        if (!context->pool)
            continue;
        if (pool_kind_get(context->pool) != its)
            atomic_store(&context->mixed, true);
        pool_kind_set(context->pool, its, idle_bound(EXCESS_MIN, defers, its), idle_bound(BOUND_MIN, defers, its));
    }
    pthread_mutex_unlock(&contexts.lock);
}

void context_limit_set(int device, uint64_t limit)
{
    pthread_mutex_lock(&contexts.lock);
    for (int i = 0; i < DEVICES_MAX; i++) {
        if (device == CONTEXT_ALL || device == i) {
            limits[i].set = true;
            limits[i].limit = limit;
        }
    }
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (context->pool && (device == CONTEXT_ALL || device == context->device))
            pool_limit_set(context->pool, limit);
    }
    pthread_mutex_unlock(&contexts.lock);
}

void context_saw(CUresult result)
{
    const struct real_driver *driver = order_is_sticky(result) ? real_driver_get() : NULL;
    struct context *context = driver ? context_current(driver) : NULL;
    size_t free, total;

    /* Asked, because the call may have named a stream, memory or peer of another context, whose error this is then. */
    if (context)
        order_failed(context, driver->cuMemGetInfo_v2(&free, &total));
}
