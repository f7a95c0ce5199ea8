/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_policy.c - what a pool that grows hands back, against a second account of the rules: which segments, in which
 * order, when a request waits at the bound, and what the pool remembers of it. test_excess.c has the reasons of the
 * rules one by one; here every number counts, to the byte.
 *
 * The requests are of whole segments, of few sizes, so that a request is served by a segment of its size or by a new
 * one. Other threads are stopped in the middle of asking the driver, or of giving back, for as long as a run takes.
 */
#include "unit.h"

#include "deferred.h"
#include "magazine.h" /* what the pool remembers, and keeps */

#define SIZES 12u
#define LIVE  40u
#define NEVER (SIZE_MAX / 2)

enum other { NOBODY, ASKING, LEAVING };

static const struct run {
    size_t excess_min, bound_min, slack;
    bool late;   /* what is given back arrives later */
    bool prompt; /* what is kept can be ordered without a wait */
    enum other other;
    unsigned int kinds; /* so many of the sizes */
} runs[] = {
    {0, NEVER, 0, false, false, NOBODY, SIZES},
    {16 * MIB, NEVER, 0, false, false, NOBODY, SIZES},
    {0, 16 * MIB, 0, false, false, NOBODY, SIZES},
    {0, 64 * MIB, 0, true, false, NOBODY, SIZES},
    {64 * MIB, 0, 0, true, false, NOBODY, SIZES},
    {64 * MIB, 16 * MIB, 8 * MIB, true, false, NOBODY, SIZES},
    {NEVER, 16 * MIB, 0, true, false, NOBODY, SIZES},
    {0, 64 * MIB, 0, true, false, ASKING, SIZES},
    {0, NEVER, 0, false, false, ASKING, SIZES},
    {0, 64 * MIB, 0, true, false, LEAVING, SIZES},
    {16 * MIB, NEVER, 0, false, false, LEAVING, SIZES},
    {0, NEVER, 0, false, false, NOBODY, 3},
    {0, 64 * MIB, 0, true, false, NOBODY, 2},
    {0, NEVER, 64 * MIB, false, false, NOBODY, SIZES},
    {16 * MIB, 16 * MIB, 200 * MIB, true, false, NOBODY, SIZES},
    {NEVER, NEVER, 80 * MIB, false, true, NOBODY, SIZES},
    {NEVER, NEVER, 400 * MIB, false, true, NOBODY, SIZES},
};

/* The second account. */
static struct account {
    const struct run *run;
    struct fake *fake;
    uint64_t idle[FAKE_UNITS]; /* the longest first */
    size_t idle_size[FAKE_UNITS], idle_count;
    uint64_t listed[FAKE_UNITS], listings; /* how many segments had become idle when this one did, and now */
    uint64_t idle_for[FAKE_UNITS];         /* listings while it was idle last, by its first unit */
    uint64_t gone_listed[SIZES];           /* of the last that went back; 0: none */
    size_t live, native; /* with what is kept; native: with the tails of segments, which the driver would have in use */
    size_t held, idle_bytes, asked, leaving; /* held: without what is leaving */
    uint64_t kept[LIVE];
    size_t kept_size[LIVE], deferred_count, deferred_bytes, kept_live;
    size_t slack, flush_from; /* so much may be kept; from so much on a request asks for it */
    size_t peak_live, native_peak, used_peak, credit;
    size_t gone[SIZES]; /* by size */
    unsigned int streak;
    size_t bound; /* of the last request */
    uint64_t waits, reclaims;
    uint64_t going[FAKE_UNITS]; /* what is to be given back for this request */
    size_t going_count;
} account;

static uint64_t reclaims;
static struct fake *reclaimed;

static void backend_reclaim(void *arg)
{
    reclaims++;
    reclaimed->arriving /= 2; /* some is behind other threads' work */
}

static uint64_t waits_told;

static void observe_bound(void *arg, size_t held, size_t bound, uint64_t ns, uint64_t count)
{
    (void)arg, (void)ns;
    assert_int_equal(bound, account.bound);
    assert_true(held > 0 && count == ++waits_told);
}

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

#define STREAK_MOST 64u

/* Two are so large that a quarter of one is more than may be held without need. */
static size_t size_of(unsigned int kind)
{
    return (kind < SIZES - 2 ? 2 + 3 * (size_t)kind : 60 * (size_t)(kind - 8)) * UNIT;
}

/* A request leaves so much of its segment to nobody. */
static size_t tail_of(unsigned int kind)
{
    return (3 - kind % 4) * 600 * KIB;
}

static unsigned int kind_of(size_t size)
{
    unsigned int kind = 0;

    while (size_of(kind) != size)
        kind++;
    return kind;
}

static void idle_remove(size_t at)
{
    account.idle_bytes -= account.idle_size[at];
    account.idle_count--;
    for (size_t i = at; i < account.idle_count; i++) {
        account.idle[i] = account.idle[i + 1];
        account.idle_size[i] = account.idle_size[i + 1];
        account.listed[i] = account.listed[i + 1];
    }
}

/* Growing for what was handed back before, again and again, lets more be held; growing for what is new, less. */
static void remember(unsigned int kind)
{
    const size_t size = size_of(kind);

    if (account.gone[kind] < size) {
        account.streak -= account.streak < 2 ? account.streak : 2;
        account.credit -= account.credit < size ? account.credit : size;
        return;
    }
    account.gone[kind] -= size;
    if (account.streak == STREAK_MOST)
        account.credit += size;
    else
        account.streak++;
}

/* The most that may be held for a request: after it, in the long run; and at all (*ret_bound). */
static size_t may_be_held(size_t size, size_t *ret_excess, size_t *ret_bound)
{
    const size_t peak = most(account.peak_live, account.live + account.asked + size);
    size_t room, max;

    account.native_peak = most(account.native_peak, account.native - account.deferred_bytes + account.asked + size);
    room = (account.native_peak / 10 + account.run->bound_min) / 16 * 15 + account.run->slack;
    *ret_bound = account.bound = account.native_peak + room;
    *ret_excess = most(peak / 20, account.run->excess_min);
    max = peak + *ret_excess + account.run->slack / 4 * 3 + account.credit;
    account.used_peak = most(account.used_peak, account.held - account.idle_bytes + account.asked + size);
    max = most(max, account.used_peak);
    return max < account.native_peak + room / 4 * 3 ? max : account.native_peak + room / 4 * 3;
}

/* Does the segment stay, of which little is too much? */
static bool stays(size_t with, size_t max, size_t segment, size_t excess, size_t bound)
{
    return with - max < segment / 4 && with - max <= excess && with <= bound;
}

static uint64_t *idled(uint64_t addr)
{
    return &account.idle_for[fake_segment_of(account.fake, addr) - account.fake->segments];
}

/* The idle segment that goes first: the size times how long it will probably not be used, as long as last time; and if
 * that has passed, as long as that is ago. */
static size_t first_to_go(size_t with, size_t max, size_t excess, size_t bound)
{
    size_t first = NEVER;
    uint64_t weight = 0;

    for (size_t i = 0; i < account.idle_count; i++) {
        const int64_t left = (int64_t)(*idled(account.idle[i]) - (account.listings - account.listed[i]));
        const uint64_t w = (uint64_t)(1 + (left < 0 ? -left : left)) * account.idle_size[i];

        if (w > weight && !stays(with, max, account.idle_size[i], excess, bound)) {
            weight = w;
            first = i;
        }
    }
    return first;
}

/* True: the request would still be beyond the bound. */
static bool hand_back(unsigned int kind, bool again)
{
    const size_t size = size_of(kind), arriving = account.fake->arriving;
    size_t excess, bound, max, before = account.held + account.leaving, gone = 0;

    if (!again)
        remember(kind);
    max = may_be_held(size, &excess, &bound);
    while (!arriving && !account.leaving) {
        const size_t with = account.held + account.asked + size;
        const size_t i = with > max ? first_to_go(with, max, excess, bound) : NEVER;
        size_t segment;

        if (i == NEVER)
            break;
        segment = account.idle_size[i];
        account.going[account.going_count++] = account.idle[i];
        account.held -= segment;
        gone += segment;
        account.gone[kind_of(segment)] += segment;
        account.gone_listed[kind_of(segment)] = account.listed[i];
        idle_remove(i);
    }
    if (gone && account.deferred_bytes >= size)
        account.slack -= account.slack / 2;
    if (account.run->bound_min == NEVER || before + arriving + account.asked + size <= bound)
        return false;
    return account.held + account.leaving + arriving + (account.run->late ? gone : 0) + account.asked + size > bound;
}

static void expect_grow(unsigned int kind)
{
    const size_t arriving = account.fake->arriving;

    account.going_count = 0;
    if (hand_back(kind, false)) {
        const size_t first = account.going_count;

        account.waits++;
        account.reclaims++;
        for (size_t i = 0; i < first && account.run->late; i++)
            account.fake->arriving += fake_segment_of(account.fake, account.going[i])->size;
        account.fake->arriving /= 2;
        account.reclaims += hand_back(kind, true);
        account.fake->arriving = arriving;
    }
    account.held += size_of(kind);
}

static void idle_add(uint64_t addr, size_t size)
{
    account.idle[account.idle_count] = addr;
    account.idle_size[account.idle_count++] = size;
    account.idle_bytes += size;
    account.native -= size;
    account.live -= size - tail_of(kind_of(size));
}

/* The kept blocks have been ordered, and with `freed` the one that was freed. */
static void publish(bool freed)
{
    const bool any = account.deferred_count || (freed && account.run->slack);

    for (size_t i = 0; i < account.deferred_count; i++)
        idle_add(account.kept[i], account.kept_size[i]);
    account.deferred_count = account.deferred_bytes = account.kept_live = 0;
    if (any) {
        account.slack += account.run->slack / 1024;
        account.slack = account.slack < account.run->slack ? account.slack : account.run->slack;
        account.flush_from = account.slack / 2;
    }
}

/* A free waits for company: there is room, and for three more like it. Of large ones 32 wait at the most. */
static bool keep(uint64_t addr, size_t size)
{
    if (!account.run->slack || account.deferred_count == 32 || size > account.slack / 4 ||
        account.deferred_bytes + size > account.slack)
        return false;
    account.kept[account.deferred_count] = addr;
    account.kept_size[account.deferred_count++] = size;
    account.deferred_bytes += size;
    account.kept_live += size - tail_of(kind_of(size));
    return true;
}

static bool is_idle(size_t size)
{
    bool found = false;

    for (size_t i = 0; i < account.idle_count; i++)
        found |= account.idle_size[i] == size;
    return found;
}

/* Is the request served without the driver? */
static bool expect_hit(size_t size)
{
    if (is_idle(size))
        return true;
    if (!account.slack || account.deferred_bytes >= account.flush_from ||
        (size >= 2 * MIB && account.deferred_bytes >= size &&
         account.held + account.leaving + account.asked + size > account.peak_live + account.run->slack)) {
        account.flush_from = account.slack ? account.deferred_bytes + account.slack / 8 : account.flush_from;
        if (account.run->prompt && account.deferred_count)
            publish(/* freed: */ false);
    }
    return is_idle(size);
}

static void compare(const struct env *env, size_t step)
{
    const struct pool *pool = env->pool;

    if (pool->ghosts.credit != account.credit || pool->ghosts.streak != account.streak ||
        pool->used_peak != account.used_peak || pool->native_peak != account.native_peak ||
        pool->stats.held != account.held + account.leaving || pool->stats.bound != account.waits ||
        reclaims != account.reclaims || pool->shown.budget != account.slack ||
        pool->shown.flush_from != account.flush_from || deferred_bytes(pool) != account.deferred_bytes)
        fail_msg(
            "run %zu, step %zu: credit %zu not %zu, streak %u not %u, used %zu not %zu, native %zu not %zu, held "
            "%zu not %zu, waits %zu not %zu, reclaims %zu not %zu, slack %zu not %zu, flush_from %zu not %zu, kept "
            "%zu not %zu",
            (size_t)(account.run - runs), step, pool->ghosts.credit, account.credit, pool->ghosts.streak,
            account.streak, pool->used_peak, account.used_peak, pool->native_peak, account.native_peak,
            (size_t)pool->stats.held, account.held + account.leaving, (size_t)pool->stats.bound, (size_t)account.waits,
            (size_t)reclaims, (size_t)account.reclaims, pool->shown.budget, account.slack, pool->shown.flush_from,
            account.flush_from, deferred_bytes(pool), account.deferred_bytes);
    for (size_t i = 0; i < account.going_count; i++) {
        bool given = false;

        for (unsigned int k = 0; !given && fake_event_of(env->fake, FAKE_FREE, k); k++)
            given = fake_event_of(env->fake, FAKE_FREE, k)->addr == account.going[i];
        assert_true(given);
    }
}

/* A request, and what comes of it on both accounts. */
static uint64_t request(struct env *env, unsigned int kind)
{
    const unsigned int asked = env->fake->calls[FAKE_ALLOC], frees = env->fake->calls[FAKE_FREE];
    uint64_t addr;
    bool hit;

    account.going_count = 0;
    hit = expect_hit(size_of(kind));
    if (!hit)
        expect_grow(kind);
    fake_events_clear(env->fake);
    addr = alloc(env->pool, size_of(kind) - tail_of(kind));
    assert_int_equal(env->fake->calls[FAKE_ALLOC] - asked, !hit);
    assert_int_equal(env->fake->calls[FAKE_FREE] - frees, account.going_count);
    for (size_t i = 0; hit && i < account.idle_count; i++)
        if (account.idle[i] == addr) {
            *idled(addr) = account.listings - account.listed[i];
            idle_remove(i);
            break;
        }
    if (!hit) { /* a new one is idle for a moment */
        account.listings++;
        *idled(addr) = account.gone_listed[kind] ? account.listings - account.gone_listed[kind] : 0;
    }
    account.native += size_of(kind);
    account.live += size_of(kind) - tail_of(kind);
    account.peak_live = most(account.peak_live, account.live - account.kept_live);
    return addr;
}

static void give(struct env *env, unsigned int kind, uint64_t addr)
{
    const unsigned int orders = env->fake->orders_ok;
    const size_t before = account.idle_count;
    const bool kept = keep(addr, size_of(kind));
    size_t i = 0;

    release(addr);
    assert_int_equal(env->fake->orders_ok - orders, !kept);
    if (!kept) {
        publish(/* freed: */ true);
        idle_add(addr, size_of(kind));
    }
    assert_int_equal(pool_decay(env->pool, UINT32_MAX), 0); /* it joins, and nothing goes */
    /* Blocks join in any order. */
    for (const struct segment *segment = env->pool->idle_first; segment; segment = segment->idle_next, i++) {
        const bool stayed = i < before && account.idle[i] == segment->addr;

        account.idle[i] = segment->addr;
        account.idle_size[i] = segment->size;
        account.listed[i] = stayed ? account.listed[i] : ++account.listings;
    }
    assert_int_equal(i, account.idle_count);
}

static void account_begin(const struct run *run, const struct env *env)
{
    const struct pool *pool = env->pool;

    account = (struct account){.run = run,
                               .fake = env->fake,
                               .asked = pool->growing,
                               .leaving = pool->leaving,
                               .slack = run->slack,
                               .flush_from = run->slack / 2,
                               .peak_live = pool->stats.peak_live,
                               .native_peak = pool->native_peak,
                               .used_peak = pool->used_peak};
    reclaimed = env->fake;
    reclaims = waits_told = 0;
}

/* Threads stop in the driver before the run. */
static void other_begins(struct env *env, enum other what, struct call *call)
{
    *call = (struct call){.pool = env->pool, .size = 20 * MIB, .why = "test"};
    if (what == NOBODY)
        return;
    if (what == LEAVING)
        release(alloc(env->pool, 40 * MIB));
    call_stop(env, what == LEAVING ? FAKE_FREE : FAKE_ALLOC, call, what == LEAVING ? call_trim : call_alloc);
}

static void go_on(struct env *env)
{
    uint64_t addr[LIVE] = {0}, seed = 5;
    const unsigned int kinds = account.run->kinds;
    unsigned int kind[LIVE];

    for (size_t step = 0; step < 6000; step++) {
        /* A program that repeats itself, and now and then does something else. */
        const size_t i = step / 500 % 3 ? step % LIVE : rng_below(&seed, LIVE);

        if (addr[i]) {
            give(env, kind[i], addr[i]);
            addr[i] = 0;
        } else {
            kind[i] = (unsigned int)(step / 500 % 3 ? (i + step / LIVE % 4) % kinds : rng_below(&seed, kinds));
            addr[i] = request(env, kind[i]);
        }
        if (rng_below(&seed, 4) == 0)
            env->fake->arriving = 0;
        compare(env, step);
    }
}

POOL_CASE(test_what_goes_is_as_on_a_second_account)
{
    size_t streak = 0, waits = 0, credit = 0;

    for (const struct run *run = runs; run < runs + sizeof(runs) / sizeof(*runs); run++) {
        struct pool_config config = fake_config(env->fake);
        struct pool_backend_ops ops = *config.backend;
        struct pool_observer_ops observer = *config.observer;
        struct call other;

        ops.reclaim = backend_reclaim;
        config.backend = &ops;
        observer.bound = observe_bound;
        config.observer = &observer;
        config.break_max = 0;
        config.excess_min = run->excess_min;
        config.bound_min = run->bound_min;
        config.deferred_min = run->slack;
        env->fake->late = run->late;
        env->fake->prompt = run->prompt;
        env->fake->arriving = 0;
        env_pool(env, &config);
        other_begins(env, run->other, &other);
        account_begin(run, env);
        go_on(env);
        streak = most(streak, account.streak);
        waits += account.waits;
        assert_int_equal(waits_told, account.waits);
        credit = most(credit, account.credit);
        if (run->other != NOBODY) {
            call_go(env, run->other == LEAVING ? FAKE_FREE : FAKE_ALLOC, &other);
        }
        config = fake_config(env->fake);
        env_pool(env, &config); /* ops and observer go */
    }
    assert_true(streak == STREAK_MOST && credit && waits > 100); /* or this shows nothing */
}

/* Sizes that share a place among what the pool has handed back are not taken for each other. */
POOL_CASE(test_sizes_that_share_a_place_in_memory)
{
    struct pool_config config = fake_config(env->fake);
    size_t places = 0, sizes = 0;

    config.break_max = config.excess_min = 0;
    env_pool(env, &config);
    for (size_t size = 10 * UNIT; sizes < places + 3; size += UNIT) {
        const unsigned int excess = env->fake->calls[FAKE_FREE];

        release(alloc(env->pool, size));
        release(alloc(env->pool, size + 30 * UNIT));
        assert_int_equal(env->fake->calls[FAKE_FREE] - excess, 1); /* the first one, before the second came */
        pool_trim(env->pool, "test");
        sizes++;
        places = 0;
        for (size_t i = 0; i < GHOSTS; i++) {
            assert_int_equal(env->pool->ghosts.entries[i].bytes, env->pool->ghosts.entries[i].got_for);
            places += env->pool->ghosts.entries[i].bytes != 0;
        }
    }
}
