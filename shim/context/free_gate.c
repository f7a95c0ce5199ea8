/* SPDX-License-Identifier: Apache-2.0 */
/* free_gate.c - see free_gate.h. No locks. */
#include "context/free_gate.h"

#include "clock.h"
#include "lock.h"

/* The longest wait for threads inside, in nanoseconds. Another free, which is not seen, may hold them up. */
#define INSIDE_WAIT_NS 10000000

bool free_gate_close(struct context *context)
{
    uint64_t limit;

    if (!pin_count(&context->freeing))
        return false;
    limit = atomic_load(&context->inside) ? now_ns() + INSIDE_WAIT_NS : 0;
    for (unsigned int i = 0; atomic_load(&context->inside) && now_ns() < limit; i++)
        lock_relax(i);
    return true;
}

void free_gate_open(struct context *context)
{
    pin_uncount(&context->freeing);
}
