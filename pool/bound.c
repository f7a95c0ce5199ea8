/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound.c - see bound.h.
 *
 * Locking: all locks (locks_take) while segments are chosen; none over a call of the tables.
 */
#include "bound.h"

#include "accounting.h"
#include "clock.h"
#include "deferred.h"
#include "ghosts.h"
#include "large.h"
#include "magazine.h"
#include "release_idle.h"
#include "uncache.h"

/* The part of peak_live that may be held beyond it. */
#define EXCESS_PART 20
/* A segment of which less than this part is too much stays: it would be requested again, and the excess is small, no
 * more than the bytes that may be idle anyway. */
#define TOLERANCE_PART 4

/* The number of idle segments, those idle longest, among which those to give back are chosen, and of those chosen in
 * one look: all locks are held meanwhile, and thousands may have to go for one large request. */
#define LOOKED_AT 512u
#define CHOSEN    16u

/* The part of the deferred-free budget that is lost each time the pool grows and gives other segments back. */
#define BUDGET_NARROW 2

/* Idle segments go back once this many quarters of the room between the peak and the bound are used up: memory arrives
 * later, and until then a request at the bound has to wait. */
#define BOUND_QUARTERS 3

/* A growing pool may keep so many quarters of the deferred-free budget idle, beside the excess: other blocks stand in
 * for the deferred ones, but while blocks are large, less than the whole budget is deferred. */
#define SLACK_QUARTERS 3

/* The bytes that may be held in addition, because deferred blocks have to be replaced by others. */
static size_t budget_of(const struct pool *pool)
{
    return pool->config.deferred_min ? atomic_load_explicit(&pool->shown.budget_max, memory_order_relaxed) : 0;
}

/* The pool grows by size bytes; with all locks, and no cached blocks. Returns the bytes that may be held beyond
 * native_peak. */
static size_t bound_room(struct pool *pool, size_t size)
{
    const size_t deferred = deferred_bytes(pool), native = native_bytes(pool);
    const size_t now = (native > deferred ? native - deferred : 0) + pool->growing + size;

    pool->native_peak = now > pool->native_peak ? now : pool->native_peak;
    return bound_beyond(pool, pool->native_peak) + budget_of(pool);
}

/* The bytes that may be held when the pool has grown by size bytes, and how many of them may be idle; with the lock. */
static size_t held_max(const struct pool *pool, size_t size, size_t *ret_excess)
{
    const struct pool_stats *stats = &pool->stats;
    const size_t live = live_bytes(pool) + pool->growing + size,
                 peak = live > stats->peak_live ? live : stats->peak_live;
    const size_t share = peak / EXCESS_PART, least = pool->config.excess_min;

    *ret_excess = share > least ? share : least;
    return peak + *ret_excess + budget_of(pool) / 4 * SLACK_QUARTERS + pool->ghosts.credit;
}

/* True if all memory given back has arrived; *ret_arriving: the bytes that have not. */
static bool arrived(const struct pool *pool, size_t *ret_arriving)
{
    *ret_arriving = 0;
    return !pool->config.backend->collected || pool->config.backend->collected(pool->config.arg, ret_arriving);
}

/* The pool asks for one segment, has given others back, and defers as many bytes: halve the deferred-free budget while
 * that goes on. An order for each free costs less than a driver call for each request. */
static void budget_narrow(struct pool *pool, size_t size)
{
    const size_t budget = atomic_load_explicit(&pool->shown.budget, memory_order_relaxed);

    if (pool->config.deferred_min && deferred_bytes(pool) >= size)
        atomic_store_explicit(&pool->shown.budget, budget - budget / BUDGET_NARROW, memory_order_relaxed);
}

/* The bytes that a growing pool may hold, with the segment that it asks for. */
struct allowance {
    size_t max, excess, bound;
};

/* Does the segment stay, because too little of it is too much? */
static bool is_tolerated(const struct allowance *may, size_t held, const struct segment *segment)
{
    return held - may->max < segment->size / TOLERANCE_PART && held - may->max <= may->excess && held <= may->bound;
}

/* How many more segments become idle before this one is used again, if it stays idle as long as last time. If it has
 * been idle longer than that, its use has changed: as long again as it is late. */
static uint64_t time_to_use(const struct pool *pool, const struct segment *segment)
{
    const uint64_t idle = pool->idle_count - segment->listed;

    return idle > segment->idle_for ? idle - segment->idle_for : segment->idle_for - idle;
}

struct candidate {
    struct segment *segment;
    uint64_t unused; /* its bytes and the time until they are used, multiplied */
};

/*
 * The segments that go first: those whose bytes are not needed for longest, bytes and time multiplied. Where a program
 * repeats its steps, those idle longest are the ones that it requests next, and several small segments take as many
 * calls of the driver to get again. Returns how many; 0: none may go.
 */
static unsigned int choose(const struct pool *pool, const struct allowance *may, size_t held,
                           struct candidate chosen[CHOSEN])
{
    struct segment *segment = pool->idle_first;
    unsigned int count = 0;

    for (unsigned int n = 0; segment && n < LOOKED_AT; segment = segment->idle_next, n++) {
        const uint64_t unused = (time_to_use(pool, segment) + 1) * (segment->size / POOL_SEGMENT_UNIT);
        unsigned int i;

        if ((count == CHOSEN && unused <= chosen[CHOSEN - 1].unused) || is_tolerated(may, held, segment))
            continue;
        count += count < CHOSEN;
        for (i = count - 1; i && chosen[i - 1].unused < unused; i--)
            chosen[i] = chosen[i - 1];
        chosen[i] = (struct candidate){segment, unused};
    }
    return count;
}

/* Take idle segments off the books until no more than may->max bytes of held are left; with all locks. */
static void excess_unlink(struct pool *pool, const struct allowance *may, size_t held, struct segment **ret_going)
{
    struct candidate chosen[CHOSEN];
    unsigned int count;

    while (held > may->max && (count = choose(pool, may, held, chosen)))
        for (unsigned int i = 0; i < count && held > may->max; i++) {
            struct segment *segment = chosen[i].segment;

            if (is_tolerated(may, held, segment))
                continue;
            held -= segment->size;
            ghosts_add(&pool->ghosts, segment);
            segment_unlink(pool, segment);
            segment->next = *ret_going;
            *ret_going = segment;
        }
}

void bound_refused(struct pool *pool, const struct growth *growth)
{
    size_t deferred, native, used;

    if (!growth->raised)
        return;
    locks_take(pool);
    deferred = deferred_bytes(pool);
    native = native_bytes(pool);
    native = native > deferred ? native - deferred : 0;
    used = pool->stats.held - pool->leaving - idle_bytes(pool);
    native = native > growth->native_peak ? native : growth->native_peak;
    used = used > growth->used_peak ? used : growth->used_peak;
    /* Another thread's request may have been refused meanwhile, and this one's peaks from before have that in them. */
    pool->native_peak = native < pool->native_peak ? native : pool->native_peak;
    pool->used_peak = used < pool->used_peak ? used : pool->used_peak;
    locks_give(pool);
}

bool release_excess(struct pool *pool, size_t got_for, bool second, struct growth *growth)
{
    const struct release what = {.why = "excess"};
    const size_t size = round_up(got_for, POOL_SEGMENT_UNIT);
    struct segment *going = NULL;
    size_t held, arriving, room, grows, used;
    struct allowance may;
    bool has_arrived, is_beyond;

    if (pool->config.order->frozen(pool->config.arg))
        return false;
    /* The device has not reached the last releases yet. Releasing more would help no one yet, and the program could
     * have used those segments again. */
    has_arrived = arrived(pool, &arriving);
    locks_take(pool);
    coalesce_all(pool);
    if (!second) {
        ghosts_update(&pool->ghosts, size, got_for);
        growth->raised = true;
        growth->native_peak = pool->native_peak;
        growth->used_peak = pool->used_peak;
    }
    room = bound_room(pool, size);
    grows = block_segment_size(pool, got_for, growth->alone);
    may.bound = pool->native_peak + room;
    may.max = held_max(pool, size, &may.excess);
    /* As much as was in use may stay: the rounding of blocks is no excess, nor is memory that packing saves later. */
    used = pool->stats.held - pool->leaving - idle_bytes(pool) + pool->growing + grows;
    pool->used_peak = used > pool->used_peak ? used : pool->used_peak;
    if (may.max < pool->used_peak)
        may.max = pool->used_peak;
    if (may.max > pool->native_peak + room / 4 * BOUND_QUARTERS)
        may.max = pool->native_peak + room / 4 * BOUND_QUARTERS;
    held = pool->stats.held - pool->leaving + pool->growing + grows;
    if (has_arrived && !pool->releasing)
        excess_unlink(pool, &may, held, &going);
    if (going)
        budget_narrow(pool, size);
    is_beyond =
        pool->config.bound_min < SIZE_MAX / 2 && pool->stats.held + arriving + pool->growing + grows > may.bound;
    release_finish(pool, going, &what);
    if (!is_beyond)
        return false;
    /* Is that enough now, at least for a segment of one block? */
    arrived(pool, &arriving);
    lock_take(&pool->lock);
    growth->alone = growth->alone || pool->stats.held + arriving + pool->growing + grows > may.bound;
    is_beyond = pool->stats.held + arriving + pool->growing + size > may.bound;
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
    bound = pool->native_peak + bound_beyond(pool, pool->native_peak) + budget_of(pool);
    lock_give(&pool->lock);
    if (config->observer && config->observer->bound)
        config->observer->bound(config->arg, stats.held, bound, now_ns() - start, stats.bound);
}
