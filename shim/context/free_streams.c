/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.c - see free_streams.h.
 *
 * Locking: free_streams.lock; the driver is asked in a slot of free_order.c, without the lock.
 */
#include "context/free_streams.h"

#include <string.h>

#include "clock.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_order.h"

/* A stream's end waits so long, in nanoseconds, for threads that ask for it. The question waits for nothing. */
#define ASKING_WAIT_NS 300000000u

void free_streams_init(struct free_streams *streams)
{
    lock_take(&streams->lock);
    streams->count = 0;
    streams->unknown = false;
    lock_give(&streams->lock);
}

/* With the lock. */
static unsigned int find(const struct free_streams *streams, const void *stream)
{
    unsigned int i = 0;

    while (i < streams->count && streams->streams[i] != stream)
        i++;
    return i;
}

void free_streams_add(struct context *context, CUstream stream, bool is_own)
{
    struct free_streams *const streams = &context->free_streams;
    unsigned int i;

    lock_take(&streams->lock);
    streams->adds++;
    i = find(streams, stream);
    if (!is_own || i == FREE_STREAMS_MAX)
        streams->unknown = true;
    else if (i == streams->count)
        streams->streams[streams->count++] = stream;
    lock_give(&streams->lock);
}

void free_streams_gone(struct free_streams *streams, const void *stream)
{
    const uint64_t limit = now_ns() + ASKING_WAIT_NS;
    unsigned int i;

    lock_take(&streams->lock);
    i = find(streams, stream);
    if (i < streams->count) {
        streams->streams[i] = streams->streams[--streams->count];
        streams->unknown = true;
    }
    lock_give(&streams->lock);
    for (i = 0; atomic_load(&streams->asking) && now_ns() < limit; i++)
        lock_relax(i);
}

/* True if the streams are idle. If nothing has been freed on any since, they are forgotten. */
static bool ask(const struct real_driver *driver, struct free_streams *streams)
{
    CUstream asked[FREE_STREAMS_MAX];
    unsigned int count;
    uint64_t mark;
    bool ended;

    lock_take(&streams->lock);
    mark = streams->adds;
    ended = !streams->unknown;
    count = ended ? streams->count : 0;
    memcpy(asked, streams->streams, count * sizeof(*asked));
    atomic_fetch_add(&streams->asking, 1);
    lock_give(&streams->lock);
    for (unsigned int i = 0; ended && i < count; i++)
        ended = driver->cuStreamQuery(asked[i]) == CUDA_SUCCESS;
    atomic_fetch_sub(&streams->asking, 1);
    if (ended)
        free_streams_idle(streams, mark);
    return ended;
}

bool free_streams_ended(void *arg)
{
    struct context *context = arg;
    struct slot *slot;
    struct visit visit;
    bool ended = false;

    if (!context->driver->cuStreamQuery || atomic_load(&context->freeing))
        return false;
    slot = order_slot_take(context);
    /* The slot is held, so a capture that begins after this check waits for it. */
    if (!capture_active()) {
        ended = !context_enter(context, &visit) && ask(context->driver, &context->free_streams);
        context_leave(context, &visit);
    }
    order_slot_give(slot, CUDA_ERROR_NOT_READY);
    return ended;
}

uint64_t free_streams_mark(struct free_streams *streams)
{
    uint64_t mark;

    lock_take(&streams->lock);
    mark = streams->adds;
    lock_give(&streams->lock);
    return mark;
}

void free_streams_idle(struct free_streams *streams, uint64_t mark)
{
    lock_take(&streams->lock);
    if (streams->adds == mark) {
        streams->count = 0;
        streams->unknown = false;
    }
    lock_give(&streams->lock);
}
