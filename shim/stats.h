/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - CUPOOL_STATS: the counters of each device, on stderr as a table and in the trace as events; when the
 * process ends, at a signal, every so often.
 *
 * What it is not: it counts nothing; the pools do. A signal's handler sets a flag and wakes the clock's thread
 * (decay.h), which writes; so nothing is written before the first segment, nor where no thread is to be had.
 *
 * Threads: every function, from any thread. One lock, private to stats.c, over the writing of a table; where it cannot
 * be had at once nothing is printed.
 */
#ifndef CUPOOL_SHIM_STATS_H
#define CUPOOL_SHIM_STATS_H

#include <stdint.h>

/* Handle the signal that is asked for, if the program does not. Once, before the rest. */
void stats_start(void);

/* Of the clock's thread. The time, by the monotonic clock in ns, of the next table; UINT64_MAX: none is to come. */
uint64_t stats_due(uint64_t now);
/* Write if a signal has asked for it, or the time has come. */
void stats_tick(uint64_t now);

/* Each device's counters into the trace, and the table if it is asked for. For exit. */
void stats_finish(void);

/* In a forked child: a signal ends it, as natively. */
void stats_forget(void);

#endif
