/* SPDX-License-Identifier: Apache-2.0 */
/* device_free.c - see device_free.h. No locks; the figures are atomic. */
#include "context/device_free.h"

#include <stdatomic.h>

#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"

/* The next context from index *i on; entries are never freed, so it need not be pinned for its figure. NULL: no
 * more. */
static struct context *next(unsigned int *i)
{
    return *i < atomic_load(&contexts.count) ? atomic_load(&contexts.entries[(*i)++]) : NULL;
}

static void less(struct context *context, size_t size)
{
    size_t free = atomic_load_explicit(&context->device_free, memory_order_relaxed);

    while (!atomic_compare_exchange_weak(&context->device_free, &free, free > size ? free - size : 0))
        ;
}

void device_free_ask(const struct context *context)
{
    struct context *other;
    size_t free, total;

    if (context->driver->cuMemGetInfo_v2(&free, &total))
        return;
    for (unsigned int i = 0; (other = next(&i));) {
        if (other->device != context->device)
            continue;
        atomic_store(&other->free_unsure, false);
        atomic_store_explicit(&other->device_free, free, memory_order_relaxed);
    }
}

void device_free_more(const struct context *context, size_t size)
{
    struct context *other;

    for (unsigned int i = 0; (other = next(&i));)
        if (other->device == context->device)
            atomic_fetch_add_explicit(&other->device_free, size, memory_order_relaxed);
}

void device_free_less(const struct context *context, size_t size)
{
    struct context *other;

    for (unsigned int i = 0; (other = next(&i));)
        if (other->device == context->device)
            less(other, size);
}

void device_free_taken(size_t size)
{
    struct context *context;

    for (unsigned int i = 0; (context = next(&i));) {
        less(context, size ? size : SIZE_MAX);
        atomic_store_explicit(&context->free_unsure, true, memory_order_relaxed);
    }
}

static bool is_low(const struct context *context)
{
    return atomic_load_explicit(&context->device_free, memory_order_relaxed) < context->capacity / RESERVE_PART;
}

/* During a capture nothing goes back anyway. */
void device_free_look(struct context *context)
{
    struct visit visit;

    if (capture_active_now())
        return;
    if (!context_enter(context, &visit))
        device_free_ask(context);
    context_leave(context, &visit);
}

bool device_free_is_scarce(struct context *context)
{
    if (!is_low(context))
        return false;
    /* The figure may be too low: by memory that is another device's, that a pool of the driver's had, or that has gone
     * back since. */
    if (atomic_load_explicit(&context->free_unsure, memory_order_relaxed))
        device_free_look(context);
    return is_low(context);
}
