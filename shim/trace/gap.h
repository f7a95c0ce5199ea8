/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gap.h - which events are left out of the trace, and why: a file has a size limit, a program that allocates without
 * end must not lose its speed to the trace, and a disk may be full. Private to trace.c.
 *
 * It decides for each of the frequent events, counts those left out, and keeps the sum of held memory, which it writes
 * where the events that would show it are missing. It knows no file.
 *
 * Locking: none; the lock of trace.c guards all of it.
 */
#ifndef CUPOOL_SHIM_TRACE_GAP_H
#define CUPOOL_SHIM_TRACE_GAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Without allocation events: the number of events at once, and per second in the long run. */
#define GAP_BURST  16384u
#define GAP_RATE_S 1000u
/* The interval, in nanoseconds, at which held memory is written while events are left out. */
#define GAP_REPORT_NS 10000000000u
/* The number of pairs of device and backend whose held memory is known. */
#define GAP_TALLIES 128u

/* The backend of pinned memory. It is no device's, so its held memory has an event of its own, `host_held`. */
#define TRACE_HOST "host"

/* The kinds of frequent events, and the reasons to leave events out. */
enum gap_kind { GAP_SEGMENTS, GAP_BLOCKS, GAP_OTHERS, GAP_KINDS };
enum gap_why { GAP_LIMIT, GAP_RATE, GAP_ERROR };

/* LEFT_OUT: count the event. REPORT: count it, and write the gap (gap_reported). RESUME: write the gap, then the event.
 */
enum gap_verdict { GAP_WRITE, GAP_LEFT_OUT, GAP_REPORT, GAP_RESUME };

struct gap {
    uint64_t limit;   /* of the file, in bytes; 0: none */
    bool rated;       /* the rate of events is limited */
    uint64_t written; /* bytes; the caller adds to it */
    uint64_t credit;  /* events that may be written, times a second in nanoseconds */
    uint64_t at;      /* the time of credit */
    bool open;        /* events are being left out */
    enum gap_why why;
    uint64_t since, reported;
    /* Counters since the gap was last written. */
    uint64_t events[GAP_KINDS], bytes;
};

/* Start. now: in nanoseconds of the monotonic clock, here and below. */
void gap_start(struct gap *gap, uint64_t limit, bool rated, uint64_t now);

/* Decide about `count` events of len bytes together. */
enum gap_verdict gap_judge(struct gap *gap, enum gap_kind kind, uint64_t count, size_t len, uint64_t now);

/* A line could not be written. */
void gap_fail(struct gap *gap, uint64_t now);

/* The gap was written: reset its counters. */
void gap_reported(struct gap *gap, uint64_t now);

/* A segment was taken (got) or went back. The backend's text must stay valid. */
void gap_tally(int device, const char *backend, size_t size, bool got);

/*
 * The lines of a gap: the events left out since it was last written, and held memory, which the missing events would
 * have shown. open: the gap goes on. t, since: nanoseconds in the file's time; t must not be later than the time of the
 * next event, or readers would place that event before the gap. room: 512 at least. Returns the length.
 */
size_t gap_text(const struct gap *gap, bool open, uint64_t t, uint64_t since, char *text, size_t room);

#endif
