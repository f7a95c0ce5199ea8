/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - the system's clocks in nanoseconds, for time limits, durations and the times of the trace.
 *
 * It is not the clock of allocation events, which is cheaper (records.c).
 *
 * Threads: any thread at any time, also in a signal handler. No locks.
 */
#ifndef CUPOOL_POOL_CLOCK_H
#define CUPOOL_POOL_CLOCK_H

#include <errno.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The monotonic clock; never 0. */
static inline uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Sleep for ns nanoseconds, less than a second, or less if a signal comes. Unlike nanosleep() it is no cancellation
 * point, because the thread must finish its operation. Keeps errno. */
static inline void nap_ns(uint32_t ns)
{
    const struct timespec nap = {.tv_nsec = ns};
    const int saved = errno;

    syscall(SYS_nanosleep, &nap, NULL);
    errno = saved;
}

#endif
