/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_pool.c - the host pool's contract, case by case; long random sequences, faults and threads are
 * test_host_random.c, and how much it holds test_host_bound.c. */
#include "host_env.h"

CASE(test_size_classes_waste_little)
{
    size_t last = 0;

    for (unsigned int class = 0; class < HOST_CLASSES; class ++) {
        const size_t size = host_class_size(class);

        assert_true(size > last && size % host_unit(size) == 0);
        assert_int_equal(host_class_of(size), class);
        assert_int_equal(host_class_of(last + 1), class);
        assert_int_equal(host_class_within(size), class);
        if (class && size > HOST_GRANULE)
            assert_int_equal(host_class_within(size - HOST_GRANULE), class - 1);
        if (last > HOST_SMALL_MAX)
            assert_true(size - last <= last / 8);
        last = size;
    }
    assert_int_equal(last, HOST_SIZE_MAX);
    assert_int_equal(host_round(1), HOST_GRANULE);
    assert_int_equal(host_round(HOST_PAGE), HOST_PAGE);
    assert_int_equal(host_round(MIB + 1), MIB + HOST_PAGE);
}

/* Take all free memory of slabs: a small request is then served by freed blocks or by the driver. */
static void slabs_fill(void)
{
    uint64_t bits;

    do {
        bits = 0;
        for (unsigned int i = 0; fake.pool->families && i < HOST_BIN_SETS; i++)
            bits |= fake.pool->families->bin_set[i];
        if (bits)
            (void)get(HOST_GRANULE);
    } while (bits);
}

/* Each row: a block of one size is freed; does a request of another size get it, once its work is over? */
CASE(test_reuse_by_size)
{
    static const struct {
        size_t freed, wanted;
        bool same;
    } rows[] = {
        {MIB, MIB, true},
        {64 * MIB, 64 * MIB, true},
        {64 * MIB, 61 * MIB, true},
        {64 * MIB, 58 * MIB, true},
        {64 * MIB, 56 * MIB, false},
        {64 * MIB, 64 * MIB + 1, false},
        {MIB + 1, MIB + 50000, true},
        {1, 512, true},
        {64 * KIB, 64 * KIB, true},
        {4096, 4095, true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint64_t first, second;

        (void)setup(state);
        first = get(rows[i].freed);
        slabs_fill();
        host_fake_launch(&fake);
        put(first, rows[i].freed);
        host_fake_complete(&fake);
        second = get(rows[i].wanted);
        assert_int_equal(first == second, rows[i].same);
        put(second, rows[i].wanted);
        (void)teardown(state);
    }
}

CASE(test_no_reuse_before_work_is_over)
{
    static const size_t sizes[] = {100, 64 * KIB, MIB, 64 * MIB};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint64_t first = get(sizes[i]);
        uint64_t second, third;

        slabs_fill();
        host_fake_launch(&fake);
        put(first, sizes[i]);
        assert_int_equal(stats().waiting > 0, true);
        second = get(sizes[i]);
        assert_true(first != second);
        slabs_fill();
        host_fake_complete(&fake);
        third = get(sizes[i]);
        assert_int_equal(first, third);
        put(second, sizes[i]);
        put(third, sizes[i]);
    }
    assert_int_equal(fake.calls[HOST_CALL_WAIT], 0);
}

/* Blocks of each size share one allocation, and once the work behind their frees is over they are merged for a larger
 * one. */
CASE(test_small_blocks_share_and_merge)
{
    static const size_t sizes[] = {HOST_GRANULE, 128 * KIB, HOST_SMALL_MAX};
    static uint64_t blocks[2 * HOST_SMALL_MAX / HOST_GRANULE];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t count = 2 * HOST_SMALL_MAX / sizes[i];
        uint64_t large;

        get_all(blocks, count, sizes[i]);
        assert_int_equal(fake.calls[HOST_CALL_ALLOC], i + 1);
        host_fake_launch(&fake);
        put_all(blocks, count, sizes[i]);
        host_fake_complete(&fake);
        large = get(900 * KIB);
        assert_int_equal(fake.calls[HOST_CALL_ALLOC], i + 1);
        put(large, 900 * KIB);
        assert_int_equal(host_pool_trim(fake.pool, false), HOST_SLAB);
        assert_int_equal(stats().held, 0);
    }
}

/* A block of each size is cut out of the rest of a slab that has just room for it. */
CASE(test_the_rest_of_a_slab)
{
    const size_t left = HOST_SLAB - HOST_PAGE - HOST_SMALL_MAX;

    for (unsigned int class = host_class_of(128 * KIB); class <= host_class_of(HOST_SMALL_MAX); class ++) {
        const size_t sizes[] = {HOST_SMALL_MAX, host_class_size(host_class_within(left - host_class_size(class))),
                                host_class_size(class)};
        uint64_t addr[3];

        for (int i = 0; i < 3; i++)
            addr[i] = get(sizes[i]);
        for (int i = 0; i < 3; i++)
            put(addr[i], sizes[i]);
        assert_int_equal(host_pool_trim(fake.pool, false), HOST_SLAB);
    }
}

/* If the first token that covers a block is the newest one, and over, then so may be later ones: the newest one is
 * asked first, and answers for both. */
CASE(test_the_newest_token_answers)
{
    uint64_t first = get(MIB), second = get(2 * MIB);

    for (int i = 0; i < 2; i++) {
        const unsigned long queries = fake.calls[HOST_CALL_QUERY];

        host_fake_launch(&fake);
        put(first, MIB);
        if (i) {
            host_fake_launch(&fake);
            put(second, 2 * MIB);
        }
        host_fake_complete(&fake);
        assert_int_equal(get(MIB), first);
        if (i)
            assert_int_equal(get(2 * MIB), second);
        assert_int_equal(fake.calls[HOST_CALL_QUERY], queries + 1);
    }
    put(first, MIB);
    put(second, 2 * MIB);
}

/* Frees that the driver would refuse, told apart for the shim; and a block that is live stays so. */
CASE(test_wrong_frees)
{
    static const size_t sizes[] = {1000, 300 * KIB, 4 * MIB};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t size = sizes[i];
        const uint64_t addr = get(size), segment = addr / HOST_SLAB * HOST_SLAB;
        size_t found = 0;
        struct host_key key;
        uint64_t base = 0;

        PASSES(host_pool_find(fake.pool, addr, &found, &key));
        assert_int_equal(found, size);
        assert_int_equal(key.owner, plain.owner);
        for (size_t at = 0; at < size; at += size - 1) {
            PASSES(host_pool_block(fake.pool, addr + at, &base, &found));
            assert_true(base == addr && found == size);
        }
        if (size <= HOST_SMALL_MAX) {
            assert_int_equal(host_pool_block(fake.pool, segment, &base, &found), -EINVAL);
            assert_int_equal(host_pool_block(fake.pool, addr + size, &base, &found), -EINVAL);
        }
        assert_int_equal(host_pool_block(fake.pool, segment - 1, &base, &found), -ENOENT);
        assert_int_equal(host_pool_free(fake.pool, addr + 1), -EINVAL);
        assert_int_equal(host_pool_free(fake.pool, addr + 512), -EINVAL);
        assert_int_equal(host_pool_free(fake.pool, addr + size - 1), -EINVAL);
        assert_int_equal(host_pool_free(fake.pool, segment - 1), -ENOENT);
        assert_int_equal(host_pool_free(fake.pool, 0), -ENOENT);
        assert_int_equal(host_pool_free(fake.pool, UINT64_MAX), -ENOENT);
        if (size <= HOST_SMALL_MAX)
            assert_int_equal(host_pool_free(fake.pool, segment), -EINVAL);
        put(addr, size);
        assert_int_equal(host_pool_free(fake.pool, addr), -EINVAL);
        assert_int_equal(host_pool_find(fake.pool, addr, &found, &key), -EINVAL);
        assert_int_equal(host_pool_block(fake.pool, addr + size / 2, &base, &found), -EINVAL);
        assert_int_equal(host_pool_trim(fake.pool, false) > 0, true);
        assert_int_equal(host_pool_free(fake.pool, addr), -ENOENT);
    }
    assert_int_equal(stats().frees, sizeof(sizes) / sizeof(sizes[0]));
}

CASE(test_keys_are_kept_apart)
{
    static const struct host_key keys[] = {
        {.owner = 1}, {.owner = 2}, {.owner = 1, .flags = 4}, {.owner = 1, .numa = 1}};
    uint64_t addr[4];

    for (int size = 0; size < 2; size++)
        for (int i = 0; i < 4; i++) {
            PASSES(program_alloc(&fake, &keys[i], size ? 2 * MIB : 4096, ID, &addr[i]));
            put(addr[i], size ? 2 * MIB : 4096);
        }
    assert_int_equal(stats().misses, 8);
    for (int i = 3; i >= 0; i--) {
        uint64_t again;

        PASSES(program_alloc(&fake, &keys[i], 2 * MIB, ID, &again));
        assert_int_equal(again, addr[i]);
        put(again, 2 * MIB);
    }
}

CASE(test_owner_takes_its_memory_along)
{
    const struct host_key other = {.owner = 2};
    uint64_t mine = get(1000), theirs, large;

    PASSES(program_alloc(&fake, &other, 1000, ID, &theirs));
    PASSES(program_alloc(&fake, &other, 4 * MIB, ID, &large));
    put(large, 4 * MIB);
    host_pool_owner_gone(fake.pool, 2);
    assert_int_equal(fake.lost, HOST_SLAB + 4 * MIB);
    assert_int_equal(host_pool_free(fake.pool, theirs), -ENOENT);
    PASSES(program_alloc(&fake, &other, 1000, ID, &theirs)); /* a context at the same address */
    put(theirs, 1000);
    put(mine, 1000);
}

CASE(test_memory_freed_past_the_pool)
{
    const uint64_t small = get(1000), large = get(3 * MIB), kept = get(5 * MIB);

    host_pool_disown(fake.pool, large - HOST_PAGE, HOST_PAGE);
    assert_int_equal(fake.lost, 0);
    host_pool_disown(fake.pool, large + MIB, MIB);
    assert_int_equal(fake.lost, 3 * MIB);
    assert_int_equal(host_pool_free(fake.pool, large), -ENOENT);
    host_pool_disown(fake.pool, kept - HOST_PAGE, kept - small); /* the segment before ends before it */
    assert_int_equal(fake.lost, 8 * MIB);
    put(small, 1000);
}

/* The driver hands out what the pool believes to have: that is lost first, and then the new memory is reported. */
CASE(test_memory_that_comes_again)
{
    static const struct host_key other = {.owner = 1, .flags = 1};
    const uint64_t a = get(4 * MIB);
    uint64_t b;

    put(a, 4 * MIB);
    fake.again = a;
    PASSES(program_alloc(&fake, &other, 4 * MIB, ID, &b));
    assert_int_equal(b, a);
    assert_int_equal(fake.lost, 4 * MIB);
    assert_int_equal(stats().held, 4 * MIB);
    put(b, 4 * MIB);
}

/* While a capture is under way nothing is asked, recorded or given back; what was freed serves afterwards. */
CASE(test_captures)
{
    uint64_t ready = get(MIB), addr = get(2 * MIB), other;
    unsigned long queries;

    put(ready, MIB);
    assert_int_equal(get(MIB), ready);
    put(ready, MIB);
    host_fake_complete(&fake);
    assert_int_equal(get(MIB), ready);
    fake.frozen = true;
    put(addr, 2 * MIB);
    put(ready, MIB);
    queries = fake.calls[HOST_CALL_QUERY];
    other = get(2 * MIB);
    assert_true(other != addr);
    assert_int_equal(fake.calls[HOST_CALL_QUERY], queries);
    assert_int_equal(host_pool_trim(fake.pool, true), 0);
    assert_int_equal(host_pool_decay(fake.pool, 0), 0);
    fake.frozen = false;
    assert_int_equal(get(2 * MIB), addr);
    put(addr, 2 * MIB);
    put(other, 2 * MIB);
}

/* So many frees behind work that goes on that tokens are dropped: nothing is handed out too early, or lost. */
CASE(test_many_tokens)
{
    enum { COUNT = 200 };
    uint64_t addr[COUNT];

    get_all(addr, COUNT, MIB);
    for (int i = 0; i < COUNT; i++) {
        host_fake_launch(&fake);
        put(addr[i], MIB);
        assert_true(fake.tokens <= 64);
    }
    assert_true(fake.calls[HOST_CALL_RECORD] == COUNT);
    for (int i = 0; i < COUNT; i++) {
        host_fake_step(&fake);
        put(get(MIB), MIB);
        assert_sound();
    }
    host_fake_complete(&fake);
    assert_int_equal(host_pool_trim(fake.pool, false), stats().peak_held);
}

/* Without a descriptor for a part of a block it cannot be cut: the request fails, or is the driver's, and all stays. */
CASE(test_no_descriptors)
{
    static const size_t sizes[] = {1000, 4 * KIB, 64 * KIB, HOST_SMALL_MAX};
    const uint64_t first = get(512);
    struct host_block *rest = fake.pool->spare_blocks;
    unsigned int served = 0, count;

    for (unsigned int i = 0; i < 2 * sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct host_block *one = i % 2 ? rest : NULL;
        uint64_t addr = 0;

        if (one) {
            rest = one->next;
            one->next = NULL;
        }
        fake.pool->spare_blocks = one;
        count = descriptors();
        host_fake_no_pages = true;
        served += program_alloc(&fake, &plain, sizes[i / 2], ID, &addr) == 0;
        host_fake_no_pages = false;
        assert_int_equal(descriptors(), count);
        assert_sound();
        one = fake.pool->spare_blocks; /* not used, or given back */
        fake.pool->spare_blocks = rest;
        if (one)
            host_block_retire(fake.pool, one);
        if (addr)
            put(addr, sizes[i / 2]);
        rest = fake.pool->spare_blocks;
    }
    assert_in_range(served, 1, 4);
    put(first, 512);
}

/* Nor does the pool keep what the driver gives for a new owner when there is no descriptor for the owner's blocks. */
CASE(test_no_descriptor_for_an_owner)
{
    static const size_t sizes[] = {4 * KIB, 2 * MIB};
    struct host_key other = plain;
    unsigned int spare;
    uint64_t addr = 0;

    other.owner++;
    for (unsigned int i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        put(get(sizes[i]), sizes[i]);
        (void)host_pool_trim(fake.pool, false); /* the segment's descriptors are spare */
        spare = spare_blocks();
        host_fake_no_pages = true;
        fake.calls[HOST_CALL_ALLOC] = 0;
        assert_int_equal(program_alloc(&fake, &other, sizes[i], ID, &addr), -ENOMEM);
        host_fake_no_pages = false;
        assert_true(fake.calls[HOST_CALL_ALLOC] > 0);
        assert_int_equal(fake.held, 0);
        assert_int_equal(stats().held, 0);
        assert_int_equal(spare_blocks(), spare);
        assert_sound();
    }
}
