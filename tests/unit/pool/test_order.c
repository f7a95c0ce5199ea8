/* SPDX-License-Identifier: Apache-2.0 */
/* test_order.c - a freed block comes back only after order() has succeeded; what is kept; captures (frozen). */
#include "unit.h"

POOL_CASE(test_free_during_order_does_not_reuse_block)
{
    static const size_t sizes[] = {512, UNIT - POOL_GRANULE, 8 * MIB};

    for (size_t i = 0; i < 3; i++) {
        struct call call = {.addr = alloc(env->pool, sizes[i])};
        uint64_t meanwhile;

        call_stop(env, FAKE_ORDER, &call, call_free);
        meanwhile = alloc(env->pool, sizes[i]);
        assert_int_not_equal(meanwhile, call.addr);
        assert_int_equal(pool_live_size(call.addr), 0);
        assert_int_equal(pool_free(call.addr), -EINVAL); /* a double free, not a second order */
        assert_sound(env->pool, env->fake);
        call_go(env, FAKE_ORDER, &call);
        assert_int_equal(call.rc, 0);
        assert_int_equal(alloc(env->pool, sizes[i]), call.addr);
    }
}

POOL_CASE(test_trim_during_order_keeps_segment)
{
    struct call call = {.addr = alloc(env->pool, 8 * MIB)};

    call_stop(env, FAKE_ORDER, &call, call_free);
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    assert_int_equal(env->fake->in_use, 8 * MIB);
    call_go(env, FAKE_ORDER, &call);
    assert_int_equal(pool_trim(env->pool, "test"), 8 * MIB);
}

/* A block that is kept back while another thread is inside order(): that call does not cover it. */
POOL_CASE(test_kept_during_order_of_other_thread_stays_kept)
{
    const uint64_t kept = alloc(env->pool, 8 * MIB);
    struct call call = {.addr = alloc(env->pool, 16 * MIB)};

    call_stop(env, FAKE_ORDER, &call, call_free);
    release_unordered(env, kept);
    call_go(env, FAKE_ORDER, &call);
    assert_int_not_equal(alloc(env->pool, 8 * MIB), kept);
    release(call.addr = alloc(env->pool, 16 * MIB));
    assert_int_equal(alloc(env->pool, 8 * MIB), kept);
}

POOL_CASE(test_free_while_busy_keeps_blocks_until_next_success)
{
    uint64_t kept[20], fresh;

    for (size_t i = 0; i < 20; i++)
        kept[i] = alloc(env->pool, (i % 2 + 1) * 2 * MIB);
    fresh = alloc(env->pool, 512);
    env->fake->order_rc = -EBUSY;
    for (size_t i = 0; i < 20; i++) {
        release(kept[i]);
        assert_int_equal(pool_live_size(kept[i]), 0);
        assert_int_equal(pool_free(kept[i]), -EINVAL);
        assert_sound(env->pool, env->fake);
    }
    assert_int_equal(stats_of(env->pool).kept, 20);
    assert_int_equal(stats_of(env->pool).frees, 20);
    assert_int_equal(stats_of(env->pool).order, 0);
    assert_int_equal(stats_of(env->pool).idle, 0);
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    env->fake->order_rc = 0;
    release(fresh);
    assert_sound(env->pool, env->fake);
    assert_int_equal(stats_of(env->pool).live, 0);
    assert_int_equal(stats_of(env->pool).idle, env->fake->in_use);
    assert_int_equal(pool_trim(env->pool, "test"), 20 * 3 * MIB + 2 * MIB);
}

POOL_CASE(test_free_with_order_error_returns_it_and_keeps_block)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);

    env->fake->order_rc = -EIO;
    assert_int_equal(pool_free(addr), -EIO);
    assert_int_equal(pool_live_size(addr), 0);
    assert_int_equal(pool_free(addr), -EINVAL);
    assert_int_not_equal(alloc(env->pool, 8 * MIB), addr);
    assert_int_equal(stats_of(env->pool).kept, 1);
    assert_int_equal(stats_of(env->pool).frees, 1);
    env->fake->order_rc = 0;
    release(other);
    assert_int_equal(alloc(env->pool, 8 * MIB), addr);
}

/* As natively, where a cudaFree that returns the error of a lost context has freed nothing. */
POOL_CASE(test_free_that_never_works_leaves_block_live)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB), kept = alloc(env->pool, 512);

    env->fake->order_rc = -EBUSY;
    release(kept);
    env->fake->order_rc = -ENOTRECOVERABLE;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pool_free(addr), -ENOTRECOVERABLE);
    assert_int_equal(pool_live_size(addr), 8 * MIB);
    assert_int_equal(pool_free(kept), -EINVAL);
    assert_int_equal(stats_of(env->pool).frees, 1);
}

/* A pool that may defer 16 MiB, and nine blocks of 2 MiB. */
static void pool_that_defers(struct env *env, uint64_t addr[9])
{
    ENV_WITH(env, deferred_min = 16 * MIB);
    alloc_all(env->pool, addr, 9, 2 * MIB);
}

/* Frees are deferred up to the budget; the free that exceeds it orders all of them at once. */
POOL_CASE(test_free_with_slack_orders_once_for_many)
{
    uint64_t addr[9];

    pool_that_defers(env, addr);
    for (int i = 0; i < 8; i++) {
        release(addr[i]);
        assert_int_equal(pool_free(addr[i]), -EINVAL);
    }
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    assert_int_equal(stats_of(env->pool).idle, 0);
    assert_int_equal(stats_of(env->pool).kept, 0);
    release(addr[8]);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 1);
    assert_int_equal(stats_of(env->pool).frees, 9);
    assert_int_equal(stats_of(env->pool).idle, 9 * 2 * MIB);
    assert_sound(env->pool, env->fake);
    /* The next ones wait again. */
    release(alloc(env->pool, 2 * MIB));
    assert_int_equal(env->fake->calls[FAKE_ORDER], 1);
    /* Waiting blocks are not lost to a request that the driver refuses. */
    env->fake->capacity = 9 * 2 * MIB;
    assert_int_not_equal(alloc(env->pool, 18 * MIB), 0);
}

static void free_elsewhere(uint64_t addr)
{
    struct call call = {.addr = addr};

    call_start(&call, call_free);
    call_join(&call);
    assert_int_equal(call.rc, 0);
}

static enum pool_order_how how_of_trim(struct env *env)
{
    pool_trim(env->pool, "test");
    return env->fake->how;
}

/* order() is told whether the calling thread has freed all deferred blocks. */
POOL_CASE(test_order_of_deferred_frees_says_whose_they_are)
{
    uint64_t addr[9];

    pool_that_defers(env, addr);
    release(addr[0]);
    release(addr[1]);
    assert_int_equal(how_of_trim(env), POOL_ORDER_OWN);
    free_elsewhere(addr[2]);
    assert_int_equal(how_of_trim(env), POOL_ORDER_DEVICE);
    release(addr[3]);
    free_elsewhere(addr[4]);
    assert_int_equal(how_of_trim(env), POOL_ORDER_DEVICE);
    /* A call that fails leaves the blocks to the threads that freed them. */
    env->fake->order_rc = -EBUSY;
    free_elsewhere(addr[5]);
    assert_int_equal(how_of_trim(env), POOL_ORDER_DEVICE);
    env->fake->order_rc = 0;
    assert_int_equal(how_of_trim(env), POOL_ORDER_DEVICE);
    env->fake->order_rc = -EBUSY;
    release(addr[6]);
    assert_int_equal(how_of_trim(env), POOL_ORDER_OWN);
    env->fake->order_rc = 0;
    assert_int_equal(how_of_trim(env), POOL_ORDER_OWN);
    release(addr[7]);
    assert_int_equal(how_of_trim(env), POOL_ORDER_OWN);
    assert_int_equal(pool_free_async(addr[8], POOL_FREED_UNMARKED), 0);
    assert_int_equal(how_of_trim(env), POOL_ORDER_OWN);
    assert_int_equal(pool_free_async(alloc(env->pool, 2 * MIB), POOL_FREED_UNMARKED), 0);
    release(alloc(env->pool, 2 * MIB));
    assert_int_equal(how_of_trim(env), POOL_ORDER_OWN);
    free_elsewhere(alloc(env->pool, 2 * MIB));
    release(alloc(env->pool, 2 * MIB));
    assert_int_equal(how_of_trim(env), POOL_ORDER_DEVICE);
}

static void trim_first(struct fake *fake)
{
    pool_trim(fake->user, "first");
}

/* In release_trim, and then before the deferred blocks are taken. */
static void trim_second(struct fake *fake)
{
    fake->frozen_hook = trim_first;
}

/* Nothing is ordered for deferred blocks that another call has taken meanwhile. */
POOL_CASE(test_nothing_left_to_order)
{
    uint64_t addr[9];

    pool_that_defers(env, addr);
    release(addr[0]);
    env->fake->user = env->pool;
    env->fake->frozen_hook = trim_second;
    pool_trim(env->pool, "second");
    assert_null(env->fake->frozen_hook);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 1);
    assert_sound(env->pool, env->fake);
}

POOL_CASE(test_free_with_slack_in_percent_of_the_peak)
{
    struct pool_config config = fake_config(env->fake);
    uint64_t addr[40];

    config.deferred_min = 2 * MIB;
    config.deferred_percent = 20;
    env_pool(env, &config);
    for (int i = 0; i < 40; i++)
        addr[i] = alloc(env->pool, 2 * MIB); /* 80 / 120 * 20 may wait */
    release_all(addr, 6);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    for (int i = 6; i < 20; i++)
        release(addr[i]);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 2);
}

/* A large block is ordered at once, with all that waited: few could wait beside it. */
POOL_CASE(test_large_blocks_wait_for_nobody)
{
    uint64_t addr, large;

    ENV_WITH(env, deferred_min = 32 * MIB);
    addr = alloc(env->pool, 8 * MIB);
    large = alloc(env->pool, 10 * MIB);
    release(addr);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    release(large);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 1);
    assert_int_equal(alloc(env->pool, 8 * MIB), addr);
    assert_int_equal(alloc(env->pool, 10 * MIB), large);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 2);
}

/* Kept blocks do not count as in use, or the slack would feed itself. */
POOL_CASE(test_slack_is_of_what_is_in_use)
{
    static const struct {
        unsigned int percent;
        size_t most;
    } cases[] = {{10, 112}, {50, 152}, {100, 202}, {300, 402}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pool_config config = fake_config(env->fake);
        uint64_t addr[50];

        config.deferred_min = 1;
        config.deferred_percent = cases[i].percent;
        env_pool(env, &config);
        env->fake->prompt = false;
        alloc_all(env->pool, addr, 50, 2 * MIB);
        for (int n = 0; n < 2000; n++) {
            /* No two of a size in a row, so that no request finds what was freed last. */
            release(addr[n % 50]);
            addr[n % 50] = alloc(env->pool, 2 * MIB);
        }
        assert_true(stats_of(env->pool).peak_held <= cases[i].most * MIB);
        assert_sound(env->pool, env->fake);
        release_all(addr, 50);
        pool_trim(env->pool, "test");
        assert_int_equal(stats_of(env->pool).held, 0);
    }
}

/* A request that finds nothing asks what was kept again and again, however it was freed. */
POOL_CASE(test_slack_with_frees_that_wait_for_nothing_does_not_grow)
{
    struct pool_config config = fake_config(env->fake);

    config.deferred_min = 32 * MIB;
    config.deferred_percent = 10;
    env->fake->prompt = true; /* the device is idle */
    env_pool(env, &config);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(pool_free_later(alloc(env->pool, 10 * MIB)), 0);
    assert_true(stats_of(env->pool).peak_held <= 60 * MIB);
}

POOL_CASE(test_context_that_failed_defers_nothing)
{
    uint64_t addr;

    ENV_WITH(env, deferred_min = 32 * MIB);
    addr = alloc(env->pool, MIB);
    pool_defer_never(env->pool);
    env->fake->order_rc = -ENOTRECOVERABLE;
    assert_int_equal(pool_free(addr), -ENOTRECOVERABLE);
}

POOL_CASE(test_alloc_prompt_publishes_kept)
{
    uint64_t addr;

    env->fake->prompt = true;
    addr = alloc(env->pool, 8 * MIB);
    env->fake->order_rc = -EBUSY;
    release(addr);
    assert_int_not_equal(alloc(env->pool, 8 * MIB), addr); /* still busy */
    env->fake->order_rc = 0;
    assert_int_equal(alloc(env->pool, 8 * MIB), addr);
}

POOL_CASE(test_alloc_prompt_without_kept_does_not_order)
{
    env->fake->prompt = true;
    alloc(env->pool, 8 * MIB);
    alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
}

POOL_CASE(test_alloc_not_prompt_does_not_order)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB);

    release_unordered(env, addr);
    assert_int_not_equal(alloc(env->pool, 8 * MIB), addr);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 1);
}

POOL_CASE(test_frozen_miss_returns_eagain)
{
    uint64_t addr = 42;

    env->fake->frozen = true;
    assert_int_equal(pool_alloc(env->pool, 512, &addr), -EAGAIN);
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
    assert_int_equal(addr, 42);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 0);
    assert_int_equal(stats_of(env->pool).oom, 0);
    assert_int_equal(stats_of(env->pool).failed, 2);
    env->fake->frozen = false;
    alloc(env->pool, 512);
}

/* Once the driver has refused the request, too, free memory serves it, whatever that keeps from going back. */
POOL_CASE(test_frozen_and_refused_takes_what_is_free)
{
    const size_t sizes[] = {4 * MIB, 64 * KIB};
    uint64_t halves[2], addr = 42;

    ENV_WITH(env, break_max = BREAK_ONCE(8 * MIB));
    release(alloc(env->pool, 16 * MIB));
    alloc_all(env->pool, halves, 2, 8 * MIB);
    release(halves[1]);
    env->fake->frozen = true;
    fake_events_clear(env->fake);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(pool_alloc(env->pool, sizes[i], &addr), -EAGAIN);
        assert_int_equal(pool_alloc_refused(env->pool, sizes[i], &addr), 0);
        assert_true(addr >= halves[1] && addr + sizes[i] <= halves[1] + 8 * MIB);
        assert_int_equal(pool_live_size(addr), sizes[i]);
        assert_int_equal(pool_alloc_refused(env->pool, 16 * MIB, &addr), -ENOENT);
        assert_sound(env->pool, env->fake);
    }
    assert_int_equal(env->fake->events_count, 0);
    assert_int_equal(stats_of(env->pool).hits, 4);
    assert_int_equal(stats_of(env->pool).allocs, 5);
}

POOL_CASE(test_frozen_and_refused_breaks_an_idle_segment)
{
    uint64_t idle = alloc(env->pool, 64 * MIB), addr[3];

    release(idle);
    env->fake->frozen = true;
    assert_int_equal(pool_alloc_refused(env->pool, 20 * MIB, &addr[0]), 0);
    assert_int_equal(pool_alloc_refused(env->pool, 64 * KIB, &addr[1]), 0);
    assert_int_equal(pool_alloc_refused(env->pool, 8 * MIB, &addr[2]), 0);
    for (size_t i = 0; i < 3; i++)
        assert_true(addr[i] >= idle && addr[i] < idle + 64 * MIB);
    assert_sound(env->pool, env->fake);
}

POOL_CASE(test_frozen_hit_is_served)
{
    const uint64_t small = alloc(env->pool, 512), large = alloc(env->pool, 8 * MIB);

    release(large);
    env->fake->frozen = true;
    assert_int_equal(alloc(env->pool, 8 * MIB), large);
    assert_int_equal(alloc(env->pool, 512), small + 512);
}

POOL_CASE(test_frozen_trim_returns_zero)
{
    release(alloc(env->pool, 8 * MIB));
    env->fake->frozen = true;
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    assert_int_equal(env->fake->calls[FAKE_TRIM], 0);
    env->fake->frozen = false;
    assert_int_equal(pool_trim(env->pool, "test"), 8 * MIB);
}

POOL_CASE(test_frozen_over_limit_gives_nothing_back)
{
    uint64_t addr;

    ENV_WITH(env, limit = 8 * MIB);
    release(alloc(env->pool, 8 * MIB));
    env->fake->frozen = true;
    assert_int_equal(pool_alloc(env->pool, 16 * MIB, &addr), -EAGAIN);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
}

/* --- the pool's lock is free while a function of a table runs: another thread can use the pool meanwhile */

static void use_during(struct env *env, enum fake_kind kind, struct call *call, void *(*function)(void *))
{
    const uint64_t other = alloc(env->pool, 700);
    char text[64];

    call_stop(env, kind, call, function);
    /* Any of these would hang, and alarm() ends the test. */
    stats_of(env->pool);
    pool_check(env->pool, text, sizeof(text));
    if (kind != FAKE_ORDER)
        release(other);
    alloc(env->pool, 700);
    call_go(env, kind, call);
}

POOL_CASE(test_lock_during_calls_is_free)
{
    static const enum fake_kind of_alloc[] = {FAKE_ALLOC, FAKE_SEGMENT_ALLOC};
    static const enum fake_kind of_trim[] = {FAKE_FREE, FAKE_SEGMENT_FREE, FAKE_TRIM};

    for (size_t i = 0; i < 2; i++)
        use_during(env, of_alloc[i], &(struct call){.pool = env->pool, .size = 8 * MIB}, call_alloc);
    use_during(env, FAKE_ORDER, &(struct call){.addr = alloc(env->pool, 8 * MIB)}, call_free);
    for (size_t i = 0; i < 3; i++) {
        struct call call = {.pool = env->pool, .why = "test"};

        release(alloc(env->pool, 8 * MIB));
        use_during(env, of_trim[i], &call, call_trim);
        assert_int_equal(call.released, 8 * MIB);
    }
}

/* --- what others see of a segment that is coming or going */

POOL_CASE(test_alloc_before_segment_is_announced_does_not_use_it)
{
    struct call call = {.pool = env->pool, .size = 512};
    uint64_t addr;

    call_stop(env, FAKE_SEGMENT_ALLOC, &call, call_alloc);
    addr = alloc(env->pool, 512);
    call_go(env, FAKE_SEGMENT_ALLOC, &call);
    assert_int_equal(fake_segment_of(env->fake, call.addr)->index, 0);
    assert_int_equal(fake_segment_of(env->fake, addr)->index, 1);
}

POOL_CASE(test_alloc_during_trim_does_not_use_going_segment)
{
    struct call call = {.pool = env->pool, .why = "test"};
    const uint64_t going = alloc(env->pool, 8 * MIB);
    uint64_t addr;

    release(going);
    call_stop(env, FAKE_SEGMENT_FREE, &call, call_trim);
    addr = alloc(env->pool, 8 * MIB);
    assert_int_not_equal(addr, going);
    assert_int_equal(pool_free(going), -ENOENT);
    assert_null(pool_of(going));
    call_go(env, FAKE_SEGMENT_FREE, &call);
    assert_int_equal(call.released, 8 * MIB);
    assert_int_equal(pool_live_size(addr), 8 * MIB);
}

/* pool_check and pool_stats_get may be called from any thread at any time. */
POOL_CASE(test_check_during_backend_alloc_finds_no_fault)
{
    struct call call = {.pool = env->pool, .size = 8 * MIB};
    char text[128] = "";

    call_stop(env, FAKE_ALLOC, &call, call_alloc);
    assert_int_equal(stats_of(env->pool).held, 0); /* bytes in segments */
    if (pool_check(env->pool, text, sizeof(text)))
        fail_msg("pool_check while another thread asks the driver: %s", text);
    call_go(env, FAKE_ALLOC, &call);
}
