/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked_unlock.c - pthread_mutex_unlock for all libraries of a program: ends it when a thread releases a mutex that
 * it does not hold. Only for mutexes of the default kind, and for glibc, which notes the owner.
 *
 * Sanitizers have their own. Threads: any.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__has_feature)
#define SANITIZED __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#elif defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#if defined(__GLIBC__) && !SANITIZED
__attribute__((visibility("default"))) int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    static int (*next)(pthread_mutex_t * mutex);

    if (!__atomic_load_n(&next, __ATOMIC_RELAXED))
        __atomic_store_n(&next, (__typeof__(next))dlsym(RTLD_NEXT, "pthread_mutex_unlock"), __ATOMIC_RELAXED);
    if (mutex->__data.__kind == PTHREAD_MUTEX_TIMED_NP && mutex->__data.__owner != gettid()) {
        fprintf(stderr, "a mutex was released that this thread did not hold\n");
        abort();
    }
    return __atomic_load_n(&next, __ATOMIC_RELAXED)(mutex);
}
#endif
