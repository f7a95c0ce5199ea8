/* SPDX-License-Identifier: Apache-2.0 */
/* driver_free.c - see driver_free.h. No locks; the slot SLOT_ASK of free_order.c is read. */
#include "context/driver_free.h"

#include "base/process.h"
#include "clock.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/own_stream.h"
#include "context/pins.h"
#include "context/registry.h"
#include "lock.h"
#include "real/real.h"

/* The longest wait for a question, in nanoseconds. Another free, which is not seen, may hold that up. */
#define ASK_WAIT_NS 10000000

/* The driver, if there is a pooled context. */
static const struct real_driver *driver_get(void)
{
    return atomic_load(&contexts.count) && !process_is_passive() ? real_driver_get() : NULL;
}

/* By the library's own stream other threads give memory back meanwhile, and its creation would be held up. */
static void stream_make(struct context *context)
{
    struct visit visit;

    if (atomic_load(&context->stream) || !context_defers(context) || !context_pin(context))
        return;
    pin_sleep(context);
    if (!context_enter(context, &visit))
        (void)own_stream(context);
    context_leave(context, &visit);
    pin_wake();
    context_unpin(context);
}

static struct context *begin(struct context *context)
{
    const struct slot *ask;
    uint64_t seq, limit;

    if (!context)
        return NULL;
    stream_make(context);
    ask = &context->slots[SLOT_ASK];
    /* order_ask takes its slot, then looks at `freeing`. */
    if (!pin_count(&context->freeing))
        return NULL;
    seq = atomic_load(&ask->seq);
    limit = seq & 1 ? now_ns() + ASK_WAIT_NS : 0;
    for (unsigned int i = 0; seq & 1 && atomic_load(&ask->seq) == seq && now_ns() < limit; i++)
        lock_relax(i);
    return context;
}

struct context *driver_free_begin(CUdeviceptr addr)
{
    const struct real_driver *driver = addr ? driver_get() : NULL;
    CUcontext handle = NULL;

    /* Also while a stream captures: the capture may end before the free. */
    if (!driver || !driver->cuPointerGetAttribute ||
        driver->cuPointerGetAttribute(&handle, CU_POINTER_ATTRIBUTE_CONTEXT, addr))
        return NULL;
    return begin(context_find(handle));
}

struct context *driver_free_begin_current(void)
{
    const struct real_driver *driver = driver_get();
    CUcontext handle = NULL;

    return driver && !driver->cuCtxGetCurrent(&handle) ? begin(context_find(handle)) : NULL;
}

/* The context may have ended meanwhile, and its entry may be another one's: its questions were not asked for a while.
 */
void driver_free_end(struct context *context)
{
    if (context)
        pin_uncount(&context->freeing);
}
