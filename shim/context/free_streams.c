/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.c - see free_streams.h.
 *
 * Locking: free_streams.lock, not held while the driver is called.
 */
#include "context/free_streams.h"

#include "context/free_order.h"
#include "real/real.h"

void free_streams_init(struct free_streams *streams)
{
    lock_take(&streams->lock);
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        atomic_store(&streams->at[i].event, NULL);
    streams->count = 0;
    streams->unknown = false;
    lock_give(&streams->lock);
}

/* With the lock. */
static struct free_stream *find(struct free_streams *streams, const void *stream, unsigned int thread)
{
    for (unsigned int i = 0; i < streams->count; i++)
        if (streams->at[i].stream == stream && streams->at[i].thread == thread && !streams->at[i].gone)
            return &streams->at[i];
    return NULL;
}

struct free_stream *free_streams_begin(struct free_streams *streams, CUstream stream, bool is_own)
{
    const unsigned int thread = stream == CU_STREAM_PER_THREAD ? order_thread_get() : 0;
    struct free_stream *at;

    lock_take(&streams->lock);
    streams->adds++;
    at = is_own ? find(streams, stream, thread) : NULL;
    if (is_own && !at && streams->count < FREE_STREAMS_MAX) {
        at = &streams->at[streams->count++];
        at->stream = stream;
        at->thread = thread;
        at->gone = false;
    } else if (at && !atomic_load(&at->event)) { /* another thread makes the event */
        at = NULL;
    }
    if (at)
        at->recording++;
    else
        streams->unknown = true;
    lock_give(&streams->lock);
    return at;
}

void free_streams_end(struct free_streams *streams, struct free_stream *at, bool recorded)
{
    lock_take(&streams->lock);
    at->recording--;
    streams->unknown |= !recorded;
    lock_give(&streams->lock);
}

void free_streams_gone(struct free_streams *streams, const void *stream)
{
    struct free_stream *at;

    lock_take(&streams->lock);
    at = find(streams, stream, 0);
    if (at)
        at->gone = true;
    lock_give(&streams->lock);
}

/* With the lock. */
static bool is_recording(const struct free_streams *streams)
{
    for (unsigned int i = 0; i < streams->count; i++)
        if (streams->at[i].recording)
            return true;
    return false;
}

bool free_streams_ask(struct free_streams *streams, const struct real_driver *driver)
{
    CUevent events[FREE_STREAMS_MAX];
    unsigned int count;
    uint64_t mark;
    bool ended;

    lock_take(&streams->lock);
    mark = streams->adds;
    count = streams->count;
    ended = !streams->unknown && !is_recording(streams);
    for (unsigned int i = 0; i < count; i++)
        events[i] = atomic_load(&streams->at[i].event);
    lock_give(&streams->lock);
    for (unsigned int i = 0; ended && i < count; i++)
        ended = driver->cuEventQuery(events[i]) == CUDA_SUCCESS;
    if (ended)
        free_streams_idle(streams, mark);
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
    if (streams->adds == mark && !is_recording(streams)) {
        streams->count = 0;
        streams->unknown = false;
    }
    lock_give(&streams->lock);
}
