/* SPDX-License-Identifier: Apache-2.0 */
/* own_stream.c - see own_stream.h. No locks but slots of free_order.c. */
#include "context/own_stream.h"

#include <errno.h>

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_order.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/wait_context.h"
#include "lock.h"

/* The stream for our own work in a context that has been entered; NULL: it cannot be made. */
CUstream own_stream(struct context *context)
{
    CUstream stream = atomic_load(&context->stream), made = NULL;

    if (stream || !context->driver->cuStreamCreate ||
        context->driver->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return stream;
    /* Another thread's stream came first: ours stays unused until the context ends. */
    return atomic_compare_exchange_strong(&context->stream, &stream, made) ? made : stream;
}

/* A thread that is about to put work on the stream, or to synchronise it, waits so long, in nanoseconds, for another
 * one that synchronises it. That one waits for no work. */
#define SYNCING_WAIT_NS 300000000u

void own_stream_busy_begin(struct context *context)
{
    uint64_t limit = 0;

    for (unsigned int i = 0;; i++) {
        atomic_fetch_add(&context->streaming, 1);
        if (!atomic_load(&context->syncing) || (limit && now_ns() >= limit))
            return;
        atomic_fetch_sub(&context->streaming, 1);
        limit = limit ? limit : now_ns() + SYNCING_WAIT_NS;
        lock_relax(i);
    }
}

void own_stream_busy_end(struct context *context)
{
    atomic_fetch_sub(&context->streaming, 1);
}

/* By turns: the thread that synchronises a stream gives its memory back to the device. A second thread might find
 * nothing left to do, and take that memory for arrived before it has. */
static void syncing_begin(struct context *context)
{
    unsigned int none = 0;
    uint64_t limit = 0;

    for (unsigned int i = 0; !atomic_compare_exchange_strong(&context->syncing, &none, 1); none = 0) {
        limit = limit ? limit : now_ns() + SYNCING_WAIT_NS;
        if (now_ns() >= limit) {
            atomic_fetch_add(&context->syncing, 1);
            return;
        }
        lock_relax(i++);
    }
}

CUresult own_stream_sync_idle(struct context *context)
{
    const CUstream stream = atomic_load(&context->stream);
    CUresult result = CUDA_ERROR_NOT_READY;

    syncing_begin(context);
    if (!atomic_load(&context->streaming))
        result = context->driver->cuStreamQuery(stream);
    if (!result)
        result = context->driver->cuStreamSynchronize(stream);
    atomic_fetch_sub(&context->syncing, 1);
    return result;
}

static int memory_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
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
    own_stream_busy_begin(context);
    if (stream && context->driver->cuMemsetD8Async && context->driver->cuStreamSynchronize)
        result = context->driver->cuMemsetD8Async(addr, fill == FILL_NATIVE ? 0 : (unsigned char)fill, size, stream);
    else
        result = CUDA_ERROR_NOT_SUPPORTED;
    own_stream_busy_end(context);
    context_leave(context, &visit);
    if (result)
        log_once(LOG_WARN, "memory could not be filled (error %d); it is kept back", (int)result);
    return result ? -EIO : 1;
}

/* Make later work of the context run behind the work on our own stream. Where the device's order is not enough (a
 * strict policy), or impossible (beside a capture, which a wait for this stream does not disturb), the host waits for
 * the stream, and with it for all that the stream waits for. */
static CUresult order_behind_stream(struct context *context, struct slot *slot)
{
    const struct real_driver *driver = context->driver;
    const CUstream stream = atomic_load(&context->stream);
    const bool beside_capture = capture_active(), waits = beside_capture || policy_is_strict(&context->policy) ||
                                                          !driver->cuEventRecord || !driver->cuCtxWaitEvent;
    CUresult result = waits || atomic_load(&slot->event) ? CUDA_SUCCESS : order_event_make(context, &slot->event);
    struct visit visit;

    if (result)
        return result;
    result = context_enter(context, &visit);
    if (!result && beside_capture && !visit.relaxed)
        result = CUDA_ERROR_NOT_READY;
    pin_sleep(context);
    atomic_store(&slot->waits, waits); /* so that capture_begin does not wait for this slot without limit */
    if (!result)
        result = waits ? driver->cuStreamSynchronize(stream) : driver->cuEventRecord(atomic_load(&slot->event), stream);
    atomic_store(&slot->waits, false);
    pin_wake();
    context_leave(context, &visit);
    if (!result && !waits)
        result = driver->cuCtxWaitEvent(context_handle(context), atomic_load(&slot->event));
    return result;
}

static int context_filled(void *arg)
{
    struct context *context = arg;
    struct slot *slot = order_slot_take(context);
    const CUresult result = order_behind_stream(context, slot);

    /* CUDA_ERROR_NOT_READY, because this orders the fills only: it must not count as a batch that has succeeded. */
    order_slot_give(slot, CUDA_ERROR_NOT_READY);
    if (result && result != CUDA_ERROR_NOT_READY)
        log_once(LOG_WARN, "filled memory could not be put in order (error %d); it is kept back", (int)result);
    return result ? -EBUSY : 0;
}

const struct pool_order_ops order_filling_ops = {.order = order_pool,
                                                 .fill = memory_fill,
                                                 .filled = context_filled,
                                                 .frozen = order_frozen,
                                                 .freed_async_ended = order_freed_async_ended};

/* Enter the context for one call on the library's stream; own_call_end must follow. NULL: no call can be made. */
static CUstream own_call_begin(struct context *context, struct visit *visit)
{
    return context_enter(context, visit) ? NULL : own_stream(context);
}

/* Wait for the call, whose result this is, and leave the context. */
static int own_call_end(struct context *context, struct visit *visit, CUstream stream, CUresult result)
{
    if (!result)
        result = context->driver->cuStreamSynchronize(stream);
    context_leave(context, visit);
    return result ? -EIO : 0;
}

int context_write(struct context *context, uint64_t addr, unsigned char byte, size_t size)
{
    const struct real_driver *driver = context->driver;
    struct visit visit;
    CUstream stream;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (capture_active() || !driver->cuMemsetD8Async)
        return -EIO;
    stream = own_call_begin(context, &visit);
    if (stream)
        result = driver->cuMemsetD8Async(addr, byte, size, stream);
    return own_call_end(context, &visit, stream, result);
}

int context_read(struct context *context, uint64_t addr, void *buf, size_t size, uint64_t limit)
{
    const struct real_driver *driver = context->driver;
    struct visit visit;
    CUstream stream;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (capture_active() || !driver->cuMemcpyDtoHAsync_v2)
        return -EIO;
    if (limit ? !order_wait_until(context, limit) : order_wait(context) != CUDA_SUCCESS)
        return -EIO;
    stream = own_call_begin(context, &visit);
    if (stream)
        result = driver->cuMemcpyDtoHAsync_v2(buf, addr, size, stream);
    return own_call_end(context, &visit, stream, result);
}
