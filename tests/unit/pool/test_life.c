/* SPDX-License-Identifier: Apache-2.0 */
/* test_life.c - several pools, and the end of one. */
#include "unit.h"

POOL_CASE(test_destroy_reports_every_segment_lost)
{
    struct pool_config config = fake_config(env->fake);
    uint64_t addrs[4], base, segment;
    size_t size;

    addrs[0] = alloc(env->pool, 512);
    addrs[1] = alloc(env->pool, 8 * MIB);
    addrs[2] = alloc(env->pool, 16 * MIB);
    addrs[3] = alloc(env->pool, 32 * MIB);
    release(addrs[2]);
    env->fake->order_rc = -EBUSY;
    release(addrs[3]);
    fake_events_clear(env->fake);
    env_pool(env, &config);
    assert_int_equal(env->fake->calls[FAKE_SEGMENT_LOST], 4);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    assert_int_equal(env->fake->calls[FAKE_SEGMENT_FREE], 0);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 2);
    assert_int_equal(env->fake->in_use, 0); /* the fake checks addresses and sizes */
    for (int i = 0; i < 4; i++) {
        assert_null(pool_of(addrs[i]));
        assert_int_equal(pool_live_size(addrs[i]), 0);
        assert_int_equal(pool_free(addrs[i]), -ENOENT);
        assert_int_equal(pool_block_find(addrs[i], &base, &size, &segment), -ENOENT);
    }
}

POOL_CASE(test_destroy_empty_pool_reports_nothing)
{
    struct pool_config config = fake_config(env->fake);

    env_pool(env, &config);
    release(alloc(env->pool, 8 * MIB));
    pool_trim(env->pool, "test");
    env_pool(env, &config);
    assert_int_equal(env->fake->calls[FAKE_SEGMENT_LOST], 0);
}

POOL_CASE(test_create_after_destroy_starts_afresh)
{
    static const struct pool_stats zero;
    struct pool_config config = fake_config(env->fake);
    struct pool_stats stats;
    uint64_t old[3], addr;

    config.limit = 64 * MIB;
    env->fake->prompt = true;
    env_pool(env, &config);
    old[0] = alloc(env->pool, 512);
    old[1] = alloc(env->pool, 8 * MIB);
    old[2] = alloc(env->pool, 16 * MIB);
    env->fake->order_rc = -EBUSY;
    release(old[2]); /* kept: the next pool must not inherit it */
    config.limit = 0;
    env_pool(env, &config);
    env->fake->order_rc = 0;
    stats = stats_of(env->pool);
    assert_memory_equal(&stats, &zero, sizeof(stats));
    assert_sound(env->pool, env->fake);
    /* The fake hands the same addresses out again. */
    addr = alloc(env->pool, 512);
    assert_int_equal(addr, old[0]);
    assert_int_equal(pool_free(old[1]), -ENOENT);
    assert_int_equal(pool_free(old[2]), -ENOENT);
    assert_int_equal(alloc(env->pool, 128 * MIB), old[1]); /* over the old limit */
    assert_int_equal(pool_free(old[2]), -EINVAL);
    assert_int_equal(pool_live_size(old[2]), 0);
    release(addr);
    assert_int_equal(stats_of(env->pool).live, 128 * MIB);
}

/* Segments that a pool had split when it went do not count against the next pool. */
POOL_CASE(test_create_after_destroy_has_broken_nothing)
{
    struct pool_config config = fake_config(env->fake);

    config.break_max = BREAK_ONCE(8 * MIB);
    for (int i = 0; i < 3; i++) {
        env_pool(env, &config);
        release(alloc(env->pool, 16 * MIB));
        alloc(env->pool, 8 * MIB);
        assert_int_equal(stats_of(env->pool).held, 16 * MIB);
    }
}

POOL_CASE(test_create_after_destroy_recycles_descriptor)
{
    struct pool_config config = fake_config(env->fake);
    struct pool *const old = env->pool;

    for (int i = 0; i < 1000; i++) {
        env_pool(env, &config);
        assert_ptr_equal(env->pool, old);
        for (int j = 0; j < 10; j++)
            alloc(env->pool, 512);
    }
}

POOL_CASE(test_destroy_one_pool_leaves_other_alone)
{
    struct pool_config config = fake_config(env->fake);
    struct pool *second = pool_new(&config); /* over the same driver, so that segments touch */
    const uint64_t first_addr = alloc(env->pool, 8 * MIB), second_addr = alloc(second, 8 * MIB);

    assert_int_equal(second_addr, first_addr + 8 * MIB);
    pool_destroy(second);
    assert_int_equal(pool_free(second_addr), -ENOENT);
    assert_int_equal(pool_live_size(first_addr), 8 * MIB);
    assert_ptr_equal(pool_of(first_addr + 8 * MIB - 1), env->pool);
    release(first_addr);
}

POOL_CASE(test_two_pools_free_goes_to_owner)
{
    struct fake *fake = fake_new();
    struct pool_config config = fake_config(fake);
    struct pool *second = pool_new(&config);
    const uint64_t a = alloc(env->pool, 8 * MIB), b = alloc(second, 8 * MIB);

    assert_ptr_equal(pool_of(a), env->pool);
    assert_ptr_equal(pool_of(b), second);
    assert_ptr_equal(pool_arg(pool_of(a)), env->fake);
    assert_ptr_equal(pool_arg(pool_of(b)), fake);
    release(b);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    assert_int_equal(fake->calls[FAKE_ORDER], 1);
    assert_int_equal(stats_of(env->pool).frees, 0);
    assert_int_equal(stats_of(second).frees, 1);
    assert_int_not_equal(alloc(env->pool, 8 * MIB), b);
    assert_int_equal(alloc(second, 8 * MIB), b);
    assert_int_equal(pool_trim(second, "test"), 0);
    assert_sound(second, fake);
    pool_destroy(second);
    fake_delete(fake);
}

POOL_CASE(test_two_pools_kept_block_waits_for_own_order)
{
    struct fake *fake = fake_new();
    struct pool_config config = fake_config(fake);
    struct pool *second = pool_new(&config);
    const uint64_t kept = alloc(env->pool, 8 * MIB);

    env->fake->order_rc = -EBUSY;
    release(kept);
    release(alloc(second, 8 * MIB)); /* that is another device */
    assert_int_not_equal(alloc(env->pool, 8 * MIB), kept);
    pool_destroy(second);
    fake_delete(fake);
}

/* The driver knows best: what it hands out somebody must have given back past us, with everything in it. */
POOL_CASE(test_segment_that_the_driver_hands_out_again_is_forgotten)
{
    struct fake *fake = fake_new();
    struct pool_config config = fake_config(fake);
    struct pool *second = pool_new(&config);
    const uint64_t a = alloc(env->pool, 8 * MIB), inside = a + 4 * MIB;

    fake->base = env->fake->base + 4 * MIB;
    assert_int_equal(alloc(second, 8 * MIB), inside);
    assert_ptr_equal(pool_of(inside), second);
    assert_null(pool_of(a));
    assert_int_equal(pool_free(a), -ENOENT);
    assert_int_equal(env->fake->calls[FAKE_SEGMENT_LOST], 1);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    assert_int_equal(stats_of(env->pool).held, 0);
    assert_int_equal(stats_of(env->pool).live, 0);
    assert_int_equal(stats_of(env->pool).idle, 0);
    assert_sound(env->pool, env->fake);
    assert_sound(second, fake);
    release(inside);
    pool_destroy(second);
    fake_delete(fake);
}

/* So is what was freed and is kept back, beside another such block or alone. */
static void kept_is_forgotten(struct env *env, bool alone)
{
    struct fake *fake = fake_new();
    struct pool_config config = fake_config(fake);
    struct pool *second = pool_new(&config);
    const uint64_t a = alloc(env->pool, MIB), b = alloc(env->pool, MIB - 512), other = alloc(env->pool, 4 * MIB);

    env->fake->order_rc = -EBUSY;
    release(b);
    if (!alone)
        release(other);
    fake->base = env->fake->base;
    assert_int_equal(alloc(second, 2 * MIB), a & ~(uint64_t)(2 * MIB - 1));
    assert_ptr_equal(pool_of(a), second);
    assert_int_equal(stats_of(env->pool).live, 4 * MIB);
    assert_sound(env->pool, env->fake);
    env->fake->order_rc = 0;
    if (alone)
        release(other);
    assert_int_equal(pool_trim(env->pool, "test"), 4 * MIB);
    assert_sound(env->pool, env->fake);
    assert_sound(second, fake);
    pool_destroy(second);
    fake_delete(fake);
}

POOL_CASE(test_segment_with_a_kept_block_that_is_handed_out_again_is_forgotten)
{
    kept_is_forgotten(env, /* alone: */ false);
}

POOL_CASE(test_segment_with_the_kept_block_that_is_handed_out_again_is_forgotten)
{
    kept_is_forgotten(env, /* alone: */ true);
}

/* But not while a thread is freeing a block of it. */
POOL_CASE(test_segment_that_is_handed_out_again_during_a_free_is_refused)
{
    struct fake *fake = fake_new();
    struct pool_config config = fake_config(fake);
    struct pool *second = pool_new(&config);
    const uint64_t a = alloc(env->pool, MIB), kept = alloc(env->pool, MIB / 2);
    struct call call = {.addr = alloc(env->pool, MIB / 4)};
    uint64_t addr;

    release_unordered(env, kept);

    call_stop(env, FAKE_ORDER, &call, call_free);
    fake->base = env->fake->base;
    assert_int_equal(pool_alloc(second, 8 * MIB, &addr), -EAGAIN);
    assert_int_equal(fake->in_use, 0); /* given back */
    assert_ptr_equal(pool_of(a), env->pool);
    assert_int_equal(pool_live_size(a), MIB);
    assert_int_equal(stats_of(second).held, 0);
    assert_int_equal(pool_free(kept), -EINVAL);
    assert_sound(second, fake);
    call_go(env, FAKE_ORDER, &call);
    release(a);
    assert_int_equal(pool_trim(env->pool, "test"), 2 * MIB);
    assert_sound(env->pool, env->fake);
    pool_destroy(second);
    fake_delete(fake);
}

/* Addresses beyond what the map holds. */
POOL_CASE(test_segment_beyond_48_bits_is_refused)
{
    static const uint64_t bases[] = {1ull << 48, (1ull << 48) - 4 * MIB, 1ull << 60};
    const uint64_t base = env->fake->base;
    uint64_t addr;

    for (size_t i = 0; i < 3; i++) {
        env->fake->base = bases[i];
        assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
        assert_int_equal(env->fake->in_use, 0);
        assert_int_equal(stats_of(env->pool).held, 0);
        assert_null(pool_of(bases[i]));
    }
    env->fake->base = base;
    alloc(env->pool, 8 * MIB);
}
