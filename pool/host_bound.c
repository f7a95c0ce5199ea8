/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_bound.c - how much the host pool holds, and how it gives memory back.
 *
 * Memory is idle when no block of its driver allocation is live, and complete when all work before its frees is over.
 * Only memory that is both goes back.
 *
 * Locking: takes the pool's lock, unless a function says otherwise; calls ops->free and lost without it.
 */
#include "host_internal.h"

size_t host_excess(const struct host_pool *pool, size_t more)
{
    uint64_t bound = pool->native_peak + pool->native_peak / HOST_BOUND_PART + pool->bound_min;

    if (pool->limit && pool->limit < bound)
        bound = pool->limit;
    return pool->stats.held + more > bound ? pool->stats.held + more - bound : 0;
}

/* A segment that is in no list and not the pool's any more. lost: without ops->free. */
static void drop(struct host_pool *pool, struct host_segment *segment, bool lost)
{
    if (lost && pool->ops->lost)
        pool->ops->lost(pool->arg, &segment->key, segment->addr, segment->size);
    lock_take(&pool->lock);
    host_segment_retire(pool, segment);
    lock_give(&pool->lock);
}

void host_segment_leaves(struct host_pool *pool, struct host_segment *segment)
{
    host_segment_detach(pool, segment);
    segment->next = pool->leaving;
    pool->leaving = segment;
}

/* With the lock: the segment has left, or is to be kept. */
static void leaving_end(struct host_pool *pool, const struct host_segment *segment)
{
    struct host_segment **link = &pool->leaving;

    while (*link && *link != segment)
        link = &(*link)->next;
    if (*link)
        *link = segment->next;
}

bool host_segment_give(struct host_pool *pool, struct host_segment *segment, bool may_wait)
{
    const int rc = pool->ops->free(pool->arg, &segment->key, segment->addr, segment->size, may_wait);
    bool lost, kept;

    lock_take(&pool->lock);
    leaving_end(pool, segment);
    lost = rc == -EBUSY && segment->lost;
    kept = rc == -EBUSY && !lost && !host_segment_attach(pool, segment);
    if (!kept)
        pool->stats.held -= segment->size;
    if (!kept && !lost)
        pool->stats.segments_free++;
    lock_give(&pool->lock);
    if (!kept)
        drop(pool, segment, lost);
    return !kept;
}

/* True if memory of the segment can serve the request: to give it back would only have it requested again. */
static bool serves(const struct host_segment *segment, const struct host_need *need)
{
    if (!need || !host_keys_equal(&segment->key, need->key))
        return false;
    if (need->size <= HOST_SMALL_MAX)
        return segment->starts;
    return host_fits(segment->size, need->size);
}

/* With the lock: the segment that was idle longest, for `age` ticks at least, and is complete. busy: not of this owner,
 * if it is not NULL. *ret_stamp: the smallest stamp of those that are not complete, or 0. */
static struct host_segment *idle_find(const struct host_pool *pool, unsigned int age, const uint64_t *busy,
                                      const struct host_need *need, uint64_t *ret_stamp)
{
    struct host_segment *found = NULL;

    *ret_stamp = 0;
    for (size_t i = 0; i < pool->table_count; i++) {
        struct host_segment *segment = pool->table[i];

        if (segment->live || (pool->tick - segment->idle_tick < age && !segment->passing) ||
            (busy && segment->key.owner == *busy) || serves(segment, need))
            continue;
        if (!host_is_done(pool, segment->stamp)) {
            if (!*ret_stamp || segment->stamp < *ret_stamp)
                *ret_stamp = segment->stamp;
        } else if (!found || pool->tick - segment->idle_tick > pool->tick - found->idle_tick) {
            found = segment;
        }
    }
    return found;
}

bool host_idle_is_complete(struct host_pool *pool)
{
    uint64_t stamp;

    lock_take(&pool->lock);
    (void)idle_find(pool, 0, NULL, NULL, &stamp);
    lock_give(&pool->lock);
    return !stamp;
}

size_t host_idle_complete(struct host_pool *pool)
{
    size_t bytes = 0;

    lock_take(&pool->lock);
    for (size_t i = 0; i < pool->table_count; i++)
        if (!pool->table[i]->live && host_is_done(pool, pool->table[i]->stamp))
            bytes += pool->table[i]->size;
    lock_give(&pool->lock);
    return bytes;
}

size_t host_release(struct host_pool *pool, size_t enough, unsigned int age, bool may_wait,
                    const struct host_need *need)
{
    bool busy = false;
    uint64_t owner = 0, stamp;
    size_t released = 0;

    while (released < enough) {
        struct host_segment *segment;

        lock_take(&pool->lock);
        host_shards_flush(pool, true);
        segment = idle_find(pool, age, busy ? &owner : NULL, need, &stamp);
        if (segment)
            host_segment_leaves(pool, segment);
        lock_give(&pool->lock);
        if (!segment) {
            if (!stamp || !host_tokens_ask(pool, stamp))
                break;
            continue;
        }
        const size_t size = segment->size;
        const uint64_t its = segment->key.owner;

        if (host_segment_give(pool, segment, may_wait)) {
            released += size;
        } else if (busy) {
            break;
        } else {
            busy = true;
            owner = its;
        }
    }
    return released;
}

size_t host_pool_trim(struct host_pool *pool, bool may_wait)
{
    return host_release(pool, SIZE_MAX, 0, may_wait, NULL);
}

size_t host_pool_decay(struct host_pool *pool, unsigned int age)
{
    lock_take(&pool->lock);
    pool->tick++;
    lock_give(&pool->lock);
    return host_release(pool, SIZE_MAX, age, false, NULL);
}

/* With the lock: is the segment of this owner, or does it overlap the memory? */
static bool is_lost(const struct host_segment *segment, const uint64_t *owner, uint64_t addr, size_t size)
{
    return owner ? segment->key.owner == *owner : segment->addr < addr + size && addr < segment->addr + segment->size;
}

/* With the lock: take the first segment out that is of this owner, or overlaps the memory. */
static struct host_segment *lost_detach(struct host_pool *pool, const uint64_t *owner, uint64_t addr, size_t size)
{
    size_t index = owner ? 0 : host_table_index(pool, addr);

    if (index)
        index--; /* the segment before may extend into it */
    for (; index < pool->table_count; index++) {
        struct host_segment *segment = pool->table[index];

        if (is_lost(segment, owner, addr, size)) {
            host_segment_detach(pool, segment);
            pool->stats.held -= segment->size;
            return segment;
        }
        if (!owner && segment->addr >= addr + size)
            break;
    }
    return NULL;
}

static void lose(struct host_pool *pool, const uint64_t *owner, uint64_t addr, size_t size)
{
    struct host_segment *segment;

    for (;;) {
        lock_take(&pool->lock);
        for (segment = pool->leaving; segment; segment = segment->next)
            segment->lost |= is_lost(segment, owner, addr, size);
        segment = lost_detach(pool, owner, addr, size);
        if (!segment && owner)
            host_families_retire(pool, *owner);
        lock_give(&pool->lock);
        if (!segment)
            return;
        drop(pool, segment, /* lost: */ true);
    }
}

void host_pool_owner_gone(struct host_pool *pool, uint64_t owner)
{
    lose(pool, &owner, 0, 0);
}

void host_pool_disown(struct host_pool *pool, uint64_t addr, size_t size)
{
    lose(pool, NULL, addr, size);
}

void host_pool_destroy(struct host_pool *pool)
{
    while (pool->table_count)
        host_pool_owner_gone(pool, pool->table[0]->key.owner);
    host_tokens_drop(pool);
}
