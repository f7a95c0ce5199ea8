/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grow.c - see grow.h.
 *
 * Locking: pool->lock while the books change; none over a call of the tables.
 */
#include "grow.h"

#include <errno.h>

#include "clock.h"
#include "descriptors.h"
#include "ghosts.h"
#include "large.h"
#include "magazine.h"
#include "release_idle.h"
#include "split_merge.h"
#include "withdraw.h"

/* Count size bytes against the limit before the backend is asked, so that several threads cannot exceed it together. */
static bool growth_reserve(struct pool *pool, size_t size)
{
    size_t limit;
    bool fits;

    lock_take(&pool->lock);
    limit = pool->config.limit;
    fits = !limit || (size <= limit && pool->stats.held + pool->growing <= limit - size);
    if (fits)
        pool->growing += size;
    lock_give(&pool->lock);
    return fits;
}

static void growth_cancel(struct pool *pool, size_t size)
{
    lock_take(&pool->lock);
    pool->growing -= size;
    lock_give(&pool->lock);
}

/* Ask the backend for a segment. 0, -ENOMEM, or -EAGAIN. *ret_ns: how long that took, if it got one. */
static int segment_get(struct pool *pool, struct segment *segment, uint64_t *ret_ns)
{
    const struct pool_config *config = &pool->config;
    const uint64_t start = now_ns();
    int rc = config->backend->alloc(config->arg, segment->kind, segment->size, &segment->addr);

    if (rc)
        return rc == -ENOMEM ? -ENOMEM : -EAGAIN;
    *ret_ns = now_ns() - start;
    pool_disown(segment->addr, segment->size);
    if (config->observer && config->observer->segment_alloc)
        config->observer->segment_alloc(config->arg, segment->kind, segment->addr, segment->size, *ret_ns);
    if (config->order->fill)
        rc = config->order->fill(config->arg, segment->addr, segment->size, segment->shared, /* fresh: */ true);
    if (rc == 1)
        rc = config->order->filled(config->arg);
    if (rc)
        segment_put(pool, segment);
    return rc ? -EAGAIN : 0;
}

/* The descriptor of a segment that is about to be asked for, for a request of size bytes. NULL: no memory for it. */
static struct segment *segment_describe(struct pool *pool, size_t segment_size, size_t size)
{
    struct segment *segment = segment_new();

    if (!segment)
        return NULL;
    segment->size = segment_size;
    segment->pool = pool;
    segment->kind = pool_kind_get(pool);
    segment->shared = size < LARGE_MIN;
    segment->skip = 0;
    segment->got_for = size;
    segment->owner = segment->shared ? magazine_own(pool) : NULL;
    return segment;
}

int grow(struct pool *pool, size_t size, size_t requested, bool alone, uint64_t *ret_addr)
{
    struct segment *segment;
    size_t segment_size;
    uint64_t ns;
    bool entered;
    int rc;

    lock_take(&pool->lock);
    segment_size = block_segment_size(pool, size, alone);
    lock_give(&pool->lock);
    if (!growth_reserve(pool, segment_size)) {
        segment_size = round_up(size, POOL_SEGMENT_UNIT); /* another thread may have used up the limit */
        if (!growth_reserve(pool, segment_size)) {
            release_trim(pool, "limit", /* may_wait: */ false); /* the driver has not refused */
            if (!growth_reserve(pool, segment_size))
                return -EAGAIN;
        }
    }
    segment = segment_describe(pool, segment_size, size);
    if (!segment) {
        growth_cancel(pool, segment_size);
        return -EAGAIN;
    }
    rc = segment_get(pool, segment, &ns);
    if (rc) {
        growth_cancel(pool, segment_size);
        segment_retire(segment);
        return rc;
    }
    lock_take(&pool->lock);
    if (segment->owner)
        magazine_visit(segment->owner);
    pool->growing -= segment_size;
    pool->stats.driver_ns += ns;
    entered = segment_enter(pool, segment) == 0;
    if (entered) {
        ghosts_recall(&pool->ghosts, segment);
        block_unbin(pool, segment->first);
        /* Without a descriptor the segment stays in the pool as a free one. */
        rc = block_hand_out(pool, segment->first, size, requested);
        if (!rc) {
            *ret_addr = segment->first->addr;
            pool->stats.allocs++;
            pool->stats.misses++;
        }
        /* The kind has changed meanwhile. This request began before that; later ones must not use the segment. */
        if (segment->kind != pool_kind_get(pool))
            segment_withdraw(pool, segment);
    }
    if (segment->owner)
        magazine_unlock(segment->owner);
    lock_give(&pool->lock);
    if (!entered) {
        segment_put(pool, segment);
        segment_retire(segment);
    }
    return entered && !rc ? 0 : -EAGAIN;
}
