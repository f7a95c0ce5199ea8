/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve/pinned_requests.h - is a request for pinned memory pooled, and is a free of pinned memory the pool's? Off
 * unless CUPOOL_HOST_POOL=1; then every function returns SERVE_FORWARD, false or nothing at once.
 *
 * It returns no CUresult; exports/pinned_calls.c does. Not here: device memory (serve.h).
 *
 * Threads: every function may be called from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_SERVE_PINNED_REQUESTS_H
#define CUPOOL_SHIM_SERVE_PINNED_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "serve/serve.h"

/* Serve a request. flags: cuMemHostAlloc's, or HOST_MEMORY_PLAIN. SERVE_FORWARD: the driver is to answer. */
enum serve_verdict serve_host_alloc(unsigned int flags, size_t size, const void *caller, uint64_t *ret_addr);
/* The driver has answered such a request with this memory. */
void serve_host_passed(uint64_t addr, size_t size);

/* Free memory. SERVE_DONE, SERVE_FORWARD, SERVE_INVALID, SERVE_OVER, SERVE_FAILED as for serve_free. */
enum serve_verdict serve_host_free(uint64_t addr);
/* After SERVE_FAILED: as serve_failed_begin and serve_failed_end, for pinned memory. */
void serve_host_failed_begin(uint64_t addr, struct serve_failed *ret_failed);
void serve_host_failed_end(struct serve_failed *failed);

/* Is the address in memory of the pool? Then the live block around it; *ret_size 0: there is none. */
bool serve_host_range(uint64_t addr, uint64_t *ret_base, size_t *ret_size);

/* Make the pool if the settings want one, for memory that the library itself needs; a context is current. */
void serve_host_wanted(void);

/* Rows of background_jobs: give back memory that has been idle. */
uint64_t serve_host_due(uint64_t now);
void serve_host_tick(uint64_t now);

#endif
