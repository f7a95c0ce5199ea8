/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release_idle.c - see release_idle.h: segments that are given back because the memory is needed, or has been idle for
 * long.
 *
 * Locking: all locks (locks_take) while segments leave; none over a call of the tables.
 */
#include "release_idle.h"

#include "accounting.h"
#include "clock.h"
#include "descriptors.h"
#include "magazine.h"
#include "map.h"
#include "publish.h"
#include "split_merge.h"
#include "uncache.h"

void segment_unlink(struct pool *pool, struct segment *segment)
{
    struct block *block, *next;

    if (segment->prev)
        segment->prev->next = segment->next;
    else
        pool->segments = segment->next;
    if (segment->next)
        segment->next->prev = segment->prev;
    map_segment_remove(segment->addr, segment->size);
    pool->stats.paused -= segment->suspended ? segment->size : 0;
    book(&books_of(pool, segment)->idle, -segment->size);
    if (segment->withdrawn) {
        pool->shown.withdrawn -= segment->size;
        for (block = segment->first; block; block = next) {
            next = block->next;
            spare_push(pool, spares_of(pool, segment), block);
        }
    } else {
        block_unbin(pool, segment->first);
        spare_push(pool, spares_of(pool, segment), segment->first);
    }
}

void segment_put(struct pool *pool, const struct segment *segment)
{
    const struct pool_config *config = &pool->config;

    if (config->observer && config->observer->segment_free)
        config->observer->segment_free(config->arg, segment->kind, segment->addr, segment->size);
    config->backend->free(config->arg, segment->kind, segment->addr, segment->size);
}

static bool goes(const struct pool *pool, const struct segment *segment, const struct release *what)
{
    if (segment->used)
        return false;
    if (segment->suspended && pool->changing)
        return false;
    if (segment->withdrawn)
        return true;
    return !what->withdrawn_only && pool->clock - segment->idle_since >= what->age;
}

/* The backend has taken the segment. is_last: no other of the caller's list follows. */
static void segment_gone(struct pool *pool, struct segment *segment, bool is_last)
{
    lock_take(&pool->lock);
    pool->stats.segments_free++;
    held_add(pool, -(ptrdiff_t)segment->size);
    pool->leaving -= segment->size;
    pool->putting -= is_last;
    segment_retire(segment);
    lock_give(&pool->lock);
}

size_t release_finish(struct pool *pool, struct segment *going, const struct release *what)
{
    const struct pool_config *config = &pool->config;
    struct segment *segment, *next;
    size_t released = 0;
    uint64_t start, ns;

    for (segment = going; segment; segment = segment->next)
        released += segment->size;
    pool->releasing += going != NULL;
    pool->putting += going != NULL;
    pool->leaving += released;
    locks_give(pool);
    if (!going)
        return 0;

    start = now_ns();
    for (segment = going; segment; segment = next) {
        next = segment->next;
        segment_put(pool, segment);
        segment_gone(pool, segment, !next);
    }
    if (what->collect && config->backend->collect)
        config->backend->collect(config->arg);
    ns = now_ns() - start;

    lock_take(&pool->lock);
    pool->stats.driver_ns += ns;
    pool->releasing--;
    lock_give(&pool->lock);
    if (config->observer && config->observer->trim)
        config->observer->trim(config->arg, released, ns, what->why);
    return released;
}

/* Give back idle segments; returns the bytes. */
static size_t release(struct pool *pool, const struct release *what)
{
    struct segment *segment, *next, *going = NULL;

    locks_take(pool);
    coalesce_all(pool);
    for (segment = idle_bytes(pool) ? pool->segments : NULL; segment; segment = next) {
        next = segment->next;
        if (!goes(pool, segment, what))
            continue;
        segment_unlink(pool, segment);
        segment->next = going;
        going = segment;
    }
    return release_finish(pool, going, what);
}

void release_withdrawn(struct pool *pool, const char *why)
{
    const struct release what = {.why = why, .withdrawn_only = true};

    if (atomic_load_explicit(&pool->shown.withdrawn, memory_order_relaxed))
        release(pool, &what);
}

size_t release_trim(struct pool *pool, const char *why, bool may_wait)
{
    const struct pool_config *config = &pool->config;
    const struct release what = {.why = why, .collect = may_wait};
    const bool frozen = config->order->frozen(config->arg);

    if (frozen && (!may_wait || !config->backend->gives_frozen || !config->backend->gives_frozen(config->arg)))
        return 0;
    if (!frozen && atomic_load(&pool->shown.deferring))
        order_and_publish(pool, NULL, may_wait ? POOL_ORDER_DEVICE : POOL_ORDER_ASK);
    return release(pool, &what);
}

size_t release_idle(struct pool *pool, const char *why)
{
    const struct pool_config *config = &pool->config;
    const struct release what = {.why = why, .collect = true};

    if (config->order->frozen(config->arg) &&
        (!config->backend->gives_frozen || !config->backend->gives_frozen(config->arg)))
        return 0;
    return release(pool, &what);
}

void patience_begin(struct patience *ret_patience)
{
    const uint64_t now = now_ns();

    *ret_patience = (struct patience){now + OTHERS_WAIT_NS, now + OTHERS_BUSY_NS};
}

bool patience_lasts(struct pool *pool, struct patience *patience)
{
    const uint64_t now = now_ns();

    if (pool->putting || atomic_load(&pool->shown.asking))
        patience->limit = now + OTHERS_WAIT_NS < patience->last ? now + OTHERS_WAIT_NS : patience->last;
    return now < patience->limit;
}

/* Wait for other threads that are giving back memory which they took off the books before this thread asked the driver,
 * until `enough` bytes have gone (0: all), and for threads that are ordering deferred blocks. True if there were any.
 */
static bool releases_wait(struct pool *pool, size_t enough, struct patience *patience)
{
    unsigned int looks = 0;
    size_t before;

    lock_take(&pool->lock);
    before = pool->stats.held;
    while ((pool->releasing || atomic_load(&pool->shown.ordering)) && (!enough || pool->stats.held + enough > before) &&
           patience_lasts(pool, patience)) {
        lock_give(&pool->lock);
        lock_relax(looks++);
        lock_take(&pool->lock);
    }
    lock_give(&pool->lock);
    return looks;
}

size_t release_for(struct pool *pool, size_t size, const char *why, struct patience *patience)
{
    const size_t released = release_trim(pool, why, /* may_wait: */ true);

    return releases_wait(pool, size, patience) ? released + release_trim(pool, why, /* may_wait: */ true) : released;
}

size_t pool_trim(struct pool *pool, const char *why)
{
    size_t released = release_idle(pool, why);
    struct patience patience;

    released += release_trim(pool, why, /* may_wait: */ true);
    patience_begin(&patience);
    /* More than once: the background thread first orders what is deferred, and then takes what is idle. */
    while (releases_wait(pool, 0, &patience))
        released += release_trim(pool, why, /* may_wait: */ true);
    return released;
}

size_t pool_yield(struct pool *pool, const char *why)
{
    const struct pool_config *config = &pool->config;
    const struct release what = {.why = why};
    const bool frozen = config->order->frozen(config->arg);

    pool_flush(pool);
    if (frozen && (!config->backend->gives_frozen || !config->backend->gives_frozen(config->arg)))
        return 0;
    return release(pool, &what);
}

size_t pool_decay(struct pool *pool, unsigned int age)
{
    const struct pool_config *config = &pool->config;
    const bool scarce = config->backend->scarce && config->backend->scarce(config->arg);
    const struct release what = {.why = scarce ? "reserve" : "decay", .age = scarce ? 0 : age};

    locks_take(pool);
    coalesce_all(pool); /* cached blocks were idle during the tick that ends now */
    magazines_mark_unused(pool);
    pool->clock++;
    locks_give(pool);
    return config->order->frozen(config->arg) ? 0 : release(pool, &what);
}

/*
 * Memory that was given back is of no use to anybody before it has arrived. Natively it is there when the free returns,
 * also for those that cannot ask for it: other processes, and managed memory, whose page fault on a device that has
 * nothing left ends in error 700.
 */
static void await_arrival(const struct pool_config *config)
{
    const struct pool_backend_ops *backend = config->backend;
    size_t arriving = 0;

    if (backend->collected && backend->reclaim && !backend->collected(config->arg, &arriving) && arriving)
        backend->reclaim(config->arg);
}

void release_some(struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    const bool withdrawn = atomic_load_explicit(&pool->shown.withdrawn, memory_order_relaxed) != 0;
    const bool scarce = config->backend->scarce && config->backend->scarce(config->arg);
    const struct release what = {.why = scarce ? "reserve" : "withdrawn", .withdrawn_only = !scarce};

    if ((!scarce && !withdrawn) || config->order->frozen(config->arg))
        return;
    release(pool, &what);
    if (scarce)
        await_arrival(config);
}
