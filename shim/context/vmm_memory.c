/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_memory.c - see vmm_memory.h.
 *
 * Locking: departures_lock guards the lists of departing segments and unused events of all contexts, and is never held
 * over a call of the driver.
 */
#include "context/vmm_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/log.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/device_free.h"
#include "context/enter.h"
#include "context/free_gate.h"
#include "context/free_order.h"
#include "context/nccl_memory.h"
#include "context/own_stream.h"
#include "context/vmm_create.h"
#include "context/vmm_map.h"
#include "context/wait_context.h"
#include "lock.h"

static struct lock departures_lock;

static CUresult get(struct context *context, CUdeviceptr *ret_addr, size_t size)
{
    struct vmm_mapping *mapping = NULL;
    size_t free, total;
    /* Virtual memory calls need no context, and would hide the error that the context has met. */
    CUresult result = context->driver->cuMemGetInfo_v2(&free, &total);

    if (!result)
        result = vmm_map(context, context->driver, context->device, nccl_front_needed(), size, &mapping);
    if (mapping)
        *ret_addr = mapping->addr;
    return result;
}

static void unmap(struct context *context, struct vmm_mapping *mapping)
{
    const unsigned long long addr = mapping->addr;
    const size_t size = mapping->size;
    const CUresult result = vmm_unmap(context->driver, mapping);

    if (result && result != CUDA_ERROR_DEINITIALIZED)
        log_once(LOG_WARN, "the driver did not take back %zu bytes at %#llx (error %d)", size, addr, (int)result);
}

/* An event of the context that was used before; NULL: none. */
static CUevent event_take(struct context *context)
{
    CUevent event = NULL;

    lock_take(&departures_lock);
    if (context->departures.events_unused)
        event = context->departures.events[--context->departures.events_unused];
    lock_give(&departures_lock);
    return event;
}

/* Without host memory for its entry, the event stays unused until its context ends. */
static void event_keep(struct context *context, CUevent event)
{
    struct departures *departures = &context->departures;
    CUevent *grown;

    lock_take(&departures_lock);
    if (departures->events_unused == departures->events_room) {
        grown = realloc(departures->events, (departures->events_room + 64) * sizeof(CUevent));
        departures->events = grown ? grown : departures->events;
        departures->events_room += grown ? 64 : 0;
    }
    if (departures->events_unused < departures->events_room)
        departures->events[departures->events_unused++] = event;
    lock_give(&departures_lock);
}

/* Put at the end, or at the front again. */
static void depart(struct context *context, struct vmm_mapping *mapping, bool again)
{
    struct departures *departures = &context->departures;

    lock_take(&departures_lock);
    mapping->next_put = again ? departures->first : NULL;
    if (departures->first && !again)
        departures->last->next_put = mapping;
    else
        departures->first = mapping;
    if (!mapping->next_put)
        departures->last = mapping;
    lock_give(&departures_lock);
}

/* Record the event that is over when the work ordered so far is. The stream waits for that work, and so does the event
 * recorded there; a query of the stream itself would call it idle. */
static CUresult event_record(struct context *context, CUevent *ret_event)
{
    const struct real_driver *driver = context->driver;
    CUstream stream = driver->cuEventRecord && driver->cuEventQuery ? own_stream(context) : NULL;
    CUevent event = stream ? event_take(context) : NULL;
    CUresult result = stream ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;

    if (!result && !event)
        result = driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    if (!result && (result = driver->cuEventRecord(event, stream)))
        event_keep(context, event);
    *ret_event = result ? NULL : event;
    return result;
}

static bool put(struct context *context, uint64_t addr, size_t size)
{
    struct vmm_mapping *mapping = vmm_find(addr);
    struct visit visit;
    CUresult result;

    if (mapping && mapping->away) { /* nothing uses it, and the driver has had its memory since then */
        unmap(context, mapping);
        device_free_less(context, size);
        return true;
    }
    if (!mapping || nccl_graph_keeps(mapping->captures))
        return true;
    mapping->event = NULL;
    result = context_enter(context, &visit);
    if (!result && free_gate_enter(context)) {
        result = event_record(context, &mapping->event);
        free_gate_leave(context);
    }
    context_leave(context, &visit);
    if (!result) {
        atomic_fetch_add(&context->departures.put, size);
        depart(context, mapping, /* again: */ false);
        return false;
    }
    if (order_wait(context))
        log_once(LOG_WARN, "%zu bytes at %#llx cannot be waited for, and go with their context", size,
                 (unsigned long long)addr);
    else
        unmap(context, mapping);
    return true;
}

static struct vmm_mapping *departing_take(struct context *context)
{
    struct departures *departures = &context->departures;
    struct vmm_mapping *mapping;

    lock_take(&departures_lock);
    mapping = departures->first;
    if (mapping)
        departures->first = mapping->next_put;
    lock_give(&departures_lock);
    return mapping;
}

/* Whether all work is over that may use the memory. A segment that was put while a free in the driver would have held
 * up the record has no event: it gets one after that free, unless all that frees have ordered is over before. */
static CUresult departing_ask(struct context *context, struct vmm_mapping *mapping)
{
    CUresult result = CUDA_SUCCESS;

    if (!mapping->event && order_is_over(context))
        return CUDA_SUCCESS;
    if (!mapping->event && !free_gate_enter(context))
        return CUDA_ERROR_NOT_READY;
    if (!mapping->event) {
        result = event_record(context, &mapping->event);
        free_gate_leave(context);
    }
    return result ? result : context_event_ask(context, mapping->event);
}

CUresult vmm_memory_collect(struct context *context, unsigned int most)
{
    struct vmm_mapping *mapping;
    CUresult result;
    size_t size;

    while ((mapping = departing_take(context))) {
        result = departing_ask(context, mapping);
        if (result) {
            depart(context, mapping, /* again: */ true);
            return result;
        }
        size = mapping->size;
        if (mapping->event)
            event_keep(context, mapping->event);
        unmap(context, mapping);
        atomic_fetch_add(&context->departures.gone, size);
        if (!--most)
            return CUDA_ERROR_NOT_READY;
    }
    return CUDA_SUCCESS;
}

void vmm_memory_ended(struct context *context)
{
    struct vmm_mapping *mapping;
    unsigned int i = 0;

    lock_take(&departures_lock);
    context->departures.first = NULL;
    context->departures.events_unused = 0; /* they went with the context */
    lock_give(&departures_lock);
    atomic_store(&context->departures.gone, atomic_load(&context->departures.put));
    while ((mapping = vmm_next(context, &i)))
        unmap(context, mapping);
}

static int find(void)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;

    if (!driver || driver->cuCtxGetDevice(&device) || capture_active_now())
        return -EAGAIN;
    if (vmm_supported(driver, device))
        return 0;
    log_write(LOG_WARN, "memory by virtual memory calls is not possible: the device or the driver has none");
    return -ENOTSUP;
}

const struct memory_source vmm_source = {.get = get, .put = put, .find = find};
