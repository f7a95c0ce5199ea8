/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_races.c - calls that find a segment by its address, and have its locks only when it has gone: another thread
 * gives it back just before, and perhaps another pool has its memory and its descriptor by then.
 *
 * checked_lock.h and a wrapped map_find let that happen, so one thread does it all.
 */
#include "unit.h"

#include "map.h"
#include "pool_state.h"
#include "wrapped.h"

/* From checked_lock.h, which is for the pool's own sources. */
extern _Thread_local void (*lock_hook)(struct lock *lock);

static struct two {
    struct fake *fake;
    struct pool *first, *second;
    uint64_t addr;                 /* of a block, freed, whose segment is idle */
    const struct segment *segment; /* its descriptor */
    bool moves;                    /* the second pool gets the memory */
} two;

static void another_thread(struct lock *lock)
{
    lock_hook = NULL;
    assert_true(pool_trim(two.first, "race") > 0);
    if (!two.moves)
        return;
    assert_int_equal(alloc(two.second, 8 * MIB), two.addr);
    assert_ptr_equal(map_segment_get(two.addr), two.segment);
}

static void prepare(bool moves)
{
    struct pool_config config;

    two = (struct two){.fake = fake_new(), .moves = moves};
    config = fake_config(two.fake);
    two.first = pool_new(&config);
    two.second = pool_new(&config);
    two.addr = alloc(two.first, 8 * MIB);
    release(two.addr);
    two.segment = map_segment_get(two.addr);
    lock_hook = another_thread;
}

/* The call has had no effect. */
static void see(void)
{
    assert_null(lock_hook); /* or nothing happened before the lock */
    assert_ptr_equal(pool_of(two.addr), two.moves ? two.second : NULL);
    assert_int_equal(pool_live_size(two.addr), two.moves ? 8 * MIB : 0);
    assert_int_equal(two.fake->calls[FAKE_SEGMENT_LOST], 0);
    assert_at_rest(two.first, two.fake);
    assert_at_rest(two.second, two.fake);
    if (two.moves) { /* nor is the segment withdrawn */
        release(two.addr);
        assert_int_equal(alloc(two.second, 8 * MIB), two.addr);
    }
    pool_destroy(two.first);
    pool_destroy(two.second);
    fake_delete(two.fake);
}

static void withdraw(void)
{
    assert_int_equal(pool_withdraw(two.addr), -ENOENT);
}

static void disown(void)
{
    pool_disown(two.addr, UNIT);
}

static void segment_find(void)
{
    uint64_t base;
    size_t size;

    assert_int_equal(pool_segment_find(two.addr, &base, &size), -ENOENT);
}

static void block_find(void)
{
    uint64_t base, segment;
    size_t size;

    assert_int_equal(pool_block_find(two.addr, &base, &size, &segment), -ENOENT);
}

UNIT_CASE(test_calls_find_the_segment_gone)
{
    void (*const calls[])(void) = {withdraw, disown, segment_find, block_find};

    alarm(DEADLOCK_SECONDS);
    for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++)
        for (int moves = 0; moves < 2; moves++) {
            prepare(moves);
            calls[i]();
            see();
        }
}

/* --- a free that loses its block between the lookup and the claim --- */

static struct lost {
    struct env *env;
    uint64_t addr, other;
    struct block *block; /* the descriptor that the lookup has found */
    bool due;            /* the next lookup of addr */
} lost;

/* Another thread frees the block, and the descriptor comes to be that of a block elsewhere, before the caller goes on.
 */
WRAPPED(struct segment *, map_find, (uint64_t addr, struct block **ret_block))
{
    struct segment *segment = __real_map_find(addr, ret_block);

    if (!lost.due || addr != lost.addr)
        return segment;
    lost.due = false;
    lost.block = *ret_block;
    release(addr);
    assert_true(pool_trim(lost.env->pool, "race") > 0);
    lost.env->fake->addresses = FAKE_DOWN;
    lost.other = alloc(lost.env->pool, 8 * MIB);
    return segment;
}

/* It is a double free; the other block is nobody's to touch. */
static void block_survives(struct env *env, int (*free_it)(uint64_t addr))
{
    lost = (struct lost){.env = env, .addr = alloc(env->pool, 8 * MIB), .due = true};
    assert_int_equal(free_it(lost.addr), -EINVAL);
    assert_false(lost.due);
    assert_int_not_equal(lost.other, lost.addr);
    assert_ptr_equal(map_block_get(lost.other), lost.block); /* or there was no race */
    assert_int_equal(pool_live_size(lost.other), 8 * MIB);
    assert_int_equal(stats_of(env->pool).live, 8 * MIB);
    assert_at_rest(env->pool, env->fake);
    release(lost.other);
    assert_int_equal(stats_of(env->pool).live, 0);
}

POOL_CASE(test_free_finds_the_block_elsewhere)
{
    block_survives(env, pool_free);
}

POOL_CASE(test_free_later_finds_the_block_elsewhere)
{
    block_survives(env, pool_free_later);
}

POOL_CASE(test_free_never_finds_the_block_elsewhere)
{
    block_survives(env, pool_free_never);
}
