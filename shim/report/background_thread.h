/* SPDX-License-Identifier: Apache-2.0 */
/*
 * background_thread.h - the background thread: from the first segment until the process ends it gives idle memory back,
 * collects released memory that has arrived, writes statistics when they are due (stats.h), gives memory to other
 * processes that ask for it (context/neighbours.h), and hands exported blocks to those that import them
 * (context/ipc_server.h). When all threads of the program have ended, this thread ends as the last one, so that the
 * process ends as it natively would. It does not decide which memory is idle; the pools do.
 *
 * Threads: every function may be called from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_REPORT_BACKGROUND_THREAD_H
#define CUPOOL_SHIM_REPORT_BACKGROUND_THREAD_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Work that the thread does when it is due, for modules above this one. serve/library.c defines the table, whose last
 * row has no tick: data that the linker fills in. Times are in nanoseconds of the monotonic clock.
 */
struct background_job {
    void (*start)(void);           /* once, on the thread that has got the first segment; NULL: nothing to do */
    uint64_t (*due)(uint64_t now); /* the time of the next tick; UINT64_MAX: none */
    void (*tick)(uint64_t now);    /* called often; does its work if the time has come */
    /* NULL, all three: it reads nothing that comes from outside. */
    unsigned int (*listen)(struct pollfd *fds, unsigned int max); /* fills in descriptors to be polled; their number */
    void (*ring)(void);                                           /* make a poll of these return; async-signal-safe */
    void (*end)(void);                                            /* the thread has ended, or is about to */
};
extern const struct background_job background_jobs[];

/* Start the thread, unless it runs or another thread is about to start it. False: there is none and will be none. */
bool background_start(void);

/* Wake the thread, which then looks for work. Async-signal-safe. */
void background_wake(void);

/* In a forked child, which has no such thread. */
void background_forget(void);

#endif
