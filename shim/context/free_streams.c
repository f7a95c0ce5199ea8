/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.c - see free_streams.h.
 *
 * Locking: free_streams.lock, not held while the driver is asked.
 */
#include "context/free_streams.h"

#include <string.h>

#include "clock.h"
#include "real/real.h"

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

void free_streams_add(struct free_streams *streams, CUstream stream, bool is_own)
{
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

/* If nothing has been freed on any stream since, they are forgotten. */
bool free_streams_ask(struct free_streams *streams, const struct real_driver *driver)
{
    CUstream asked[FREE_STREAMS_MAX];
    unsigned int count;
    uint64_t mark;
    bool ended;

    lock_take(&streams->lock);
    mark = streams->adds;
    ended = !streams->unknown;
    count = ended ? streams->count : 0;
    memcpy(asked, streams->streams, count * sizeof(CUstream));
    atomic_fetch_add(&streams->asking, 1);
    lock_give(&streams->lock);
    for (unsigned int i = 0; ended && i < count; i++)
        ended = driver->cuStreamQuery(asked[i]) == CUDA_SUCCESS;
    atomic_fetch_sub(&streams->asking, 1);
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
    if (streams->adds == mark) {
        streams->count = 0;
        streams->unknown = false;
    }
    lock_give(&streams->lock);
}
