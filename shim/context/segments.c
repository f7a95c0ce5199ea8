/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segments.c - where a context's segments come from and how they go back; also our own fills and copies in them. See
 * context.h and state.h.
 *
 * Locking: none; counters are atomic.
 */
#include <errno.h>

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture.h"
#include "context/events.h"
#include "context/nccl_memory.h"
#include "context/pins.h"
#include "context/state.h"
#include "lock.h"
#include "trace/trace.h"

/* While less than this part of the device's memory is free, idle segments go back at once, for programs that cannot ask
 * us for memory. */
#define RESERVE_PART 128

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

bool memory_defers(const struct real_driver *driver, int device)
{
    int supported = 0;

    return driver->cuMemFreeAsync && driver->cuStreamQuery && driver->cuStreamSynchronize &&
           driver->cuDeviceGetAttribute &&
           driver->cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) ==
               CUDA_SUCCESS &&
           supported;
}

/* The stream for our own work in a context that has been entered; NULL: it cannot be made. */
static CUstream own_stream(struct context *context)
{
    CUstream stream = atomic_load(&context->stream), made = NULL;

    if (stream || !context->driver->cuStreamCreate ||
        context->driver->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return stream;
    /* Another thread's stream came first: ours stays unused until the context ends. */
    return atomic_compare_exchange_strong(&context->stream, &stream, made) ? made : stream;
}

int memory_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
{
    const uint64_t fill = conf_get()->fill.number;
    struct context *context = arg;
    struct visit visit;
    CUstream stream;
    CUresult result;

    /* The driver's own allocations of 2 MiB and more are zeroed, smaller ones are not. */
    if (fill == FILL_NATIVE && (shared || fresh))
        return 0;
    result = context_enter(context, &visit);
    stream = result ? NULL : own_stream(context);
    if (stream && context->driver->cuMemsetD8Async && context->driver->cuStreamSynchronize)
        result = context->driver->cuMemsetD8Async(addr, fill == FILL_NATIVE ? 0 : (unsigned char)fill, size, stream);
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    context_leave(context, &visit);
    if (result)
        log_once(LOG_WARN, "memory could not be filled (error %d); it is kept back", (int)result);
    return result ? -EIO : 1;
}

/* The longest wait for released memory that waits for no other work on the device, in nanoseconds. */
#define ARRIVAL_NS 1000000000u
/* The longest wait of a refused request for memory that other threads' frees have released, in nanoseconds. Natively a
 * free that has returned has released its memory, but a free that would not have returned yet would let the request
 * fail at once; and the device's work may be waiting for this thread. The shorter time is for memory that was waited
 * for in vain before. */
#define OTHERS_WAIT_NS       300000000u
#define OTHERS_WAIT_AGAIN_NS 30000000u

/* Segments released through our stream reach the driver when a thread synchronises that stream. This function does so
 * once the stream is idle, and polls for patience_ns nanoseconds until it is. True: some memory has arrived. */
static bool releases_collect(struct context *context, uint64_t patience_ns)
{
    const struct real_driver *driver = context->driver;
    const uint64_t given = atomic_load(&context->given);
    const uint64_t limit = patience_ns ? now_ns() + patience_ns : 0;
    uint64_t arrived = atomic_load(&context->arrived);
    CUresult result = CUDA_ERROR_NOT_READY;
    struct visit visit;
    bool done = false;

    if (arrived >= given)
        return false;
    /* The thread is in relaxed mode, so a capture elsewhere is not disturbed. */
    if (!context_enter(context, &visit) && (visit.relaxed || !capture_active_now())) {
        for (unsigned int i = 0; (result = driver->cuStreamQuery(context->stream)) == CUDA_ERROR_NOT_READY; i++) {
            if (!limit || now_ns() >= limit || !context_stays(context))
                break;
            lock_relax(i);
        }
        /* If the stream cannot be queried, synchronise it, provided that the caller is ready to wait. */
        done = (result == CUDA_SUCCESS || (result != CUDA_ERROR_NOT_READY && limit)) &&
               driver->cuStreamSynchronize(context->stream) == CUDA_SUCCESS;
    }
    context_leave(context, &visit);
    while (done && arrived < given && !atomic_compare_exchange_weak(&context->arrived, &arrived, given))
        ;
    if (done)
        context_arrived();
    return done;
}

/* As releases_collect, after a refusal: waits for this thread's own frees for as long as they natively would have
 * waited, and for those of other threads for a limited time. */
static bool releases_collect_refused(struct context *context)
{
    const bool alone = order_wait_own(context);
    const uint64_t given = atomic_load(&context->given);
    const uint64_t others = atomic_load(&context->gave_up) == given ? OTHERS_WAIT_AGAIN_NS : OTHERS_WAIT_NS;
    const bool any = releases_collect(context, alone ? ARRIVAL_NS : others);

    if (!any)
        atomic_store(&context->gave_up, given);
    return any;
}

/* Give back the idle segments of a device's contexts, except one. True if any bytes went back. */
static bool device_trim(int device, const struct context *except)
{
    struct context *other;
    bool any = false;

    for (unsigned int i = 0; (other = context_next(&i, device)); context_unpin(other)) {
        if (other == except)
            continue;
        any |= pool_trim(other->pool, "oom") != 0;
        any |= releases_collect_refused(other);
    }
    return any;
}

bool context_trim(unsigned int before)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;
    size_t settled;

    if (!driver || driver->cuCtxGetDevice(&device))
        return false;
    /* Memory that could not be deregistered before may go now. */
    settled = context_events.retry_parked_refused(device);
    return device_trim(device, NULL) || settled || context_arrivals() != before;
}

uint64_t context_release(int device, const char *why)
{
    struct context *context;
    uint64_t released = 0;

    if (capture_active_now())
        return 0;
    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        released += pool_trim(context->pool, why);
        releases_collect(context, order_wait_own(context) ? ARRIVAL_NS : OTHERS_WAIT_NS);
    }
    /* Also memory that could not be released before. */
    return released + context_events.retry_parked(device);
}

/* Get memory of a kind: from the driver, or from NCCL, which gives no reason when it fails. */
static CUresult memory_get(const struct context *context, unsigned int kind, CUdeviceptr *ptr, size_t size)
{
    uint64_t addr;

    if (kind == MEMORY_CUDA)
        return context->driver->cuMemAlloc_v2(ptr, size);
    if (nccl_memory_alloc(size, &addr))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = addr;
    return CUDA_SUCCESS;
}

static CUresult segment_alloc(struct context *context, unsigned int kind, CUdeviceptr *ptr, size_t size)
{
    unsigned int before;
    CUresult result;

    /* Memory that arrived for another thread during the driver's call may be enough for this one. */
    do {
        before = context_arrivals();
        result = memory_get(context, kind, ptr, size);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY &&
             (context_events.retry_parked_refused(context->device) || device_trim(context->device, context) ||
              releases_collect_refused(context) || context_arrivals() != before));
    return result;
}

static int backend_alloc(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    struct context *context = arg;
    size_t free, total;
    CUdeviceptr ptr;
    CUresult result = segment_alloc(context, kind, &ptr, size);

    if (result)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
    if (ptr % POOL_SEGMENT_UNIT) {
        log_once(LOG_WARN, "the driver's memory is not aligned to 2 MiB; requests of %zu bytes are not pooled", size);
        if (kind == MEMORY_NCCL)
            nccl_memory_free(ptr, size);
        else
            context->driver->cuMemFree_v2(ptr);
        return -EIO;
    }
    context_events.segment_added(context, context->device, ptr, size);
    if (context->driver->cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS)
        atomic_store_explicit(&context->device_free, free, memory_order_relaxed);
    trace_write_behind();
    *ret_addr = ptr;
    return 0;
}

/* Give memory back that is registered nowhere. */
static void memory_put(void *arg, uint64_t addr, size_t size)
{
    struct context *context = arg;
    const struct real_driver *driver = context->driver;
    struct visit visit;
    CUresult result;
    CUstream stream;

    result = context_enter(context, &visit);
    stream = result || !atomic_load(&context->defers) ? NULL : own_stream(context);
    /*
     * cuMemFree waits for the device, including work launched after the program's own free, and holds up every launch
     * meanwhile. cuMemFreeAsync on our own stream does neither: the stream waits only for the work that the frees have
     * ordered, and the memory arrives when a thread synchronises the stream.
     */
    if (stream && driver->cuMemFreeAsync(addr, stream) == CUDA_SUCCESS) {
        atomic_fetch_add(&context->given, size);
    } else {
        /* Also after an error of context_enter: the address alone names the memory. */
        if (stream)
            atomic_store(&context->defers, false);
        call_sleep(context);
        result = driver->cuMemFree_v2(addr);
        call_wake();
        context_arrived();
    }
    context_leave(context, &visit);
    atomic_fetch_add_explicit(&context->device_free, size, memory_order_relaxed);
    if (result && result != CUDA_ERROR_DEINITIALIZED)
        log_once(LOG_WARN, "the driver did not take back %zu bytes at %#llx (error %d)", size, (unsigned long long)addr,
                 (int)result);
}

static void memory_put_nccl(void *arg, uint64_t addr, size_t size)
{
    (void)arg;
    nccl_memory_free(addr, size);
    context_arrived();
}

static void backend_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    void (*const put)(void *arg, uint64_t addr, size_t size) = kind == MEMORY_NCCL ? memory_put_nccl : memory_put;
    struct context *context = arg;

    call_resolve(context);
    /* The driver takes memory back behind the work that uses it. NCCL does not, and writes by peers into registered
     * memory must have ended as well. */
    if ((kind == MEMORY_NCCL || context_events.registers()) && order_wait(context)) {
        log_once(LOG_WARN, "%zu bytes at %#llx cannot be waited for, and are not given back", size,
                 (unsigned long long)addr);
        return;
    }
    if (context_events.segment_removing(addr, put, context))
        put(context, addr, size);
}

static void backend_collect(void *arg)
{
    struct context *context = arg;

    context_events.retry_parked(context->device);
    releases_collect_refused(context);
}

/* Bytes that have been given back and have not arrived at the driver yet. */
static size_t arriving(const struct context *context)
{
    const uint64_t arrived = atomic_load(&context->arrived), given = atomic_load(&context->given);

    return given > arrived ? given - arrived : 0;
}

static bool backend_collected(void *arg, size_t *ret_arriving)
{
    struct context *context = arg;

    releases_collect(context, 0);
    *ret_arriving = arriving(context);
    /* False where the driver does not free through a stream: a request would then wait for the device. */
    return atomic_load(&context->defers) && !*ret_arriving;
}

static void backend_reclaim(void *arg)
{
    struct context *context = arg;

    releases_collect(context, order_wait_own(context) ? ARRIVAL_NS : 0);
}

/* During a capture, memory may go back through our own stream, which does not capture. NCCL's memory does not go back
 * this way, and registered memory may be part of a graph. */
static bool backend_gives_frozen(void *arg)
{
    const struct context *context = arg;

    return atomic_load(&context->defers) && !context_events.registers() && !context_backed_by_nccl(context);
}

static bool backend_scarce(void *arg)
{
    const struct context *context = arg;

    /* The free memory of the device differs from rank to rank, which matters to NCCL. */
    return (conf_get()->decay.number == 0 ||
            atomic_load_explicit(&context->device_free, memory_order_relaxed) < context->capacity / RESERVE_PART) &&
           !nccl_ranks_agree();
}

const struct pool_backend_ops memory_ops = {.alloc = backend_alloc,
                                            .free = backend_free,
                                            .collect = backend_collect,
                                            .collected = backend_collected,
                                            .reclaim = backend_reclaim,
                                            .gives_frozen = backend_gives_frozen,
                                            .scarce = backend_scarce};

void context_settle_device(int device)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        releases_collect(context, 0);
}

void context_kept_ask(int device)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        pool_flush(context->pool);
}

uint64_t context_idle_bytes(int device)
{
    struct pool_stats stats;
    struct context *context;
    uint64_t idle = 0;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        pool_flush(context->pool);
        pool_stats_get(context->pool, &stats);
        idle += stats.idle + arriving(context);
    }
    return idle;
}

void context_survey(int device, bool whole, struct pool_survey *ret_sum)
{
    struct pool_survey sum = {0}, survey;
    struct context *context;
    struct pool_stats stats;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        if (!whole) {
            pool_stats_get(context->pool, &stats);
            sum.live += stats.live;
            sum.held += stats.held;
            continue;
        }
        pool_survey_get(context->pool, &survey);
        sum.live += survey.live;
        sum.pending += survey.pending;
        sum.idle += survey.idle;
        sum.holes += survey.holes;
        sum.withdrawn += survey.withdrawn;
        sum.skipped += survey.skipped;
        sum.leaving += survey.leaving;
        sum.held += survey.held;
        sum.ranges += survey.ranges;
        sum.segments += survey.segments;
        sum.largest = survey.largest > sum.largest ? survey.largest : sum.largest;
    }
    *ret_sum = sum;
}

int context_write(struct context *context, uint64_t addr, unsigned char byte, size_t size)
{
    const struct real_driver *driver = context->driver;
    struct visit visit;
    CUstream stream;
    CUresult result;

    if (capture_active() || !driver->cuMemsetD8Async)
        return -EIO;
    result = context_enter(context, &visit);
    stream = result ? NULL : own_stream(context);
    result = stream ? driver->cuMemsetD8Async(addr, byte, size, stream) : CUDA_ERROR_NOT_SUPPORTED;
    if (!result)
        result = driver->cuStreamSynchronize(stream);
    context_leave(context, &visit);
    return result ? -EIO : 0;
}

int context_read(struct context *context, uint64_t addr, void *buf, size_t size, uint64_t limit)
{
    const struct real_driver *driver = context->driver;
    struct visit visit;
    CUstream stream;
    CUresult result;

    if (capture_active() || !driver->cuMemcpyDtoHAsync_v2)
        return -EIO;
    if (limit ? !order_wait_until(context, limit) : order_wait(context) != CUDA_SUCCESS)
        return -EIO;
    result = context_enter(context, &visit);
    stream = result ? NULL : own_stream(context);
    result = stream ? driver->cuMemcpyDtoHAsync_v2(buf, addr, size, stream) : CUDA_ERROR_NOT_SUPPORTED;
    if (!result)
        result = driver->cuStreamSynchronize(stream);
    context_leave(context, &visit);
    return result ? -EIO : 0;
}

void context_decay_all(unsigned int age)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, CONTEXT_ALL)); context_unpin(context)) {
        /* Never where cuMemFree would hold up the program's launches. */
        if (age && atomic_load(&context->defers) && !nccl_ranks_agree()) {
            pool_flush(context->pool);
            pool_decay(context->pool, age);
        }
        releases_collect(context, 0);
    }
}
