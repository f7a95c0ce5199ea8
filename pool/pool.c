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
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

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
/* Descriptors are made this many at a time. */
#define CHUNK 256

/* Pools and segment descriptors that are out of use; recycled, never freed (see pool_internal.h). */
static struct {
    pthread_mutex_t lock; /* guards the rest of this struct; a leaf lock */
    struct pool *pools;
    struct segment *segments;
} retired = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void *host_pages(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

/* --- descriptors --- */

static void spare_push(struct pool *pool, struct block *block)
{
    block->link = pool->spare;
    pool->spare = block;
}

/* Make sure that the next two calls of spare_pop succeed. */
static int spare_reserve(struct pool *pool)
{
    struct block *blocks;

    if (pool->spare && pool->spare->link)
        return 0;
    blocks = host_pages(CHUNK * sizeof(*blocks));
    if (!blocks)
        return -ENOMEM;
    for (int i = 0; i < CHUNK; i++)
        spare_push(pool, &blocks[i]);
    return 0;
}

static struct block *spare_pop(struct pool *pool)
{
    struct block *block = pool->spare;

    pool->spare = block->link;
    return block;
}

static struct segment *segment_new(void)
{
    struct segment *segment, *more;

    pthread_mutex_lock(&retired.lock);
    if (!retired.segments) {
        more = host_pages(CHUNK * sizeof(*more));
        for (int i = 0; more && i < CHUNK; i++) {
            more[i].next = retired.segments;
            retired.segments = &more[i];
        }
    }
    segment = retired.segments;
    if (segment)
        retired.segments = segment->next;
    pthread_mutex_unlock(&retired.lock);
    return segment;
}

static void segment_retire(struct segment *segment)
{
    pthread_mutex_lock(&retired.lock);
    segment->next = retired.segments;
    retired.segments = segment;
    pthread_mutex_unlock(&retired.lock);
}

/* --- blocks and segments, with the lock --- */

static struct bins *bins_for(struct pool *pool, const struct segment *segment)
{
    return segment->shared ? &pool->shared : &pool->large;
}

static void used_add(struct pool *pool, struct segment *segment, size_t size)
{
    if (!segment->used)
        pool->stats.idle -= segment->size;
    segment->used += size;
    pool->stats.live += size;
    if (pool->stats.live > pool->stats.peak_live)
        pool->stats.peak_live = pool->stats.live;
}

static void used_sub(struct pool *pool, struct segment *segment, size_t size)
{
    segment->used -= size;
    pool->stats.live -= size;
    if (!segment->used)
        pool->stats.idle += segment->size;
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

/* Swallow the neighbour after block, which is free. */
static void block_merge_next(struct pool *pool, struct block *block)
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

/* A PENDING block has been ordered: it may be handed out again. */
static void block_publish(struct pool *pool, struct block *block)
{
    struct segment *segment = block->segment;

    map_block_set(block->addr, NULL);
    used_sub(pool, segment, block->size);
    atomic_store_explicit(&block->state, BLOCK_FREE, memory_order_relaxed);
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

/* Take a segment of which nothing is handed out off the pool's books; it still counts as held. */
static void segment_leave(struct pool *pool, struct segment *segment)
{
    if (segment->prev)
        segment->prev->next = segment->next;
    else
        pool->segments = segment->next;
    if (segment->next)
        segment->next->prev = segment->prev;
    map_segment_remove(segment->addr, segment->size);
}

/* --- giving back --- */

static void segment_put(struct pool *pool, const struct segment *segment)
{
    const struct pool_config *config = &pool->config;

    if (config->observer && config->observer->segment_free)
        config->observer->segment_free(config->arg, segment->addr, segment->size);
    config->backend->free(config->arg, segment->addr, segment->size);
}

static int order_and_publish(struct pool *pool, struct block *block);

size_t pool_trim(struct pool *pool, const char *why)
{
    const struct pool_config *config = &pool->config;
    struct segment *segment, *next, *going = NULL;
    size_t released = 0;
    uint64_t start;

    if (config->order->frozen(config->arg))
        return 0;
    if (atomic_load(&pool->has_kept))
        order_and_publish(pool, NULL);
    pthread_mutex_lock(&pool->lock);
    for (segment = pool->segments; segment; segment = next) {
        next = segment->next;
        if (segment->used)
            continue;
        bins_remove(bins_for(pool, segment), segment->first);
        spare_push(pool, segment->first);
        segment_leave(pool, segment);
        pool->stats.idle -= segment->size;
        segment->next = going;
        going = segment;
    }
    pool->releasing += going != NULL;
    pthread_mutex_unlock(&pool->lock);
    if (!going)
        return 0;

    start = now_ns();
    for (segment = going; segment; segment = segment->next)
        segment_put(pool, segment);

    pthread_mutex_lock(&pool->lock);
    for (segment = going; segment; segment = next) {
        next = segment->next;
        released += segment->size;
        pool->stats.held -= segment->size;
        pool->stats.segments_free++;
        segment_retire(segment);
    }
    if (--pool->releasing == 0)
        pthread_cond_broadcast(&pool->released);
    pthread_mutex_unlock(&pool->lock);
    if (config->observer && config->observer->trim)
        config->observer->trim(config->arg, released, now_ns() - start, why);
    return released;
}

/* Wait until no thread is giving memory back that it took off the books before we asked the driver. */
static void releases_wait(struct pool *pool)
{
    int cancel;

    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&pool->lock);
    while (pool->releasing)
        pthread_cond_wait(&pool->released, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_setcancelstate(cancel, NULL);
}

/* --- order --- */

/*
 * Order what has been handed to the device so far before what comes next; then block (NULL: none) and everything that
 * was kept back before the call may be handed out. An order() that starts after a free covers all work that could use
 * the block.
 */
static int order_and_publish(struct pool *pool, struct block *block)
{
    struct block *kept = NULL, *next;
    int rc;

    /* While order() would only fail, leave the list alone: taking it and putting it back costs its length. */
    if (atomic_load_explicit(&pool->has_kept, memory_order_relaxed) && !pool->config.order->frozen(pool->config.arg)) {
        pthread_mutex_lock(&pool->lock);
        kept = pool->kept;
        pool->kept = NULL;
        atomic_store_explicit(&pool->has_kept, false, memory_order_relaxed);
        pthread_mutex_unlock(&pool->lock);
    }
    rc = pool->config.order->order(pool->config.arg);

    pthread_mutex_lock(&pool->lock);
    if (block) {
        pool->stats.frees++;
        pool->stats.kept += rc != 0;
        block->link = kept;
        kept = block;
    }
    pool->stats.order += rc == 0;
    for (; kept; kept = next) {
        next = kept->link;
        if (rc == 0) {
            block_publish(pool, kept);
        } else {
            kept->link = pool->kept;
            pool->kept = kept;
            atomic_store_explicit(&pool->has_kept, true, memory_order_relaxed);
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

void pool_flush(struct pool *pool)
{
    const struct pool_config *config = &pool->config;

    if (config->eager && atomic_load(&pool->has_kept) && !config->order->frozen(config->arg))
        order_and_publish(pool, NULL);
}

int pool_free(uint64_t addr)
{
    struct block *block;
    int live = BLOCK_LIVE, rc;

    if (!map_segment_get(addr))
        return -ENOENT;
    block = map_block_get(addr);
    if (!block || !atomic_compare_exchange_strong(&block->state, &live, BLOCK_PENDING))
        return -EINVAL;
    if (block->addr != addr) {
        /* Freed and recycled for another address since we looked it up: a double free that lost a race. */
        atomic_store(&block->state, BLOCK_LIVE);
        return -EINVAL;
    }
    rc = order_and_publish(block->segment->pool, block);
    return rc == -EBUSY ? 0 : rc;
}

/* --- allocation --- */

/* Count size bytes against the limit before asking for them, so that several threads cannot pass it together. */
static bool ask(struct pool *pool, size_t size)
{
    const size_t limit = pool->config.limit;
    bool fits;

    pthread_mutex_lock(&pool->lock);
    fits = !limit || (size <= limit && pool->stats.held + pool->asked <= limit - size);
    if (fits)
        pool->asked += size;
    pthread_mutex_unlock(&pool->lock);
    return fits;
}

static void asked(struct pool *pool, size_t size)
{
    pthread_mutex_lock(&pool->lock);
    pool->asked -= size;
    pthread_mutex_unlock(&pool->lock);
}

/* Ask the backend for a segment. 0, -ENOMEM, or -EAGAIN. */
static int segment_get(struct pool *pool, struct segment *segment)
{
    const struct pool_config *config = &pool->config;
    const uint64_t start = now_ns();
    const int rc = config->backend->alloc(config->arg, segment->size, &segment->addr);

    if (rc)
        return rc == -ENOMEM ? -ENOMEM : -EAGAIN;
    if (config->observer && config->observer->segment_alloc)
        config->observer->segment_alloc(config->arg, segment->addr, segment->size, now_ns() - start);
    return 0;
}

/* Get a new segment, just large enough, and hand out a block of it. */
static int grow(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    const size_t segment_size = round_up(size, POOL_SEGMENT_UNIT);
    struct segment *segment;
    bool entered;
    int rc;

    if (!ask(pool, segment_size)) {
        pool_trim(pool, "limit");
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
    pthread_mutex_lock(&pool->lock);
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
    pthread_mutex_unlock(&pool->lock);
    if (!entered) {
        segment_put(pool, segment);
        segment_retire(segment);
    }
    return entered && !rc ? 0 : -EAGAIN;
}

static int take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    int rc;

    pthread_mutex_lock(&pool->lock);
    rc = block_take(pool, size, requested, refused, ret_addr);
    if (!rc) {
        pool->stats.allocs++;
        pool->stats.hits++;
    }
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

/* A small request from what is free in large segments that cannot go back. */
static int take_from_large(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    struct block *block;
    int rc = -ENOENT;

    pthread_mutex_lock(&pool->lock);
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
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

/* Is there, or will there be, more to give to the driver? Other threads may have freed since we last gave back. */
static bool more_to_give(struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    bool more;

    if (config->order->frozen(config->arg))
        return false;
    pthread_mutex_lock(&pool->lock);
    more = pool->stats.idle || pool->releasing;
    pthread_mutex_unlock(&pool->lock);
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
        if (atomic_load(&pool->has_kept))
            order_and_publish(pool, NULL);
        if (take(pool, size, requested, /* refused: */ true, ret_addr) == 0)
            return 0;
        released = pool_trim(pool, "oom");
        releases_wait(pool);
        rc = grow(pool, size, requested, ret_addr);
    } while (rc == -ENOMEM && (released || more_to_give(pool)));
    if (rc == -ENOMEM && size < LARGE_MIN && take_from_large(pool, size, requested, ret_addr) == 0)
        return 0;
    if (rc == -ENOMEM) {
        pthread_mutex_lock(&pool->lock);
        pool->stats.oom++;
        stats = pool->stats;
        pthread_mutex_unlock(&pool->lock);
        if (config->observer && config->observer->oom)
            config->observer->oom(config->arg, requested, stats.held, stats.live);
    }
    return rc;
}

int pool_alloc(struct pool *pool, size_t requested, uint64_t *ret_addr)
{
    const struct pool_config *config = &pool->config;
    size_t size;
    int rc;

    size = round_up(requested < SIZE_LARGEST ? requested : SIZE_LARGEST, POOL_GRANULE);
    if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
        return 0;
    if (config->order->frozen(config->arg)) {
        rc = -EAGAIN;
    } else {
        pool_flush(pool);
        if (take(pool, size, requested, /* refused: */ false, ret_addr) == 0)
            return 0;
        rc = grow(pool, size, requested, ret_addr);
        if (rc == -ENOMEM)
            rc = alloc_ladder(pool, size, requested, ret_addr);
    }
    if (rc) {
        pthread_mutex_lock(&pool->lock);
        pool->stats.failed++;
        pthread_mutex_unlock(&pool->lock);
    }
    return rc;
}

/* --- life --- */

/* Once for each descriptor: another thread may still be waiting for the lock of the pool that it was. */
static struct pool *pool_new(void)
{
    struct pool *pool = host_pages(sizeof(*pool));
    pthread_mutexattr_t attr;

    if (!pool)
        return NULL;
    pthread_mutexattr_init(&attr);
    /* Held for some tens of nanoseconds at a time: spinning a little beats sleeping. */
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(&pool->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    pthread_cond_init(&pool->released, NULL);
    return pool;
}

int pool_create(const struct pool_config *config, struct pool **ret_pool)
{
    struct pool *pool;

    pthread_mutex_lock(&retired.lock);
    pool = retired.pools;
    if (pool)
        retired.pools = pool->next_retired;
    pthread_mutex_unlock(&retired.lock);
    if (!pool)
        pool = pool_new();
    if (!pool)
        return -ENOMEM;
    pthread_mutex_lock(&pool->lock);
    memset((char *)pool + offsetof(struct pool, shared), 0, sizeof(*pool) - offsetof(struct pool, shared));
    pool->config = *config;
    pthread_mutex_unlock(&pool->lock);
    *ret_pool = pool;
    return 0;
}

void pool_destroy(struct pool *pool)
{
    const struct pool_config config = pool->config;
    struct segment *segment, *next, *going;
    struct block *block, *following;

    pthread_mutex_lock(&pool->lock);
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
    pthread_mutex_unlock(&pool->lock);
    for (segment = going; segment; segment = next) {
        next = segment->next;
        if (config.observer && config.observer->segment_lost)
            config.observer->segment_lost(config.arg, segment->addr, segment->size);
        segment_retire(segment);
    }
    pthread_mutex_lock(&retired.lock);
    pool->next_retired = retired.pools;
    retired.pools = pool;
    pthread_mutex_unlock(&retired.lock);
}
