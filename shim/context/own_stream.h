/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own_stream.h - the stream for our own work in a context: fills (CUPOOL_FILL), copies (CUPOOL_DEBUG), and the frees of
 * segments.
 *
 * Ownership: the stream belongs to the context and ends with it.
 *
 * Threads: every function may be called from any thread that has pinned the context or is in a call on it. No locks but
 * slots of free_order.c.
 */
#ifndef CUPOOL_SHIM_CONTEXT_OWN_STREAM_H
#define CUPOOL_SHIM_CONTEXT_OWN_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "pool.h"
#include "real/hooks.h"

struct context;

/* The stream, of a context that has been entered; NULL: it cannot be made. */
CUstream own_stream(struct context *context);

/* Around a call that puts work on the stream: meanwhile no thread finds the stream idle and synchronises it, which
 * would make it wait for this work. */
void own_stream_busy_begin(struct context *context);
void own_stream_busy_end(struct context *context);
/* Synchronise the stream if it is idle. CUDA_ERROR_NOT_READY: it is not. */
CUresult own_stream_sync_idle(struct context *context);

/* The order of a context's pool with CUPOOL_FILL: as order_ops, and blocks are filled before they are handed out. */
extern const struct pool_order_ops order_filling_ops;

/* For CUPOOL_DEBUG: fill device memory of a context, or read it once all work has ended. Both wait on the host;
 * context_read until limit, in nanoseconds of the monotonic clock (0: as long as a free would). Return 0 or -EIO; -EIO
 * while a stream captures. */
int context_write(struct context *context, uint64_t addr, unsigned char byte, size_t size);
int context_read(struct context *context, uint64_t addr, void *buf, size_t size, uint64_t limit);

#endif
