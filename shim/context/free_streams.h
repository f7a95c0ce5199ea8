/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.h - the streams on which a context's memory was freed by cudaFreeAsync.
 *
 * Natively such memory is there once its stream has come to the free, whatever runs on other streams. So blocks that
 * were freed only on these streams need no order once an event behind the free has been reached. The streams themselves
 * are not asked: a stream without work may have to wait for another one.
 *
 * A stream has one event for many frees. Recorded again and again by a busy program it would never be reached, so frees
 * belong to generations: the events of the newest one are recorded, those of the one before, which is closed, are
 * waited for. Once these have been reached the newest is closed, and a new one records the other's events.
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

struct real_driver;

/* Streams that are known at a time. */
#define FREE_STREAMS_MAX 64

struct free_stream {
    CUstream stream;
    unsigned int thread; /* whose per-thread stream it is; 0: another stream */
    bool gone;           /* the stream was destroyed, and its handle may be another one's */
    /* For the generations with an even number, and the others: */
    bool used[2];              /* in the newest generation or the closed one the stream has an event */
    unsigned int recording[2]; /* threads that record it */
    _Atomic(CUevent) event[2]; /* recorded behind the last free; kept for the next stream */
};

struct free_streams {
    struct lock lock;    /* guards the members below, and those of the streams but for event */
    uint64_t generation; /* the newest one */
    uint64_t ended;      /* the last one whose events have been reached: the one before the newest or before that */
    struct free_stream at[FREE_STREAMS_MAX];
};

/* An event that is being recorded. */
struct free_mark {
    struct free_stream *at;
    unsigned int part;
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
void free_streams_end(struct free_streams *streams, const struct free_mark *mark);
/* A stream is about to be destroyed; stream is its handle. */
void free_streams_gone(struct free_streams *streams, const void *stream);
/* The newest generation: a free whose event has been recorded belongs to this one or to one before. */
uint64_t free_streams_generation(struct free_streams *streams);
/* The last generation whose events have been reached. The context has been entered. */
uint64_t free_streams_ask(struct free_streams *streams, const struct real_driver *driver);

#endif
