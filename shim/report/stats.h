/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.h - CUPOOL_STATS: the counters of each device, as a table on stderr and as events in the trace, when the
 * process ends, at a signal, or periodically.
 *
 * It counts nothing; the pools do. The signal handler sets a flag and wakes the background thread
 * (background_thread.h), which writes; so nothing is written before the first segment, or if that thread could not be
 * started.
 *
 * Threads: every function may be called from any thread. One lock, private to stats.c, is held over the writing of a
 * table; if it cannot be taken at once, nothing is printed.
 */
#ifndef CUPOOL_SHIM_REPORT_STATS_H
#define CUPOOL_SHIM_REPORT_STATS_H

#include <stdint.h>

/* Install the handler for the signal of the setting, unless the program handles it. Once, before the functions
 * below. */
void stats_start(void);

/* For the background thread: the time of the next table, in nanoseconds of the monotonic clock; UINT64_MAX: none. */
uint64_t stats_due(uint64_t now);
/* Write if a signal has come or the time has come. now: in nanoseconds of the monotonic clock. */
void stats_tick(uint64_t now);

/* Write each device's counters to the trace, and the table if the setting asks for it. For exit. */
void stats_finish(void);

/* In a forked child: restore the signal's default action. */
void stats_forget(void);

#endif
