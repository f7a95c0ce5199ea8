/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release.c - how segments leave a pool: given back because the memory is needed or has been idle for long, withdrawn,
 * or disowned. See pool.h. It does not decide when memory is needed; pool.c and the callers of pool.h do.
 *
 * Locking: as in pool.c; all locks (locks_take) while segments leave.
 */
#include <errno.h>

#include "bins.h"
#include "magazine.h"
#include "map.h"
#include "pool_internal.h"

/* With all locks: remove an idle segment from the pool's books; it still counts as held. */
static void segment_leave(struct pool *pool, struct segment *segment)
{
    struct block *block, *next;

    if (segment->prev)
        segment->prev->next = segment->next;
    else
        pool->segments = segment->next;
    if (segment->next)
        segment->next->prev = segment->prev;
    map_segment_remove(segment->addr, segment->size);
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

/* Selects the idle segments that go back, and how. */
struct release {
    const char *why; /* for the observer */
    unsigned int age;
    bool withdrawn_only, collect;
};

static bool goes(const struct pool *pool, const struct segment *segment, const struct release *what)
{
    if (segment->used)
        return false;
    if (segment->withdrawn)
        return true;
    return !what->withdrawn_only && pool->clock - segment->idle_since >= what->age;
}

/* Give back a list of segments that have left the books, and release all locks. Returns the bytes. */
static size_t release_finish(struct pool *pool, struct segment *going, const struct release *what)
{
    const struct pool_config *config = &pool->config;
    struct segment *segment, *next;
    size_t released = 0;
    uint64_t start;

    for (segment = going; segment; segment = segment->next)
        released += segment->size;
    pool->releasing += going != NULL;
    pool->leaving += released;
    locks_give(pool);
    if (!going)
        return 0;

    start = now_ns();
    for (segment = going; segment; segment = segment->next)
        segment_put(pool, segment);
    if (what->collect && config->backend->collect)
        config->backend->collect(config->arg);

    lock_take(&pool->lock);
    for (segment = going; segment; segment = next) {
        next = segment->next;
        pool->stats.segments_free++;
        segment_retire(segment);
    }
    pool->stats.held -= released;
    pool->leaving -= released;
    pool->releasing--;
    lock_give(&pool->lock);
    if (config->observer && config->observer->trim)
        config->observer->trim(config->arg, released, now_ns() - start, what->why);
    return released;
}

/* Give back idle segments; returns the bytes. */
static size_t release(struct pool *pool, const struct release *what)
{
    struct segment *segment, *next, *going = NULL;

    locks_take(pool);
    recent_flush(pool);
    for (segment = idle_bytes(pool) ? pool->segments : NULL; segment; segment = next) {
        next = segment->next;
        if (!goes(pool, segment, what))
            continue;
        segment_leave(pool, segment);
        segment->next = going;
        going = segment;
    }
    return release_finish(pool, going, what);
}

/* --- segments that a growing pool gives back --- */

/* The part of peak_live that may be held beyond it. */
#define EXCESS_PART 20
/* A segment of which less than this part is too much stays: it would be requested again, and the excess is small, no
 * more than the bytes that may be idle anyway. */
#define TOLERANCE_PART 4
/* A request of a new size counts as NEW_WEIGHT requests of sizes on the ghost list; readmission credit is given from
 * AGAIN_MAX on. */
#define NEW_WEIGHT 2u
#define AGAIN_MAX  128u

/* The part of the slack that is lost each time the pool grows and gives other segments back. */
#define SLACK_NARROW 2

/* Idle segments go back once this many quarters of the room between the peak and the bound are used up: memory arrives
 * later, and until then a request at the bound has to wait. */
#define BOUND_QUARTERS 3

/* The bytes that may be held in addition, because deferred blocks have to be replaced by others. */
static size_t slack_of(const struct pool *pool)
{
    return pool->config.slack_min ? atomic_load_explicit(&pool->shown.slack_most, memory_order_relaxed) : 0;
}

/* The pool grows by size bytes; with all locks, and no cached blocks. Returns the bytes that may be held beyond
 * native_peak. */
static size_t bound_room(struct pool *pool, size_t size)
{
    const size_t kept = kept_bytes(pool), native = native_bytes(pool);
    const size_t now = (native > kept ? native - kept : 0) + pool->asked + size;

    pool->native_peak = now > pool->native_peak ? now : pool->native_peak;
    return bound_beyond(pool, pool->native_peak) + slack_of(pool);
}

/* The bytes that may be held when the pool has grown by size bytes, and how many of them may be idle; with the lock. */
static size_t held_max(const struct pool *pool, size_t size, size_t *ret_excess)
{
    const struct pool_stats *stats = &pool->stats;
    const size_t live = live_bytes(pool) + pool->asked + size, peak = live > stats->peak_live ? live : stats->peak_live;
    const size_t share = peak / EXCESS_PART, least = pool->config.excess_min;

    *ret_excess = share > least ? share : least;
    return peak + *ret_excess + slack_of(pool) + pool->regret;
}

/* All small requests have one key: any of them may request a shared segment again. */
static size_t gone_key(size_t got_for)
{
    return got_for < LARGE_MIN ? LARGE_MIN : got_for;
}

static unsigned int gone_index(size_t key)
{
    return (unsigned int)((uint64_t)(key / POOL_GRANULE) * 0x9e3779b97f4a7c15u >> 32) % GONE;
}

/*
 * The pool grows by size bytes; with the lock. A program that requests the same sizes again and again must stop asking
 * the driver at some time, however badly the sizes of one phase fit into the memory of another. So when most growth has
 * for long been for sizes on the ghost list, each further time adds its size to the readmission credit, and the pool
 * may hold more. A program whose sizes change requests some of them again, too, but also new ones, which reduce the
 * credit.
 */
static void regret_update(struct pool *pool, size_t size, size_t got_for)
{
    const size_t key = gone_key(got_for);
    const unsigned int i = gone_index(key);

    if (pool->gone[i].got_for != key || pool->gone[i].bytes < size) {
        pool->again -= pool->again < NEW_WEIGHT ? pool->again : NEW_WEIGHT;
        pool->regret -= pool->regret < size ? pool->regret : size;
        return;
    }
    pool->gone[i].bytes -= size;
    if (pool->again < AGAIN_MAX)
        pool->again++;
    else
        pool->regret += size;
}

static void gone_add(struct pool *pool, const struct segment *segment)
{
    const size_t key = gone_key(segment->got_for);
    const unsigned int i = gone_index(key);

    if (pool->gone[i].got_for != key)
        pool->gone[i].bytes = 0;
    pool->gone[i].got_for = key;
    pool->gone[i].bytes += segment->size;
}

/* True if all memory given back has arrived; *ret_arriving: the bytes that have not. */
static bool arrived(const struct pool *pool, size_t *ret_arriving)
{
    *ret_arriving = 0;
    return !pool->config.backend->collected || pool->config.backend->collected(pool->config.arg, ret_arriving);
}

/* The pool asks for one segment, has given others back, and defers as many bytes: halve the slack while that goes on.
 * An order for each free costs less than a driver call for each request. */
static void slack_narrow(struct pool *pool, size_t size)
{
    const size_t slack = atomic_load_explicit(&pool->shown.slack, memory_order_relaxed);

    if (pool->config.slack_min && kept_bytes(pool) >= size)
        atomic_store_explicit(&pool->shown.slack, slack - slack / SLACK_NARROW, memory_order_relaxed);
}

bool release_excess(struct pool *pool, size_t got_for, bool again, bool *alone)
{
    const struct release what = {.why = "excess"};
    const size_t size = round_up(got_for, POOL_SEGMENT_UNIT);
    struct segment *segment, *next, *going = NULL;
    size_t leaving = 0, max, excess, arriving, room, bound, grows, used;
    bool has_arrived, is_beyond;

    if (pool->config.order->frozen(pool->config.arg))
        return false;
    /* The device has not reached the last releases yet. Releasing more would help no one yet, and the program could
     * have used those segments again. */
    has_arrived = arrived(pool, &arriving);
    locks_take(pool);
    recent_flush(pool);
    if (!again)
        regret_update(pool, size, got_for);
    room = bound_room(pool, size);
    grows = block_segment_size(pool, got_for, *alone);
    bound = pool->native_peak + room;
    max = held_max(pool, size, &excess);
    /* As much as was in use may stay: the rounding of blocks is no excess, nor is memory that packing saves later. */
    used = pool->stats.held - pool->leaving - idle_bytes(pool) + pool->asked + grows;
    pool->used_peak = used > pool->used_peak ? used : pool->used_peak;
    if (max < pool->used_peak)
        max = pool->used_peak;
    if (max > pool->native_peak + room / 4 * BOUND_QUARTERS)
        max = pool->native_peak + room / 4 * BOUND_QUARTERS;
    for (segment = has_arrived && !pool->releasing ? pool->idle_first : NULL; segment; segment = next) {
        const size_t held = pool->stats.held - pool->leaving - leaving + pool->asked + grows;

        next = segment->idle_next;
        if (held <= max)
            break;
        if (held - max < segment->size / TOLERANCE_PART && held - max <= excess && held <= bound)
            continue;
        leaving += segment->size;
        gone_add(pool, segment);
        segment_leave(pool, segment);
        segment->next = going;
        going = segment;
    }
    if (going)
        slack_narrow(pool, size);
    is_beyond = pool->config.bound_min < SIZE_MAX / 2 && pool->stats.held + arriving + pool->asked + grows > bound;
    release_finish(pool, going, &what);
    if (!is_beyond)
        return false;
    /* Is that enough now, at least for a segment of one block? */
    arrived(pool, &arriving);
    lock_take(&pool->lock);
    *alone = *alone || pool->stats.held + arriving + pool->asked + grows > bound;
    is_beyond = pool->stats.held + arriving + pool->asked + size > bound;
    lock_give(&pool->lock);
    return is_beyond;
}

void bound_wait(struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    const uint64_t start = now_ns();
    struct pool_stats stats;
    size_t bound;

    if (config->backend->reclaim)
        config->backend->reclaim(config->arg);
    lock_take(&pool->lock);
    pool->stats.bound++;
    stats = pool->stats;
    bound = pool->native_peak + bound_beyond(pool, pool->native_peak) + slack_of(pool);
    lock_give(&pool->lock);
    if (config->observer && config->observer->bound)
        config->observer->bound(config->arg, stats.held, bound, now_ns() - start, stats.bound);
}

size_t release_trim(struct pool *pool, const char *why, bool may_wait)
{
    const struct pool_config *config = &pool->config;
    const struct release what = {.why = why, .collect = may_wait};
    const bool frozen = config->order->frozen(config->arg);

    if (frozen && (!may_wait || !config->backend->gives_frozen || !config->backend->gives_frozen(config->arg)))
        return 0;
    if (!frozen && atomic_load(&pool->shown.keepers))
        order_and_publish(pool, NULL, may_wait ? POOL_ORDER_DEVICE : POOL_ORDER_ASK);
    return release(pool, &what);
}

/* Wait for other threads that are giving back memory which they took off the books before this thread asked the driver,
 * and for threads that are ordering deferred blocks. True if there were any. */
static bool releases_wait(struct pool *pool)
{
    const uint64_t limit = now_ns() + OTHERS_WAIT_NS;
    unsigned int looks = 0;

    lock_take(&pool->lock);
    while ((pool->releasing || atomic_load(&pool->shown.ordering)) && now_ns() < limit) {
        lock_give(&pool->lock);
        lock_relax(looks++);
        lock_take(&pool->lock);
    }
    lock_give(&pool->lock);
    return looks;
}

size_t pool_trim(struct pool *pool, const char *why)
{
    const size_t released = release_trim(pool, why, /* may_wait: */ true);

    return releases_wait(pool) ? released + release_trim(pool, why, /* may_wait: */ true) : released;
}

size_t pool_decay(struct pool *pool, unsigned int age)
{
    const struct release what = {.why = "decay", .age = age};

    locks_take(pool);
    recent_flush(pool); /* cached blocks were idle during the tick that ends now */
    magazines_leave(pool);
    pool->clock++;
    locks_give(pool);
    return pool->config.order->frozen(pool->config.arg) ? 0 : release(pool, &what);
}

void segment_withdraw(struct pool *pool, struct segment *segment)
{
    if (segment->withdrawn)
        return;
    for (struct block *block = segment->first; block; block = block->next)
        if (is_free(block))
            block_unbin(pool, block);
    pool->exposed -= segment->exposed;
    segment->exposed = 0;
    if (!segment->used)
        pool->shown.withdrawn += segment->size;
    segment->withdrawn = true;
}

int pool_withdraw(uint64_t addr)
{
    struct segment *segment = map_segment_get(addr);
    struct pool *pool = segment ? segment->pool : NULL;
    int rc = -ENOENT;

    if (!pool)
        return rc;
    locks_take(pool);
    if (map_segment_get(addr) == segment && segment->pool == pool)
        rc = 0;
    if (!rc && !segment->withdrawn) {
        recent_flush(pool);
        segment_withdraw(pool, segment);
    }
    locks_give(pool);
    return rc;
}

void pool_kind_set(struct pool *pool, unsigned int kind, size_t excess_min, size_t bound_min)
{
    locks_take(pool);
    atomic_store(&pool->shown.kind, kind);
    pool->config.excess_min = excess_min;
    pool->config.bound_min = bound_min;
    recent_flush(pool);
    for (struct segment *segment = pool->segments; segment; segment = segment->next)
        if (segment->kind != kind)
            segment_withdraw(pool, segment);
    locks_give(pool);
}

unsigned int pool_kind_get(const struct pool *pool)
{
    return atomic_load_explicit(&pool->shown.kind, memory_order_relaxed);
}

/* After a free: give back withdrawn segments, and all idle ones while memory is scarce. */
void release_some(struct pool *pool)
{
    const struct pool_config *config = &pool->config;
    const bool withdrawn = atomic_load_explicit(&pool->shown.withdrawn, memory_order_relaxed) != 0;
    const bool scarce = config->backend->scarce && config->backend->scarce(config->arg);
    const struct release what = {.why = scarce ? "reserve" : "withdrawn", .withdrawn_only = !scarce};

    if ((scarce || withdrawn) && !config->order->frozen(config->arg))
        release(pool, &what);
}

/* The number of deferred blocks of a segment; with all locks. */
static unsigned int kept_count(const struct pool *pool, const struct segment *segment)
{
    unsigned int count = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        for (const struct block *block = pool->magazines[i].kept; block; block = block->link)
            count += block->segment == segment;
    return count;
}

static void kept_remove(struct pool *pool, struct magazine *magazine, const struct segment *segment)
{
    const bool kept = magazine->kept != NULL;
    struct block **link = &magazine->kept;

    while (*link) {
        if ((*link)->segment == segment) {
            magazine->kept_bytes -= native_size((*link)->size);
            magazine->kept_count--;
            magazine->kept_large -= (*link)->size >= LARGE_MIN;
            *link = (*link)->link;
        } else {
            link = &(*link)->link;
        }
    }
    if (kept && !magazine->kept)
        atomic_fetch_sub(&pool->shown.keepers, 1);
}

/*
 * Take all blocks of a segment from the program, and off the lists of deferred blocks; with all locks. False: a thread
 * is freeing one.
 */
static bool blocks_seize(struct pool *pool, struct segment *segment)
{
    unsigned int pending = 0;

    for (struct block *block = segment->first; block; block = block->next) {
        int live = BLOCK_LIVE;

        if (!is_free(block) && !atomic_compare_exchange_strong(&block->state, &live, BLOCK_SEIZED))
            pending++;
    }
    if (pending == kept_count(pool, segment)) {
        for (unsigned int i = 0; i < MAGAZINES; i++)
            kept_remove(pool, &pool->magazines[i], segment);
        return true;
    }
    for (struct block *block = segment->first; block; block = block->next)
        if (atomic_load(&block->state) == BLOCK_SEIZED)
            atomic_store(&block->state, BLOCK_LIVE);
    return false;
}

/* Forget a segment that covers the address `at`. False: impossible now. */
static bool segment_disown(struct segment *segment, uint64_t at)
{
    struct pool *pool = segment->pool;
    struct block *block;
    bool seized;

    locks_take(pool);
    if (map_segment_get(at) != segment || segment->pool != pool) {
        locks_give(pool);
        return false;
    }
    recent_flush(pool);
    seized = blocks_seize(pool, segment);
    if (!seized) {
        locks_give(pool);
        return false;
    }
    block = segment->first;
    do {
        if (is_free(block))
            continue;
        if (atomic_load(&block->state) == BLOCK_SEIZED)
            pool->handed -= (ptrdiff_t)block->size;
        map_block_set(block->addr, NULL);
        used_sub(pool, segment, block->size);
        atomic_store(&block->state, BLOCK_FREE);
        if (!segment->withdrawn)
            block_bin(pool, block);
    } while ((block = block->next));
    block = segment->first;
    if (!segment->withdrawn) {
        block_unbin(pool, block);
        while (block->next)
            block_merge_next(pool, block);
        block_bin(pool, block);
    }
    segment_leave(pool, segment);
    pool->stats.held -= segment->size;
    pool->stats.segments_free++;
    locks_give(pool);
    return true;
}

void pool_disown(uint64_t addr, size_t size)
{
    for (uint64_t at = addr; at < addr + size; at += POOL_SEGMENT_UNIT) {
        struct segment *segment = map_segment_get(at);
        const struct pool_config *config = segment ? &segment->pool->config : NULL;

        if (!segment || !segment_disown(segment, at))
            continue;
        if (config->observer && config->observer->segment_lost)
            config->observer->segment_lost(config->arg, segment->kind, segment->addr, segment->size);
        segment_retire(segment);
    }
}
