/* SPDX-License-Identifier: Apache-2.0 */
/* test_suspend.c - segments whose memory is away for a while: they serve nothing meanwhile, and afterwards again. */
#include "unit.h"

#include "clock.h"
#include "give_way.h"
#include "pool_state.h"
#include "release_idle.h"

#define LIST_MAX 64

/* The calls of pool_suspended_each. */
struct list {
    uint64_t segments[LIST_MAX], live[LIST_MAX], of[LIST_MAX];
    size_t sizes[LIST_MAX], segment_count, live_count, bytes;
};

static void segment_seen(void *arg, uint64_t addr, size_t size)
{
    struct list *list = arg;

    assert_true(list->segment_count < LIST_MAX);
    list->segments[list->segment_count++] = addr;
    list->bytes += size;
}

static void live_seen(void *arg, uint64_t segment, uint64_t addr, size_t size)
{
    struct list *list = arg;

    assert_true(list->live_count < LIST_MAX);
    list->of[list->live_count] = segment;
    list->live[list->live_count] = addr;
    list->sizes[list->live_count++] = size;
}

static struct list listed(struct pool *pool)
{
    static const struct pool_suspended_ops ops = {.segment = segment_seen, .live = live_seen};
    struct list list = {.segment_count = 0};

    pool_suspended_each(pool, &ops, &list);
    return list;
}

static void suspend(struct env *env)
{
    assert_int_equal(pool_suspend(env->pool, pool_kind_get(env->pool)), 0);
    assert_sound(env->pool, env->fake);
    pool_suspend_end(env->pool);
    assert_true(pool_is_suspended(env->pool));
}

static void resume(struct env *env)
{
    pool_resume_begin(env->pool);
    pool_resume_end(env->pool, /* resumed: */ true);
    assert_false(pool_is_suspended(env->pool));
    assert_int_equal(stats_of(env->pool).paused, 0);
    assert_at_rest(env->pool, env->fake);
}

static unsigned int index_of(struct env *env, uint64_t addr)
{
    return fake_segment_of(env->fake, addr)->index;
}

POOL_CASE(test_suspended_segments_are_listed_with_their_live_blocks)
{
    const uint64_t small = alloc(env->pool, 700), freed = alloc(env->pool, 700), large = alloc(env->pool, 5 * MIB);
    struct list list;

    release(freed);
    suspend(env);
    list = listed(env->pool);
    assert_int_equal(list.segment_count, 2);
    assert_int_equal(list.bytes, 8 * MIB);
    assert_int_equal(stats_of(env->pool).paused, 8 * MIB);
    assert_int_equal(list.live_count, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_true(list.live[i] == small || list.live[i] == large);
        assert_int_equal(list.of[i], fake_segment_of(env->fake, list.live[i])->addr);
        assert_int_equal(list.sizes[i], list.live[i] == small ? 1024 : 5 * MIB);
    }
    resume(env);
    assert_int_equal(listed(env->pool).segment_count, 0);
}

POOL_CASE(test_suspended_segments_serve_nothing_and_then_again)
{
    const uint64_t small = alloc(env->pool, 700), cached = alloc(env->pool, 700), large = alloc(env->pool, 5 * MIB);
    uint64_t other;

    release(cached); /* in a magazine */
    suspend(env);
    other = alloc(env->pool, 700);
    assert_int_equal(index_of(env, other), 2);
    assert_int_equal(pool_live_size(small), 700);
    release(other);
    resume(env);
    /* The segment serves again: nothing new is needed. */
    for (int i = 0; i < 3000; i++)
        alloc(env->pool, 700);
    assert_int_equal(env->fake->born, 3);
    release(large);
    assert_int_equal(alloc(env->pool, 5 * MIB), large);
}

/* A thread suspends the pool while another one is about to fill a block that it has freed. */
static struct {
    struct pool *pool;
    pthread_t thread;
    atomic_bool returned;
    bool started, too_early, lasts; /* lasts: the block is filled once the other thread has returned */
    int rc;                         /* that it got */
    int (*fill)(void *arg, uint64_t addr, size_t size, bool shared, bool fresh);
} beside;

static void *suspend_beside(void *arg)
{
    beside.rc = pool_suspend(beside.pool, pool_kind_get(beside.pool));
    atomic_store(&beside.returned, true);
    return NULL;
}

static int fill_beside(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
{
    if (!fresh && !beside.started) {
        beside.started = true;
        assert_int_equal(pthread_create(&beside.thread, NULL, suspend_beside, NULL), 0);
        const uint64_t start = now_ns();
        while (!pool_is_suspended(beside.pool) && !atomic_load(&beside.returned))
            give_way();
        while (beside.lasts && !atomic_load(&beside.returned))
            give_way();
        for (int i = 0; i < 2000 && now_ns() - start < OTHERS_WAIT_NS / 2; i++)
            give_way();
        beside.too_early = atomic_load(&beside.returned) && now_ns() - start < OTHERS_WAIT_NS;
    }
    return beside.fill(arg, addr, size, shared, fresh);
}

/* Free a block that is filled, and suspend the pool meanwhile. */
static int suspended_beside_a_fill(struct env *env, bool lasts)
{
    static struct pool_order_ops ops; /* as long as the pool */
    struct pool_config config = fake_config_filling(env->fake);

    ops = *config.order;
    beside.lasts = lasts;
    beside.started = false;
    atomic_store(&beside.returned, false);
    beside.fill = ops.fill;
    ops.fill = fill_beside;
    config.order = &ops;
    env_pool(env, &config);
    beside.pool = env->pool;
    release(alloc(env->pool, 3 * MIB));
    assert_true(beside.started);
    assert_int_equal(pthread_join(beside.thread, NULL), 0);
    return beside.rc;
}

POOL_CASE(test_a_fill_under_way_is_waited_for)
{
    assert_int_equal(suspended_beside_a_fill(env, /* lasts: */ false), 0);
    assert_false(beside.too_early);
    resume(env);
    pool_trim(env->pool, "test");
}

/* Its memory may not go: the pool is not suspended. */
POOL_CASE(test_a_fill_that_lasts_is_waited_for_no_longer)
{
    assert_int_equal(suspended_beside_a_fill(env, /* lasts: */ true), -ETIMEDOUT);
    assert_false(pool_is_suspended(env->pool));
    assert_int_equal(stats_of(env->pool).paused, 0);
    assert_at_rest(env->pool, env->fake);
    alloc(env->pool, 3 * MIB);
    assert_int_equal(env->fake->born, 1);
}

POOL_CASE(test_blocks_freed_meanwhile_merge_at_the_resume)
{
    uint64_t at[4];

    alloc_all(env->pool, at, 4, 700);
    suspend(env);
    release_all(at, 3);
    assert_sound(env->pool, env->fake);
    assert_int_equal(pool_free(at[0]), -EINVAL);
    assert_int_equal(listed(env->pool).live_count, 1);
    resume(env);
    alloc(env->pool, 2500); /* the hole of three */
    assert_int_equal(env->fake->born, 1);
}

POOL_CASE(test_suspended_segment_that_is_idle_goes_back)
{
    const uint64_t addr = alloc(env->pool, 5 * MIB), stays = alloc(env->pool, 3 * MIB);

    suspend(env);
    release(addr);
    assert_int_equal(env->fake->in_use, 4 * MIB);
    assert_int_equal(stats_of(env->pool).paused, 4 * MIB);
    assert_sound(env->pool, env->fake);
    resume(env);
    assert_int_equal(pool_live_size(stays), 3 * MIB);
}

POOL_CASE(test_no_segment_goes_while_memory_is_on_its_way)
{
    const uint64_t a = alloc(env->pool, 5 * MIB), b = alloc(env->pool, 3 * MIB);

    assert_int_equal(pool_suspend(env->pool, pool_kind_get(env->pool)), 0);
    release(a);
    pool_trim(env->pool, "test");
    assert_int_equal(env->fake->in_use, 10 * MIB);
    assert_int_equal(listed(env->pool).segment_count, 2);
    pool_suspend_end(env->pool);
    pool_trim(env->pool, "test");
    assert_int_equal(env->fake->in_use, 4 * MIB);
    pool_resume_begin(env->pool);
    release(b);
    pool_trim(env->pool, "test");
    assert_int_equal(env->fake->in_use, 4 * MIB);
    pool_resume_end(env->pool, /* resumed: */ true);
    assert_at_rest(env->pool, env->fake);
    assert_int_equal(alloc(env->pool, 3 * MIB), b); /* with memory, as any idle one */
}

POOL_CASE(test_resume_that_fails_leaves_them_suspended)
{
    const uint64_t addr = alloc(env->pool, 700), goes = alloc(env->pool, 5 * MIB);

    suspend(env);
    pool_resume_begin(env->pool);
    pool_resume_end(env->pool, /* resumed: */ false);
    assert_true(pool_is_suspended(env->pool));
    release(goes); /* no memory is on its way any more, so its segment need not stay */
    assert_int_equal(env->fake->in_use, 2 * MIB);
    assert_int_equal(listed(env->pool).segment_count, 1);
    assert_int_equal(index_of(env, alloc(env->pool, 700)), 2);
    resume(env);
    release(addr);
}

POOL_CASE(test_suspend_twice_and_of_another_kind)
{
    alloc(env->pool, 700);
    assert_int_equal(pool_suspend(env->pool, pool_kind_get(env->pool) + 1), 0);
    assert_int_equal(listed(env->pool).segment_count, 0);
    assert_int_equal(pool_suspend(env->pool, pool_kind_get(env->pool)), -EALREADY);
    pool_suspend_end(env->pool);
    resume(env);
}

POOL_CASE(test_memory_of_others_is_not_suspended)
{
    const uint64_t a = alloc(env->pool, 700), b = alloc(env->pool, 3 * MIB);

    assert_false(pool_has_withdrawn(env->pool, pool_kind_get(env->pool)));
    assert_int_equal(pool_withdraw(a), 0);
    assert_true(pool_has_withdrawn(env->pool, pool_kind_get(env->pool)));
    assert_int_equal(pool_suspend(env->pool, pool_kind_get(env->pool)), -EBUSY);
    assert_false(pool_is_suspended(env->pool));
    assert_int_equal(stats_of(env->pool).paused, 0);
    release(b);
    assert_int_equal(alloc(env->pool, 3 * MIB), b);
}

POOL_CASE(test_idle_memory_of_others_stops_nobody)
{
    const uint64_t theirs = alloc(env->pool, 5 * MIB);

    alloc(env->pool, 3 * MIB);
    release(theirs);
    assert_int_equal(pool_withdraw(theirs), 0);
    assert_false(pool_has_withdrawn(env->pool, pool_kind_get(env->pool)));
    suspend(env);
    assert_int_equal(listed(env->pool).segment_count, 1);
    resume(env);
}

POOL_CASE(test_memory_withdrawn_meanwhile_stays_so)
{
    const uint64_t a = alloc(env->pool, 700);

    suspend(env);
    assert_int_equal(pool_withdraw(a), 0);
    resume(env);
    assert_int_equal(index_of(env, alloc(env->pool, 700)), 1);
    release(a);
    assert_int_equal(env->fake->in_use, 2 * MIB);
}

POOL_CASE(test_kind_that_changes_meanwhile)
{
    const uint64_t a = alloc(env->pool, 700);

    suspend(env);
    pool_kind_set(env->pool, pool_kind_get(env->pool) + 1, 0, SIZE_MAX / 2);
    resume(env);
    assert_int_equal(index_of(env, alloc(env->pool, 700)), 1);
    release(a);
}

/* Packed segments: two large blocks share one. */
POOL_CASE(test_packed_segment_serves_again_as_it_did)
{
    const unsigned int born = env->fake->born;
    uint64_t parts[2];
    size_t exposed;

    release(alloc(env->pool, 16 * MIB));
    parts[0] = alloc(env->pool, 8 * MIB);
    parts[1] = alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->born, born + 1);
    exposed = env->pool->exposed;
    assert_true(exposed > 0);
    suspend(env);
    assert_int_equal(env->pool->exposed, 0);
    resume(env);
    assert_int_equal(env->pool->exposed, exposed);
    suspend(env);
    release(parts[0]);
    resume(env);
    assert_int_equal(alloc(env->pool, 8 * MIB), parts[0]);
    suspend(env);
    pool_pack_never(env->pool);
    release(parts[0]);
    resume(env);
    assert_int_equal(index_of(env, alloc(env->pool, 8 * MIB)), born + 1);
}

POOL_CASE(test_limit_set)
{
    uint64_t addr = 42;

    alloc(env->pool, 3 * MIB);
    pool_limit_set(env->pool, 6 * MIB);
    assert_int_equal(pool_alloc(env->pool, 3 * MIB, &addr), -EAGAIN);
    assert_int_equal(addr, 42);
    pool_limit_set(env->pool, 8 * MIB);
    alloc(env->pool, 3 * MIB);
    pool_limit_set(env->pool, 0);
    alloc(env->pool, 30 * MIB);
}

/* Requests and frees at random, with the pool suspended about half of the time. */
POOL_CASE(test_suspended_at_random)
{
    uint64_t blocks[200] = {0};
    unsigned int seed = 3;

    for (int i = 0; i < 20000; i++) {
        const unsigned int at = (unsigned int)rand_r(&seed) % 200;

        if (blocks[at])
            release(blocks[at]);
        blocks[at] =
            blocks[at] ? 0 : alloc(env->pool, (size_t)(rand_r(&seed) % 64 + 1) << (rand_r(&seed) % 3 ? 9 : 16));
        if (rand_r(&seed) % 16)
            continue;
        if (!pool_is_suspended(env->pool)) {
            suspend(env);
        } else {
            pool_resume_begin(env->pool);
            pool_resume_end(env->pool, rand_r(&seed) % 4 != 0);
        }
        assert_sound(env->pool, env->fake);
    }
    if (pool_is_suspended(env->pool))
        resume(env);
    for (int i = 0; i < 200; i++)
        if (blocks[i])
            release(blocks[i]);
    pool_trim(env->pool, "test");
    assert_at_rest(env->pool, env->fake);
    assert_int_equal(env->fake->in_use, 0);
}
