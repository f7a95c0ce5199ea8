/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.c - see free_streams.h.
 *
 * Locking: free_streams.lock, not held while the driver is called.
 */
#include "context/free_streams.h"

#include "real/real.h"

void free_streams_init(struct free_streams *streams)
{
    lock_take(&streams->lock);
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++) {
        for (unsigned int part = 0; part < 2; part++) {
            atomic_store(&streams->at[i].event[part], NULL);
            streams->at[i].used[part] = false;
        }
    }
    streams->ended = streams->generation++;
    lock_give(&streams->lock);
}

/* With the lock. */
static bool is_used(const struct free_stream *at)
{
    return at->used[0] || at->used[1];
}

/* With the lock: the stream's entry, or an unused one; NULL: there is none. */
static struct free_stream *entry_of(struct free_streams *streams, CUstream stream, unsigned int thread)
{
    struct free_stream *unused = NULL;

    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++) {
        struct free_stream *at = &streams->at[i];

        if (!is_used(at))
            unused = unused ? unused : at;
        else if (at->stream == stream && at->thread == thread && !at->gone)
            return at;
    }
    if (unused) {
        unused->stream = stream;
        unused->thread = thread;
        unused->gone = false;
    }
    return unused;
}

_Atomic(CUevent) *free_streams_begin(struct free_streams *streams, CUstream stream, unsigned int thread,
                                     struct free_mark *ret_mark)
{
    struct free_stream *at;
    unsigned int part;

    lock_take(&streams->lock);
    part = streams->generation % 2;
    at = entry_of(streams, stream, thread);
    if (at && at->recording[part] && !atomic_load(&at->event[part])) /* another thread makes the event */
        at = NULL;
    if (at) {
        at->used[part] = true;
        at->recording[part]++;
        *ret_mark = (struct free_mark){at, part};
    }
    lock_give(&streams->lock);
    return at ? &at->event[part] : NULL;
}

void free_streams_end(struct free_streams *streams, const struct free_mark *mark)
{
    lock_take(&streams->lock);
    mark->at->recording[mark->part]--;
    lock_give(&streams->lock);
}

void free_streams_gone(struct free_streams *streams, const void *stream)
{
    lock_take(&streams->lock);
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        if (streams->at[i].stream == stream && !streams->at[i].thread)
            streams->at[i].gone = true;
    lock_give(&streams->lock);
}

uint64_t free_streams_generation(struct free_streams *streams)
{
    uint64_t generation;

    lock_take(&streams->lock);
    generation = streams->generation;
    lock_give(&streams->lock);
    return generation;
}

/* With the lock: the events of the closed generation. False: one of them is being recorded. */
static bool events_of(const struct free_streams *streams, unsigned int part, CUevent *ret_events,
                      unsigned int *ret_count)
{
    *ret_count = 0;
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++) {
        const struct free_stream *at = &streams->at[i];
        CUevent event = at->used[part] ? atomic_load(&at->event[part]) : NULL;

        if (at->recording[part])
            return false;
        if (event) /* else it could not be made, and nothing relies on it */
            ret_events[(*ret_count)++] = event;
    }
    return true;
}

/* With the lock: all events of this closed generation have been reached. */
static void generation_end(struct free_streams *streams, uint64_t generation)
{
    if (streams->ended >= generation)
        return; /* another thread has found that, too */
    streams->ended = generation;
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        streams->at[i].used[generation % 2] = false;
}

uint64_t free_streams_ask(struct free_streams *streams, const struct real_driver *driver)
{
    CUevent events[FREE_STREAMS_MAX];
    unsigned int count;
    uint64_t closed, ended;
    bool reached = true;

    /* The closed generation, and then the one that is closed in its place. */
    for (unsigned int round = 0; reached && round < 2; round++) {
        lock_take(&streams->lock);
        if (streams->ended == streams->generation - 1)
            streams->generation++;
        closed = streams->generation - 1;
        reached = events_of(streams, closed % 2, events, &count);
        lock_give(&streams->lock);
        for (unsigned int i = 0; reached && i < count; i++)
            reached = driver->cuEventQuery(events[i]) == CUDA_SUCCESS;
        if (reached) {
            lock_take(&streams->lock);
            generation_end(streams, closed);
            lock_give(&streams->lock);
        }
    }
    lock_take(&streams->lock);
    ended = streams->ended;
    lock_give(&streams->lock);
    return ended;
}
