/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_observer.h - the events host_alloc and host_free of the trace: pinned memory that the pool takes from the driver
 * and gives back. It keeps nothing, and changes nothing of the memory.
 *
 * Threads: every function may be called from any thread; the caller holds no lock.
 */
#ifndef CUPOOL_SHIM_CONTEXT_HOST_OBSERVER_H
#define CUPOOL_SHIM_CONTEXT_HOST_OBSERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "host_pool.h"

/* The driver has handed out this memory, in a call that took ns nanoseconds. An operation of the pool. */
void host_observe_got(void *arg, const struct host_key *key, uint64_t addr, size_t size, uint64_t ns);
/* The driver has taken this memory back, in a call that began at `since`, in nanoseconds of the monotonic clock, and
 * has just returned. ok: without an error. */
void host_observe_freed(const struct host_key *key, uint64_t addr, size_t size, uint64_t since, bool ok);
/* The memory has gone without a call of the pool: its context has ended, or another call has freed it. An operation of
 * the pool. */
void host_observe_lost(void *arg, const struct host_key *key, uint64_t addr, size_t size);

#endif
