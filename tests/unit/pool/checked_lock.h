/* SPDX-License-Identifier: Apache-2.0 */
/*
 * checked_lock.h - lock.h for the pool that the unit tests run: a lock that is released must be held, and a test can
 * have something happen just before a lock is taken. The compiler includes it before each source of pool/.
 *
 * It does not check which thread holds a lock.
 *
 * Threads: lock_hook is each thread's own; it is called without that lock.
 */
#ifndef CUPOOL_TESTS_CHECKED_LOCK_H
#define CUPOOL_TESTS_CHECKED_LOCK_H

#define lock_give lock_give_unchecked
#define lock_take lock_take_silently
#include "lock.h"
#undef lock_give
#undef lock_take

extern _Thread_local void (*lock_hook)(struct lock *lock);

void lock_not_held(void) __attribute__((noreturn));

static inline void lock_give(struct lock *lock)
{
    if (!atomic_load_explicit(&lock->taken, memory_order_relaxed))
        lock_not_held();
    lock_give_unchecked(lock);
}

static inline void lock_take(struct lock *lock)
{
    if (lock_hook)
        lock_hook(lock);
    lock_take_silently(lock);
}

#endif
