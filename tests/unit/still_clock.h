/* SPDX-License-Identifier: Apache-2.0 */
/*
 * still_clock.h - a clock that stands still until a test moves it, in the place of the system's: a test that includes
 * this is linked with --wrap=clock_gettime. A thread that calls on_wait, if it has one, has looked at the clock LOOKS
 * times and is taken to be waiting.
 *
 * Threads: now is for all; on_wait and looks are each thread's own.
 */
#ifndef CUPOOL_TESTS_STILL_CLOCK_H
#define CUPOOL_TESTS_STILL_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "wrapped.h"

/* A thread that has looked at the clock so often while nothing moved is waiting. */
#define LOOKS 64u

static _Atomic uint64_t now = 1000000000;
static _Thread_local void (*on_wait)(void);
static _Thread_local unsigned int looks;

WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *ts))
{
    uint64_t ns;

    if (on_wait && ++looks >= LOOKS)
        on_wait();
    ns = atomic_load(&now);
    *ts = (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    return 0;
}

#endif
