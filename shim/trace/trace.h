/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the events of the trace (format: docs/trace.md).
 *
 * It knows nothing of pools or CUDA; callers pass the contents of an event. It never fails its caller: events that
 * cannot be written are counted, and one warning is logged.
 *
 * Threads: every function is safe from any thread. Allocation events are recorded without a lock, other events are
 * written under that of the file.
 */
#ifndef CUPOOL_SHIM_TRACE_TRACE_H
#define CUPOOL_SHIM_TRACE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trace/records.h"
#include "trace/trace_file.h"

/* Nanoseconds as microseconds, to a tenth: two values, for "%llu.%llu". */
#define TRACE_US(ns) (unsigned long long)((ns) / 1000), (unsigned long long)((ns) / 100 % 10)

/* Write one event at once: {"t":...,"e":"event","tid":...,<format>}. format makes the rest of the object's members. */
void trace_event(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As trace_event, for a kind of event that a program may cause without end: where there are too many, they are only
 * counted (gap.h). */
void trace_frequent(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As trace_frequent, for an event at an earlier time, in nanoseconds of the monotonic clock. */
void trace_frequent_at(uint64_t clock, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As trace_event, for the event of a segment. */
void trace_segment(const struct trace_segment *segment, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As trace_segment, at an earlier time, in nanoseconds of the monotonic clock. */
void trace_segment_at(uint64_t clock, const struct trace_segment *segment, const char *event, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Record an allocation event; it is written a little later. */
void trace_block(enum trace_block_event event, const struct trace_block *block);

#endif
