/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_order.c - puts the frees of a context in order: every free waits for earlier work, on the device or on the host.
 * See free_order.h and context_state.h. free_policy.c decides whether a free waits on the host.
 *
 * Flat combining: the thread that holds the slot SLOT_COMBINER, the combiner, orders the frees of all threads that came
 * before its batch began. The other threads wait for it for a short while and then take a slot of their own.
 *
 * Locking: slots, taken with an atomic operation and held over the CUDA calls of one free. A thread never waits for a
 * slot that it holds itself, and it waits for the combiner's slot only for COMBINER_WAIT_NS.
 */
#include "context/free_order.h"

#include <errno.h>

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/capture_wait.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_gate.h"
#include "context/pins.h"
#include "context/registry.h"
#include "lock.h"

/* A free polls the combiner COMBINER_POLLS times, and then for COMBINER_WAIT_NS nanoseconds more. */
#define COMBINER_POLLS   100u
#define COMBINER_WAIT_NS 200000u

/* The index from which this thread searches for a free slot; 0: the thread has had no slot yet. */
static __thread unsigned int thread_slot __attribute__((tls_model("initial-exec")));
static atomic_uint threads_seen;

static inline unsigned int thread_slot_get(void)
{
    if (!thread_slot)
        thread_slot = atomic_fetch_add_explicit(&threads_seen, 1, memory_order_relaxed) + 1;
    return thread_slot;
}

static inline bool slot_try(struct slot *slot)
{
    uint64_t seq = atomic_load_explicit(&slot->seq, memory_order_relaxed);

    return !(seq & 1) && atomic_compare_exchange_strong(&slot->seq, &seq, seq + 1);
}

struct slot *order_slot_take(struct context *context)
{
    for (unsigned int i = 0;; i++) {
        struct slot *slot = &context->slots[(thread_slot_get() + i) % SLOTS];

        if (slot_try(slot)) {
            atomic_store_explicit(&slot->user, 0, memory_order_relaxed);
            return slot;
        }
        if (i % SLOTS == 0)
            lock_relax(i / SLOTS);
    }
}

void order_slot_give(struct slot *slot, CUresult result)
{
    const uint64_t seq = atomic_load_explicit(&slot->seq, memory_order_relaxed);

    if (!result)
        atomic_store_explicit(&slot->done, seq, memory_order_release);
    atomic_store_explicit(&slot->seq, seq + 1, memory_order_release);
}

/* Record that the combiner's batch ordered this thread's last free. 0: the thread need not wait for that batch any
 * more. */
static inline void batch_own_set(struct context *context, uint64_t seq)
{
    struct batch *batch = &context->batches[thread_slot_get() % SLOTS];

    atomic_store_explicit(&batch->own_seq, (uint64_t)thread_slot << BATCH_SEQ_BITS | (seq & BATCH_SEQ_MASK),
                          memory_order_relaxed);
}

/* The combiner's batch that ordered this thread's last free. 0: there is nothing to wait for, or another thread has
 * overwritten the entry. */
static uint64_t batch_own(const struct context *context)
{
    const uint64_t last = atomic_load(&context->batches[thread_slot % SLOTS].own_seq);
    const uint64_t now = atomic_load(&context->slots[SLOT_COMBINER].seq), seq = last & BATCH_SEQ_MASK;

    if (!seq || last >> BATCH_SEQ_BITS != (thread_slot & (UINT64_MAX >> BATCH_SEQ_BITS)))
        return 0;
    return now - ((now - seq) & BATCH_SEQ_MASK); /* the last one that ends in these bits */
}

/* Wait for a short while until the combiner has ordered all work up to now (true), or until its slot can be taken
 * (*ret_combines). */
static bool combiner_wait(struct context *context, bool *ret_combines)
{
    struct slot *combiner = &context->slots[SLOT_COMBINER];
    uint64_t seen, limit = 0, done;

    *ret_combines = false;
    /* This thread's launches, and the reason why it may have to wait on the host, must be visible before it reads the
     * sequence number. The batch under way may have begun before that, so only the batch after it counts. */
    atomic_thread_fence(memory_order_seq_cst);
    seen = atomic_load(&combiner->seq);
    for (unsigned int i = 0; i < COMBINER_POLLS || now_ns() < limit; i++) {
        lock_relax(i);
        done = atomic_load_explicit(&combiner->done, memory_order_acquire);
        if (done >= seen + 1 + (seen & 1)) {
            batch_own_set(context, done);
            return true;
        }
        *ret_combines = slot_try(combiner);
        if (*ret_combines)
            return false;
        if (i == COMBINER_POLLS - 1)
            limit = now_ns() + COMBINER_WAIT_NS;
    }
    return false;
}

/*
 * The driver's calls take many times as long when several threads make them at once, so one thread at a time, the
 * combiner, orders for all threads that came before its batch began. Returns NULL if the combiner has ordered this
 * thread's free, the combiner's slot if this thread is the combiner, and, if the combiner stalls, another slot in which
 * the thread orders its own free.
 */
static struct slot *slot_combine(struct context *context)
{
    struct slot *combiner = &context->slots[SLOT_COMBINER];
    bool combines = slot_try(combiner);

    if (!combines && combiner_wait(context, &combines))
        return NULL;
    if (!combines)
        return order_slot_take(context);
#if !defined(__x86_64__)
    atomic_thread_fence(memory_order_seq_cst); /* on x86-64 the exchange in slot_try is this fence: see combiner_wait */
#endif
    return combiner;
}

CUresult order_event_make(struct context *context, _Atomic(CUevent) *ret_event)
{
    CUevent event = NULL;
    struct visit visit;
    CUresult result = context_enter(context, &visit);

    if (!result)
        result = context->driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    context_leave(context, &visit);
    if (!result)
        atomic_store(ret_event, event);
    return result;
}

/* Record an event behind all work launched in the context so far. The caller holds the slot. */
static inline __attribute__((always_inline)) CUresult record(struct context *context, struct slot *slot,
                                                             CUevent *ret_event)
{
    _Atomic(CUevent) *event_at = &slot->event;
    CUresult result = CUDA_SUCCESS;
    struct batch *batch = NULL;

    if (slot == &context->slots[SLOT_COMBINER]) {
        batch = &context->batches[thread_slot_get() % SLOTS];
        event_at = &batch->event;
    }
    if (!atomic_load_explicit(event_at, memory_order_relaxed))
        result = order_event_make(context, event_at);
    *ret_event = atomic_load_explicit(event_at, memory_order_relaxed);
    if (!result)
        result = context->driver->cuCtxRecordEvent(context_handle(context), *ret_event);
    /* After the record: a thread that waits for an earlier batch must find that batch, or a later event that covers
     * it. */
    if (!result && batch)
        atomic_store_explicit(&batch->seq, atomic_load_explicit(&slot->seq, memory_order_relaxed),
                              memory_order_release);
    return result;
}

/*
 * Make the device wait: work launched in the context from now on starts when all earlier work has ended. Where the
 * device's order is not enough (!is_enough), nothing waits: CUDA_ERROR_NOT_READY unless all work has ended already.
 */
static CUresult order_on_device(struct context *context, struct slot *slot, bool is_enough)
{
    const struct real_driver *driver = context->driver;
    CUevent event;
    CUresult result = record(context, slot, &event);

    if (!result)
        result = is_enough ? driver->cuCtxWaitEvent(context_handle(context), event) : driver->cuEventQuery(event);
    return result;
}

/* Wait on the host, as the driver's own cudaFree does. The caller holds a slot of the context, and capture_begin waits
 * for held slots: during a capture this wait would invalidate the capture. */
static CUresult order_on_host(struct context *context)
{
    struct visit visit;
    CUresult result = context_enter(context, &visit);

    pin_sleep(context);
    if (!result && (result = context->driver->cuCtxSynchronize()) != CUDA_SUCCESS) /* tried again, as in enter.c */
        result = context->driver->cuCtxSynchronize();
    pin_wake();
    context_leave(context, &visit);
    return result;
}

bool order_is_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
        return true;
    default:
        return false;
    }
}

void order_failed(struct context *context, CUresult result)
{
    /* The pool may be destroyed at this moment, but its descriptor stays mapped. */
    struct pool *pool = atomic_load(&context->pool);

    if (order_is_sticky(result) && !atomic_exchange(&context->failed, true)) {
        context_changed();
        if (pool)
            pool_defer_never(pool);
    }
}

/* As order_on_host, with slot->waits set, so that capture_begin does not wait for this slot without limit. */
static CUresult order_on_host_in(struct slot *slot, struct context *context)
{
    CUresult result;

    atomic_store(&slot->waits, true);
    result = order_on_host(context);
    atomic_store(&slot->waits, false);
    return result;
}

CUresult order_wait(struct context *context)
{
    struct slot *slot = order_slot_take(context);
    /* The slot is held, so a capture that begins after this check waits for it. */
    const bool beside_capture = capture_active_now();
    CUresult result = beside_capture ? CUDA_ERROR_NOT_READY : order_on_host_in(slot, context);

    order_slot_give(slot, result);
    if (beside_capture && context->driver->cuThreadExchangeStreamCaptureMode)
        result = capture_wait(context);
    order_failed(context, result);
    return result;
}

static bool is_capture_error(CUresult result)
{
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/*
 * The thread of the last order, for order_is_own. An order in another slot than the combiner's, and a wait on the host,
 * end with their own entry only if no other thread has ordered since they began: they need not cover that order.
 */
static unsigned int user_begin(struct context *context)
{
    const unsigned int mark = thread_slot | SLOT_USER_UNDER_WAY;

    atomic_store(&context->slots[SLOT_COMBINER].user, mark);
    return mark;
}

static void user_end(struct context *context, unsigned int mark, unsigned int user)
{
    atomic_compare_exchange_strong(&context->slots[SLOT_COMBINER].user, &mark, user);
}

/* The part of order_free on the device. */
static CUresult order_free_on_device(struct context *context, struct slot *slot)
{
    struct slot *const combiner = &context->slots[SLOT_COMBINER];
    const unsigned int mark = slot == combiner ? 0 : user_begin(context);
    const CUresult result = order_on_device(context, slot, /* is_enough: */ true);

    if (result)
        return result;
    if (slot == combiner)
        batch_own_set(context, atomic_load_explicit(&combiner->seq, memory_order_relaxed));
    else
        user_end(context, mark, thread_slot);
    atomic_store_explicit(&slot->user, thread_slot, memory_order_relaxed);
    return CUDA_SUCCESS;
}

/* The part of order_free on the host. */
static CUresult order_free_on_host(struct context *context, struct slot *slot)
{
    const unsigned int mark = user_begin(context);
    const CUresult result = order_on_host_in(slot, context);

    if (!result) {
        batch_own_set(context, 0);
        user_end(context, mark, 0);
    }
    return result;
}

/*
 * Order a free. The slot is taken before the policy and the gate are read: policy_strict waits for the events that
 * slots have recorded, and capture_begin closes the gate first and then waits for the slots. *ret_seq stays as it is if
 * another thread has ordered the free.
 */
static CUresult order_free(struct context *context, uint64_t *ret_seq)
{
    struct slot *const combiner = &context->slots[SLOT_COMBINER], *slot;
    CUresult result = CUDA_ERROR_NOT_READY;
    bool wait, beside_capture;

    if (capture_active()) /* a capture may have ended unseen; the driver is asked before the slot is taken */
        capture_active_now();
    if (!(slot = slot_combine(context)))
        return CUDA_SUCCESS;
    beside_capture = capture_active();
    /* Beside a capture the device cannot be made to wait, so the host does, as natively: the memory may be needed
     * before the capture ends. */
    wait = policy_waits(&context->policy, ret_seq) || beside_capture;
    if (!wait) {
        result = order_free_on_device(context, slot);
        /* If the device cannot be made to wait, the host waits. */
        wait = result && !is_capture_error(result) && !order_is_sticky(result);
    }
    /* Other threads must not poll the combiner's slot, or have to wait for it, during a wait on the host. */
    if (wait && slot == combiner) {
        order_slot_give(slot, CUDA_ERROR_NOT_READY);
        slot = order_slot_take(context);
        beside_capture = capture_active();
    }
    if (wait)
        result = beside_capture ? CUDA_ERROR_NOT_READY : order_free_on_host(context, slot);
    order_slot_give(slot, result);
    /* This disturbs no capture, so it runs without the slot, and no capture has to wait for it. */
    if (beside_capture && wait && context->driver->cuThreadExchangeStreamCaptureMode)
        result = capture_wait(context);
    if (wait && !result)
        policy_waited_add(&context->policy);
    return result;
}

/* As order_on_device, but not beside a free in the driver, which would hold the calls up: CUDA_ERROR_NOT_READY. */
static CUresult order_unheld(struct context *context, struct slot *slot, bool is_enough)
{
    CUresult result = CUDA_ERROR_NOT_READY;

    if (free_gate_enter(context)) {
        result = order_on_device(context, slot, is_enough);
        free_gate_leave(context);
    } else {
        pin_left_out();
    }
    return result;
}

/*
 * Publish without a free: this must not delay the host or the device behind work launched since the frees, so it only
 * asks whether all work has ended. CUDA_ERROR_NOT_READY: it has not, or order_unheld does not ask.
 */
static CUresult order_ask(struct context *context)
{
    struct slot *slot = &context->slots[SLOT_ASK];
    CUresult result;

    if (!context->driver->cuCtxRecordEvent || !context->driver->cuEventQuery || !slot_try(slot))
        return CUDA_ERROR_NOT_READY;
    result = capture_active() ? CUDA_ERROR_NOT_READY : order_unheld(context, slot, /* is_enough: */ false);
    order_slot_give(slot, result);
    return result;
}

/*
 * Order deferred frees on the device; is_own: this thread made them all. Where the device's order is not enough,
 * nothing waits: CUDA_ERROR_NOT_READY unless all work has ended already. A driver that has no such order cannot be
 * asked either: it is waited for at this thread's own frees, since what cudaFreeAsync has freed would never serve
 * again.
 */
static CUresult order_device(struct context *context, bool is_own)
{
    const struct real_driver *driver = context->driver;
    CUresult result = CUDA_ERROR_NOT_READY;
    struct slot *slot;
    uint64_t seq;

    if (!driver->cuCtxRecordEvent || !driver->cuCtxWaitEvent || !driver->cuEventQuery)
        return is_own ? order_wait(context) : result;
    slot = order_slot_take(context);
    if (!capture_active())
        result = (pin_hurries() ? order_unheld : order_on_device)(context, slot, !policy_waits(&context->policy, &seq));
    if (!result) /* see order_wait_own */
        atomic_store(&context->slots[SLOT_COMBINER].user, is_own ? thread_slot : SLOT_USER_OTHERS);
    order_slot_give(slot, result);
    return is_own && result == CUDA_ERROR_NOT_SUPPORTED ? order_wait(context) : result;
}

/* Table function: see pool_order_ops.freed_async_ended. */
bool order_freed_async_ended(void *arg, uint64_t ret_ended[POOL_PLACES])
{
    struct context *context = arg;
    struct visit visit;
    bool asks;

    /* The thread is in relaxed mode, so a capture elsewhere is not disturbed. */
    asks = !context_enter(context, &visit) && context->driver->cuEventQuery && (visit.relaxed || !capture_active());
    if (asks)
        free_streams_ask(&context->free_streams, context->driver, ret_ended);
    context_leave(context, &visit);
    return asks;
}

/* Inside a host function (cuLaunchHostFunc) the driver refuses every call. The program gets that error, and nothing is
 * freed. */
static bool is_refused(const struct context *context, CUresult result)
{
    CUcontext ignored;

    return result == CUDA_ERROR_NOT_PERMITTED && context->driver->cuCtxGetCurrent(&ignored) == CUDA_ERROR_NOT_PERMITTED;
}

int order_pool(void *arg, enum pool_order_how how)
{
    struct context *context = arg;
    uint64_t seq = 0;
    const CUresult result = how == POOL_ORDER_FREE  ? order_free(context, &seq)
                            : how == POOL_ORDER_ASK ? order_ask(context)
                                                    : order_device(context, how == POOL_ORDER_OWN);

    if (!result)
        policy_synced(&context->policy, seq);
    if (result == CUDA_ERROR_NOT_READY)
        return -EBUSY;
    if (is_capture_error(result)) {
        log_once(LOG_WARN, "a stream capture that cupool did not see begin was disturbed by a free");
        return -EBUSY;
    }
    if (result) {
        log_once(LOG_INFO, "a free could not be ordered (error %d)", (int)result);
        order_failed(context, result);
        return order_is_sticky(result) || is_refused(context, result) ? -ENOTRECOVERABLE : -EIO;
    }
    return 0;
}

bool order_frozen(void *arg)
{
    return capture_active_now();
}

const struct pool_order_ops order_ops = {
    .order = order_pool, .frozen = order_frozen, .freed_async_ended = order_freed_async_ended};

unsigned int order_thread(void)
{
    return thread_slot;
}

unsigned int order_thread_get(void)
{
    return thread_slot_get();
}

uint64_t order_batch_own(const struct context *context)
{
    return batch_own(context);
}

void order_batch_own_set(struct context *context, uint64_t seq)
{
    batch_own_set(context, seq);
}

CUresult order_record(struct context *context, struct slot *slot, CUevent *ret_event)
{
    return record(context, slot, ret_event);
}
