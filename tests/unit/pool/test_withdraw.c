/* SPDX-License-Identifier: Apache-2.0 */
/* test_withdraw.c - segments that another process or library has got hold of: they serve no request any more and go
 * back whole. */
#include "unit.h"

#include "pool_state.h" /* withdrawn: while it is not 0, every free looks at all segments */

static void withdraw(uint64_t addr)
{
    assert_int_equal(pool_withdraw(addr), 0);
}

/* Break an idle segment into two parts. */
static void halve(struct env *env, size_t size, uint64_t ret_parts[2])
{
    const unsigned int born = env->fake->born;

    release(alloc(env->pool, size));
    ret_parts[0] = alloc(env->pool, size / 2);
    ret_parts[1] = alloc(env->pool, size / 2);
    assert_int_equal(env->fake->born, born + 1);
    assert_ptr_equal(fake_segment_of(env->fake, ret_parts[0]), fake_segment_of(env->fake, ret_parts[1]));
}

POOL_CASE(test_withdraw_outside_of_pool_returns_enoent)
{
    const uint64_t gone = alloc(env->pool, 8 * MIB);

    assert_int_equal(pool_withdraw(0), -ENOENT);
    assert_int_equal(pool_withdraw(0x123456789000), -ENOENT);
    assert_int_equal(pool_withdraw(gone + 8 * MIB), -ENOENT);
    release(gone);
    pool_trim(env->pool, "test");
    assert_int_equal(pool_withdraw(gone), -ENOENT);
}

/* --- out of service */

POOL_CASE(test_withdrawn_shared_segment_serves_no_more)
{
    const uint64_t a = alloc(env->pool, 512), b = alloc(env->pool, 4096), c = alloc(env->pool, 512);

    release(b); /* free blocks of several sizes */
    withdraw(a);
    for (size_t size = 512; size < MIB; size *= 2)
        assert_int_equal(fake_segment_of(env->fake, alloc(env->pool, size))->index, 1);
    assert_sound(env->pool, env->fake);
    release(c); /* nor what becomes free afterwards */
    assert_int_equal(fake_segment_of(env->fake, alloc(env->pool, 512))->index, 1);
    assert_int_equal(pool_live_size(a), 512);
}

POOL_CASE(test_withdrawn_broken_segment_serves_no_more)
{
    uint64_t parts[2];

    halve(env, 16 * MIB, parts);
    release(parts[1]);
    withdraw(parts[0]);
    assert_int_equal(fake_segment_of(env->fake, alloc(env->pool, 8 * MIB))->index, 1);
    assert_int_equal(fake_segment_of(env->fake, alloc(env->pool, 2 * MIB))->index, 2);
    release(parts[0]);
    assert_int_equal(env->fake->in_use, 10 * MIB);
}

/* Not in need either: of the driver's refusals some look at every free block, some at large ones for small requests. */
POOL_CASE(test_withdrawn_segment_serves_no_more_after_refusal)
{
    const uint64_t shared = alloc(env->pool, 512);
    uint64_t parts[2], addr = 42;

    halve(env, 16 * MIB, parts);
    release(parts[1]);
    withdraw(parts[0]);
    withdraw(shared);
    env->fake->refuse = true;
    assert_int_equal(pool_alloc(env->pool, 512, &addr), -ENOMEM);
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -ENOMEM);
    assert_int_equal(addr, 42);
}

POOL_CASE(test_withdrawn_idle_segment_serves_no_more_and_goes)
{
    for (int how = 0; how < 3; how++) {
        const uint64_t other = alloc(env->pool, 512), addr = alloc(env->pool, 8 * MIB);

        release(addr);
        withdraw(addr + MIB);
        assert_sound(env->pool, env->fake);
        assert_int_equal(stats_of(env->pool).idle, 8 * MIB);
        assert_int_not_equal(alloc(env->pool, 8 * MIB), addr);
        assert_int_equal(env->fake->in_use, (how + 2) * 8 * MIB + UNIT);
        if (how == 0)
            release(other);
        else
            assert_int_equal(how == 1 ? pool_trim(env->pool, "test") : pool_decay(env->pool, 1000), 8 * MIB);
        assert_null(pool_of(addr));
        assert_int_equal(stats_of(env->pool).idle, how == 0 ? UNIT : 0);
        if (how)
            release(other);
        assert_sound(env->pool, env->fake);
    }
}

/* --- what lives on */

POOL_CASE(test_withdrawn_segment_goes_back_with_its_last_block)
{
    uint64_t addrs[6], base, segment;
    size_t size;

    alloc_all(env->pool, addrs, 6, 1000);
    withdraw(addrs[2]);
    fake_events_clear(env->fake);
    for (size_t i = 0; i < 6; i++) {
        const uint64_t addr = addrs[i * 5 % 6]; /* 0 5 4 3 2 1 */

        assert_int_equal(env->fake->in_use, UNIT);
        assert_int_equal(pool_live_size(addr), 1000);
        assert_ptr_equal(pool_of(addr), env->pool);
        assert_int_equal(pool_block_find(addr + 999, &base, &size, &segment), 0);
        assert_int_equal(base, addr);
        release(addr);
        assert_int_equal(pool_free(addr), i < 5 ? -EINVAL : -ENOENT);
        assert_sound(env->pool, env->fake);
    }
    assert_int_equal(env->fake->in_use, 0);
    assert_string_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->why, "withdrawn");
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 0); /* without hurry */
    assert_int_equal(env->pool->shown.withdrawn, 0);
    assert_int_equal(stats_of(env->pool).held, 0);
    assert_int_equal(stats_of(env->pool).idle, 0);
}

POOL_CASE(test_withdrawn_whole_segment_goes_back_at_free)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 16 * MIB);

    withdraw(addr);
    release(other);
    assert_int_equal(env->fake->in_use, 24 * MIB); /* others stay as they are */
    release(addr);
    assert_int_equal(env->fake->in_use, 16 * MIB);
    assert_int_equal(alloc(env->pool, 16 * MIB), other);
}

POOL_CASE(test_withdraw_twice_is_withdraw_once)
{
    static const size_t sizes[] = {512, 8 * MIB};

    for (size_t i = 0; i < 2; i++) {
        const uint64_t a = alloc(env->pool, sizes[i]);

        for (int again = 0; again < 3; again++)
            withdraw(a + (uint64_t)again * 100);
        release(a);
        assert_int_equal(env->fake->in_use, 0);
        release(alloc(env->pool, sizes[i])); /* its successor is as any other */
        release(alloc(env->pool, sizes[i]));
        assert_int_equal(env->fake->born, 2 * (i + 1));
        assert_sound(env->pool, env->fake);
        pool_trim(env->pool, "test");
    }
    /* the same, of idle ones */
    release(alloc(env->pool, 8 * MIB));
    for (int again = 0; again < 3; again++)
        withdraw(env->fake->segments[0].addr);
    release(alloc(env->pool, 512));
    assert_int_equal(env->fake->in_use, UNIT);
    release(alloc(env->pool, 512)); /* nothing withdrawn is left */
    assert_int_equal(env->fake->in_use, UNIT);
}

/* --- the account of what may be broken into */

POOL_CASE(test_withdraw_of_broken_segment_returns_its_budget)
{
    uint64_t whole[3], parts[2];

    ENV_WITH(env, break_max = BREAK_ONCE(8 * MIB));
    halve(env, 16 * MIB, parts);
    alloc_all(env->pool, whole, 3, 16 * MIB);
    release_all(whole, 3);
    assert_int_equal(fake_segment_of(env->fake, alloc(env->pool, 8 * MIB))->index, 4);
    release(parts[1]);
    withdraw(parts[0]);
    assert_sound(env->pool, env->fake);
    alloc(env->pool, 8 * MIB); /* breaks another one */
    alloc(env->pool, 8 * MIB); /* its other half */
    assert_int_equal(env->fake->born, 5);
    alloc(env->pool, 8 * MIB); /* but only one */
    assert_int_equal(env->fake->born, 6);
    withdraw(parts[0]);
    release(parts[0]); /* nothing is merged, so nothing is returned twice */
    alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->born, 7);
}

/* Of what is not broken into there is nothing to return. */
POOL_CASE(test_withdraw_of_other_segments_leaves_budget_alone)
{
    uint64_t whole[4];
    unsigned int born;

    ENV_WITH(env, break_max = BREAK_ONCE(8 * MIB));
    alloc_all(env->pool, whole, 4, 16 * MIB);
    withdraw(whole[0]);              /* in use */
    withdraw(alloc(env->pool, 512)); /* shared */
    release(alloc(env->pool, 32 * MIB));
    withdraw(env->fake->segments[33].addr); /* idle */
    for (size_t i = 1; i < 4; i++)
        release(whole[i]);
    born = env->fake->born;
    alloc(env->pool, 8 * MIB);
    alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->born, born);
    alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->born, born + 1);
}

/* Free neighbours stay apart there, whatever the order in which they become free. */
POOL_CASE(test_withdrawn_broken_segment_goes_back_after_any_order_of_frees)
{
    uint64_t parts[4];

    for (unsigned int order = 0; order < 256 * 5; order++) {
        const unsigned int at = order % 5; /* frees before it is withdrawn */
        unsigned int next = order / 5;
        bool done[4] = {false};

        release(alloc(env->pool, 16 * MIB));
        alloc_all(env->pool, parts, 4, 4 * MIB);
        for (unsigned int i = 0; i < 4; i++, next /= 4) {
            unsigned int which = next % 4;

            if (i == at)
                withdraw(parts[0]);
            while (done[which])
                which = (which + 1) % 4;
            release(parts[which]);
            done[which] = true;
            assert_sound(env->pool, env->fake);
        }
        if (at == 4) { /* merged again */
            assert_int_equal(env->fake->in_use, 16 * MIB);
            withdraw(parts[3]);
            pool_decay(env->pool, 1000);
        }
        assert_int_equal(env->fake->in_use, 0);
    }
}

/* --- kept blocks, captures */

POOL_CASE(test_withdrawn_with_kept_block_goes_back_when_published)
{
    for (int how = 0; how < 3; how++) {
        const uint64_t a = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);

        env->fake->order_rc = -EBUSY;
        if (how == 1)
            withdraw(a);
        release(a);
        if (how != 1)
            withdraw(a);
        assert_sound(env->pool, env->fake);
        assert_int_equal(env->fake->in_use, 10 * MIB);
        assert_int_equal(pool_decay(env->pool, 0), 0);
        assert_int_equal(pool_trim(env->pool, "test"), 0);
        env->fake->order_rc = 0;
        if (how == 2)
            assert_int_equal(pool_trim(env->pool, "test"), 8 * MIB);
        release(other);
        assert_null(pool_of(a));
        assert_int_equal(env->fake->in_use, UNIT);
        pool_trim(env->pool, "test");
    }
}

/* Nothing is given back by an allocation, but the next free does it. */
POOL_CASE(test_withdrawn_with_kept_block_flushed_goes_back_at_next_free)
{
    const uint64_t a = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);

    env->fake->prompt = true;
    withdraw(a);
    release_unordered(env, a);
    pool_flush(env->pool);
    assert_sound(env->pool, env->fake);
    assert_int_not_equal(alloc(env->pool, 8 * MIB), a);
    release(other);
    assert_null(pool_of(a));
    assert_int_equal(env->fake->in_use, 10 * MIB);
}

POOL_CASE(test_withdraw_during_order_of_last_free_gives_back)
{
    static const size_t sizes[] = {512, 8 * MIB};

    for (size_t i = 0; i < 2; i++) {
        struct call call = {.addr = alloc(env->pool, sizes[i])};

        call_stop(env, FAKE_ORDER, &call, call_free);
        withdraw(call.addr);
        assert_sound(env->pool, env->fake);
        call_go(env, FAKE_ORDER, &call);
        assert_int_equal(call.rc, 0);
        assert_int_equal(env->fake->in_use, 0);
    }
}

POOL_CASE(test_withdraw_during_trim_of_segment_returns_enoent)
{
    struct call trim = {.pool = env->pool, .why = "test"};
    const uint64_t addr = alloc(env->pool, 8 * MIB);
    int rc;

    release(addr);
    call_stop(env, FAKE_FREE, &trim, call_trim);
    rc = pool_withdraw(addr);
    call_go(env, FAKE_FREE, &trim);
    assert_int_equal(rc, -ENOENT);
    release(alloc(env->pool, 512));
    assert_int_equal(env->fake->in_use, UNIT);
}

POOL_CASE(test_withdrawn_while_frozen_stays_until_thaw)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);

    env->fake->frozen = true;
    withdraw(addr);
    release(addr);
    assert_int_equal(pool_decay(env->pool, 0), 0);
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    env->fake->frozen = false;
    release(other);
    assert_int_equal(env->fake->in_use, UNIT);
}

/* --- together with the rest */

POOL_CASE(test_withdrawn_in_use_is_left_by_trim_and_decay)
{
    uint64_t parts[2];

    halve(env, 16 * MIB, parts);
    withdraw(parts[0]);
    release(parts[0]);
    env->fake->scarce = true;
    release(alloc(env->pool, 512));
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    assert_int_equal(pool_decay(env->pool, 0), 0);
    assert_int_equal(env->fake->in_use, 16 * MIB);
    assert_int_equal(pool_live_size(parts[1]), 8 * MIB);
    env->fake->scarce = false;
    release(parts[1]);
    assert_int_equal(env->fake->in_use, 0);
}

POOL_CASE(test_withdrawn_over_limit_is_given_back)
{
    uint64_t a, refused = 42;

    ENV_WITH(env, limit = 16 * MIB);
    a = alloc(env->pool, 8 * MIB);
    alloc(env->pool, 2 * MIB);
    withdraw(a);
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &refused), -EAGAIN);
    release(a);
    alloc(env->pool, 14 * MIB);
    assert_int_equal(stats_of(env->pool).peak_held, 16 * MIB);
}

POOL_CASE(test_destroy_with_withdrawn_segments_loses_them)
{
    struct pool_config config = fake_config(env->fake);

    for (int i = 0; i < 3; i++) { /* descriptors of pool and segments are recycled */
        const uint64_t idle = alloc(env->pool, 8 * MIB), live = alloc(env->pool, 512), part = alloc(env->pool, 4096);
        const unsigned int lost = env->fake->calls[FAKE_SEGMENT_LOST], given = env->fake->calls[FAKE_FREE];

        release(part);
        withdraw(live);
        release(idle);
        withdraw(idle);
        env_pool(env, &config);
        assert_int_equal(env->fake->calls[FAKE_SEGMENT_LOST], lost + 2);
        assert_int_equal(env->fake->calls[FAKE_FREE], given);
        assert_int_equal(pool_withdraw(live), -ENOENT);
        assert_int_equal(pool_free(live), -ENOENT);
        release(alloc(env->pool, 8 * MIB));
        release(alloc(env->pool, 512));
        release(alloc(env->pool, 8 * MIB));
        release(alloc(env->pool, 512));
        assert_int_equal(env->fake->in_use, 10 * MIB);
        assert_int_equal(stats_of(env->pool).idle, 10 * MIB);
    }
}

/* Hundreds of blocks in withdrawn segments, again and again: their descriptors come back, too. */
POOL_CASE(test_withdrawn_segments_of_many_blocks_are_forgotten)
{
    enum { BLOCKS = 600 };
    static uint64_t addrs[BLOCKS];
    uint64_t rng = 1;

    for (int round = 0; round < 100; round++) {
        alloc_all(env->pool, addrs, BLOCKS, 1 + rng_below(&rng, 8 * KIB));
        for (size_t i = 0; i < BLOCKS / 2; i++) {
            release(addrs[i * 2]);
            if (i % 8 == 0)
                withdraw(addrs[i * 2 + 1]);
        }
        assert_sound(env->pool, env->fake);
        for (size_t i = 0; i < BLOCKS / 2; i++)
            release(addrs[i * 2 + 1]);
        assert_sound(env->pool, env->fake);
        assert_int_equal(env->fake->in_use, stats_of(env->pool).idle);
    }
    pool_trim(env->pool, "test");
    assert_int_equal(env->fake->in_use, 0);
}

/* --- pool_segment_find */

static void expect_segment(struct env *env, uint64_t addr)
{
    const struct fake_segment *segment = fake_segment_of(env->fake, addr);
    uint64_t base = 0;
    size_t size = 0;

    assert_int_equal(pool_segment_find(addr, &base, &size), 0);
    assert_int_equal(base, segment->addr);
    assert_int_equal(size, segment->size);
}

static void expect_no_segment(uint64_t addr)
{
    uint64_t base = 42;
    size_t size = 43;

    assert_int_equal(pool_segment_find(addr, &base, &size), -ENOENT);
    assert_int_equal(base, 42);
    assert_int_equal(size, 43);
}

POOL_CASE(test_segment_find_of_segment_in_use_returns_it)
{
    const uint64_t small = alloc(env->pool, 512), large = alloc(env->pool, 8 * MIB + 1);

    expect_segment(env, small);
    expect_segment(env, small - 512);        /* never handed out */
    expect_segment(env, small + UNIT - KIB); /* free */
    expect_segment(env, large);
    expect_segment(env, large + 10 * MIB - 1);
    withdraw(large);
    expect_segment(env, large + 5);
    env->fake->order_rc = -EBUSY; /* kept is freed */
    release(large);
    expect_no_segment(large);
}

POOL_CASE(test_segment_find_of_nothing_in_use_returns_enoent)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB);

    expect_no_segment(0);
    expect_no_segment(addr - 1);
    expect_no_segment(addr + 8 * MIB);
    release(addr);
    expect_no_segment(addr); /* idle */
    withdraw(addr);
    expect_no_segment(addr);
    pool_trim(env->pool, "test");
    expect_no_segment(addr); /* gone */
}
