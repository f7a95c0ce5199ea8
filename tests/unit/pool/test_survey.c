/* SPDX-License-Identifier: Apache-2.0 */
/* test_survey.c - where a pool's bytes are, to the byte: live, pending, idle, in holes, withdrawn, skipped, leaving. */
#include "unit.h"

static struct pool_survey survey_of(struct pool *pool)
{
    const struct pool_stats stats = stats_of(pool);
    struct pool_survey s;

    pool_survey_get(pool, &s);
    assert_int_equal(s.live + s.pending + s.idle + s.holes + s.withdrawn + s.skipped + s.leaving, s.held);
    assert_int_equal(s.held, stats.held);
    assert_int_equal(s.live + s.pending, stats.live);
    assert_int_equal(s.idle, stats.idle);
    return s;
}

static void assert_holes(struct pool *pool, uint64_t holes, uint64_t ranges, uint64_t segments, uint64_t largest)
{
    const struct pool_survey s = survey_of(pool);

    assert_int_equal(s.holes, holes);
    assert_int_equal(s.ranges, ranges);
    assert_int_equal(s.segments, segments);
    assert_int_equal(s.largest, largest);
}

POOL_CASE(test_survey_of_nothing)
{
    const struct pool_survey s = survey_of(env->pool);

    assert_int_equal(s.held + s.largest + s.ranges + s.segments, 0);
}

POOL_CASE(test_survey_of_a_small_block)
{
    uint64_t a = alloc(env->pool, 1000);
    struct pool_survey s = survey_of(env->pool);

    assert_int_equal(s.live, 1024);
    assert_int_equal(s.skipped, 512); /* the first granule of its segment */
    assert_holes(env->pool, UNIT - 1024 - 512, 1, 1, UNIT - 1024 - 512);
    release(a);
    s = survey_of(env->pool);
    assert_int_equal(s.idle, UNIT);
    assert_int_equal(s.live + s.skipped, 0);
    assert_holes(env->pool, 0, 0, 0, UNIT - 512);
}

POOL_CASE(test_survey_counts_holes_and_their_segments)
{
    uint64_t a[16], b;

    for (int i = 0; i < 16; i++)
        a[i] = alloc(env->pool, UNIT / 8); /* two segments, full */
    b = alloc(env->pool, 3 * UNIT);
    assert_holes(env->pool, 0, 0, 0, 0);
    release(a[1]);
    release(a[3]);
    release(a[4]);
    assert_holes(env->pool, 3 * (UNIT / 8), 2, 1, 2 * (UNIT / 8)); /* neighbours are one */
    release(a[15]);
    assert_holes(env->pool, 4 * (UNIT / 8), 3, 2, 2 * (UNIT / 8));
    release(b);
    assert_int_equal(survey_of(env->pool).idle, 3 * UNIT);
    assert_holes(env->pool, 4 * (UNIT / 8), 3, 2, 3 * UNIT);
}

POOL_CASE(test_survey_of_what_is_kept_back)
{
    const uint64_t a = alloc(env->pool, 4 * UNIT), b = alloc(env->pool, 2 * UNIT);
    struct pool_survey s;

    env->fake->order_rc = -EBUSY;
    release(a);
    s = survey_of(env->pool);
    assert_int_equal(s.pending, 4 * UNIT);
    assert_int_equal(s.live, 2 * UNIT);
    assert_int_equal(s.largest, 0);
    env->fake->order_rc = 0;
    release(b);
    s = survey_of(env->pool);
    assert_int_equal(s.pending + s.live, 0);
    assert_int_equal(s.idle, 6 * UNIT);
    assert_int_equal(s.largest, 4 * UNIT);
}

POOL_CASE(test_survey_of_what_is_withdrawn)
{
    const uint64_t a = alloc(env->pool, UNIT / 4), b = alloc(env->pool, UNIT / 4), c = alloc(env->pool, UNIT / 4);
    struct pool_survey s;

    release(b);
    assert_int_equal(pool_withdraw(a), 0);
    s = survey_of(env->pool);
    assert_int_equal(s.withdrawn, UNIT / 2);
    assert_holes(env->pool, 0, 0, 0, 0); /* it serves nobody */
    release(c);                          /* not merged with its free neighbours */
    assert_int_equal(survey_of(env->pool).withdrawn, 3 * (UNIT / 4));
    release(a); /* and with this one it goes */
    assert_int_equal(survey_of(env->pool).held, 0);
}

POOL_CASE(test_survey_while_memory_is_leaving)
{
    struct call trim = {.pool = env->pool, .why = "test"};
    struct pool_survey s;

    alloc(env->pool, UNIT);
    release(alloc(env->pool, 5 * UNIT));
    call_stop(env, FAKE_FREE, &trim, call_trim);
    s = survey_of(env->pool);
    assert_int_equal(s.leaving, 5 * UNIT);
    assert_int_equal(s.idle + s.largest, 0);
    call_go(env, FAKE_FREE, &trim);
    assert_int_equal(survey_of(env->pool).leaving, 0);
}

/* The parts add up to the whole after every sequence. */
POOL_CASE(test_survey_adds_up_at_random)
{
    uint64_t live[64] = {0}, seed = 7;

    for (int i = 0; i < 4000; i++) {
        const size_t k = rng_below(&seed, 64), size = 1 + rng_below(&seed, i % 5 ? 3 * UNIT : 100000);

        env->fake->order_rc = rng_below(&seed, 8) ? 0 : -EBUSY;
        if (live[k])
            release(live[k]);
        live[k] = live[k] ? 0 : alloc(env->pool, size);
        if (live[k] && rng_below(&seed, 50) == 0)
            pool_withdraw(live[k]);
        survey_of(env->pool);
    }
    env->fake->order_rc = 0;
}
