/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.c - the functions of pool.h that only read: addresses, statistics, invariants. They change nothing, because
 * the layout of memory must not depend on the readers.
 *
 * Locking: each function takes the locks it needs; pool_of, pool_arg and pool_live take none.
 */
#include <errno.h>
#include <stdio.h>

#include "magazine.h"
#include "map.h"
#include "pool.h"
#include "pool_internal.h"

/* The longest wait, in nanoseconds, for a lock that the calling thread may hold itself, below a signal handler that
 * calls exit(). */
#define STATS_WAIT_NS 1000000000

struct pool *pool_of(uint64_t addr)
{
    struct segment *segment = map_segment_get(addr);

    return segment ? segment->pool : NULL;
}

void *pool_arg(const struct pool *pool)
{
    return atomic_load_explicit(&pool->arg, memory_order_relaxed);
}

size_t pool_live(uint64_t addr, struct pool **ret_pool, size_t *ret_block)
{
    struct block *block;

    if (!map_find(addr, &block) || !block || atomic_load(&block->state) != BLOCK_LIVE)
        return 0;
    *ret_pool = block->segment->pool;
    *ret_block = block->size;
    return block->requested;
}

size_t pool_live_size(uint64_t addr)
{
    struct pool *pool;
    size_t block;

    return pool_live(addr, &pool, &block);
}

/* Take the locks of the segment found at addr. False: it has gone meanwhile, and no lock is taken. */
static bool segment_lock(struct pool *pool, struct segment *segment, uint64_t addr)
{
    lock_take(&pool->lock);
    if (map_segment_get(addr) != segment || segment->pool != pool) {
        lock_give(&pool->lock);
        return false;
    }
    if (segment->owner)
        magazine_visit(segment->owner);
    return true;
}

static void segment_unlock(struct pool *pool, struct segment *segment)
{
    if (segment->owner)
        magazine_unlock(segment->owner);
    lock_give(&pool->lock);
}

/* With the segment's locks: true if any of its blocks is handed out. A deferred one, which the device may still use, is
 * not. */
static bool segment_in_use(const struct segment *segment)
{
    const struct block *block = segment->first;

    while (block && (is_unused(block) || atomic_load(&block->state) == BLOCK_PENDING))
        block = block->next;
    return block != NULL;
}

int pool_segment_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size)
{
    struct segment *segment = map_segment_get(addr);
    struct pool *pool = segment ? segment->pool : NULL;
    int rc = -ENOENT;

    if (!pool || !segment_lock(pool, segment, addr))
        return rc;
    if (segment_in_use(segment)) {
        *ret_base = segment->addr;
        *ret_size = segment->size;
        rc = 0;
    }
    segment_unlock(pool, segment);
    return rc;
}

int pool_block_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size, uint64_t *ret_segment)
{
    struct segment *segment = map_segment_get(addr);
    struct pool *pool = segment ? segment->pool : NULL;
    struct block *block;
    int rc = -ENOENT;

    if (!pool || !segment_lock(pool, segment, addr))
        return rc;
    block = segment->first;
    while (block && block->addr + block->size <= addr)
        block = block->next;
    if (block && block->addr <= addr && atomic_load(&block->state) == BLOCK_LIVE) {
        *ret_base = block->addr;
        *ret_size = block->requested;
        *ret_segment = segment->addr;
        rc = 0;
    }
    segment_unlock(pool, segment);
    return rc;
}

/* May run without the lock, after a wait in vain: a signal handler may have interrupted the holder on this thread. The
 * counters are then of different moments, which is good enough for a report. */
__attribute__((no_sanitize("thread"))) static void stats_copy(const struct pool *pool, struct pool_stats *ret_stats)
{
    *ret_stats = pool->stats;
}

void pool_stats_get(struct pool *pool, struct pool_stats *ret_stats)
{
    const bool taken = lock_take_within(&pool->lock, STATS_WAIT_NS);
    ptrdiff_t most = 0;

    stats_copy(pool, ret_stats);
    ret_stats->idle = idle_bytes(pool);
    if (taken) {
        ret_stats->idle = recent_idle(pool, STATS_WAIT_NS, &ret_stats->live, &most);
        lock_give(&pool->lock);
    } else {
        ret_stats->live = (size_t)handed_now(pool) + kept_bytes(pool);
    }
    if ((ptrdiff_t)ret_stats->peak_live < most)
        ret_stats->peak_live = (size_t)most;
    ret_stats->order += atomic_load(&pool->shown.order);
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        const struct magazine *magazine = &pool->magazines[i];
        const size_t hits = atomic_load(&magazine->hits) + atomic_load(&magazine->carved);

        ret_stats->allocs += hits;
        ret_stats->hits += hits;
        ret_stats->frees += atomic_load(&magazine->frees);
        ret_stats->order += atomic_load(&magazine->order);
        ret_stats->kept += atomic_load(&magazine->kept_times);
    }
}

/* Adds up the free ranges of a segment; neighbours count as one range even if they are not coalesced. */
static void segment_survey(const struct segment *segment, struct pool_survey *survey)
{
    uint64_t range = 0, ranges = 0, largest = 0, holes = 0, skipped = segment->skip, used = 0;

    for (const struct block *block = segment->first; block; block = block->next) {
        if (!is_unused(block)) {
            const bool live = atomic_load(&block->state) == BLOCK_LIVE;

            *(live ? &survey->live : &survey->pending) += block->size;
            used += block->size;
            range = 0;
        } else if (is_tail(block) && !segment->withdrawn && used) {
            skipped += block->size;
        } else {
            holes += block->size;
            ranges += !range;
            range += block->size;
            largest = range > largest ? range : largest;
        }
    }
    if (used) {
        *(segment->withdrawn ? &survey->withdrawn : &survey->holes) += holes;
        survey->skipped += skipped;
    } else {
        survey->idle += segment->size;
    }
    if (segment->withdrawn)
        return;
    survey->largest = largest > survey->largest ? largest : survey->largest;
    survey->ranges += used ? ranges : 0;
    survey->segments += used && ranges;
}

void pool_survey_get(struct pool *pool, struct pool_survey *ret_survey)
{
    struct pool_survey survey = {0};

    locks_take(pool);
    for (const struct segment *segment = pool->segments; segment; segment = segment->next) {
        segment_survey(segment, &survey);
        survey.leaving -= segment->size; /* bytes in the books; held bytes that are not there are leaving */
    }
    survey.held = pool->stats.held;
    survey.leaving += survey.held;
    locks_give(pool);
    *ret_survey = survey;
}

static const char *segment_fault(struct pool *pool, struct segment *segment, size_t *ret_live)
{
    uint64_t at = segment->addr + segment->skip;
    size_t used = 0;

    if (!segment->first)
        return "a segment has no blocks";
    for (struct block *block = segment->first; block; block = block->next) {
        const int state = atomic_load(&block->state);

        if (block->addr != at || !block->size || block->size % POOL_GRANULE)
            return "blocks do not tile their segment";
        if (block->segment != segment || (block->next && block->next->prev != block))
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
                               (is_free(segment->first) || !is_free(segment->first->next) ||
                                segment->first->next->next || segment->first->next->size >= LARGE_MIN))
        return "a segment is packed and says that it is not, or the other way round";
    if (segment->shared ? segment->owner < pool->magazines || segment->owner >= pool->magazines + places(pool)
                        : segment->owner != NULL)
        return "a segment's owner is wrong";
    if (segment->pool != pool || map_segment_get(segment->addr + segment->size - 1) != segment)
        return "the map disagrees with a segment";
    *ret_live += used;
    return NULL;
}

/* With all locks: true if the cached blocks are exactly those on the magazines' lists. */
static bool magazines_sound(const struct pool *pool)
{
    const struct block *block;
    size_t count = 0;
    unsigned int keepers = 0;

    for (const struct segment *segment = pool->segments; segment; segment = segment->next)
        for (block = segment->first; block; block = block->next)
            count += atomic_load(&block->state) == BLOCK_RECENT;
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        const struct magazine *magazine = &pool->magazines[i];
        size_t listed = 0, strays = 0;
        unsigned int place;

        for (unsigned int list = 0; list < RECENT; list++) {
            if ((magazine->recent[list] != NULL) != (magazine->recent_set[list / 64] >> list % 64 & 1))
                return false;
            for (block = magazine->recent[list]; block && listed <= count; block = block->link, listed++)
                if (atomic_load(&block->state) != BLOCK_RECENT || block->size != magazine->recent[list]->size ||
                    block->list != list || size_class(block->size, &place) != block->size || place != list)
                    return false;
        }
        for (block = magazine->strays; block && listed <= count; block = block->link, listed++, strays++)
            if (atomic_load(&block->state) != BLOCK_RECENT || block->list >= HASH_LISTS)
                return false;
        if (listed > count || listed != magazine->recent_count || strays != magazine->strays_count ||
            (listed && (!magazine->used || i >= places(pool))))
            return false;
        count -= listed;
        keepers += magazine->kept != NULL;
    }
    return count == 0 && keepers == atomic_load(&pool->shown.keepers);
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
        for (const struct block *block = pool->magazines[i].kept; block; block = block->link)
            handed -= (ptrdiff_t)block->size;
    return handed == handed_now(pool) || atomic_load(&pool->shown.ordering);
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

/* The number of segments on the list of idle ones; more than count if the list is broken. */
static size_t idle_listed(const struct pool *pool, size_t count)
{
    const struct segment *segment, *prev = NULL;
    size_t listed = 0;

    for (segment = pool->idle_first; segment && listed <= count; prev = segment, segment = segment->idle_next)
        listed += segment->idle_prev == prev && !segment->withdrawn && is_free(segment->first) && !segment->first->next
                      ? 1
                      : count + 1;
    return prev == pool->idle_last ? listed : count + 1;
}

int pool_check(struct pool *pool, char *buf, size_t len)
{
    size_t live = 0, held = 0, exposed = 0, withdrawn = 0, whole = 0;
    const char *fault = NULL;

    locks_take(pool);
    for (struct segment *segment = pool->segments; segment && !fault; segment = segment->next) {
        fault = segment_fault(pool, segment, &live);
        held += segment->size;
        withdrawn += segment->withdrawn && !segment->used ? segment->size : 0;
        exposed += segment->exposed;
        whole += !segment->withdrawn && is_free(segment->first) && !segment->first->next;
    }
    if (!fault && live != live_bytes(pool))
        fault = "live bytes are wrong";
    for (unsigned int i = 0; !fault && i <= places(pool); i++)
        if (!books_sound(pool, i ? &pool->magazines[i - 1] : NULL))
            fault = "the books of a magazine are wrong";
    if (!fault && !magazines_sound(pool))
        fault = "what the magazines have is wrong";
    if (!fault && !handed_sound(pool))
        fault = "bytes in the program's hands are wrong";
    if (!fault && idle_listed(pool, whole) != whole)
        fault = "the list of idle segments is wrong";
    if (!fault && held != pool->stats.held && !pool->releasing)
        fault = "held bytes are wrong";
    if (!fault && (withdrawn != pool->shown.withdrawn || exposed != pool->exposed))
        fault = "withdrawn or exposed bytes are wrong";
    locks_give(pool);
    if (!fault)
        return 0;
    snprintf(buf, len, "%s", fault);
    return -EINVAL;
}
