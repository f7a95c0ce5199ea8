/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - the trace file (format: docs/trace.md).
 *
 * What it is not: it knows nothing of pools or CUDA; callers pass what goes into an event. It never fails its caller:
 * what cannot be written is counted and said once.
 *
 * Threads: every function is safe from any thread. One lock, private to trace.c, held over write(2) and nothing else;
 * allocation events are recorded without it.
 */
#ifndef CUPOOL_SHIM_TRACE_H
#define CUPOOL_SHIM_TRACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Open the file and write the header, once; for the first pooled request. */
void trace_open(void);

/* Write one event at once: {"t":...,"e":"event","tid":...,<format>}. format holds the rest of the object's members. */
void trace_event(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same of an event that is only counted where there are too many (gap.h): of a kind that a program may cause
 * without end. */
void trace_frequent(const char *event, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same of one that was at another time of the monotonic clock, in nanoseconds: a little while ago. */
void trace_frequent_at(uint64_t clock, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A segment that came (got) or goes. */
struct trace_segment {
    int device;
    const char *backend; /* a text that stays */
    size_t size;
    bool got;
};

/* The same of its event. */
void trace_segment(const struct trace_segment *segment, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Make a name fit for an event: what JSON would have to escape is replaced. */
void trace_clean(char *text);

/* Only trace.c writes them. */
enum trace_prospect { TRACE_UNDECIDED, TRACE_THERE, TRACE_NONE };
extern atomic_int trace_prospect;
extern atomic_bool trace_allocs_wanted;

/* Before the file is open: does somebody want one? */
bool trace_decide(void);

/* False: there is no trace, and there will be none. One load for those who find it so. */
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
 * Text as the inside of a JSON string, of at most len bytes with the 0 behind it: what does not fit is cut off, between
 * characters; a byte that is no UTF-8 becomes a question mark.
 */
void trace_text(char *buf, size_t len, const char *text);

#define TRACE_FRAMES 8

enum trace_block_event { TRACE_BLOCK_ALLOC, TRACE_BLOCK_FREE_REQUESTED, TRACE_BLOCK_FREE_COMPLETED };

/* What it is about. */
struct trace_block {
    int device;
    uint64_t addr;
    size_t size;               /* that was asked for */
    size_t block;              /* that was handed out, a multiple of 512; 0: not to be said */
    const uint16_t *frames;    /* the numbers of those that it came through */
    unsigned int frames_count; /* TRACE_FRAMES at most */
};

/* An allocation event: recorded, and written a little later. */
void trace_block(enum trace_block_event event, const struct trace_block *block);

/* From now on a thread of our own writes what was recorded, if there are such events. */
void trace_write_behind(void);
/* Is there such a thread? */
bool trace_writes_behind(void);
/* It ends soon. */
void trace_write_end(void);

/* Write what is recorded and the end line; later events are dropped. For exit. */
void trace_close(void);

/* In a forked child: forget the parent's file without touching it. */
void trace_forget(void);

/* Where the trace goes, or NULL. */
const char *trace_path(void);

#endif
