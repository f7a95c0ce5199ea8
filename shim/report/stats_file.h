/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats_file.h - CUPOOL_STATS_FILE: a small file of fixed size with the latest counters, for readers outside the
 * process (layout: docs/live.md; reader: scripts/cupool_trace/live.py).
 *
 * The file is written, not mapped: a store to a mapping ends the program if another process has truncated the file or
 * its disk is full. Written pages outlive a killed process all the same. Two halves are written in turn, each with a
 * checksum, so that one of them is complete at any moment.
 *
 * It is not a trace, and not part of a request's path: the background thread writes it (background_thread.h), and exit.
 *
 * Threads: every function may be called from any thread. One lock, private to stats_file.c, is held over the writing;
 * if it cannot be taken at once, nothing is written.
 */
#ifndef CUPOOL_SHIM_REPORT_STATS_FILE_H
#define CUPOOL_SHIM_REPORT_STATS_FILE_H

#include <stdint.h>

/* Create the file, if the setting names one. Once, on the thread of the first segment, whose working folder counts. */
void stats_page_open(void);

/* For the background thread: the time of the next update, in nanoseconds of the monotonic clock; UINT64_MAX: none. */
uint64_t stats_page_due(uint64_t now);
/* Write if the time has come. now: in nanoseconds of the monotonic clock. */
void stats_page_tick(uint64_t now);

/* Write the last update and close the file. For exit. */
void stats_page_finish(void);

/* In a forked child: forget the parent's file without touching it. */
void stats_page_forget(void);

#endif
