/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split_merge.c - see split_merge.h. Requests under 2 MiB share segments of 2 MiB. Larger ones get a segment of their
 * own size when no free block fits, so that most of them start where a driver allocation starts. A segment that has
 * become free serves requests of its size.
 *
 * Some segments are packed: large blocks share them. Blocks that leave 1 MiB or more of their last 2 MiB get a segment
 * for two, 2 MiB smaller than two of their own; and a free segment may be broken for smaller requests. That saves
 * memory, but one block can then keep its neighbours' memory from going back to the driver. So the pool counts the
 * bytes that could be kept so at the worst (pool->exposed), and limits them to a part of the bytes that the driver
 * would have in use (large.c). Free memory of a packed segment serves large requests within that limit. The tail that
 * a large block leaves of the last 2 MiB of a segment of its own is never handed out: with a small block there the
 * segment could not go back, and tails are so many that soon no segment could.
 *
 * Locking: as in split_merge.h; idle_lock inside that.
 */
#include "split_merge.h"

#include "accounting.h"
#include "bins.h"
#include "descriptors.h"
#include "map.h"

/*
 * While the first block of a shared segment is one for a request of up to SKIP_MAX, the segment's first granule is not
 * handed out, so that a stray cuMemFree of a block names no allocation of the driver. For larger requests this would
 * cost too much: every second block of 1 MiB.
 */
#define SKIP_MAX    ((size_t)64 << 10)
#define SHARED_SKIP ((size_t)POOL_GRANULE)

static bool is_whole(const struct block *block)
{
    return !block->prev && !block->next;
}

static struct bins *bins_for(struct pool *pool, const struct segment *segment)
{
    return segment->owner ? &segment->owner->bins : &pool->large;
}

/* Rarely called, and not inline so that the callers need few registers. */
__attribute__((noinline)) static void idle_add(struct pool *pool, struct segment *segment)
{
    lock_take(&pool->idle_lock);
    segment->listed = ++pool->idle_count;
    segment->idle_next = NULL;
    segment->idle_prev = pool->idle_last;
    *(pool->idle_last ? &pool->idle_last->idle_next : &pool->idle_first) = segment;
    pool->idle_last = segment;
    lock_give(&pool->idle_lock);
}

__attribute__((noinline)) static void idle_remove(struct pool *pool, struct segment *segment)
{
    lock_take(&pool->idle_lock);
    segment->idle_for = pool->idle_count - segment->listed;
    *(segment->idle_prev ? &segment->idle_prev->idle_next : &pool->idle_first) = segment->idle_next;
    *(segment->idle_next ? &segment->idle_next->idle_prev : &pool->idle_last) = segment->idle_prev;
    lock_give(&pool->idle_lock);
}

void block_bin(struct pool *pool, struct block *block)
{
    if (is_tail(block))
        return;
    bins_insert(bins_for(pool, block->segment), block);
    if (is_whole(block))
        idle_add(pool, block->segment);
}

void block_unbin(struct pool *pool, struct block *block)
{
    if (is_tail(block))
        return;
    bins_remove(bins_for(pool, block->segment), block);
    if (is_whole(block))
        idle_remove(pool, block->segment);
}

/* Only while the segment has no tail, because tails are in no bin. */
static void exposed_set(struct pool *pool, struct segment *segment, size_t exposed)
{
    pool->exposed += exposed - segment->exposed;
    pool->exposed_wholly += segment_wholly(segment, exposed) - segment_wholly(segment, segment->exposed);
    segment->exposed = exposed;
}

/*
 * Cut a block that is in no bin down to size; the rest becomes a free block. The caller has reserved a descriptor.
 * at_end: keep the end of the block, so the rest comes first.
 */
static void block_split(struct pool *pool, struct block *block, size_t size, bool at_end)
{
    struct block *rest = spare_pop(spares_of(pool, block->segment));

    rest->size = block->size - size;
    rest->segment = block->segment;
    rest->addr = at_end ? block->addr : block->addr + size;
    rest->prev = at_end ? block->prev : block;
    rest->next = at_end ? block : block->next;
    if (rest->next)
        rest->next->prev = rest;
    rest->prev->next = rest;
    atomic_store_explicit(&rest->state, BLOCK_FREE, memory_order_relaxed);
    block->addr += at_end ? rest->size : 0;
    block->size = size;
    block_bin(pool, rest);
}

/* The idle segment of a block that is in no bin serves a request of size bytes: choose what it skips anew, or the
 * sizes of one phase of a program would lose memory to the next. */
static void skip_choose(struct block *block, size_t size)
{
    struct segment *segment = block->segment;

    segment->skip = size <= SKIP_MAX ? SHARED_SKIP : 0;
    block->addr = segment->addr + segment->skip;
    block->size = segment->size - segment->skip;
}

int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested)
{
    struct segment *segment = block->segment;
    unsigned int list;
    /* The two blocks of a segment for two are at its ends, so that a larger one can follow each. */
    const bool at_end = segment->exposed && block->prev && !block->next && block->size > size;
    uint64_t addr;

    if (segment->shared && is_whole(block))
        skip_choose(block, size);
    addr = at_end ? block->addr + block->size - size : block->addr;
    if (spare_reserve(pool, spares_of(pool, segment)) || map_block_set(addr, block)) {
        block_bin(pool, block);
        return -ENOMEM;
    }
    if (!segment->shared && (segment->exposed || block->size - size >= LARGE_MIN))
        exposed_set(pool, segment, segment->exposed + segment_exposes(segment, size));
    if (block->size > size)
        block_split(pool, block, size, at_end);
    block->requested = requested;
    size_class(size, &list);
    block->list = (unsigned short)list;
    block->in_hole = size < LARGE_MIN && !segment->shared;
    used_add(pool, segment, block->size);
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return 0;
}

/* Merge next into block; both are in no bin. */
static void swallow(struct pool *pool, struct block *block, struct block *next)
{
    block->size += next->size;
    block->next = next->next;
    if (block->next)
        block->next->prev = block;
    spare_push(pool, spares_of(pool, block->segment), next);
    if (block->segment->exposed && is_whole(block))
        exposed_set(pool, block->segment, 0);
}

void block_merge_next(struct pool *pool, struct block *block)
{
    block_unbin(pool, block->next);
    swallow(pool, block, block->next);
}

void block_merge_unbinned(struct pool *pool, struct block *block)
{
    swallow(pool, block, block->next);
}

/* A block of a packed segment was freed, but not the last one: recompute exposed. Segments with small blocks have too
 * many blocks for a walk. */
static void exposed_lessen(struct pool *pool, struct segment *segment)
{
    size_t least = segment->size;

    if (segment->exposed > segment->size - LARGE_MIN)
        return;
    for (const struct block *block = segment->first; block; block = block->next)
        if (!is_free(block) && native_size(block->size) < least)
            least = native_size(block->size);
    exposed_set(pool, segment, segment_rest(segment, least));
}

void segment_expose(struct pool *pool, struct segment *segment, size_t exposed)
{
    exposed_set(pool, segment, exposed);
    exposed_lessen(pool, segment);
}

void block_free(struct pool *pool, struct block *block)
{
    struct segment *segment = block->segment;

    map_block_set(block->addr, NULL);
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
    if (leaves_much(block->size))
        pool->freed += block->size;
    if (segment->withdrawn)
        return;
    if (is_free(block->next))
        block_merge_next(pool, block);
    if (is_free(block->prev)) {
        struct block *prev = block->prev;

        block_unbin(pool, prev);
        swallow(pool, prev, block);
        block = prev;
    }
    block_bin(pool, block);
    if (segment->exposed)
        exposed_lessen(pool, segment);
}

int segment_enter(struct pool *pool, struct segment *segment)
{
    struct block *block;
    int rc = spare_reserve(pool, spares_of(pool, segment));

    if (!rc)
        rc = map_segment_add(segment->addr, segment->size, segment);
    if (rc)
        return rc;
    block = spare_pop(spares_of(pool, segment));
    block->addr = segment->addr + segment->skip;
    block->size = segment->size - segment->skip;
    block->segment = segment;
    block->prev = block->next = NULL;
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
    segment->first = block;
    segment->used = 0;
    segment->exposed = 0;
    segment->withdrawn = segment->suspended = false;
    block_bin(pool, block);
    segment->idle_since = pool->clock;
    segment->prev = NULL;
    segment->next = pool->segments;
    if (segment->next)
        segment->next->prev = segment;
    pool->segments = segment;
    pool->stats.segments_alloc++;
    book(&books_of(pool, segment)->idle, segment->size);
    held_add(pool, (ptrdiff_t)segment->size);
    if (pool->stats.held > pool->stats.peak_held)
        pool->stats.peak_held = pool->stats.held;
    return 0;
}
