/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_excess.c - what a pool that grows hands back: no more than it must, and less and less to a program that asks for
 * the same again and again.
 */
#include "unit.h"

#include "pool_internal.h" /* what the pool remembers */

static void pool_with(struct env *env, size_t break_max, size_t excess_min)
{
    struct pool_config config = fake_config(env->fake);

    config.break_max = break_max;
    config.excess_min = excess_min;
    env_pool(env, &config);
}

static void test_growth_hands_back_the_longest_idle_until_it_is_enough(void **state)
{
    struct env *env = *state;
    uint64_t old, middle, young;

    pool_with(env, 0, 32 * MIB);
    old = alloc(env->pool, 16 * MIB);
    young = alloc(env->pool, 18 * MIB);
    middle = alloc(env->pool, 20 * MIB);
    release(old);
    alloc(env->pool, 2 * MIB);
    release(middle);
    alloc(env->pool, 2 * MIB); /* 58 are held, 54 and 32 may be */
    release(young);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    alloc(env->pool, 40 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1); /* 98 of 86; without the first one 82 */
    assert_null(pool_of(old));
    assert_non_null(pool_of(middle));
    assert_non_null(pool_of(young));
    alloc(env->pool, 30 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 2); /* 112 of 74 and 32 */
    assert_null(pool_of(middle));
    assert_non_null(pool_of(young));
}

static void test_growth_within_the_excess_hands_nothing_back(void **state)
{
    struct env *env = *state;

    for (int more = 0; more < 2; more++) {
        const unsigned int frees = env->fake->calls[FAKE_FREE];

        pool_with(env, 0, 8 * MIB);
        release(alloc(env->pool, 8 * MIB));
        alloc(env->pool, 10 * MIB + (more ? 512 : 0)); /* 18 of 10 and 8, or 20 of 12 and 8 */
        assert_int_equal(env->fake->calls[FAKE_FREE], frees);
    }
}

static uint64_t bound_told; /* how often, as the observer was told last */

static void on_bound(void *arg, size_t held, size_t bound, uint64_t ns, uint64_t count)
{
    assert_true(held > 0 && bound > 0);
    bound_told = count;
}

/* A request waits at the bound, which the slack raises; what another thread is asking for counts. */
static void test_growth_beyond_the_bound_waits(void **state)
{
    enum { PLAIN, SLACK, ASKED, KINDS };
    struct env *env = *state;

    for (int kind = PLAIN; kind < KINDS; kind++) {
        struct pool_config config = fake_config(env->fake);
        struct pool_observer_ops observer = *config.observer;
        struct call other = {.size = 20 * MIB};
        uint64_t addr;

        config.bound_min = 16 * MIB;
        bound_told = 0;
        observer.bound = on_bound;
        config.observer = &observer;
        config.slack_min = kind == SLACK ? 64 * MIB : 0;
        env->fake->late = false;
        env_pool(env, &config);
        env->fake->late = true;
        env->fake->arriving = 0;
        other.pool = env->pool;
        alloc(env->pool, 100 * MIB);
        addr = alloc(env->pool, 30 * MIB);
        if (kind == ASKED) {
            fake_stop(env->fake, FAKE_ALLOC);
            call_start(&other, call_alloc);
            fake_wait(env->fake, FAKE_ALLOC);
        } else {
            call_alloc(&other);
        }
        release(addr);
        alloc(env->pool, 32 * MIB); /* 182, of 152 and their tenth and 16, less a sixteenth: 181.25; or 64 more */
        assert_int_equal(stats_of(env->pool).bound, kind != SLACK);
        assert_int_equal(bound_told, kind != SLACK);
        if (kind == ASKED) {
            fake_go(env->fake, FAKE_ALLOC);
            call_join(&other);
        }
        assert_int_equal(other.rc, 0);
        config = fake_config(env->fake);
        env_pool(env, &config); /* the observer goes */
    }
}

/* Nobody gives 256 MiB back because 2 are too much, and asks for them again. */
static void test_growth_by_little_does_not_hand_much_back(void **state)
{
    struct env *env = *state;
    uint64_t large;

    pool_with(env, 0, 6 * MIB + 1);
    release(alloc(env->pool, 8 * MIB));
    alloc(env->pool, 10 * MIB); /* 18 of 16 and a byte */
    assert_int_equal(stats_of(env->pool).held, 18 * MIB);
    pool_with(env, 0, 6 * MIB);
    release(alloc(env->pool, 8 * MIB));
    alloc(env->pool, 10 * MIB);
    assert_int_equal(stats_of(env->pool).held, 10 * MIB);
    /* A smaller one goes in its place, though it was used later. */
    pool_with(env, 0, 0);
    alloc(env->pool, 60 * MIB);
    large = alloc(env->pool, 64 * MIB);
    release(large);
    release(alloc(env->pool, 4 * MIB));
    alloc(env->pool, 6 * MIB); /* 134 of 124 and 6 */
    assert_int_equal(stats_of(env->pool).held, 130 * MIB);
    assert_non_null(pool_of(large));
}

/* However large the segment is that is left alone. */
static void test_growth_tolerates_little_in_all(void **state)
{
    struct env *env = *state;

    pool_with(env, 0, 0);
    release(alloc(env->pool, 400 * MIB));
    alloc(env->pool, 20 * MIB);
    alloc(env->pool, 20 * MIB); /* 440 of 420 */
    assert_int_equal(stats_of(env->pool).held, 440 * MIB);
    alloc(env->pool, 20 * MIB);
    assert_int_equal(stats_of(env->pool).held, 60 * MIB);
}

/* What waits for company is not there for requests, so as much more is held. */
static void test_growth_leaves_room_for_the_slack(void **state)
{
    struct env *env = *state;

    for (unsigned int slack = 0; slack <= 1; slack++) {
        struct pool_config config = fake_config(env->fake);

        config.excess_min = 0;
        config.slack_min = slack * 8 * MIB;
        env_pool(env, &config);
        release(alloc(env->pool, 8 * MIB)); /* a large one is ordered at once */
        alloc(env->pool, 10 * MIB);
        assert_int_equal(stats_of(env->pool).held, slack ? 18 * MIB : 10 * MIB);
    }
}

static void test_excess_is_at_least_a_twentieth_of_the_peak(void **state)
{
    struct env *env = *state;
    uint64_t peak;

    pool_with(env, 0, 0);
    peak = alloc(env->pool, 400 * MIB);
    release(alloc(env->pool, 2 * MIB));
    release(peak);
    alloc(env->pool, 4 * MIB);
    alloc(env->pool, 14 * MIB); /* 420 of 402 and 20 */
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    alloc(env->pool, 4 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
}

static void test_growth_hands_back_before_it_asks_and_waits_for_nothing(void **state)
{
    struct env *env = *state;
    const struct fake_event *event;
    uint64_t a, b;

    pool_with(env, 0, 0);
    a = alloc(env->pool, 8 * MIB);
    b = alloc(env->pool, 6 * MIB);
    release(a);
    release(b);
    fake_events_clear(env->fake);
    alloc(env->pool, 20 * MIB);
    assert_int_equal(env->fake->peak, 20 * MIB);
    event = fake_event_of(env->fake, FAKE_TRIM, 0);
    assert_non_null(event);
    assert_string_equal(event->why, "excess");
    assert_int_equal(event->size, 14 * MIB);
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 0);
    assert_int_equal(env->fake->waits, 2); /* those of the two frees */
}

/* A device that has not come to the last ones yet would have two of everything. */
static void test_growth_hands_back_no_more_until_it_has_arrived(void **state)
{
    struct env *env = *state;
    uint64_t addr[3];

    pool_with(env, 0, 0);
    env->fake->late = true;
    for (int i = 0; i < 3; i++)
        addr[i] = alloc(env->pool, (8 + 2 * (size_t)i) * MIB);
    release(addr[0]);
    alloc(env->pool, 20 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    release(addr[1]);
    alloc(env->pool, 16 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    assert_int_equal(alloc(env->pool, 10 * MIB), addr[1]);
    release(addr[2]);
    env->fake->arriving = 0;
    alloc(env->pool, 16 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 2);
    assert_sound(env->pool, env->fake);
}

static void test_hit_hands_nothing_back(void **state)
{
    struct env *env = *state;
    uint64_t first;

    pool_with(env, SIZE_MAX / 2, 0);
    first = alloc(env->pool, 64 * MIB);
    release(alloc(env->pool, 32 * MIB));
    release(first);
    assert_int_equal(alloc(env->pool, 48 * MIB), first);
    alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
}

static void test_frozen_pool_hands_nothing_back(void **state)
{
    struct env *env = *state;
    uint64_t addr;

    pool_with(env, 0, 0);
    release(alloc(env->pool, 8 * MIB));
    env->fake->frozen = true;
    assert_int_equal(pool_alloc(env->pool, 20 * MIB, &addr), -EAGAIN);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    env->fake->frozen = false;
}

static void program_part(struct pool *pool, size_t size, size_t count)
{
    uint64_t addrs[40];

    for (size_t i = 0; i < count; i++)
        addrs[i] = alloc(pool, size - 512 * (i % 4));
    for (size_t i = 0; i < count; i++)
        release(addrs[i]);
}

/* One step of a program: parts that each hold many blocks of nearly one size, which fit badly into what the part before
 * has left. The sizes are less by so much. */
static void program_step(struct pool *pool, size_t less)
{
    for (size_t part = 0; part < 4; part++)
        program_part(pool, (12 + 6 * part) * MIB - less, 400 * MIB / ((12 + 6 * part) * MIB));
}

static void test_program_that_repeats_itself_comes_to_need_no_driver(void **state)
{
    struct env *env = *state;
    unsigned int calls = 0, last = 0;

    pool_with(env, 0, 0);
    for (int i = 0; i < 40; i++) {
        calls = env->fake->calls[FAKE_ALLOC] + env->fake->calls[FAKE_FREE];
        program_step(env->pool, 0);
        last = env->fake->calls[FAKE_ALLOC] + env->fake->calls[FAKE_FREE] - calls;
        if (i == 1)
            assert_int_not_equal(last, 0); /* or this shows nothing */
    }
    assert_int_equal(last, 0);
}

/* That the driver refuses first is no reason to count what it is asked for twice. */
static void test_refused_growth_counts_once(void **state)
{
    struct env *env = *state;

    pool_with(env, 0, 4 * MIB);
    release(alloc(env->pool, 40 * MIB));
    alloc(env->pool, 48 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1); /* the 40 */
    release(alloc(env->pool, 2 * MIB));
    env->fake->fail_at = env->fake->calls[FAKE_ALLOC] + 1;
    env->fake->fail_rc = -ENOMEM;
    alloc(env->pool, 40 * MIB);
    assert_int_equal(env->fake->refused, 1);
    assert_int_equal(env->pool->again, 1);
}

static void test_program_whose_sizes_change_does_not_make_the_pool_hold_more(void **state)
{
    struct env *env = *state;

    pool_with(env, 0, 0);
    for (size_t i = 1; i < 60; i++)
        program_step(env->pool, i * 8 * 512);
    assert_true(stats_of(env->pool).held <= stats_of(env->pool).peak_live / 20 * 22);
    assert_true(env->fake->peak <= stats_of(env->pool).peak_live / 20 * 22);
}

/* A few large blocks are asked for again and again, but most of what is asked for is new. */
static void test_program_of_old_and_new_sizes_does_not_make_the_pool_hold_more(void **state)
{
    struct env *env = *state;

    pool_with(env, 0, 0);
    for (size_t i = 1; i < 60; i++) {
        program_part(env->pool, 12 * MIB - i * 8 * 512, 12);
        program_part(env->pool, 60 * MIB, 7);
    }
    assert_true(env->fake->peak <= stats_of(env->pool).peak_live / 20 * 22);
}

/* What was let hold more for the old sizes goes with new ones. */
static void test_program_that_changes_makes_the_pool_hold_less_again(void **state)
{
    struct env *env = *state;
    size_t held;

    pool_with(env, 0, 0);
    for (int i = 0; i < 40; i++)
        program_step(env->pool, 0);
    held = stats_of(env->pool).held;
    assert_true(held > stats_of(env->pool).peak_live / 4 * 5);
    for (size_t i = 1; i < 60; i++)
        program_step(env->pool, 2 * MIB + i * 8 * 512);
    assert_true(stats_of(env->pool).held <= stats_of(env->pool).peak_live / 20 * 22);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        POOL_TEST(test_growth_hands_back_the_longest_idle_until_it_is_enough),
        POOL_TEST(test_growth_within_the_excess_hands_nothing_back),
        POOL_TEST(test_growth_beyond_the_bound_waits),
        POOL_TEST(test_growth_by_little_does_not_hand_much_back),
        POOL_TEST(test_growth_tolerates_little_in_all),
        POOL_TEST(test_growth_leaves_room_for_the_slack),
        POOL_TEST(test_excess_is_at_least_a_twentieth_of_the_peak),
        POOL_TEST(test_growth_hands_back_before_it_asks_and_waits_for_nothing),
        POOL_TEST(test_growth_hands_back_no_more_until_it_has_arrived),
        POOL_TEST(test_hit_hands_nothing_back),
        POOL_TEST(test_frozen_pool_hands_nothing_back),
        POOL_TEST(test_program_that_repeats_itself_comes_to_need_no_driver),
        POOL_TEST(test_refused_growth_counts_once),
        POOL_TEST(test_program_whose_sizes_change_does_not_make_the_pool_hold_more),
        POOL_TEST(test_program_of_old_and_new_sizes_does_not_make_the_pool_hold_more),
        POOL_TEST(test_program_that_changes_makes_the_pool_hold_less_again),
    };

    return cmocka_run_group_tests_name("excess", tests, NULL, NULL);
}
