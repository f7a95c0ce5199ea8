/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accounting.h - the books of a pool: bytes in use, idle and handed out, and the peak. Private to pool/. It moves no
 * block.
 *
 * In the books a cached or deferred block counts as used. Each magazine counts the bytes that it has handed out by
 * itself, and the pool adds them up now and then (handed_collect).
 *
 * Locking: each function says which lock its caller holds. No errors.
 */
#ifndef CUPOOL_POOL_ACCOUNTING_H
#define CUPOOL_POOL_ACCOUNTING_H
#include <stddef.h>

#include "pool_state.h"

/* The sums of the books of all segments; without locks they are approximate. */
size_t live_bytes(const struct pool *pool);
size_t native_bytes(const struct pool *pool);
size_t idle_bytes(const struct pool *pool);
/* With the lock of the segment: size bytes of it are handed out, or are not any more. */
void used_add(struct pool *pool, struct segment *segment, size_t size);
void used_sub(struct pool *pool, struct segment *segment, size_t size);

/* With the pool's lock: the pool holds so many bytes more. */
void held_add(struct pool *pool, ptrdiff_t more);

/* With the magazine's lock: the program has got size bytes. */
static inline void handed_add(struct magazine *magazine, size_t size)
{
    const ptrdiff_t handed = balance(&magazine->handed) + (ptrdiff_t)size;

    atomic_store_explicit(&magazine->handed, handed, memory_order_relaxed);
    if (handed > balance(&magazine->handed_most))
        atomic_store_explicit(&magazine->handed_most, handed, memory_order_relaxed);
}

/* With the magazine's lock: the program has freed size bytes. */
static inline void handed_sub(struct magazine *magazine, size_t size)
{
    atomic_store_explicit(&magazine->handed, balance(&magazine->handed) - (ptrdiff_t)size, memory_order_relaxed);
}

/* The bytes handed out, and their maximum where pool->stats.peak_live does not have it yet. Exact with all locks,
 * approximate without. handed: pool->handed, as the caller may read it. */
ptrdiff_t handed_now(const struct pool *pool, ptrdiff_t handed);
ptrdiff_t handed_most(const struct pool *pool);
/* With both locks: add the magazine's counts to the pool's. */
void handed_collect(struct pool *pool, struct magazine *magazine);

/* A pool may hold at most this part of native_peak beyond it: see pool_config.bound_min. */
#define BOUND_PART 10

/*
 * The bytes that may be held beyond `native`, the most that the driver would have in use, without the deferred-free
 * budget: see pool_config.bound_min. A sixteenth stays unused, because small blocks have larger sizes here than in the
 * driver and do not lie in as many pages.
 */
static inline size_t bound_beyond(const struct pool *pool, size_t native)
{
    return (native / BOUND_PART + pool->config.bound_min) / 16 * 15;
}

#endif
