/* SPDX-License-Identifier: Apache-2.0 */
/* test_fill.c - pools whose blocks must come with certain contents: every block is filled, and the fill ordered, before
 * it is handed out. And who may wait for an order. */
#include "unit.h"

/* A pool that fills; fill_rc 1: there is something to be done. */
static void fill_with(struct env *env, int fill_rc)
{
    struct pool_config config = fake_config_filling(env->fake);

    env->fake->fill_rc = fill_rc;
    env_pool(env, &config);
    fake_events_clear(env->fake);
}

static void expect_fill(struct env *env, unsigned int n, uint64_t addr, size_t size, bool shared, bool fresh)
{
    const struct fake_event *fill = fake_event_of(env->fake, FAKE_FILL, n);

    assert_non_null(fill);
    assert_int_equal(fill->addr, addr);
    assert_int_equal(fill->size, size);
    assert_int_equal(fill->live, shared);
    assert_int_equal(fill->held, fresh);
}

/* The calls since the last fake_events_clear, one letter each: Alloc, Free, Order, fiLl, filleD, others left out. */
static void expect_calls(struct env *env, const char *want)
{
    static const char letters[FAKE_KINDS] = {
        [FAKE_ALLOC] = 'A', [FAKE_FREE] = 'F', [FAKE_ORDER] = 'O', [FAKE_FILL] = 'L', [FAKE_FILLED] = 'D'};
    char calls[64] = "";
    size_t n = 0;

    for (unsigned int i = 0; i < env->fake->events_count && n < sizeof(calls) - 1; i++)
        if (letters[env->fake->events[i].kind])
            calls[n++] = letters[env->fake->events[i].kind];
    assert_string_equal(calls, want);
    fake_events_clear(env->fake);
}

/* --- what is announced */

POOL_CASE(test_fill_of_fresh_segments_is_of_all_of_them)
{
    uint64_t small, large;

    for (int filled = 0; filled < 2; filled++) {
        fill_with(env, filled);
        small = alloc(env->pool, 700);
        expect_fill(env, 0, small - 512, UNIT, true, true);
        expect_calls(env, filled ? "ALD" : "AL");
        large = alloc(env->pool, 8 * MIB + 1);
        expect_fill(env, 0, large, 10 * MIB, false, true);
        expect_calls(env, filled ? "ALD" : "AL");
        large = alloc(env->pool, UNIT);
        expect_fill(env, 0, large, UNIT, false, true);
        fake_events_clear(env->fake);
        alloc(env->pool, 700); /* of what has been filled */
        expect_calls(env, "");
    }
}

POOL_CASE(test_fill_of_freed_blocks_is_of_all_of_them)
{
    uint64_t small, large, unit;

    for (int filled = 0; filled < 2; filled++) {
        fill_with(env, filled);
        small = alloc(env->pool, 700);
        large = alloc(env->pool, 8 * MIB + 1);
        unit = alloc(env->pool, UNIT);
        alloc(env->pool, 700);
        fake_events_clear(env->fake);
        release(small);
        expect_fill(env, 0, small, KIB, true, false);
        expect_calls(env, filled ? "OLD" : "OL");
        release(large);
        expect_fill(env, 0, large, 8 * MIB + 512, false, false);
        expect_calls(env, filled ? "OLD" : "OL");
        release(unit);
        expect_fill(env, 0, unit, UNIT, false, false);
        fake_events_clear(env->fake);
        assert_int_equal(alloc(env->pool, UNIT), unit);
        assert_int_equal(alloc(env->pool, 8 * MIB + 1), large);
        assert_int_equal(alloc(env->pool, 700), small);
        expect_calls(env, ""); /* each was filled when it was freed */
    }
}

POOL_CASE(test_fill_of_part_of_segment_is_of_that_part)
{
    uint64_t parts[2];

    fill_with(env, 1);
    release(alloc(env->pool, 16 * MIB));
    parts[0] = alloc(env->pool, 6 * MIB);
    parts[1] = alloc(env->pool, 10 * MIB);
    assert_int_equal(env->fake->born, 1);
    fake_events_clear(env->fake);
    release(parts[1]);
    expect_fill(env, 0, parts[1], 10 * MIB, false, false);
    release(parts[0]);
    expect_fill(env, 1, parts[0], 6 * MIB, false, false);
}

/* --- between a fill and its order */

static void fill_stops(struct env *env, enum fake_kind kind, unsigned int nth)
{
    struct call call = {.addr = alloc(env->pool, 8 * MIB)};
    uint64_t meanwhile;

    env->fake->stop[kind] = env->fake->calls[kind] + nth;
    call_start(&call, call_free);
    fake_wait(env->fake, kind);
    env->fake->fill_rc = 0; /* no order for the next one's fill */
    meanwhile = alloc(env->pool, 8 * MIB);
    env->fake->fill_rc = 1;
    assert_int_not_equal(meanwhile, call.addr);
    assert_int_equal(pool_live_size(call.addr), 0);
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    assert_int_equal(pool_decay(env->pool, 0), 0);
    assert_int_equal(pool_free(call.addr), -EINVAL);
    assert_sound(env->pool, env->fake);
    call_go(env, kind, &call);
    assert_int_equal(call.rc, 0);
    assert_int_equal(alloc(env->pool, 8 * MIB), call.addr);
}

POOL_CASE(test_free_during_fill_does_not_reuse_block)
{
    fill_with(env, 1);
    fill_stops(env, FAKE_FILL, 1);
}

POOL_CASE(test_free_during_order_of_fill_does_not_reuse_block)
{
    fill_with(env, 1);
    fill_stops(env, FAKE_FILLED, 1);
}

static void fresh_stops(struct env *env, enum fake_kind kind)
{
    struct call call = {.pool = env->pool, .size = 700};
    uint64_t meanwhile;

    call_stop(env, kind, &call, call_alloc);
    meanwhile = alloc(env->pool, 700); /* from a segment of its own */
    call_go(env, kind, &call);
    assert_int_equal(call.rc, 0);
    assert_ptr_not_equal(fake_segment_of(env->fake, meanwhile), fake_segment_of(env->fake, call.addr));
}

POOL_CASE(test_fresh_segment_during_fill_serves_nobody)
{
    fill_with(env, 1);
    fresh_stops(env, FAKE_FILL);
}

/* --- failures */

POOL_CASE(test_free_with_fill_error_keeps_block)
{
    static const struct {
        int fill_rc, rc;
    } cases[] = {{-EIO, -EIO}, {-EINVAL, -EINVAL}, {-EBUSY, 0}};

    for (size_t i = 0; i < 3; i++) {
        uint64_t addr, other;

        fill_with(env, 1);
        addr = alloc(env->pool, 8 * MIB);
        other = alloc(env->pool, 512);
        env->fake->fill_rc = cases[i].fill_rc;
        fake_events_clear(env->fake);
        assert_int_equal(pool_free(addr), cases[i].rc);
        expect_calls(env, "OL");
        assert_int_equal(pool_live_size(addr), 0);
        assert_int_equal(pool_free(addr), -EINVAL);
        assert_int_equal(stats_of(env->pool).kept, 1);
        assert_int_equal(stats_of(env->pool).frees, 1);
        assert_int_equal(stats_of(env->pool).order, 0);
        assert_int_equal(stats_of(env->pool).idle, 0);
        assert_sound(env->pool, env->fake);
        env->fake->fill_rc = 1;
        assert_int_not_equal(alloc(env->pool, 8 * MIB), addr);
        fake_events_clear(env->fake);
        release(other);
        expect_calls(env, "OLLD"); /* the other's and, again, its own */
        assert_int_equal(alloc(env->pool, 8 * MIB), addr);
    }
}

POOL_CASE(test_free_with_error_of_order_of_fill_keeps_block)
{
    for (int i = 0; i < 2; i++) {
        uint64_t addr, other;

        fill_with(env, 0);
        addr = alloc(env->pool, 8 * MIB);
        other = alloc(env->pool, 512);
        env->fake->fill_rc = 1;
        env->fake->filled_rc = i ? -EBUSY : -EIO;
        fake_events_clear(env->fake);
        assert_int_equal(pool_free(addr), i ? 0 : -EIO);
        expect_calls(env, "OLD");
        assert_int_equal(stats_of(env->pool).kept, 1);
        assert_sound(env->pool, env->fake);
        assert_int_equal(pool_decay(env->pool, 0), 0);
        env->fake->filled_rc = 0;
        release(other);
        expect_calls(env, "OLLD");
        assert_int_equal(alloc(env->pool, 8 * MIB), addr);
    }
}

static void expect_fresh_goes_back(struct env *env)
{
    static const size_t sizes[] = {512, 8 * MIB};
    const unsigned int asked = env->fake->calls[FAKE_ALLOC];
    uint64_t addr = 42;

    for (unsigned int i = 0; i < 2; i++) {
        assert_int_equal(pool_alloc(env->pool, sizes[i], &addr), -EAGAIN);
        assert_int_equal(addr, 42);
        assert_int_equal(env->fake->calls[FAKE_ALLOC], asked + i + 1);
        assert_int_equal(env->fake->in_use, 0);
        assert_int_equal(stats_of(env->pool).oom, 0);
        assert_int_equal(stats_of(env->pool).failed, i + 1);
        assert_int_equal(stats_of(env->pool).allocs, 0);
        assert_int_equal(stats_of(env->pool).held, 0);
        assert_int_equal(stats_of(env->pool).idle, 0);
        assert_sound(env->pool, env->fake);
    }
    assert_null(pool_of(env->fake->base));
}

POOL_CASE(test_fresh_segment_with_fill_error_goes_back)
{
    static const int errors[] = {-EIO, -EBUSY, -ENOMEM};

    for (size_t i = 0; i < 3; i++) {
        fill_with(env, errors[i]);
        expect_fresh_goes_back(env);
        expect_calls(env, "ALFALF");
        env->fake->fill_rc = 1;
        alloc(env->pool, 8 * MIB);
    }
}

/* Memory that was requested and went back does not count against the limit. */
POOL_CASE(test_fresh_segment_that_went_back_is_off_the_limit)
{
    struct pool_config config = fake_config_filling(env->fake);
    uint64_t addr;

    config.limit = 8 * MIB;
    env_pool(env, &config);
    env->fake->fill_rc = -EIO;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
    env->fake->fill_rc = 1;
    alloc(env->pool, 8 * MIB);
}

/* --- what was kept back */

POOL_CASE(test_flush_fills_kept_blocks_and_orders_once)
{
    uint64_t kept[3];

    fill_with(env, 1);
    env->fake->prompt = true;
    for (size_t i = 0; i < 3; i++)
        kept[i] = alloc(env->pool, (i + 4) * 2 * MIB);
    env->fake->order_rc = -EBUSY;
    fake_events_clear(env->fake);
    release_all(kept, 3);
    expect_calls(env, "OOO"); /* no fill before its order */
    env->fake->order_rc = 0;
    env->fake->frozen = true;
    pool_flush(env->pool);
    expect_calls(env, "");
    env->fake->frozen = false;
    pool_flush(env->pool);
    for (unsigned int i = 0; i < 3; i++)
        assert_int_equal(fake_event_of(env->fake, FAKE_FILL, i)->held, 0);
    assert_int_equal(fake_event_of(env->fake, FAKE_FILL, 0)->size + fake_event_of(env->fake, FAKE_FILL, 1)->size +
                         fake_event_of(env->fake, FAKE_FILL, 2)->size,
                     30 * MIB);
    expect_calls(env, "OLLLD");
    pool_flush(env->pool); /* nothing is left to do */
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(alloc(env->pool, (i + 4) * 2 * MIB), kept[i]);
    expect_calls(env, "");
}

/* All or none: who was filled before the failure has not been ordered behind it. */
POOL_CASE(test_flush_with_fill_error_keeps_all)
{
    uint64_t kept[3];

    fill_with(env, 1);
    env->fake->prompt = true;
    alloc_all(env->pool, kept, 3, 8 * MIB);
    env->fake->order_rc = -EBUSY;
    release_all(kept, 3);
    env->fake->order_rc = 0;
    env->fake->fill_fail_at = env->fake->calls[FAKE_FILL] + 2;
    fake_events_clear(env->fake);
    pool_flush(env->pool);
    expect_calls(env, "OLL");
    assert_int_equal(stats_of(env->pool).live, 24 * MIB);
    assert_int_equal(pool_decay(env->pool, 0), 0);
    fake_events_clear(env->fake);
    pool_flush(env->pool);
    expect_calls(env, "OLLLD");
    assert_int_equal(stats_of(env->pool).idle, 24 * MIB);
}

/* Somebody outside may still read it. */
POOL_CASE(test_flush_does_not_fill_what_is_withdrawn)
{
    uint64_t kept[2];

    fill_with(env, 1);
    env->fake->prompt = true;
    for (size_t i = 0; i < 2; i++)
        kept[i] = alloc(env->pool, (i + 4) * 2 * MIB);
    assert_int_equal(pool_withdraw(kept[0]), 0);
    env->fake->order_rc = -EBUSY;
    release_all(kept, 2);
    env->fake->order_rc = 0;
    fake_events_clear(env->fake);
    pool_flush(env->pool);
    assert_int_equal(fake_event_of(env->fake, FAKE_FILL, 0)->addr, kept[1]);
    assert_null(fake_event_of(env->fake, FAKE_FILL, 1));
}

POOL_CASE(test_trim_fills_kept_blocks_before_it_gives_back)
{
    uint64_t kept;

    fill_with(env, 1);
    kept = alloc(env->pool, 8 * MIB);
    release_unordered(env, kept);
    fake_events_clear(env->fake);
    assert_int_equal(pool_trim(env->pool, "test"), 8 * MIB);
    expect_calls(env, "OLDF");
}

/* --- may_wait */

static void expect_waits(struct env *env, const char *want)
{
    const struct fake_event *order;
    char waits[64] = "";

    for (unsigned int i = 0; i < sizeof(waits) - 1 && (order = fake_event_of(env->fake, FAKE_ORDER, i)); i++)
        waits[i] = order->live ? 'w' : '-';
    assert_string_equal(waits, want);
    fake_events_clear(env->fake);
}

static uint64_t keep_one(struct env *env)
{
    const uint64_t addr = alloc(env->pool, 8 * MIB);

    release_unordered(env, addr);
    fake_events_clear(env->fake);
    return addr;
}

POOL_CASE(test_free_and_trim_may_wait)
{
    env->fake->prompt = true;
    release(alloc(env->pool, 512));
    expect_waits(env, "w");
    keep_one(env);
    pool_trim(env->pool, "test");
    expect_waits(env, "w");
}

POOL_CASE(test_flush_may_not_wait)
{
    env->fake->prompt = true;
    keep_one(env);
    pool_flush(env->pool);
    expect_waits(env, "-");
}

POOL_CASE(test_flush_that_fills_may_not_wait)
{
    fill_with(env, 1);
    env->fake->prompt = true;
    keep_one(env);
    pool_flush(env->pool);
    expect_waits(env, "-");
}

/* cudaMalloc does not wait for the device, so an allocation does not either: not before the driver has refused. */
POOL_CASE(test_alloc_that_is_not_refused_may_not_wait)
{
    for (int prompt = 0; prompt < 2; prompt++) {
        uint64_t kept;

        env->fake->prompt = prompt;
        kept = keep_one(env);
        assert_int_equal(alloc(env->pool, 8 * MIB) == kept, prompt);
        alloc(env->pool, 512);
        alloc(env->pool, 32 * MIB);
        assert_int_equal(env->fake->refused, 0);
        expect_waits(env, prompt ? "-" : "");
    }
}

POOL_CASE(test_alloc_that_is_refused_may_wait)
{
    const uint64_t kept = keep_one(env);
    uint64_t addr;

    env->fake->capacity = 8 * MIB;
    env->fake->prompt = true;
    env->fake->order_rc = -EBUSY;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -ENOMEM);
    expect_waits(env, "--ww"); /* before the refusal, after it, and to trim */
    env->fake->prompt = false;
    env->fake->order_rc = 0;
    assert_int_equal(alloc(env->pool, 8 * MIB), kept);
    expect_waits(env, "w");
}
