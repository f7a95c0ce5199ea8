/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_gate.h - keeps calls of the library's own apart from calls of the program that wait in the driver
 * (driver_free.h): a record of an event, begun meanwhile, would be held up until the device's work ends, which may wait
 * for this thread.
 *
 * A thread enters the gate, makes its calls and leaves; a call that waits in the driver closes the gate first and then
 * waits until all have left. So none begins while a thread is between its look at the gate and the end of its calls.
 *
 * It is not a lock: many threads are inside, and many close it. A thread that is inside does not enter again. It makes
 * only calls that wait for nothing; free_gate_close waits for it 10 ms at most. One that is cancelled in such a call
 * has left.
 *
 * Threads: every function may be called from any thread. Entries of contexts stay, so one that ends may be left.
 */
#ifndef CUPOOL_SHIM_CONTEXT_FREE_GATE_H
#define CUPOOL_SHIM_CONTEXT_FREE_GATE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "context/context_state.h"
#include "context/pins.h"

/* False: it is closed, and the caller goes without its calls, or comes again. NULL: no pooled context, never closed. */
static inline bool free_gate_enter(struct context *context)
{
    if (!context)
        return true;
    if (atomic_load(&context->freeing)) /* so threads that come later do not keep free_gate_close waiting */
        return false;
    atomic_fetch_add(&context->inside, 1); /* first this, then the look; free_gate_close goes the other way round */
    if (!atomic_load(&context->freeing)) {
        pin_inside(&context->inside);
        return true;
    }
    atomic_fetch_sub(&context->inside, 1);
    return false;
}

static inline void free_gate_leave(struct context *context)
{
    if (!context)
        return;
    pin_inside(NULL);
    atomic_fetch_sub(&context->inside, 1);
}

/* Close it for this thread's call, until free_gate_open or the end of the thread. False: the thread has closed one
 * already, and nothing has changed. */
bool free_gate_close(struct context *context);
void free_gate_open(struct context *context);

#endif
