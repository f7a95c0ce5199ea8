/* SPDX-License-Identifier: Apache-2.0 */
/* context.c - see context.h. */
#include "context.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "clock.h"
#include "conf.h"
#include "context_internal.h"
#include "debug.h"
#include "lock.h"
#include "log.h"
#include "nccl.h"
#include "observe.h"
#include "policy.h"
#include "trace.h"
#include "use.h"

#define CONTEXTS_MAX 256
#define DEVICES_MAX  64
/* How long a request waits for another thread's call that may end its context, and mostly does not. */
#define LEAVING_WAIT_NS 1000000000
/* How long a free waits for another context's stream, on which it natively happens. */
#define FOREIGN_WAIT_NS 1000000000

/*
 * This part of the device's memory may lie in broken segments while nothing of it is handed out; less the more is, so
 * that a program that fills the device finds nearly all that the driver would have.
 */
#define BREAK_PART 16
/* So much may be held without need when the pool grows: a small program need not be sparing. */
#define EXCESS_MIN ((size_t)32 << 20)
/* How far a pool may grow beyond a tenth more than the driver would have in use, before it waits for memory. */
#define BOUND_MIN ((size_t)64 << 20)
/* CUPOOL_SLACK is at least so much: for small programs a percentage would be next to nothing. */
#define SLACK_MIN ((size_t)64 << 20)

/* Counters of a device's contexts that are gone. */
struct past {
    bool any;
    struct pool_stats stats;
    uint64_t bypassed;
};

static struct {
    pthread_mutex_t lock; /* guards making and forgetting entries, past, and the kind of new segments; readers of
                           * entries need no lock */
    struct context *_Atomic entries[CONTEXTS_MAX];
    atomic_uint count;
    atomic_uint epoch; /* bumped whenever an entry changes meaning: threads then look again */
    struct past past[DEVICES_MAX];
} contexts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct {
    CUcontext handle;
    struct context *context;
    unsigned int epoch;
} here __attribute__((tls_model("initial-exec")));
/* Calls of this thread that may end contexts. */
static __thread unsigned int own_endings __attribute__((tls_model("initial-exec")));
/* Threads that hold a reference to a primary context for a moment. */
static atomic_uint probing;

bool context_pin(struct context *context)
{
    atomic_fetch_add(&context->users, 1);
    if (!atomic_load(&context->leaving) && atomic_load(&context->handle) && context->pool)
        return true;
    atomic_fetch_sub(&context->users, 1);
    return false;
}

void context_unpin(struct context *context)
{
    atomic_fetch_sub(&context->users, 1);
}

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

static struct context *entry_find(CUcontext handle)
{
    const unsigned int count = atomic_load_explicit(&contexts.count, memory_order_acquire);

    for (unsigned int i = 0; i < count; i++) {
        struct context *context = atomic_load_explicit(&contexts.entries[i], memory_order_acquire);

        if (atomic_load_explicit(&context->handle, memory_order_acquire) == handle)
            return context;
    }
    return NULL;
}

/* An entry that is not in use, or a new one; with the lock. NULL: no room. */
static struct context *entry_new(void)
{
    const unsigned int count = atomic_load(&contexts.count);
    struct context *context;

    for (unsigned int i = 0; i < count; i++) {
        context = atomic_load(&contexts.entries[i]);
        if (!atomic_load(&context->handle))
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
 * Is handle the device's primary context? It is current somewhere, so retaining it does not bring it to life. False: it
 * cannot be said now; a primary context that we took for another would go without our noticing.
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
    /* With our reference somebody's last one would not look like the last, or what is gone come back: he waits. */
    atomic_fetch_add(&probing, 1);
    known = driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS;
    if (known && active) {
        known = driver->cuDevicePrimaryCtxRetain(&primary, device) == CUDA_SUCCESS;
        *ret_primary = known && primary == handle;
        if (known)
            driver->cuDevicePrimaryCtxRelease_v2(device);
    }
    atomic_fetch_sub(&probing, 1);
    return known;
}

/* What a new entry is made of. */
struct facts {
    const struct real_driver *driver;
    int device;
    bool primary, defers, orders;
    unsigned long long id;
    size_t capacity; /* of the device */
};

/* So much may be held without need when the pool grows, or, at the bound, at all. No limit where giving back waits for
 * the device, which a request must not, and where ranks have to lay memory out alike. */
static size_t unless_kept(size_t least, bool defers)
{
    return defers && !nccl_ranks_agree() ? least : SIZE_MAX / 2;
}

/* Fill in an entry that is not in use; with the lock. */
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

    /* An earlier context's events and stream went with it. */
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
    if (pool_create(&config, &pool))
        pool = NULL;
    atomic_store(&context->pool, pool);
}

/* Which device it is: an ordinal says little where CUDA_VISIBLE_DEVICES or MIG are in use. */
static void device_trace(const struct real_driver *driver, int device, size_t total)
{
    char name[128] = "", text[2 * sizeof(CUuuid) + 5] = "";
    size_t at = 0;
    CUuuid uuid;

    if (driver->cuDeviceGetName)
        driver->cuDeviceGetName(name, sizeof(name), device);
    name[strcspn(name, "\"\\")] = '\0';
    /* As nvidia-smi writes it. */
    if (driver->cuDeviceGetUuid_v2 && driver->cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS)
        for (unsigned int i = 0; i < sizeof(uuid); i++)
            at +=
                (size_t)snprintf(text + at, sizeof(text) - at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                                 (unsigned char)uuid.bytes[i]);
    trace_event("device", "\"d\":%d,\"name\":\"%s\",\"uuid\":\"%s\",\"total\":%zu", device, name, text, total);
}

/* A number that no other context has had; 0: the driver cannot say. */
static unsigned long long context_id(const struct real_driver *driver, CUcontext handle)
{
    unsigned long long id = 0;

    return driver->cuCtxGetId && driver->cuCtxGetId(handle, &id) == CUDA_SUCCESS ? id : 0;
}

static struct context *entry_make(const struct real_driver *driver, CUcontext handle)
{
    struct facts as = {.driver = driver};
    struct context *context;
    bool made = false;
    size_t free, total;
    const char *why = "";
    CUdevice device;

    /* A context that was reset stays current, but is of no use until the runtime has brought it to life again. */
    if (driver->cuCtxGetDevice(&device) || driver->cuMemGetInfo_v2(&free, &total))
        return NULL;
    as.device = device;
    as.defers = memory_defers(driver, device);
    as.orders = policy_driver_orders(driver);
    if (!find_primary(driver, handle, device, &as.primary))
        return NULL;
    as.id = context_id(driver, handle);
    as.capacity = total;
    nccl_backs(); /* decided without the lock */
    trace_open();
    pthread_mutex_lock(&contexts.lock);
    context = entry_find(handle);
    if (!context) {
        context = entry_new();
        made = context != NULL;
        if (made) {
            entry_fill(context, &as, &why);
            atomic_store_explicit(&context->handle, handle, memory_order_release);
        }
    }
    pthread_mutex_unlock(&contexts.lock);
    if (!context)
        log_once(LOG_WARN, "more than %d contexts at a time; the others are not pooled", CONTEXTS_MAX);
    if (!made)
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
 * Another thread is in a call that may end this context: releasing a reference that is not the last, mostly. That is
 * waited for: a request that went to the driver instead would be one that other ranks serve from their pools.
 */
static bool is_leaving(const struct context *context)
{
    uint64_t limit;

    if (!atomic_load(&context->leaving))
        return false;
    if (own_endings)
        return true;
    limit = now_ns() + LEAVING_WAIT_NS;
    for (unsigned int i = 0; now_ns() < limit; i++) {
        if (!atomic_load(&context->leaving))
            return false;
        lock_relax(i);
    }
    return true;
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
    /* Again if the entry became another context's meanwhile. */
    do {
        context = entry_find(handle);
        leaving = context && is_leaving(context);
    } while (context && atomic_load(&context->handle) != handle);
    if (!context)
        context = entry_make(driver, handle);
    if (!context)
        return NULL; /* not remembered: it may be of use later */
    here.handle = handle;
    here.context = context->pool && !leaving && !atomic_load(&context->failed) ? context : NULL;
    here.epoch = epoch;
    return here.context;
}

CUcontext context_handle(const struct context *context)
{
    return atomic_load_explicit(&context->handle, memory_order_relaxed);
}

struct context *context_find(CUcontext handle)
{
    struct context *context = handle ? entry_find(handle) : NULL;

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

/* Is work in the context of this handle not ordered by ours? A green context's is: it is a part of one of the device.
 */
static bool is_foreign(const struct context *context, CUcontext handle)
{
    const struct real_driver *driver = context->driver;
    const struct context *other = entry_find(handle);
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
    /* With the lock, so that of two that come at a time all contexts follow the same, new ones too; and so that no pool
     * goes meanwhile. */
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
    context = entry_find(handle);
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

struct context *context_leaving(CUcontext handle)
{
    struct context *context;

    /* An entry that became another context's in between is let alone. */
    while ((context = handle ? entry_find(handle) : NULL)) {
        atomic_fetch_add(&context->leaving, 1);
        if (atomic_load(&context->handle) == handle)
            break;
        atomic_fetch_sub(&context->leaving, 1);
    }
    if (!context)
        return NULL;
    own_endings++;
    atomic_store(&context->captures, atomic_load(&capture_total));
    context_changed();
    for (unsigned int i = 0; atomic_load(&context->users); i++)
        lock_relax(i);
    return context;
}

struct context *context_leaving_primary(CUdevice device)
{
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);
        const CUcontext handle = atomic_load(&context->handle);

        if (handle && context->primary && context->device == device)
            return context_leaving(handle);
    }
    return NULL;
}

static void stats_add(struct pool_stats *sum, const struct pool_stats *more)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;

    _Static_assert(sizeof(*sum) % sizeof(*to) == 0, "counters only");
    for (unsigned int i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}

/* Counters of a context that is gone, with the lock. */
static void past_add(const struct context *context, struct pool_stats *stats)
{
    struct past *past = &contexts.past[context->device % DEVICES_MAX];

    /* What it still held went with it. */
    stats->segments_free = stats->segments_alloc;
    stats->held = stats->live = stats->idle = 0;
    past->any = true;
    stats_add(&past->stats, stats);
    past->bypassed += atomic_load(&context->bypassed);
}

/* The pool of a context that is gone, for one of those who saw it go; NULL: somebody else has it. */
static struct pool *pool_claim(struct context *context)
{
    struct pool *pool;

    pthread_mutex_lock(&contexts.lock);
    pool = context->pool;
    context->pool = NULL;
    pthread_mutex_unlock(&contexts.lock);
    return pool;
}

static void forget(struct context *context, struct pool *pool)
{
    struct pool_stats stats;

    capture_forget(atomic_load(&context->handle), atomic_load(&context->captures));
    policy_context_gone(atomic_load(&context->handle));
    use_context_gone(context);
    debug_context_gone(context);
    if (pool) {
        pool_stats_get(pool, &stats);
        pool_destroy(pool);
        nccl_owner_lost(context);
    }
    pthread_mutex_lock(&contexts.lock);
    if (pool)
        past_add(context, &stats);
    context->primary = false;
    atomic_store(&context->handle, NULL);
    pthread_mutex_unlock(&contexts.lock);
}

void context_gone(struct context *context, bool gone)
{
    struct pool *pool;

    if (!context)
        return;
    if (gone) {
        pool = pool_claim(context);
        if (pool || !context->primary) /* a green one has none */
            forget(context, pool);
    }
    own_endings--;
    atomic_fetch_sub(&context->leaving, 1);
    context_changed();
}

void context_primary_gone(struct context *context)
{
    const struct real_driver *driver = context ? context->driver : NULL;
    unsigned long long id;
    unsigned int flags;
    int active = 1;

    if (!context)
        return;
    for (unsigned int i = 0; atomic_load(&probing); i++)
        lock_relax(i);
    /* Asked twice: where it cannot be said, it stays one that is leaving: nothing is served from a pool that may be
     * gone. */
    if (driver->cuDevicePrimaryCtxGetState &&
        driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS &&
        driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) != CUDA_SUCCESS) {
        own_endings--;
        return;
    }
    /* Somebody may have brought another one to life meanwhile. */
    id = active ? context_id(driver, atomic_load(&context->handle)) : 0;
    context_gone(context, !active || (id && id != context->id));
}

/* Which entries this thread has marked as leaving. */
static __thread uint64_t sweeping[CONTEXTS_MAX / 64] __attribute__((tls_model("initial-exec")));

void context_sweep_begin(void)
{
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (atomic_load(&context->handle) && context->primary && context_leaving(atomic_load(&context->handle)))
            sweeping[i / 64] |= 1ull << i % 64;
    }
}

void context_sweep_end(void)
{
    for (unsigned int i = 0; i < CONTEXTS_MAX; i++)
        if (sweeping[i / 64] >> i % 64 & 1)
            context_primary_gone(atomic_load(&contexts.entries[i]));
    memset(sweeping, 0, sizeof(sweeping));
}

/* What a device's contexts that are gone have counted. At exit nothing waits for the lock. */
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
        struct past sum = past_get(device, ending);
        struct pool_stats stats;

        for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
            struct context *context = atomic_load(&contexts.entries[i]);
            struct pool *pool;

            /* At exit one that is leaving as well: cudart lets go of its contexts then. */
            if (ending)
                atomic_fetch_add(&context->users, 1);
            else if (!context_pin(context))
                continue;
            pool = context->pool; /* once: what was found to be there is what is read */
            if (atomic_load(&context->handle) && pool && context->device == device) {
                pool_stats_get(pool, &stats);
                stats_add(&sum.stats, &stats);
                sum.bypassed += atomic_load(&context->bypassed);
                sum.any = true;
            }
            context_unpin(context);
        }
        if (sum.any)
            each(arg, device, &sum.stats, sum.bypassed);
    }
}
