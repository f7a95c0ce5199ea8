/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked_mutex.c - mutexes that notice a release by a thread that does not hold them, and a lock taken twice, which
 * then fails. The linker's --wrap sends the calls here.
 *
 * Threads: any.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "wrapped.h"

WRAPPED(int, pthread_mutex_init, (pthread_mutex_t * mutex, const pthread_mutexattr_t *attr))
{
    pthread_mutexattr_t checked;

    (void)attr; /* nobody here has any */
    pthread_mutexattr_init(&checked);
    pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
    return __real_pthread_mutex_init(mutex, &checked);
}

WRAPPED(int, pthread_mutex_unlock, (pthread_mutex_t * mutex))
{
    if (__real_pthread_mutex_unlock(mutex) == 0)
        return 0;
    fputs("a mutex was released that this thread did not hold\n", stderr);
    abort();
}
