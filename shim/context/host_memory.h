/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_memory.h - the process's pool of pinned host memory (CUPOOL_HOST_POOL): where it comes from, and how the pool
 * learns which work is over, by events on all pooled contexts.
 *
 * It decides neither whose requests are pooled nor how a free is answered; serve/pinned_requests.h does.
 * pool/host_pool.h has the pool itself.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. Errors: 0 or -errno.
 */
#ifndef CUPOOL_SHIM_CONTEXT_HOST_MEMORY_H
#define CUPOOL_SHIM_CONTEXT_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host_pool.h"
#include "real/real.h"

struct context;

/* As flags: memory from cuMemAllocHost, which takes none. */
#define HOST_MEMORY_PLAIN 0x10000u

/* The pool, made at the first call. limit: the most bytes that it holds. NULL: the driver lacks a function that it
 * needs, or there is no host memory. */
struct host_pool *host_memory_make(const struct real_driver *driver, uint64_t limit);
/* The pool, or NULL if nothing has been pooled yet. */
struct host_pool *host_memory_pool(void);

/* Memory of the context, with the flags of cuMemHostAlloc or HOST_MEMORY_PLAIN. The context is current, and the caller
 * is in a call on it. Results as host_pool_alloc's; -EAGAIN: a stream captures, and the driver is to answer. */
int host_memory_alloc(struct context *context, unsigned int flags, size_t size, uint64_t *ret_addr);
/* The context that owns a live block. -ENOENT, -EINVAL: as for host_pool_free. */
int host_memory_owner(uint64_t addr, struct context **ret_context);

/* Put a free in this context in order, as one of device memory (POOL_ORDER_FREE): later work of the context starts
 * after earlier work, and the host waits if CUPOOL_FREE wants that. With `relaxed` nothing is put in order. */
int host_memory_order(struct context *context);

/* The counters of the pool. False: there is no pool. */
bool host_memory_stats(struct host_stats *ret_stats);

/* The context has ended, and its pinned memory with it. */
void host_memory_context_ended(const struct context *context);

#endif
