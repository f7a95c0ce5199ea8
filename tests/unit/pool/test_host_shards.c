/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_shards.c - the host pool's shards: what they do without the pool's lock, and that nothing else can be told
 * from a pool without them. test_host_random.c has long sequences with shards. */

#include "host_env.h"
#include "seeded.h"
#include "wrapped.h"

#define BIG    HOST_SHARD_SIZE
#define LARGE  (3 * MIB)
#define IN_ONE 15 /* so many of them are in a slab */
#define COUNT  64

/* The thread's shard has ready blocks of this size. */
static struct host_shard *stock(size_t size)
{
    const unsigned int class = host_class_of(size);
    uint64_t addr[COUNT];

    get_all(addr, COUNT, size);
    put_all(addr, COUNT, size);
    for (int round = 0; round < 32 * COUNT; round++) {
        for (unsigned int i = 0; i < HOST_SHARDS; i++) {
            const struct host_magazine *magazine = &fake.pool->shards[i].magazines[class % HOST_MAGAZINES];

            if (magazine->count >= 8 && magazine->class == class)
                return &fake.pool->shards[i];
        }
        addr[0] = get(size);
        put(addr[0], size);
    }
    fail_msg("no shard has blocks");
    return NULL;
}

/* The thread's shard keeps a block of this size. */
static struct host_shard *stock_large(size_t size)
{
    for (int round = 0; round < 3; round++)
        put(get(size), size);
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        if (fake.pool->shards[i].kept_count)
            return &fake.pool->shards[i];
    fail_msg("no shard keeps it");
    return NULL;
}

static void pairs_without_lock(size_t size)
{
    struct host_key key;
    size_t found;

    lock_take(&fake.pool->lock); /* a deadlock, if a pair takes it */
    for (int i = 0; i < 4; i++) {
        const uint64_t addr = get(size);

        PASSES(host_pool_find(fake.pool, addr, &found, &key));
        assert_true(found == size && key.owner == plain.owner);
        put(addr, size);
    }
    lock_give(&fake.pool->lock);
}

SHARDED_CASE(test_a_pair_takes_no_lock)
{
    const uint64_t live = get(8 * KIB);
    struct host_stats before, after;

    (void)stock(4 * KIB);
    before = stats(); /* gives back what is ready */
    (void)stock(4 * KIB);
    pairs_without_lock(4 * KIB);
    after = stats();
    assert_int_equal(after.allocs - before.allocs, after.frees - before.frees);
    assert_true(after.frees - before.frees > COUNT + 4);
    assert_int_equal(after.live, 8 * KIB);
    assert_int_equal(after.peak_live, 8 * KIB + COUNT * 4 * KIB);
    put(live, 8 * KIB);
    (void)stock_large(LARGE);
    pairs_without_lock(LARGE);
    (void)stock_large(200 * KIB);
    pairs_without_lock(200 * KIB);
}

SHARDED_CASE(test_invalid_frees)
{
    struct host_key key;
    uint64_t base;
    size_t size;

    (void)stock(4 * KIB);
    for (int i = 0; i < 16; i++) {
        const size_t asked = i < 8 ? 4 * KIB : LARGE;
        uint64_t addr;

        if (asked == LARGE)
            (void)stock_large(LARGE);
        addr = get(asked);
        assert_int_equal(host_pool_free(fake.pool, addr + HOST_GRANULE), -EINVAL);
        if (i % 2) { /* the block is the pool's then */
            PASSES(host_pool_block(fake.pool, addr + i * 100, &base, &size));
            assert_true(base == addr && size == asked);
        }
        put(addr, asked);
        assert_int_equal(host_pool_free(fake.pool, addr), -EINVAL);
        assert_int_equal(host_pool_find(fake.pool, addr, &size, &key), -EINVAL);
        assert_int_equal(host_pool_block(fake.pool, addr, &base, &size), -EINVAL);
        assert_sound();
    }
}

static void *put_main(void *addr)
{
    put((uint64_t)(uintptr_t)addr, 4 * KIB);
    return NULL;
}

SHARDED_CASE(test_another_thread_frees)
{
    pthread_t thread;

    (void)stock(4 * KIB);
    for (int i = 0; i < 8; i++) {
        const uint64_t addr = get(4 * KIB);

        assert_int_equal(pthread_create(&thread, NULL, put_main, (void *)(uintptr_t)addr), 0);
        pthread_join(thread, NULL);
        assert_int_equal(host_pool_free(fake.pool, addr), -EINVAL);
        assert_sound();
    }
    assert_int_equal(stats().live, 0);
}

/* host_fake.h notices if memory serves too early. */
SHARDED_CASE(test_work_that_is_not_over)
{
    uint64_t addr[COUNT];

    (void)stock(4 * KIB);
    for (int round = 0; round < 4; round++) {
        get_all(addr, COUNT, 4 * KIB);
        host_fake_launch(&fake);
        put_all(addr, COUNT, 4 * KIB);
        assert_null(fake.fault);
    }
}

/* Large blocks, too; each serves as soon as its own work is over. The shard keeps some, the pool has the rest. */
SHARDED_CASE(test_large_work_that_is_not_over)
{
    enum { SOME = HOST_SHARD_KEPT + 4 };
    uint64_t addr[SOME], misses, again;

    for (int round = 0; round < 3; round++) {
        get_all(addr, SOME, LARGE);
        for (int i = 0; i < SOME; i++) {
            host_fake_launch(&fake);
            put(addr[i], LARGE);
        }
        for (unsigned int i = 0; i < HOST_SHARDS; i++)
            assert_true(fake.pool->shards[i].kept_count <= HOST_SHARD_KEPT);
        assert_sound();
        misses = fake.pool->stats.misses; /* statistics take back what shards keep */
        host_fake_step(&fake);
        again = get(LARGE);
        assert_int_equal(again, addr[0]);
        put(again, LARGE);
        assert_int_equal(stats().misses, misses);
        host_fake_complete(&fake);
    }
}

/* Nor does the bound rise by frees that only the shard knows of. */
SHARDED_CASE(test_the_peak)
{
    uint64_t addr[3];

    get_all(addr, 3, 4 * KIB);
    put_all(addr, 3, 4 * KIB);
    addr[0] = get(8 * KIB);
    assert_int_equal(fake.pool->native_peak, 12 * KIB);
    assert_int_equal(stats().peak_live, 12 * KIB);
    put(addr[0], 8 * KIB);
}

/* While it is set, the clock gets on by a second at each look. */
static atomic_bool hurries;

WRAPPED(int, clock_gettime, (clockid_t clock, struct timespec *ts))
{
    static atomic_int passed;
    const int rc = __real_clock_gettime(clock, ts);

    ts->tv_sec += atomic_load(&hurries) ? ++passed : atomic_load(&passed);
    return rc;
}

/* Statistics do without a shard whose lock is never given back: a handler of a signal may have ended the process. */
SHARDED_CASE(test_a_lock_that_is_lost)
{
    const struct host_shard *own = stock(4 * KIB);
    struct lock *other = &fake.pool->shards[(own - fake.pool->shards + 1) % HOST_SHARDS].lock;
    const size_t peak = (size_t)fake.pool->native_peak;
    uint64_t addr[2 * COUNT];
    struct host_stats counted;

    get_all(addr, 2 * COUNT, 4 * KIB);
    fake.pool->native_peak = peak; /* what other threads' shards have handed out since */
    lock_take(other);
    atomic_store(&hurries, true);
    counted = stats();
    atomic_store(&hurries, false);
    assert_int_equal(counted.live, sizeof(addr) / sizeof(*addr) * 4 * KIB);
    assert_int_equal(fake.pool->native_peak, peak);
    lock_give(other);
    (void)stats();
    assert_int_equal(fake.pool->native_peak, counted.live);
    put_all(addr, 2 * COUNT, 4 * KIB);
}

extern _Thread_local void (*lock_hook)(struct lock *lock); /* of checked_lock.h */

/* Of a shard; taken when a thread first waits for the pool's lock, and given back when one waits for it. */
static struct lock *others;
static bool others_had;

static void others_have_it(struct lock *lock)
{
    if (lock == &fake.pool->lock && !others_had)
        others_had = lock_try(others);
    else if (lock == others)
        lock_give(lock);
}

/* Requests and checks wait for a shard's lock as long as it takes. */
SHARDED_CASE(test_a_lock_that_is_waited_for)
{
    char text[128];
    uint64_t addr;

    others = &fake.pool->shards[HOST_SHARDS - 1].lock;
    others_had = false;
    lock_hook = others_have_it;
    atomic_store(&hurries, true);
    addr = get(80 * MIB);
    assert_true(others_had);
    assert_int_equal(fake.pool->stats.bound, 0); /* which the request has raised */
    others_had = false;
    assert_int_equal(host_pool_check(fake.pool, text, sizeof(text)), 0);
    assert_true(others_had);
    atomic_store(&hurries, false);
    lock_hook = NULL;
    put(addr, 80 * MIB);
}

SHARDED_CASE(test_trim_and_decay)
{
    (void)stock(4 * KIB);
    assert_int_equal(host_pool_trim(fake.pool, false), HOST_SLAB);
    assert_int_equal(fake.held, 0);
    (void)stock(4 * KIB);
    assert_int_equal(host_pool_decay(fake.pool, 0), HOST_SLAB);
    (void)stock_large(LARGE);
    assert_int_equal(host_pool_trim(fake.pool, false), LARGE);
}

static void *pair_main(void *size)
{
    put(get((size_t)(uintptr_t)size), (size_t)(uintptr_t)size);
    return NULL;
}

/* Blocks that another thread's shard keeps serve before the driver does. */
SHARDED_CASE(test_other_shards_memory)
{
    uint64_t addr[IN_ONE];
    pthread_t thread;

    get_all(addr, IN_ONE - 1, BIG);
    assert_int_equal(pthread_create(&thread, NULL, pair_main, (void *)BIG), 0);
    pthread_join(thread, NULL);
    addr[IN_ONE - 1] = get(BIG);
    assert_int_equal(stats().misses, 1);
    put_all(addr, IN_ONE, BIG);
    (void)stock_large(LARGE);
    assert_int_equal(stats().misses, 2);
    (void)stock_large(LARGE); /* the statistics have taken it back */
    assert_int_equal(pthread_create(&thread, NULL, pair_main, (void *)LARGE), 0);
    pthread_join(thread, NULL);
    assert_int_equal(stats().misses, 2);
}

SHARDED_CASE(test_an_owner_that_ends)
{
    const struct host_shard *shard = stock(4 * KIB);
    uint64_t addr[COUNT];

    get_all(addr, 4, 4 * KIB);
    put(addr[3], 4 * KIB);
    put(addr[2], 4 * KIB); /* if that was one too many */
    assert_true(shard->out && shard->freed_count);
    host_pool_owner_gone(fake.pool, plain.owner);
    assert_sound();
    assert_true(stats().live == 0 && stats().held == 0 && shard->out == 0);
    assert_null(fake.pool->families);
    assert_int_equal(host_pool_free(fake.pool, addr[0]), -ENOENT);
}

/* A block beyond the bound that could not go back goes back when it is freed again. */
SHARDED_CASE(test_passing_blocks)
{
    uint64_t addr[IN_ONE + 1];

    fake.pool->limit = HOST_SLAB;
    for (int i = 0; i <= IN_ONE; i++)
        addr[i] = get(BIG);
    assert_int_equal(stats().passing, BIG);
    fake.frozen = true;
    put(addr[IN_ONE], BIG);
    fake.frozen = false;
    addr[IN_ONE] = get(BIG);
    assert_int_equal(stats().passing, BIG);
    put(addr[IN_ONE], BIG);
    assert_int_equal(fake.held, HOST_SLAB);
    put_all(addr, IN_ONE, BIG);
}

/* The shard knows what it has handed out, so that this thread's frees need no lock of the pool. */
SHARDED_CASE(test_live_blocks)
{
    uint64_t addr[IN_ONE];
    unsigned int out = 0;

    get_all(addr, IN_ONE, BIG);
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        out += fake.pool->shards[i].out;
    assert_int_equal(out, IN_ONE - 1); /* the first has come with the slab */
    put_all(addr, IN_ONE, BIG);
}

/* Many live blocks: the shard does not keep them all. */
SHARDED_CASE(test_many_live_blocks)
{
    enum { MANY = 1000 };
    uint64_t addr[MANY];

    for (int i = 0; i < MANY; i++) {
        addr[i] = get(512);
        assert_true(stats().live == (uint64_t)(i + 1) * 512);
    }
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        assert_true(fake.pool->shards[i].out <= HOST_SHARD_OUT);
    assert_sound();
    put_all(addr, MANY, 512);
    assert_int_equal(stats().live, 0);
}

/* The pool has shards once threads have waited for its lock often enough. */
CASE(test_contention)
{
    pthread_t thread;

    fake.alone = false;
    fake.pool->contended = HOST_CONTENDED - 1;
    put(get(4 * KIB), 4 * KIB);
    assert_false(fake.pool->sharded);
    lock_take(&fake.pool->lock);
    assert_int_equal(pthread_create(&thread, NULL, pair_main, (void *)(4 * KIB)), 0);
    while (fake.pool->contended < HOST_CONTENDED)
        usleep(100);
    lock_give(&fake.pool->lock);
    pthread_join(thread, NULL);
    assert_true(fake.pool->sharded);
}

/* --- threads free each other's blocks, beside trims, statistics and checks --- */

#define SLOTS   64u
#define THREADS 4u

static _Atomic uint64_t slots[SLOTS];

static size_t slot_size(unsigned int slot)
{
    static const size_t sizes[] = {512, 4 * KIB, 64 * KIB, 100 * KIB, 300 * KIB, MIB};

    return sizes[slot % 6];
}

static void look(uint64_t choice)
{
    const struct host_stats s = choice == 10 ? stats() : (struct host_stats){0};
    char text[128];

    if (choice == 0)
        host_fake_launch(&fake);
    else if (choice < 8)
        host_fake_step(&fake);
    else if (choice == 8)
        (void)host_pool_trim(fake.pool, false);
    else if (choice == 9 && host_pool_check(fake.pool, text, sizeof(text)))
        host_fake_fault(&fake, "host_pool_check failed beside threads");
    else if (s.live > s.peak_live)
        host_fake_fault(&fake, "more is live than ever was");
}

static void *slots_main(void *seed)
{
    uint64_t rng = (uintptr_t)seed;

    for (int i = 0; i < 3000; i++) {
        const unsigned int slot = (unsigned int)(next(&rng) % SLOTS);
        uint64_t addr = atomic_exchange(&slots[slot], 0), none = 0;

        look(next(&rng) % 128);
        if (!addr) {
            addr = get(slot_size(slot));
            if (atomic_compare_exchange_strong(&slots[slot], &none, addr))
                continue;
        }
        put(addr, slot_size(slot));
    }
    return NULL;
}

SHARDED_CASE(test_threads_free_each_others_blocks)
{
    pthread_t thread[THREADS];

    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, slots_main, (void *)(i + 1)), 0);
    join_all(thread, THREADS);
    for (unsigned int i = 0; i < SLOTS; i++)
        if (slots[i])
            put(slots[i], slot_size(i));
    host_fake_complete(&fake);
    (void)host_pool_trim(fake.pool, false);
    assert_int_equal(fake.held, 0);
    assert_int_equal(stats().allocs, stats().frees);
}
