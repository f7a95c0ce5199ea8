/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_drain.c - see capture_drain.h.
 *
 * Locking: none; slots of free_order.c are read.
 */
#include "context/capture_drain.h"

#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_order.h"
#include "context/registry.h"
#include "lock.h"

/* The longest wait, in nanoseconds, of a beginning capture for calls in contexts that it may reach later. */
#define REACH_WAIT_NS 10000000u
#define UNKNOWN       (-2) /* device: the driver has yet to be asked */

/*
 * Wait until no call is in flight that would disturb a capture. Every call reads the gate when it begins, so a call
 * that has waited on the host for long (slot->waits) disturbs no capture, and it may be waiting for work that the
 * caller launches after its capture has begun: wait for such calls only until *limit, which the first of them sets.
 *
 * In another context, !is_own, a capture may draw in a stream later. A call there takes microseconds, unless a free of
 * the driver's holds it up, so the wait for it has a limit, too; calls that wait on the host are left alone.
 */
static void drain(const struct context *context, bool is_own, uint64_t *limit)
{
    for (int i = 0; i < SLOTS_ALL; i++) {
        const struct slot *slot = &context->slots[i];

        for (unsigned int j = 0; slot_is_busy(slot); j++) {
            const bool waits = atomic_load(&slot->waits);

            if (waits && !is_own)
                break;
            if (waits || !is_own) {
                *limit = *limit ? *limit : now_ns() + (is_own ? ORDER_OTHERS_WAIT_NS : REACH_WAIT_NS);
                if (now_ns() >= *limit)
                    break;
            }
            lock_relax(j);
        }
    }
}

/* In the context with this handle, where drain has to be sure, and in all others; NULL: any may be the capture's. One
 * that is not pooled may be a green context's, whose streams are its device's primary context's. */
static void drain_all(const struct real_driver *driver, CUcontext handle)
{
    uint64_t limit = 0, limit_others = 0; /* each shared by all slots */
    struct context *own = context_find(handle), *context;
    int device = UNKNOWN;

    if (own)
        drain(own, /* is_own: */ true, &limit);
    for (unsigned int i = 0; (context = context_next(&i, CONTEXT_ALL)); context_unpin(context)) {
        bool is_own = !handle;

        if (handle && !own && context->primary) {
            device = device == UNKNOWN ? context_device_of(driver, handle) : device;
            is_own = context->device == device;
        }
        if (context != own)
            drain(context, is_own, is_own ? &limit : &limit_others);
    }
}

/* A thread without a context gets one during the real call, and we cannot know which. */
CUcontext capture_begin(CUstream stream)
{
    const CUcontext own = capture_close(stream);
    const struct real_driver *driver = real_driver_get();

    if (driver)
        drain_all(driver, own);
    return own;
}
