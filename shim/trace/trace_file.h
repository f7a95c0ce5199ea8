/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_file.h - the trace's file: it is opened and closed, and whole lines are written to it.
 *
 * It does not know which events there are; trace.h and records.h do. A line that cannot be written is counted, and one
 * warning is logged; no function fails its caller.
 *
 * Threads: every function may be called from any thread. The lock is private to trace_file.c and held over write(2) and
 * nothing else; functions that need it say so. A thread must not be cancelled while it has the lock.
 */
#ifndef CUPOOL_SHIM_TRACE_TRACE_FILE_H
#define CUPOOL_SHIM_TRACE_TRACE_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "trace/gap.h"

/* Open the file and write the header, once; called for the first pooled request. */
void trace_open(void);

/* A segment that was taken (got) or goes back. */
struct trace_segment {
    int device;
    const char *backend; /* a text that stays valid */
    size_t size;
    bool got;
};

/* Written by trace_file.c alone. */
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

/* Write all records and the end line, and close the file; later events are dropped. For exit. */
void trace_close(void);

/* In a forked child: forget the parent's file without touching it. */
void trace_forget(void);

/* The file's path; NULL: there is no trace. Valid until trace_close. */
const char *trace_path(void);

/* --- for the other files of this room --- */

/* Take the lock, and disable cancellation of the thread until trace_file_unlock. False: this thread holds the lock
 * already, below a signal handler, or the wait took too long. */
bool trace_file_lock(int *ret_cancel);
void trace_file_unlock(int cancel);

/* With the lock. Is the file open? */
bool trace_file_is_open(void);
/* With the lock. The time in the file of a time of the monotonic clock, in nanoseconds. */
uint64_t trace_file_since(uint64_t clock);
/* With the lock. Write the line of an event that is never left out. t: its time. After an error the gap comes first, so
 * that a reader knows why the line before it is half a line. */
void trace_file_put_event(const char *data, size_t len, uint64_t t);
/* With the lock. Write whole lines of a kind that gap.h may leave out. segment: the segment that the line is
 * about, or NULL; it counts as held unless the line itself is written. t: the time of the line; of allocation events,
 * which are many lines, it does not count. */
void trace_file_put_frequent(enum gap_kind kind, const char *data, size_t len, uint64_t t,
                             const struct trace_segment *segment);
/* With the lock. Write the records made so far. wait: wait also for records that are being made. False: there were
 * none. */
bool trace_file_flush(bool wait);
/* Count an event that is not written, with the lock and without it. */
void trace_file_drop(void);
void trace_file_lose(void);

/* This thread is between reserving a record and publishing it: a signal handler on it must not wait for that record. */
extern __thread bool trace_recording __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* Private to trace_tid. */
extern __thread pid_t trace_thread_id __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline int trace_tid(void)
{
    if (!trace_thread_id)
        trace_thread_id = (pid_t)syscall(SYS_gettid);
    return (int)trace_thread_id;
}

#endif
