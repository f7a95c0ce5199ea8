/* SPDX-License-Identifier: Apache-2.0 */
/* test_yield.c - memory between the users of a device: a pool whose backend has refused asks the others, and one that
 * is asked gives back its idle segments without waiting. */
#include "unit.h"

/* Of the others: what they hold without need, what they take of that again, how often, and how they were asked. */
static struct {
    struct fake *fake;
    size_t idle, size;
    unsigned int takes, times, refused;
    void (*meanwhile)(void);
} others;

/* As neighbours_ask: true once after all have answered that they have nothing. */
static bool ask(void *arg, size_t size, struct pool_asking *asking)
{
    const bool again = !asking->over;

    others.fake = arg;
    others.size = size;
    others.refused = others.fake->refused;
    others.times++;
    if (others.meanwhile)
        others.meanwhile();
    asking->given |= others.idle;
    asking->over = !others.idle;
    if (others.takes && others.takes--)
        return again;
    others.fake->capacity += others.idle;
    others.idle = 0;
    return again;
}

static struct pool_backend_ops ops;

/* A pool that can ask; the others hold so much of a device of 64 MiB, and could give back so much of that. */
static void beside(struct env *env, size_t held, size_t idle)
{
    struct pool_config config = fake_config(env->fake);

    ops = *config.backend;
    ops.ask = ask;
    config.backend = &ops;
    env_pool(env, &config);
    memset(&others, 0, sizeof(others));
    others.idle = idle;
    env->fake->capacity = 64 * MIB - held;
}

POOL_CASE(test_asks_after_a_refusal)
{
    beside(env, 40 * MIB, 40 * MIB);
    alloc(env->pool, 20 * MIB);
    assert_int_equal(others.times, 0);
    alloc(env->pool, 30 * MIB + 3);
    assert_int_equal(others.times, 1);
    assert_int_equal(others.size, 32 * MIB); /* as the driver gives it */
    assert_int_equal(stats_of(env->pool).helped, 1);
    assert_int_equal(stats_of(env->pool).oom, 0);
    assert_int_equal(stats_of(env->pool).misses, 2);
}

POOL_CASE(test_own_idle_memory_goes_first)
{
    beside(env, 40 * MIB, 40 * MIB);
    release(alloc(env->pool, 20 * MIB));
    alloc(env->pool, 24 * MIB);
    assert_int_equal(others.times, 0);
    assert_int_equal(stats_of(env->pool).helped, 0);
    assert_int_equal(others.idle, 40 * MIB);
}

/* Free memory beside a live block, which cannot go back, serves a small request before others have to give theirs. */
POOL_CASE(test_holes_go_first)
{
    beside(env, 48 * MIB, 40 * MIB);
    release(alloc(env->pool, 16 * MIB));
    alloc(env->pool, 12 * MIB);
    alloc(env->pool, MIB);
    assert_int_equal(stats_of(env->pool).held, 16 * MIB);
    assert_int_equal(env->fake->refused, 2);
    assert_int_equal(others.times, 0);
}

POOL_CASE(test_nothing_to_give)
{
    uint64_t addr = 42;

    beside(env, 40 * MIB, 0);
    assert_int_equal(pool_alloc(env->pool, 30 * MIB, &addr), -ENOMEM);
    assert_int_equal(others.times, 2);
    assert_int_equal(env->fake->refused, others.refused); /* the driver is not asked after that */
    assert_int_equal(env->fake->refused, 3); /* but once before: memory may have come before the question */
    assert_int_equal(stats_of(env->pool).oom, 1);
    assert_int_equal(stats_of(env->pool).helped, 0);
}

/* A third user takes what the others have given, which they soon have again. */
POOL_CASE(test_asks_as_long_as_they_give)
{
    beside(env, 40 * MIB, 40 * MIB);
    others.takes = 5;
    alloc(env->pool, 30 * MIB);
    assert_int_equal(others.times, 6);
    assert_int_equal(stats_of(env->pool).helped, 1);
    assert_int_equal(stats_of(env->pool).oom, 0);
}

/* Memory that arrives between the refusal and the question: nobody has any to give by then. */
static void arrives(void)
{
    others.fake->capacity = 64 * MIB;
}

POOL_CASE(test_came_before_the_question)
{
    beside(env, 40 * MIB, 0);
    others.meanwhile = arrives;
    alloc(env->pool, 30 * MIB);
    assert_int_equal(others.times, 1);
    assert_int_equal(stats_of(env->pool).helped, 0);
}

/* Another thread frees a block while the others are asked. */
static uint64_t freed_meanwhile;

static void frees(void)
{
    release(freed_meanwhile);
}

POOL_CASE(test_own_memory_freed_during_the_question)
{
    beside(env, 32 * MIB, 0);
    freed_meanwhile = alloc(env->pool, 24 * MIB);
    others.meanwhile = frees;
    assert_int_equal(pool_live_size(alloc(env->pool, 30 * MIB)), 30 * MIB);
    assert_int_equal(others.times, 1);
}

POOL_CASE(test_too_little_to_give)
{
    uint64_t addr = 42;

    beside(env, 40 * MIB, 2 * MIB);
    assert_int_equal(pool_alloc(env->pool, 30 * MIB, &addr), -ENOMEM);
    assert_int_equal(others.times, 3);
    assert_int_equal(env->fake->refused, others.refused);
    assert_int_equal(stats_of(env->pool).helped, 1);
    assert_int_equal(stats_of(env->pool).oom, 1);
}

/* --- asked */

POOL_CASE(test_yield_gives_all_that_is_idle)
{
    const uint64_t live = alloc(env->pool, 6 * MIB);

    release(alloc(env->pool, 40 * MIB));
    release(alloc(env->pool, 512));
    fake_events_clear(env->fake);
    assert_int_equal(pool_yield(env->pool, "neighbour"), 42 * MIB);
    assert_int_equal(env->fake->in_use, 6 * MIB);
    assert_string_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->why, "neighbour");
    assert_null(fake_event_of(env->fake, FAKE_COLLECT, 0)); /* which would wait for it */
    assert_int_equal(pool_yield(env->pool, "neighbour"), 0);
    assert_int_equal(pool_live_size(live), 6 * MIB);
}

/* It is no tick of the clock by which idle memory ages. */
POOL_CASE(test_yield_ages_nothing)
{
    release(alloc(env->pool, 8 * MIB));
    env->fake->frozen = true;
    for (int i = 0; i < 3; i++)
        assert_int_equal(pool_yield(env->pool, "neighbour"), 0);
    env->fake->frozen = false;
    assert_int_equal(pool_decay(env->pool, 2), 0);
    assert_int_equal(pool_decay(env->pool, 2), 8 * MIB);
}

/* Deferred blocks are ordered if nothing waits for that, on the device either. */
POOL_CASE(test_yield_of_deferred_blocks)
{
    ENV_WITH(env, deferred_min = 32 * MIB);
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(pool_yield(env->pool, "neighbour"), 0);
    assert_int_equal(env->fake->waits, 0);
    env->fake->prompt = true;
    assert_int_equal(pool_yield(env->pool, "neighbour"), 8 * MIB);
    assert_int_equal(env->fake->waits, 0);
}

static bool gives_frozen(void *arg)
{
    return others.times;
}

POOL_CASE(test_yield_while_frozen)
{
    for (unsigned int i = 0; i < 3; i++) {
        beside(env, 0, 0);
        ops.gives_frozen = i ? gives_frozen : NULL;
        others.times = i == 2;
        release(alloc(env->pool, 8 * MIB));
        env->fake->frozen = true;
        assert_int_equal(pool_yield(env->pool, "neighbour"), i == 2 ? 8 * MIB : 0);
        env->fake->fault = NULL; /* the fake takes nothing while it is frozen */
        env->fake->frozen = false;
    }
}
