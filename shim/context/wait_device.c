/* SPDX-License-Identifier: Apache-2.0 */
/* wait_device.c - see wait_device.h. No locks. */
#include "context/wait_device.h"

#include "base/process.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_gate.h"
#include "context/free_order.h"
#include "context/lifetime.h"
#include "context/registry.h"
#include "context/wait_context.h"
#include "lock.h"

/* The longest time, in nanoseconds, that a free waits for a stream of another context, on which it natively happens. */
#define FOREIGN_WAIT_NS 1000000000

CUresult context_wait_handle(CUcontext handle)
{
    const struct real_driver *driver = real_driver_get();
    struct context *context = context_find(handle);
    CUresult result;

    if (!driver || !context || !context_pin(context))
        return driver ? driver->cuCtxSynchronize() : CUDA_ERROR_DEINITIALIZED;
    result = order_wait(context);
    context_unpin(context);
    return result;
}

bool context_wait_device(int device)
{
    const struct real_driver *driver = real_driver_get();
    struct context *context;
    bool any = false, all = true;

    for (unsigned int i = 0; (context = context_next_staying(&i, device)); context_unpin(context)) {
        any = true;
        all &= order_wait(context) == CUDA_SUCCESS;
    }
    /* capture_begin waits only for slots of contexts that have an entry; context_current makes the entry. */
    context = !any && driver ? context_current(driver) : NULL;
    return any ? all : context && context->device == device && order_wait(context) == CUDA_SUCCESS;
}

bool context_wait_device_for(int device, unsigned int ms)
{
    const struct real_driver *driver = real_driver_get();
    const uint64_t limit = now_ns() + (uint64_t)ms * 1000000;
    struct context *context;
    bool any = false, all = true;

    for (unsigned int i = 0; (context = context_next_staying(&i, device)); context_unpin(context)) {
        any = true;
        all &= order_wait_until(context, limit);
    }
    context = !any && driver ? context_current(driver) : NULL;
    return any ? all : context && context->device == device && order_wait_until(context, limit);
}

/* Whether the context's work ends until limit. */
static CUresult wait_until(struct context *context, uint64_t limit, bool *ret_late)
{
    if (order_wait_until(context, limit))
        return CUDA_SUCCESS;
    if (capture_active_now())
        return CUDA_ERROR_NOT_READY;
    *ret_late = now_ns() >= limit;
    return *ret_late ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult context_wait_all(uint64_t limit, bool *ret_late)
{
    CUresult result = CUDA_SUCCESS;
    struct context *context;
    bool late = false;

    for (unsigned int i = 0; !result && !late && (context = context_next_decided(&i, CONTEXT_ALL));
         context_unpin(context)) {
        result = limit == WAIT_NO_LIMIT ? order_wait(context) : wait_until(context, limit, &late);
        if ((late || result) && !context_stays(context)) { /* its end has ended the work, too */
            late = false;
            result = CUDA_SUCCESS;
        }
    }
    *ret_late = late;
    return result;
}

/* True if context_wait_all waits for the device's primary context. */
static bool primary_is_known(int device)
{
    struct context *context;
    bool known = false;

    for (unsigned int i = 0; !known && (context = context_next_decided(&i, device)); context_unpin(context))
        known = context->primary;
    return known;
}

static bool primary_is_active(const struct real_driver *driver, int device)
{
    unsigned int flags;
    int active = 0;

    return driver->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The caller has counted itself in `probing`, so that a call which ends the context waits for our reference to go. */
static CUresult primary_wait(const struct real_driver *driver, int device)
{
    CUcontext primary;
    CUresult result;

    if (!primary_is_active(driver, device))
        return CUDA_SUCCESS;
    result = driver->cuDevicePrimaryCtxRetain(&primary, device);
    if (result)
        return result;
    result = driver->cuCtxPushCurrent_v2(primary);
    if (!result) {
        result = driver->cuCtxSynchronize();
        context_pop(driver);
    }
    driver->cuDevicePrimaryCtxRelease_v2(device);
    return result && primary_is_active(driver, device) ? result : CUDA_SUCCESS; /* a reset ends the work, too */
}

CUresult context_wait_primaries(void)
{
    const struct real_driver *driver = real_driver_get();
    CUresult result = CUDA_SUCCESS;
    int count = 0;

    if (!driver || !driver->cuDevicePrimaryCtxGetState || !driver->cuDevicePrimaryCtxRetain ||
        !driver->cuDevicePrimaryCtxRelease_v2 || driver->cuDeviceGetCount(&count))
        return CUDA_SUCCESS;
    for (int device = 0; !result && device < count && device < DEVICES_MAX; device++) {
        if (primary_is_known(device))
            continue;
        if (capture_active_now()) /* one that has begun meanwhile */
            return CUDA_ERROR_NOT_READY;
        atomic_fetch_add(&contexts.probing[device], 1);
        result = primary_wait(driver, device);
        atomic_fetch_sub(&contexts.probing[device], 1);
    }
    return result;
}

static bool is_green(const struct real_driver *driver, CUstream stream)
{
    CUgreenCtx green = NULL;
    CUresult result;

    if (!driver->cuStreamGetGreenCtx)
        return false;
    result = driver->cuStreamGetGreenCtx(stream, &green);
    if (result) /* asked again: a free on a stream that is taken for another kind waits */
        result = driver->cuStreamGetGreenCtx(stream, &green);
    return !result && green;
}

/* True if our context's queue does not order work of this stream, which is of the context with this handle. A green
 * context is part of its device's primary context, whose queue orders its work. */
static bool is_foreign(const struct context *context, CUstream stream, CUcontext handle)
{
    if (!handle || handle == context_handle(context))
        return false;
    return context_find(handle) || !context->primary || !is_green(context->driver, stream) ||
           context_device_of(context->driver, handle) != context->device;
}

/* An event behind all that the stream, one of the current context, has to do. */
static CUresult event_behind(const struct real_driver *driver, CUstream stream, CUevent *ret_event)
{
    CUresult result = driver->cuEventCreate(ret_event, CU_EVENT_DISABLE_TIMING);

    if (result)
        return result;
    result = driver->cuEventRecord(*ret_event, stream);
    if (result)
        driver->cuEventDestroy_v2(*ret_event);
    return result;
}

/*
 * Wait until a stream of the current context, which is another one than the memory's, has come to a free on it now. The
 * stream is not asked: without work of its own it may have to wait for another one. A free in the driver would hold up
 * the record, and the event's end: other (NULL: unknown) is the stream's context. An event that the stream has not
 * come to stays with its context, as the memory does.
 */
static CUresult stream_wait(const struct context *context, struct context *other, CUstream stream)
{
    const struct real_driver *driver = context->driver;
    const uint64_t limit = now_ns() + FOREIGN_WAIT_NS;
    CUresult result;
    CUevent event;

    for (unsigned int i = 0; !free_gate_enter(other); i++) {
        if (now_ns() >= limit)
            return CUDA_ERROR_NOT_READY;
        lock_relax(i);
    }
    result = event_behind(driver, stream, &event);
    if (result) /* tried again: the memory would never be used again */
        result = event_behind(driver, stream, &event);
    free_gate_leave(other);
    if (result)
        return result;
    for (unsigned int i = 0; (result = context_event_ask(context, event)) == CUDA_ERROR_NOT_READY && now_ns() < limit;
         i++)
        lock_relax(i);
    if (!result && free_gate_enter(other)) {
        driver->cuEventDestroy_v2(event);
        free_gate_leave(other);
    }
    return result;
}

/* As context_wait_foreign. *ret_is_own: it is one of this context. */
static CUresult foreign_wait(const struct context *context, CUstream stream, bool *ret_is_own)
{
    const struct real_driver *driver = context->driver;
    CUstreamCaptureMode mode;
    CUcontext handle = NULL;
    CUresult result;
    bool relaxed;

    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        result = driver->cuCtxGetCurrent(&handle);
    else
        result = context_of_stream(driver, stream, &handle);
    *ret_is_own = !result && handle == context_handle(context);
    if (result || !is_foreign(context, stream, handle) || !driver->cuEventRecord || !driver->cuEventQuery ||
        !driver->cuEventDestroy_v2)
        return result == CUDA_ERROR_INVALID_HANDLE ? result : CUDA_SUCCESS;
    relaxed = capture_mode_relax(driver, &mode);
    result = driver->cuCtxPushCurrent_v2(handle);
    if (result)
        result = driver->cuCtxPushCurrent_v2(handle);
    if (!result) {
        result = stream_wait(context, context_find(handle), stream);
        context_pop(driver);
    }
    capture_mode_restore(driver, relaxed, mode);
    return result == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_UNKNOWN : result;
}

/* As mark_free, inside the gate. */
static uint64_t record_free(struct context *context, CUstream stream)
{
    const struct real_driver *driver = context->driver;
    const unsigned int thread = stream == CU_STREAM_PER_THREAD ? order_thread_get() : 0;
    CUresult result = CUDA_SUCCESS;
    uint64_t freed, ended[POOL_PLACES];
    _Atomic(CUevent) *event;
    struct free_mark mark;

    event = free_streams_begin(&context->free_streams, stream, thread, &mark);
    if (!event) { /* entries are given back by a question, which nobody may have asked for long */
        (void)order_freed_async_ended(context, ended);
        event = free_streams_begin(&context->free_streams, stream, thread, &mark);
    }
    if (!event)
        return 0;
    if (!atomic_load(event))
        result = order_event_make(context, event);
    if (!result)
        result = driver->cuEventRecord(atomic_load(event), stream);
    freed = free_streams_end(&context->free_streams, &mark);
    return result ? 0 : freed;
}

/* Record an event behind the free. Not on the legacy stream beside a capture, which that would disturb, nor beside a
 * free in the driver, which would hold the record up. Without hooks in the driver a stream may end unseen. Returns the
 * number of the free for pool_free_async; 0: the event is not recorded. */
static uint64_t mark_free(struct context *context, CUstream stream)
{
    uint64_t freed;

    if (!process_hooks_driver() || !context->driver->cuEventRecord ||
        (stream == CU_STREAM_LEGACY && capture_active()) || !free_gate_enter(context))
        return 0;
    freed = record_free(context, stream);
    free_gate_leave(context);
    return freed;
}

CUresult context_wait_foreign(struct context *context, CUstream stream, uint64_t *ret_freed)
{
    bool is_own;
    const CUresult result = foreign_wait(context, stream, &is_own);

    *ret_freed = !result && is_own ? mark_free(context, stream) : 0;
    return result;
}
