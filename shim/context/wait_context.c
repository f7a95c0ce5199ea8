/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait_context.c - see wait_context.h.
 *
 * Locking: slots of free_order.c, held while an event is recorded.
 */
#include "context/wait_context.h"

#include "base/log.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_order.h"
#include "context/registry.h"
#include "lock.h"

/* The longest wait for a capture, in nanoseconds. A capture of the calling thread itself would never end meanwhile. */
#define CAPTURE_WAIT_NS 1000000000
/* The shortest time for which an idle device is polled, in nanoseconds. A guess: the time that a device takes to report
 * that it is idle has not been measured. */
#define ASK_NS 100000

/*
 * Wait for the event of a slot, which covers the work before one free. limit: in nanoseconds of the monotonic clock; 0:
 * without limit, or one second once another batch has recorded the event again. True: the limit has passed.
 */
static bool slot_wait(const struct context *context, const struct slot *slot, uint64_t seq, uint64_t limit)
{
    CUevent event;

    /* Another thread may be about to record the event. */
    for (unsigned int i = 0; limit && slot_is_busy(slot) && now_ns() < limit; i++)
        lock_relax(i);
    event = atomic_load(&slot->event);
    for (unsigned int i = 0; event && context_event_ask(context, event) == CUDA_ERROR_NOT_READY; i++) {
        if (!limit && atomic_load(&slot->seq) != seq)
            limit = now_ns() + ORDER_OTHERS_WAIT_NS;
        if (limit && now_ns() >= limit)
            return true;
        if (!context_stays(context))
            break;
        lock_relax(i);
    }
    return false;
}

bool order_wait_until(struct context *context, uint64_t limit)
{
    const struct real_driver *driver = context->driver;
    const uint64_t second = now_ns() + CAPTURE_WAIT_NS, captured = limit < second ? limit : second;
    CUresult result = CUDA_ERROR_NOT_READY;
    CUevent event = NULL;
    struct visit visit;
    uint64_t least;
    struct slot *slot;
    bool capturing;

    if (!driver->cuCtxRecordEvent || !driver->cuEventQuery)
        return false;
    for (unsigned int i = 0;; i++) {
        slot = order_slot_take(context);
        capturing = capture_active_now();
        if (!capturing)
            result = order_record(context, slot, &event);
        /* A free may record the event again; the wait below then covers that, too. */
        order_slot_give(slot, CUDA_ERROR_NOT_READY);
        if (!capturing || now_ns() >= captured || !context_stays(context))
            break;
        lock_relax(i);
    }
    if (result || context_enter(context, &visit))
        return false;
    least = now_ns() + ASK_NS;
    limit = limit > least ? limit : least;
    for (unsigned int i = 0; (result = context_event_ask(context, event)) == CUDA_ERROR_NOT_READY && now_ns() < limit &&
                             context_stays(context);
         i++)
        lock_relax(i);
    context_leave(context, &visit);
    return result == CUDA_SUCCESS;
}

/* The entry of the thread that recorded this batch of the combiner, or the next later batch on record, which covers the
 * work before the earlier one as well. NULL: no such batch was recorded in this context. */
static const struct batch *batch_find(const struct context *context, uint64_t seq, uint64_t *ret_seq)
{
    const struct batch *found = NULL;

    for (unsigned int i = 0; i < SLOTS; i++) {
        const uint64_t at = atomic_load(&context->batches[i].seq);

        if (at >= seq && (!found || at < *ret_seq)) {
            found = &context->batches[i];
            *ret_seq = at;
        }
    }
    return found;
}

/*
 * Wait for the work before a batch of the combiner. limit: in nanoseconds of the monotonic clock; 0: without limit, or
 * one second if only a later batch's event is on record, which covers more work. True: the limit has passed.
 */
static bool batch_wait(const struct context *context, uint64_t seq, uint64_t limit)
{
    const struct batch *batch;
    uint64_t at = 0;

    for (unsigned int i = 0; (batch = batch_find(context, seq, &at)); i++) {
        if (context_event_ask(context, atomic_load(&batch->event)) != CUDA_ERROR_NOT_READY)
            break;
        if (!limit && at != seq)
            limit = now_ns() + ORDER_OTHERS_WAIT_NS;
        if (limit && now_ns() >= limit)
            return true;
        if (!context_stays(context))
            break;
        lock_relax(i);
    }
    return false;
}

/* others_limit: for frees of other threads, in nanoseconds of the monotonic clock; 0: they are not waited for. True:
 * the limit, or that of a wait for this thread's own, has passed. */
static bool slots_wait(struct context *context, uint64_t others_limit)
{
    const struct slot *combiner = &context->slots[SLOT_COMBINER];
    const uint64_t own = order_batch_own(context);
    const unsigned int thread = order_thread();
    bool late = false;

    if (!context->driver->cuEventQuery)
        return false;
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *slot = &context->slots[i];
        const uint64_t seq = atomic_load(&slot->seq);
        const bool is_own = thread && !(seq & 1) && atomic_load(&slot->user) == thread;

        if (is_own || others_limit)
            late |= slot_wait(context, slot, seq, is_own ? 0 : others_limit);
    }
    if (own) {
        batch_wait(context, own, 0);
        order_batch_own_set(context, 0); /* otherwise the thread would wait again */
    }
    if (!others_limit)
        return late;
    for (unsigned int i = 0; slot_is_busy(combiner) && now_ns() < others_limit; i++)
        lock_relax(i);
    if (atomic_load(&combiner->done)) /* the last batch covers all earlier ones */
        late |= batch_wait(context, atomic_load(&combiner->done), others_limit);
    return late;
}

bool order_is_over(const struct context *context)
{
    CUevent event;

    for (unsigned int i = 0; i < SLOTS_ALL + SLOTS; i++) {
        event = atomic_load(i < SLOTS_ALL ? &context->slots[i].event : &context->batches[i - SLOTS_ALL].event);
        if (event && context_event_ask(context, event) != CUDA_SUCCESS)
            return false;
    }
    return true;
}

bool order_is_own(const struct context *context)
{
    const unsigned int last = atomic_load(&context->slots[SLOT_COMBINER].user);

    return !last || last == order_thread();
}

bool order_wait_own(struct context *context)
{
    struct visit visit;

    if (!context_enter(context, &visit))
        (void)slots_wait(context, /* others_limit: */ 0);
    context_leave(context, &visit);
    return order_is_own(context);
}

/* True if this thread has ordered a free in the context that it has not waited for. Asked without a pin: entries stay,
 * and an earlier context's events have gone from the entry. */
static bool has_own(const struct context *context)
{
    const unsigned int thread = order_thread();
    bool found = order_batch_own(context);

    for (int i = 0; thread && !found && i < SLOTS; i++)
        found = atomic_load(&context->slots[i].user) == thread && atomic_load(&context->slots[i].event);
    return found;
}

bool context_wait_frees_until(int device, uint64_t others_limit, bool *ret_late)
{
    struct visit visit;
    bool any = false;

    *ret_late = false;
    for (unsigned int i = 0; i < atomic_load(&contexts.count); i++) {
        struct context *context = atomic_load(&contexts.entries[i]);

        if (!atomic_load(&context->handle) || !atomic_load(&context->pool) ||
            (device != CONTEXT_ALL && context->device != device))
            continue;
        any = true;
        if (!(others_limit || has_own(context)) || !context_pin_staying_once(context))
            continue;
        /* Entered, so that the queries disturb no capture. */
        if (!context_enter(context, &visit) && slots_wait(context, others_limit)) {
            *ret_late = true;
            if (others_limit) /* the caller goes on, because that work may wait for this thread */
                log_once(LOG_WARN, "the work before another thread's cudaFree has not ended within a second: memory "
                                   "that it uses may be taken or written meanwhile; CUPOOL_FREE=strict makes "
                                   "cudaFree wait");
        }
        context_leave(context, &visit);
        context_unpin(context);
    }
    return any;
}

bool context_wait_frees(int device, bool others)
{
    bool late;

    return context_wait_frees_until(device, others ? now_ns() + ORDER_OTHERS_WAIT_NS : 0, &late);
}
