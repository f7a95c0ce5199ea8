/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inspect.c - the functions of pool.h that only read: addresses and statistics. They change nothing, because the layout
 * of memory must not depend on the readers. invariants.c has the check of the invariants.
 *
 * Locking: each function takes the locks it needs; pool_of, pool_arg and pool_live take none.
 */
#include <errno.h>

#include "accounting.h"
#include "deferred.h"
#include "magazine.h"
#include "map.h"
#include "pool.h"

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

static struct block *live_find(uint64_t addr)
{
    struct block *block;

    return map_find(addr, &block) && block && atomic_load(&block->state) == BLOCK_LIVE ? block : NULL;
}

bool pool_is_live(uint64_t addr)
{
    return live_find(addr);
}

size_t pool_live(uint64_t addr, struct pool **ret_pool, size_t *ret_block)
{
    const struct block *block = live_find(addr);

    if (!block)
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
    /* A shared segment may have thousands of blocks, and is one unit. */
    block = segment->shared ? map_block_before(addr) : segment->first;
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

/* The bytes of a list of cached blocks, counted in their segments. */
static size_t add_up(const struct block *block)
{
    size_t bytes = 0;

    for (; block; block = block->link) {
        block->segment->cached += block->size;
        bytes += block->size;
    }
    return bytes;
}

/* The bytes of segments that have no other blocks than those counted, each once; the count ends. */
static size_t add_up_idle(const struct block *block)
{
    size_t bytes = 0;

    for (; block; block = block->link) {
        struct segment *segment = block->segment;

        bytes += segment->cached && segment->cached == segment->used ? segment->size : 0;
        segment->cached = 0;
    }
    return bytes;
}

/* The sum over all lists of cached blocks. */
static size_t cached_sum(const struct magazine *magazine, size_t (*add)(const struct block *block))
{
    size_t bytes = add(magazine->strays);

    for (unsigned int list = 0; list < LISTS; list++)
        bytes += add(magazine->cached[list]);
    return bytes;
}

/* With the pool's lock: the bytes in segments whose blocks are all cached or free, which are idle except in the books;
 * the bytes handed out or deferred at that moment; and the maximum handed out. Waits patience_ns for each magazine's
 * lock. */
static size_t cached_idle(struct pool *pool, uint64_t patience_ns, size_t *ret_live, ptrdiff_t *ret_most)
{
    const unsigned int count = magazine_count(pool);
    size_t cached = 0, idle;
    bool taken[MAGAZINES], all = true;

    /* All locks, so that no block is seen twice or missed on its way from one magazine to another. */
    for (unsigned int i = 0; i < count; i++) {
        atomic_fetch_add_explicit(&pool->magazines[i].visitors, 1, memory_order_relaxed);
        taken[i] = lock_take_within(&pool->magazines[i].lock, patience_ns);
        all = all && taken[i];
    }
    idle = idle_bytes(pool);
    for (unsigned int i = 0; i < count && all; i++)
        cached += cached_sum(&pool->magazines[i], add_up);
    *ret_live = all ? live_bytes(pool) - cached : (size_t)handed_now(pool, pool->handed) + deferred_bytes(pool);
    *ret_most = handed_most(pool); /* under the locks: threads that free now would make it less than live */
    for (unsigned int i = 0; i < count && all; i++)
        idle += cached_sum(&pool->magazines[i], add_up_idle);
    for (unsigned int i = 0; i < count; i++) {
        if (taken[i])
            lock_give(&pool->magazines[i].lock);
        atomic_fetch_sub_explicit(&pool->magazines[i].visitors, 1, memory_order_relaxed);
    }
    return idle;
}

/* May run without the lock, after a wait in vain: a signal handler may have interrupted the holder on this thread. The
 * counters are then of different moments, which is good enough for a report. */
__attribute__((no_sanitize("thread"))) static void stats_copy(const struct pool *pool, struct pool_stats *ret_stats,
                                                              ptrdiff_t *ret_handed)
{
    *ret_stats = pool->stats;
    *ret_handed = pool->handed;
}

void pool_stats_get(struct pool *pool, struct pool_stats *ret_stats)
{
    const bool taken = lock_take_within(&pool->lock, STATS_WAIT_NS);
    ptrdiff_t most = 0, handed;

    stats_copy(pool, ret_stats, &handed);
    ret_stats->idle = idle_bytes(pool);
    if (taken) {
        ret_stats->idle = cached_idle(pool, STATS_WAIT_NS, &ret_stats->live, &most);
        lock_give(&pool->lock);
    } else {
        ret_stats->live = (size_t)handed_now(pool, handed) + deferred_bytes(pool);
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
        ret_stats->kept += atomic_load(&magazine->deferrals);
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
