/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.h - CUPOOL_STATS_FILE: a small file of fixed size that always has the latest counters, for those who look at a
 * running process from outside (layout: docs/live.md; reader: scripts/cupool_trace/live.py).
 *
 * It is written, not mapped: a store to a mapping ends the program if somebody has cut the file meanwhile or its disk
 * is full. Written pages outlive a killed process all the same. Two halves are written in turn, each with a checksum,
 * so that one of them is whole at any moment.
 *
 * What it is not: a trace; and nothing of a request's path. The clock's thread writes (decay.h), and the exit.
 *
 * Threads: every function, from any thread. One lock, private to live.c, over the writing; where it cannot be had at
 * once nothing is written.
 */
#ifndef CUPOOL_SHIM_LIVE_H
#define CUPOOL_SHIM_LIVE_H

#include <stdint.h>

/* Create the file, if one is asked for. Once, on the thread of the first segment: it says which folder is meant. */
void live_open(void);

/* Of the clock's thread. The time, by the monotonic clock in ns, of the next update; UINT64_MAX: none is to come. */
uint64_t live_due(void);
/* Write if the time has come. */
void live_tick(uint64_t now);

/* The last update. For exit. */
void live_finish(void);

/* In a forked child: forget the parent's file without touching it. */
void live_forget(void);

#endif
