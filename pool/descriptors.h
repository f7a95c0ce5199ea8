/* SPDX-License-Identifier: Apache-2.0 */
/*
 * descriptors.h - host memory for the descriptors of pools, segments and blocks. Private to pool/. It initialises no
 * descriptor; its callers do.
 *
 * Ownership: a descriptor belongs to the caller until it is given back. Its memory is recycled and never unmapped.
 *
 * Locking: spare blocks need the lock of the segments that they are for; the functions for segments and pools need no
 * lock, from any thread. Errors: -ENOMEM or NULL, no host memory.
 */
#ifndef CUPOOL_POOL_DESCRIPTORS_H
#define CUPOOL_POOL_DESCRIPTORS_H
#include <stddef.h>

#include "pool_state.h"

/* The number of spare blocks that move at once. One thread splits blocks where another one merges them, so a list with
 * too many spares shares them through the pool's common list. */
#define SPARES_CHUNK 256u

/* The list of spare blocks under the lock of a segment's blocks. */
static inline struct spares *spares_of(struct pool *pool, const struct segment *segment)
{
    return segment->owner ? &segment->owner->spares : &pool->spares;
}

/* With the lock of the list. share: the list has too many spares; refill: it has fewer than two; -ENOMEM. */
void spares_share(struct pool *pool, struct spares *spares);
int spares_refill(struct pool *pool, struct spares *spares);

static inline void spare_push(struct pool *pool, struct spares *spares, struct block *block)
{
    block->link = spares->first;
    spares->first = block;
    if (++spares->count > 2 * SPARES_CHUNK)
        spares_share(pool, spares);
}

/* Make sure that the next two calls of spare_pop succeed. -ENOMEM. */
static inline int spare_reserve(struct pool *pool, struct spares *spares)
{
    return spares->count >= 2 ? 0 : spares_refill(pool, spares);
}

static inline struct block *spare_pop(struct spares *spares)
{
    struct block *block = spares->first;

    spares->first = block->link;
    spares->count--;
    return block;
}

/* NULL: no host memory. */
struct segment *segment_new(void);
void segment_retire(struct segment *segment);
struct pool *pool_descriptor_new(void);
void pool_descriptor_retire(struct pool *pool);

#endif
