/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shards.c - serves small requests for which no cached block has the size, without the pool's lock. A magazine owns
 * segments for small requests: those by which the pool grew for its threads. It splits and merges their blocks under
 * its own lock, with bins and books of its own. So threads that run side by side and request random sizes do not
 * contend, and each uses memory and descriptors that its processor has cached.
 *
 * Even so no free memory is overlooked: before the pool grows, all locks are taken, and free memory in the segments of
 * any magazine serves the request. The segment then changes its owner if much of it is free, so that the next requests
 * find the rest of it. A program with one thread uses one magazine, which owns all of these segments, so its memory is
 * laid out as if there were no other magazine.
 *
 * A freed block goes to the magazine of the thread that frees it, whichever magazine owns its segment. A magazine
 * coalesces the blocks of its own segments by itself; other blocks are coalesced when all locks are taken.
 *
 * It asks no one for memory. large.c serves large requests.
 *
 * Locking: each function's is in shards.h. All locks: see locks_take.
 */
#include "shards.h"

#include "accounting.h"
#include "bins.h"
#include "magazine.h"
#include "split_merge.h"
#include "uncache.h"

/* A segment changes its owner if at least this part of it is free; with less, a walk over its blocks would not pay. */
#define MOVE_PART 8u

/* After this many requests in a row that no cached block served, the program has gone on to other sizes: what is cached
 * is coalesced, or blocks would be put beside cached ones, in places that fit nothing else later. A program that mixes
 * its sizes does not get there. */
#define STREAK 16u

static bool is_worth_moving(const struct segment *segment)
{
    return segment->size - segment->used >= segment->size / MOVE_PART;
}

/* With all locks: make another magazine the owner of the segment and of its blocks. */
static void segment_move(struct pool *pool, struct segment *segment, struct magazine *to)
{
    struct books *from = &segment->owner->books;

    for (struct block *block = segment->first; block; block = block->next)
        if (is_free(block))
            block_unbin(pool, block);
    segment->owner = to;
    for (struct block *block = segment->first; block; block = block->next)
        if (is_free(block))
            block_bin(pool, block);
    book(&from->live, -segment->used);
    book(&to->books.live, segment->used);
    if (segment->used)
        return;
    book(&from->idle, -segment->size);
    book(&to->books.idle, segment->size);
}

/* With the magazine's lock, for a small request that no free block serves: coalesce the next larger cached block.
 * False: there is none. */
static bool coalesce_larger(struct pool *pool, struct magazine *magazine, size_t size)
{
    struct block *block = NULL;
    unsigned int list;

    size_class(size, &list);
    for (unsigned int i = list + 1; i < LISTS && !block; i++) {
        const uint64_t larger = cached_lists(magazine, i / 64) & ~(uint64_t)0 << i % 64;

        if (!larger) {
            i |= 63;
            continue;
        }
        i = i / 64 * 64 + (unsigned int)__builtin_ctzll(larger);
        if (magazine->cached[i]->segment->owner == magazine)
            block = cached_pop(magazine, i);
    }
    if (!block)
        return false;
    block->link = NULL;
    coalesce(pool, block);
    return true;
}

/* With the magazine's lock, for a small request that no cached block serves. True: coalesce all cached blocks first. */
static bool streak_ends(const struct pool *pool, struct magazine *magazine, size_t size)
{
    const size_t hits = size_value(&magazine->hits);

    magazine->streak = hits == magazine->hits_at_start ? magazine->streak + 1 : 1;
    magazine->hits_at_start = hits;
    if (gathers_first(pool, size) && magazine->cached_count >= STREAK)
        magazine->streak = STREAK;
    return magazine->streak % STREAK == 0 && (magazine->streak == STREAK || magazine->cached_count);
}

bool magazine_carve(struct pool *pool, struct magazine *magazine, size_t size, size_t requested, uint64_t *ret_addr)
{
    struct block *block;

    if (size >= LARGE_MIN || streak_ends(pool, magazine, size))
        return false;
    /* Keep blocks of the few sizes cached while another block serves, or each miss would make the next requests
     * misses. */
    if (size > CLOSE_MAX)
        coalesce(pool, cached_grab(magazine, LARGE_SETS, HASH_SETS, magazine, /* all: */ false));
    block = bins_find(&magazine->bins, size, NULL, /* all: */ false);
    if (!block && size <= CLOSE_MAX && coalesce_larger(pool, magazine, size))
        block = bins_find(&magazine->bins, size, NULL, /* all: */ false);
    if (block_take_found(pool, block, size, requested, ret_addr))
        return false;
    count_up(&magazine->carved);
    return true;
}

/* With all locks: a free block of any magazine, first of its own, then of idle segments, then of any. */
static struct block *find(struct pool *pool, const struct magazine *own, size_t size, bool all)
{
    const unsigned int count = magazine_count(pool), index = (unsigned int)(own - pool->magazines);
    struct block *block = bins_find(&own->bins, size, NULL, all);

    for (unsigned int i = 1; i < count && !block; i++) {
        const struct magazine *magazine = &pool->magazines[(index + i) % count];

        if (size_value(&magazine->books.idle))
            block = bins_find(&magazine->bins, LARGE_MIN - POOL_GRANULE, NULL, all);
    }
    for (unsigned int i = 1; i < count && !block; i++)
        block = bins_find(&pool->magazines[(index + i) % count].bins, size, NULL, all);
    return block;
}

int shards_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    struct magazine *own = magazine_own(pool);
    struct block *block = NULL;
    int rc;

    locks_take(pool);
    if (!refused && own->streak % STREAK)
        block = find(pool, own, size, /* all: */ false);
    if (!block) {
        coalesce_all(pool);
        block = find(pool, own, size, refused);
    }
    if (block && block->segment->owner != own && is_worth_moving(block->segment))
        segment_move(pool, block->segment, own);
    rc = block_take_found(pool, block, size, requested, ret_addr);
    if (!rc) {
        pool->stats.allocs++;
        pool->stats.hits++;
    }
    locks_give(pool);
    return rc;
}

void magazine_put_or_coalesce(struct pool *pool, struct magazine *magazine, struct block *block, size_t handed)
{
    bool put = false;

    locks_take(pool);
    magazine_use(pool, magazine);
    handed_sub(magazine, handed);
    handed_collect(pool, magazine);
    if (!block->segment->withdrawn) {
        coalesce(pool, cached_grab(magazine, 0, magazine->has_holes ? LIST_SETS : HASH_SETS, NULL, /* all: */ true));
        put = magazine_put(magazine, block);
    }
    if (!put) {
        coalesce(pool, cached_grab(magazine, 0, LIST_SETS, NULL, /* all: */ true));
        put = magazine_put(magazine, block);
    }
    if (!put) {
        block->link = NULL;
        coalesce(pool, block);
    }
    locks_give(pool);
}
