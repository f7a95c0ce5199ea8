/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - see pool.h: allocating and freeing, the order of frees, growing, and the steps after a refusal of the
 * driver. blocks.c chooses the block that serves a request.
 *
 * Locking: pool->lock, documented at its declaration; never held while a backend, order or observer function runs.
 */
#include "pool.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "bins.h"
#include "magazine.h"
#include "map.h"
#include "pool_internal.h"

/*
 * A segment for requests up to SKIP_MAX never hands out its first granule, so that a stray cuMemFree of a block names
 * no allocation of the driver. For larger requests this would cost too much: every second block of 1 MiB.
 */
#define SKIP_MAX    ((size_t)64 << 10)
#define SHARED_SKIP ((size_t)POOL_GRANULE)

/* --- order --- */

/* Each order restores this part of the slack, while the pool need not grow. */
#define SLACK_WIDEN 1024

/* Order, and where contents matter, fill the blocks of these lists and order the fills as well. */
static int order_and_fill(struct pool *pool, struct block *const *lists, unsigned int count, enum pool_order_how how)
{
    const struct pool_order_ops *order = pool->config.order;
    int rc = order->order(pool->config.arg, how), filled = 0;

    if (!order->fill)
        return rc;
    for (unsigned int i = 0; i < count; i++) {
        for (const struct block *block = lists[i]; !rc && block; block = block->link) {
            if (block->segment->withdrawn) /* it is never handed out again, and a peer may still read it */
                continue;
            rc = order->fill(pool->config.arg, block->addr, block->size, block->segment->shared, /* fresh: */ false);
            filled += rc == 1;
            rc = rc < 0 ? rc : 0;
        }
    }
    return !rc && filled ? order->filled(pool->config.arg) : rc;
}

/* The program's PENDING block has been ordered, or rc says why not: cache it, defer it, or restore it. */
static void block_settle(struct pool *pool, struct block *block, int rc)
{
    struct magazine *magazine;
    bool put = true;

    if (rc == -ENOTRECOVERABLE) {
        atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_relaxed);
        return;
    }
    magazine = magazine_enter(pool);
    count_up(&magazine->frees);
    handed_sub(magazine, block->size);
    if (rc == 0) {
        count_up(&magazine->order);
        put = magazine_put(magazine, block);
    } else {
        count_up(&magazine->kept_times);
        magazine_keep(pool, magazine, block);
    }
    lock_give(&magazine->lock);
    if (!put)
        magazine_put_or_join(pool, magazine, block);
}

/* As block_settle, for the deferred blocks of a magazine. */
static void list_settle(struct pool *pool, struct magazine *magazine, struct block *block, int rc)
{
    struct block *next;

    while (block) {
        magazine_lock(pool, magazine);
        for (; block; block = next) {
            next = block->link;
            if (rc)
                magazine_keep(pool, magazine, block);
            else if (!magazine_put(magazine, block))
                break;
        }
        magazine_unlock(magazine);
        if (!block)
            return;
        magazine_put_or_join(pool, magazine, block);
        block = next;
    }
}

/* Deferred blocks have been ordered: restore a part of the slack that slack_narrow has taken away. Threads that call
 * this at the same time may count as one. */
static void slack_widen(struct pool *pool)
{
    const size_t most = atomic_load_explicit(&pool->shown.slack_most, memory_order_relaxed);
    const size_t slack = atomic_load_explicit(&pool->shown.slack, memory_order_relaxed) + most / SLACK_WIDEN;

    atomic_store_explicit(&pool->shown.slack, slack < most ? slack : most, memory_order_relaxed);
}

/*
 * Order all work handed to the device so far before later work. Then block (NULL: none) and all blocks deferred before
 * the call can be handed out; with batched frees, mainly those in this thread's magazine, see kept_take. An order()
 * that starts after a free covers all work that could use the block.
 */
int order_and_publish(struct pool *pool, struct block *block, enum pool_order_how how)
{
    struct block *lists[MAGAZINES + 1] = {NULL};
    const struct magazine *own = NULL;
    unsigned int taken = 0;
    bool taking;
    int rc;

    /* While order() would only fail, leave the lists alone: taking them and putting them back costs their length. */
    taking = atomic_load_explicit(&pool->shown.keepers, memory_order_relaxed) &&
             !pool->config.order->frozen(pool->config.arg);
    if (taking) {
        atomic_fetch_add(&pool->shown.ordering, 1);
        if (block && pool->config.slack_min)
            own = &pool->magazines[magazine_place % MAGAZINES];
        taken = kept_take(pool, own, lists);
    }
    if (block)
        block->link = NULL;
    lists[MAGAZINES] = block;
    rc = order_and_fill(pool, lists, MAGAZINES + 1, how);
    for (unsigned int i = 0; i < taken; i++)
        list_settle(pool, &pool->magazines[i], lists[i], rc);
    if (taking)
        atomic_fetch_sub(&pool->shown.ordering, 1);
    if (rc == 0 && pool->config.slack_min) { /* fewer bytes are deferred now: see kept_ask */
        slack_widen(pool);
        atomic_store_explicit(&pool->shown.ask_from, atomic_load_explicit(&pool->shown.slack, memory_order_relaxed) / 2,
                              memory_order_relaxed);
    }
    if (block)
        block_settle(pool, block, rc);
    else if (rc == 0)
        atomic_fetch_add(&pool->shown.order, 1);
    return rc;
}

void pool_flush(struct pool *pool)
{
    const struct pool_config *config = &pool->config;

    if (atomic_load(&pool->shown.keepers) && !config->order->frozen(config->arg))
        order_and_publish(pool, NULL, POOL_ORDER_ASK);
}

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

/* Defer a block without ordering it, if the magazine's share of the slack allows that or in_any_case. */
static bool block_defer(struct pool *pool, struct block *block, bool in_any_case)
{
    struct magazine *magazine = magazine_enter(pool);
    const bool fits = in_any_case || magazine_has_room(pool, magazine, block->size);

    if (fits) {
        count_up(&magazine->frees);
        handed_sub(magazine, block->size);
        magazine_keep(pool, magazine, block);
    }
    lock_give(&magazine->lock);
    return fits;
}

int pool_free(uint64_t addr)
{
    struct block *block;
    struct pool *pool;
    int rc = block_claim(addr, &block);

    if (rc)
        return rc;
    pool = block->segment->pool;
    if (atomic_load_explicit(&pool->shown.defers, memory_order_relaxed) &&
        block_defer(pool, block, /* in_any_case: */ false))
        return 0;
    if (atomic_load_explicit(&pool->shown.keepers, memory_order_relaxed) || pool->config.order->fill) {
        rc = order_and_publish(pool, block, POOL_ORDER_FREE);
    } else { /* the usual case: one block, and only order() to call */
        rc = pool->config.order->order(pool->config.arg, POOL_ORDER_FREE);
        block_settle(pool, block, rc);
    }
    release_some(pool);
    return rc == -EBUSY ? 0 : rc;
}

int pool_free_later(uint64_t addr)
{
    struct block *block;
    struct pool *pool;
    int rc = block_claim(addr, &block);

    if (rc)
        return rc;
    pool = block->segment->pool;
    block_defer(pool, block, /* in_any_case: */ true);
    return 0;
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

void pool_pack_never(struct pool *pool)
{
    locks_take(pool);
    if (!pool->packs_never) {
        pool->packs_never = true;
        recent_flush(pool);
        for (struct segment *segment = pool->segments; segment; segment = segment->next)
            if (segment->exposed)
                segment_withdraw(pool, segment);
    }
    locks_give(pool);
}

/* --- allocation --- */

/* Count size bytes against the limit before the backend is asked, so that several threads cannot exceed it together. */
static bool ask(struct pool *pool, size_t size)
{
    const size_t limit = pool->config.limit;
    bool fits;

    lock_take(&pool->lock);
    fits = !limit || (size <= limit && pool->stats.held + pool->asked <= limit - size);
    if (fits)
        pool->asked += size;
    lock_give(&pool->lock);
    return fits;
}

static void asked(struct pool *pool, size_t size)
{
    lock_take(&pool->lock);
    pool->asked -= size;
    lock_give(&pool->lock);
}

/* Ask the backend for a segment. 0, -ENOMEM, or -EAGAIN. */
static int segment_get(struct pool *pool, struct segment *segment)
{
    const struct pool_config *config = &pool->config;
    const uint64_t start = now_ns();
    int rc = config->backend->alloc(config->arg, segment->kind, segment->size, &segment->addr);

    if (rc)
        return rc == -ENOMEM ? -ENOMEM : -EAGAIN;
    pool_disown(segment->addr, segment->size);
    if (config->observer && config->observer->segment_alloc)
        config->observer->segment_alloc(config->arg, segment->kind, segment->addr, segment->size, now_ns() - start);
    if (config->order->fill)
        rc = config->order->fill(config->arg, segment->addr, segment->size, segment->shared, /* fresh: */ true);
    if (rc == 1)
        rc = config->order->filled(config->arg);
    if (rc)
        segment_put(pool, segment);
    return rc ? -EAGAIN : 0;
}

/* Get a new segment, just large enough, and hand out a block of it. */
static int grow(struct pool *pool, size_t size, size_t requested, bool alone, uint64_t *ret_addr)
{
    struct segment *segment;
    size_t segment_size;
    bool entered;
    int rc;

    lock_take(&pool->lock);
    segment_size = block_segment_size(pool, size, alone);
    lock_give(&pool->lock);
    if (!ask(pool, segment_size)) {
        segment_size = round_up(size, POOL_SEGMENT_UNIT); /* another thread may have used up the limit */
        if (!ask(pool, segment_size)) {
            release_trim(pool, "limit", /* may_wait: */ false); /* the driver has not refused */
            if (!ask(pool, segment_size))
                return -EAGAIN;
        }
    }
    segment = segment_new();
    if (!segment) {
        asked(pool, segment_size);
        return -EAGAIN;
    }
    segment->size = segment_size;
    segment->pool = pool;
    segment->kind = pool_kind_get(pool);
    segment->shared = size < LARGE_MIN;
    segment->skip = size <= SKIP_MAX ? SHARED_SKIP : 0;
    segment->got_for = size;
    segment->owner = segment->shared ? magazine_own(pool) : NULL;
    rc = segment_get(pool, segment);
    if (rc) {
        asked(pool, segment_size);
        segment_retire(segment);
        return rc;
    }
    lock_take(&pool->lock);
    if (segment->owner)
        magazine_visit(segment->owner);
    pool->asked -= segment_size;
    entered = segment_enter(pool, segment) == 0;
    if (entered) {
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

/* Serve a small request from free memory in packed segments, which cannot go back. */
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

/* True if there is, or soon will be, more memory to give back: other threads may have freed some meanwhile. */
static bool more_to_give(struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    bool more;

    if (config->order->frozen(config->arg))
        return false;
    locks_take(pool);
    recent_flush(pool);
    more = idle_bytes(pool) || pool->releasing || atomic_load(&pool->shown.ordering);
    locks_give(pool);
    return more;
}

/* The driver has refused. Try everything else that could serve the request, cheapest first. */
static int alloc_ladder(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    const uint64_t limit = now_ns() + OTHERS_WAIT_NS;
    size_t released;
    int rc;

    do {
        if (pool->config.backend->reclaim)
            pool->config.backend->reclaim(pool->config.arg);
        pool_flush(pool);
        if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
            return 0;
        if (atomic_load(&pool->shown.keepers))
            order_and_publish(pool, NULL, POOL_ORDER_DEVICE);
        if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
            return 0;
        released = pool_trim(pool, "oom");
        rc = grow(pool, size, requested, /* alone: */ true, ret_addr);
    } while (rc == -ENOMEM && (released || (now_ns() < limit && more_to_give(pool))));
    if (rc == -ENOMEM && size < LARGE_MIN && take_hole(pool, size, requested, ret_addr) == 0)
        return 0;
    if (rc == -ENOMEM) {
        lock_take(&pool->lock);
        pool->stats.oom++;
        lock_give(&pool->lock);
    }
    return rc;
}

/* True if, with size bytes more, the pool would hold more than peak_live and the slack. */
static bool slack_is_used_up(struct pool *pool, size_t size)
{
    bool is_beyond;

    lock_take(&pool->lock);
    is_beyond = pool->stats.held + pool->asked + size >
                pool->stats.peak_live + atomic_load_explicit(&pool->shown.slack_most, memory_order_relaxed);
    lock_give(&pool->lock);
    return is_beyond;
}

/*
 * Before the driver is asked for more: publish deferred blocks, if all earlier work has ended. With slack not for every
 * request, or the calls that deferring saves would be made here; but for each large one once the slack is used up.
 * False: it was not tried.
 */
static bool kept_ask(struct pool *pool, size_t size)
{
    const size_t slack = atomic_load_explicit(&pool->shown.slack, memory_order_relaxed), kept = kept_bytes(pool);
    const bool due = !slack || kept >= atomic_load_explicit(&pool->shown.ask_from, memory_order_relaxed) ||
                     (size >= LARGE_MIN && kept >= size && slack_is_used_up(pool, size));

    if (due && slack)
        atomic_store_explicit(&pool->shown.ask_from, kept + slack / 8, memory_order_relaxed);
    if (due)
        pool_flush(pool);
    return due;
}

/* No cached block serves the request. */
static int alloc_looking(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    const struct pool_config *config = &pool->config;
    const size_t size = rounded(requested);
    bool alone;
    int rc;

    if (config->capacity && requested > config->capacity)
        return -EAGAIN; /* no memory given back could make it fit */
    if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
        return 0;
    if (config->order->frozen(config->arg)) {
        rc = -EAGAIN;
    } else {
        if (kept_ask(pool, size) && magazines_take(pool, NULL, requested, ret_addr))
            return 0;
        if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
            return 0;
        /* While the device has little left, a refusal and its consequences cost more than the 2 MiB saved. */
        alone = config->backend->scarce && config->backend->scarce(config->arg);
        if (release_excess(pool, size, /* again: */ false, &alone)) {
            bound_wait(pool);
            pool_flush(pool);
            if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
                return 0;
            if (release_excess(pool, size, /* again: */ true, &alone) && config->backend->reclaim)
                config->backend->reclaim(config->arg);
        }
        rc = grow(pool, size, requested, alone, ret_addr);
        if (rc == -ENOMEM)
            rc = alloc_ladder(pool, size, requested, ret_addr);
    }
    if (rc) {
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
    atomic_store(&pool->shown.slack, config->slack_min);
    atomic_store(&pool->shown.slack_most, config->slack_min);
    atomic_store(&pool->shown.ask_from, config->slack_min / 2);
    atomic_store(&pool->shown.defers, config->slack_min != 0);
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
    for (segment = going; segment; segment = next) {
        next = segment->next;
        if (config.observer && config.observer->segment_lost)
            config.observer->segment_lost(config.arg, segment->kind, segment->addr, segment->size);
        segment_retire(segment);
    }
    pool_descriptor_retire(pool);
}
