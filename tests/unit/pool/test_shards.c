/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shards.c - segments that belong to magazines: who serves small requests of random sizes from them, what becomes
 * of what is free in those of others, and that all of it is still one pool.
 *
 * The threads are one that uses several magazines in turn, so that each run is the same; threads of their own are in
 * test_threads.c.
 */
#include "unit.h"

#include "descriptors.h"
#include "magazine.h" /* which one a request uses */
#include "map.h"

static uint64_t alloc_at(struct pool *pool, unsigned int place, size_t size)
{
    magazine_index = place;
    return alloc(pool, size);
}

static void release_at(unsigned int place, uint64_t addr)
{
    magazine_index = place;
    release(addr);
}

static int setup(void **state)
{
    magazine_index = 0;
    return env_setup(state);
}

static int teardown(void **state)
{
    magazine_index = 0;
    return env_teardown(state);
}

#define SHARDS_CASE(name) ENV_CASE(name, setup, teardown)

static size_t carved(struct pool *pool, unsigned int place)
{
    return atomic_load(&pool->magazines[place].carved);
}

/* Four threads that each have 256 slots, sizes from 256 B to 4 MiB: of the requests under 2 MiB, 13 of 14, few take a
 * lock that is not their magazine's. */
SHARDS_CASE(test_random_sizes_take_no_common_lock)
{
    enum { THREADS = 4, SLOTS = 256 };
    static uint64_t slots[THREADS][SLOTS];
    uint64_t seed = 1;
    size_t small = 0, own = 0;

    memset(slots, 0, sizeof(slots));
    for (unsigned int i = 0; i < 40000; i++) {
        uint64_t *slot = &slots[i % THREADS][rng_below(&seed, SLOTS)];
        const size_t low = (size_t)256 << rng_below(&seed, 14), size = low + rng_below(&seed, low);

        if (*slot)
            release_at(i % THREADS, *slot);
        else
            small += rounded(size) < UNIT;
        *slot = *slot ? 0 : alloc_at(env->pool, i % THREADS, size);
    }
    for (unsigned int i = 0; i < THREADS; i++)
        own += atomic_load(&env->pool->magazines[i].hits) + carved(env->pool, i);
    assert_true(own > small / 100 * 93);
    assert_sound(env->pool, env->fake);
}

/* With one magazine in use it does not matter which: blocks lie where they would. */
SHARDS_CASE(test_one_thread_gets_the_same_places_anywhere)
{
    enum { SLOTS = 64, OPS = 4000 };
    static size_t places_of[2][OPS];

    for (unsigned int run = 0; run < 2; run++) {
        struct fake *fake = fake_new();
        const struct pool_config config = fake_config(fake);
        struct pool *pool = pool_new(&config);
        uint64_t slots[SLOTS] = {0}, seed = 7;

        fake->addresses = FAKE_UP;
        for (unsigned int i = 0; i < OPS; i++) {
            uint64_t *slot = &slots[rng_below(&seed, SLOTS)];
            const size_t low = (size_t)512 << rng_below(&seed, 13), size = low + rng_below(&seed, low);

            if (*slot)
                release_at(5 * run, *slot);
            *slot = *slot ? 0 : alloc_at(pool, 5 * run, size);
            places_of[run][i] = *slot ? (size_t)(*slot - fake->base) : 0;
        }
        pool_destroy(pool);
        fake_delete(fake);
    }
    assert_memory_equal(places_of[0], places_of[1], sizeof(places_of[0]));
}

/* Before the pool grows, what is free in segments of another magazine serves, and if that is much the segment changes
 * its owner. */
SHARDS_CASE(test_what_others_have_serves)
{
    static const struct {
        size_t live, requested; /* of a segment, and then by another thread */
        bool moves;
    } cases[] = {
        {0, 512, true},
        {0, MIB, true},
        {512, MIB, true},
        {MIB, MIB - 4 * KIB, true},
        {UNIT - UNIT / 8 - 512, UNIT / 8, true},
        {UNIT - UNIT / 16, UNIT / 16 - 4 * KIB, false},
        {UNIT - 4 * KIB, 1 * KIB, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const uint64_t whole = alloc_at(env->pool, 0, UNIT - 512);
        uint64_t live = 0, addr;
        unsigned int segments;

        release_at(0, whole);
        pool_decay(env->pool, 100); /* it is no recent block any more */
        segments = env->fake->calls[FAKE_ALLOC];
        if (cases[i].live)
            live = alloc_at(env->pool, 0, cases[i].live);
        addr = alloc_at(env->pool, 1, cases[i].requested);
        assert_int_equal(env->fake->calls[FAKE_ALLOC], segments);
        assert_int_equal(map_segment_get(addr)->owner - env->pool->magazines, cases[i].moves);
        assert_sound(env->pool, env->fake);
        if (live)
            release_at(1, live);
        release_at(0, addr);
        assert_int_equal(stats_of(env->pool).live, 0);
        pool_trim(env->pool, "test");
        assert_int_equal(env->fake->in_use, 0);
        assert_sound(env->pool, env->fake);
    }
}

/* A block that another thread has freed is handed out by its magazine, in every shard, and stays there whole. */
SHARDS_CASE(test_what_another_one_freed_is_found_there)
{
    for (unsigned int i = 0; i < 9; i++) {
        const unsigned int from = i / 3, to = i % 3;
        uint64_t addr;

        ENV_WITH(env, limit = 0); /* another pool, in which the other one has nothing */
        addr = alloc_at(env->pool, from, 4 * KIB);
        release_at(from, addr);
        assert_int_equal(alloc_at(env->pool, to, 4 * KIB), addr);
        assert_int_equal(atomic_load(&env->pool->magazines[from].hits), 1);
    }
}

/* The rest of a segment that has come from another magazine serves the next requests without a look at others. */
SHARDS_CASE(test_the_rest_of_what_came_is_carved)
{
    release_at(0, alloc_at(env->pool, 0, MIB));
    alloc_at(env->pool, 1, 300 * KIB);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(carved(env->pool, 1), i);
        alloc_at(env->pool, 1, (300 + i) * KIB + 1);
    }
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 1);
    assert_sound(env->pool, env->fake);
}

/* A block that another thread has freed waits in its magazine, for every size, and joins before the pool grows. */
SHARDS_CASE(test_what_another_thread_freed_joins)
{
    static const size_t sizes[] = {4 * KIB, 100 * KIB, 300 * KIB, UNIT / 2, 3 * MIB};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const size_t count = sizes[i] < UNIT ? (UNIT - 512) / sizes[i] : 1;
        uint64_t addr[512];
        unsigned int segments;

        for (size_t k = 0; k < count; k++)
            addr[k] = alloc_at(env->pool, 0, sizes[i]);
        segments = env->fake->calls[FAKE_ALLOC];
        for (size_t k = 0; k < count; k++)
            release_at(1, addr[k]);
        assert_sound(env->pool, env->fake);
        addr[0] = alloc_at(env->pool, 0, sizes[i] < UNIT ? UNIT - 512 : sizes[i] - MIB / 2);
        assert_int_equal(env->fake->calls[FAKE_ALLOC], segments);
        release_at(0, addr[0]);
        pool_trim(env->pool, "test");
        assert_sound(env->pool, env->fake);
    }
}

/* Blocks above the close sizes join in their magazine as soon as a request for another such size comes. */
SHARDS_CASE(test_sizes_between_join)
{
    uint64_t addr[5];

    for (size_t i = 0; i < 5; i++)
        addr[i] = alloc_at(env->pool, 1, (300 + i) * KIB);
    for (size_t i = 0; i < 5; i++)
        release_at(1, addr[i]);
    assert_int_equal(alloc_at(env->pool, 1, UNIT - 512), addr[0]);
    assert_int_equal(carved(env->pool, 1), 5);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 1);
}

static size_t descriptors(struct pool *pool)
{
    size_t count = pool->spares.count + pool->spares_common.count;

    for (unsigned int i = 0; i < MAGAZINES; i++) {
        assert_true(pool->magazines[i].spares.count <= 2 * SPARES_CHUNK);
        count += pool->magazines[i].spares.count;
    }
    return count;
}

/* One thread splits, another one gets the segment and merges: descriptors come back to the first, for ever. */
SHARDS_CASE(test_descriptors_go_round)
{
    enum { COUNT = 1000 };
    static uint64_t addr[COUNT];
    size_t most = 0;

    for (unsigned int round = 0; round < 20; round++) {
        uint64_t whole;

        for (size_t i = 0; i < COUNT; i++)
            addr[i] = alloc_at(env->pool, round % 3, 2 * KIB);
        for (size_t i = 0; i < COUNT; i++)
            release_at(round % 3, addr[i]);
        whole = alloc_at(env->pool, (round + 1) % 3, UNIT - 512);
        if (round == 5)
            most = descriptors(env->pool);
        assert_true(round <= 5 || descriptors(env->pool) <= most);
        release_at((round + 1) % 3, whole);
    }
    assert_int_equal(env->fake->calls[FAKE_ALLOC], 1);
    assert_sound(env->pool, env->fake);
}

/*
 * A full card: small blocks are freed in no order, and every other one's memory is cached or deferred when larger
 * requests come, perhaps with a pair of the small size between them. All of the card serves them, as natively. budget:
 * of deferred bytes.
 */
static void small_ones_freed(struct env *env, size_t budget, size_t small, size_t larger, bool pairs)
{
    enum { CARD = 256, MOST = CARD * 32 };
    static uint64_t addr[MOST];
    struct pool_config config = fake_config(env->fake);
    uint64_t seed = 1, other;
    size_t count = 0, served = 0;

    config.capacity = env->fake->capacity = CARD * MIB;
    config.deferred_min = budget;
    env_pool(env, &config);
    while (count < MOST && !pool_alloc(env->pool, small, &addr[count]))
        count++;
    for (size_t left = count; left; left--) {
        const size_t i = rng_below(&seed, left);

        release(addr[i]);
        addr[i] = addr[left - 1];
    }
    for (; !pool_alloc(env->pool, larger, &other); served++)
        if (pairs && !pool_alloc(env->pool, small, &other))
            release(other);
    assert_int_equal(served, CARD * MIB / UNIT * (UNIT / larger));
    assert_sound(env->pool, env->fake);
}

SHARDS_CASE(test_full_card_serves_larger_requests_between_cached_blocks)
{
    small_ones_freed(env, 0, 64 * KIB, MIB, /* pairs: */ false);
}

SHARDS_CASE(test_full_card_serves_larger_requests_though_cached_blocks_serve_others)
{
    small_ones_freed(env, 0, 64 * KIB, MIB, /* pairs: */ true);
}

SHARDS_CASE(test_full_card_serves_larger_requests_between_deferred_blocks)
{
    env->fake->prompt = true;
    small_ones_freed(env, 24 * MIB, 32 * KIB, 128 * KIB, /* pairs: */ false);
}

/* The host may not wait; the device does, for what this thread has freed. */
SHARDS_CASE(test_full_card_serves_larger_requests_beside_work)
{
    small_ones_freed(env, 24 * MIB, 32 * KIB, MIB, /* pairs: */ false);
}
