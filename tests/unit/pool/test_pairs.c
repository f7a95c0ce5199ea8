/* SPDX-License-Identifier: Apache-2.0 */
/* test_pairs.c - segments for two: large blocks that leave much of their last 2 MiB share one, but not when, or where,
 * that could keep too much memory from going back. */
#include "unit.h"

#include "pool_state.h"

#define ANY (SIZE_MAX / 2)

static void pool_with(struct env *env, size_t break_max)
{
    ENV_WITH(env, break_max = break_max);
}

/* A program that has freed large blocks of which each leaves 1 MiB or more of its last 2 MiB. */
static void pool_packs(struct env *env, size_t break_max)
{
    uint64_t addr[90];

    pool_with(env, break_max);
    alloc_all(env->pool, addr, 90, 3 * MIB);
    release_all(addr, 90);
    pool_trim(env->pool, "test");
}

POOL_CASE(test_blocks_that_leave_much_share_a_segment)
{
    uint64_t first, second;

    pool_packs(env, ANY);
    first = alloc(env->pool, 4 * MIB + 512);
    second = alloc(env->pool, 4 * MIB + MIB / 2);
    assert_int_equal(stats_of(env->pool).held, 10 * MIB);
    /* At both ends, so that each place serves a larger one. */
    assert_int_equal(offset_of(env->fake, first), 0);
    assert_int_equal(second + 4 * MIB + MIB / 2, first + 10 * MIB);
    release(first);
    assert_int_equal(alloc(env->pool, 5 * MIB), first);
    release(second);
    assert_int_equal(alloc(env->pool, 5 * MIB), first + 5 * MIB);
    assert_int_equal(stats_of(env->pool).held, 10 * MIB);
}

/* Each condition at its edge. */
POOL_CASE(test_block_has_a_segment_of_its_own)
{
    static const struct {
        size_t size, segment, break_max, limit, freed;
    } cases[] = {
        {4 * MIB + 512, 10 * MIB, ANY, 0, 256 * MIB},
        {4 * MIB + 512, 6 * MIB, ANY, 0, 256 * MIB - 1}, /* a program that frees none may export each */
        {5 * MIB, 10 * MIB, ANY, 0, ANY},
        {5 * MIB + 512, 6 * MIB, ANY, 0, ANY}, /* it leaves little */
        {6 * MIB, 6 * MIB, ANY, 0, ANY},       /* or nothing */
        {2 * MIB, 2 * MIB, ANY, 0, ANY},
        {15 * MIB, 30 * MIB, ANY, 0, ANY},
        {16 * MIB + 512, 18 * MIB, ANY, 0, ANY}, /* it is too large for what that saves */
        {3 * MIB, 6 * MIB, 2 * MIB, 0, ANY},
        {3 * MIB, 4 * MIB, 2 * MIB - 1, 0, ANY}, /* it would expose too much */
        {5 * MIB, 10 * MIB, 5592405, 0, ANY},    /* a quarter of which is for smaller ones */
        {5 * MIB, 6 * MIB, 5592404, 0, ANY},
        {5 * MIB, 10 * MIB, ANY, 60 * MIB, ANY}, /* 30 are held, and 20 asked for */
        {5 * MIB, 6 * MIB, ANY, 60 * MIB - 1, ANY},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct call other = {.size = 20 * MIB};
        size_t held;

        pool_with(env, cases[i].break_max);
        other.pool = env->pool;
        env->pool->config.limit = cases[i].limit;
        env->pool->freed = cases[i].freed;
        alloc(env->pool, 30 * MIB);
        call_stop(env, FAKE_ALLOC, &other, call_alloc);
        alloc(env->pool, cases[i].size);
        held = stats_of(env->pool).held;
        call_go(env, FAKE_ALLOC, &other);
        if (held != 30 * MIB + cases[i].segment)
            fail_msg("case %zu: %zu MiB", i, held / MIB);
    }
}

/* A segment for two that the limit forbids hands nothing back, either. */
POOL_CASE(test_segment_for_two_over_the_limit)
{
    struct call other = {.size = 20 * MIB};

    for (size_t limit = 64 * MIB; limit <= 66 * MIB; limit += 2 * MIB) {
        const unsigned int frees = env->fake->calls[FAKE_FREE];
        uint64_t idle;

        pool_with(env, ANY);
        other.pool = env->pool;
        env->pool->freed = ANY;
        alloc(env->pool, 30 * MIB);
        idle = alloc(env->pool, 2 * MIB);
        alloc(env->pool, 4 * MIB);
        release(idle);
        call_stop(env, FAKE_ALLOC, &other, call_alloc);
        env->pool->config.limit = limit;
        env->pool->config.excess_min = 0;
        alloc(env->pool, 5 * MIB); /* 62 of 60 and 3, with the other's; or 66 */
        assert_int_equal(env->fake->calls[FAKE_FREE] - frees, limit == 66 * MIB);
        assert_int_equal(stats_of(env->pool).held, limit == 66 * MIB ? 44 * MIB : 42 * MIB);
        call_go(env, FAKE_ALLOC, &other);
    }
}

/* Only blocks that leave much count. */
POOL_CASE(test_what_has_been_freed_of_them)
{
    const size_t sizes[] = {3 * MIB, 2 * MIB, 3 * MIB + 512, MIB, 20 * MIB + 512, 5 * MIB};

    pool_with(env, ANY);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        release(alloc(env->pool, sizes[i]));
    pool_trim(env->pool, "test");
    assert_int_equal(env->pool->freed, 28 * MIB + 512);
}

POOL_CASE(test_blocks_of_a_program_that_exports_them_have_their_own)
{
    uint64_t small;

    pool_packs(env, ANY);
    alloc(env->pool, 4 * MIB + 512);
    assert_int_equal(stats_of(env->pool).held, 10 * MIB);
    small = alloc(env->pool, 512);
    release(alloc(env->pool, 5 * MIB)); /* the other half is close at hand */
    pool_pack_never(env->pool);
    assert_int_equal(env->pool->exposed, 0);
    assert_ptr_equal(fake_segment_of(env->fake, alloc(env->pool, 512)), fake_segment_of(env->fake, small));
    alloc(env->pool, 5 * MIB);
    assert_int_equal(stats_of(env->pool).held, 18 * MIB);
    alloc(env->pool, 4 * MIB + 512); /* not beside the first one */
    assert_int_equal(stats_of(env->pool).held, 24 * MIB);
    release(alloc(env->pool, 14 * MIB));
    alloc(env->pool, 12 * MIB);
    assert_int_equal(stats_of(env->pool).held, 50 * MIB); /* what is idle is not broken into */
}

/* The program has freed it past the pool. */
POOL_CASE(test_packed_segment_that_is_disowned_exposes_nothing)
{
    uint64_t addr;

    pool_packs(env, ANY);
    addr = alloc(env->pool, 4 * MIB + 512);
    assert_int_equal(env->pool->exposed, 4 * MIB);
    pool_disown(addr, 10 * MIB);
    assert_int_equal(env->pool->exposed, 0);
}

/* The driver has no 10 MiB for two, but 6 for one. */
POOL_CASE(test_refused_segment_for_two_becomes_one_for_one)
{
    pool_packs(env, ANY);
    env->fake->capacity = 8 * MIB;
    alloc(env->pool, 4 * MIB + 512);
    assert_int_equal(stats_of(env->pool).held, 6 * MIB);
}

/* A segment for two blocks comes only within the bound; else one for one does, and only that one is waited for. */
POOL_CASE(test_segments_for_two_at_the_bound)
{
    static const struct {
        int64_t over; /* with a segment for two, the bound */
        size_t idle, segment;
        bool waits, scarce;
    } cases[] = {
        {0, 0, 10 * MIB, false, false},        {1, 0, 6 * MIB, false, false},
        {4 * MIB, 0, 6 * MIB, false, false},   {4 * MIB + 1, 0, 6 * MIB, true, false},
        {0, 60 * MIB, 10 * MIB, false, false}, /* which goes */
        {0, 60 * MIB, 6 * MIB, false, true},
    };
    const struct pool_config config = fake_config(env->fake);

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const size_t peak = 400 * MIB + 6 * MIB, bound = peak + peak / 10 / 16 * 15;

        env->fake->arriving = 0;
        env_pool(env, &config);
        env->pool->freed = ANY;
        if (cases[i].idle)
            release(alloc(env->pool, cases[i].idle));
        else
            env->fake->arriving = (size_t)((int64_t)(bound - 410 * MIB) + cases[i].over);
        alloc(env->pool, 400 * MIB);
        env->pool->config.excess_min = env->pool->config.bound_min = 0;
        env->fake->scarce = cases[i].scarce;
        alloc(env->pool, 4 * MIB + 512);
        env->fake->scarce = false;
        assert_int_equal(stats_of(env->pool).held, 400 * MIB + cases[i].segment);
        assert_int_equal(stats_of(env->pool).bound, cases[i].waits);
    }
    env->fake->arriving = 0;
}
