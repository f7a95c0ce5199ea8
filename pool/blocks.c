/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blocks.c - blocks within segments: split, handed out, kept as they were freed, merged, chosen. Requests under 2 MiB
 * share segments of 2 MiB, larger ones get a segment of their own size when no free block fits, so that most of them
 * start where a driver allocation starts. A segment that has become free serves requests of its size, or is broken into
 * for smaller ones. Breaking saves memory, but a block can then keep its neighbours' memory from going back to the
 * driver; so only so much is broken at a time (pool_config.break_max). What is free in a broken segment serves large
 * requests, and small ones as long as more could be broken. What a block leaves of the last 2 MiB of its segment, its
 * tail, is for nobody: with a small block there nothing of the segment could go back, and tails are so many that soon
 * nothing could at all.
 *
 * What it is not: it calls nobody. Order and memory come from pool.c and release.c.
 *
 * Locking: every function is called with pool->lock.
 */
#include <errno.h>
#include <limits.h>

#include "bins.h"
#include "magazine.h"
#include "map.h"
#include "pool_internal.h"

/* A wholly free segment is broken into for requests of at least this part of it; so is a hole of a broken one for small
 * requests. */
#define LARGE_RATIO 8u

static bool is_whole(const struct block *block)
{
    return !block->prev && !block->next;
}

static struct bins *bins_for(struct pool *pool, const struct segment *segment)
{
    return segment->shared ? &pool->shared : &pool->large;
}

void block_bin(struct pool *pool, struct block *block)
{
    struct segment *segment = block->segment;

    if (is_tail(block))
        return;
    bins_insert(bins_for(pool, segment), block);
    if (!is_whole(block))
        return;
    segment->idle_next = NULL;
    segment->idle_prev = pool->idle_last;
    *(pool->idle_last ? &pool->idle_last->idle_next : &pool->idle_first) = segment;
    pool->idle_last = segment;
}

void block_unbin(struct pool *pool, struct block *block)
{
    struct segment *segment = block->segment;

    if (is_tail(block))
        return;
    bins_remove(bins_for(pool, segment), block);
    if (!is_whole(block))
        return;
    *(segment->idle_prev ? &segment->idle_prev->idle_next : &pool->idle_first) = segment->idle_next;
    *(segment->idle_next ? &segment->idle_next->idle_prev : &pool->idle_last) = segment->idle_prev;
}

/* While it has no tail: tails are in no bin. */
static void broken_set(struct pool *pool, struct segment *segment, bool broken)
{
    if (segment->broken == broken)
        return;
    segment->broken = broken;
    pool->broken += broken ? segment->size : -segment->size;
}

/* Cut block (not in a bin) down to size; the rest becomes a free block. The caller has reserved a descriptor. */
static void block_split(struct pool *pool, struct block *block, size_t size)
{
    struct block *rest = spare_pop(pool);

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
    block_bin(pool, rest);
}

int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested)
{
    unsigned int list;

    if (spare_reserve(pool) || map_block_set(block->addr, block)) {
        block_bin(pool, block);
        return -ENOMEM;
    }
    if (!block->segment->shared && block->size - size >= LARGE_MIN)
        broken_set(pool, block->segment, true);
    if (block->size > size)
        block_split(pool, block, size);
    block->requested = requested;
    size_class(size, &list);
    block->list = (unsigned short)list;
    block->in_hole = size <= CLOSE_MAX && !block->segment->shared;
    used_add(pool, block->segment, block->size);
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return 0;
}

void block_merge_next(struct pool *pool, struct block *block)
{
    struct block *next = block->next;

    block_unbin(pool, next);
    block->size += next->size;
    block->next = next->next;
    if (block->next)
        block->next->prev = block;
    spare_push(pool, next);
    if (is_whole(block))
        broken_set(pool, block->segment, false);
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
        block_unbin(pool, block);
        /* Its successor is the block that is in no bin; put it there so that merging is one thing only. */
        block_bin(pool, block->next);
        block_merge_next(pool, block);
    }
    block_bin(pool, block);
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
    /* What lies beside a live block cannot go back: no more of that than the bound has room for. */
    if (config->bound_min < SIZE_MAX / 2 && max > pool->native_peak / BOUND_PART + config->bound_min)
        max = pool->native_peak / BOUND_PART + config->bound_min;
    return pool->broken < max ? max - pool->broken : 0;
}

/* Hand out a block that bins_find has chosen, if it has one. */
static int block_take_found(struct pool *pool, struct block *block, size_t size, size_t requested, uint64_t *ret_addr)
{
    if (!block)
        return -ENOENT;
    block_unbin(pool, block);
    if (block_hand_out(pool, block, size, requested))
        return -ENOENT;
    *ret_addr = block->addr;
    return 0;
}

/* The best block in the bins as they are; NULL: none. */
static struct block *find(const struct pool *pool, size_t size, bool refused)
{
    struct block *block;

    if (size >= LARGE_MIN)
        return bins_find(&pool->large, size, refused ? 0 : break_max(pool), refused ? 0 : LARGE_RATIO);
    /* shared segments are of one unit each: never broken into, in the sense of bins_find */
    block = bins_find(&pool->shared, size, 0, refused ? 0 : UINT_MAX);
    if (!block && !refused && break_max(pool))
        block = bins_find(&pool->large, size, 0, LARGE_RATIO);
    return block;
}

int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    struct block *block = NULL;

    recent_settle(pool, size > CLOSE_MAX);
    /* What is small stays in the magazines as long as something else serves: or each request that is no hit would make
     * the next ones of every thread none. */
    if (!refused)
        block = size < LARGE_MIN ? bins_find(&pool->shared, size, 0, UINT_MAX) : find(pool, size, refused);
    if (!block && !refused && recent_join_larger(pool, size))
        block = bins_find(&pool->shared, size, 0, UINT_MAX);
    if (!block) {
        recent_flush(pool);
        block = find(pool, size, refused);
    }
    return block_take_found(pool, block, size, requested, ret_addr);
}

int block_take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    recent_flush(pool);
    return block_take_found(pool, bins_find(&pool->large, size, 0, 0), size, requested, ret_addr);
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
    segment->first = block;
    segment->used = 0;
    segment->broken = false;
    segment->withdrawn = false;
    block_bin(pool, block);
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
