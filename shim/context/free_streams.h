/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_streams.h - the streams on which a context's memory was freed by cudaFreeAsync.
 *
 * Natively such memory is there once its stream has come to the free, whatever runs on other streams. So blocks that
 * were freed only on these streams need no order once the streams are idle.
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

struct free_streams {
    struct lock lock;   /* guards the members below, and that asking rises */
    atomic_uint asking; /* number of threads that ask the driver: no stream may be destroyed meanwhile */
    uint64_t adds;      /* calls of free_streams_add so far */
    unsigned int count;
    CUstream streams[FREE_STREAMS_MAX];
    bool unknown; /* another stream: one too many, destroyed, a per-thread or a green context's one */
};

/* A new context uses the entry. */
void free_streams_init(struct free_streams *streams);
/* A block is about to be freed on this stream. is_own: the stream is one of the context, has a handle of its own, and
 * does not end unseen. */
void free_streams_add(struct free_streams *streams, CUstream stream, bool is_own);
/* A stream is about to be destroyed; arg is its handle. */
void free_streams_gone(struct free_streams *streams, const void *stream);
/* True: all streams have done the work before the frees. The context has been entered, and no capture is under way. */
bool free_streams_ask(struct free_streams *streams, const struct real_driver *driver);
/* All work ended that had been launched in the context when free_streams_mark returned this mark. */
uint64_t free_streams_mark(struct free_streams *streams);
void free_streams_idle(struct free_streams *streams, uint64_t mark);

#endif
