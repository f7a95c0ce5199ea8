/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disown.c - pool_disown: a pool forgets a segment that was given back by a call that did not pass it. See pool.h. It
 * gives nothing back to the backend.
 *
 * Locking: all locks (locks_take) while the segment leaves.
 */
#include "accounting.h"
#include "descriptors.h"
#include "magazine.h"
#include "map.h"
#include "pool.h"
#include "release_idle.h"
#include "split_merge.h"
#include "uncache.h"

/* The number of deferred blocks of a segment; with all locks. */
static unsigned int segment_deferred(const struct pool *pool, const struct segment *segment)
{
    unsigned int count = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        for (const struct block *block = pool->magazines[i].deferred; block; block = block->link)
            count += block->segment == segment;
    return count;
}

static void deferred_remove(struct pool *pool, struct magazine *magazine, const struct segment *segment)
{
    const bool some = magazine->deferred != NULL;
    struct block **link = &magazine->deferred;

    while (*link) {
        if ((*link)->segment == segment) {
            magazine->deferred_bytes -= native_size((*link)->size);
            magazine->deferred_count--;
            magazine->deferred_large -= (*link)->size >= LARGE_MIN;
            *link = (*link)->link;
        } else {
            link = &(*link)->link;
        }
    }
    if (some && !magazine->deferred)
        atomic_fetch_sub(&pool->shown.deferring, 1);
}

/*
 * Take all blocks of a segment from the program, and off the lists of deferred blocks; with all locks. False: a thread
 * is freeing one.
 */
static bool blocks_seize(struct pool *pool, struct segment *segment)
{
    unsigned int pending = 0;

    for (struct block *block = segment->first; block; block = block->next) {
        int live = BLOCK_LIVE;

        if (!is_free(block) && !atomic_compare_exchange_strong(&block->state, &live, BLOCK_SEIZED))
            pending++;
    }
    if (pending == segment_deferred(pool, segment)) {
        for (unsigned int i = 0; i < MAGAZINES; i++)
            deferred_remove(pool, &pool->magazines[i], segment);
        return true;
    }
    for (struct block *block = segment->first; block; block = block->next)
        if (atomic_load(&block->state) == BLOCK_SEIZED)
            atomic_store(&block->state, BLOCK_LIVE);
    return false;
}

/* Forget a segment that covers the address `at`. False: impossible now. */
static bool segment_disown(struct segment *segment, uint64_t at)
{
    struct pool *pool = segment->pool;
    struct block *block;
    bool seized;

    locks_take(pool);
    if (map_segment_get(at) != segment || segment->pool != pool) {
        locks_give(pool);
        return false;
    }
    coalesce_all(pool);
    seized = blocks_seize(pool, segment);
    if (!seized) {
        locks_give(pool);
        return false;
    }
    block = segment->first;
    do {
        if (is_free(block))
            continue;
        if (atomic_load(&block->state) == BLOCK_SEIZED)
            pool->handed -= (ptrdiff_t)block->size;
        map_block_set(block->addr, NULL);
        used_sub(pool, segment, block->size);
        atomic_store(&block->state, BLOCK_FREE);
        if (!segment->withdrawn)
            block_bin(pool, block);
    } while ((block = block->next));
    block = segment->first;
    if (!segment->withdrawn) {
        block_unbin(pool, block);
        while (block->next)
            block_merge_next(pool, block);
        block_bin(pool, block);
    }
    segment_unlink(pool, segment);
    held_add(pool, -(ptrdiff_t)segment->size);
    pool->stats.segments_free++;
    locks_give(pool);
    return true;
}

void pool_disown(uint64_t addr, size_t size)
{
    for (uint64_t at = addr; at < addr + size; at += POOL_SEGMENT_UNIT) {
        struct segment *segment = map_segment_get(at);
        const struct pool_config *config = segment ? &segment->pool->config : NULL;

        if (!segment || !segment_disown(segment, at))
            continue;
        if (config->observer && config->observer->segment_lost)
            config->observer->segment_lost(config->arg, segment->kind, segment->addr, segment->size);
        segment_retire(segment);
    }
}
