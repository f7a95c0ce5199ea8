/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - puts the frees of a context in order: every free waits for earlier work, on the device or on the host. See
 * context.h and state.h. policy.c decides whether a free waits on the host.
 *
 * Flat combining: the thread that holds the slot SLOT_LEAD, the combiner, orders the frees of all threads that came
 * before its turn began. The other threads wait for it for a short while and then take a slot of their own.
 *
 * Locking: slots, taken with an atomic operation and held over the CUDA calls of one free. A thread never waits for a
 * slot that it holds itself, and it waits for the combiner's slot only for FOLLOW_NS.
 */
#include <errno.h>

#include "base/conf.h"
#include "base/log.h"
#include "clock.h"
#include "context/capture.h"
#include "context/pins.h"
#include "context/state.h"
#include "lock.h"

/* The longest wait for the frees of other threads, in nanoseconds; see context_wait_frees. */
#define OTHERS_WAIT_NS 1000000000
/* The longest wait for a capture, in nanoseconds. A capture of the calling thread itself would never end meanwhile. */
#define CAPTURE_WAIT_NS 1000000000
/* The shortest time for which an idle device is polled, in nanoseconds. A guess: the time that a device takes to report
 * that it is idle has not been measured. */
#define ASK_NS 100000

/* A free polls the combiner LOOKS times, and then for FOLLOW_NS nanoseconds more. */
#define LOOKS     100u
#define FOLLOW_NS 200000u

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
    uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_relaxed);

    return !(turn & 1) && atomic_compare_exchange_strong(&slot->turn, &turn, turn + 1);
}

static struct slot *slot_acquire(struct context *context)
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

static void slot_release(struct slot *slot, CUresult result)
{
    const uint64_t turn = atomic_load_explicit(&slot->turn, memory_order_relaxed);

    if (!result)
        atomic_store_explicit(&slot->done, turn, memory_order_release);
    atomic_store_explicit(&slot->turn, turn + 1, memory_order_release);
}

/* Record that the combiner's turn ordered this thread's last free. 0: the thread need not wait for that turn any
 * more. */
static inline void note(struct context *context, uint64_t turn)
{
    struct led *led = &context->led[thread_slot_get() % SLOTS];

    atomic_store_explicit(&led->noted, (uint64_t)thread_slot << LED_TURN_BITS | turn, memory_order_relaxed);
}

/* The combiner's turn that ordered this thread's last free. 0: there is nothing to wait for, or another thread has
 * overwritten the entry. */
static uint64_t noted(const struct context *context)
{
    const uint64_t last = atomic_load(&context->led[thread_slot % SLOTS].noted);

    return last >> LED_TURN_BITS == thread_slot ? last & (((uint64_t)1 << LED_TURN_BITS) - 1) : 0;
}

/* Wait for a short while until the combiner has ordered all work up to now (true), or until its slot can be taken
 * (*ret_leads). */
static bool follow(struct context *context, bool *ret_leads)
{
    struct slot *lead = &context->slots[SLOT_LEAD];
    uint64_t seen, limit = 0, done;

    *ret_leads = false;
    /* This thread's launches, and the reason why it may have to wait on the host, must be visible before it reads the
     * turn. The turn under way may have begun before that, so only the turn after it counts. */
    atomic_thread_fence(memory_order_seq_cst);
    seen = atomic_load(&lead->turn);
    for (unsigned int i = 0; i < LOOKS || now_ns() < limit; i++) {
        lock_relax(i);
        done = atomic_load_explicit(&lead->done, memory_order_acquire);
        if (done >= seen + 1 + (seen & 1)) {
            note(context, done);
            return true;
        }
        *ret_leads = slot_try(lead);
        if (*ret_leads)
            return false;
        if (i == LOOKS - 1)
            limit = now_ns() + FOLLOW_NS;
    }
    return false;
}

/*
 * The driver's calls take many times as long when several threads make them at once, so one thread at a time, the
 * combiner, orders for all threads that came before its turn began. Returns NULL if the combiner has ordered this
 * thread's free, the lead slot if this thread is the combiner, and, if the combiner stalls, another slot in which the
 * thread orders its own free.
 */
static struct slot *slot_lead(struct context *context)
{
    struct slot *lead = &context->slots[SLOT_LEAD];
    bool leads = slot_try(lead);

    if (!leads && follow(context, &leads))
        return NULL;
    if (!leads)
        return slot_acquire(context);
#if !defined(__x86_64__)
    atomic_thread_fence(memory_order_seq_cst); /* on x86-64 the exchange in slot_try is this fence: see follow */
#endif
    return lead;
}

/* See state.h. The thread switches to relaxed capture mode, in which its calls disturb no capture. */
CUresult context_enter(const struct context *context, struct visit *visit)
{
    const struct real_driver *driver = context->driver;
    const CUcontext handle = atomic_load_explicit(&context->handle, memory_order_relaxed);
    CUcontext current = NULL;
    CUresult result = driver->cuCtxGetCurrent(&current);

    *visit = (struct visit){.mode = CU_STREAM_CAPTURE_MODE_RELAXED};
    if (!result && current != handle) {
        result = driver->cuCtxPushCurrent_v2(handle);
        visit->pushed = result == CUDA_SUCCESS;
    }
    visit->relaxed = !result && driver->cuThreadExchangeStreamCaptureMode &&
                     driver->cuThreadExchangeStreamCaptureMode(&visit->mode) == CUDA_SUCCESS;
    return result;
}

void context_leave(const struct context *context, struct visit *visit)
{
    CUcontext ignored;

    if (visit->relaxed)
        context->driver->cuThreadExchangeStreamCaptureMode(&visit->mode);
    /* Tried again if it fails: the program's calls must not end up in another context. */
    if (visit->pushed && context->driver->cuCtxPopCurrent_v2(&ignored))
        context->driver->cuCtxPopCurrent_v2(&ignored);
}

static CUresult event_make(struct context *context, _Atomic(CUevent) *ret_event)
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
    struct led *led = slot == &context->slots[SLOT_LEAD] ? &context->led[thread_slot_get() % SLOTS] : NULL;
    _Atomic(CUevent) *place = led ? &led->event : &slot->event;
    CUresult result = CUDA_SUCCESS;

    if (!atomic_load_explicit(place, memory_order_relaxed))
        result = event_make(context, place);
    *ret_event = atomic_load_explicit(place, memory_order_relaxed);
    if (!result)
        result = context->driver->cuCtxRecordEvent(context_handle(context), *ret_event);
    /* After the record: a thread that waits for an earlier turn must find that turn, or a later event that covers
     * it. */
    if (!result && led)
        atomic_store_explicit(&led->turn, atomic_load_explicit(&slot->turn, memory_order_relaxed),
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

    call_sleep(context);
    if (!result)
        result = context->driver->cuCtxSynchronize();
    call_wake();
    context_leave(context, &visit);
    return result;
}

/* Errors that a context never recovers from: natively every later call returns them. */
static bool is_sticky(CUresult result)
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
        return true;
    default:
        return false;
    }
}

/* After a sticky error, requests go to the driver, which returns its error. */
static void fail(struct context *context, CUresult result)
{
    /* The pool may be destroyed at this moment, but its descriptor stays mapped. */
    struct pool *pool = atomic_load(&context->pool);

    if (is_sticky(result) && !atomic_exchange(&context->failed, true)) {
        context_changed();
        if (pool)
            pool_defer_never(pool);
    }
}

/*
 * Wait on the host while a stream captures. cuCtxSynchronize would invalidate the capture; a cuMemFree by a thread in
 * relaxed mode does not, and it waits for the device as well.
 */
static CUresult order_beside_capture(struct context *context)
{
    struct visit visit;
    CUdeviceptr ptr = 0;
    CUresult result = context_enter(context, &visit);

    if (!result)
        result = context->driver->cuMemAlloc_v2(&ptr, 1);
    call_sleep(context);
    if (!result)
        result = context->driver->cuMemFree_v2(ptr);
    call_wake();
    if (result && ptr) /* tried again, so that the byte is not leaked */
        context->driver->cuMemFree_v2(ptr);
    if (!visit.relaxed) /* in another mode the call may have invalidated the capture */
        result = result ? result : CUDA_ERROR_NOT_SUPPORTED;
    context_leave(context, &visit);
    return result;
}

/* As order_on_host, with slot->waits set, so that context_settle does not wait for this slot without limit. */
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
    struct slot *slot = slot_acquire(context);
    /* The slot is held, so a capture that begins after this check waits for it. */
    const bool beside_capture = capture_active_now();
    CUresult result = beside_capture ? CUDA_ERROR_NOT_READY : order_on_host_in(slot, context);

    slot_release(slot, result);
    if (beside_capture && context->driver->cuThreadExchangeStreamCaptureMode)
        result = order_beside_capture(context);
    fail(context, result);
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

static bool is_capture_error(CUresult result)
{
    return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

/*
 * Order a free. The slot is taken before the policy and the gate are read: policy_strict waits for the events that
 * slots have recorded, and capture_begin closes the gate first and then waits for the slots.
 */
static CUresult order_free(struct context *context, uint64_t *ret_debts)
{
    struct slot *const lead = &context->slots[SLOT_LEAD], *slot = slot_lead(context);
    CUresult result = CUDA_ERROR_NOT_READY;
    bool wait, beside_capture;

    *ret_debts = 0;
    if (!slot)
        return CUDA_SUCCESS;
    wait = policy_waits(&context->policy, ret_debts);
    beside_capture = capture_active();
    if (!beside_capture && !wait) {
        result = order_on_device(context, slot, /* is_enough: */ true);
        *ret_debts = 0;
        if (!result && slot == lead)
            note(context, atomic_load_explicit(&lead->turn, memory_order_relaxed));
        if (!result)
            atomic_store_explicit(&slot->user, thread_slot, memory_order_relaxed);
        /* If the device cannot be made to wait, the host waits. */
        wait = result && !is_capture_error(result) && !is_sticky(result);
    }
    /* Other threads must not poll the lead slot, or have to follow it, during a wait on the host. */
    if (wait && slot == lead) {
        slot_release(slot, CUDA_ERROR_NOT_READY);
        slot = slot_acquire(context);
        beside_capture = capture_active();
    }
    if (wait)
        result = beside_capture ? CUDA_ERROR_NOT_READY : order_on_host_in(slot, context);
    if (wait && !result) {
        note(context, 0);
        atomic_store(&lead->user, 0); /* all orders of other threads have completed, too */
    }
    slot_release(slot, result);
    /* This disturbs no capture, so it runs without the slot, and no capture has to wait for it. */
    if (beside_capture && wait && context->driver->cuThreadExchangeStreamCaptureMode)
        result = order_beside_capture(context);
    return result;
}

/*
 * Publish without a free: this must not delay the host or the device behind work launched since the frees, so it only
 * asks whether all work has ended. CUDA_ERROR_NOT_READY: it has not.
 */
static CUresult order_ask(struct context *context)
{
    struct slot *slot = &context->slots[SLOT_ASK];
    CUresult result = CUDA_ERROR_NOT_READY;

    if (!context->driver->cuCtxRecordEvent || !context->driver->cuEventQuery || !slot_try(slot))
        return result;
    if (!capture_active())
        result = order_on_device(context, slot, /* is_enough: */ false);
    slot_release(slot, result);
    return result;
}

/* Order on the device. Where that is not enough, nothing waits: CUDA_ERROR_NOT_READY unless all work has ended
 * already. */
static CUresult order_device(struct context *context)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    struct slot *slot;
    uint64_t debts;

    if (!context->driver->cuCtxRecordEvent || !context->driver->cuCtxWaitEvent || !context->driver->cuEventQuery)
        return result;
    slot = slot_acquire(context);
    if (!capture_active())
        result = order_on_device(context, slot, !policy_waits(&context->policy, &debts));
    slot_release(slot, result);
    return result;
}

/* Inside a host function (cuLaunchHostFunc) the driver refuses every call. The program gets that error, and nothing is
 * freed. */
static bool is_refused(const struct context *context, CUresult result)
{
    CUcontext ignored;

    return result == CUDA_ERROR_NOT_PERMITTED && context->driver->cuCtxGetCurrent(&ignored) == CUDA_ERROR_NOT_PERMITTED;
}

static int context_order(void *arg, enum pool_order_how how)
{
    struct context *context = arg;
    uint64_t debts = 0;
    const CUresult result = how == POOL_ORDER_FREE  ? order_free(context, &debts)
                            : how == POOL_ORDER_ASK ? order_ask(context)
                                                    : order_device(context);

    if (!result)
        policy_pay(&context->policy, debts);
    if (result == CUDA_ERROR_NOT_READY)
        return -EBUSY;
    if (is_capture_error(result)) {
        log_once(LOG_WARN, "a stream capture that cupool did not see begin was disturbed by a free");
        return -EBUSY;
    }
    if (result) {
        log_once(LOG_INFO, "a free could not be ordered (error %d)", (int)result);
        fail(context, result);
        return is_sticky(result) || is_refused(context, result) ? -ENOTRECOVERABLE : -EIO;
    }
    return 0;
}

static bool context_frozen(void *arg)
{
    return capture_active_now();
}

/* Make later work of the context run behind the work on our own stream. Where the device's order is not enough (a
 * strict policy), the host waits for the stream, and with it for all that the stream waits for. */
static CUresult order_behind_stream(struct context *context, struct slot *slot)
{
    const struct real_driver *driver = context->driver;
    const CUstream stream = atomic_load(&context->stream);
    const bool waits = policy_is_strict(&context->policy) || !driver->cuEventRecord || !driver->cuCtxWaitEvent;
    CUresult result = atomic_load(&slot->event) ? CUDA_SUCCESS : event_make(context, &slot->event);
    struct visit visit;

    if (result)
        return result;
    result = context_enter(context, &visit);
    call_sleep(context);
    if (!result)
        result = waits ? driver->cuStreamSynchronize(stream) : driver->cuEventRecord(atomic_load(&slot->event), stream);
    call_wake();
    context_leave(context, &visit);
    if (!result && !waits)
        result = driver->cuCtxWaitEvent(context_handle(context), atomic_load(&slot->event));
    return result;
}

static int context_filled(void *arg)
{
    struct context *context = arg;
    struct slot *slot = slot_acquire(context);
    const CUresult result = capture_active() ? CUDA_ERROR_NOT_READY : order_behind_stream(context, slot);

    /* CUDA_ERROR_NOT_READY, because this orders the fills only: the slot's turn must not count as done. */
    slot_release(slot, CUDA_ERROR_NOT_READY);
    if (result && result != CUDA_ERROR_NOT_READY)
        log_once(LOG_WARN, "filled memory could not be put in order (error %d); it is kept back", (int)result);
    return result ? -EBUSY : 0;
}

const struct pool_order_ops order_ops = {.order = context_order, .frozen = context_frozen};
const struct pool_order_ops order_filling_ops = {
    .order = context_order, .fill = memory_fill, .filled = context_filled, .frozen = context_frozen};

/*
 * Wait until no call is in flight that would disturb a capture. Every call reads the gate when it begins, so a call
 * that has waited on the host for long (slot->waits) disturbs no capture, and it may be waiting for work that the
 * caller launches after its capture has begun: wait for such calls only until *limit, which the first of them sets.
 */
static void settle(const struct context *context, uint64_t *limit)
{
    for (int i = 0; i < SLOTS_ALL; i++) {
        const struct slot *slot = &context->slots[i];

        for (unsigned int j = 0; slot_is_busy(slot); j++) {
            if (atomic_load(&slot->waits)) {
                *limit = *limit ? *limit : now_ns() + OTHERS_WAIT_NS;
                if (now_ns() >= *limit)
                    break;
            }
            lock_relax(j);
        }
    }
}

void context_settle(CUcontext handle)
{
    struct context *context = context_find(handle);
    uint64_t limit = 0; /* shared by all slots that wait on the host */

    if (context)
        settle(context, &limit);
    for (unsigned int i = 0; !handle && (context = context_next(&i, CONTEXT_ALL)); context_unpin(context))
        settle(context, &limit);
}

void context_saw(CUresult result)
{
    const struct real_driver *driver = is_sticky(result) ? real_driver_get() : NULL;
    struct context *context = driver ? context_current(driver) : NULL;

    if (context)
        fail(context, result);
}

/*
 * Wait for the event of a slot, which covers the work before one free. limit: in nanoseconds of the monotonic clock; 0:
 * without limit, or one second once another turn has recorded the event again.
 */
static void slot_wait(const struct context *context, const struct slot *slot, uint64_t turn, uint64_t limit)
{
    CUevent event;

    /* Another thread may be about to record the event. */
    for (unsigned int i = 0; limit && slot_is_busy(slot) && now_ns() < limit; i++)
        lock_relax(i);
    event = atomic_load(&slot->event);
    for (unsigned int i = 0; event && context->driver->cuEventQuery(event) == CUDA_ERROR_NOT_READY; i++) {
        if (!limit && atomic_load(&slot->turn) != turn)
            limit = now_ns() + OTHERS_WAIT_NS;
        if ((limit && now_ns() >= limit) || !context_stays(context))
            return;
        lock_relax(i);
    }
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
        slot = slot_acquire(context);
        capturing = capture_active_now();
        if (!capturing)
            result = record(context, slot, &event);
        /* A free may record the event again; the wait below then covers that, too. */
        slot_release(slot, CUDA_ERROR_NOT_READY);
        if (!capturing || now_ns() >= captured || !context_stays(context))
            break;
        lock_relax(i);
    }
    if (result || context_enter(context, &visit))
        return false;
    least = now_ns() + ASK_NS;
    limit = limit > least ? limit : least;
    for (unsigned int i = 0;
         (result = driver->cuEventQuery(event)) == CUDA_ERROR_NOT_READY && now_ns() < limit && context_stays(context);
         i++)
        lock_relax(i);
    context_leave(context, &visit);
    return result == CUDA_SUCCESS;
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

/* The entry of the thread that recorded this turn of the combiner, or the next later turn on record, which covers the
 * work before the earlier one as well. NULL: no such turn was recorded in this context. */
static const struct led *led_find(const struct context *context, uint64_t turn, uint64_t *ret_turn)
{
    const struct led *found = NULL;

    for (unsigned int i = 0; i < SLOTS; i++) {
        const uint64_t at = atomic_load(&context->led[i].turn);

        if (at >= turn && (!found || at < *ret_turn)) {
            found = &context->led[i];
            *ret_turn = at;
        }
    }
    return found;
}

/*
 * Wait for the work before a turn of the combiner. limit: in nanoseconds of the monotonic clock; 0: without limit, or
 * one second if only a later turn's event is on record, which covers more work.
 */
static void led_wait(const struct context *context, uint64_t turn, uint64_t limit)
{
    const struct led *led;
    uint64_t at = 0;

    for (unsigned int i = 0; (led = led_find(context, turn, &at)); i++) {
        if (context->driver->cuEventQuery(atomic_load(&led->event)) != CUDA_ERROR_NOT_READY)
            return;
        if (!limit && at != turn)
            limit = now_ns() + OTHERS_WAIT_NS;
        if ((limit && now_ns() >= limit) || !context_stays(context))
            return;
        lock_relax(i);
    }
}

static void slots_wait(struct context *context, bool others)
{
    const struct slot *lead = &context->slots[SLOT_LEAD];
    uint64_t limit = now_ns() + OTHERS_WAIT_NS;
    const uint64_t own = noted(context);

    if (!context->driver->cuEventQuery)
        return;
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *slot = &context->slots[i];
        const uint64_t turn = atomic_load(&slot->turn);
        const bool is_own = thread_slot && !(turn & 1) && atomic_load(&slot->user) == thread_slot;

        if (is_own || others)
            slot_wait(context, slot, turn, is_own ? 0 : limit);
    }
    if (own) {
        led_wait(context, own, 0);
        note(context, 0); /* otherwise the thread would wait again */
    }
    if (!others)
        return;
    limit = now_ns() + OTHERS_WAIT_NS;
    for (unsigned int i = 0; slot_is_busy(lead) && now_ns() < limit; i++)
        lock_relax(i);
    if (atomic_load(&lead->done)) /* the last turn covers all earlier ones */
        led_wait(context, atomic_load(&lead->done), limit);
}

bool order_wait_own(struct context *context)
{
    struct visit visit;
    unsigned int last;

    if (!context_enter(context, &visit))
        slots_wait(context, /* others: */ false);
    context_leave(context, &visit);
    last = atomic_load(&context->slots[SLOT_LEAD].user);
    return !last || last == thread_slot;
}

bool context_wait_frees(int device, bool others)
{
    struct context *context;
    struct visit visit;
    bool any = false;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        any = true;
        /* Entered, so that the queries disturb no capture. */
        if (!context_enter(context, &visit))
            slots_wait(context, others);
        context_leave(context, &visit);
    }
    return any;
}
