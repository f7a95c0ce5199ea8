/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host_random.c - long random sequences on the host pool with faults, a fault at every call in turn, and threads.
 * The program of host_fake.h notices memory that is handed out twice or too early.
 *
 * With an argument the pool has shards at once.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences and lengths.
 */
#include "cases.h"

#include "host_fake.h"
#include "seeded.h"
#include "wrapped.h"

#define LIVE       200u
#define DEADLOCK_S 600
#define BOUND      (16 * MIB)
/* In what one thread does alone there is no race to be found, and it would take minutes. */
#ifdef __SANITIZE_THREAD__
#define ALONE 0
#else
#define ALONE 1
#endif

struct live {
    uint64_t addr;
    size_t size;
    uint32_t id;
    uint64_t owner;
};

/* A refused request waits up to 30 s for work. Of one thread alone nothing can end it meanwhile: then each pause of a
 * wait takes no time, and moves the clock. */
#define PAUSE_NS 1000000u

static atomic_bool alone;
static _Atomic uint64_t ahead;

WRAPPED(void, lock_pause, (unsigned int times, uint32_t max_ns))
{
    if (atomic_load(&alone))
        atomic_fetch_add(&ahead, PAUSE_NS);
    else
        __real_lock_pause(times, max_ns);
}

WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *ts))
{
    const int rc = __real_clock_gettime(clock, ts);
    const uint64_t ns = atomic_load(&ahead) + (uint64_t)ts->tv_nsec;

    ts->tv_sec += (time_t)(ns / 1000000000);
    ts->tv_nsec = (long)(ns % 1000000000);
    return rc;
}

static uint64_t below(uint64_t *rng, uint64_t n)
{
    return next(rng) % n;
}

static size_t random_size(uint64_t *rng)
{
    switch (below(rng, 8)) {
    case 0:
        return 1 + below(rng, 3 * MIB);
    case 1:
        return (MIB - 2 * KIB) + below(rng, 4 * KIB);
    case 2:
        return 1 + below(rng, MIB);
    case 3:
    case 4:
        return (size_t)3000 << below(rng, 8);
    default:
        return 1 + below(rng, 16 * KIB);
    }
}

static void assert_sound(struct host_fake *fake, uint64_t seed, uint64_t step, size_t limit)
{
    struct host_stats s;
    char text[128] = "";
    uint64_t bound;

    host_pool_stats_get(fake->pool, &s);
    bound = s.peak_live + s.peak_live / 10 + BOUND;
    bound = limit && limit < bound ? limit : bound;
    if (host_pool_check(fake->pool, text, sizeof(text)))
        fail_msg("seed %llu, step %llu: host_pool_check: %s", (unsigned long long)seed, (unsigned long long)step, text);
    if (fake->fault)
        fail_msg("seed %llu, step %llu: %s", (unsigned long long)seed, (unsigned long long)step,
                 (const char *)fake->fault);
    if (s.held - s.passing > bound)
        fail_msg("seed %llu, step %llu: %llu bytes held, the bound is %llu", (unsigned long long)seed,
                 (unsigned long long)step, (unsigned long long)(s.held - s.passing), (unsigned long long)bound);
    if (s.held != fake->held)
        fail_msg("seed %llu, step %llu: %llu bytes held, the driver says %llu", (unsigned long long)seed,
                 (unsigned long long)step, (unsigned long long)s.held, (unsigned long long)fake->held);
}

/* A knob of the fake. */
static void disturb(struct host_fake *fake, uint64_t *rng)
{
    static const int errors[] = {-ENOMEM, -EIO, -EBUSY};

    switch (below(rng, 6)) {
    case 0:
        fake->fail_call = (enum host_call)below(rng, HOST_CALLS);
        fake->fail_at = fake->calls[fake->fail_call] + 1 + below(rng, 4);
        fake->fail_rc =
            errors[below(rng, fake->fail_call == HOST_CALL_ALLOC ? 3 : 2) + (fake->fail_call != HOST_CALL_ALLOC)];
        break;
    case 1:
        fake->frozen = below(rng, 4) == 0;
        break;
    case 2:
        fake->capacity = below(rng, 3) ? 0 : below(rng, 200) * MIB;
        break;
    case 3:
        (void)host_pool_trim(fake->pool, below(rng, 2));
        break;
    case 4:
        (void)host_pool_decay(fake->pool, (unsigned int)below(rng, 4));
        break;
    default:
        if (host_pool_free(fake->pool, next(rng) >> below(rng, 64)) != -ENOENT)
            host_fake_fault(fake, "a free of no memory of the pool was accepted");
    }
}

static void owner_ends(struct host_fake *fake, struct live *live, size_t *count, uint64_t owner)
{
    size_t left = 0;

    for (size_t i = 0; i < *count; i++)
        if (live[i].owner != owner)
            live[left++] = live[i];
    *count = left;
    host_pool_owner_gone(fake->pool, owner);
}

static void step(struct host_fake *fake, struct live *live, size_t *count, uint64_t *rng)
{
    const size_t crowd = (size_t)4 << below(rng, 6);
    struct live *one;

    switch (below(rng, 40)) {
    case 0:
        disturb(fake, rng);
        return;
    case 1:
    case 2:
        host_fake_launch(fake);
        return;
    case 3:
    case 4:
    case 5:
        host_fake_step(fake);
        return;
    case 6:
        if (below(rng, 8) == 0)
            host_fake_complete(fake);
        return;
    case 7:
        if (below(rng, 50) == 0)
            owner_ends(fake, live, count, below(rng, 2));
        return;
    default:
        break;
    }
    if (*count < LIVE && below(rng, 2 * crowd) >= *count) {
        const struct host_key key = {below(rng, 2), 0, (unsigned int)below(rng, 8) == 0};

        one = &live[*count];
        *one = (struct live){0, random_size(rng), 1 + (uint32_t)below(rng, 1000000), key.owner};
        if (program_alloc(fake, &key, one->size, one->id, &one->addr) == 0)
            (*count)++;
    } else if (*count) {
        one = &live[below(rng, *count)];
        if (host_pool_free(fake->pool, one->addr + 1 + below(rng, one->size)) == 0)
            host_fake_fault(fake, "a free of an interior address was accepted");
        (void)program_free(fake, one->addr, one->size, one->id);
        *one = live[--*count];
    }
}

static void drain(struct host_fake *fake, struct live *live, size_t count)
{
    fake->fail_at = 0;
    fake->frozen = false;
    for (size_t i = 0; i < count; i++)
        (void)program_free(fake, live[i].addr, live[i].size, live[i].id);
    host_fake_complete(fake);
    (void)host_pool_trim(fake->pool, false);
}

static void run(size_t limit, size_t offset)
{
    static struct live live[LIVE];
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1), ops = env_number("CUPOOL_TEST_OPS", 12000);
    uint64_t rng = seed * 0x9e3779b97f4a7c15u + 1;
    struct host_fake fake;
    size_t count = 0;

    if (!ALONE)
        skip();
    alarm(DEADLOCK_S);
    atomic_store(&alone, true);
    host_fake_init(&fake, limit, BOUND);
    fake.offset = offset;
    for (uint64_t i = 0; i < ops; i++) {
        step(&fake, live, &count, &rng);
        if (i % 16 == 0)
            assert_sound(&fake, seed, i, limit);
    }
    drain(&fake, live, count);
    assert_sound(&fake, seed, ops, limit);
    host_fake_done(&fake);
    assert_null(fake.fault);
    alarm(0);
}

UNIT_CASE(test_random)
{
    run(0, 0);
}

UNIT_CASE(test_random_with_limit)
{
    run(24 * MIB, 0);
}

/* The driver's small allocations need not begin at a multiple of 2 MiB. */
UNIT_CASE(test_random_unaligned)
{
    run(0, 3 * HOST_PAGE);
}

/* --- a fault at every call --- */

/* A short program that comes to every kind of call. Its own results do not matter. */
static void scenario(struct host_fake *fake)
{
    const struct host_key key = {.owner = 1};
    struct live live[8] = {{0}};

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 8; i++) {
            live[i].size = i % 2 ? 6 * MIB : (size_t)20000 << i / 2;
            live[i].addr = 0;
            (void)program_alloc(fake, &key, live[i].size, 5, &live[i].addr);
        }
        host_fake_launch(fake);
        for (int i = 0; i < 8; i++)
            if (live[i].addr)
                (void)program_free(fake, live[i].addr, live[i].size, 5);
        live[0].addr = 0; /* at the bound: it waits for the last free's work */
        (void)program_alloc(fake, &key, 30 * MIB, 5, &live[0].addr);
        if (live[0].addr)
            (void)program_free(fake, live[0].addr, 30 * MIB, 5);
        host_fake_launch(fake);
        (void)host_pool_decay(fake->pool, 1);
        host_fake_complete(fake);
        (void)host_pool_decay(fake->pool, 1);
    }
}

UNIT_CASE(test_fault_at_every_call)
{
    static const int errors[] = {-ENOMEM, -EBUSY, -EIO};

    if (!ALONE)
        skip();
    alarm(DEADLOCK_S);
    atomic_store(&alone, true);
    for (int call = 0; call < HOST_CALLS; call++)
        for (int e = 0; e < 3; e++)
            for (unsigned long at = 1, calls = 1; at <= calls; at++) {
                struct host_fake fake;

                host_fake_init(&fake, 40 * MIB, BOUND);
                fake.fail_call = (enum host_call)call;
                fake.fail_rc = errors[e];
                fake.fail_at = at;
                scenario(&fake);
                calls = fake.calls[call];
                assert_true(calls > 0);
                drain(&fake, NULL, 0);
                assert_sound(&fake, (uint64_t)call, at, 40 * MIB);
                assert_int_equal(fake.held, 0);
                host_fake_done(&fake);
                assert_null(fake.fault);
            }
    alarm(0);
}

/* --- threads --- */

#define THREADS 4u

static struct host_fake shared;

static void *thread_main(void *arg)
{
    uint64_t rng = 77 * (uint64_t)(uintptr_t)arg;
    const uint64_t ops = env_number("CUPOOL_TEST_OPS", 12000) / 4;
    struct live live[32];
    size_t count = 0;

    for (uint64_t i = 0; i < ops; i++) {
        const struct host_key key = {below(&rng, 2), 0, 0};
        struct live *one = &live[below(&rng, 32)];

        if (below(&rng, 8) == 0)
            host_fake_launch(&shared);
        if (below(&rng, 4) == 0)
            host_fake_step(&shared);
        if (below(&rng, 512) == 0)
            (void)host_pool_trim(shared.pool, false);
        if (below(&rng, 512) == 0)
            (void)host_pool_decay(shared.pool, 1);
        if (one < &live[count]) {
            (void)program_free(&shared, one->addr, one->size, one->id);
            *one = live[--count];
            continue;
        }
        one = &live[count];
        one->size = random_size(&rng) / 4 + 1;
        one->id = (uint32_t)(uintptr_t)arg;
        if (program_alloc(&shared, &key, one->size, one->id, &one->addr) == 0)
            count++;
    }
    for (size_t i = 0; i < count; i++)
        (void)program_free(&shared, live[i].addr, live[i].size, live[i].id);
    return NULL;
}

UNIT_CASE(test_threads)
{
    pthread_t threads[THREADS];

    alarm(DEADLOCK_S);
    atomic_store(&alone, false);
    host_fake_init(&shared, 0, BOUND);
    shared.alone = false;
    shared.slow = true;
    for (unsigned int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_main, (void *)(uintptr_t)(i + 1)), 0);
    join_all(threads, THREADS);
    host_fake_complete(&shared);
    (void)host_pool_trim(shared.pool, false);
    assert_sound(&shared, 0, 0, 0);
    assert_int_equal(shared.held, 0);
    host_fake_done(&shared);
    assert_null(shared.fault);
    alarm(0);
}

int main(int argc, char **argv)
{
    host_fake_sharded = argc > 1;
    return cases_run();
}
