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
        struct free_stream *at = &streams->at[i];

        for (unsigned int part = 0; part < 2; part++) {
            atomic_store(&at->event[part], NULL);
            at->used[part] = false;
        }
        at->ended = at->generation++;
    }
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
    at = entry_of(streams, stream, thread);
    part = at ? at->generation % 2 : 0;
    if (at && at->recording[part] && !atomic_load(&at->event[part])) /* another thread makes the event */
        at = NULL;
    if (at) {
        at->used[part] = true;
        at->recording[part]++;
        *ret_mark = (struct free_mark){at, at->generation};
    }
    lock_give(&streams->lock);
    return at ? &at->event[part] : NULL;
}

/* See pool_free_async. */
static uint64_t number(const struct free_streams *streams, const struct free_stream *at, uint64_t generation)
{
    return generation * POOL_PLACES + (uint64_t)(at - streams->at);
}

uint64_t free_streams_end(struct free_streams *streams, const struct free_mark *mark)
{
    lock_take(&streams->lock);
    mark->at->recording[mark->generation % 2]--;
    lock_give(&streams->lock);
    return number(streams, mark->at, mark->generation);
}

void free_streams_gone(struct free_streams *streams, const void *stream)
{
    lock_take(&streams->lock);
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        if (streams->at[i].stream == stream && !streams->at[i].thread)
            streams->at[i].gone = true;
    lock_give(&streams->lock);
}

/* With the lock: close the newest generation unless a closed one is left. False: there is none to ask for, or a thread
 * records its event. *ret_event: NULL if it could not be made, and nothing relies on it. */
static bool closed_of(struct free_stream *at, uint64_t *ret_closed, CUevent *ret_event)
{
    if (at->ended == at->generation - 1 && is_used(at))
        at->generation++;
    *ret_closed = at->generation - 1;
    *ret_event = atomic_load(&at->event[*ret_closed % 2]);
    return at->ended < *ret_closed && !at->recording[*ret_closed % 2];
}

/* With the lock: the event of this closed generation has been reached. */
static void generation_end(struct free_stream *at, uint64_t closed)
{
    if (at->ended >= closed)
        return; /* another thread has found that, too */
    at->ended = closed;
    at->used[closed % 2] = false;
}

void free_streams_ask(struct free_streams *streams, const struct real_driver *driver, uint64_t ret_ended[POOL_PLACES])
{
    CUevent events[FREE_STREAMS_MAX];
    uint64_t closed[FREE_STREAMS_MAX];
    bool reached[FREE_STREAMS_MAX] = {false};

    /* The closed generations, and then those that are closed in their place. */
    for (unsigned int round = 0; round < 2; round++) {
        lock_take(&streams->lock);
        for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
            reached[i] = (!round || reached[i]) && closed_of(&streams->at[i], &closed[i], &events[i]);
        lock_give(&streams->lock);
        for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
            reached[i] = reached[i] && (!events[i] || driver->cuEventQuery(events[i]) == CUDA_SUCCESS);
        lock_take(&streams->lock);
        for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++) {
            if (reached[i])
                generation_end(&streams->at[i], closed[i]);
            ret_ended[i] = number(streams, &streams->at[i], streams->at[i].ended);
        }
        lock_give(&streams->lock);
    }
}
