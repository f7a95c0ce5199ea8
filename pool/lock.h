/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - the lock of a pool, of a magazine, of the trace's buffer: held for tens of nanoseconds, now and then for
 * some microseconds, mostly by one thread, twice for each pair of calls. Half as many atomic operations as a pthread
 * mutex, for which giving back is one, too.
 *
 * What it is not: fair, recursive or a wait for anything long. No CUDA call happens under it, and no system call but
 * for a page of host memory now and then, and the trace's write of a full buffer.
 *
 * Locking: who waits looks again and again, then yields, then sleeps a little at a time, so that a holder of lower
 * priority gets to run. Waiting is no cancellation point: what the thread is in the middle of has to be finished.
 */
#ifndef CUPOOL_POOL_LOCK_H
#define CUPOOL_POOL_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lock {
    atomic_bool taken;
};

/* Wait a little; times: how often that has been done. */
void lock_relax(unsigned int times);
/* The same until the lock could be taken, but not for longer than ns nanoseconds; false: not taken. */
bool lock_take_within(struct lock *lock, uint64_t ns);

static inline bool lock_try(struct lock *lock)
{
    return !atomic_load_explicit(&lock->taken, memory_order_relaxed) &&
           !atomic_exchange_explicit(&lock->taken, true, memory_order_acquire);
}

static inline void lock_take(struct lock *lock)
{
    for (unsigned int i = 0; !lock_try(lock); i++)
        lock_relax(i);
}

static inline void lock_give(struct lock *lock)
{
    atomic_store_explicit(&lock->taken, false, memory_order_release);
}

#endif
