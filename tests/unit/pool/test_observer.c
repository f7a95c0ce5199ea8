/* SPDX-License-Identifier: Apache-2.0 */
/* test_observer.c - the counters, and the functions that observe a pool. One thread, no refusals. */
#include "unit.h"

POOL_CASE(test_stats_after_each_step_match_to_the_byte)
{
    uint64_t small, large, other, segments = 0;
    struct pool_stats want = {0}, got;

#define SAME()                                                                                                         \
    do {                                                                                                               \
        got = stats_of(env->pool);                                                                                     \
        if (segments == got.segments_alloc + got.segments_free) /* no call of the backend: no time in it */            \
            assert_int_equal(got.driver_ns, want.driver_ns);                                                           \
        else                                                                                                           \
            assert_true(got.driver_ns > want.driver_ns && got.driver_ns - want.driver_ns < 1000000000000u);            \
        segments = got.segments_alloc + got.segments_free;                                                             \
        want.driver_ns = got.driver_ns;                                                                                \
        assert_memory_equal(&got, &want, sizeof(got));                                                                 \
    } while (0)
    SAME();
    small = alloc(env->pool, 513);
    want.allocs = want.misses = want.segments_alloc = 1;
    want.live = want.peak_live = 1024;
    want.held = want.peak_held = 2 * MIB;
    SAME();
    large = alloc(env->pool, 6 * MIB);
    want.allocs = want.misses = want.segments_alloc = 2;
    want.live = want.peak_live = 6 * MIB + 1024;
    want.held = want.peak_held = 8 * MIB;
    SAME();
    other = alloc(env->pool, 1);
    want.allocs = 3;
    want.hits = 1;
    want.live = want.peak_live = 6 * MIB + 1536;
    SAME();
    release(large);
    want.frees = want.order = 1;
    want.live = 1536;
    want.idle = 6 * MIB;
    SAME();
    assert_int_equal(pool_free(large), -EINVAL);
    assert_int_equal(pool_free(0), -ENOENT);
    SAME();
    large = alloc(env->pool, 2 * MIB);
    want.allocs = 4;
    want.hits = 2;
    want.live = 2 * MIB + 1536;
    want.idle = 0;
    SAME();
    release(large);
    release(small);
    release(other);
    want.frees = want.order = 4;
    want.live = 0;
    want.idle = 8 * MIB;
    SAME();
    pool_trim(env->pool, "test");
    want.held = want.idle = 0;
    want.segments_free = 2;
    SAME();
    pool_trim(env->pool, "test");
    SAME();
#undef SAME
}

POOL_CASE(test_observer_of_trim_hears_of_segments_first)
{
    const struct fake_event *event;

    release(alloc(env->pool, 4 * MIB));
    release(alloc(env->pool, 512));
    assert_int_equal(env->fake->events[0].kind, FAKE_ALLOC);
    assert_int_equal(env->fake->events[1].kind, FAKE_SEGMENT_ALLOC);
    fake_events_clear(env->fake);
    pool_trim(env->pool, "why not");
    assert_int_equal(env->fake->events_count, 6);
    assert_int_equal(env->fake->events[0].kind, FAKE_SEGMENT_FREE);
    assert_int_equal(env->fake->events[4].kind, FAKE_COLLECT);
    assert_int_equal(env->fake->events[5].kind, FAKE_TRIM);
    event = fake_event_of(env->fake, FAKE_TRIM, 0);
    assert_int_equal(event->size, 6 * MIB);
    assert_string_equal(event->why, "why not");
    assert_int_equal(fake_event_of(env->fake, FAKE_SEGMENT_FREE, 0)->addr,
                     fake_event_of(env->fake, FAKE_FREE, 0)->addr);
}

/* Every path on which an observer would be called. */
static void without_observer(struct env *env, struct pool_config *config)
{
    uint64_t addr;

    env->fake->observed = false;
    env_pool(env, config);
    release(alloc(env->pool, 4 * MIB));
    assert_int_equal(pool_trim(env->pool, "test"), 4 * MIB);
    env->fake->refuse = true;
    assert_int_equal(pool_alloc(env->pool, 4 * MIB, &addr), -ENOMEM);
    env->fake->refuse = false;
    alloc(env->pool, 4 * MIB);
}

POOL_CASE(test_observer_missing_is_not_called)
{
    struct pool_config config = fake_config(env->fake);

    config.observer = NULL;
    without_observer(env, &config);
}

POOL_CASE(test_observer_without_functions_is_not_called)
{
    static const struct pool_observer_ops none;
    struct pool_config config = fake_config(env->fake);

    config.observer = &none;
    without_observer(env, &config);
}

POOL_CASE(test_create_copies_config)
{
    struct pool_config config = fake_config(env->fake);

    env_pool(env, &config);
    memset(&config, 0xff, sizeof(config));
    assert_ptr_equal(pool_arg(env->pool), env->fake);
    release(alloc(env->pool, 1));
}
