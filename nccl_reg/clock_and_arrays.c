/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock_and_arrays.c - see clock_and_arrays.h.
 *
 * Locking: none of its own.
 */
#include "clock_and_arrays.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int reg_reserve(void **array, size_t count, size_t *room, size_t size)
{
    const size_t wanted = *room ? 2 * *room : 16;
    void *grown;

    if (count < *room)
        return 0;
    grown = realloc(*array, wanted * size);
    if (!grown)
        return -ENOMEM;
    *array = grown;
    *room = wanted;
    return 0;
}

void reg_nap(void)
{
    const struct timespec nap = {.tv_nsec = 50000};
    const int saved = errno;

    syscall(SYS_nanosleep, &nap, NULL); /* nanosleep() is a cancellation point */
    errno = saved;
}

uint64_t reg_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
