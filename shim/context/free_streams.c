/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.c - see free_streams.h.
 *
 * Locking: free_streams.lock, also over cuStreamQuery, which does not wait; inside a slot of free_order.c.
 */
#include "context/free_streams.h"

#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/enter.h"
#include "context/free_order.h"

void free_streams_init(struct free_streams *streams)
{
    pthread_mutex_lock(&streams->lock);
    streams->count = 0;
    streams->unknown = false;
    pthread_mutex_unlock(&streams->lock);
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

    pthread_mutex_lock(&streams->lock);
    streams->adds++;
    i = find(streams, stream);
    if (!is_own || i == FREE_STREAMS_MAX)
        streams->unknown = true;
    else if (i == streams->count)
        streams->streams[streams->count++] = stream;
    pthread_mutex_unlock(&streams->lock);
}

void free_streams_gone(struct free_streams *streams, const void *stream)
{
    unsigned int i;

    pthread_mutex_lock(&streams->lock);
    i = find(streams, stream);
    if (i < streams->count) {
        streams->streams[i] = streams->streams[--streams->count];
        streams->unknown = true;
    }
    pthread_mutex_unlock(&streams->lock);
}

/* True if the streams are idle: they are forgotten then, since what is freed later is added after this. */
static bool ask(struct context *context, struct free_streams *streams)
{
    bool ended;

    pthread_mutex_lock(&streams->lock);
    ended = !streams->unknown;
    while (ended && streams->count) {
        ended = context->driver->cuStreamQuery(streams->streams[streams->count - 1]) == CUDA_SUCCESS;
        streams->count -= ended;
    }
    pthread_mutex_unlock(&streams->lock);
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
        ended = !context_enter(context, &visit) && ask(context, &context->free_streams);
        context_leave(context, &visit);
    }
    order_slot_give(slot, CUDA_ERROR_NOT_READY);
    return ended;
}

uint64_t free_streams_mark(struct free_streams *streams)
{
    uint64_t mark;

    pthread_mutex_lock(&streams->lock);
    mark = streams->adds;
    pthread_mutex_unlock(&streams->lock);
    return mark;
}

void free_streams_idle(struct free_streams *streams, uint64_t mark)
{
    pthread_mutex_lock(&streams->lock);
    if (streams->adds == mark) {
        streams->count = 0;
        streams->unknown = false;
    }
    pthread_mutex_unlock(&streams->lock);
}
