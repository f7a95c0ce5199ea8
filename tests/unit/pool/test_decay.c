/* SPDX-License-Identifier: Apache-2.0 */
/* test_decay.c - memory that nobody asked back: what has been idle for long, what is idle on a device that has little
 * left, and who waits until it has arrived. */
#include "unit.h"

#include <limits.h>

#include "pool_state.h" /* the clock, to set it shortly before it wraps */
#include "release_idle.h"

static void decay_nothing(struct env *env, unsigned int age, unsigned int times)
{
    for (unsigned int i = 0; i < times; i++)
        assert_int_equal(pool_decay(env->pool, age), 0);
}

/* --- ages */

POOL_CASE(test_decay_gives_back_at_call_of_its_age)
{
    static const unsigned int ages[] = {1, 2, 7, 1};

    for (size_t i = 0; i < 4; i++) {
        release(alloc(env->pool, 8 * MIB));
        decay_nothing(env, ages[i], ages[i] - 1);
        assert_int_equal(env->fake->in_use, 8 * MIB);
        fake_events_clear(env->fake);
        assert_int_equal(pool_decay(env->pool, ages[i]), 8 * MIB);
        assert_int_equal(env->fake->in_use, 0);
        assert_string_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->why, "decay");
        assert_int_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->size, 8 * MIB);
        assert_sound(env->pool, env->fake);
        assert_int_equal(stats_of(env->pool).held, 0);
        assert_int_equal(stats_of(env->pool).idle, 0);
        assert_int_equal(stats_of(env->pool).segments_free, i + 1);
    }
}

POOL_CASE(test_decay_of_age_zero_gives_back_at_once)
{
    release(alloc(env->pool, 8 * MIB));
    release(alloc(env->pool, 512));
    assert_int_equal(pool_decay(env->pool, 0), 10 * MIB);
    assert_int_equal(env->fake->in_use, 0);
}

POOL_CASE(test_decay_takes_each_segment_at_its_own_age)
{
    uint64_t addrs[5];

    for (size_t i = 0; i < 5; i++)
        addrs[i] = alloc(env->pool, (i + 1) * 2 * MIB);
    for (size_t i = 0; i < 3; i++) {
        release(addrs[i]);
        decay_nothing(env, 4, 1);
    }
    release(addrs[3]);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pool_decay(env->pool, 4), (i + 1) * 2 * MIB);
        assert_null(pool_of(addrs[i]));
        assert_sound(env->pool, env->fake);
    }
    decay_nothing(env, 4, 10); /* the last one is in use */
    assert_int_equal(env->fake->in_use, 10 * MIB);
}

/* The age of another call counts from the same moment. */
POOL_CASE(test_decay_with_smaller_age_takes_what_is_older)
{
    const uint64_t old = alloc(env->pool, 8 * MIB), young = alloc(env->pool, 4 * MIB);

    release(old);
    decay_nothing(env, 100, 3);
    release(young);
    assert_int_equal(pool_decay(env->pool, 2), 8 * MIB);
    assert_int_equal(pool_decay(env->pool, 2), 4 * MIB);
}

POOL_CASE(test_decay_after_reuse_counts_anew)
{
    static const size_t sizes[] = {8 * MIB, 512};
    uint64_t addr;

    for (size_t i = 0; i < 2; i++) {
        addr = alloc(env->pool, sizes[i]);
        for (int round = 0; round < 3; round++) {
            decay_nothing(env, 3, 10); /* in use */
            release(addr);
            decay_nothing(env, 3, 2);
            assert_int_equal(alloc(env->pool, sizes[i]), addr);
        }
        release(addr);
        decay_nothing(env, 3, 2);
        assert_int_not_equal(pool_decay(env->pool, 3), 0);
        assert_int_equal(env->fake->in_use, 0);
    }
}

POOL_CASE(test_decay_while_frozen_gives_nothing_back)
{
    release(alloc(env->pool, 8 * MIB));
    env->fake->frozen = true;
    decay_nothing(env, 3, 10);
    decay_nothing(env, 0, 1);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    assert_int_equal(env->fake->calls[FAKE_TRIM], 0);
    env->fake->frozen = false;
    assert_int_equal(pool_decay(env->pool, 12), 8 * MIB); /* the calls counted */
}

POOL_CASE(test_decay_keeps_segments_in_use)
{
    const uint64_t small = alloc(env->pool, 512), shared = alloc(env->pool, 512);
    const uint64_t half = alloc(env->pool, 16 * MIB);
    uint64_t parts[2];

    release(shared);
    release(half);
    parts[0] = alloc(env->pool, 8 * MIB);
    parts[1] = alloc(env->pool, 8 * MIB);
    assert_int_equal(env->fake->born, 2);
    release(parts[1]);
    decay_nothing(env, 0, 5);
    assert_int_equal(env->fake->in_use, 18 * MIB);
    assert_int_equal(pool_live_size(small), 512);
    release(parts[0]);
    release(small);
    assert_int_equal(pool_decay(env->pool, 1), 18 * MIB);
}

/* Of a segment that is broken into the age counts from the last free, and the budget is free again afterwards. */
POOL_CASE(test_decay_of_broken_segment_counts_from_last_free)
{
    uint64_t parts[2];

    ENV_WITH(env, break_max = BREAK_ONCE(12 * MIB));
    for (int round = 0; round < 3; round++) {
        const unsigned int born = env->fake->born;

        release(alloc(env->pool, 16 * MIB));
        parts[0] = alloc(env->pool, 8 * MIB);
        parts[1] = alloc(env->pool, 4 * MIB);
        assert_int_equal(env->fake->born - born, 1);
        release(parts[round % 2]);
        decay_nothing(env, 2, 5);
        release(parts[!(round % 2)]);
        decay_nothing(env, 2, 1);
        assert_int_equal(pool_decay(env->pool, 2), 16 * MIB);
        assert_sound(env->pool, env->fake);
    }
}

/* Kept back is not idle, and this is no call that orders. */
POOL_CASE(test_decay_leaves_kept_blocks_alone)
{
    const uint64_t kept = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);
    unsigned int orders;

    release_unordered(env, kept);
    orders = env->fake->calls[FAKE_ORDER];
    decay_nothing(env, 1, 5);
    assert_int_equal(env->fake->calls[FAKE_ORDER], orders);
    release(other); /* publishes it */
    decay_nothing(env, 2, 1);
    assert_int_equal(pool_decay(env->pool, 2), 10 * MIB);
}

POOL_CASE(test_decay_over_wrap_of_clock_takes_no_younger_segments)
{
    for (unsigned int before = 0; before < 5; before++) {
        const uint64_t addr = alloc(env->pool, 8 * MIB);

        env->pool->clock = UINT_MAX - before;
        release(addr);
        decay_nothing(env, 4, 3);
        assert_int_equal(pool_decay(env->pool, 4), 8 * MIB);
        assert_int_equal(env->pool->clock, 3 - before);
    }
}

/* A segment's descriptor is used again; its age is not. */
POOL_CASE(test_decay_of_new_segment_counts_from_its_own_free)
{
    for (int i = 0; i < 20; i++) {
        release(alloc(env->pool, 8 * MIB));
        decay_nothing(env, 5, 4);
        assert_int_equal(pool_decay(env->pool, 5), 8 * MIB);
    }
    assert_int_equal(env->fake->born, 20);
}

POOL_CASE(test_decay_without_observer_gives_back)
{
    struct pool_config config = fake_config(env->fake);

    config.observer = NULL;
    env->fake->observed = false;
    env_pool(env, &config);
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(pool_decay(env->pool, 1), 8 * MIB);
    assert_int_equal(env->fake->in_use, 0);
}

/* Two threads give back at the same time: each segment once; and the lock is free meanwhile. */
POOL_CASE(test_decay_during_trim_takes_the_others)
{
    struct call trim = {.pool = env->pool, .why = "test"};
    const uint64_t other = alloc(env->pool, 4 * MIB);

    release(alloc(env->pool, 8 * MIB));
    call_stop(env, FAKE_FREE, &trim, call_trim);
    assert_int_equal(pool_decay(env->pool, 0), 0);
    release(other);
    assert_int_equal(pool_decay(env->pool, 0), 4 * MIB);
    call_go(env, FAKE_FREE, &trim);
    assert_int_equal(trim.released, 8 * MIB);
    assert_int_equal(env->fake->in_use, 0);
}

/* --- scarce */

POOL_CASE(test_scarce_free_gives_idle_segment_back_at_once)
{
    static const size_t sizes[] = {512, UNIT - 4096, 8 * MIB};

    for (size_t i = 0; i < 3; i++) {
        const uint64_t addr = alloc(env->pool, sizes[i]);

        env->fake->scarce = true;
        fake_events_clear(env->fake);
        release(addr);
        assert_int_equal(env->fake->in_use, 0);
        assert_null(pool_of(addr));
        assert_string_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->why, "reserve");
        assert_sound(env->pool, env->fake);
    }
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 0); /* without hurry */
    env->fake->scarce = false;
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(env->fake->in_use, 8 * MIB);
}

POOL_CASE(test_scarce_tick_gives_all_idle_segments_back)
{
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(pool_decay(env->pool, 7), 0);
    env->fake->scarce = true;
    fake_events_clear(env->fake);
    env->fake->frozen = true;
    assert_int_equal(pool_decay(env->pool, 7), 0);
    env->fake->frozen = false;
    assert_int_equal(pool_decay(env->pool, 7), 8 * MIB);
    assert_string_equal(fake_event_of(env->fake, FAKE_TRIM, 0)->why, "reserve");
    assert_sound(env->pool, env->fake);
}

POOL_CASE(test_scarce_free_gives_back_what_was_idle_before)
{
    const uint64_t a = alloc(env->pool, 512), b = alloc(env->pool, 512);

    release(alloc(env->pool, 8 * MIB));
    release(alloc(env->pool, 16 * MIB));
    env->fake->scarce = true;
    release(a);
    assert_int_equal(env->fake->in_use, UNIT); /* b's */
    assert_int_equal(pool_live_size(b), 512);
}

POOL_CASE(test_scarce_free_keeps_segment_in_use)
{
    const uint64_t small[] = {alloc(env->pool, 512), alloc(env->pool, 512)};
    uint64_t parts[2];

    release(alloc(env->pool, 16 * MIB));
    parts[0] = alloc(env->pool, 8 * MIB);
    parts[1] = alloc(env->pool, 8 * MIB);
    env->fake->scarce = true;
    release(small[0]);
    release(parts[0]);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    assert_int_equal(alloc(env->pool, 512), small[0]);
    assert_int_equal(alloc(env->pool, 8 * MIB), parts[0]);
}

POOL_CASE(test_scarce_free_while_frozen_gives_nothing_back)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);

    env->fake->scarce = true;
    env->fake->frozen = true;
    release(addr);
    assert_int_equal(stats_of(env->pool).idle, 8 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 0);
    env->fake->frozen = false;
    release(other);
    assert_int_equal(env->fake->in_use, 0);
}

POOL_CASE(test_scarce_free_that_is_kept_gives_back_when_published)
{
    const uint64_t kept = alloc(env->pool, 8 * MIB), other = alloc(env->pool, 512);

    env->fake->scarce = true;
    env->fake->order_rc = -EBUSY;
    release(kept);
    assert_int_equal(env->fake->in_use, 10 * MIB);
    env->fake->order_rc = 0;
    release(other);
    assert_int_equal(env->fake->in_use, 0);
}

static struct pool_backend_ops plain;
static unsigned int reclaims;

static void backend_reclaim(void *arg)
{
    struct fake *fake = arg;

    assert_int_equal(fake->in_use, 0); /* behind all that goes back */
    fake->arriving = 0;
    reclaims++;
}

/* As a driver that frees at once, which waits. */
static bool backend_collected_never(void *arg, size_t *ret_arriving)
{
    *ret_arriving = 0;
    return false;
}

static void scarce_pool(struct env *env, bool (*collected)(void *arg, size_t *ret_arriving))
{
    struct pool_config config = fake_config(env->fake);

    plain = *config.backend;
    plain.reclaim = backend_reclaim;
    plain.collected = collected ? collected : plain.collected;
    config.backend = &plain;
    env_pool(env, &config);
    reclaims = 0;
    env->fake->scarce = true;
}

POOL_CASE(test_scarce_free_waits_for_what_has_not_arrived)
{
    scarce_pool(env, NULL);
    release(alloc(env->pool, 16 * MIB));
    assert_int_equal(reclaims, 0); /* it has arrived */
    env->fake->arriving = 8 * MIB;
    release(alloc(env->pool, 16 * MIB));
    assert_int_equal(reclaims, 1);
    assert_int_equal(env->fake->arriving, 0);
}

POOL_CASE(test_scarce_free_that_gives_nothing_back_waits_for_earlier_ones)
{
    uint64_t a, b;

    scarce_pool(env, NULL);
    a = alloc(env->pool, 512);
    b = alloc(env->pool, 512);
    env->fake->in_use = 0; /* for backend_reclaim */
    env->fake->arriving = 8 * MIB;
    release(a);
    env->fake->in_use = UNIT;
    assert_int_equal(reclaims, 1);
    release(b);
}

POOL_CASE(test_free_does_not_wait_while_there_is_enough_or_frozen_or_the_driver_has_waited)
{
    uint64_t a;

    scarce_pool(env, NULL);
    env->fake->scarce = false;
    a = alloc(env->pool, 16 * MIB);
    assert_int_equal(pool_withdraw(a), 0); /* so that it goes back */
    env->fake->arriving = 8 * MIB;
    release(a);
    assert_int_equal(env->fake->in_use, 0);
    env->fake->scarce = true;
    a = alloc(env->pool, 512);
    env->fake->frozen = true;
    env->fake->arriving = 8 * MIB;
    release(a);
    env->fake->frozen = false;
    assert_int_equal(pool_trim(env->pool, "test"), UNIT);
    assert_int_equal(reclaims, 0);
    scarce_pool(env, backend_collected_never);
    release(alloc(env->pool, 16 * MIB));
    assert_int_equal(reclaims, 0);
}

POOL_CASE(test_backend_without_scarce_and_collect_is_served)
{
    struct pool_config config = fake_config(env->fake);

    plain = *config.backend;
    plain.scarce = NULL;
    plain.collect = NULL;
    config.backend = &plain;
    env_pool(env, &config);
    env->fake->scarce = true;
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(env->fake->in_use, 8 * MIB);
    assert_int_equal(pool_trim(env->pool, "test"), 8 * MIB);
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(pool_decay(env->pool, 1), 8 * MIB);
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 0);
}

/* --- collect */

POOL_CASE(test_trim_collects_once_behind_all_it_gives_back)
{
    uint64_t addrs[5];

    for (size_t i = 0; i < 5; i++)
        addrs[i] = alloc(env->pool, (i + 1) * 2 * MIB);
    release_all(addrs, 5);
    env->fake->late = true;
    fake_events_clear(env->fake);
    assert_int_equal(pool_trim(env->pool, "test"), 30 * MIB);
    assert_int_equal(env->fake->calls[FAKE_FREE], 5);
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 1);
    assert_int_equal(fake_event_of(env->fake, FAKE_COLLECT, 0)->size, 30 * MIB);
}

POOL_CASE(test_decay_does_not_collect)
{
    release(alloc(env->pool, 8 * MIB));
    assert_int_equal(pool_decay(env->pool, 1), 8 * MIB);
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 0);
}

POOL_CASE(test_refusal_with_idle_segments_collects_before_it_asks_again)
{
    env->fake->capacity = 16 * MIB;
    env->fake->late = true;
    release(alloc(env->pool, 8 * MIB));
    alloc(env->pool, 14 * MIB);
    assert_int_equal(env->fake->refused, 1);
    assert_int_equal(env->fake->calls[FAKE_COLLECT], 1);
}

/* --- frozen */

static bool gives;

static bool gives_frozen(void *arg)
{
    return gives;
}

/* While nothing may be ordered only who must have memory gets what is idle, if the backend can give it back then. */
POOL_CASE(test_frozen_trim_gives_back_if_the_backend_does)
{
    struct pool_config config = fake_config(env->fake);
    struct pool_backend_ops ops = *config.backend;

    config.backend = &ops;
    for (unsigned int i = 0; i < 16; i++) {
        const bool frozen = i & 1, waits = i & 2, asked = i & 8;

        gives = i & 4;
        ops.gives_frozen = asked ? gives_frozen : NULL;
        env_pool(env, &config);
        release(alloc(env->pool, 8 * MIB));
        env->fake->frozen = frozen;
        assert_int_equal(release_trim(env->pool, "test", waits), !frozen || (waits && asked && gives) ? 8 * MIB : 0);
        env->fake->fault = NULL; /* the fake takes nothing while it is frozen */
        env->fake->frozen = false;
    }
    config = fake_config(env->fake);
    env_pool(env, &config); /* ops goes */
}
