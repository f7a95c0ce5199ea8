/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.h - the streams on which a context's memory was freed by cudaFreeAsync.
 *
 * Natively such memory is there once its stream has come to the free, whatever runs on other streams. So blocks that
 * were freed only on these streams need no order once events behind the last free on each have been reached. The
 * streams themselves are not asked: a stream without work may have to wait for another one.
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
#define FREE_STREAMS_MAX 16

struct free_stream {
    CUstream stream;
    unsigned int thread;    /* whose per-thread stream it is; 0: another stream */
    _Atomic(CUevent) event; /* recorded behind the last free; kept for the next stream */
    unsigned int recording; /* threads that record it */
    bool gone;              /* the stream was destroyed, and its handle may be another one's */
};

struct free_streams {
    struct lock lock; /* guards the members below, and those of the streams but for event */
    uint64_t adds;    /* calls of free_streams_begin so far */
    unsigned int count;
    struct free_stream at[FREE_STREAMS_MAX];
    bool unknown; /* another stream: one too many, a green context's one, or the record failed */
};

/* A new context uses the entry. */
void free_streams_init(struct free_streams *streams);
/*
 * A block is about to be freed on this stream. is_own: the stream is one of the context, and does not end unseen; the
 * per-thread stream is the calling thread's. Returns where the caller has to record an event on the stream, which it
 * makes if there is none, and then to call free_streams_end. NULL: nothing is to be recorded.
 */
struct free_stream *free_streams_begin(struct free_streams *streams, CUstream stream, bool is_own);
void free_streams_end(struct free_streams *streams, struct free_stream *at, bool recorded);
/* A stream is about to be destroyed; stream is its handle. */
void free_streams_gone(struct free_streams *streams, const void *stream);
/* True: all streams have come to the last free on them. The context has been entered. */
bool free_streams_ask(struct free_streams *streams, const struct real_driver *driver);
/* All work ended that had been launched in the context when free_streams_mark returned this mark. */
uint64_t free_streams_mark(struct free_streams *streams);
void free_streams_idle(struct free_streams *streams, uint64_t mark);

#endif
