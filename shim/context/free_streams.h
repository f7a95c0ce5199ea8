/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.h - the streams on which a context's memory was freed by cudaFreeAsync.
 *
 * Natively such memory is there once its stream has come to the free, whatever runs on other streams. So blocks that
 * were freed only on these streams need no order once an event behind the free has been reached. The streams themselves
 * are not asked: a stream without work may have to wait for another one.
 *
 * A stream has one event for many frees. Recorded again and again by a busy program it would never be reached, so the
 * frees on a stream belong to generations: the event of the newest one is recorded, that of the one before, which is
 * closed, is waited for. Once this has been reached the newest is closed, and a new one records the other's event.
 *
 * Threads: every function may be called from any thread.
 */
#ifndef CUPOOL_SHIM_CONTEXT_FREE_STREAMS_H
#define CUPOOL_SHIM_CONTEXT_FREE_STREAMS_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "lock.h"
#include "pool.h"

struct real_driver;

/* Streams that are known at a time. */
#define FREE_STREAMS_MAX POOL_PLACES

struct free_stream {
    CUstream stream;
    unsigned int thread; /* whose per-thread stream it is; 0: another stream */
    bool gone;           /* the stream was destroyed, and its handle may be another one's */
    uint64_t generation; /* the newest one; goes on when another stream or context uses the entry */
    uint64_t ended;      /* the last one whose event has been reached: the one before the newest or before that */
    /* For the generations with an even number, and the others: */
    bool used[2];              /* such a generation, the newest or the closed one, has an event */
    unsigned int recording[2]; /* threads that record it */
    _Atomic(CUevent) event[2]; /* recorded behind the last free; kept for the next stream */
};

struct free_streams {
    struct lock lock; /* guards the members of the streams but for event */
    struct free_stream at[FREE_STREAMS_MAX];
};

/* An event that is being recorded. */
struct free_mark {
    struct free_stream *at;
    uint64_t generation;
};

/* A new context uses the entry. */
void free_streams_init(struct free_streams *streams);
/*
 * A block is about to be freed on this stream of the context, which does not end unseen. thread: the calling thread's
 * number for its per-thread stream, 0 for another stream. Returns the event that the caller has to record on the
 * stream, which it makes if there is none, and then to call free_streams_end with the mark. NULL: there is no event for
 * it now.
 */
_Atomic(CUevent) *free_streams_begin(struct free_streams *streams, CUstream stream, unsigned int thread,
                                     struct free_mark *ret_mark);
/* Returns the block's number for pool_free_async, if the event has been recorded. */
uint64_t free_streams_end(struct free_streams *streams, const struct free_mark *mark);
/* A stream is about to be destroyed; stream is its handle. */
void free_streams_gone(struct free_streams *streams, const void *stream);
/* The last number of each entry whose event has been reached. The context has been entered. */
void free_streams_ask(struct free_streams *streams, const struct real_driver *driver, uint64_t ret_ended[POOL_PLACES]);

#endif
