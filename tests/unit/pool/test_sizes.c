/* SPDX-License-Identifier: Apache-2.0 */
/* test_sizes.c - requests of sizes that never come again: small ones are served by what was freed of about their size,
 * and what is large joins its neighbours before the next one is served. */
#include "unit.h"

#include "magazine.h" /* what the magazines have */

static size_t hits_close_at_hand(const struct pool *pool)
{
    size_t hits = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        hits += atomic_load(&pool->magazines[i].hits);
    return hits;
}

/* A small block serves requests of about its size. */
POOL_CASE(test_close_sizes_find_each_other)
{
    static const struct {
        size_t freed, requested;
        bool close;
    } cases[] = {
        {16 * KIB, 16 * KIB - 511, true},
        {16 * KIB, 16 * KIB - 512, false},
        {32 * KIB, 31 * KIB + 1, true},
        {32 * KIB, 31 * KIB, false},
        {248 * KIB + 1, 256 * KIB, true},
        {248 * KIB, 256 * KIB, false},
        {256 * KIB + 1, 256 * KIB, false},
        {300 * KIB, 300 * KIB - 512, false},
        {300 * KIB, 300 * KIB - 511, true},
        {1, 512, true},
        {513, 512, false},
        {129 * KIB, 136 * KIB, true},
        {128 * KIB, 128 * KIB + 512, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const uint64_t freed = alloc(env->pool, cases[i].freed);
        const size_t hits = hits_close_at_hand(env->pool);
        struct pool *pool;
        uint64_t addr;
        size_t block;

        release(freed);
        addr = alloc(env->pool, cases[i].requested);
        assert_int_equal(hits_close_at_hand(env->pool) - hits, cases[i].close);
        assert_int_equal(pool_live(addr, &pool, &block), cases[i].requested);
        assert_in_range(block, cases[i].requested, cases[i].requested + cases[i].requested / 16 + 511);
        release(addr);
        assert_sound(env->pool, env->fake);
        pool_trim(env->pool, "test");
    }
}

/* Sizes that never come again: most requests and frees take no lock but their magazine's. */
POOL_CASE(test_random_sizes_are_close_at_hand)
{
    uint64_t addr[256] = {0}, seed = 1;
    size_t allocs = 0;

    for (int i = 0; i < 20000; i++) {
        uint64_t *slot = &addr[rng_below(&seed, 256)];
        const size_t octave = (size_t)256 << rng_below(&seed, 10); /* up to 256 KiB */

        if (*slot)
            release(*slot);
        else
            allocs++;
        *slot = *slot ? 0 : alloc(env->pool, octave + rng_below(&seed, octave));
    }
    assert_true(hits_close_at_hand(env->pool) > allocs / 3 * 2);
}

/* Large ones of sizes that never come again join with the next request that takes the lock; until then nothing is lost,
 * and in the end nothing is asked for twice. */
POOL_CASE(test_large_sizes_of_all_kinds)
{
    enum { COUNT = 2 * CACHED_MAX };
    static uint64_t addr[COUNT];

    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < COUNT; i++)
            addr[i] = alloc(env->pool, 2 * MIB + i * 512);
        assert_sound(env->pool, env->fake);
        release_all(addr, COUNT);
        assert_sound(env->pool, env->fake);
        assert_int_equal(stats_of(env->pool).live, 0);
        assert_int_equal(stats_of(env->pool).idle, stats_of(env->pool).held);
    }
    assert_int_equal(env->fake->calls[FAKE_ALLOC], COUNT);
    alloc(env->pool, 300 * MIB); /* another one leaves the small ones alone */
    pool_trim(env->pool, "test");
    assert_int_equal(stats_of(env->pool).held, 300 * MIB);
}

/* A large block that has just been freed serves the next large request, before a larger one is split. */
POOL_CASE(test_large_ones_join_for_large_ones)
{
    const uint64_t larger = alloc(env->pool, 32 * MIB), close = alloc(env->pool, 8 * MIB),
                   small = alloc(env->pool, 4 * KIB);

    release(larger);
    alloc(env->pool, 100 * MIB); /* now the larger one is free for all sizes */
    release(close);
    release(small);
    assert_int_equal(alloc(env->pool, 7 * MIB), close);
    assert_int_equal(hits_close_at_hand(env->pool), 0);
    assert_int_equal(alloc(env->pool, 4 * KIB), small); /* which stays close at hand */
    assert_int_equal(hits_close_at_hand(env->pool), 1);
    assert_int_equal(alloc(env->pool, 7 * MIB), larger);
}

/* Large sizes that share a list: none is taken for the other, and there is an end to those for which there is no list.
 */
POOL_CASE(test_large_sizes_of_one_list)
{
    enum { COUNT = STRAY_MAX + 8 };
    const struct magazine *own = &env->pool->magazines[magazine_index % MAGAZINES];
    uint64_t addr[COUNT];
    size_t sizes[COUNT], size = 2 * MIB;
    unsigned int first, list;

    size_class(size, &first);
    for (unsigned int i = 0; i < COUNT; i++) {
        do {
            size += POOL_GRANULE;
            size_class(size, &list);
        } while (list != first);
        sizes[i] = size;
        addr[i] = alloc(env->pool, size);
    }
    for (unsigned int i = 0; i < COUNT; i++) {
        release(addr[i]);
        assert_true(own->strays_count <= STRAY_MAX);
    }
    assert_sound(env->pool, env->fake);
    for (unsigned int i = COUNT; i-- > 0;) {
        struct pool *pool;
        size_t block;

        addr[i] = alloc(env->pool, sizes[i]);
        assert_int_equal(pool_live(addr[i], &pool, &block), sizes[i]);
        assert_int_equal(block, sizes[i]);
    }
    assert_int_equal(env->fake->calls[FAKE_ALLOC], COUNT);
}

/* A small block in what is free of a large segment: a large request does not take the rest as if it were not there. */
POOL_CASE(test_small_ones_in_large_segments_join)
{
    const uint64_t base = alloc(env->pool, 8 * MIB);
    uint64_t small, large;

    release(base);
    large = alloc(env->pool, 3 * MIB);
    assert_int_equal(large, base);
    env->fake->refuse = true; /* or it would not get what is free there */
    small = alloc(env->pool, 4 * KIB);
    env->fake->refuse = false;
    assert_int_equal(small, base + 8 * MIB - 4 * KIB);
    release(small);
    release(large);
    assert_int_equal(alloc(env->pool, 8 * MIB), base);
}

/* A magazine that is full makes place among the sizes that would not come again. */
POOL_CASE(test_close_sizes_stay_when_a_magazine_is_full)
{
    enum { MAX = 512, CLOSE = 20, COUNT = MAX + 10 };
    const struct magazine *own = &env->pool->magazines[magazine_index % MAGAZINES];
    static uint64_t close[CLOSE], large[COUNT];
    size_t hits;

    alloc_all(env->pool, close, CLOSE, 4 * KIB);
    alloc_all(env->pool, large, COUNT, 2 * MIB);
    release_all(close, CLOSE);
    for (size_t i = 0; i < COUNT; i++) {
        release(large[i]);
        assert_int_equal(own->cached_count, i < MAX - CLOSE ? CLOSE + i + 1 : CLOSE + i + 1 - (MAX - CLOSE));
    }
    hits = hits_close_at_hand(env->pool);
    for (size_t i = CLOSE; i-- > 0;)
        assert_int_equal(alloc(env->pool, 4 * KIB), close[i]);
    assert_int_equal(hits_close_at_hand(env->pool) - hits, CLOSE);
    for (size_t i = 0; i < COUNT; i++)
        alloc(env->pool, 2 * MIB);
    assert_int_equal(env->fake->calls[FAKE_ALLOC], COUNT + 1);
}

/* Each list is used, by sizes that it is for, and those that share lists spread over them. */
UNIT_CASE(test_lists_of_all_sizes)
{
    unsigned int count[LISTS] = {0}, list, again;

    for (size_t requested = POOL_GRANULE; requested < 8 * MIB; requested += POOL_GRANULE) {
        const size_t size = size_class(requested, &list);

        assert_true(size >= requested && (size == requested || size <= requested + requested / 16));
        assert_true(size == requested || requested <= CLOSE_MAX);
        assert_int_equal(size_class(size, &again), size);
        assert_int_equal(again, list);
        assert_true(list < LISTS && (list < LARGE_LISTS) == (size >= LARGE_MIN) &&
                    (list < HASH_LISTS) == (size > CLOSE_MAX));
        count[list]++;
    }
    for (list = 0; list < LISTS; list++) {
        const size_t share = list < LARGE_LISTS ? 6 * MIB / LARGE_LISTS : (LARGE_MIN - CLOSE_MAX) / MIDDLE_LISTS;

        assert_true(count[list]);
        if (list < HASH_LISTS)
            assert_in_range(count[list], share / POOL_GRANULE / 2, share / POOL_GRANULE * 2);
    }
}
