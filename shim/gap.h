/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gap.h - which events of the trace are left out, and what of: a file has a limit, a program that allocates without end
 * is not to lose its speed to the trace, and a disk may be full. Private to trace.c.
 *
 * What it is: a decision for each of the frequent events, and counters of those that were left out; and what is held,
 * which is told where the events that would tell it are missing. What it is not: it knows no file.
 *
 * Locking: none; all of it is guarded by the lock of trace.c.
 */
#ifndef CUPOOL_SHIM_GAP_H
#define CUPOOL_SHIM_GAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Without allocation events: so many at once, so many a second in the long run. */
#define GAP_BURST  16384u
#define GAP_RATE_S 1000u
/* While events are left out, what is held is told so often. */
#define GAP_TELL_NS 10000000000u
/* What is held is known of so many devices, of each backend. */
#define GAP_TALLIES 128u

enum gap_kind { GAP_SEGMENTS, GAP_BLOCKS, GAP_OTHERS, GAP_KINDS };
enum gap_why { GAP_LIMIT, GAP_RATE, GAP_ERROR };

/* LEFT_OUT: it is counted. TELL: the same, and the gap is to be told (gap_told). RESUME: the gap is to be told, then
 * the event is written. */
enum gap_verdict { GAP_WRITE, GAP_LEFT_OUT, GAP_TELL, GAP_RESUME };

struct gap {
    uint64_t limit;   /* bytes of the file; 0: none */
    bool rated;       /* there is a limit of speed */
    uint64_t written; /* bytes; for the caller to add to */
    uint64_t credit;  /* events that may be written, times a second in nanoseconds */
    uint64_t at;      /* when that was so */
    bool open;        /* events are being left out */
    enum gap_why why;
    uint64_t since, told;
    /* Since the last time that it was told. */
    uint64_t events[GAP_KINDS], bytes;
};

/* now: of the monotonic clock, in nanoseconds. */
void gap_start(struct gap *gap, uint64_t limit, bool rated, uint64_t now);

/* What becomes of so many events, of len bytes together. */
enum gap_verdict gap_judge(struct gap *gap, enum gap_kind kind, uint64_t count, size_t len, uint64_t now);

/* A line could not be written. */
void gap_fail(struct gap *gap, uint64_t now);

/* The gap was told. */
void gap_told(struct gap *gap, uint64_t now);

/* A segment came (got) or went. The backend's text must stay. */
void gap_tally(int device, const char *backend, size_t size, bool got);

/*
 * The lines that tell a gap: what has been left out since it was last told, and what is held, which the events that are
 * missing would have said. open: it goes on. t, since: nanoseconds as in the file; t no later than that of the event
 * which comes next, or readers would place that before. room: 512 at least. Returns the length.
 */
size_t gap_text(const struct gap *gap, bool open, uint64_t t, uint64_t since, char *text, size_t room);

#endif
