/* SPDX-License-Identifier: Apache-2.0 */
/* test_excess.c - what a pool that grows hands back: no more than it must, and less and less to a program that asks for
 * the same again and again. How much that is, to the byte: test_policy.c. */
#include "unit.h"

#include "pool_state.h" /* what the pool remembers */

static void pool_with(struct env *env, size_t break_max, size_t excess_min)
{
    struct pool_config config = fake_config(env->fake);

    config.break_max = break_max;
    config.excess_min = excess_min;
    env_pool(env, &config);
}

POOL_CASE(test_growth_hands_back_before_it_asks_and_waits_for_nothing)
{
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

POOL_CASE(test_hit_hands_nothing_back)
{
    uint64_t first;

    pool_with(env, SIZE_MAX / 2, 0);
    first = alloc(env->pool, 64 * MIB);
    release(alloc(env->pool, 32 * MIB));
    release(first);
    assert_int_equal(alloc(env->pool, 48 * MIB), first);
    alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
}

POOL_CASE(test_frozen_pool_hands_nothing_back)
{
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
    release_all(addrs, count);
}

/* One step of a program: parts that each hold many blocks of nearly one size, which fit badly into what the part before
 * has left. The sizes are less by so much. */
static void program_step(struct pool *pool, size_t less)
{
    for (size_t part = 0; part < 4; part++)
        program_part(pool, (12 + 6 * part) * MIB - less, 400 * MIB / ((12 + 6 * part) * MIB));
}

POOL_CASE(test_program_that_repeats_itself_comes_to_need_no_driver)
{
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
POOL_CASE(test_refused_growth_counts_once)
{
    pool_with(env, 0, 4 * MIB);
    release(alloc(env->pool, 40 * MIB));
    alloc(env->pool, 48 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1); /* the 40 */
    release(alloc(env->pool, 2 * MIB));
    env->fake->fail_at = env->fake->calls[FAKE_ALLOC] + 1;
    env->fake->fail_rc = -ENOMEM;
    alloc(env->pool, 40 * MIB);
    assert_int_equal(env->fake->refused, 1);
    assert_int_equal(env->pool->ghosts.streak, 1);
}

POOL_CASE(test_program_whose_sizes_change_does_not_make_the_pool_hold_more)
{
    pool_with(env, 0, 0);
    for (size_t i = 1; i < 60; i++)
        program_step(env->pool, i * 8 * 512);
    assert_true(stats_of(env->pool).held <= stats_of(env->pool).peak_live / 20 * 22);
    assert_true(env->fake->peak <= stats_of(env->pool).peak_live / 20 * 22);
}

/* A few large blocks are asked for again and again, but most of what is asked for is new. */
POOL_CASE(test_program_of_old_and_new_sizes_does_not_make_the_pool_hold_more)
{
    pool_with(env, 0, 0);
    for (size_t i = 1; i < 60; i++) {
        program_part(env->pool, 12 * MIB - i * 8 * 512, 12);
        program_part(env->pool, 60 * MIB, 7);
    }
    assert_true(env->fake->peak <= stats_of(env->pool).peak_live / 20 * 22);
}

/* Memory that the bound allowed for the old sizes goes with new ones. */
POOL_CASE(test_program_that_changes_makes_the_pool_hold_less_again)
{
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

/* Of 4, 4 and 16 MiB the 16 alone, though the others have been idle longer: one call of the driver gets it again. */
POOL_CASE(test_one_large_segment_goes_for_several_small_ones)
{
    uint64_t first, second, third;
    const struct fake_event *event;

    pool_with(env, 0, 0);
    first = alloc(env->pool, 4 * MIB);
    second = alloc(env->pool, 4 * MIB);
    third = alloc(env->pool, 16 * MIB);
    release(first);
    release(second);
    release(third);
    alloc(env->pool, 6 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    event = fake_event_of(env->fake, FAKE_FREE, 0);
    assert_non_null(event);
    assert_int_equal(event->addr, third);
}

/* Use a block for a moment; then it is idle, not cached in a magazine. */
static uint64_t use(struct env *env, size_t size)
{
    const uint64_t addr = alloc(env->pool, size);

    release(addr);
    assert_int_equal(pool_decay(env->pool, UINT32_MAX), 0);
    return addr;
}

static uint64_t use_in_steps(struct env *env, size_t one, size_t other, size_t between)
{
    uint64_t addr = 0;

    for (int step = 0; step < 3; step++) {
        use(env, one);
        for (int i = 0; i < 8; i++)
            use(env, between);
        addr = use(env, other);
        for (int i = 0; i < 8; i++)
            use(env, between);
    }
    return addr;
}

/* The program will use the 8 MiB next, which have been idle longest, and the 10 MiB not for half a step. */
POOL_CASE(test_what_is_used_next_stays)
{
    const struct fake_event *event;
    uint64_t other;

    pool_with(env, 0, 20 * MIB);
    other = use_in_steps(env, 8 * MIB, 10 * MIB, 12 * MIB);
    alloc(env->pool, 14 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    event = fake_event_of(env->fake, FAKE_FREE, 0);
    assert_non_null(event);
    assert_int_equal(event->addr, other);
}

/* The bytes of the segments of one size that went back. */
static size_t gone(const struct env *env, size_t size)
{
    const struct fake_event *event;
    size_t bytes = 0;

    for (unsigned int n = 0; (event = fake_event_of(env->fake, FAKE_FREE, n)) != NULL; n++)
        bytes += event->size == size ? size : 0;
    return bytes;
}

/* More than are chosen in one look. None has been used again, so those idle longest go. */
POOL_CASE(test_many_go_at_once)
{
    const struct fake_event *event;
    uint64_t addrs[40];
    size_t i;

    pool_with(env, 0, 0);
    for (i = 0; i < 40; i++)
        addrs[i] = alloc(env->pool, 4 * MIB);
    for (i = 0; i < 40; i++) {
        release(addrs[i]);
        assert_int_equal(pool_decay(env->pool, UINT32_MAX), 0);
    }
    alloc(env->pool, 120 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 28); /* a twentieth of 160 MiB may stay */
    for (unsigned int n = 0; (event = fake_event_of(env->fake, FAKE_FREE, n)) != NULL; n++) {
        for (i = 0; addrs[i] != event->addr; i++)
            assert_true(i + 1 < 28);
    }
}

/* The last of more than are chosen in one look, which would be unused for longest. */
POOL_CASE(test_large_segment_behind_many_goes_first)
{
    uint64_t addrs[21];

    pool_with(env, 0, 0);
    for (size_t i = 0; i < 21; i++)
        addrs[i] = alloc(env->pool, (i < 20 ? 4 : 100) * MIB);
    for (size_t i = 0; i < 21; i++) {
        release(addrs[i]);
        assert_int_equal(pool_decay(env->pool, UINT32_MAX), 0);
    }
    alloc(env->pool, 30 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    assert_int_equal(gone(env, 100 * MIB), 100 * MIB);
}

/* The large ones would go first, but too little of each is too much; there are more than are chosen in one look. */
POOL_CASE(test_large_segments_that_stay_hold_up_no_small_ones)
{
    uint64_t large[20], small[22];

    pool_with(env, 0, 0);
    alloc_all(env->pool, large, 20, 40 * MIB);
    release_all(large, 20);
    for (size_t i = 0; i < 22; i++)
        small[i] = alloc(env->pool, 2 * MIB); /* 4 MiB more than a twentieth */
    release_all(small, 22);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    alloc(env->pool, 4 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 4);
    assert_int_equal(gone(env, 2 * MIB), 8 * MIB);
}
