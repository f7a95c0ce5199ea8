/* SPDX-License-Identifier: Apache-2.0 */
/* rest.c - see rest.h. */
#include "rest.h"

#include "descriptors.h"
#include "magazine.h"
#include "pool_state.h"

/* The blocks on the lists, to be compared with those of the segments. */
struct found {
    size_t binned;
};

static const char *locks_fault(struct pool *pool)
{
    struct lock *locks[MAGAZINES + 3] = {&pool->lock, &pool->spares_lock, &pool->idle_lock};

    for (unsigned int i = 0; i < MAGAZINES; i++) {
        if (atomic_load(&pool->magazines[i].visitors))
            return "a magazine has a visitor";
        locks[3 + i] = &pool->magazines[i].lock;
    }
    for (unsigned int i = 0; i < MAGAZINES + 3; i++) {
        if (!lock_try(locks[i]))
            return "a lock is held";
        lock_give(locks[i]);
    }
    if (atomic_load(&pool->shown.ordering) || pool->growing || pool->leaving || pool->releasing)
        return "something is under way";
    return NULL;
}

static const char *bins_fault(const struct bins *bins, const struct magazine *owner, struct found *found)
{
    for (unsigned int bin = 0; bin < BINS_COUNT; bin++) {
        const struct block *prev = NULL;

        if ((bins->head[bin] != NULL) != (bins->used[bin / 64] >> bin % 64 & 1))
            return "a bin is marked wrongly";
        for (const struct block *block = bins->head[bin]; block; prev = block, block = block->link, found->binned++)
            if (block->bin != bin || bin_of(block->size) != bin || block->bin_prev != prev || !is_free(block) ||
                block->segment->owner != owner || block->segment->withdrawn || is_tail(block))
                return "a block is in the wrong bin";
    }
    return NULL;
}

static const char *spares_fault(const struct spares *spares, bool common)
{
    unsigned int count = 0;

    for (const struct block *block = spares->first; block; block = block->link)
        count++;
    return count != spares->count || (!common && count > 2 * SPARES_CHUNK) ? "spare blocks are miscounted" : NULL;
}

static const char *block_fault(const struct block *block)
{
    const bool small = block->size < LARGE_MIN;
    const int state = atomic_load(&block->state);
    unsigned int list;

    if (is_free(block))
        return NULL;
    if (state != BLOCK_LIVE && state != BLOCK_PENDING && state != BLOCK_CACHED)
        return "a block has no state";
    if (state == BLOCK_CACHED && block->segment->withdrawn)
        return "a block of a withdrawn segment may be handed out";
    if (size_class(block->size, &list) != block->size || list != block->list)
        return "a block's list is not that of its size";
    if (!block->requested || rounded(block->requested) != block->size)
        return "a block is not of the size that was asked for";
    return block->in_hole != (small && !block->segment->shared) ? "a hole is none, or the other way round" : NULL;
}

static const char *segments_fault(const struct pool *pool, const struct found *found)
{
    const struct segment *prev = NULL;
    size_t binned = 0, native = 0, count = 0;

    for (const struct segment *segment = pool->segments; segment; prev = segment, segment = segment->next, count++) {
        if (segment->prev != prev || segment->cached || segment->skip > POOL_GRANULE || segment->size % LARGE_MIN ||
            (!segment->used && segment->idle_since > pool->clock) || (segment->skip && !segment->shared))
            return "a segment is not as it should be";
        for (const struct block *block = segment->first; block; block = block->next) {
            const char *fault = block_fault(block);

            if (fault)
                return fault;
            binned += is_free(block) && !segment->withdrawn && !is_tail(block);
            native += segment->owner || is_free(block) ? 0 : native_size(block->size);
        }
    }
    if (binned != found->binned)
        return "the bins lack a free block";
    if (native != pool->native)
        return "what the driver would have in use is wrong";
    return count != pool->stats.segments_alloc - pool->stats.segments_free ? "segments are miscounted" : NULL;
}

/* Are there no more blocks than these among what is recent? */
static bool has_holes(const struct magazine *magazine)
{
    for (unsigned int list = HASH_LISTS; list < LISTS; list++)
        for (const struct block *block = magazine->cached[list]; block; block = block->link)
            if (block->in_hole)
                return true;
    return false;
}

static const char *magazine_fault(const struct magazine *magazine)
{
    size_t bytes = 0;
    unsigned int count = 0, large = 0;

    for (const struct block *block = magazine->deferred; block; block = block->link, count++) {
        if (atomic_load(&block->state) != BLOCK_PENDING)
            return "a kept block waits for nothing";
        bytes += native_size(block->size);
        large += block->size >= LARGE_MIN;
    }
    if (count != magazine->deferred_count || large != magazine->deferred_large || bytes != magazine->deferred_bytes)
        return "kept blocks are miscounted";
    if (has_holes(magazine) && !magazine->has_holes)
        return "a magazine does not know of a hole";
    if (magazine->handed_most < 0 || magazine->handed_most < magazine->handed)
        return "a magazine's peak is too low";
    if (!magazine->used && (magazine->deferred_count || magazine->cached_count))
        return "a magazine is not in use, but has blocks";
    return NULL;
}

static const char *magazines_fault(const struct pool *pool, struct found *found)
{
    const char *fault = NULL;
    unsigned int used = 0;

    for (unsigned int i = 0; i < MAGAZINES && !fault; i++) {
        const struct magazine *magazine = &pool->magazines[i];

        if (atomic_load(&magazine->used) && i >= magazine_count(pool))
            return "a magazine is beyond the last place";
        used += atomic_load(&magazine->used);
        fault = magazine_fault(magazine);
        fault = fault ? fault : bins_fault(&magazine->bins, magazine, found);
        fault = fault ? fault : spares_fault(&magazine->spares, false);
    }
    if (!fault && used != atomic_load(&pool->shown.magazines_used))
        fault = "magazines in use are miscounted";
    return fault;
}

const char *rest_fault(struct pool *pool)
{
    struct found found = {0};
    const char *fault = locks_fault(pool);

    fault = fault ? fault : bins_fault(&pool->large, NULL, &found);
    fault = fault ? fault : spares_fault(&pool->spares, false);
    fault = fault ? fault : spares_fault(&pool->spares_common, true);
    fault = fault ? fault : magazines_fault(pool, &found);
    fault = fault ? fault : segments_fault(pool, &found);
    if (!fault && (pool->shown.budget > pool->shown.budget_max || pool->stats.held > pool->stats.peak_held))
        fault = "a part is more than the whole";
    return fault;
}
