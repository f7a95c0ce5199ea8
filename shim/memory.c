/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - where a context's segments come from and how they go back; what is done in them on our own account. See
 * context.h and context_internal.h.
 *
 * Locking: none; counters are atomic.
 */
#include <errno.h>

#include "calls.h"
#include "capture.h"
#include "conf.h"
#include "context_internal.h"
#include "decay.h"
#include "lock.h"
#include "log.h"
#include "nccl.h"
#include "trace.h"

/* Less than this part of the device's memory is left: what is idle goes back, for those who cannot ask us for it. */
#define RESERVE_PART 128

/* How often memory has gone back to a driver, and is there. */
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

/* The stream for work of our own in a context that has been entered; NULL: cannot be made. */
static CUstream own_stream(struct context *context)
{
    CUstream stream = atomic_load(&context->stream), made = NULL;

    if (stream || !context->driver->cuStreamCreate ||
        context->driver->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return stream;
    /* Somebody else's came first: ours stays behind unused, until the context goes. */
    return atomic_compare_exchange_strong(&context->stream, &stream, made) ? made : stream;
}

int memory_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
{
    const uint64_t fill = conf_get()->fill.number;
    struct context *context = arg;
    struct visit visit;
    CUstream stream;
    CUresult result;

    /* The driver's own memory of 2 MiB and more comes zeroed, smaller as it is. */
    if (fill == FILL_NATIVE && (shared || fresh))
        return 0;
    result = context_enter(context, &visit);
    stream = result ? NULL : own_stream(context);
    if (stream && context->driver->cuMemsetD8Async && context->driver->cuStreamSynchronize)
        result = context->driver->cuMemsetD8Async(addr, fill == FILL_NATIVE ? 0 : (unsigned char)fill, size, stream);
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    /* A request is waiting for it, which does not wait for the device. */
    if (!result && fresh)
        result = context->driver->cuStreamSynchronize(stream);
    context_leave(context, &visit);
    if (result)
        log_once(LOG_WARN, "memory could not be filled (error %d); it is kept back", (int)result);
    return result ? -EIO : !fresh;
}

/*
 * Wait for our own stream, which waits for the device. It is asked again and again, because a context that is about to
 * go must not be waited for in a call of the driver with its handle. CUDA_ERROR_NOT_READY: the context goes.
 */
static CUresult own_stream_wait(struct context *context, CUstream stream)
{
    const struct real_driver *driver = context->driver;

    for (unsigned int i = 0; driver->cuStreamQuery && driver->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY; i++) {
        if (!context_stays(context))
            return CUDA_ERROR_NOT_READY;
        lock_relax(i);
    }
    return driver->cuStreamSynchronize(stream);
}

/* Segments that went back through our stream reach the driver when somebody waits for that stream. True: some have. */
static bool releases_collect(struct context *context, bool wait)
{
    const struct real_driver *driver = context->driver;
    const uint64_t given = atomic_load(&context->given);
    uint64_t arrived = atomic_load(&context->arrived);
    struct visit visit;
    bool done = false;

    if (arrived >= given || capture_active_now())
        return false;
    if (!context_enter(context, &visit) && (wait || driver->cuStreamQuery(context->stream) == CUDA_SUCCESS))
        done = own_stream_wait(context, context->stream) == CUDA_SUCCESS;
    context_leave(context, &visit);
    while (done && arrived < given && !atomic_compare_exchange_weak(&context->arrived, &arrived, given))
        ;
    if (done)
        context_arrived();
    return done;
}

/* Give back what the contexts of a device, except one, hold without need. True if that was anything. */
static bool device_trim(int device, const struct context *except)
{
    struct context *other;
    bool any = false;

    for (unsigned int i = 0; (other = context_next(&i, device)); context_unpin(other)) {
        if (other == except)
            continue;
        any |= pool_trim(other->pool, "oom") != 0;
        any |= releases_collect(other, /* wait: */ true);
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
    /* What could not be deregistered before may go now, too. */
    settled = nccl_settle_refused(device);
    return device_trim(device, NULL) || settled || context_arrivals() != before;
}

uint64_t context_release(int device, const char *why)
{
    struct context *context;
    uint64_t released = 0;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        released += pool_trim(context->pool, why);
        releases_collect(context, /* wait: */ true);
    }
    /* Also what was to go before, and could not. */
    return released + (capture_active_now() ? 0 : nccl_settle(device));
}

/* Memory of a kind: the driver's, or NCCL's, which does not say why it has none. */
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

    /* Memory that arrived while the driver was being asked, for another thread, may be what this one needs. */
    do {
        before = context_arrivals();
        result = memory_get(context, kind, ptr, size);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY &&
             (nccl_settle_refused(context->device) || device_trim(context->device, context) ||
              releases_collect(context, /* wait: */ true) || context_arrivals() != before));
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
    nccl_segment_add(context, context->device, ptr, size);
    if (context->driver->cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS)
        atomic_store_explicit(&context->device_free, free, memory_order_relaxed);
    decay_start();
    trace_write_behind();
    *ret_addr = ptr;
    return 0;
}

/* Give memory back that nobody else knows of: the driver's, or NCCL's. */
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
     * The driver's cuMemFree waits for the device, for work too that was launched after the program's own free, and
     * holds up every launch meanwhile. This does neither: it takes place when our stream comes there, which waits for
     * what the frees have ordered and nothing else, and arrives when somebody waits for that stream.
     */
    if (stream && driver->cuMemFreeAsync(addr, stream) == CUDA_SUCCESS) {
        atomic_fetch_add(&context->given, size);
    } else {
        /* Whatever became of enter: the address alone names the memory. */
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
    /* The driver takes memory back behind the work that uses it; NCCL does not, and what peers write into it by a
     * registration has to be over first, too. */
    if ((kind == MEMORY_NCCL || nccl_registers()) && order_wait(context)) {
        log_once(LOG_WARN, "%zu bytes at %#llx cannot be waited for, and are not given back", size,
                 (unsigned long long)addr);
        return;
    }
    if (nccl_segment_remove(addr, put, context))
        put(context, addr, size);
}

static void backend_collect(void *arg)
{
    struct context *context = arg;

    nccl_settle(context->device);
    releases_collect(context, /* wait: */ true);
}

static bool backend_collected(void *arg)
{
    struct context *context = arg;

    releases_collect(context, /* wait: */ false);
    /* Not where the driver does not free through a stream: then a request would wait for the device. */
    return atomic_load(&context->defers) && atomic_load(&context->arrived) >= atomic_load(&context->given);
}

static bool backend_scarce(void *arg)
{
    const struct context *context = arg;

    /* What is left of the device's memory differs from rank to rank, which matters to NCCL. */
    return (conf_get()->decay.number == 0 ||
            atomic_load_explicit(&context->device_free, memory_order_relaxed) < context->capacity / RESERVE_PART) &&
           !nccl_ranks_agree();
}

const struct pool_backend_ops memory_ops = {.alloc = backend_alloc,
                                            .free = backend_free,
                                            .collect = backend_collect,
                                            .collected = backend_collected,
                                            .scarce = backend_scarce};

void context_settle_device(int device)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        releases_collect(context, /* wait: */ true);
}

uint64_t context_idle_bytes(int device)
{
    struct pool_stats stats;
    struct context *context;
    uint64_t idle = 0;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        pool_flush(context->pool);
        pool_stats_get(context->pool, &stats);
        idle += stats.idle;
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
    if (limit ? !order_wait_until(context, limit) : order_on_host(context) != CUDA_SUCCESS)
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
        /* Never in a way that holds up the program's launches. */
        if (age && atomic_load(&context->defers) && !nccl_ranks_agree()) {
            pool_flush(context->pool);
            pool_decay(context->pool, age);
        }
        releases_collect(context, /* wait: */ false);
    }
}
