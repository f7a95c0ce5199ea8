/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.c - the registry of contexts; see context.h. ending.c ends them, order.c orders their frees.
 *
 * Locking: contexts.lock guards making entries; it is never held over a CUDA call.
 */
#include "context/context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture.h"
#include "context/nccl_memory.h"
#include "context/pins.h"
#include "context/policy.h"
#include "context/pool_events.h"
#include "context/state.h"
#include "lock.h"
#include "trace/trace.h"

/* The longest time, in nanoseconds, that a free waits for a stream of another context, on which it natively happens. */
#define FOREIGN_WAIT_NS 1000000000

/*
 * The part of the device's memory that large blocks sharing a segment may keep from going back while the device is
 * empty. It shrinks as the pool hands memory out, so that a program that fills the device finds nearly all the memory
 * that the driver would have.
 */
#define BREAK_PART 16
/* Idle bytes that a growing pool may keep in any case: a small program need not be sparing. */
#define EXCESS_MIN ((size_t)32 << 20)
/* Bytes by which a pool may exceed 1.10 times the driver's own use before a request waits for memory. */
#define BOUND_MIN ((size_t)64 << 20)
/* The least slack in bytes, because a percentage of a small program's memory would be next to nothing. */
#define SLACK_MIN ((size_t)64 << 20)

struct contexts contexts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct {
    CUcontext handle;
    struct context *context;
    unsigned int epoch;
} here __attribute__((tls_model("initial-exec")));

struct context *context_next(unsigned int *i, int device)
{
    while (*i < atomic_load(&contexts.count)) {
        struct context *context = atomic_load(&contexts.entries[(*i)++]);

        if (!context_pin(context))
            continue;
        if (device == CONTEXT_ALL || context->device == device)
            return context;
        context_unpin(context);
    }
    return NULL;
}

void context_changed(void)
{
    atomic_fetch_add(&contexts.epoch, 1);
}

struct context *context_entry_find(CUcontext handle)
{
    const unsigned int count = atomic_load_explicit(&contexts.count, memory_order_acquire);

    for (unsigned int i = 0; i < count; i++) {
        struct context *context = atomic_load_explicit(&contexts.entries[i], memory_order_acquire);

        if (atomic_load_explicit(&context->handle, memory_order_acquire) == handle)
            return context;
    }
    return NULL;
}

/* A new entry, or an unused one that no ending thread still uses. The caller holds the lock. NULL: no room. */
static struct context *entry_new(void)
{
    const unsigned int count = atomic_load(&contexts.count);
    struct context *context;

    for (unsigned int i = 0; i < count; i++) {
        context = atomic_load(&contexts.entries[i]);
        if (!atomic_load(&context->handle) && !atomic_load(&context->ending) && !atomic_load(&context->leaving))
            return context;
    }
    context = count < CONTEXTS_MAX ? aligned_alloc(64, sizeof(*context)) : NULL;
    if (context) {
        memset(context, 0, sizeof(*context));
        atomic_store(&contexts.entries[count], context);
        atomic_store_explicit(&contexts.count, count + 1, memory_order_release);
    }
    return context;
}

/*
 * Is handle the device's primary context? It is current on some thread, so retaining the primary context does not
 * create it. False: the driver cannot say now, and the context must not be pooled: a primary context that we took for
 * another kind would end without our noticing.
 */
static bool find_primary(const struct real_driver *driver, CUcontext handle, int device, bool *ret_primary)
{
    unsigned int flags;
    CUcontext primary;
    bool known;
    int active = 0;

    *ret_primary = false;
    if (!driver->cuDevicePrimaryCtxGetState || !driver->cuDevicePrimaryCtxRetain ||
        !driver->cuDevicePrimaryCtxRelease_v2)
        return true;
    /* While we hold a reference, another thread's final release would not destroy the context, or a destroyed context
     * could come back; context_primary_gone therefore waits for `probing`. */
    atomic_fetch_add(&contexts.probing[device % DEVICES_MAX], 1);
    known = driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS;
    if (known && active) {
        known = driver->cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS;
        *ret_primary = known && primary == handle;
        if (known)
            driver->cuDevicePrimaryCtxRelease_v2(device);
    }
    atomic_fetch_sub(&contexts.probing[device % DEVICES_MAX], 1);
    return known;
}

/* The driver's facts about a context, collected without the lock, for a new entry. */
struct facts {
    const struct real_driver *driver;
    int device;
    bool primary, defers, orders;
    unsigned long long id;
    size_t capacity; /* of the device, in bytes */
};

/* Bounds of idle memory: no limit where giving memory back waits for the device, which a request must not do, and where
 * ranks have to lay memory out alike. */
static size_t unless_kept(size_t least, bool defers)
{
    return defers && !nccl_ranks_agree() ? least : SIZE_MAX / 2;
}

/* Fill in an unused entry. The caller holds the lock. */
static void entry_fill(struct context *context, const struct facts *as, const char **ret_why)
{
    struct pool_config config = {.backend = &memory_ops,
                                 .order = conf_get()->fill.number == FILL_OFF ? &order_ops : &order_filling_ops,
                                 .observer = &observe_ops,
                                 .arg = context,
                                 .limit = conf_get()->limit.number,
                                 .break_max = as->capacity / BREAK_PART,
                                 .kind = nccl_backs() ? MEMORY_NCCL : MEMORY_CUDA,
                                 .capacity = as->capacity,
                                 .excess_min = unless_kept(EXCESS_MIN, as->defers),
                                 .bound_min = unless_kept(BOUND_MIN, as->defers)};
    struct pool *pool;

    if (conf_get()->free.number == FREE_RELAXED && as->orders) {
        config.slack_min = SLACK_MIN;
        config.slack_percent = conf_get()->slack.number < 1000 ? (unsigned int)conf_get()->slack.number : 1000;
    }

    /* The earlier context's events and stream were destroyed with it. */
    for (int i = 0; i < SLOTS_ALL; i++)
        atomic_store(&context->slots[i].event, NULL);
    for (int i = 0; i < SLOTS; i++) {
        atomic_store(&context->led[i].event, NULL);
        atomic_store(&context->led[i].turn, 0);
        atomic_store(&context->led[i].noted, 0);
    }
    atomic_store(&context->stream, NULL);
    atomic_store(&context->defers, as->defers);
    atomic_store(&context->arrived, atomic_load(&context->given));
    atomic_store(&context->gave_up, 0);
    context->driver = as->driver;
    context->device = as->device;
    context->primary = as->primary;
    context->id = as->id;
    context->capacity = as->capacity;
    atomic_store(&context->device_free, as->capacity);
    policy_init(&context->policy, as->device, as->orders, ret_why);
    atomic_store(&context->failed, false);
    atomic_store(&context->bypassed, 0);
    atomic_store(&context->undecided, false);
    if (pool_create(&config, &pool))
        pool = NULL;
    atomic_store(&context->pool, pool);
}

/* Write the device's name, UUID and memory to the trace: an ordinal says little where CUDA_VISIBLE_DEVICES or MIG are
 * in use. */
static void device_trace(const struct real_driver *driver, int device, size_t total)
{
    char name[128] = "", text[2 * sizeof(CUuuid) + 5] = "";
    size_t at = 0;
    CUuuid uuid;

    if (driver->cuDeviceGetName)
        driver->cuDeviceGetName(name, sizeof(name), device);
    name[strcspn(name, "\"\\")] = '\0';
    /* In the form that nvidia-smi prints. */
    if (driver->cuDeviceGetUuid_v2 && driver->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
        for (unsigned int i = 0; i < sizeof(uuid); i++)
            at +=
                (size_t)snprintf(text + at, sizeof(text) - at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                                 (unsigned char)uuid.bytes[i]);
    trace_event("device", "\"d\":%d,\"name\":\"%s\",\"uuid\":\"%s\",\"total\":%zu", device, name, text, total);
}

unsigned long long context_id(const struct real_driver *driver, CUcontext handle)
{
    unsigned long long id = 0;

    return driver->cuCtxGetId && driver->cuCtxGetId(handle, &id) == CUDA_SUCCESS ? id : 0;
}

/* False: the context cannot be used now. */
static bool facts_find(CUcontext handle, struct facts *as)
{
    const struct real_driver *driver = as->driver;
    size_t free;
    CUdevice device;

    /* A context that was reset stays current, but cannot be used until the runtime has initialised it again. */
    if (driver->cuCtxGetDevice(&device) || driver->cuMemGetInfo_v2(&free, &as->capacity))
        return false;
    as->device = device;
    as->defers = memory_defers(driver, device);
    as->orders = policy_driver_orders(driver);
    if (!find_primary(driver, handle, device, &as->primary))
        return false;
    as->id = context_id(driver, handle);
    return true;
}

/* Wait until no call is under way that may end a context, because such a call may end one without an entry. False: a
 * call takes longer than a second, or this thread makes one. */
static bool endings_wait(unsigned int *ret_ended)
{
    const uint64_t limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;

    for (unsigned int i = 0;; i++) {
        *ret_ended = atomic_load(&contexts.ended);
        if (!atomic_load(&contexts.endings))
            return true;
        if (context_endings || now_ns() >= limit)
            return false;
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
        context = entry_new();
        made = context != NULL;
    }
    if (made) {
        entry_fill(context, as, ret_why);
        atomic_store_explicit(&context->handle, handle, memory_order_release);
    }
    pthread_mutex_unlock(&contexts.lock);
    *ret_context = context;
    return unchanged;
}

static struct context *entry_make(const struct real_driver *driver, CUcontext handle)
{
    struct facts as = {.driver = driver};
    struct context *context = NULL;
    const char *why = NULL; /* set by the thread that makes the entry */
    unsigned int ended;

    nccl_backs(); /* called here because the decision must not be made with the lock held */
    do {
        if (!endings_wait(&ended) || !facts_find(handle, &as))
            return NULL;
        trace_open();
        context_lingering_end();
    } while (!entry_enter(handle, &as, ended, &context, &why));
    if (!context)
        log_once(LOG_WARN, "more than %d contexts at a time; the others are not pooled", CONTEXTS_MAX);
    if (!why)
        return context;
    device_trace(driver, as.device, as.capacity);
    trace_event("policy", "\"d\":%d,\"free\":\"%s\",\"why\":\"%s\"", as.device,
                policy_is_strict(&context->policy)        ? "strict"
                : conf_get()->free.number == FREE_RELAXED ? "relaxed"
                                                          : "ordered",
                why);
    policy_context_seen(handle, as.device);
    return context;
}

/*
 * Another thread is in a call that may end this context; usually it releases a reference that is not the last one. The
 * request waits, because a request that went to the driver instead would be one that other ranks serve from their
 * pools.
 */
static bool is_leaving(const struct context *context)
{
    uint64_t limit;
    bool leaving;

    if (!atomic_load(&context->leaving))
        return false;
    if (context_endings)
        return true;
    limit = now_ns() + CONTEXT_LEAVING_WAIT_NS;
    atomic_fetch_add(&context_waiters, 1);
    for (unsigned int i = 0; (leaving = atomic_load(&context->leaving)) && now_ns() < limit; i++)
        lock_relax(i);
    atomic_fetch_sub(&context_waiters, 1);
    return leaving;
}

struct context *context_next_staying(unsigned int *i, int device)
{
    while (*i < atomic_load(&contexts.count)) {
        struct context *context = atomic_load(&contexts.entries[(*i)++]);

        while (atomic_load(&context->handle) && context->device == device && context->pool) {
            if (context_pin(context))
                return context;
            if (is_leaving(context))
                break;
        }
    }
    return NULL;
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
        leaving = context && is_leaving(context);
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

struct context *context_begin(const struct real_driver *driver, struct calls **ret_own)
{
    CUcontext handle = NULL;

    /* Repeated if an entry changed, or a context began to end, before this thread's mark was visible. */
    do {
        if (driver->cuCtxGetCurrent(&handle) || !handle)
            return NULL;
        *ret_own = call_begin((uintptr_t)here.context);
        if (handle == here.handle && atomic_load_explicit(&contexts.epoch, memory_order_acquire) == here.epoch)
            return here.context;
        call_end(*ret_own);
    } while (context_current(driver));
    return NULL;
}

CUcontext context_handle(const struct context *context)
{
    return atomic_load_explicit(&context->handle, memory_order_relaxed);
}

struct context *context_find(CUcontext handle)
{
    struct context *context = handle ? context_entry_find(handle) : NULL;

    return context && context->pool ? context : NULL;
}

struct policy *context_policy(CUcontext handle)
{
    struct context *context = context_find(handle);

    return context ? &context->policy : NULL;
}

void context_policy_each(void (*each)(struct policy *policy, const void *arg), const void *arg)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, CONTEXT_ALL)); context_unpin(context))
        each(&context->policy, arg);
}

CUcontext context_stream(const struct real_driver *driver, CUstream stream)
{
    CUcontext handle = NULL;

    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || !driver->cuStreamGetCtx ||
        driver->cuStreamGetCtx(stream, &handle))
        driver->cuCtxGetCurrent(&handle);
    return handle;
}

/* True if our context's queue does not order work in the context with this handle. A green context's work it does
 * order: a green context is part of a context of the device. */
static bool is_foreign(const struct context *context, CUcontext handle)
{
    const struct real_driver *driver = context->driver;
    const struct context *other = context_entry_find(handle);
    CUcontext ignored;
    CUdevice device;
    bool elsewhere;

    if (!handle || other == context)
        return false;
    if (other)
        return other->pool != NULL;
    if (driver->cuCtxPushCurrent_v2(handle))
        return false;
    elsewhere = driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && device != context->device;
    driver->cuCtxPopCurrent_v2(&ignored);
    return elsewhere;
}

CUresult context_wait_foreign(const struct context *context, CUstream stream)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const struct real_driver *driver = context->driver;
    CUcontext handle = NULL;
    CUresult result;
    uint64_t limit;
    bool relaxed;

    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        result = driver->cuCtxGetCurrent(&handle);
    else
        result = driver->cuStreamGetCtx ? driver->cuStreamGetCtx(stream, &handle) : CUDA_ERROR_NOT_SUPPORTED;
    if (result || !is_foreign(context, handle) || !driver->cuStreamQuery)
        return result == CUDA_ERROR_INVALID_HANDLE ? result : CUDA_SUCCESS;
    relaxed =
        driver->cuThreadExchangeStreamCaptureMode && driver->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    limit = now_ns() + FOREIGN_WAIT_NS;
    for (unsigned int i = 0; (result = driver->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY && now_ns() < limit; i++)
        lock_relax(i);
    if (relaxed)
        driver->cuThreadExchangeStreamCaptureMode(&mode);
    return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_UNKNOWN : result;
}

struct pool *context_pool(const struct context *context)
{
    return context->pool;
}

bool context_failed(const struct context *context)
{
    return atomic_load_explicit(&context->failed, memory_order_relaxed);
}

int context_device(const struct context *context)
{
    return context->device;
}

bool context_backed_by_nccl(const struct context *context)
{
    return pool_kind_get(context->pool) == MEMORY_NCCL;
}

void context_back(enum memory_kind kind)
{
    /* With the lock, of two calls made at once one decides for all contexts, new ones included, and no pool is
     * destroyed meanwhile. */
    pthread_mutex_lock(&contexts.lock);
    nccl_backing_set(kind == MEMORY_NCCL);
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (context->pool)
            pool_kind_set(context->pool, kind, unless_kept(EXCESS_MIN, atomic_load(&context->defers)),
                          unless_kept(BOUND_MIN, atomic_load(&context->defers)));
    }
    pthread_mutex_unlock(&contexts.lock);
}

struct context *context_of(const struct pool *pool)
{
    return pool_arg(pool);
}

void context_bypassed(struct context *context)
{
    atomic_fetch_add_explicit(&context->bypassed, 1, memory_order_relaxed);
}

void context_exempt(CUcontext handle)
{
    struct context *context;

    pthread_mutex_lock(&contexts.lock);
    context = context_entry_find(handle);
    if (!context) {
        context = entry_new();
        if (context) {
            context->pool = NULL;
            context->primary = false;
            atomic_store_explicit(&context->handle, handle, memory_order_release);
            context_changed();
        }
    }
    pthread_mutex_unlock(&contexts.lock);
}
