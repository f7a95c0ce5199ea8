/* SPDX-License-Identifier: Apache-2.0 */
/* test_ladder.c - what the pool does when the driver refuses, and when its limit is reached. */
#include "pool_state.h"
#include "unit.h"

POOL_CASE(test_refusal_with_idle_segments_gives_them_back_and_succeeds)
{
    const struct fake_event *event;

    env->fake->capacity = 64 * MIB;
    release(alloc(env->pool, 40 * MIB));
    release(alloc(env->pool, 512));
    fake_events_clear(env->fake);
    assert_int_equal(offset_of(env->fake, alloc(env->pool, 64 * MIB)), 0);
    assert_int_equal(env->fake->in_use, 64 * MIB);
    assert_int_equal(env->fake->events[0].kind, FAKE_ALLOC); /* first ask, then give back */
    event = fake_event_of(env->fake, FAKE_TRIM, 0);
    assert_non_null(event);
    assert_string_equal(event->why, "oom");
    assert_int_equal(event->size, 42 * MIB);
    assert_int_equal(stats_of(env->pool).oom, 0);
    assert_int_equal(stats_of(env->pool).misses, 3);
    assert_int_equal(stats_of(env->pool).failed, 0);
}

/* No memory given back could make more than the capacity fit; all of it may. */
POOL_CASE(test_request_of_the_whole_capacity)
{
    uint64_t addr;

    env->fake->capacity = 64 * MIB;
    ENV_WITH(env, capacity = 64 * MIB);
    assert_int_equal(pool_alloc(env->pool, 64 * MIB + 1, &addr), -EAGAIN);
    assert_int_equal(env->fake->events_count, 0);
    alloc(env->pool, 64 * MIB);
}

POOL_CASE(test_refusal_of_small_gives_large_idle_segment_back)
{
    env->fake->capacity = 8 * MIB;
    release(alloc(env->pool, 8 * MIB));
    alloc(env->pool, 512);
    assert_int_equal(env->fake->in_use, 2 * MIB);
}

POOL_CASE(test_refusal_for_good_returns_enomem_and_counts_once)
{
    uint64_t live = alloc(env->pool, 4 * MIB), addr = 42;

    release(alloc(env->pool, 6 * MIB));
    env->fake->refuse = true;
    assert_int_equal(pool_alloc(env->pool, 10 * MIB + 3, &addr), -ENOMEM);
    assert_int_equal(addr, 42);
    assert_int_equal(stats_of(env->pool).oom, 1);
    assert_int_equal(stats_of(env->pool).failed, 1);
    assert_int_equal(stats_of(env->pool).held, 4 * MIB); /* the idle 6 MiB went first */
    assert_int_equal(pool_live_size(live), 4 * MIB);
    env->fake->refuse = false;
    alloc(env->pool, 10 * MIB + 3);
}

POOL_CASE(test_refusal_does_not_count_as_held)
{
    uint64_t addr;

    alloc(env->pool, 4 * MIB);
    env->fake->refuse = true;
    assert_int_equal(pool_alloc(env->pool, 1024 * MIB, &addr), -ENOMEM);
    assert_int_equal(stats_of(env->pool).held, 4 * MIB);
    assert_int_equal(stats_of(env->pool).peak_held, 4 * MIB); /* bytes in segments, and there was never more */
}

/* A program that tries for most of the card, in vain, would otherwise have no bound any more. */
POOL_CASE(test_refusal_leaves_the_bound_as_it_was)
{
    uint64_t addr;

    ENV_WITH(env, excess_min = 32 * MIB);
    alloc(env->pool, 10 * MIB);
    env->fake->refuse = true;
    assert_int_equal(pool_alloc(env->pool, 1024 * MIB, &addr), -ENOMEM);
    env->fake->refuse = false;
    assert_int_equal(env->pool->native_peak, 10 * MIB);
    assert_int_equal(env->pool->used_peak, 10 * MIB);
    release(alloc(env->pool, 100 * MIB));
    alloc(env->pool, 120 * MIB);
    assert_int_equal(stats_of(env->pool).held, 130 * MIB); /* 100 MiB idle would be too much */
    assert_int_equal(env->pool->native_peak, 130 * MIB);
}

/* Breaking it would serve this request too, but could keep the rest of it from a later one. */
POOL_CASE(test_refusal_with_big_idle_segment_gives_it_back)
{
    env->fake->capacity = 64 * MIB;
    release(alloc(env->pool, 64 * MIB));
    alloc(env->pool, 2 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 1);
    assert_int_equal(stats_of(env->pool).oom, 0);
    assert_int_equal(stats_of(env->pool).held, 2 * MIB);
}

/* Nine free blocks of one size class, none of them in an idle segment, nothing else free, and only the one freed first
 * is large enough. Ask for its size. */
static void fitting_block_behind_others(struct env *env, size_t less, size_t fitting, size_t between)
{
    uint64_t addrs[9], addr;

    for (size_t i = 0; i < 9; i++) {
        addrs[i] = alloc(env->pool, i ? less : fitting);
        alloc(env->pool, between); /* keeps it from merging, and its segment in use */
    }
    env->fake->refuse = true;
    while (pool_alloc(env->pool, fitting, &addr) == 0)
        ;
    release_all(addrs, 9);
    assert_int_equal(pool_alloc(env->pool, fitting, &addr), 0);
    assert_int_equal(addr, addrs[0]);
}

POOL_CASE(test_refusal_with_fitting_small_block_behind_others_uses_it)
{
    fitting_block_behind_others(env, 100 * 512, 103 * 512, 512);
}

POOL_CASE(test_refusal_with_fitting_large_block_behind_others_uses_it)
{
    release(alloc(env->pool, 640 * MIB)); /* one segment to carve all of them from */
    alloc(env->pool, 80 * MIB);           /* breaks it: from now on anything may */
    fitting_block_behind_others(env, 48 * MIB, 49 * MIB, 2 * MIB);
}

POOL_CASE(test_refusal_with_kept_blocks_publishes_them)
{
    uint64_t addr;

    env->fake->prompt = true;
    addr = alloc(env->pool, 8 * MIB);
    env->fake->capacity = 8 * MIB;
    release_unordered(env, addr);
    /* Not the size of the kept block: it must be published, and its segment go. */
    alloc(env->pool, 512);
    assert_int_equal(env->fake->in_use, 2 * MIB);
    assert_int_equal(stats_of(env->pool).live, 512);
}

/* Not prompt: an order() that may wait, as the last resort. */
POOL_CASE(test_refusal_not_prompt_with_kept_blocks_publishes_them)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB);

    env->fake->capacity = 8 * MIB;
    release_unordered(env, addr);
    assert_int_equal(alloc(env->pool, 8 * MIB), addr);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    assert_int_equal(stats_of(env->pool).oom, 0);
}

POOL_CASE(test_refusal_with_kept_blocks_that_stay_kept_returns_enomem)
{
    uint64_t addr = alloc(env->pool, 8 * MIB);

    env->fake->capacity = 8 * MIB;
    env->fake->order_rc = -EBUSY;
    release(addr);
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -ENOMEM);
    assert_int_equal(env->fake->in_use, 8 * MIB);
}

POOL_CASE(test_refusal_at_call_k_still_serves_all)
{
    struct pool_config config = fake_config(env->fake);

    for (unsigned int k = 1; k <= 12; k++) {
        env_pool(env, &config);
        env->fake->calls[FAKE_ALLOC] = 0;
        env->fake->fail_at = k;
        env->fake->fail_rc = -ENOMEM;
        for (int i = 0; i < 10; i++) {
            const uint64_t addr = alloc(env->pool, i % 2 ? 300 * KIB : 5 * MIB); /* tried again after the refusal */

            if (i % 3 == 0)
                release(addr);
            assert_sound(env->pool, env->fake);
        }
    }
    env->fake->fail_at = 0;
}

POOL_CASE(test_backend_error_at_call_k_returns_eagain_at_once)
{
    static const int errors[] = {-EBUSY, -EIO, -EAGAIN, -EINVAL};
    uint64_t addr = 42;

    release(alloc(env->pool, 4 * MIB));
    for (size_t i = 0; i < 4; i++) {
        const unsigned int asked = env->fake->calls[FAKE_ALLOC];

        env->fake->fail_at = asked + 1;
        env->fake->fail_rc = errors[i];
        assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
        assert_int_equal(addr, 42);
        assert_int_equal(env->fake->calls[FAKE_ALLOC], asked + 1);
        assert_int_equal(env->fake->calls[FAKE_FREE], 0);
        assert_int_equal(stats_of(env->pool).oom, 0);
        assert_sound(env->pool, env->fake);
    }
    assert_int_equal(stats_of(env->pool).held, 4 * MIB);
    assert_int_equal(stats_of(env->pool).failed, 4);
}

POOL_CASE(test_backend_error_of_small_request_asks_once)
{
    uint64_t addr;

    while (env->fake->in_use < 256 * MIB)
        alloc(env->pool, MIB);
    env->fake->refuse = true; /* use up what is free */
    while (pool_alloc(env->pool, MIB, &addr) == 0)
        ;
    env->fake->refuse = false;
    env->fake->fail_at = env->fake->calls[FAKE_ALLOC] + 1;
    env->fake->fail_rc = -EBUSY;
    assert_int_equal(pool_alloc(env->pool, MIB, &addr), -EAGAIN);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], env->fake->fail_at);
}

POOL_CASE(test_refusal_of_small_comes_when_capacity_is_used_up)
{
    uint64_t addr;

    while (env->fake->in_use < 256 * MIB)
        alloc(env->pool, MIB);
    env->fake->capacity = env->fake->in_use + 3 * UNIT;
    while (pool_alloc(env->pool, MIB, &addr) == 0)
        ;
    assert_int_equal(env->fake->in_use, env->fake->capacity);
}

/* --- the limit */

POOL_CASE(test_limit_is_never_passed)
{
    uint64_t addr = 42;

    ENV_WITH(env, limit = 10 * MIB);
    alloc(env->pool, 8 * MIB);
    assert_int_equal(pool_alloc(env->pool, 4 * MIB, &addr), -EAGAIN);
    assert_int_equal(pool_alloc(env->pool, 12 * MIB, &addr), -EAGAIN);
    assert_int_equal(pool_alloc(env->pool, (size_t)1 << 46, &addr), -EAGAIN);
    assert_int_equal(addr, 42);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 1); /* the driver was not asked */
    assert_int_equal(stats_of(env->pool).oom, 0);
    assert_int_equal(stats_of(env->pool).failed, 3);
    alloc(env->pool, 2 * MIB); /* exactly the limit */
    assert_int_equal(stats_of(env->pool).held, 10 * MIB);
    assert_int_equal(pool_alloc(env->pool, 512, &addr), -EAGAIN);
    assert_int_equal(stats_of(env->pool).peak_held, 10 * MIB);
}

POOL_CASE(test_limit_with_idle_segments_gives_them_back)
{
    ENV_WITH(env, limit = 10 * MIB);
    release(alloc(env->pool, 8 * MIB));
    fake_events_clear(env->fake);
    alloc(env->pool, 10 * MIB);
    assert_string_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->why, "limit");
    assert_int_equal(env->fake->in_use, 10 * MIB);
    assert_int_equal(stats_of(env->pool).peak_held, 10 * MIB);
}

POOL_CASE(test_limit_below_unit_refuses_all)
{
    uint64_t addr;

    ENV_WITH(env, limit = UNIT - 1);
    assert_int_equal(pool_alloc(env->pool, 1, &addr), -EAGAIN);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 0);
}

POOL_CASE(test_limit_during_backend_alloc_counts_what_is_asked_for)
{
    struct call call = {.size = 8 * MIB};
    uint64_t addr;
    int rc;

    ENV_WITH(env, limit = 10 * MIB);
    call.pool = env->pool;
    call_stop(env, FAKE_ALLOC, &call, call_alloc);
    rc = pool_alloc(env->pool, 8 * MIB, &addr);
    call_go(env, FAKE_ALLOC, &call);
    assert_int_equal(call.rc, 0);
    assert_int_equal(rc, -EAGAIN);
    assert_int_equal(env->fake->peak, 8 * MIB);
}
