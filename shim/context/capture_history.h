/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_history.h - whether a stream has captured since NCCL gave a segment.
 *
 * For a captured operation NCCL registers the whole allocation by itself, and keeps the registration as long as the
 * graph may run. Without CUPOOL_REGISTER the library does not learn which allocations these are, so a segment that
 * existed during a capture is never given back. This module only answers; it gives nothing back.
 *
 * Threads: every function may be called from any thread. One lock, private to capture_history.c.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CAPTURE_HISTORY_H
#define CUPOOL_SHIM_CONTEXT_CAPTURE_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

/* The time to store with a segment that is about to be requested: a capture already under way may come to use it, so it
 * counts as later. */
unsigned int capture_history_now(void);
/* True if a stream has captured since that time. */
bool capture_history_since(unsigned int time);
/* NCCL has given a segment at addr, requested at that time. Without host memory for its entry the segment counts as
 * older than every capture. */
void capture_history_add(uint64_t addr, unsigned int time);
/* True if a stream has captured since the segment at addr was requested. Removes its entry. */
bool capture_history_saw(uint64_t addr);

#endif
