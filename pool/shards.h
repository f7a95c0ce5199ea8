/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.h - small requests from free memory in segments that belong to magazines; see shards.c. Private to pool/. It
 * serves no large request (large.h does), and asks the backend for nothing.
 *
 * Ownership: an address that a function returns belongs to the caller, as after pool_alloc.
 *
 * Locking: each function says which lock its caller holds.
 */
#ifndef CUPOOL_POOL_SHARDS_H
#define CUPOOL_POOL_SHARDS_H
#include "pool_state.h"

/* With the magazine's lock: hand out a block from free memory in its own segments. False: nothing fits. */
bool magazine_carve(struct pool *pool, struct magazine *magazine, size_t size, size_t requested, uint64_t *ret_addr);
#define GATHERS_MIN ((size_t)128 << 10)
/*
 * True for a small request from GATHERS_MIN on while the pool is nearly full. Before it looks for free memory, deferred
 * blocks whose work is over are published, and if the magazine has many cached blocks, all cached ones are coalesced. A
 * block put between smaller free ones would keep up to 2 MiB from others for as long as it lives, and the device has
 * nothing else for those.
 */
static inline bool gathers_first(const struct pool *pool, size_t size)
{
    return size >= GATHERS_MIN && size < LARGE_MIN &&
           atomic_load_explicit(&pool->shown.nearly_full, memory_order_relaxed);
}
/* With no lock: a block for a small request from any magazine's segments. refused: the driver has no more memory, so
 * examine every block. -ENOENT: nothing fits. */
int shards_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);
/* With no lock: as magazine_put, after making room; otherwise the block is coalesced. handed: the bytes of the block
 * that the magazine still counts as handed out; they are on the books of the live until here, so they must be in both.
 */
void magazine_put_or_coalesce(struct pool *pool, struct magazine *magazine, struct block *block, size_t handed);

#endif
