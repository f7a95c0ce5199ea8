/* SPDX-License-Identifier: Apache-2.0 */
/* limits.h - numbers that several modules share, and scripts/replay with them. It has no functions, and no state. */
#ifndef CUPOOL_SHIM_CONTEXT_LIMITS_H
#define CUPOOL_SHIM_CONTEXT_LIMITS_H

#include <stddef.h>

/* The number of contexts that are pooled at the same time. */
#define CONTEXTS_MAX 256
/* The number of devices that are told apart; a device's number modulo this is its index. */
#define DEVICES_MAX 64
/* All devices, where one is asked for. */
#define CONTEXT_ALL (-1)

/*
 * The part of the device's memory that large blocks sharing a segment may keep from going back while the device is
 * empty. It shrinks as the pool hands memory out, so that a program that fills the device finds nearly all the memory
 * that the driver would have.
 */
#define SHARED_PART 16
/* Idle bytes that a growing pool may keep in any case: a small program need not be sparing. */
#define EXCESS_MIN ((size_t)32 << 20)
/* Bytes by which a pool may exceed 1.10 times the driver's own use before a request waits for memory; also the pool of
 * pinned memory. */
#define BOUND_MIN ((size_t)64 << 20)
/* The least budget of deferred frees in bytes, because a percentage of a small program's memory would be next to
 * nothing. */
#define DEFERRED_MIN ((size_t)64 << 20)
/* While less than this part of the device's memory is free, idle segments go back at once, for programs that cannot ask
 * us for memory. */
#define RESERVE_PART 128
/* The number of ticks in a decay time. Memory that was idle for all but one of them goes back, so none is kept
 * longer. */
#define DECAY_TICKS 8

#endif
