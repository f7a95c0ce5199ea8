/* SPDX-License-Identifier: Apache-2.0 */
/* context.c - see context.h. */
#include "context.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capture.h"
#include "conf.h"
#include "log.h"
#include "observe.h"
#include "trace.h"

#define CONTEXTS_MAX 256
#define DEVICES_MAX  64
/* Frees that may be ordered at the same time in one context, each with an event of its own. */
#define SLOTS 64

/*
 * This part of the device's memory may lie in broken segments while nothing of it is handed out; less the more is, so
 * that a program that fills the device finds nearly all that the driver would have.
 */
#define BREAK_PART 8

/* A place to order a free from. Each has an event, so that no thread waits for what another has launched meanwhile. */
struct slot {
    _Alignas(64) atomic_bool busy; /* somebody is ordering with it; also how the capture gate counts calls in flight */
    CUevent event;                 /* belongs to whoever has set busy */
};

struct context {
    _Atomic(CUcontext) handle; /* NULL: entry not in use */
    struct pool *pool;         /* NULL: not pooled */
    const struct real_driver *driver;
    int device;
    bool primary, strict;
    size_t capacity; /* of the device */
    atomic_bool leaving;
    atomic_uint users; /* threads other than the context's own that look at its pool; see pin */
    _Atomic(uint64_t) bypassed;
    struct slot slots[SLOTS];
};

/* Counters of a device's contexts that are gone. */
struct past {
    bool any;
    struct pool_stats stats;
    uint64_t bypassed;
};

static struct {
    pthread_mutex_t lock; /* guards making and forgetting entries, and past; readers of entries need no lock */
    struct context *_Atomic entries[CONTEXTS_MAX];
    atomic_uint count;
    atomic_uint epoch; /* bumped whenever an entry changes meaning: threads then look again */
    struct past past[DEVICES_MAX];
} contexts = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread struct {
    CUcontext handle;
    struct context *context;
    unsigned int epoch;
    unsigned int slot; /* where this thread starts to look for a free slot, plus one */
} here __attribute__((tls_model("initial-exec")));

static atomic_uint threads_seen;

/* --- order --- */

/* Wait a little. Sleeps when it has taken long: whoever is waited for may have a lower priority. */
static void relax(unsigned int times)
{
    const struct timespec some = {0, 50000};

    if (times < 100 * SLOTS)
        sched_yield();
    else
        nanosleep(&some, NULL);
}

static struct slot *slot_acquire(struct context *context)
{
    if (!here.slot)
        here.slot = atomic_fetch_add_explicit(&threads_seen, 1, memory_order_relaxed) + 1;
    for (unsigned int i = here.slot;; i++) {
        struct slot *slot = &context->slots[i % SLOTS];

        if (!atomic_exchange(&slot->busy, true))
            return slot;
        if (i % SLOTS == here.slot % SLOTS)
            relax(i - here.slot);
    }
}

static void slot_release(struct slot *slot)
{
    atomic_store_explicit(&slot->busy, false, memory_order_release);
}

/* Make context current; pop puts the caller's own back if that was another. */
static CUresult push(const struct context *context, bool *ret_pushed)
{
    const CUcontext handle = atomic_load_explicit(&context->handle, memory_order_relaxed);
    CUcontext current = NULL;
    CUresult result = context->driver->cuCtxGetCurrent(&current);

    *ret_pushed = false;
    if (result || current == handle)
        return result;
    result = context->driver->cuCtxPushCurrent_v2(handle);
    *ret_pushed = result == CUDA_SUCCESS;
    return result;
}

static void pop(const struct context *context, bool pushed)
{
    CUcontext ignored;

    if (pushed)
        context->driver->cuCtxPopCurrent_v2(&ignored);
}

static CUresult event_make(struct context *context, struct slot *slot)
{
    bool pushed;
    CUresult result = push(context, &pushed);

    if (!result)
        result = context->driver->cuEventCreate(&slot->event, CU_EVENT_DISABLE_TIMING);
    pop(context, pushed);
    return result;
}

/* The device waits: what is launched in the context after this starts when everything launched before has ended. */
static CUresult order_on_device(struct context *context, struct slot *slot)
{
    const CUcontext handle = atomic_load_explicit(&context->handle, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;

    if (!slot->event)
        result = event_make(context, slot);
    if (!result)
        result = context->driver->cuCtxRecordEvent(handle, slot->event);
    if (!result)
        result = context->driver->cuCtxWaitEvent(handle, slot->event);
    return result;
}

/* The host waits, as in the driver's own cudaFree. */
static CUresult order_on_host(struct context *context)
{
    bool pushed;
    CUresult result = push(context, &pushed);

    if (!result)
        result = context->driver->cuCtxSynchronize();
    pop(context, pushed);
    return result;
}

static bool is_capture_error(CUresult result)
{
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

static int context_order(void *arg)
{
    struct context *context = arg;
    struct slot *slot = slot_acquire(context);
    CUresult result;

    /* After taking the slot: capture_begin closes the gate first and then waits for the slots. */
    if (capture_active()) {
        slot_release(slot);
        return -EBUSY;
    }
    result = context->strict ? order_on_host(context) : order_on_device(context, slot);
    slot_release(slot);
    if (is_capture_error(result)) {
        log_once(LOG_WARN, "a stream capture that cupool did not see begin was disturbed by a free");
        return -EBUSY;
    }
    if (result)
        log_once(LOG_INFO, "a free could not be ordered (error %d); its block is kept back", (int)result);
    return result ? -EIO : 0;
}

static bool context_frozen(void *arg)
{
    return capture_active_now();
}

static const struct pool_order_ops order_ops = {.order = context_order, .frozen = context_frozen};

/* --- backend --- */

/*
 * Look at a context that is not the calling thread's own: it may be leaving. True if it is pooled and stays until
 * unpin; context_leaving waits for that.
 */
static bool pin(struct context *context)
{
    atomic_fetch_add(&context->users, 1);
    if (!atomic_load(&context->leaving) && atomic_load(&context->handle) && context->pool)
        return true;
    atomic_fetch_sub(&context->users, 1);
    return false;
}

static void unpin(struct context *context)
{
    atomic_fetch_sub(&context->users, 1);
}

/* Give back what the contexts of a device, except one, hold without need. */
static size_t device_trim(int device, const struct context *except)
{
    size_t released = 0;

    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *other = atomic_load(&contexts.entries[i]);

        if (other == except || !pin(other))
            continue;
        if (other->device == device)
            released += pool_trim(other->pool, "oom");
        unpin(other);
    }
    return released;
}

bool context_trim(void)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && device_trim(device, NULL) != 0;
}

static int backend_alloc(void *arg, size_t size, uint64_t *ret_addr)
{
    struct context *context = arg;
    CUdeviceptr ptr;
    CUresult result = context->driver->cuMemAlloc_v2(&ptr, size);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && device_trim(context->device, context))
        result = context->driver->cuMemAlloc_v2(&ptr, size);
    if (result)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
    if (ptr % POOL_SEGMENT_UNIT) {
        log_once(LOG_WARN, "the driver's memory is not aligned to 2 MiB; requests of %zu bytes are not pooled", size);
        context->driver->cuMemFree_v2(ptr);
        return -EIO;
    }
    *ret_addr = ptr;
    return 0;
}

static void backend_free(void *arg, uint64_t addr, size_t size)
{
    struct context *context = arg;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool relaxed = context->driver->cuThreadExchangeStreamCaptureMode &&
                         context->driver->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    bool pushed;
    CUresult result = push(context, &pushed);

    if (!result)
        result = context->driver->cuMemFree_v2(addr);
    pop(context, pushed);
    if (relaxed)
        context->driver->cuThreadExchangeStreamCaptureMode(&mode);
    if (result && result != CUDA_ERROR_DEINITIALIZED)
        log_once(LOG_WARN, "the driver did not take back %zu bytes at %#llx (error %d)", size, (unsigned long long)addr,
                 (int)result);
}

static const struct pool_backend_ops backend_ops = {.alloc = backend_alloc, .free = backend_free};

/* --- the table --- */

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

/* The device's primary context, if handle is it. It is current somewhere, so retaining it does not bring it to life. */
static bool is_primary(const struct real_driver *driver, CUcontext handle, int device)
{
    unsigned int flags;
    CUcontext primary;
    int active = 0;

    if (!driver->cuDevicePrimaryCtxGetState || !driver->cuDevicePrimaryCtxRetain ||
        !driver->cuDevicePrimaryCtxRelease_v2)
        return false;
    if (driver->cuDevicePrimaryCtxGetState(device, &flags, &active) || !active)
        return false;
    if (driver->cuDevicePrimaryCtxRetain(&primary, device))
        return false;
    driver->cuDevicePrimaryCtxRelease_v2(device);
    return primary == handle;
}

static bool driver_orders(const struct real_driver *driver)
{
    int version = 0;

    return driver->cuCtxRecordEvent && driver->cuCtxWaitEvent && driver->cuDriverGetVersion &&
           driver->cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= 12050;
}

/* Must frees make the host wait? ret_why: the reason, for the trace. */
static bool choose_strict(const struct real_driver *driver, const char **ret_why)
{
    const uint64_t wanted = conf_get()->free.number;

    *ret_why = wanted == FREE_AUTO ? "default" : "CUPOOL_FREE";
    if (wanted == FREE_STRICT)
        return true;
    if (driver_orders(driver))
        return false;
    *ret_why = "driver older than 12.5";
    if (wanted == FREE_ORDERED)
        log_once(LOG_WARN, "CUPOOL_FREE=ordered needs driver 12.5 or later; using strict");
    return true;
}

/* Fill in an entry that is not in use; with the lock. */
static void entry_fill(struct context *context, const struct context *as)
{
    struct pool_config config = {.backend = &backend_ops,
                                 .order = &order_ops,
                                 .observer = &observe_ops,
                                 .arg = context,
                                 .limit = conf_get()->limit.number,
                                 .break_max = as->capacity / BREAK_PART,
                                 .capacity = as->capacity,
                                 .eager = !as->strict};

    for (int i = 0; i < SLOTS; i++)
        context->slots[i].event = NULL; /* an earlier context's events went with it */
    context->driver = as->driver;
    context->device = as->device;
    context->primary = as->primary;
    context->strict = as->strict;
    atomic_store(&context->leaving, false);
    atomic_store(&context->bypassed, 0);
    if (pool_create(&config, &context->pool))
        context->pool = NULL;
}

static struct context *entry_make(const struct real_driver *driver, CUcontext handle)
{
    struct context as = {.driver = driver}, *context;
    bool made = false;
    size_t free, total;
    const char *why;
    CUdevice device;

    /* A context that was reset stays current, but is of no use until the runtime has brought it to life again. */
    if (driver->cuCtxGetDevice(&device) || driver->cuMemGetInfo_v2(&free, &total))
        return NULL;
    as.device = device;
    as.primary = is_primary(driver, handle, device);
    as.strict = choose_strict(driver, &why);
    as.capacity = total;
    trace_open();
    pthread_mutex_lock(&contexts.lock);
    context = entry_find(handle);
    if (!context) {
        context = entry_new();
        made = context != NULL;
        if (made) {
            entry_fill(context, &as);
            atomic_store_explicit(&context->handle, handle, memory_order_release);
        }
    }
    pthread_mutex_unlock(&contexts.lock);
    if (!context)
        log_once(LOG_WARN, "more than %d contexts at a time; the others are not pooled", CONTEXTS_MAX);
    if (made)
        trace_event("policy", "\"d\":%d,\"free\":\"%s\",\"why\":\"%s\"", as.device, as.strict ? "strict" : "ordered",
                    why);
    return context;
}

struct context *context_current(const struct real_driver *driver)
{
    const unsigned int epoch = atomic_load_explicit(&contexts.epoch, memory_order_acquire);
    CUcontext handle = NULL;
    struct context *context;

    if (driver->cuCtxGetCurrent(&handle) || !handle)
        return NULL;
    if (handle == here.handle && epoch == here.epoch)
        return here.context;
    context = entry_find(handle);
    if (!context)
        context = entry_make(driver, handle);
    if (!context)
        return NULL; /* not remembered: it may be of use later */
    here.handle = handle;
    here.context = context->pool && !atomic_load(&context->leaving) ? context : NULL;
    here.epoch = epoch;
    return here.context;
}

struct pool *context_pool(const struct context *context)
{
    return context->pool;
}

int context_device(const struct context *context)
{
    return context->device;
}

struct context *context_of(const struct pool *pool)
{
    return pool_arg(pool);
}

void context_bypassed(struct context *context)
{
    atomic_fetch_add_explicit(&context->bypassed, 1, memory_order_relaxed);
}

uint64_t context_idle_bytes(int device)
{
    struct pool_stats stats;
    uint64_t idle = 0;

    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (!pin(context))
            continue;
        if (context->device == device) {
            pool_flush(context->pool);
            pool_stats_get(context->pool, &stats);
            idle += stats.idle;
        }
        unpin(context);
    }
    return idle;
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
            atomic_fetch_add(&contexts.epoch, 1);
        }
    }
    pthread_mutex_unlock(&contexts.lock);
}

struct context *context_leaving(CUcontext handle)
{
    struct context *context = handle ? entry_find(handle) : NULL;

    if (!context)
        return NULL;
    atomic_store(&context->leaving, true);
    atomic_fetch_add(&contexts.epoch, 1);
    for (unsigned int i = 0; atomic_load(&context->users); i++)
        relax(i * SLOTS);
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

void context_gone(struct context *context, bool gone)
{
    struct pool_stats stats;

    if (!context)
        return;
    if (gone) {
        capture_forget(atomic_load(&context->handle));
        if (context->pool) {
            pool_stats_get(context->pool, &stats);
            pool_destroy(context->pool);
        }
    }
    pthread_mutex_lock(&contexts.lock);
    if (gone) {
        if (context->pool)
            past_add(context, &stats);
        context->pool = NULL;
        context->primary = false;
        atomic_store(&context->handle, NULL);
    }
    atomic_store(&context->leaving, false);
    pthread_mutex_unlock(&contexts.lock);
    atomic_fetch_add(&contexts.epoch, 1);
}

void context_sweep(void)
{
    const struct real_driver *driver = real_driver_get();
    unsigned int flags;
    int active;

    for (unsigned int i = 0; driver && driver->cuDevicePrimaryCtxGetState && i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        active = 1;
        if (atomic_load(&context->handle) && context->primary &&
            driver->cuDevicePrimaryCtxGetState(context->device, &flags, &active) == CUDA_SUCCESS && !active)
            context_gone(context_leaving(atomic_load(&context->handle)), true);
    }
}

void context_settle(CUcontext handle)
{
    struct context *context = handle ? entry_find(handle) : NULL;

    for (int i = 0; context && i < SLOTS; i++)
        for (unsigned int j = 0; atomic_load(&context->slots[i].busy); j++)
            relax(j * SLOTS);
}

void context_stats_each(void (*each)(int device, const struct pool_stats *stats, uint64_t bypassed))
{
    for (int device = 0; device < DEVICES_MAX; device++) {
        /* At exit, maybe below a signal handler: nothing waits for the lock. */
        struct pool_stats sum = contexts.past[device].stats, stats;
        uint64_t bypassed = contexts.past[device].bypassed;
        bool any = contexts.past[device].any;

        for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
            struct context *context = atomic_load(&contexts.entries[i]);

            if (!pin(context))
                continue;
            if (context->device == device) {
                pool_stats_get(context->pool, &stats);
                stats_add(&sum, &stats);
                bypassed += atomic_load(&context->bypassed);
                any = true;
            }
            unpin(context);
        }
        if (any)
            each(device, &sum, bypassed);
    }
}
