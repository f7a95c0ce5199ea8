/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - blocks within segments: split, handed out, kept as they were freed, merged, chosen. Requests under 2 MiB
 * share segments of 2 MiB, larger ones get a segment of their own size when no free block fits, so that most of them
 * start where a driver allocation starts. A segment that has become free serves requests of its size, or is broken into
 * for smaller ones. Breaking saves memory, but a block can then keep its neighbours' memory from going back to the
 * driver; so only so much is broken at a time (pool_config.break_max).
 *
 * What it is not: it calls nobody. Order and memory come from pool.c and release.c.
 *
 * Locking: every function is called with pool->lock.
 */
#include <errno.h>
#include <limits.h>

#include "bins.h"
#include "map.h"
#include "pool_internal.h"

/* A wholly free segment is broken into for requests of at least this part of it. */
#define LARGE_RATIO 8u
/* Large blocks are split only if a large request could use the rest. */
#define LARGE_SPLIT_MIN ((size_t)POOL_SEGMENT_UNIT)

/* Cut block (not in a bin) down to size; the rest becomes a free block. The caller has reserved a descriptor. */
static void block_split(struct pool *pool, struct block *block, size_t size)
{
    struct block *rest = spare_pop(pool);

    if (!block->segment->shared && block->size == block->segment->size)
        pool->broken += block->size;
    rest->addr = block->addr + size;
    rest->size = block->size - size;
    rest->segment = block->segment;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next)
        rest->next->prev = rest;
    atomic_store_explicit(&rest->state, BLOCK_FREE, memory_order_relaxed);
    block->next = rest;
    block->size = size;
    bins_insert(bins_for(pool, block->segment), rest);
}

int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested)
{
    const size_t split_min = size < LARGE_MIN ? POOL_GRANULE : LARGE_SPLIT_MIN;

    if (spare_reserve(pool) || map_block_set(block->addr, block)) {
        bins_insert(bins_for(pool, block->segment), block);
        return -ENOMEM;
    }
    if (block->size - size >= split_min)
        block_split(pool, block, size);
    block->requested = requested;
    used_add(pool, block->segment, block->size);
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return 0;
}

void block_merge_next(struct pool *pool, struct block *block)
{
    struct block *next = block->next;

    bins_remove(bins_for(pool, block->segment), next);
    block->size += next->size;
    block->next = next->next;
    if (block->next)
        block->next->prev = block;
    spare_push(pool, next);
    if (!block->segment->shared && block->size == block->segment->size)
        pool->broken -= block->size;
}

void block_free(struct pool *pool, struct block *block)
{
    struct segment *segment = block->segment;

    map_block_set(block->addr, NULL);
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
    if (segment->withdrawn)
        return;
    if (is_free(block->next))
        block_merge_next(pool, block);
    if (is_free(block->prev)) {
        block = block->prev;
        bins_remove(bins_for(pool, segment), block);
        /* Its successor is the block that is in no bin; put it there so that merging is one thing only. */
        bins_insert(bins_for(pool, segment), block->next);
        block_merge_next(pool, block);
    }
    bins_insert(bins_for(pool, segment), block);
}

/* --- choosing --- */

/* How large a free segment may be broken into: the fuller the device, the less, by the square of what is not handed
 * out. */
static size_t break_max(const struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    double share = 1;
    size_t max;

    if (config->capacity)
        share = pool->stats.live < config->capacity
                    ? (double)(config->capacity - pool->stats.live) / (double)config->capacity
                    : 0;
    max = (size_t)((double)config->break_max * share * share);
    return pool->broken < max ? max - pool->broken : 0;
}

int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    struct block *block;

    recent_flush(pool);
    if (size < LARGE_MIN) /* of one unit each: never broken into, in the sense of bins_find */
        block = bins_find(&pool->shared, size, 0, refused ? 0 : UINT_MAX);
    else if (refused)
        block = bins_find(&pool->large, size, 0, 0);
    else
        block = bins_find(&pool->large, size, break_max(pool), LARGE_RATIO);
    if (!block)
        return -ENOENT;
    bins_remove(size < LARGE_MIN ? &pool->shared : &pool->large, block);
    if (block_hand_out(pool, block, size, requested))
        return -ENOENT;
    *ret_addr = block->addr;
    return 0;
}

int segment_enter(struct pool *pool, struct segment *segment)
{
    struct block *block;
    int rc = spare_reserve(pool);

    if (!rc)
        rc = map_segment_add(segment->addr, segment->size, segment);
    if (rc)
        return rc;
    block = spare_pop(pool);
    block->addr = segment->addr + segment->skip;
    block->size = segment->size - segment->skip;
    block->segment = segment;
    block->prev = block->next = NULL;
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
    bins_insert(bins_for(pool, segment), block);
    segment->first = block;
    segment->used = 0;
    segment->withdrawn = false;
    segment->idle_since = pool->clock;
    segment->prev = NULL;
    segment->next = pool->segments;
    if (segment->next)
        segment->next->prev = segment;
    pool->segments = segment;
    pool->stats.segments_alloc++;
    pool->stats.idle += segment->size;
    pool->stats.held += segment->size;
    if (pool->stats.held > pool->stats.peak_held)
        pool->stats.peak_held = pool->stats.held;
    return 0;
}
