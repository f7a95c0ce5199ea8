/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_break.c - how much of the large segments may be broken into, and what a pool that may break none owes to the
 * program: everything that the driver alone would have served.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences and lengths.
 */
#include "unit.h"

#include "pool_state.h"
#include "seeded.h"

static void pool_with(struct env *env, size_t break_max)
{
    ENV_WITH(env, break_max = break_max);
}

POOL_CASE(test_break_max_zero_never_breaks)
{
    uint64_t large;

    pool_with(env, 0);
    large = alloc(env->pool, 16 * MIB);
    release(large);
    for (size_t size = 2 * MIB; size <= 14 * MIB; size += 2 * MIB)
        assert_int_equal(offset_of(env->fake, alloc(env->pool, size)), 0);
    assert_int_equal(env->fake->born, 8);
    assert_int_equal(stats_of(env->pool).idle, 16 * MIB);
    assert_int_equal(alloc(env->pool, 14 * MIB + 1), large); /* whole: the driver would have given as much */
}

/* Of a segment of 16 MiB a block of 10 exposes 6, one of 4 MiB exposes 12. A quarter is for those of up to 4 MiB. */
POOL_CASE(test_break_max_is_the_sum_of_what_is_exposed)
{
    uint64_t whole[4];

    pool_with(env, 24 * MIB);
    alloc_all(env->pool, whole, 4, 16 * MIB);
    release_all(whole, 4);
    for (size_t i = 0; i < 3; i++)
        alloc(env->pool, 10 * MIB);
    assert_int_equal(env->fake->born, 4);
    alloc(env->pool, 10 * MIB);
    assert_int_equal(env->fake->born, 5); /* 24 would be more than three quarters */
    assert_int_equal(stats_of(env->pool).idle, 16 * MIB);
    alloc(env->pool, 6 * MIB);
    assert_int_equal(env->fake->born, 6); /* 4 more */
    alloc(env->pool, 4 * MIB);            /* 6 more, of the last quarter */
    assert_int_equal(env->fake->born, 6);
    alloc(env->pool, 2 * MIB); /* beside it: 2 more */
    assert_int_equal(env->fake->born, 7);
}

/* When the driver refuses, a small block may come into a hole of any size. So a large segment counts as if one were in
 * it, or the block would keep more than break_max. */
POOL_CASE(test_large_segment_counts_wholly)
{
    uint64_t large, larger;

    pool_with(env, 32 * MIB);
    env->fake->capacity = 512 * MIB;
    release(alloc(env->pool, 220 * MIB));
    large = alloc(env->pool, 200 * MIB);
    larger = alloc(env->pool, 290 * MIB);
    alloc(env->pool, 2 * MIB);
    alloc(env->pool, 4 * MIB);
    release(large);
    release(larger);
    alloc(env->pool, 400 * MIB);
}

POOL_CASE(test_break_max_just_enough_breaks)
{
    for (int enough = 0; enough < 2; enough++) {
        const unsigned int born = env->fake->born;

        pool_with(env, BREAK_ONCE(8 * MIB) - (enough ? 0 : 8 * KIB));
        release(alloc(env->pool, 16 * MIB));
        alloc(env->pool, 8 * MIB);
        assert_int_equal(env->fake->born - born, enough ? 1 : 2);
    }
}

/* Merged whole again, a segment no longer counts, and another may be broken into. */
POOL_CASE(test_break_max_is_released_by_merging)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    uint64_t a, b, parts[3];

    pool_with(env, BREAK_ONCE(12 * MIB));
    a = alloc(env->pool, 16 * MIB);
    b = alloc(env->pool, 14 * MIB);
    release(a);
    release(b);
    for (int i = 0; i < 60; i++) {
        const size_t size = i % 2 ? 4 * MIB : 3 * MIB;
        const unsigned int born = env->fake->born;

        for (int j = 0; j < 3; j++)
            parts[j] = alloc(env->pool, size); /* breaks one of them, once */
        assert_int_equal(env->fake->born, born);
        assert_int_equal(env->fake->in_use - stats_of(env->pool).idle, fake_segment_of(env->fake, parts[0])->size);
        for (int j = 0; j < 3; j++) {
            release(parts[orders[i % 6][j]]);
            assert_sound(env->pool, env->fake);
        }
        assert_int_equal(stats_of(env->pool).idle, 30 * MIB);
        if (i % 20 == 19) {
            assert_int_equal(alloc(env->pool, 16 * MIB), a);
            assert_int_equal(alloc(env->pool, 14 * MIB), b);
            release(a);
            release(b);
        }
    }
}

/* Kept blocks occupy their segment: it is not whole before they are published. */
POOL_CASE(test_break_max_with_kept_block_is_released_by_order)
{
    uint64_t a, b, part;

    pool_with(env, 8 * MIB);
    a = alloc(env->pool, 16 * MIB);
    b = alloc(env->pool, 14 * MIB);
    release(a);
    release(b);
    part = alloc(env->pool, 8 * MIB);
    env->fake->order_rc = -EBUSY;
    release(part);
    alloc(env->pool, 12 * MIB);
    assert_int_equal(env->fake->born, 3); /* not from the other one */
    env->fake->order_rc = 0;
    release(alloc(env->pool, 16 * MIB)); /* publishes what was kept */
    assert_int_equal(stats_of(env->pool).idle, 30 * MIB);
    alloc(env->pool, 10 * MIB);
    assert_int_equal(env->fake->born, 3);
}

/* A trim takes whole segments only: what is broken into stays on the account. */
POOL_CASE(test_break_max_after_trim_still_counts_what_is_broken)
{
    uint64_t part;

    pool_with(env, 12 * MIB);
    release(alloc(env->pool, 16 * MIB));
    part = alloc(env->pool, 10 * MIB);
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    release(alloc(env->pool, 14 * MIB));
    alloc(env->pool, 10 * MIB);
    assert_int_equal(env->fake->born, 3);
    release(part);
    assert_int_equal(pool_trim(env->pool, "test"), 30 * MIB);
    release(alloc(env->pool, 16 * MIB));
    alloc(env->pool, 10 * MIB);
    assert_int_equal(env->fake->born, 4);
}

/* Full to a half, a quarter may be exposed: 12 of 48 MiB, so that an idle segment of 30 stays whole; without a capacity
 * it does not. */
POOL_CASE(test_break_max_shrinks_as_capacity_is_handed_out)
{
    static const size_t capacities[] = {1024 * MIB, 0};

    for (size_t i = 0; i < 2; i++) {
        struct pool_config config = fake_config(env->fake);
        uint64_t idle;

        config.break_max = 64 * MIB;
        config.capacity = capacities[i];
        env_pool(env, &config);
        alloc(env->pool, 512 * MIB);
        idle = alloc(env->pool, 30 * MIB);
        release(idle);
        assert_int_equal(alloc(env->pool, 16 * MIB) == idle, i == 1);
    }
}

/* A block that was the smallest of its segment exposes nothing once it is free. */
POOL_CASE(test_smallest_block_that_goes_exposes_no_more)
{
    uint64_t small;

    pool_with(env, SIZE_MAX / 2);
    release(alloc(env->pool, 16 * MIB));
    alloc(env->pool, 10 * MIB);
    assert_int_equal(env->pool->exposed, 6 * MIB);
    small = alloc(env->pool, 2 * MIB);
    assert_int_equal(env->pool->exposed, 14 * MIB);
    release(small);
    alloc(env->pool, 20 * MIB); /* it joins its neighbour */
    assert_int_equal(env->pool->exposed, 6 * MIB);
}

POOL_CASE(test_smallest_block_that_stays_exposes_the_rest)
{
    uint64_t first;

    pool_with(env, SIZE_MAX / 2);
    release(alloc(env->pool, 16 * MIB));
    first = alloc(env->pool, 4 * MIB);
    alloc(env->pool, 6 * MIB);
    alloc(env->pool, 2 * MIB);
    release(first);
    alloc(env->pool, 20 * MIB);
    assert_int_equal(env->pool->exposed, 14 * MIB);
}

/* A small block that was let in when the driver had no more: when all have gone nothing is exposed. */
POOL_CASE(test_segment_of_small_blocks_that_have_gone_exposes_nothing)
{
    uint64_t large, small;

    pool_with(env, SIZE_MAX / 2);
    release(alloc(env->pool, 8 * MIB));
    large = alloc(env->pool, 5 * MIB);
    env->fake->capacity = 8 * MIB;
    small = alloc(env->pool, MIB);
    assert_int_equal(env->pool->exposed, 7 * MIB);
    release(small);
    release(large);
    env->fake->capacity = SIZE_MAX;
    alloc(env->pool, 20 * MIB);
    assert_int_equal(env->pool->exposed, 0);
}

/* One small block would expose all of it. */
POOL_CASE(test_hole_of_packed_segment_does_not_serve_small_request)
{
    uint64_t part;

    release(alloc(env->pool, 16 * MIB));
    part = alloc(env->pool, 12 * MIB);
    assert_ptr_not_equal(fake_segment_of(env->fake, alloc(env->pool, MIB)), fake_segment_of(env->fake, part));
}

POOL_CASE(test_idle_segment_does_not_serve_small_request)
{
    pool_with(env, 40 * MIB);
    release(alloc(env->pool, UNIT));
    release(alloc(env->pool, 4 * MIB));
    alloc(env->pool, MIB);
    assert_int_equal(env->fake->born, 3);
}

/* The limit is no refusal of the driver's. */
POOL_CASE(test_limit_does_not_break_beyond_break_max)
{
    struct pool_config config = fake_config(env->fake);

    config.limit = 16 * MIB;
    config.break_max = 0;
    env_pool(env, &config);
    release(alloc(env->pool, 16 * MIB));
    alloc(env->pool, 8 * MIB);
    assert_int_equal(stats_of(env->pool).held, 8 * MIB);
}

/* --- against the driver alone */

/* A segment that was split in need must not be in the way for good: the driver alone would have 4 of 8 MiB left. */
POOL_CASE(test_refusal_that_breaks_does_not_cost_later_requests)
{
    uint64_t parts[4];

    pool_with(env, 0);
    env->fake->capacity = 8 * MIB;
    release(alloc(env->pool, 8 * MIB));
    alloc_all(env->pool, parts, 4, 2 * MIB);
    release(parts[0]);
    release(parts[2]);
    alloc(env->pool, 512);
    release(parts[1]);
    alloc(env->pool, 4 * MIB);
}

#define CAPACITY   (96 * MIB)
#define LIVE       256
#define SHARED_MAX (UNIT - POOL_GRANULE)

struct native {
    struct env env;
    struct {
        uint64_t addr;
        size_t size;
    } live[LIVE];
    size_t used; /* what the driver alone would hold: large blocks in whole units, and shared segments in use */
    uint64_t rng;
    unsigned int refused, reused; /* how often */
};

static size_t units_of(size_t size)
{
    return (size + UNIT - 1) / UNIT * UNIT;
}

static void native_count(struct native *native, size_t at, bool add)
{
    struct fake_segment *segment = fake_segment_of(native->env.fake, native->live[at].addr);
    const bool was = segment->blocks != 0;

    segment->blocks += add ? 1u : -1u;
    if (was != (segment->blocks != 0))
        native->env.fake->idle += add ? -segment->size : segment->size;
    if (native->live[at].size > SHARED_MAX)
        native->used += add ? units_of(native->live[at].size) : -units_of(native->live[at].size);
    else if (was != (segment->blocks != 0))
        native->used += add ? UNIT : -UNIT;
}

/* An idle segment that is as large as the driver's allocation would be. */
static bool has_idle(struct fake *fake, size_t size)
{
    for (size_t i = 0; i < 4 * CAPACITY / UNIT; i++)
        if (fake->segments[i].size == size && !fake->segments[i].blocks)
            return true;
    return false;
}

static void native_step(struct native *native)
{
    struct env *env = &native->env;
    const size_t at = rng_below(&native->rng, LIVE);
    const unsigned int born = env->fake->born;
    size_t size, need;
    bool idle;
    int rc;

    if (native->live[at].addr) {
        native_count(native, at, false);
        release(native->live[at].addr);
        native->live[at].addr = 0;
        return;
    }
    if (rng_below(&native->rng, 4))
        size = 1 + rng_below(&native->rng, rng_below(&native->rng, 8) ? 64 * KIB : UNIT + MIB);
    else
        size = 1 + rng_below(&native->rng, 2 * MIB << rng_below(&native->rng, 6));
    need = units_of(size);
    idle = size > UNIT && has_idle(env->fake, need); /* one of a unit may be a shared one */
    rc = pool_alloc(env->pool, size, &native->live[at].addr);
    if (rc) {
        native->live[at].addr = 0;
        if (native->used + need <= CAPACITY)
            fail_msg("%zu bytes were refused, though the driver alone would hold %zu of %zu; held %zu, idle %zu", size,
                     native->used + need, CAPACITY, env->fake->in_use, env->fake->idle);
        native->refused++;
        return;
    }
    native->live[at].size = size;
    native_count(native, at, true);
    if (idle) {
        native->reused++;
        if (env->fake->born != born)
            fail_msg("%zu bytes from the driver, though a segment of that size was idle", size);
    }
}

/* by_limit: the pool's limit is what bounds it, and not the driver. */
static void native_run(bool by_limit)
{
    const unsigned long steps = env_number("CUPOOL_TEST_OPS", 100000);
    struct native native = {.rng = env_number("CUPOOL_TEST_SEED", 1)};
    struct pool_config config;

    alarm(DEADLOCK_SECONDS * 5);
    native.env.fake = fake_new();
    native.env.fake->capacity = by_limit ? FAKE_CAPACITY : CAPACITY;
    config = fake_config(native.env.fake);
    config.break_max = 0;
    config.limit = by_limit ? CAPACITY : 0;
    native.env.pool = pool_new(&config);
    for (unsigned long i = 0; i < steps; i++) {
        native_step(&native);
        /* The pool's segments that are not idle are no more than the driver alone would hold; a refusal splits
         * segments, and then they may be more. */
        if (by_limit && native.env.fake->in_use - native.env.fake->idle != native.used)
            fail_msg("step %lu: %zu bytes in segments in use, the driver alone would hold %zu", i,
                     native.env.fake->in_use - native.env.fake->idle, native.used);
        if (i % 64 == 0)
            assert_sound(native.env.pool, native.env.fake);
    }
    /* Both have happened often, or this has shown nothing. */
    assert_true(steps < 10000 || (native.refused > steps / 200 && native.reused > steps / 200));
    assert_int_equal(stats_of(native.env.pool).idle, native.env.fake->idle);
    pool_destroy(native.env.pool);
    fake_delete(native.env.fake);
    alarm(0);
}

UNIT_CASE(test_break_max_zero_with_limit_serves_what_the_driver_would)
{
    native_run(true);
}

UNIT_CASE(test_break_max_zero_with_full_driver_serves_what_the_driver_would)
{
    native_run(false);
}
