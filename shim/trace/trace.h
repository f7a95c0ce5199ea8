/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the trace file (format: docs/trace.md).
 *
 * It knows nothing of pools or CUDA; callers pass the contents of an event. It never fails its caller: events that
 * cannot be written are counted, and one warning is logged.
 *
 * Threads: every function is safe from any thread. One lock, private to trace.c, is held over write(2) and nothing
 * else; allocation events are recorded without it.
 */
#ifndef CUPOOL_SHIM_TRACE_H
#define CUPOOL_SHIM_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Open the file and write the header, once; called for the first pooled request. */
void trace_open(void);

/* Write one event at once: {"t":...,"e":"event","tid":...,<format>}. format makes the rest of the object's members. */
void trace_event(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As trace_event, for a kind of event that a program may cause without end: where there are too many, they are only
 * counted (gap.h). */
void trace_frequent(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* As trace_frequent, for an event at an earlier time, in nanoseconds of the monotonic clock. */
void trace_frequent_at(uint64_t clock, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A segment that was taken (got) or goes back. */
struct trace_segment {
    int device;
    const char *backend; /* a text that stays valid */
    size_t size;
    bool got;
};

/* As trace_event, for the event of a segment. */
void trace_segment(const struct trace_segment *segment, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Replace the characters of a name that JSON would have to escape. */
void trace_clean(char *text);

/* Written by trace.c alone. */
enum trace_prospect { TRACE_UNDECIDED, TRACE_THERE, TRACE_NONE };
extern atomic_int trace_prospect;
extern atomic_bool trace_allocs_wanted;

/* Before the file is open: read the setting. False: no trace is wanted. */
bool trace_decide(void);

/* False: there is no trace, and there will be none. That answer costs one load. */
static inline bool trace_expected(void)
{
    const int prospect = atomic_load_explicit(&trace_prospect, memory_order_relaxed);

    return prospect == TRACE_THERE || (prospect == TRACE_UNDECIDED && trace_decide());
}

/* True if allocation events are wanted. */
static inline bool trace_allocs(void)
{
    return atomic_load_explicit(&trace_allocs_wanted, memory_order_relaxed);
}

/*
 * Write text as the inside of a JSON string to buf, of len bytes with the 0 at its end. Longer text is cut off between
 * characters; a byte that is not UTF-8 becomes a question mark.
 */
void trace_text(char *buf, size_t len, const char *text);

#define TRACE_FRAMES 8

/* The kinds of allocation events. */
enum trace_block_event { TRACE_BLOCK_ALLOC, TRACE_BLOCK_FREE_REQUESTED, TRACE_BLOCK_FREE_COMPLETED };

/* The contents of an allocation event. */
struct trace_block {
    int device;
    uint64_t addr;
    size_t size;               /* bytes requested */
    size_t block;              /* bytes handed out, a multiple of 512; 0: leave out of the event */
    const uint16_t *frames;    /* numbers of the stack frames of the call, see stacks.h */
    unsigned int frames_count; /* TRACE_FRAMES at most */
};

/* Record an allocation event; it is written a little later. */
void trace_block(enum trace_block_event event, const struct trace_block *block);

/* From now on a thread of our own writes the records, if there are allocation events. */
void trace_write_behind(void);
/* True if that thread runs. */
bool trace_writes_behind(void);
/* Tell that thread to end soon. */
void trace_write_end(void);

/* Write all records and the end line, and close the file; later events are dropped. For exit. */
void trace_close(void);

/* In a forked child: forget the parent's file without touching it. */
void trace_forget(void);

/* The file's path; NULL: there is no trace. Valid until trace_close. */
const char *trace_path(void);

#endif
