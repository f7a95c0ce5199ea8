/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_combiner.c - how often the host pool calls the driver to know what is complete, and what threads do while
 * another one is in such a call. That no block serves too early is tested by test_host_pool.c and
 * test_host_random.c. */
#include "host_env.h"

#define PAIRS 20000u

static unsigned long calls(enum host_call call)
{
    return atomic_load(&fake.calls[call]);
}

static void pairs(size_t size, unsigned int n)
{
    uint64_t addr;

    for (unsigned int i = 0; i < n; i++) {
        if (host_pool_alloc(fake.pool, &plain, size, &addr) || host_pool_free(fake.pool, addr))
            host_fake_fault(&fake, "a pair failed");
    }
}

/* With nothing unfinished. part: of a call for each pair. */
static void assert_calls(size_t size, unsigned int n, unsigned int part)
{
    assert_true(calls(HOST_CALL_RECORD) <= n / part + 1);
    assert_true(calls(HOST_CALL_QUERY) <= n / part + 1);
    assert_true(size > HOST_SMALL_MAX || calls(HOST_CALL_RECORD) + calls(HOST_CALL_QUERY) <= n / 8);
    assert_int_equal(calls(HOST_CALL_WAIT), 0);
}

static const size_t sizes[] = {512, 4 * KIB, 64 * KIB, 900 * KIB, MIB, 64 * MIB};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

UNIT_CASE(test_calls_of_a_pair)
{
    for (size_t i = 0; i < SIZES; i++) {
        if (sizes[i] == 900 * KIB)
            continue; /* two share a slab and a token */
        (void)setup(state);
        pairs(sizes[i], PAIRS);
        assert_calls(sizes[i], PAIRS, sizes[i] <= HOST_SMALL_MAX ? 12 : 1);
        assert_int_equal(stats().misses, 1);
        (void)teardown(state);
    }
}

#define THREADS 4u

static void *pairs_main(void *size)
{
    pairs((size_t)(uintptr_t)size, PAIRS / THREADS);
    return NULL;
}

/* No more of them with more threads, and a thread takes no memory of the driver because another one is asking. */
UNIT_CASE(test_calls_of_threads)
{
    for (size_t i = 0; i < SIZES; i++) {
        pthread_t thread[THREADS];

        (void)setup(state);
        fake.alone = false;
        for (unsigned int t = 0; t < THREADS; t++)
            assert_int_equal(pthread_create(&thread[t], NULL, pairs_main, (void *)(uintptr_t)sizes[i]), 0);
        join_all(thread, THREADS);
        assert_true(calls(HOST_CALL_RECORD) <= PAIRS && calls(HOST_CALL_QUERY) <= PAIRS);
        assert_true(sizes[i] <= HOST_SMALL_MAX || stats().misses <= 2 * THREADS);
        assert_true(sizes[i] > 64 * KIB || calls(HOST_CALL_RECORD) + calls(HOST_CALL_QUERY) <= PAIRS / 6);
        (void)teardown(state);
    }
}

/* A large block's free has a token of its own: work that is launched later keeps the block from nobody. */
CASE(test_later_work_keeps_no_large_block)
{
    const uint64_t large = get(MIB);

    put(large, MIB);
    host_fake_launch(&fake);
    assert_int_equal(get(MIB), large);
    put(large, MIB);
    assert_int_equal(calls(HOST_CALL_RECORD), 2);
}

/* Small blocks share a token, which may cover later work; so there is one after some of them in any case. */
CASE(test_later_work_keeps_few_small_blocks)
{
    enum { COUNT = 30 };
    uint64_t addr[COUNT];

    get_all(addr, COUNT, 64 * KIB);
    put_all(addr, COUNT, 64 * KIB);
    host_fake_launch(&fake);
    get_all(addr, COUNT / 2, 64 * KIB);
    assert_int_equal(stats().misses, 1);
    put_all(addr, COUNT / 2, 64 * KIB);
}

static void *free_main(void *addr)
{
    put((uint64_t)(uintptr_t)addr, MIB);
    return NULL;
}

static void until_calls(enum host_call call, unsigned long n)
{
    while (calls(call) < n)
        usleep(100);
}

/* While a thread is held up in a call, another one's free returns, and its request is served; the free is covered by
 * the next token of the thread that was held up. */
CASE(test_a_combiner_that_is_held_up)
{
    const uint64_t first = get(MIB), second = get(MIB);
    pthread_t thread;
    uint64_t third;

    fake.alone = false;
    fake.hold = true;
    assert_int_equal(pthread_create(&thread, NULL, free_main, (void *)(uintptr_t)first), 0);
    until_calls(HOST_CALL_RECORD, 1);
    put(second, MIB);
    assert_int_equal(calls(HOST_CALL_RECORD), 1);
    assert_int_equal(calls(HOST_CALL_QUERY), 0);
    fake.hold = false;
    pthread_join(thread, NULL);
    assert_int_equal(calls(HOST_CALL_RECORD), 2);
    host_fake_launch(&fake); /* later work */
    third = get(MIB);
    assert_true(third == first || third == second);
    assert_int_equal(calls(HOST_CALL_RECORD), 2);
    assert_int_equal(calls(HOST_CALL_QUERY), 1);
    assert_int_equal(get(MIB), third == first ? second : first);
    put(first, MIB);
    put(second, MIB);
}

static void *complete_later(void *arg)
{
    usleep(20000);
    host_fake_complete(&fake);
    return NULL;
}

/* Natively that free has waited for the work before it: a refused request waits, although another thread has recorded
 * the token. */
CASE(test_refusal_waits_for_own_free_beside_a_combiner)
{
    const uint64_t first = get(MIB), second = get(MIB);
    pthread_t freeing, completing;
    uint64_t third;

    fake.alone = false;
    fake.capacity = 2 * MIB;
    fake.hold = true;
    host_fake_launch(&fake);
    assert_int_equal(pthread_create(&freeing, NULL, free_main, (void *)(uintptr_t)first), 0);
    until_calls(HOST_CALL_RECORD, 1);
    put(second, MIB);
    fake.hold = false;
    pthread_join(freeing, NULL);
    fake.blocked = true; /* no wait without a limit: the token may cover later work */
    assert_int_equal(pthread_create(&completing, NULL, complete_later, NULL), 0);
    third = get(2 * MIB);
    pthread_join(completing, NULL);
    fake.blocked = false;
    put(third, 2 * MIB);
}

/* Its own token could not be waited for, or not long enough: there are several contexts. */
CASE(test_refusal_waits_on_for_own_free)
{
    uint64_t addr = get(MIB);
    pthread_t completing;

    fake.alone = false;
    fake.capacity = 2 * MIB;
    host_fake_launch(&fake);
    put(addr, MIB);
    fake.fail_call = HOST_CALL_WAIT;
    fake.fail_at = 1;
    fake.fail_rc = -ETIMEDOUT;
    assert_int_equal(pthread_create(&completing, NULL, complete_later, NULL), 0);
    addr = get(2 * MIB);
    pthread_join(completing, NULL);
    put(addr, 2 * MIB);
}

/* The work may be over at any moment of that: between the last try and the question whether to go on, too. */
static unsigned int questions_left;

static void complete_in_time(void)
{
    if (--questions_left)
        fake.asked_meanwhile = complete_in_time;
    else
        host_fake_complete(&fake);
}

CASE(test_work_ends_at_any_question)
{
    unsigned long asked;
    uint64_t addr;

    fake.alone = false;
    fake.capacity = 2 * MIB;
    for (unsigned int n = 1; n <= 12; n++) {
        addr = get(MIB);
        host_fake_launch(&fake);
        put(addr, MIB);
        fake.fail_call = HOST_CALL_WAIT;
        fake.fail_at = fake.calls[HOST_CALL_WAIT] + 1;
        fake.fail_rc = -ETIMEDOUT;
        questions_left = n;
        fake.asked_meanwhile = complete_in_time;
        asked = fake.calls[HOST_CALL_QUERY];
        addr = get(2 * MIB);
        assert_in_range(fake.calls[HOST_CALL_QUERY] - asked, n, n + 4);
        put(addr, 2 * MIB);
        host_pool_trim(fake.pool, false);
    }
}

static void *get_main(void *ret_addr)
{
    *(uint64_t *)ret_addr = get(MIB);
    return NULL;
}

/* A request waits a short time only, then asks beside it. */
CASE(test_a_request_beside_a_combiner_that_is_held_up)
{
    const uint64_t first = get(MIB), second = get(MIB);
    pthread_t freeing, getting;
    uint64_t third = 0;

    fake.alone = false;
    put(second, MIB); /* with a token */
    fake.hold = true;
    assert_int_equal(pthread_create(&freeing, NULL, free_main, (void *)(uintptr_t)first), 0);
    until_calls(HOST_CALL_RECORD, 2);
    assert_int_equal(pthread_create(&getting, NULL, get_main, &third), 0);
    pthread_join(getting, NULL); /* a deadlock, if it waits for the combiner */
    assert_int_equal(third, second);
    assert_true(fake.pool->tokens.combining);
    fake.hold = false;
    pthread_join(freeing, NULL);
    assert_false(fake.pool->tokens.combining);
    put(third, MIB);
    put(get(MIB), MIB);
}

/* A token that could not be recorded covers nothing: the next one does. */
CASE(test_a_token_that_failed)
{
    static const int errors[] = {-EBUSY, -EIO};

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        const uint64_t addr = get(MIB);

        host_fake_launch(&fake);
        fake.fail_call = HOST_CALL_RECORD;
        fake.fail_at = calls(HOST_CALL_RECORD) + 1;
        fake.fail_rc = errors[i];
        assert_int_equal(host_pool_free(fake.pool, addr), errors[i] == -EBUSY ? 0 : errors[i]);
        host_fake_complete(&fake);
        assert_false(fake.pool->tokens.combining);
        memset((void *)(uintptr_t)addr, 0, MIB); /* the fake's marks */
        assert_int_equal(get(MIB), addr);
        put(addr, MIB);
        assert_int_equal(get(MIB), addr);
        put(addr, MIB);
    }
}
