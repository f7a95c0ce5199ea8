/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_bound.c - how much the host pool holds, case by case: the bound, the limit, refusals, decay. */
#include "host_env.h"

static void assert_within(size_t limit)
{
    const struct host_stats s = stats();
    const size_t bound = s.peak_live + s.peak_live / 10 + BOUND;

    assert_true(s.held - s.passing <= (limit && limit < bound ? limit : bound));
}

/* The host is ahead of its device: it never waits for work of its last free or earlier, unless the bound is met. */
CASE(test_bound_waits_for_own_frees_only)
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
CASE(test_bound_never_waits_for_later_work)
{
    uint64_t a[6], b;

    get_all(a, 6, 30 * MIB);
    put_all(a, 6, 30 * MIB);
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
        put(get(MIB), MIB);
    }
    return NULL;
}

/* As before, when the token of this thread's last free had to make room for those of another thread. */
CASE(test_bound_never_waits_for_others_work)
{
    uint64_t a[6], b;
    pthread_t other;

    fake.alone = false;
    get_all(a, 6, 30 * MIB);
    host_fake_launch(&fake);
    put_all(a, 6, 30 * MIB);
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
CASE(test_bound_counts_requests_under_way)
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
CASE(test_bound_forgets_refused_requests)
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

CASE(test_bound_gives_back_longest_idle_first)
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

/* All descriptors of memory that has gone back are there for the next. */
CASE(test_descriptors_come_back)
{
    unsigned int before = 0;

    for (int i = 0; i < 4; i++) {
        put(get(i % 2 ? 40 * MIB : 4 * KIB), i % 2 ? 40 * MIB : 4 * KIB);
        host_fake_complete(&fake);
        (void)host_pool_trim(fake.pool, false);
        assert_int_equal(fake.held, 0);
        assert_true(!i || spare_blocks() == before);
        before = spare_blocks();
    }
}

CASE(test_limit)
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

CASE(test_refusal)
{
    uint64_t a[3], b;

    fake.capacity = 64 * MIB;
    get_all(a, 3, 20 * MIB);
    host_fake_launch(&fake);
    put_all(a, 3, 20 * MIB);
    b = get(60 * MIB); /* natively the frees have waited, and all of it is there */
    assert_int_equal(stats().refused, 1);
    assert_int_equal(stats().passing, 0); /* it is the pool's */
    assert_int_equal(program_alloc(&fake, &plain, 60 * MIB, ID, &a[0]), -ENOMEM);
    put(b, 60 * MIB);
    assert_int_equal(stats().failed, 1);
}

CASE(test_decay)
{
    uint64_t a = get(4 * MIB), b = get(1000);

    put(a, 4 * MIB);
    put(b, 1000);
    assert_int_equal(host_pool_decay(fake.pool, 2), 0);
    put(get(1000), 1000);
    assert_int_equal(host_pool_decay(fake.pool, 2), 4 * MIB);
    host_fake_launch(&fake);
    assert_int_equal(host_pool_decay(fake.pool, 2), 0); /* the driver's free would wait */
    host_fake_complete(&fake);
    assert_int_equal(host_pool_decay(fake.pool, 2), HOST_SLAB);
}

/* Of memory whose work may not be over, what was freed first is asked about. The driver's free then waits for the rest.
 */
CASE(test_trim_of_what_is_over_first)
{
    const uint64_t young = get(4 * MIB), old = get(6 * MIB);

    assert_true(young < old);
    host_fake_launch(&fake);
    put(old, 6 * MIB);
    host_fake_launch(&fake);
    put(young, 4 * MIB);
    host_fake_step(&fake);
    assert_int_equal(host_pool_trim(fake.pool, true), 10 * MIB);
}

/* The work of a block that would serve is over only when it is asked about for the third time: to give the block back
 * and to ask the driver for another would cost the driver's time twice. */
CASE(test_bound_keeps_what_would_serve)
{
    uint64_t a[3];

    get_all(a, 3, 200 * MIB);
    put_all(a, 3, 200 * MIB);
    fake.late = 2;
    get_all(a, 3, 200 * MIB);
    assert_int_equal(fake.calls[HOST_CALL_ALLOC], 3);
    assert_int_equal(fake.calls[HOST_CALL_FREE], 0);
    put_all(a, 3, 200 * MIB);
}

static void *complete_later(void *arg)
{
    usleep(20000);
    fake.blocked = false;
    host_fake_complete(&fake);
    return NULL;
}

/* All that is idle is complete, and later work begins, for which the driver's free would wait. */
static void later_work_begins(void)
{
    fake.alone = false;
    host_fake_complete(&fake);
    assert_true(host_tokens_ask(fake.pool, fake.pool->tokens.epoch));
    assert_true(host_idle_is_complete(fake.pool));
    host_fake_launch(&fake);
    fake.blocked = true;
}

/* Idle memory is kept by work that was launched after its free, and may be waiting for this thread: the request asks
 * until the work is over, and calls no free that waits for it. */
CASE(test_refusal_never_waits_for_later_work)
{
    pthread_t thread;
    uint64_t addr[2];

    fake.capacity = 64 * MIB;
    get_all(addr, 2, 30 * MIB);
    put_all(addr, 2, 30 * MIB);
    later_work_begins();
    assert_int_equal(pthread_create(&thread, NULL, complete_later, NULL), 0);
    addr[0] = get(60 * MIB);
    pthread_join(thread, NULL);
    put(addr[0], 60 * MIB);
}

/* Natively the larger block would be the driver's, and the request be served at once. */
CASE(test_refusal_takes_a_larger_block)
{
    static const size_t sizes[] = {120 * MIB, MIB, 4 * KIB};
    const uint64_t larger = get(150 * MIB);
    uint64_t addr;

    fake.capacity = 150 * MIB;
    put(larger, 150 * MIB);
    later_work_begins();
    for (int i = 0; i < 3; i++) {
        addr = get(sizes[i]);
        assert_int_equal(addr, larger);
        assert_int_equal(stats().live, sizes[i]);
        fake.blocked = false;
        put(addr, sizes[i]);
        later_work_begins();
    }
    fake.blocked = false;
}

/* The idle memory is not enough, so natively the request may be refused, too: it is refused soon. */
CASE(test_refusal_comes_soon_if_little_is_idle)
{
    const uint64_t began = now_ns();
    uint64_t addr;

    fake.pool->ask_ns = 20000000;
    fake.capacity = 64 * MIB;
    put(get(3 * MIB), 3 * MIB);
    later_work_begins();
    assert_int_equal(program_alloc(&fake, &plain, 64 * MIB, ID, &addr), -ENOMEM);
    assert_true(now_ns() - began < HOST_BUSY_NS / 2);
    fake.blocked = false;
}

/* No work is unfinished, so to ask again and again would free nothing. */
CASE(test_bound_asks_only_while_work_is_unfinished)
{
    uint64_t a[3], addr;

    fake.pool->ask_ns = 20000000;
    for (int round = 0; round < 2; round++) { /* in the second one all is known to be complete */
        get_all(a, 3, 60 * MIB);
        put_all(a, 3, 60 * MIB);
    }
    put(get(60 * MIB), 60 * MIB);
    host_fake_launch(&fake);
    fake.blocked = true;
    fake.calls[HOST_CALL_FREE] = 0;
    addr = get(200 * MIB);
    assert_true(fake.calls[HOST_CALL_FREE] > 0 && fake.calls[HOST_CALL_FREE] < 16);
    fake.blocked = false;
    put(addr, 200 * MIB);
}

/* Also work behind a free of this very moment is unfinished. */
CASE(test_idle_memory_is_complete_once_its_work_is)
{
    const uint64_t addr = get(60 * MIB);

    assert_true(host_idle_is_complete(fake.pool));
    host_fake_launch(&fake);
    fake.blocked = true;
    put(addr, 60 * MIB);
    assert_false(host_idle_is_complete(fake.pool));
    fake.blocked = false;
    host_fake_complete(&fake);
    assert_true(host_tokens_ask(fake.pool, 1));
    assert_true(host_idle_is_complete(fake.pool));
}

/* A passing block that a capture has kept is of no class: it serves only what its class serves, and goes back for the
 * rest. */
CASE(test_passing_block_that_was_kept_goes_back)
{
    const size_t odd = 100 * MIB + 4 * KIB;
    uint64_t a, b;

    host_pool_destroy(fake.pool);
    host_fake_init(&fake, 128 * MIB, BOUND);
    fake.capacity = 170 * MIB;
    a = get(60 * MIB);
    b = get(odd);
    assert_int_equal(stats().passing, odd);
    fake.frozen = true;
    put(b, odd);
    fake.frozen = false;
    b = get(odd);
    fake.fail_call = HOST_CALL_FREE; /* a capture that has ended when the free is recorded */
    fake.fail_at = fake.calls[HOST_CALL_FREE] + 1;
    fake.fail_rc = -EBUSY;
    put(b, odd);
    b = get(odd);
    put(b, odd);
    put(a, 60 * MIB);
}

/* One that a capture has kept goes at the next decay, however short it was idle. */
CASE(test_passing_block_that_was_kept_does_not_age)
{
    uint64_t a, b;

    host_pool_destroy(fake.pool);
    host_fake_init(&fake, 128 * MIB, BOUND);
    a = get(60 * MIB);
    b = get(100 * MIB);
    put(a, 60 * MIB);
    fake.frozen = true;
    put(b, 100 * MIB);
    fake.frozen = false;
    assert_int_equal(stats().passing, 100 * MIB);
    assert_int_equal(host_pool_decay(fake.pool, 10), 100 * MIB);
    assert_int_equal(stats().held, 60 * MIB);
}

static uint64_t get_of(uint64_t owner, size_t size)
{
    struct host_key key = plain;
    uint64_t addr = 0;

    key.owner = owner;
    PASSES(program_alloc(&fake, &key, size, ID, &addr));
    return addr;
}

/* A context that is at work keeps its own memory alone from going back. */
CASE(test_busy_owner_keeps_its_own_alone)
{
    const uint64_t busy = get_of(plain.owner + 1, 10 * MIB);
    uint64_t a[3];

    get_all(a, 3, 10 * MIB);
    put(busy, 10 * MIB);
    assert_int_equal(host_pool_decay(fake.pool, 100), 0); /* it is idle for longer */
    put_all(a, 3, 10 * MIB);
    fake.busy = plain.owner + 1;
    assert_int_equal(host_pool_trim(fake.pool, /* may_wait: */ false), 30 * MIB);
    fake.busy = 0;
}

static void owner_goes(void)
{
    host_pool_owner_gone(fake.pool, plain.owner);
}

/* Memory that cannot go back just now, because its context is about to end, ends with it. */
CASE(test_owner_goes_beside_a_free)
{
    put(get(10 * MIB), 10 * MIB);
    fake.busy = plain.owner;
    fake.freed_meanwhile = owner_goes;
    assert_int_equal(host_pool_trim(fake.pool, /* may_wait: */ false), 10 * MIB);
    fake.busy = 0;
    assert_int_equal(stats().held, 0);
    assert_int_equal(stats().segments, 0);
    assert_int_equal(fake.lost, 10 * MIB);
}

static void third_comes_and_goes(void)
{
    put(get(80 * MIB), 80 * MIB);
}

static void second_is_refused(void)
{
    uint64_t addr;

    fake.meanwhile = third_comes_and_goes;
    assert_int_equal(program_alloc(&fake, &plain, 1024 * MIB, ID, &addr), -ENOMEM);
}

/* A refused request counts no more; those that were under way at the same time still do. */
CASE(test_bound_forgets_the_refused_request_alone)
{
    uint64_t addr;

    fake.capacity = 300 * MIB;
    fake.meanwhile = second_is_refused;
    addr = get(80 * MIB);
    assert_int_equal(fake.pool->native_peak, 160 * MIB);
    put(addr, 80 * MIB);
}
