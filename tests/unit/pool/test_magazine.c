/* SPDX-License-Identifier: Apache-2.0 */
/* test_magazine.c - what was freed last: found again, by whoever asks, and on the books as if nobody had kept it apart.
 */
#include "unit.h"

#include "deferred.h"
#include "give_way.h"
#include "magazine.h" /* the locks, to make a thread go on to another magazine */

/* From now on this thread uses a magazine that it has not used so far. */
static void move_on(struct pool *pool)
{
    struct magazine *magazine = magazine_enter(pool), *next;

    next = magazine_enter(pool);
    lock_give(&next->lock);
    lock_give(&magazine->lock);
    assert_ptr_not_equal(magazine, next);
}

POOL_CASE(test_a_hit_calls_nobody)
{
    const uint64_t addr = alloc(env->pool, 3 * MIB);

    for (int i = 0; i < 10; i++) {
        release(addr);
        assert_int_equal(alloc(env->pool, 3 * MIB - 1), addr);
    }
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 1);
    assert_int_equal(stats_of(env->pool).hits, 10);
    assert_int_equal(stats_of(env->pool).allocs, 11);
    assert_int_equal(stats_of(env->pool).frees, 10);
    assert_int_equal(stats_of(env->pool).order, 10);
    assert_sound(env->pool, env->fake);
}

/* Hits are on no books, but the most that was handed out at a time is known to the byte. */
POOL_CASE(test_peak_is_exact)
{
    static const size_t sizes[] = {4 * MIB, 8 * MIB, 6 * MIB};
    uint64_t addr[3];

    for (int i = 0; i < 3; i++) {
        addr[i] = alloc(env->pool, sizes[i]);
        assert_int_equal(stats_of(env->pool).live, sizes[i]);
        release(addr[i]);
    }
    assert_int_equal(stats_of(env->pool).peak_live, 8 * MIB);
    assert_int_equal(stats_of(env->pool).live, 0);
    for (int i = 0; i < 3; i++)
        addr[i] = alloc(env->pool, sizes[i]);
    release_all(addr, 3);
    for (int round = 0; round < 2; round++) { /* the second time they are all hits */
        for (int i = 0; i < 3; i++)
            addr[i] = alloc(env->pool, sizes[i]);
        release_all(addr, 3);
    }
    assert_int_equal(stats_of(env->pool).peak_live, 18 * MIB);
    assert_int_equal(stats_of(env->pool).live, 0);
    assert_sound(env->pool, env->fake);
}

/* Blocks that were freed and wait to be ordered are not in the program's hands. */
POOL_CASE(test_peak_is_without_what_waits)
{
    uint64_t addr[2];

    ENV_WITH(env, deferred_min = 32 * MIB);
    for (size_t i = 4; i < 8; i++)
        release(alloc(env->pool, i * MIB));
    assert_int_equal(stats_of(env->pool).live, 22 * MIB);
    assert_int_equal(stats_of(env->pool).peak_live, 7 * MIB);
    pool_trim(env->pool, "test");
    alloc_all(env->pool, addr, 2, 5 * MIB);
    env->fake->order_rc = -EBUSY;
    release(addr[0]);
    addr[0] = alloc(env->pool, MIB);
    pool_disown(addr[1], 5 * MIB);
    env->fake->observed = false; /* that was not its doing */
    assert_int_equal(stats_of(env->pool).peak_live, 10 * MIB);
    assert_int_equal(stats_of(env->pool).live, 6 * MIB);
}

POOL_CASE(test_idle_is_exact)
{
    const uint64_t addr = alloc(env->pool, 4 * MIB);

    assert_int_equal(stats_of(env->pool).idle, 0);
    release(addr);
    assert_int_equal(stats_of(env->pool).idle, 4 * MIB);
    assert_int_equal(alloc(env->pool, 4 * MIB), addr);
    assert_int_equal(stats_of(env->pool).idle, 0);
    release(addr);
    assert_int_equal(pool_trim(env->pool, "test"), 4 * MIB);
    assert_int_equal(stats_of(env->pool).held, 0);
}

/* Ranks that ask for the same lay memory out alike, also if only one of them is looked at. */
POOL_CASE(test_who_looks_changes_nothing)
{
    const uint64_t first = alloc(env->pool, 1000), second = alloc(env->pool, 1000);
    struct pool_survey survey;
    uint64_t base;
    size_t size;

    release(first);
    release(second);
    assert_int_equal(stats_of(env->pool).idle, UNIT);
    pool_survey_get(env->pool, &survey);
    assert_int_equal(survey.idle, UNIT);
    assert_int_equal(pool_segment_find(first, &base, &size), -ENOENT);
    assert_int_equal(alloc(env->pool, 1000), second); /* the last one freed; of joined ones it would be the first */
    pool_survey_get(env->pool, &survey);
    assert_int_equal(survey.live, 1024);
    assert_int_equal(survey.holes, UNIT - 512 - 1024);
    assert_int_equal(survey.ranges, 2);
    assert_int_equal(pool_segment_find(first, &base, &size), 0);
    assert_int_equal(stats_of(env->pool).idle, 0);
}

/* More than a magazine holds, of more sizes than it has lists: nothing is lost, and nothing is asked for twice. */
POOL_CASE(test_more_than_fits)
{
    enum { COUNT = 3 * CACHED_MAX };
    static uint64_t addr[COUNT];
    unsigned int segments = 0;
    struct pool *pool;
    size_t block;

    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < COUNT; i++) {
            addr[i] = alloc(env->pool, 1 + (size_t)(i * 7 % 150) * 512);
            assert_int_equal(pool_live(addr[i], &pool, &block), 1 + (size_t)(i * 7 % 150) * 512);
            assert_ptr_equal(pool, env->pool);
            assert_in_range(block, 1 + (size_t)(i * 7 % 150) * 512, UNIT);
        }
        if (round == 0)
            segments = env->fake->calls[FAKE_ALLOC];
        assert_sound(env->pool, env->fake);
        release_all(addr, COUNT);
        assert_sound(env->pool, env->fake);
    }
    assert_true(env->fake->calls[FAKE_ALLOC] <= segments + segments / 4 + 1);
    assert_int_equal(stats_of(env->pool).live, 0);
}

/* A block that one thread frees is there for another, before the pool asks the driver. */
POOL_CASE(test_others_find_it)
{
    const uint64_t addr = alloc(env->pool, 4 * MIB);

    release(addr);
    move_on(env->pool);
    assert_int_equal(alloc(env->pool, 4 * MIB), addr);
    release(addr);
    move_on(env->pool);
    assert_int_equal(pool_trim(env->pool, "test"), 4 * MIB);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 1);
    assert_sound(env->pool, env->fake);
}

/* A block that could not be ordered when it was freed is ordered by a thread that can. */
POOL_CASE(test_others_order_it)
{
    const uint64_t addr = alloc(env->pool, 4 * MIB), other = alloc(env->pool, 6 * MIB);

    env->fake->order_rc = -EBUSY;
    release(addr);
    move_on(env->pool);
    env->fake->order_rc = 0;
    release(other);
    assert_int_equal(alloc(env->pool, 4 * MIB), addr);
    assert_sound(env->pool, env->fake);
}

static size_t hits_close_at_hand(struct pool *pool)
{
    size_t hits = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        hits += atomic_load(&pool->magazines[i].hits);
    return hits;
}

/* Frees that wait for company do not make requests look any further than others do. */
POOL_CASE(test_what_waited_comes_back_close_at_hand)
{
    const unsigned int home = magazine_index;

    ENV_WITH(env, deferred_min = 32 * MIB);
    /* Two threads' worth: each has its own, and neither's order is in the other's way. */
    for (int i = 0; i < 10000; i++) {
        magazine_index = home + (unsigned int)i % 2;
        release(alloc(env->pool, 4096));
    }
    magazine_index = home;
    assert_true(hits_close_at_hand(env->pool) > 10000 - 4 * DEFERRED_MAX);
    assert_true(env->fake->calls[FAKE_ORDER] < 10000 / DEFERRED_MAX + 2);
}

/* Large blocks wait for few others: there is slack for many more. */
POOL_CASE(test_few_large_ones_wait)
{
    uint64_t addr[2 * DEFERRED_LARGE_MAX + 2];

    ENV_WITH(env, deferred_min = 4096 * MIB);
    alloc_all(env->pool, addr, 2 * DEFERRED_LARGE_MAX + 2, 2 * MIB);
    for (size_t i = 0; i < 2 * DEFERRED_LARGE_MAX + 2; i++) {
        release(alloc(env->pool, MIB)); /* small ones do not count */
        release(addr[i]);
        assert_int_equal(env->fake->calls[FAKE_ORDER], (i + 1) / (DEFERRED_LARGE_MAX + 1));
    }
    assert_int_equal(deferred_bytes(env->pool), 0);
}

/* Beside other threads a small request of another size leaves what was freed last where it is, as long as something
 * else serves. */
POOL_CASE(test_another_size_joins_nothing)
{
    const uint64_t first = alloc(env->pool, 4 * KIB), last = alloc(env->pool, MIB);
    uint64_t known;

    move_on(env->pool);
    release(first);
    release(last);
    assert_int_not_equal(alloc(env->pool, 8 * KIB), first);
    assert_int_equal(alloc(env->pool, MIB), last);
    assert_int_equal(alloc(env->pool, 4 * KIB), first);
    release(last);
    known = env->pool->stats.peak_live;
    assert_int_equal(stats_of(env->pool).peak_live, MIB + 12 * KIB);
    assert_int_equal(env->pool->stats.peak_live, known); /* who looks changes nothing */
    assert_sound(env->pool, env->fake);
}

/* Kept blocks whose work is over when a request looks stay in the magazine, except the one that serves it. */
POOL_CASE(test_what_was_asked_for_stays_close_at_hand)
{
    uint64_t addr[20];

    ENV_WITH(env, deferred_min = 32 * MIB);
    alloc_all(env->pool, addr, 20, MIB);
    release_all(addr, 20);
    assert_int_equal(deferred_bytes(env->pool), 20 * MIB);
    env->fake->calls[FAKE_ALLOC] = 0;
    env->fake->prompt = true;
    alloc(env->pool, MIB);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 0);
    assert_int_equal(deferred_bytes(env->pool), 0);
    assert_int_equal(env->pool->magazines[magazine_index % MAGAZINES].cached_count, 19);
}

/* Once the slack is used up by other sizes, what was kept serves a request before the driver does. */
POOL_CASE(test_kept_serves_when_the_slack_is_used_up)
{
    uint64_t addr[4], last;

    ENV_WITH(env, deferred_min = 64 * MIB);
    env->fake->prompt = true;
    for (size_t size = 3 * MIB; size < 12 * MIB; size += 2 * MIB) {
        alloc_all(env->pool, addr, 4, size);
        release_all(addr, 4);
        pool_flush(env->pool);
    }
    assert_true(stats_of(env->pool).held > (44 + 64) * MIB);
    last = alloc(env->pool, 14 * MIB);
    release(last);
    assert_int_equal(deferred_bytes(env->pool), 14 * MIB);
    env->fake->calls[FAKE_ALLOC] = 0;
    assert_int_equal(alloc(env->pool, 14 * MIB), last);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 0);
}

POOL_CASE(test_withdrawn_is_in_no_magazine)
{
    const uint64_t addr = alloc(env->pool, 100), beside = alloc(env->pool, 100);

    release(addr);
    move_on(env->pool);
    assert_int_equal(pool_withdraw(beside), 0);
    assert_int_not_equal(alloc(env->pool, 100), addr);
    release(beside);
    assert_int_not_equal(alloc(env->pool, 100), beside);
    assert_sound(env->pool, env->fake);
}

static void *release_there(void *arg)
{
    release(*(const uint64_t *)arg);
    return NULL;
}

/* A block that no magazine may keep counts as handed out until it is off the books of the live: the statistics of that
 * moment would otherwise have more live bytes than their peak. */
POOL_CASE(test_on_its_way_to_the_pool)
{
    uint64_t addr = alloc(env->pool, 3 * MIB);
    const struct magazine *first = env->pool->magazines;
    pthread_t thread;

    assert_int_equal(pool_withdraw(addr), 0);
    lock_take(&env->pool->lock); /* which the other thread needs in order to give it back */
    assert_int_equal(pthread_create(&thread, NULL, release_there, &addr), 0);
    while (!atomic_load(&first->frees))
        give_way();
    magazine_visit(&env->pool->magazines[0]); /* until the other thread has left it */
    magazine_unlock(&env->pool->magazines[0]);
    assert_int_equal(handed_now(env->pool, env->pool->handed), live_bytes(env->pool));
    lock_give(&env->pool->lock);
    pthread_join(thread, NULL);
    assert_int_equal(handed_now(env->pool, env->pool->handed), 0);
    assert_int_equal(stats_of(env->pool).live, 0);
    assert_int_equal(stats_of(env->pool).peak_live, 3 * MIB);
    assert_sound(env->pool, env->fake);
}

/* --- side by side --- */

static atomic_bool over;

static void *churn(void *arg)
{
    struct pool *pool = arg;
    uint64_t addr[16];

    while (!atomic_load(&over)) {
        for (unsigned int i = 0; i < 16; i++)
            addr[i] = alloc(pool, (i % 3 + 1) * MIB);
        release_all(addr, 16);
    }
    return NULL;
}

/* Withdrawn, trimmed and looked at while threads use their magazines; meant for ThreadSanitizer, too. */
POOL_CASE(test_side_by_side)
{
    struct pool_stats stats;
    pthread_t threads[4];

    atomic_store(&over, false);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, env->pool), 0);
    for (int i = 0; i < 300; i++) {
        const uint64_t addr = alloc(env->pool, i % 2 ? 2 * MIB : 1000);

        if (i % 3 == 0)
            assert_int_equal(pool_withdraw(addr), 0);
        release(addr);
        if (i % 7 == 0)
            pool_trim(env->pool, "test");
        stats = stats_of(env->pool);
        assert_true(stats.peak_live >= stats.live && stats.held >= stats.live + stats.idle);
        if (i % 50 == 0)
            pool_decay(env->pool, 2);
        give_way();
    }
    atomic_store(&over, true);
    join_all(threads, 4);
    stats = stats_of(env->pool);
    assert_int_equal(stats.live, 0);
    assert_int_equal(stats.allocs, stats.frees);
    assert_sound(env->pool, env->fake);
    pool_trim(env->pool, "test");
    assert_int_equal(stats_of(env->pool).held, 0);
}
