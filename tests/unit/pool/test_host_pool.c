/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host_pool.c - the host pool's contract, case by case; long random sequences, faults and threads are
 * test_host_random.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "host_fake.h"
#include "host_sizes.h"

#define ID           7u
#define BOUND        (64 * MIB)
#define DEADLOCK_S   120
#define PASSES(call) assert_int_equal(call, 0)

static const struct host_key plain = {.owner = 1};
static struct host_fake fake;

static int setup(void **state)
{
    alarm(DEADLOCK_S);
    host_fake_init(&fake, 0, BOUND);
    return 0;
}

static void assert_sound(void)
{
    char text[128] = "";

    if (host_pool_check(fake.pool, text, sizeof(text)))
        fail_msg("host_pool_check: %s", text);
    if (fake.fault)
        fail_msg("%s", (const char *)fake.fault);
}

static int teardown(void **state)
{
    assert_sound();
    host_fake_done(&fake);
    assert_sound();
    alarm(0);
    return 0;
}

static uint64_t get(size_t size)
{
    uint64_t addr = 0;

    PASSES(program_alloc(&fake, &plain, size, ID, &addr));
    return addr;
}

static void put(uint64_t addr, size_t size)
{
    PASSES(program_free(&fake, addr, size, ID, false));
}

static struct host_stats stats(void)
{
    struct host_stats s;

    host_pool_stats_get(fake.pool, &s);
    return s;
}

static void test_size_classes_waste_little(void **state)
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
}

/* Each row: a block of one size is freed; does a request of another size get it, once its work is over? */
static void test_reuse_by_size(void **state)
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
        host_fake_launch(&fake);
        put(first, rows[i].freed);
        host_fake_complete(&fake);
        second = get(rows[i].wanted);
        assert_int_equal(first == second, rows[i].same);
        put(second, rows[i].wanted);
        (void)teardown(state);
    }
}

static void test_no_reuse_before_work_is_over(void **state)
{
    static const size_t sizes[] = {100, 64 * KIB, MIB, 64 * MIB};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const uint64_t first = get(sizes[i]);
        uint64_t second, third;

        host_fake_launch(&fake);
        put(first, sizes[i]);
        assert_int_equal(stats().waiting > 0, true);
        second = get(sizes[i]);
        assert_true(first != second);
        host_fake_complete(&fake);
        third = get(sizes[i]);
        assert_int_equal(first, third);
        put(second, sizes[i]);
        put(third, sizes[i]);
    }
    assert_int_equal(fake.calls[HOST_CALL_WAIT], 0);
}

static void test_small_blocks_share_and_merge(void **state)
{
    enum { COUNT = 15 };
    uint64_t blocks[COUNT], large;

    for (int i = 0; i < COUNT; i++)
        blocks[i] = get(128 * KIB);
    assert_int_equal(fake.calls[HOST_CALL_ALLOC], 1);
    for (int i = 0; i < COUNT; i++)
        put(blocks[i], 128 * KIB);
    large = get(900 * KIB); /* what was freed is merged for it */
    assert_int_equal(fake.calls[HOST_CALL_ALLOC], 1);
    put(large, 900 * KIB);
    assert_int_equal(host_pool_trim(fake.pool, false), HOST_SLAB);
    assert_int_equal(stats().held, 0);
}

/* Frees that the driver would refuse, told apart for the shim; and a block that is live stays so. */
static void test_wrong_frees(void **state)
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
        if (size <= HOST_SMALL_MAX)
            assert_int_equal(host_pool_block(fake.pool, segment, &base, &found), -EINVAL);
        assert_int_equal(host_pool_block(fake.pool, segment - 1, &base, &found), -ENOENT);
        assert_int_equal(host_pool_free(fake.pool, addr + 1, false), -EINVAL);
        assert_int_equal(host_pool_free(fake.pool, addr + 512, false), -EINVAL);
        assert_int_equal(host_pool_free(fake.pool, addr + size - 1, false), -EINVAL);
        assert_int_equal(host_pool_free(fake.pool, segment - 1, false), -ENOENT);
        assert_int_equal(host_pool_free(fake.pool, 0, false), -ENOENT);
        assert_int_equal(host_pool_free(fake.pool, UINT64_MAX, false), -ENOENT);
        if (size <= HOST_SMALL_MAX)
            assert_int_equal(host_pool_free(fake.pool, segment, false), -EINVAL);
        put(addr, size);
        assert_int_equal(host_pool_free(fake.pool, addr, false), -EINVAL);
        assert_int_equal(host_pool_find(fake.pool, addr, &found, &key), -EINVAL);
        assert_int_equal(host_pool_block(fake.pool, addr + size / 2, &base, &found), -EINVAL);
        assert_int_equal(host_pool_trim(fake.pool, false) > 0, true);
        assert_int_equal(host_pool_free(fake.pool, addr, false), -ENOENT);
    }
    assert_int_equal(stats().frees, sizeof(sizes) / sizeof(sizes[0]));
}

static void test_keys_are_kept_apart(void **state)
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

static void test_owner_takes_its_memory_along(void **state)
{
    const struct host_key other = {.owner = 2};
    uint64_t mine = get(1000), theirs, large;

    PASSES(program_alloc(&fake, &other, 1000, ID, &theirs));
    PASSES(program_alloc(&fake, &other, 4 * MIB, ID, &large));
    put(large, 4 * MIB);
    host_pool_owner_gone(fake.pool, 2);
    assert_int_equal(fake.lost, HOST_SLAB + 4 * MIB);
    assert_int_equal(host_pool_free(fake.pool, theirs, false), -ENOENT);
    PASSES(program_alloc(&fake, &other, 1000, ID, &theirs)); /* a context at the same address */
    put(theirs, 1000);
    put(mine, 1000);
}

static void test_memory_freed_past_the_pool(void **state)
{
    const uint64_t small = get(1000), large = get(3 * MIB), kept = get(5 * MIB);

    host_pool_disown(fake.pool, large - HOST_PAGE, HOST_PAGE);
    assert_int_equal(fake.lost, 0);
    host_pool_disown(fake.pool, large + MIB, MIB);
    assert_int_equal(fake.lost, 3 * MIB);
    assert_int_equal(host_pool_free(fake.pool, large, false), -ENOENT);
    put(kept, 5 * MIB);
    put(small, 1000);
}

/* The driver hands out what the pool believes to have: that is lost first, and then the new memory is reported. */
static void test_memory_that_comes_again(void **state)
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
static void test_captures(void **state)
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

static void test_free_that_waits(void **state)
{
    const uint64_t addr = get(2 * MIB);

    host_fake_launch(&fake);
    PASSES(program_free(&fake, addr, 2 * MIB, ID, true));
    assert_int_equal(fake.completed, fake.launched);
    assert_int_equal(get(2 * MIB), addr);
    put(addr, 2 * MIB);
}

/* --- the bound --- */

static void assert_within(size_t limit)
{
    const struct host_stats s = stats();
    const size_t bound = s.peak_live + s.peak_live / 10 + BOUND;

    assert_true(s.held - s.passing <= (limit && limit < bound ? limit : bound));
}

/* The host is ahead of its device: it never waits for work of its last free or earlier, unless the bound is met. */
static void test_bound_waits_for_own_frees_only(void **state)
{
    for (int i = 0; i < 100; i++) {
        const uint64_t addr = get(16 * MIB);

        host_fake_launch(&fake);
        put(addr, 16 * MIB);
        assert_within(0);
    }
    assert_true(fake.calls[HOST_CALL_WAIT] > 0);
    assert_true(stats().bound > 0);
    assert_true(fake.completed < fake.launched);
}

/* Work after the free may wait for the host: then memory that is beyond the bound goes back at its free. */
static void test_bound_never_waits_for_later_work(void **state)
{
    uint64_t a[6], b;

    for (int i = 0; i < 6; i++)
        a[i] = get(30 * MIB);
    for (int i = 0; i < 6; i++)
        put(a[i], 30 * MIB);
    host_fake_launch(&fake); /* until the host lets it go */
    fake.blocked = true;
    b = get(100 * MIB);
    assert_int_equal(stats().passing, 100 * MIB);
    assert_within(0);
    fake.blocked = false;
    put(b, 100 * MIB);
    assert_int_equal(stats().passing, 0);
    assert_int_equal(stats().held, 180 * MIB);
    assert_int_equal(fake.completed, fake.launched); /* natively it waits, too */
}

static void *free_often(void *arg)
{
    for (int i = 0; i < 200; i++) {
        host_fake_launch(&fake);
        put(get(512), 512);
    }
    return NULL;
}

/* As before, when the token of this thread's last free had to make room for those of another thread. */
static void test_bound_never_waits_for_others_work(void **state)
{
    uint64_t a[6], b;
    pthread_t other;

    fake.alone = false;
    for (int i = 0; i < 6; i++)
        a[i] = get(30 * MIB);
    host_fake_launch(&fake);
    for (int i = 0; i < 6; i++)
        put(a[i], 30 * MIB);
    assert_int_equal(pthread_create(&other, NULL, free_often, NULL), 0);
    pthread_join(other, NULL);
    fake.blocked = true;
    b = get(100 * MIB);
    fake.blocked = false;
    put(b, 100 * MIB);
}

static uint64_t other;

static void other_gets(void)
{
    other = get(80 * MIB);
}

/* Threads that ask at the same time would natively have a block each: so they do here, and keep it. */
static void test_bound_counts_requests_under_way(void **state)
{
    uint64_t addr;

    fake.meanwhile = other_gets;
    addr = get(80 * MIB);
    assert_int_equal(stats().passing, 0);
    put(addr, 80 * MIB);
    put(other, 80 * MIB);
    addr = get(80 * MIB);
    other_gets();
    assert_int_equal(fake.calls[HOST_CALL_ALLOC], 2);
    put(addr, 80 * MIB);
    put(other, 80 * MIB);
}

/* Natively a refused request takes nothing, so it is no reason to hold more. */
static void test_bound_forgets_refused_requests(void **state)
{
    uint64_t addr;

    fake.capacity = 300 * MIB;
    assert_int_equal(program_alloc(&fake, &plain, 1024 * MIB, ID, &addr), -ENOMEM);
    for (int i = 0; i < 2; i++) {
        put(get(40 * MIB), 40 * MIB);
        put(get(100 * MIB), 100 * MIB);
        put(get(60 * MIB), 60 * MIB);
    }
    assert_within(0);
}

static void test_bound_gives_back_longest_idle_first(void **state)
{
    const uint64_t old = get(40 * MIB), young = get(50 * MIB);

    put(old, 40 * MIB);
    (void)host_pool_decay(fake.pool, 100);
    put(young, 50 * MIB);
    put(get(100 * MIB), 100 * MIB); /* 190 MiB, and the bound is 174 */
    assert_int_equal(stats().held, 150 * MIB);
    assert_int_equal(get(50 * MIB), young);
    put(young, 50 * MIB);
}

static void test_limit(void **state)
{
    uint64_t a, b;

    host_pool_destroy(fake.pool);
    host_fake_init(&fake, 32 * MIB, BOUND);
    a = get(24 * MIB);
    b = get(24 * MIB);
    assert_int_equal(stats().passing, 24 * MIB);
    assert_within(32 * MIB);
    put(b, 24 * MIB);
    assert_int_equal(stats().held, 24 * MIB);
    put(a, 24 * MIB);
    a = get(30 * MIB);
    assert_int_equal(stats().held, 30 * MIB);
    put(a, 30 * MIB);
}

static void test_refusal(void **state)
{
    uint64_t a[3], b;

    fake.capacity = 64 * MIB;
    for (int i = 0; i < 3; i++)
        a[i] = get(20 * MIB);
    host_fake_launch(&fake);
    for (int i = 0; i < 3; i++)
        put(a[i], 20 * MIB);
    b = get(60 * MIB); /* natively the frees have waited, and all of it is there */
    assert_int_equal(stats().refused, 1);
    assert_int_equal(program_alloc(&fake, &plain, 60 * MIB, ID, &a[0]), -ENOMEM);
    put(b, 60 * MIB);
    assert_int_equal(stats().failed, 1);
}

static void test_decay(void **state)
{
    uint64_t a = get(4 * MIB), b = get(1000);

    put(a, 4 * MIB);
    put(b, 1000);
    assert_int_equal(host_pool_decay(fake.pool, 2), 0);
    assert_int_equal(get(1000), b);
    put(b, 1000);
    assert_int_equal(host_pool_decay(fake.pool, 2), 4 * MIB);
    host_fake_launch(&fake);
    assert_int_equal(host_pool_decay(fake.pool, 2), 0); /* the driver's free would wait */
    host_fake_complete(&fake);
    assert_int_equal(host_pool_decay(fake.pool, 2), HOST_SLAB);
}

/* So many frees behind work that goes on that tokens are dropped: nothing is handed out too early, or lost. */
static void test_many_tokens(void **state)
{
    enum { COUNT = 500 };
    uint64_t addr[COUNT];

    for (int i = 0; i < COUNT; i++)
        addr[i] = get(512);
    for (int i = 0; i < COUNT; i++) {
        host_fake_launch(&fake);
        put(addr[i], 512);
        assert_true(fake.tokens <= 64);
    }
    for (int i = 0; i < COUNT; i++) {
        host_fake_step(&fake);
        put(get(512), 512);
        assert_sound();
    }
    host_fake_complete(&fake);
    assert_int_equal(host_pool_trim(fake.pool, false), HOST_SLAB);
}

int main(void)
{
#define CASE(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(test_size_classes_waste_little),
        CASE(test_reuse_by_size),
        CASE(test_no_reuse_before_work_is_over),
        CASE(test_small_blocks_share_and_merge),
        CASE(test_wrong_frees),
        CASE(test_keys_are_kept_apart),
        CASE(test_owner_takes_its_memory_along),
        CASE(test_memory_freed_past_the_pool),
        CASE(test_memory_that_comes_again),
        CASE(test_captures),
        CASE(test_free_that_waits),
        CASE(test_bound_waits_for_own_frees_only),
        CASE(test_bound_never_waits_for_later_work),
        CASE(test_bound_never_waits_for_others_work),
        CASE(test_bound_counts_requests_under_way),
        CASE(test_bound_forgets_refused_requests),
        CASE(test_bound_gives_back_longest_idle_first),
        CASE(test_limit),
        CASE(test_refusal),
        CASE(test_decay),
        CASE(test_many_tokens),
    };

    return cmocka_run_group_tests_name("host_pool", tests, NULL, NULL);
}
