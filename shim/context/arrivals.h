/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arrivals.h - segments on their way back to the driver: released through our own stream, they arrive when a thread
 * synchronises that stream.
 *
 * It releases nothing; segment_driver.h does.
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

/* The longest wait for memory that this thread's own frees have released, in nanoseconds. Natively those frees would
 * have waited, however long; the limit is for work that another thread has launched between a deferred free and its
 * order. */
#define ARRIVALS_OWN_NS 30000000000u
/* The longest wait of a refused request for memory that other threads' frees have released, in nanoseconds. Natively a
 * free that has returned has released its memory, but a free that would not have returned yet would let the request
 * fail at once; and the device's work may be waiting for this thread. */
#define ARRIVALS_OTHERS_NS 300000000u

/* Synchronise our own stream once it is idle, and poll for patience_ns nanoseconds until it is. True: some memory has
 * arrived. */
bool arrivals_collect(struct context *context, uint64_t patience_ns);
/* As arrivals_collect without patience, but at most one segment of virtual memory. */
bool arrivals_collect_one(struct context *context);
/* As arrivals_collect, polling for ARRIVALS_OWN_NS while this thread's free is the last one, and for others_ns
 * otherwise; others_ns 0: for 30 ms at most, and only while the work before all ordered frees is over. Memory that a
 * thread has waited for in vain is waited for only briefly. */
bool arrivals_collect_own(struct context *context, uint64_t others_ns);
/* As long, poll until no free waits in the driver: the order of deferred blocks would be held up there. is_own: this
 * thread has freed some of them. False: one still does. */
bool arrivals_wait_freeing(struct context *context, bool is_own);
/* Between these all waits of this thread for memory that other threads' frees have released end after ns nanoseconds
 * together. */
void arrivals_share_begin(uint64_t ns);
void arrivals_share_end(void);
/* Bytes that have been given back and have not arrived at the driver yet. */
size_t arrivals_outstanding(const struct context *context);

#endif
