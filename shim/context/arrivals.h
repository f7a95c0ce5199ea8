/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrivals.h - segments on their way back to the driver: released through our own stream, they arrive when a thread
 * synchronises that stream.
 *
 * It releases nothing; segments.h does.
 *
 * Threads: every function may be called from any thread that has pinned the context or is in a call on it. No locks.
 */
#ifndef CUPOOL_SHIM_CONTEXT_ARRIVALS_H
#define CUPOOL_SHIM_CONTEXT_ARRIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* A counter of arrivals: how often released memory has become available at the driver. context_arrived increments
 * it. */
unsigned int context_arrivals(void);
void context_arrived(void);

/* The longest wait for released memory that waits for no other work on the device, in nanoseconds. */
#define ARRIVALS_WAIT_NS 1000000000u
/* The longest wait of a refused request for memory that other threads' frees have released, in nanoseconds. Natively a
 * free that has returned has released its memory, but a free that would not have returned yet would let the request
 * fail at once; and the device's work may be waiting for this thread. */
#define ARRIVALS_OTHERS_NS 300000000u

/* Synchronise our own stream once it is idle, and poll for patience_ns nanoseconds until it is. True: some memory has
 * arrived. */
bool arrivals_collect(struct context *context, uint64_t patience_ns);
/* As arrivals_collect, after a refusal: waits for this thread's own frees for as long as they natively would have
 * waited, and for those of other threads for a limited time. */
bool arrivals_collect_refused(struct context *context);
/* Bytes that have been given back and have not arrived at the driver yet. */
size_t arrivals_outstanding(const struct context *context);

#endif
