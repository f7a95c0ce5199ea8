/* SPDX-License-Identifier: Apache-2.0 */
/*
 * invariants.c - pool_check of pool.h: the invariants of a pool. It changes nothing, and checks nothing that holds only
 * while no call is under way.
 *
 * Locking: all locks (locks_take).
 */
#include <errno.h>
#include <stdio.h>

#include "accounting.h"
#include "magazine.h"
#include "map.h"
#include "pool.h"

static const char *segment_fault(struct pool *pool, struct segment *segment)
{
    uint64_t at = segment->addr + segment->skip;
    const struct block *prev = NULL;
    size_t used = 0;

    if (!segment->first)
        return "a segment has no blocks";
    if (segment->skip && (segment->skip != POOL_GRANULE || !segment->shared))
        return "a segment skips what it should hand out";
    for (struct block *block = segment->first; block; prev = block, block = block->next) {
        const int state = atomic_load(&block->state);

        if (block->addr != at || !block->size || block->size % POOL_GRANULE)
            return "blocks do not tile their segment";
        if (block->segment != segment || block->prev != prev)
            return "broken links";
        if (state == BLOCK_FREE && is_free(block->next) && !segment->withdrawn)
            return "free neighbours were not merged";
        if ((map_block_get(at) == block) != (state != BLOCK_FREE))
            return "the map disagrees with a block's state";
        used += state == BLOCK_FREE ? 0 : block->size;
        at += block->size;
    }
    if (at != segment->addr + segment->size)
        return "blocks do not fill their segment";
    if (used != segment->used)
        return "a segment's used bytes are wrong";
    if (segment->exposed ? segment->shared || segment->withdrawn || !segment->first->next
                         : !segment->shared && !segment->withdrawn && segment->first->next &&
                               (!is_free(segment->first->next) || segment->first->next->next ||
                                segment->first->next->size >= LARGE_MIN))
        return "a segment is packed and says that it is not, or the other way round";
    if (segment->shared ? segment->owner < pool->magazines || segment->owner >= pool->magazines + magazine_count(pool)
                        : segment->owner != NULL)
        return "a segment's owner is wrong";
    if (segment->pool != pool || map_segment_get(segment->addr + segment->size - 1) != segment)
        return "the map disagrees with a segment";
    return NULL;
}

/* With all locks: true if the cached blocks are exactly those on the magazines' lists. */
static bool magazines_sound(const struct pool *pool)
{
    const struct block *block;
    size_t count = 0;
    unsigned int deferring = 0;

    for (const struct segment *segment = pool->segments; segment; segment = segment->next)
        for (block = segment->first; block; block = block->next)
            count += atomic_load(&block->state) == BLOCK_CACHED;
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        const struct magazine *magazine = &pool->magazines[i];
        size_t listed = 0, strays = 0;
        unsigned int index;

        for (unsigned int list = 0; list < LISTS; list++) {
            if ((magazine->cached[list] != NULL) != (magazine->cached_set[list / 64] >> list % 64 & 1))
                return false;
            for (block = magazine->cached[list]; block && listed <= count; block = block->link, listed++)
                if (atomic_load(&block->state) != BLOCK_CACHED || block->size != magazine->cached[list]->size ||
                    block->list != list || size_class(block->size, &index) != block->size || index != list)
                    return false;
        }
        for (block = magazine->strays; block && listed <= count; block = block->link, listed++, strays++)
            if (atomic_load(&block->state) != BLOCK_CACHED || block->list >= HASH_LISTS)
                return false;
        if (listed != magazine->cached_count || strays != magazine->strays_count ||
            (listed && (!magazine->used || i >= magazine_count(pool))))
            return false;
        count -= listed;
        deferring += magazine->deferred != NULL;
    }
    return count == 0 && deferring == atomic_load(&pool->shown.deferring);
}

/* With all locks: true if the bytes handed out are those in the books. Unknown while a thread orders deferred
 * blocks. */
static bool handed_sound(const struct pool *pool)
{
    ptrdiff_t handed = 0;

    for (const struct segment *segment = pool->segments; segment; segment = segment->next)
        for (const struct block *block = segment->first; block; block = block->next)
            handed += is_unused(block) ? 0 : (ptrdiff_t)block->size;
    for (unsigned int i = 0; i < MAGAZINES; i++)
        for (const struct block *block = pool->magazines[i].deferred; block; block = block->link)
            handed -= (ptrdiff_t)block->size;
    return handed == handed_now(pool, pool->handed) || atomic_load(&pool->shown.ordering);
}

/* With all locks: true if these books hold the sums over the segments of this owner (NULL: the pool). */
static bool books_sound(const struct pool *pool, const struct magazine *owner)
{
    const struct books *books = owner ? &owner->books : &pool->books;
    size_t live = 0, idle = 0;

    for (const struct segment *segment = pool->segments; segment; segment = segment->next) {
        live += segment->owner == owner ? segment->used : 0;
        idle += segment->owner == owner && !segment->used ? segment->size : 0;
    }
    return live == atomic_load(&books->live) && idle == atomic_load(&books->idle);
}

/* True if the list of idle segments has so many segments, each of which may be there. */
static bool idle_sound(const struct pool *pool, size_t count)
{
    const struct segment *prev = NULL;

    for (const struct segment *segment = pool->idle_first; segment;
         prev = segment, segment = segment->idle_next, count--)
        if (segment->idle_prev != prev || segment->withdrawn || !is_free(segment->first) || segment->first->next)
            return false;
    return !count && prev == pool->idle_last;
}

/* With all locks: the first thing that is wrong, or NULL. */
static const char *pool_fault(struct pool *pool)
{
    size_t held = 0, exposed = 0, wholly = 0, withdrawn = 0, whole = 0;

    for (struct segment *segment = pool->segments; segment; segment = segment->next) {
        const char *fault = segment_fault(pool, segment);

        if (fault)
            return fault;
        held += segment->size;
        withdrawn += segment->withdrawn && !segment->used ? segment->size : 0;
        exposed += segment->exposed;
        wholly += segment_wholly(segment, segment->exposed);
        whole += !segment->withdrawn && is_free(segment->first) && !segment->first->next;
    }
    for (unsigned int i = 0; i <= MAGAZINES; i++)
        if (!books_sound(pool, i ? &pool->magazines[i - 1] : NULL))
            return "the books of a magazine are wrong";
    if (!magazines_sound(pool))
        return "what the magazines have is wrong";
    if (!handed_sound(pool))
        return "bytes in the program's hands are wrong";
    if (!idle_sound(pool, whole))
        return "the list of idle segments is wrong";
    if (held != pool->stats.held && !pool->releasing)
        return "held bytes are wrong";
    if (withdrawn != pool->shown.withdrawn || exposed != pool->exposed || wholly != pool->exposed_wholly)
        return "withdrawn or exposed bytes are wrong";
    return NULL;
}

int pool_check(struct pool *pool, char *buf, size_t len)
{
    const char *fault;

    locks_take(pool);
    fault = pool_fault(pool);
    locks_give(pool);
    if (!fault)
        return 0;
    snprintf(buf, len, "%s", fault);
    return -EINVAL;
}
