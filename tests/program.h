/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program.h - the system's usual headers, calls that must succeed, and time, for programs that tests run.
 *
 * Threads: any.
 */
#ifndef CUPOOL_TESTS_PROGRAM_H
#define CUPOOL_TESTS_PROGRAM_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Ends the program with a line on stderr. No handler of exit runs: it might wait for what has failed. */
#define FAIL(...) (fflush(stdout), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))

/* A call that must return 0, as those of CUDA, NCCL and pthreads do. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        const int error_ = (int)(call);                                                                                \
        if (error_)                                                                                                    \
            FAIL("%s, line %d: %s: %d", __FILE__, __LINE__, #call, error_);                                            \
    } while (0)

static inline double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static inline double now_ms(void)
{
    return now_us() / 1e3;
}

static inline void nap_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static inline void join_all(const pthread_t *threads, size_t count)
{
    for (size_t i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* For qsort, of double. */
static inline int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

#endif
