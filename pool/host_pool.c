/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_pool.c - requests and frees of pinned host memory; see host_pool.h.
 *
 * A request looks for memory in this order: a complete block of its size class or the next one, free memory of slabs, a
 * block whose work turns out to be over, slabs whose complete blocks are merged, the driver. When the bound is met or
 * the driver refuses, idle memory goes back first. One question answers for all frees before it, so slabs come first.
 *
 * Locking: takes the pool's lock, unless a function says otherwise; calls the functions of struct host_ops without it.
 */
#include <string.h>

#include "host_internal.h"

struct request {
    struct host_pool *pool;
    struct host_key key;
    size_t size;
    uint64_t addr;   /* once it is served */
    uint64_t stamp;  /* of a block that would serve it if it were complete, or 0 */
    size_t pending;  /* its part of the pool's pending bytes */
    bool any_larger; /* a block serves however much larger it is: the alternative is a refusal */
};

/* With the lock: the request counts as pending from now on, for `pending` bytes. */
static void request_pends(struct request *r, size_t pending)
{
    r->pool->pending += pending - r->pending;
    r->pending = pending;
    host_native_peak_raise(r->pool, /* patient: */ true);
}

/* With the lock: natively it would not be in use. The peak may become less than before, never less than was live. */
static void request_failed(struct request *r)
{
    struct host_pool *pool = r->pool;
    const uint64_t surely = pool->stats.peak_live, less = pool->native_peak - r->pending;

    pool->native_peak = pool->native_peak >= r->pending + surely ? less : surely;
    request_pends(r, 0);
}

int host_pool_create(const struct host_config *config, struct host_pool **ret_pool)
{
    struct host_pool *pool = host_pages(sizeof(*pool));

    if (!pool)
        return -ENOMEM;
    pool->ops = config->ops;
    pool->arg = config->arg;
    pool->limit = config->limit;
    pool->bound_min = config->bound_min;
    pool->ask_ns = config->ask_ns;
    atomic_store(&pool->sharded, config->sharded);
    host_tokens_init(&pool->tokens);
    *ret_pool = pool;
    return 0;
}

/* With the lock: serve the request from what there is. coalesce: merge slabs' blocks first. */
static bool take(struct request *r, bool coalesce)
{
    struct host_family *family = host_family_get(r->pool, &r->key);
    const size_t pending = r->pending;
    struct host_block *block;

    r->stamp = 0;
    if (!family)
        return false;
    if (coalesce)
        host_coalesce(r->pool, family);
    request_pends(r, 0); /* it counts as live in a moment, and must not count twice */
    block = host_take(r->pool, family, r->size, r->any_larger, &r->stamp);
    if (!block) {
        request_pends(r, pending);
        return false;
    }
    r->addr = block->addr;
    r->pool->stats.hits++;
    if (host_is_sharded(r->pool) && !r->any_larger)
        host_shard_fill(r->pool, block, r->size);
    return true;
}

/* Serve the request from what there is, asking whether a block is complete. Other threads may take what has turned out
 * to be complete. shards: from what other threads' shards keep, too. */
static bool serve(struct request *r, bool shards)
{
    struct host_pool *pool = r->pool;

    for (int i = 0; i <= HOST_NEWS; i++) {
        bool served;

        host_lock(pool);
        if (shards)
            host_shards_flush(pool, true);
        served = take(r, false);
        lock_give(&pool->lock);
        if (served || !r->stamp)
            return served;
        if (!host_tokens_news(pool, r->stamp))
            break;
    }
    return false;
}

/* As serve, after merging what is complete in slabs. */
static bool serve_coalesced(struct request *r)
{
    struct host_pool *pool = r->pool;
    struct host_family *family;
    uint64_t oldest = 0, newest = 0;
    bool served;

    if (r->size > HOST_SMALL_MAX)
        return serve(r, /* shards: */ true);
    lock_take(&pool->lock);
    host_shards_flush(pool, true);
    family = host_family_get(pool, &r->key);
    if (family)
        host_coalesce_stamps(family, &oldest, &newest);
    lock_give(&pool->lock);
    if (newest && !host_tokens_ask(pool, newest) && oldest != newest)
        (void)host_tokens_ask(pool, oldest);
    lock_take(&pool->lock);
    served = take(r, true);
    lock_give(&pool->lock);
    return served;
}

/* The bytes that the driver is asked for. passing: for this request alone. */
static size_t need_of(const struct request *r, bool passing)
{
    if (passing)
        return host_round(r->size);
    return r->size <= HOST_SMALL_MAX ? HOST_SLAB : host_class_size(host_class_of(r->size));
}

/* With the lock: enter new memory and serve the request from it. */
static int enter(struct request *r, struct host_segment *segment)
{
    struct host_pool *pool = r->pool;
    struct host_block *block;
    uint64_t stamp;
    int rc = host_segment_attach(pool, segment);

    if (rc)
        return rc;
    request_pends(r, 0);
    if (segment->starts) {
        block = host_take(pool, segment->family, r->size, false, &stamp);
    } else {
        block = segment->first;
        host_hand_out(pool, block, r->size);
    }
    if (!block) {
        host_segment_detach(pool, segment);
        return -ENOMEM;
    }
    r->addr = block->addr;
    pool->stats.misses++;
    return 0;
}

/* Call ops->alloc, and enter nothing yet. */
static int from_driver(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr)
{
    const uint64_t began = now_ns();
    const int rc = pool->ops->alloc(pool->arg, key, size, ret_addr);
    const uint64_t ns = now_ns() - began;

    if (rc)
        return rc;
    host_pool_disown(pool, *ret_addr, size);
    if (pool->ops->got)
        pool->ops->got(pool->arg, key, *ret_addr, size, ns);
    return 0;
}

/* Serve the request with memory from the driver. passing: for this request alone, and beyond the bound. -ENOSPC: the
 * bound is met. */
static int grow(struct request *r, bool passing)
{
    struct host_pool *pool = r->pool;
    const size_t need = need_of(r, passing);
    struct host_segment *segment = NULL;
    uint64_t addr;
    int rc = 0;

    lock_take(&pool->lock);
    if (!passing && host_excess(pool, need))
        rc = -ENOSPC;
    else
        segment = host_segment_new(pool, !passing && r->size <= HOST_SMALL_MAX);
    pool->stats.held += segment ? need : 0; /* other threads see at once how much it will be */
    lock_give(&pool->lock);
    if (!segment)
        return rc ? rc : -ENOMEM;
    segment->size = need;
    segment->key = r->key;
    segment->passing = passing;
    rc = from_driver(pool, &r->key, need, &addr);
    lock_take(&pool->lock);
    if (rc) {
        pool->stats.held -= need;
        host_segment_retire(pool, segment);
        lock_give(&pool->lock);
        return rc;
    }
    segment->addr = addr;
    segment->idle_tick = pool->tick;
    pool->stats.segments_alloc++;
    if (pool->stats.held > pool->stats.peak_held)
        pool->stats.peak_held = pool->stats.held;
    rc = enter(r, segment);
    lock_give(&pool->lock);
    if (rc)
        (void)host_segment_give(pool, segment, true);
    return rc;
}

/* The bytes that are too many for the request. all: the bytes that could go back if all work were over. */
static size_t excess(const struct request *r, size_t *ret_all)
{
    size_t bytes;

    lock_take(&r->pool->lock);
    bytes = host_excess(r->pool, need_of(r, false));
    *ret_all = r->pool->stats.idle;
    lock_give(&r->pool->lock);
    return bytes;
}

enum outcome { SERVED, ROOM, NEITHER };

/* Give back idle memory, or see the request served: after a refusal all of it, else as much as the bound demands. */
static enum outcome try_once(struct request *r, bool refused)
{
    const struct host_need need = {&r->key, r->size};
    size_t all;

    if (serve_coalesced(r))
        return SERVED;
    if (refused)
        return host_release(r->pool, SIZE_MAX, 0, false, &need) ? ROOM : NEITHER;
    (void)host_release(r->pool, excess(r, &all), 0, false, &need);
    return excess(r, &all) ? NEITHER : ROOM;
}

/* Whether to ask again. At the bound only unfinished work is a reason. After a refusal later work is, too: for long if
 * the complete memory that it keeps is enough, or while the work before this thread's own free is not over. */
static bool goes_on(const struct request *r, bool refused)
{
    if (!refused)
        return !host_idle_is_complete(r->pool);
    return !r->any_larger || host_idle_complete(r->pool) >= need_of(r, true) || host_last_free_unfinished(r->pool);
}

static enum outcome try_for(struct request *r, bool refused, uint64_t ns)
{
    const uint64_t limit = now_ns() + ns;
    enum outcome outcome;
    unsigned int times = 0;

    do {
        lock_pause(times++, HOST_ASK_NAP_NS);
        outcome = try_once(r, refused);
    } while (outcome == NEITHER && now_ns() < limit && goes_on(r, refused));
    return outcome == NEITHER ? try_once(r, refused) : outcome; /* the work may have ended since the last try */
}

/*
 * The bound is met, or the driver has refused: first what is idle now, then what is idle after the work before this
 * thread's own frees, for which these would natively have waited. Other threads' work is only asked about. Last, rather
 * than be refused, the request takes a block that is much too large, and waits for later work.
 */
static enum outcome make_room(struct request *r, bool refused)
{
    struct host_pool *pool = r->pool;
    enum outcome outcome = try_once(r, refused);
    size_t bytes, all;
    uint64_t ns;

    if (outcome == NEITHER && host_last_free_wait(pool, r->key.owner))
        outcome = try_once(r, refused);
    bytes = excess(r, &all);
    if (outcome != NEITHER || !all || (!refused && bytes > all))
        return outcome;
    lock_take(&pool->lock);
    ns = pool->ask_ns / (pool->vain ? HOST_VAIN_PART : 1);
    lock_give(&pool->lock);
    outcome = try_for(r, refused, ns);
    lock_take(&pool->lock);
    pool->vain = outcome == NEITHER;
    lock_give(&pool->lock);
    if (outcome != NEITHER || !refused)
        return outcome;
    r->any_larger = true;
    return try_for(r, refused, HOST_BUSY_NS);
}

static void count(struct host_pool *pool, uint64_t *counter)
{
    lock_take(&pool->lock);
    (*counter)++;
    lock_give(&pool->lock);
}

/* Nothing that the pool has serves the request. */
static int serve_by_driver(struct request *r)
{
    struct host_pool *pool = r->pool;
    enum outcome outcome;
    int rc = grow(r, false);

    if (rc == -ENOSPC) {
        count(pool, &pool->stats.bound);
        outcome = make_room(r, false);
        if (outcome == SERVED)
            return 0;
        if (outcome == ROOM)
            rc = grow(r, false);
        if (rc == -ENOSPC)
            rc = grow(r, true);
    }
    if (rc != -ENOMEM)
        return rc;
    count(pool, &pool->stats.refused);
    outcome = make_room(r, true);
    if (outcome == SERVED)
        return 0;
    if (outcome == ROOM)
        rc = grow(r, false);
    return rc == -ENOSPC ? grow(r, true) : rc;
}

int host_pool_alloc(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr)
{
    struct request r = {.pool = pool, .key = *key, .size = size};
    int rc = 0;

    if (!size || size > HOST_SIZE_MAX)
        return size ? -ENOMEM : -EINVAL;
    if (host_is_sharded(pool) && host_shard_alloc(pool, key, size, ret_addr))
        return 0;
    if (!serve(&r, false) && ((size > HOST_SMALL_MAX && !host_is_sharded(pool)) || !serve_coalesced(&r))) {
        lock_take(&pool->lock);
        request_pends(&r, host_round(size));
        lock_give(&pool->lock);
        rc = serve_by_driver(&r);
        lock_take(&pool->lock);
        if (rc)
            request_failed(&r);
        lock_give(&pool->lock);
    }
    if (rc)
        count(pool, &pool->stats.failed);
    else
        *ret_addr = r.addr;
    return rc;
}

/* With the lock. A block that a shard has handed out is the pool's from now on: this thread did not find it in its
 * shard.
 */
static bool is_live(struct host_pool *pool, struct host_block *block)
{
    return block->state == HOST_LENT ? host_shard_recall(pool, block) : block->state == HOST_LIVE;
}

/* With the lock: the live block that starts at addr. */
static int live_find(struct host_pool *pool, uint64_t addr, struct host_block **ret_block)
{
    const struct host_segment *segment = host_table_find(pool, addr);
    struct host_block *block = NULL;

    if (!segment)
        return -ENOENT;
    if (segment->starts)
        block = addr % HOST_GRANULE == segment->addr % HOST_GRANULE
                    ? segment->starts[(addr - segment->addr) / HOST_GRANULE]
                    : NULL;
    else if (addr == segment->addr)
        block = segment->first;
    if (!block || !is_live(pool, block))
        return -EINVAL;
    *ret_block = block;
    return 0;
}

int host_pool_find(struct host_pool *pool, uint64_t addr, size_t *ret_size, struct host_key *ret_key)
{
    struct host_block *block;
    int rc;

    if (host_is_sharded(pool) && host_shard_find(pool, addr, ret_size, ret_key))
        return 0;
    host_lock(pool);
    rc = live_find(pool, addr, &block);
    if (!rc) {
        *ret_size = block->requested;
        *ret_key = block->segment->key;
    }
    lock_give(&pool->lock);
    return rc;
}

/* With the lock: the block of a segment that contains addr. */
static struct host_block *block_around(const struct host_segment *segment, uint64_t addr)
{
    size_t i = (addr - segment->addr) / HOST_GRANULE;

    if (!segment->starts)
        return segment->first;
    while (!segment->starts[i])
        i--; /* the front is at 0 */
    return segment->starts[i];
}

int host_pool_block(struct host_pool *pool, uint64_t addr, uint64_t *ret_base, size_t *ret_size)
{
    const struct host_segment *segment;
    struct host_block *block;
    int rc = -ENOENT;

    lock_take(&pool->lock);
    segment = host_table_find(pool, addr);
    if (segment) {
        block = block_around(segment, addr);
        rc = is_live(pool, block) && addr - block->addr < block->requested ? 0 : -EINVAL;
        if (!rc) {
            *ret_base = block->addr;
            *ret_size = block->requested;
        }
    }
    lock_give(&pool->lock);
    return rc;
}

/* After a free: record the token of its epoch. */
static int record(struct host_pool *pool)
{
    const uint64_t epoch = host_tokens_begin(pool);
    const int rc = host_tokens_record(pool, epoch);

    if (rc)
        return rc == -EBUSY ? 0 : rc;
    host_last_free_set(pool, epoch);
    return 0;
}

/* The free of a block that goes back to the driver, which waits as it does natively. */
static int passing_free(struct host_pool *pool, struct host_segment *segment)
{
    if (host_segment_give(pool, segment, true))
        return 0;
    return record(pool); /* it was kept after all, by a capture */
}

int host_pool_free(struct host_pool *pool, uint64_t addr)
{
    struct host_segment *segment = NULL;
    struct host_block *block;
    size_t size;
    int rc;

    if (host_is_sharded(pool) && host_shard_free(pool, addr, &rc))
        return rc;
    host_lock(pool);
    rc = live_find(pool, addr, &block);
    if (rc) {
        lock_give(&pool->lock);
        return rc;
    }
    pool->stats.frees++;
    size = block->size;
    host_hand_back(pool, block);
    if (block->segment->passing) {
        segment = block->segment;
        host_segment_leaves(pool, segment);
    } else {
        host_put(pool, block);
    }
    lock_give(&pool->lock);
    return segment ? passing_free(pool, segment) : host_tokens_freed(pool, size);
}

void host_pool_stats_get(struct host_pool *pool, struct host_stats *ret_stats)
{
    const bool locked = lock_take_within(&pool->lock, 1000000000u);

    if (locked) {
        host_shards_flush(pool, false);
        host_native_peak_raise(pool, /* patient: */ false);
    }
    *ret_stats = pool->stats;
    ret_stats->allocs = ret_stats->hits + ret_stats->misses;
    if (locked)
        lock_give(&pool->lock);
}
