/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deferred.c - blocks deferred in several magazines: how many bytes each may defer, and which call orders them
 * when the magazine's own threads do not.
 *
 * The threads are one thread that uses several magazines in turn.
 */
#include <errno.h>

#include "unit.h"

#include "deferred.h"
#include "magazine.h" /* which one a request uses */

/* From now on this thread uses a magazine that it has not used so far. */
static void move_on(struct pool *pool)
{
    magazine_index++;
    magazine_enter(pool);
    lock_give(&magazine_own(pool)->lock);
}

static int setup(void **state)
{
    magazine_index = 0;
    return env_setup(state);
}

#define KEPT_CASE(name) ENV_CASE(name, setup, env_teardown)

/* A share of the slack for each: side by side they keep no more than one. */
KEPT_CASE(test_slack_is_shared)
{
    uint64_t addr[64];

    ENV_WITH(env, deferred_min = 32 * MIB);
    alloc_all(env->pool, addr, 64, 2 * MIB);
    for (int i = 0; i < 64; i++) {
        release(addr[i]);
        assert_true(deferred_bytes(env->pool) <= 32 * MIB);
        move_on(env->pool);
    }
    assert_true(env->fake->calls[FAKE_ORDER] > 0);
}

/* Blocks that other threads keep beyond their share, because no thread could order them, are ordered by one that
 * can. */
KEPT_CASE(test_others_order_what_is_too_much)
{
    uint64_t addr[12];

    ENV_WITH(env, deferred_min = 16 * MIB);
    alloc_all(env->pool, addr, 12, 2 * MIB);
    env->fake->order_rc = -EBUSY;
    release_all(addr, 11);
    env->fake->order_rc = 0;
    assert_int_equal(deferred_bytes(env->pool), 22 * MIB);
    move_on(env->pool);
    assert_int_equal(pool_free_later(alloc(env->pool, 8 * MIB)), 0);
    release(addr[11]);
    assert_int_equal(deferred_bytes(env->pool), 0);
}

/* Blocks that wait in magazines to which no thread comes any more are ordered by and by, and have a share no longer. */
KEPT_CASE(test_what_ended_threads_kept_is_ordered)
{
    const unsigned int home = magazine_index;
    uint64_t addr[MAGAZINES];

    ENV_WITH(env, deferred_min = 32 * MIB);
    alloc_all(env->pool, addr, MAGAZINES, MIB / 2);
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        magazine_index = home + i;
        release(addr[i]);
    }
    magazine_index = home;
    assert_int_equal(deferred_bytes(env->pool), MAGAZINES * MIB / 2);
    while (env->fake->calls[FAKE_ORDER] < 2 * MAGAZINES) /* each is looked at twice */
        release(alloc(env->pool, MIB / 2));
    assert_true(deferred_bytes(env->pool) <= 2 * MIB); /* its own */
    pool_decay(env->pool, 100);
    env->fake->calls[FAKE_ORDER] = 0;
    for (unsigned int i = 0; i < 200; i++)
        release(alloc(env->pool, MIB / 2));
    assert_true(env->fake->calls[FAKE_ORDER] <= 5);
}

/* Deferred blocks make requests break into free memory. Once the driver has refused, the card cannot afford that: each
 * free is ordered at once, and the budget comes back little by little. */
KEPT_CASE(test_after_a_refusal_nothing_is_deferred)
{
    uint64_t addr[8], refused;

    ENV_WITH(env, deferred_min = 32 * MIB);
    alloc_all(env->pool, addr, 8, 2 * MIB);
    env->fake->capacity = 8 * 2 * MIB;
    assert_int_equal(pool_alloc(env->pool, 2 * MIB, &refused), -ENOMEM);
    env->fake->calls[FAKE_ORDER] = 0;
    for (unsigned int i = 0; i < 8; i++) {
        release(addr[i]);
        assert_int_equal(env->fake->calls[FAKE_ORDER], i + 1);
        assert_int_equal(deferred_bytes(env->pool), 0);
    }
    for (int i = 0; i < 1000 && !deferred_bytes(env->pool); i++)
        release(alloc(env->pool, 2 * MIB));
    assert_true(deferred_bytes(env->pool) > 0);
    assert_true(env->fake->calls[FAKE_ORDER] > 100);
}

/* A thread that has moved from one magazine to the next has all of the slack again after a while. */
KEPT_CASE(test_empty_magazines_have_no_share)
{
    uint64_t addr[8];

    ENV_WITH(env, deferred_min = 16 * MIB);
    alloc_all(env->pool, addr, 8, 2 * MIB);
    for (int i = 0; i < 4; i++) {
        move_on(env->pool);
        assert_int_equal(pool_free_later(alloc(env->pool, 2 * MIB)), 0);
    }
    pool_trim(env->pool, "test");
    pool_decay(env->pool, 100);
    release_all(addr, 8);
    assert_int_equal(deferred_bytes(env->pool), 16 * MIB);
}

/* Threads that go on freeing order their own: nobody fetches it from them, and with it the lines of its blocks. */
KEPT_CASE(test_who_goes_on_is_left_alone)
{
    const unsigned int home = magazine_index;
    const struct magazine *other;
    unsigned int orders;

    ENV_WITH(env, deferred_min = 32 * MIB);
    other = &env->pool->magazines[(home + 1) % MAGAZINES];
    for (unsigned int i = 0; i < 2 * MAGAZINES; i++) {
        magazine_index = home + 1;
        release(alloc(env->pool, 4 * KIB + i * POOL_GRANULE)); /* a size of its own, so that nothing is asked for */
        magazine_index = home;
        for (orders = env->fake->calls[FAKE_ORDER]; env->fake->calls[FAKE_ORDER] == orders;)
            release(alloc(env->pool, MIB));
        assert_int_equal(other->deferred_count, i + 1);
    }
}

/* Of the others, an order takes along what one of them keeps: each in its turn, if nobody has freed into it since its
 * last turn. */
KEPT_CASE(test_one_other_in_its_turn)
{
    enum { OTHERS = 3, ORDERS = 14 };
    uint64_t addr[ORDERS];

    ENV_WITH(env, deferred_min = 64 * MIB);
    for (unsigned int i = 0; i < ORDERS; i++)
        addr[i] = alloc(env->pool, 40 * MIB); /* too large to wait */
    for (unsigned int i = 1; i <= OTHERS; i++) {
        magazine_index = i;
        release(alloc(env->pool, 4 * MIB));
    }
    for (unsigned int order = 0; order < ORDERS; order++) {
        magazine_index = 0;
        release(addr[order]);
        if (order == 5) { /* this thread is there again */
            magazine_index = 3;
            release(alloc(env->pool, 4 * MIB));
        }
        for (unsigned int i = 1; i <= OTHERS; i++) {
            /* Its turns are the orders i, i + 4, ...: in the first one it is seen to have been used. */
            const unsigned int goes = i < 3 ? i + 4 : 11, kept = i == 3 && order >= 5 ? 2 : 1;

            assert_int_equal(env->pool->magazines[i].deferred_count, order < goes ? kept : 0);
        }
    }
    magazine_index = 0;
}

/* While nothing can be ordered what is kept is not taken up, or each free would cost as much as all before it. */
KEPT_CASE(test_frozen_frees_leave_alone_what_is_kept)
{
    const struct block *block;
    uint64_t addr[20];

    alloc_all(env->pool, addr, 20, 4 * MIB);
    env->fake->frozen = true;
    env->fake->order_rc = -EBUSY;
    release_all(addr, 20);
    block = env->pool->magazines[0].deferred;
    for (unsigned int i = 20; i-- > 0; block = block->link)
        assert_int_equal(block->addr, addr[i]); /* the last one first */
    assert_null(block);
    env->fake->frozen = false;
}

static size_t left; /* bytes that are still deferred during an order */

static int order_looks(struct fake *fake)
{
    left = deferred_bytes(fake->user);
    return fake->order_rc;
}

/* But a free that waits although nothing else can be ordered, as beside a capture, publishes them as well: unless the
 * free before it has failed. */
KEPT_CASE(test_frozen_frees_publish_what_is_kept)
{
    static const struct {
        int rc;
        size_t left, then; /* MiB during the free, and after it */
    } frees[] = {{0, 0, 0}, {0, 0, 0}, {-EBUSY, 0, 8}, {-EBUSY, 12, 16}, {0, 20, 20}, {0, 0, 0}};
    uint64_t addr[2 * sizeof(frees) / sizeof(frees[0])];

    alloc_all(env->pool, addr, sizeof(addr) / sizeof(addr[0]), 4 * MIB);
    env->fake->user = env->pool;
    env->fake->order_hook = order_looks;
    env->fake->frozen = true;
    for (unsigned int i = 0; i < sizeof(frees) / sizeof(frees[0]); i++) {
        env->fake->order_rc = frees[i].rc;
        assert_int_equal(pool_free_later(addr[2 * i]), 0);
        release(addr[2 * i + 1]);
        assert_int_equal(left, frees[i].left * MIB);
        assert_int_equal(deferred_bytes(env->pool), frees[i].then * MIB);
    }
    env->fake->frozen = false;
}

/* However small: once they are ordered there has to be place for them. Fewer large ones, whose memory others need. */
KEPT_CASE(test_128_wait_at_the_most)
{
    static const struct {
        size_t size;
        unsigned int most;
    } rows[] = {{4 * KIB, 128}, {LARGE_MIN, 32}};

    for (unsigned int row = 0; row < 2; row++) {
        const unsigned int turn = rows[row].most + 1, count = 2 * turn + 9;
        uint64_t addr[300];

        ENV_WITH(env, deferred_min = 1024 * MIB);
        alloc_all(env->pool, addr, count, rows[row].size);
        env->fake->calls[FAKE_ORDER] = 0;
        for (unsigned int i = 0; i < count; i++) {
            release(addr[i]);
            assert_int_equal(env->fake->calls[FAKE_ORDER], (i + 1) / turn);
            assert_int_equal(env->pool->magazines[0].deferred_count, (i + 1) % turn);
        }
        pool_trim(env->pool, "test");
    }
}

/* Memory that streams have freed is ordered when the program has waited, once all work has ended; else it stays. */
KEPT_CASE(test_flush_later)
{
    const struct magazine *own = &env->pool->magazines[0];
    const struct block *first;
    uint64_t addr[3];

    env->fake->prompt = true;
    alloc_all(env->pool, addr, 3, 4 * MIB);
    pool_flush_later(env->pool);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    assert_false(pool_later_any());
    assert_int_equal(pool_free_later(addr[0]) + pool_free_later(addr[1]), 0);
    assert_int_equal(pool_later_count, 1);
    first = own->deferred;
    env->fake->frozen = true;
    pool_flush_later(env->pool);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    env->fake->frozen = false;
    env->fake->order_rc = -EBUSY;
    pool_flush_later(env->pool);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 1);
    assert_int_equal(env->fake->how, POOL_ORDER_ASK);
    assert_ptr_equal(own->deferred, first);
    assert_ptr_equal(first->freed_by, &magazine_index);
    assert_int_equal(pool_later_count, 1);
    env->fake->order_rc = 0;
    pool_flush_later(env->pool);
    assert_null(own->deferred);
    assert_false(pool_later_any());
    release(addr[2]);
}

/* A free has ordered them meanwhile: nothing is asked. */
KEPT_CASE(test_flush_later_after_a_free)
{
    uint64_t addr[2];

    env->fake->prompt = true;
    alloc_all(env->pool, addr, 2, 4 * MIB);
    assert_int_equal(pool_free_later(addr[0]), 0);
    release(addr[1]);
    env->fake->calls[FAKE_ORDER] = 0;
    pool_flush_later(env->pool);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    assert_false(pool_later_any());
}

static int order_launched(struct fake *fake)
{
    fake->order_hook = NULL;
    fake->order_rc = -EBUSY;
    return 0;
}

/* Work comes between the question and the order: they wait for the next time. So does what `relaxed` defers, which
 * alone is left alone. */
KEPT_CASE(test_flush_later_beside_work)
{
    uint64_t addr[3];

    ENV_WITH(env, deferred_min = 64 * MIB);
    env->fake->prompt = true;
    alloc_all(env->pool, addr, 3, 4 * MIB);
    release(addr[0]);
    pool_flush_later(env->pool);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
    assert_int_equal(pool_free_later(addr[1]), 0);
    env->fake->order_hook = order_launched;
    pool_flush_later(env->pool);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 2);
    assert_int_equal(deferred_bytes(env->pool), 8 * MIB);
    assert_true(pool_later_any());
    env->fake->order_rc = 0;
    pool_flush_later(env->pool);
    assert_int_equal(deferred_bytes(env->pool), 0);
    assert_false(pool_later_any());
    release(addr[2]);
}

/* A pool that is destroyed takes its mark along. */
KEPT_CASE(test_flush_later_destroyed)
{
    const struct pool_config config = fake_config(env->fake);
    struct pool *pool;

    assert_int_equal(pool_create(&config, &pool), 0);
    assert_int_equal(pool_free_later(alloc(pool, 4 * MIB)), 0);
    assert_true(pool_later_any());
    pool_destroy(pool);
    assert_false(pool_later_any());
}

static bool none_has_ended(void *arg, uint64_t ret_ended[POOL_PLACES])
{
    memset(ret_ended, 0, POOL_PLACES * sizeof(ret_ended[0]));
    return true;
}

/* The first deferred block becomes the second. */
static void swap_deferred(struct magazine *magazine)
{
    struct block *first = magazine->deferred, *second = first->link;

    first->link = second->link;
    second->link = first;
    magazine->deferred = second;
}

/* Whose frees are deferred: what cudaFreeAsync has freed is not free yet natively, and nobody's business, unless
 * nothing is known of its work. */
KEPT_CASE(test_whose_frees)
{
    struct pool_config config = fake_config(env->fake);
    static struct pool_order_ops order;
    uint64_t addr[4];

    config.deferred_min = 64 * MIB;
    order = *config.order;
    order.freed_async_ended = none_has_ended;
    config.order = &order;
    env_pool(env, &config);
    alloc_all(env->pool, addr, 4, 2 * MIB);
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_NONE);
    assert_int_equal(pool_free_async(addr[3], POOL_PLACES), 0);
    env->fake->how = POOL_ORDER_FREE;
    env->pool->shown.budget = 32 * MIB;
    pool_trim(env->pool, "test");
    assert_int_equal(env->fake->how, POOL_ORDER_FREE);   /* nothing is ordered */
    assert_int_equal(env->pool->shown.budget, 32 * MIB); /* so nothing is learnt from it */
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_NONE);
    release(addr[0]);
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_OWN);
    env->pool->magazines[0].deferred->freed_by = NULL; /* another thread's */
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_OTHERS);
    release(addr[1]); /* this one is the thread's own */
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_OWN);
    swap_deferred(&env->pool->magazines[0]);
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_OWN);
    pool_trim(env->pool, "test");
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_NONE);
    assert_int_equal(pool_free_async(addr[2], POOL_FREED_UNMARKED), 0);
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_UNKNOWN);
    release(alloc(env->pool, 2 * MIB));
    assert_int_equal(pool_free_async(alloc(env->pool, 2 * MIB), POOL_FREED_UNMARKED), 0);
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_OWN);
    pool_trim(env->pool, "test");
    config.deferred_min = 0;
    env_pool(env, &config);
    release_unordered(env, alloc(env->pool, 2 * MIB));
    assert_int_equal(pool_deferred_by(env->pool), POOL_DEFERRED_OWN);
}

static bool all_have_ended(void *arg, uint64_t ret_ended[POOL_PLACES])
{
    memset(ret_ended, 0xff, POOL_PLACES * sizeof(ret_ended[0]));
    return true;
}

static int refuse_fill(void *arg, uint64_t addr, size_t size, bool shared, bool fresh)
{
    return fresh ? 0 : -EBUSY;
}

/* Blocks that a stream's word has published widen the budget again, if they could be filled. */
KEPT_CASE(test_streams_word_widens_the_budget)
{
    struct pool_config config = fake_config(env->fake);
    struct pool_order_ops order = *config.order;
    uint64_t addr[2];

    config.deferred_min = 64 * MIB;
    order.freed_async_ended = all_have_ended;
    config.order = &order;
    env_pool(env, &config);
    alloc_all(env->pool, addr, 2, 2 * MIB);
    env->pool->shown.budget = 8 * MIB;
    order.fill = refuse_fill;
    assert_int_equal(pool_free_async(addr[0], 1000000 * POOL_PLACES - 1), 0); /* of the last place */
    pool_flush(env->pool);
    assert_int_equal(deferred_bytes(env->pool), 2 * MIB);
    assert_true(deferred_async_any(env->pool));
    assert_int_equal(env->pool->shown.budget, 8 * MIB);
    order.fill = NULL;
    pool_flush(env->pool);
    assert_int_equal(deferred_bytes(env->pool), 0);
    assert_true(env->pool->shown.budget > 8 * MIB);
    assert_false(deferred_async_any(env->pool) || env->pool->shown.asking);
    ENV_WITH(env, deferred_min = 0); /* the operations are this function's */
}
