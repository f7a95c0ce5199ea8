/* SPDX-License-Identifier: Apache-2.0 */
/*
 * give_way.h - how a test lets other threads on and waits for them, also where one processor has other programs to run.
 *
 * There a thread that calls sched_yield() comes back after 6 ms, because it gives up its share to those programs, one
 * that sleeps for a microsecond after 0.1 ms. On an idle machine such a sleep takes 60 us: so neither is for every step
 * of a long loop.
 *
 * Threads: any. No function is a cancellation point, or changes errno.
 */
#ifndef CUPOOL_TESTS_GIVE_WAY_H
#define CUPOOL_TESTS_GIVE_WAY_H

#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void give_way(void)
{
    const struct timespec nap = {.tv_nsec = 1000};
    const int saved = errno;

    syscall(SYS_nanosleep, &nap, NULL);
    errno = saved;
}

/* In a call that threads are to meet in: each thread sleeps in every 16th one. */
static inline void give_way_at_times(void)
{
    static __thread unsigned int calls;

    if (++calls % 16 == 0)
        give_way();
}

/* In a loop that waits for another thread's step of some instructions: the thread spins before it sleeps. looks: how
 * often it has looked. */
static inline void give_way_after(unsigned int looks)
{
    if (looks % 2000 == 0)
        give_way();
}

#endif
