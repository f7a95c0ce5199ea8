/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - the system's clocks in nanoseconds: what limits of time, durations and the trace's times are counted with.
 *
 * What it is not: the clock that allocation events are stamped with (records.c), which is cheaper.
 *
 * Threads: from any thread at any time, also in a signal handler. No locks.
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

/* Of the monotonic clock; never 0. */
static inline uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Sleep for so long, less than a second, or less when a signal comes. No cancellation point as nanosleep() is: what the
 * thread is in the middle of has to be finished. errno stays. */
static inline void nap_ns(uint32_t ns)
{
    const struct timespec nap = {.tv_nsec = ns};
    const int saved = errno;

    syscall(SYS_nanosleep, &nap, NULL);
    errno = saved;
}

#endif
