/* SPDX-License-Identifier: Apache-2.0 */
/* driver_free.c - see driver_free.h. No locks; the slot SLOT_ASK of free_order.c is read. */
#include "context/driver_free.h"

#include "base/process.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/registry.h"
#include "lock.h"
#include "real/real.h"

/* The longest wait for a question, in nanoseconds. Another free, which is not seen, may hold that up. */
#define ASK_WAIT_NS 10000000

/* The pooled context that has the memory; NULL: none. */
static struct context *context_with(CUdeviceptr addr)
{
    const bool any = addr && atomic_load(&contexts.count) && !process_is_passive();
    const struct real_driver *driver = any ? real_driver_get() : NULL;
    CUcontext handle = NULL;

    /* While a stream captures nothing is asked. */
    if (!driver || !driver->cuPointerGetAttribute || capture_active() ||
        driver->cuPointerGetAttribute(&handle, CU_POINTER_ATTRIBUTE_CONTEXT, addr))
        return NULL;
    return context_find(handle);
}

struct context *driver_free_begin(CUdeviceptr addr)
{
    struct context *context = context_with(addr);
    const struct slot *ask;
    uint64_t seq, limit;

    if (!context)
        return NULL;
    ask = &context->slots[SLOT_ASK];
    /* order_ask takes its slot, then looks at `freeing`. */
    atomic_fetch_add(&context->freeing, 1);
    seq = atomic_load(&ask->seq);
    limit = seq & 1 ? now_ns() + ASK_WAIT_NS : 0;
    for (unsigned int i = 0; seq & 1 && atomic_load(&ask->seq) == seq && now_ns() < limit; i++)
        lock_relax(i);
    return context;
}

/* The context may have ended meanwhile, and its entry may be another one's: its questions were not asked for a while.
 */
void driver_free_end(struct context *context)
{
    if (context)
        atomic_fetch_sub(&context->freeing, 1);
}
