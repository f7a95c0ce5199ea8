/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - see pool.h: a request and a free, the steps after a refusal of the driver, and the life of a pool. The other
 * files of this folder hold the parts.
 *
 * Locking: each part takes the locks that it needs; none is held while a backend, order or observer function runs.
 */
#include "pool.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "accounting.h"
#include "bound.h"
#include "clock.h"
#include "deferred.h"
#include "descriptors.h"
#include "grow.h"
#include "large.h"
#include "magazine.h"
#include "map.h"
#include "publish.h"
#include "release_idle.h"
#include "shards.h"
#include "uncache.h"

/* --- frees --- */

/* Claim the live block that starts at addr: it becomes PENDING and the caller's. */
static inline int block_claim(uint64_t addr, struct block **ret_block)
{
    struct block *block;
    int live = BLOCK_LIVE;

    if (!map_find(addr, &block))
        return -ENOENT;
    if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING))
        return -EINVAL;
    if (block->addr != addr) {
        /* The block was freed and recycled for another address since the lookup: a double free that lost a race. */
        atomic_store(&block->state, BLOCK_LIVE);
        return -EINVAL;
    }
    *ret_block = block;
    return 0;
}

/* Defer a block without ordering it, if the magazine's share of the deferred-free budget allows that or in_any_case.
 * Inline in the path of each free. */
static inline __attribute__((always_inline)) bool block_defer(struct pool *pool, struct block *block, bool in_any_case,
                                                              uint64_t freed)
{
    struct magazine *magazine = magazine_enter(pool);
    const bool fits = in_any_case || magazine_has_room(pool, magazine, block->size);

    if (fits) {
        count_up(&magazine->frees);
        handed_sub(magazine, block->size);
        magazine_defer(pool, magazine, block, freed);
    }
    lock_give(&magazine->lock);
    return fits;
}

int pool_free(uint64_t addr)
{
    struct block *block;
    struct pool *pool;
    bool defers;
    int rc = block_claim(addr, &block);

    if (rc)
        return rc;
    pool = block->segment->pool;
    defers = atomic_load_explicit(&pool->shown.defers, memory_order_relaxed);
    /* A block deferred while nothing may be ordered could not be had before that ends. A device that is nearly full has
     * no other memory for other sizes. */
    if (defers && !atomic_load_explicit(&pool->shown.nearly_full, memory_order_relaxed) &&
        !pool->config.order->frozen(pool->config.arg) &&
        block_defer(pool, block, /* in_any_case: */ false, /* freed: */ 0))
        return 0;
    if (defers || atomic_load_explicit(&pool->shown.deferring, memory_order_relaxed) || pool->config.order->fill) {
        rc = order_and_publish(pool, block, POOL_ORDER_FREE);
    } else { /* the usual case: one block, and only order() to call */
        rc = pool->config.order->order(pool->config.arg, POOL_ORDER_FREE);
        block_publish(pool, block, rc);
    }
    release_some(pool);
    return rc == -EBUSY ? 0 : rc;
}

int pool_free_async(uint64_t addr, uint64_t freed)
{
    struct block *block;
    struct pool *pool;
    int rc = block_claim(addr, &block);

    if (rc)
        return rc;
    pool = block->segment->pool;
    block_defer(pool, block, /* in_any_case: */ true, freed);
    later_set(pool);
    return 0;
}

int pool_free_later(uint64_t addr)
{
    return pool_free_async(addr, /* freed: */ 0);
}

int pool_free_never(uint64_t addr)
{
    struct block *block;

    return block_claim(addr, &block);
}

void pool_defer_never(struct pool *pool)
{
    atomic_store(&pool->shown.defers, false);
}

/* --- requests --- */

static int take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    int rc;

    if (size < LARGE_MIN)
        return shards_take(pool, size, requested, refused, ret_addr);
    lock_take(&pool->lock);
    rc = block_take(pool, size, requested, refused, ret_addr);
    if (!rc) {
        pool->stats.allocs++;
        pool->stats.hits++;
    }
    lock_give(&pool->lock);
    return rc;
}

/* Serve a request from memory that cannot go back: free parts of packed segments, and idle ones that are left. */
static int take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    int rc;

    lock_take(&pool->lock);
    rc = block_take_hole(pool, size, requested, ret_addr);
    if (!rc) {
        pool->stats.allocs++;
        pool->stats.hits++;
    }
    lock_give(&pool->lock);
    return rc;
}

/* The number of segments that have been given back. */
static uint64_t given_back(struct pool *pool)
{
    uint64_t count;

    lock_take(&pool->lock);
    count = pool->stats.segments_free;
    lock_give(&pool->lock);
    return count;
}

/* True if there is, or soon will be, more memory to give back, or some has been given back since `before`: other
 * threads may have freed some after the driver refused. False if the time has passed. */
static bool more_to_give(struct pool *pool, uint64_t before, struct patience *patience)
{
    const struct pool_config *config = &pool->config;
    bool more;

    if (config->order->frozen(config->arg))
        return false;
    locks_take(pool);
    coalesce_all(pool);
    more = (idle_bytes(pool) || pool->releasing || atomic_load(&pool->shown.ordering) ||
            pool->stats.segments_free != before) &&
           patience_lasts(pool, patience);
    locks_give(pool);
    return more;
}

/* Ask other users of the device. True: they may have given memory back. */
static bool others_give(struct pool *pool, size_t size, struct pool_asking *asking)
{
    const struct pool_config *config = &pool->config;
    const bool given = asking->given;

    if (!config->backend->ask || !config->backend->ask(config->arg, round_up(size, POOL_SEGMENT_UNIT), asking))
        return false;
    lock_take(&pool->lock);
    pool->stats.helped += asking->given && !given;
    lock_give(&pool->lock);
    return true;
}

/* Try everything of this pool that could serve the request, and the driver again, cheapest first. */
static int alloc_again(struct pool *pool, size_t size, size_t requested, struct patience *patience, uint64_t *ret_addr)
{
    uint64_t before;
    size_t released;
    int rc;

    do {
        if (pool->config.backend->reclaim)
            pool->config.backend->reclaim(pool->config.arg);
        pool_flush(pool);
        if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
            return 0;
        released = release_idle(pool, "oom");
        if (!released && atomic_load(&pool->shown.deferring)) {
            order_and_publish(pool, NULL, POOL_ORDER_DEVICE);
            if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
                return 0;
        }
        released = released ? released : release_for(pool, size, "oom", patience);
        before = given_back(pool);
        rc = grow(pool, size, requested, /* alone: */ true, ret_addr);
    } while (rc == -ENOMEM && (released || more_to_give(pool, before, patience)));
    if (rc == -ENOMEM && take_hole(pool, size, requested, ret_addr) == 0)
        return 0;
    return rc;
}

/* The driver has refused. Try everything else that could serve the request. */
static int alloc_ladder(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    struct pool_asking asking = {0};
    struct patience patience;
    int rc;

    patience_begin(&patience);
    /* Deferred blocks make other requests break into free ones, which a full card cannot afford: from now on each free
     * is ordered at once, and each order restores a little of the budget. */
    atomic_store_explicit(&pool->shown.budget, 0, memory_order_relaxed);
    do
        rc = alloc_again(pool, size, requested, &patience, ret_addr);
    while (rc == -ENOMEM && others_give(pool, size, &asking));
    if (rc == -ENOMEM) {
        lock_take(&pool->lock);
        pool->stats.oom++;
        lock_give(&pool->lock);
    }
    return rc;
}

/* True if, with size bytes more, the pool would hold more than peak_live and the deferred-free budget. */
static bool budget_is_used_up(struct pool *pool, size_t size)
{
    bool is_beyond;

    lock_take(&pool->lock);
    is_beyond = pool->stats.held + pool->growing + size >
                pool->stats.peak_live + atomic_load_explicit(&pool->shown.budget_max, memory_order_relaxed);
    lock_give(&pool->lock);
    return is_beyond;
}

/*
 * Before the driver is asked for more: publish deferred blocks, if all earlier work has ended. When frees are deferred,
 * not for every request, or the calls that deferring saves would be made here; but for each large one once their budget
 * is used up. False: it was not tried.
 */
static bool flush_if_due(struct pool *pool, size_t size)
{
    const size_t budget = atomic_load_explicit(&pool->shown.budget, memory_order_relaxed),
                 deferred = deferred_bytes(pool);
    const bool due = !budget || deferred >= atomic_load_explicit(&pool->shown.flush_from, memory_order_relaxed) ||
                     (size >= LARGE_MIN && deferred >= size && budget_is_used_up(pool, size));

    if (due && budget)
        atomic_store_explicit(&pool->shown.flush_from, deferred + budget / 8, memory_order_relaxed);
    if (due)
        pool_flush(pool);
    return due;
}

/* No cached block serves the request. */
static int alloc_looking(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    const struct pool_config *config = &pool->config;
    const size_t size = rounded(requested);
    struct growth growth = {0};
    int rc;

    if (config->capacity && requested > config->capacity)
        return -EAGAIN; /* no memory given back could make it fit */
    if (gathers_first(pool, size))
        pool_flush(pool);
    if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
        return 0;
    if (config->order->frozen(config->arg)) {
        rc = -EAGAIN;
    } else {
        if (flush_if_due(pool, size) && magazines_take(pool, NULL, requested, ret_addr))
            return 0;
        if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
            return 0;
        /* While the device has little left, a refusal and its consequences cost more than the 2 MiB saved. */
        growth.alone = config->backend->scarce && config->backend->scarce(config->arg);
        if (release_excess(pool, size, /* second: */ false, &growth)) {
            bound_wait(pool);
            pool_flush(pool);
            if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
                return 0;
            if (release_excess(pool, size, /* second: */ true, &growth) && config->backend->reclaim)
                config->backend->reclaim(config->arg);
        }
        rc = grow(pool, size, requested, growth.alone, ret_addr);
        if (rc == -ENOMEM)
            rc = alloc_ladder(pool, size, requested, ret_addr);
    }
    if (rc) {
        bound_refused(pool, &growth);
        lock_take(&pool->lock);
        pool->stats.failed++;
        lock_give(&pool->lock);
    }
    return rc;
}

int pool_alloc(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    unsigned int list;
    const size_t size = size_class(requested, &list);
    struct magazine *magazine = magazine_enter(pool);
    const bool found = magazine_take(magazine, list, size, requested, ret_addr) ||
                       magazine_carve(pool, magazine, size, requested, ret_addr);

    lock_give(&magazine->lock);
    return found || magazines_take(pool, magazine, requested, ret_addr) ? 0 : alloc_looking(pool, requested, ret_addr);
}

int pool_alloc_refused(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    const size_t size = rounded(requested);
    const int rc = take(pool, size, requested, /* refused: */ true, ret_addr);

    return rc ? take_hole(pool, size, requested, ret_addr) : 0;
}

/* --- life --- */

int pool_create(const struct pool_config *config, struct pool **ret_pool)
{
    struct pool *pool = pool_descriptor_new();

    if (!pool)
        return -ENOMEM;
    lock_take(&pool->lock);
    memset((char *)pool + offsetof(struct pool, books), 0, sizeof(*pool) - offsetof(struct pool, books));
    magazines_reset(pool);
    memset(&pool->shown, 0, sizeof(pool->shown));
    pool->config = *config;
    atomic_store(&pool->arg, config->arg);
    atomic_store(&pool->shown.kind, config->kind);
    atomic_store(&pool->shown.budget, config->deferred_min);
    atomic_store(&pool->shown.budget_max, config->deferred_min);
    atomic_store(&pool->shown.flush_from, config->deferred_min / 2);
    atomic_store(&pool->shown.defers, config->deferred_min != 0);
    lock_give(&pool->lock);
    *ret_pool = pool;
    return 0;
}

void pool_destroy(struct pool *pool)
{
    const struct pool_config config = pool->config;
    struct segment *segment, *next, *going;
    struct block *block, *following;

    lock_take(&pool->lock);
    going = pool->segments;
    for (segment = going; segment; segment = segment->next) {
        for (block = segment->first; block; block = following) {
            following = block->next;
            if (!is_free(block))
                map_block_set(block->addr, NULL);
            atomic_store(&block->state, BLOCK_FREE);
            spare_push(pool, spares_of(pool, segment), block);
        }
        map_segment_remove(segment->addr, segment->size);
    }
    pool->segments = NULL;
    magazines_reset(pool);
    lock_give(&pool->lock);
    later_clear(pool);
    for (segment = going; segment; segment = next) {
        next = segment->next;
        if (config.observer && config.observer->segment_lost)
            config.observer->segment_lost(config.arg, segment->kind, segment->addr, segment->size);
        segment_retire(segment);
    }
    pool_descriptor_retire(pool);
}
