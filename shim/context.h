/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - what we keep for each CUDA context: its pool, and how frees are ordered in it.
 *
 * A context is found by the handle that is current on the calling thread. Contexts made from green contexts have none:
 * what runs in the primary context is not ordered by theirs.
 *
 * Threads: every function, from any thread. Locks are private to context.c and never held over a CUDA call.
 */
#ifndef CUPOOL_SHIM_CONTEXT_H
#define CUPOOL_SHIM_CONTEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"
#include "pool.h"
#include "real.h"

struct context;

/* The context that is current on this thread, made known on first sight; NULL: none, or one that is not pooled. */
struct context *context_current(const struct real_driver *driver);

struct pool *context_pool(const struct context *context);
/* The driver's ordinal of a context's device. */
int context_device(const struct context *context);
/* The context of a pool's arg. */
struct context *context_of(const struct pool *pool);
/* Count a request that went to the driver unpooled. */
void context_bypassed(struct context *context);

/* Bytes in the device's pools of which nothing is handed out: they could go back to the driver at once. */
uint64_t context_idle_bytes(int device);

/* Give back what the pools of the current device hold without need. True if that was anything. */
bool context_trim(void);

/* Never pool in the context of this handle (a green one). */
void context_exempt(CUcontext handle);

/*
 * A context is about to go: no new requests are served from its pool. context_gone(true) afterwards forgets its memory,
 * context_gone(false) takes the context back into use. NULL is allowed.
 */
struct context *context_leaving(CUcontext handle);
struct context *context_leaving_primary(CUdevice device);
void context_gone(struct context *context, bool gone);

/* Forget primary contexts that are no longer active. */
void context_sweep(void);

/* Wait until no call that orders frees is in flight in the context of this handle. */
void context_settle(CUcontext handle);

/* Statistics by device: the sums over its contexts, live or gone. For exit. */
void context_stats_each(void (*each)(int device, const struct pool_stats *stats, uint64_t bypassed));

#endif
