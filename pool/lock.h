/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - the lock of a pool, of a magazine, of the trace's buffer: held for tens of nanoseconds, sometimes some
 * microseconds, mostly by one thread, twice for each pair of calls. It takes half as many atomic operations as a
 * pthread mutex, whose unlock is one as well.
 *
 * It is not fair, not recursive and not for long waits. No CUDA call happens under it, and no system call except for a
 * page of host memory now and then, and the trace's write of a full buffer.
 *
 * Locking: a waiter spins, then yields, then sleeps for short times, so that a holder of lower priority gets to run.
 * Waiting is no cancellation point, because the thread must finish its operation.
 */
#ifndef CUPOOL_POOL_LOCK_H
#define CUPOOL_POOL_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct lock {
    atomic_bool taken;
};

/* Wait for a short time; times: how often the caller has done so already, which makes the wait longer. */
void lock_relax(unsigned int times);
/* Between two questions to the driver: some hundred nanoseconds the first time, doubled each time up to 20 us, without
 * leaving the processor; then sleep for 50 us, doubled up to max_ns. */
void lock_pause(unsigned int times, uint32_t max_ns);
/* Take the lock, waiting ns nanoseconds at most. False: not taken. */
bool lock_take_within(struct lock *lock, uint64_t ns);

/* Take the lock if it is free. False: not taken. */
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
