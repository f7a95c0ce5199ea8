/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - see pool.h. Requests under 2 MiB share segments of 2 MiB, larger ones get a segment of their own size when
 * no free block fits, so that most of them start where a driver allocation starts. A segment that has become free
 * serves requests of its size, or is broken into for smaller ones. Breaking saves memory, but a block can then keep its
 * neighbours' memory from going back to the driver; so only so much is broken at a time (pool_config.break_max).
 *
 * Locking: pool->lock, documented at its declaration; never held while a backend, order or observer function runs.
 */
#include "pool.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>

#include "bins.h"
#include "map.h"
#include "pool_internal.h"

/*
 * Requests under this share segments. These are of one unit, like the driver's own pages for small requests, so that no
 * small block keeps more from going back than it does natively.
 */
#define LARGE_MIN ((size_t)POOL_SEGMENT_UNIT)
/*
 * A segment for requests up to this keeps its first granule to itself: a stray driver free of a block then names no
 * allocation of the driver. For larger ones that would cost too much: of blocks of 1 MiB, every second.
 */
#define SKIP_MAX    ((size_t)64 << 10)
#define SHARED_SKIP ((size_t)POOL_GRANULE)
/* A wholly free segment is broken into for requests of at least this part of it. */
#define LARGE_RATIO 8u
/* Large blocks are split only if a large request could use the rest. */
#define LARGE_SPLIT_MIN ((size_t)POOL_SEGMENT_UNIT)
/* No device has this much; the backend refuses it, and sums of sizes cannot overflow. */
#define SIZE_LARGEST ((size_t)1 << 47)
static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* --- blocks and segments, with the lock --- */

static void used_add(struct pool *pool, struct segment *segment, size_t size)
{
    if (!segment->used)
        pool->stats.idle -= segment->size;
    segment->used += size;
    pool->stats.live += size;
    if (pool->stats.live > pool->stats.peak_live)
        pool->stats.peak_live = pool->stats.live;
}

void used_sub(struct pool *pool, struct segment *segment, size_t size)
{
    segment->used -= size;
    pool->stats.live -= size;
    if (segment->used)
        return;
    segment->idle_since = pool->clock;
    pool->stats.idle += segment->size;
    if (segment->withdrawn)
        pool->withdrawn += segment->size;
}

/* Cut block (not in a bin) down to size; the rest becomes a free block. The caller has reserved a descriptor. */
static void block_split(struct pool *pool, struct block *block, size_t size)
{
    struct block *rest = spare_pop(pool);

    if (!block->segment->shared && block->size == block->segment->size)
        pool->broken += block->size;
    rest->addr = block->addr + size;
    rest->size = block->size - size;
    rest->segment = block->segment;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next)
        rest->next->prev = rest;
    atomic_store_explicit(&rest->state, BLOCK_FREE, memory_order_relaxed);
    block->next = rest;
    block->size = size;
    bins_insert(bins_for(pool, block->segment), rest);
}

/* Hand out size bytes of a free block that is in no bin. -ENOMEM: no host memory; the block is then back in its bin. */
static int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested)
{
    const size_t split_min = size < LARGE_MIN ? POOL_GRANULE : LARGE_SPLIT_MIN;

    if (spare_reserve(pool) || map_block_set(block->addr, block)) {
        bins_insert(bins_for(pool, block->segment), block);
        return -ENOMEM;
    }
    if (block->size - size >= split_min)
        block_split(pool, block, size);
    block->requested = requested;
    used_add(pool, block->segment, block->size);
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return 0;
}

/* Swallow the neighbour after block, which is free. */
void block_merge_next(struct pool *pool, struct block *block)
{
    struct block *next = block->next;

    bins_remove(bins_for(pool, block->segment), next);
    block->size += next->size;
    block->next = next->next;
    if (block->next)
        block->next->prev = block;
    spare_push(pool, next);
    if (!block->segment->shared && block->size == block->segment->size)
        pool->broken -= block->size;
}

/* A block of which nothing is used any more becomes a free one, whole with its free neighbours. */
static void block_free(struct pool *pool, struct block *block)
{
    struct segment *segment = block->segment;

    map_block_set(block->addr, NULL);
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
    if (segment->withdrawn)
        return;
    if (is_free(block->next))
        block_merge_next(pool, block);
    if (is_free(block->prev)) {
        block = block->prev;
        bins_remove(bins_for(pool, segment), block);
        /* Its successor is the block that is in no bin; put it there so that merging is one thing only. */
        bins_insert(bins_for(pool, segment), block->next);
        block_merge_next(pool, block);
    }
    bins_insert(bins_for(pool, segment), block);
}

/* --- recently freed, with the lock --- */

static size_t rounded(size_t requested)
{
    return round_up(requested < SIZE_LARGEST ? requested : SIZE_LARGEST, POOL_GRANULE);
}

static unsigned int recent_index(size_t size)
{
    return (unsigned int)((uint64_t)(size / POOL_GRANULE) * 0x9e3779b97f4a7c15u >> 58);
}

static void recent_join(struct pool *pool, unsigned int i)
{
    struct block *block = pool->recent[i], *next;

    pool->recent[i] = NULL;
    pool->recent_set &= ~((uint64_t)1 << i);
    for (; block; block = next) {
        next = block->link;
        pool->recent_count--;
        block_free(pool, block);
    }
}

void recent_flush(struct pool *pool)
{
    while (pool->recent_set)
        recent_join(pool, (unsigned int)__builtin_ctzll(pool->recent_set));
}

/* A PENDING block has been ordered: it may be handed out again. */
static void block_publish(struct pool *pool, struct block *block)
{
    const size_t size = rounded(block->requested);
    const unsigned int i = recent_index(size);

    used_sub(pool, block->segment, block->size);
    if (block->segment->withdrawn || pool->recent_count >= RECENT_MAX) {
        block_free(pool, block);
        return;
    }
    if (pool->recent[i] && rounded(pool->recent[i]->requested) != size)
        recent_join(pool, i);
    atomic_store_explicit(&block->state, BLOCK_RECENT, memory_order_relaxed);
    block->link = pool->recent[i];
    pool->recent[i] = block;
    pool->recent_set |= (uint64_t)1 << i;
    pool->recent_count++;
}

/* Hand out a block that was freed by a request of the same size. */
static bool recent_take(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    const size_t size = rounded(requested);
    const unsigned int i = recent_index(size);
    struct block *block = pool->recent[i];

    if (!block || rounded(block->requested) != size)
        return false;
    pool->recent[i] = block->link;
    pool->recent_count--;
    if (!block->link)
        pool->recent_set &= ~((uint64_t)1 << i);
    block->requested = requested;
    used_add(pool, block->segment, block->size);
    pool->stats.allocs++;
    pool->stats.hits++;
    *ret_addr = block->addr;
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return true;
}

/* --- choosing, with the lock --- */

/* How large a free segment may be broken into: the fuller the device, the less, by the square of what is not handed
 * out. */
static size_t break_max(const struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    double share = 1;
    size_t max;

    if (config->capacity)
        share = pool->stats.live < config->capacity
                    ? (double)(config->capacity - pool->stats.live) / (double)config->capacity
                    : 0;
    max = (size_t)((double)config->break_max * share * share);
    return pool->broken < max ? max - pool->broken : 0;
}

/*
 * Take a block from what is free. -ENOENT: nothing fits. refused: the driver has no more, so look at every block; but
 * break nothing, because a whole segment given back serves this request as well and leaves the driver able to serve the
 * next one.
 */
static int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    struct block *block;

    recent_flush(pool);
    if (size < LARGE_MIN) /* of one unit each: never broken into, in the sense of bins_find */
        block = bins_find(&pool->shared, size, 0, refused ? 0 : UINT_MAX);
    else if (refused)
        block = bins_find(&pool->large, size, 0, 0);
    else
        block = bins_find(&pool->large, size, break_max(pool), LARGE_RATIO);
    if (!block)
        return -ENOENT;
    bins_remove(size < LARGE_MIN ? &pool->shared : &pool->large, block);
    if (block_hand_out(pool, block, size, requested))
        return -ENOENT;
    *ret_addr = block->addr;
    return 0;
}

/* Enter memory from the backend as a segment with one free block. Errors leave nothing behind. */
static int segment_enter(struct pool *pool, struct segment *segment)
{
    struct block *block;
    int rc = spare_reserve(pool);

    if (!rc)
        rc = map_segment_add(segment->addr, segment->size, segment);
    if (rc)
        return rc;
    block = spare_pop(pool);
    block->addr = segment->addr + segment->skip;
    block->size = segment->size - segment->skip;
    block->segment = segment;
    block->prev = block->next = NULL;
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
    bins_insert(bins_for(pool, segment), block);
    segment->first = block;
    segment->used = 0;
    segment->withdrawn = false;
    segment->idle_since = pool->clock;
    segment->prev = NULL;
    segment->next = pool->segments;
    if (segment->next)
        segment->next->prev = segment;
    pool->segments = segment;
    pool->stats.segments_alloc++;
    pool->stats.idle += segment->size;
    pool->stats.held += segment->size;
    if (pool->stats.held > pool->stats.peak_held)
        pool->stats.peak_held = pool->stats.held;
    return 0;
}

/* --- order --- */

/* A PENDING block that has not been ordered, with the lock. */
static void block_keep(struct pool *pool, struct block *block)
{
    block->link = pool->kept;
    pool->kept = block;
    pool->kept_bytes += block->size;
    atomic_store_explicit(&pool->has_kept, true, memory_order_relaxed);
}

/* Order, and where contents matter fill the blocks of a list and order that as well. */
static int order_and_fill(struct pool *pool, const struct block *blocks, bool may_wait)
{
    const struct pool_order_ops *order = pool->config.order;
    int rc = order->order(pool->config.arg, may_wait), filled = 0;

    for (; !rc && order->fill && blocks; blocks = blocks->link) {
        if (blocks->segment->withdrawn) /* nobody will be handed it, and somebody outside may still read it */
            continue;
        rc = order->fill(pool->config.arg, blocks->addr, blocks->size, blocks->segment->shared, /* fresh: */ false);
        filled += rc == 1;
        rc = rc < 0 ? rc : 0;
    }
    return !rc && filled ? order->order(pool->config.arg, may_wait) : rc;
}

/* The program's PENDING block has been ordered, or has not (rc); with the lock. */
static void block_settle(struct pool *pool, struct block *block, int rc)
{
    if (rc == -ENOTRECOVERABLE) {
        atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_relaxed);
        return;
    }
    pool->stats.frees++;
    if (rc == 0) {
        pool->stats.order++;
        block_publish(pool, block);
    } else {
        pool->stats.kept++;
        block_keep(pool, block);
    }
}

/* The end of a free: gives the lock. */
static void free_finish(struct pool *pool)
{
    const bool idle = pool->stats.idle != 0, withdrawn = pool->withdrawn != 0;

    lock_give(&pool->lock);
    if (idle)
        release_some(pool, withdrawn);
}

/*
 * Order what has been handed to the device so far before what comes next; then block (NULL: none) and everything that
 * was kept back before the call may be handed out. An order() that starts after a free covers all work that could use
 * the block.
 */
int order_and_publish(struct pool *pool, struct block *block, bool may_wait)
{
    struct block *kept = NULL, *next;
    int rc;

    /* While order() would only fail, leave the list alone: taking it and putting it back costs its length. */
    if (atomic_load_explicit(&pool->has_kept, memory_order_relaxed) && !pool->config.order->frozen(pool->config.arg)) {
        lock_take(&pool->lock);
        kept = pool->kept;
        pool->kept = NULL;
        pool->kept_bytes = 0;
        atomic_store_explicit(&pool->has_kept, false, memory_order_relaxed);
        lock_give(&pool->lock);
    }
    if (block)
        block->link = kept;
    rc = order_and_fill(pool, block ? block : kept, may_wait);

    lock_take(&pool->lock);
    for (unsigned int i = 1; kept; kept = next, i++) {
        if (i % RECENT_MAX == 0) { /* with slack these may be many */
            lock_give(&pool->lock);
            lock_take(&pool->lock);
        }
        next = kept->link;
        if (rc == 0)
            block_publish(pool, kept);
        else
            block_keep(pool, kept);
    }
    if (block) {
        block_settle(pool, block, rc);
        free_finish(pool);
    } else {
        pool->stats.order += rc == 0;
        lock_give(&pool->lock);
    }
    return rc;
}

void pool_flush(struct pool *pool)
{
    const struct pool_config *config = &pool->config;

    if (atomic_load(&pool->has_kept) && !config->order->frozen(config->arg))
        order_and_publish(pool, NULL, /* may_wait: */ false);
}

/* The live block that starts at addr, now pending and the caller's. */
static int block_claim(uint64_t addr, struct block **ret_block)
{
    struct block *block;
    int live = BLOCK_LIVE;

    if (!map_find(addr, &block))
        return -ENOENT;
    if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING))
        return -EINVAL;
    if (block->addr != addr) {
        /* Freed and recycled for another address since we looked it up: a double free that lost a race. */
        atomic_store(&block->state, BLOCK_LIVE);
        return -EINVAL;
    }
    *ret_block = block;
    return 0;
}

/* How much may be kept, with the lock. What is kept is part of peak_live, and not of what the percentage is of. */
static size_t slack_now(const struct pool *pool)
{
    const size_t percent = pool->config.slack_percent, slack = pool->stats.peak_live / (100 + percent) * percent;

    return slack > pool->config.slack_min ? slack : pool->config.slack_min;
}

/* The program has freed a block that is kept without having tried to order it; with the lock. */
static void block_defer(struct pool *pool, struct block *block)
{
    if (!pool->kept)
        pool->ask_from = slack_now(pool) / 2;
    pool->stats.frees++;
    block_keep(pool, block);
}

/* Keep a block until there are more of them. False: there are enough, with it. */
static bool slack_takes(struct pool *pool, struct block *block)
{
    bool fits;

    lock_take(&pool->lock);
    fits = pool->kept_bytes + block->size <= slack_now(pool);
    if (fits)
        block_defer(pool, block);
    lock_give(&pool->lock);
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
    if (atomic_load_explicit(&pool->defers, memory_order_relaxed) && slack_takes(pool, block))
        return 0;
    if (atomic_load_explicit(&pool->has_kept, memory_order_relaxed) || pool->config.order->fill) {
        rc = order_and_publish(pool, block, /* may_wait: */ true);
    } else { /* what most frees are: one block, and nothing but order */
        rc = pool->config.order->order(pool->config.arg, /* may_wait: */ true);
        lock_take(&pool->lock);
        block_settle(pool, block, rc);
        free_finish(pool);
    }
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
    lock_take(&pool->lock);
    block_defer(pool, block);
    lock_give(&pool->lock);
    return 0;
}

void pool_defer_never(struct pool *pool)
{
    atomic_store(&pool->defers, false);
}

/* --- allocation --- */

/* Count size bytes against the limit before asking for them, so that several threads cannot pass it together. */
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
    int rc = config->backend->alloc(config->arg, segment->size, &segment->addr);

    if (rc)
        return rc == -ENOMEM ? -ENOMEM : -EAGAIN;
    pool_disown(segment->addr, segment->size);
    if (config->observer && config->observer->segment_alloc)
        config->observer->segment_alloc(config->arg, segment->addr, segment->size, now_ns() - start);
    if (config->order->fill)
        rc = config->order->fill(config->arg, segment->addr, segment->size, segment->shared, /* fresh: */ true);
    if (rc)
        segment_put(pool, segment);
    return rc ? -EAGAIN : 0;
}

/* Get a new segment, just large enough, and hand out a block of it. */
static int grow(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    const size_t segment_size = round_up(size, POOL_SEGMENT_UNIT);
    struct segment *segment;
    bool entered;
    int rc;

    if (!ask(pool, segment_size)) {
        release_trim(pool, "limit", /* may_wait: */ false); /* the driver has not refused */
        if (!ask(pool, segment_size))
            return -EAGAIN;
    }
    segment = segment_new();
    if (!segment) {
        asked(pool, segment_size);
        return -EAGAIN;
    }
    segment->size = segment_size;
    segment->pool = pool;
    segment->shared = size < LARGE_MIN;
    segment->skip = size <= SKIP_MAX ? SHARED_SKIP : 0;
    rc = segment_get(pool, segment);
    if (rc) {
        asked(pool, segment_size);
        segment_retire(segment);
        return rc;
    }
    lock_take(&pool->lock);
    pool->asked -= segment_size;
    entered = segment_enter(pool, segment) == 0;
    if (entered) {
        bins_remove(bins_for(pool, segment), segment->first);
        /* Without a descriptor the segment stays behind as a free one. */
        rc = block_hand_out(pool, segment->first, size, requested);
        if (!rc) {
            *ret_addr = segment->first->addr;
            pool->stats.allocs++;
            pool->stats.misses++;
        }
    }
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

    lock_take(&pool->lock);
    rc = block_take(pool, size, requested, refused, ret_addr);
    if (!rc) {
        pool->stats.allocs++;
        pool->stats.hits++;
    }
    lock_give(&pool->lock);
    return rc;
}

/* A small request from what is free in large segments that cannot go back. */
static int take_from_large(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    struct block *block;
    int rc = -ENOENT;

    lock_take(&pool->lock);
    recent_flush(pool);
    block = bins_find(&pool->large, size, 0, 0);
    if (block) {
        bins_remove(&pool->large, block);
        rc = block_hand_out(pool, block, size, requested);
    }
    if (!rc) {
        *ret_addr = block->addr;
        pool->stats.allocs++;
        pool->stats.hits++;
    }
    lock_give(&pool->lock);
    return rc;
}

/* Is there, or will there be, more to give to the driver? Other threads may have freed since we last gave back. */
static bool more_to_give(struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    bool more;

    if (config->order->frozen(config->arg))
        return false;
    lock_take(&pool->lock);
    more = pool->stats.idle || pool->releasing;
    lock_give(&pool->lock);
    return more;
}

/* The driver has refused: what else could serve the request, cheapest first. */
static int alloc_ladder(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    const struct pool_config *config = &pool->config;
    struct pool_stats stats;
    size_t released;
    int rc;

    do {
        pool_flush(pool);
        if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
            return 0;
        if (atomic_load(&pool->has_kept))
            order_and_publish(pool, NULL, /* may_wait: */ true);
        if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
            return 0;
        released = pool_trim(pool, "oom");
        releases_wait(pool);
        rc = grow(pool, size, requested, ret_addr);
    } while (rc == -ENOMEM && (released || more_to_give(pool)));
    if (rc == -ENOMEM && size < LARGE_MIN && take_from_large(pool, size, requested, ret_addr) == 0)
        return 0;
    if (rc == -ENOMEM) {
        lock_take(&pool->lock);
        pool->stats.oom++;
        stats = pool->stats;
        lock_give(&pool->lock);
        if (config->observer && config->observer->oom)
            config->observer->oom(config->arg, requested, stats.held, stats.live);
    }
    return rc;
}

/*
 * Before the driver is asked for more: what was kept, if all that came before it has ended. With slack not each time,
 * or the calls that deferring saves would be made here.
 */
static void kept_ask(struct pool *pool)
{
    bool due = true;

    if (pool->config.slack_min) {
        lock_take(&pool->lock);
        due = pool->kept_bytes >= pool->ask_from;
        if (due)
            pool->ask_from = pool->kept_bytes + slack_now(pool) / 8;
        lock_give(&pool->lock);
    }
    if (due)
        pool_flush(pool);
}

/* Nothing of this size was freed recently. */
static int alloc_looking(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    const struct pool_config *config = &pool->config;
    const size_t size = rounded(requested);
    int rc;

    if (config->capacity && requested > config->capacity)
        return -EAGAIN; /* nothing that could be given back would make it fit */
    if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
        return 0;
    if (config->order->frozen(config->arg)) {
        rc = -EAGAIN;
    } else {
        kept_ask(pool);
        if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
            return 0;
        rc = grow(pool, size, requested, ret_addr);
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
    bool found;

    lock_take(&pool->lock);
    found = recent_take(pool, requested, ret_addr);
    lock_give(&pool->lock);
    return found ? 0 : alloc_looking(pool, requested, ret_addr);
}

/* --- life --- */

int pool_create(const struct pool_config *config, struct pool **ret_pool)
{
    struct pool *pool = pool_descriptor_new();

    if (!pool)
        return -ENOMEM;
    lock_take(&pool->lock);
    memset((char *)pool + offsetof(struct pool, shared), 0, sizeof(*pool) - offsetof(struct pool, shared));
    pool->config = *config;
    atomic_store(&pool->defers, config->slack_min != 0);
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
            spare_push(pool, block);
        }
        map_segment_remove(segment->addr, segment->size);
    }
    pool->segments = NULL;
    memset(pool->recent, 0, sizeof(pool->recent));
    pool->recent_set = 0;
    pool->recent_count = 0;
    pool->kept = NULL;
    pool->kept_bytes = 0;
    lock_give(&pool->lock);
    for (segment = going; segment; segment = next) {
        next = segment->next;
        if (config.observer && config.observer->segment_lost)
            config.observer->segment_lost(config.arg, segment->addr, segment->size);
        segment_retire(segment);
    }
    pool_descriptor_retire(pool);
}
