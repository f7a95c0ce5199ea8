/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_threads.c - many threads, two pools, blocks freed by whoever finds them; meant for ThreadSanitizer too.
 *
 * A stamp for each granule says who has it. pool_alloc must only return granules of nobody; a stamp goes back to nobody
 * inside order(), the earliest moment at which the block may be handed out again.
 *
 * CUPOOL_TEST_OPS in the environment: steps of each thread.
 */
#include "unit.h"

#include "clock.h"

#define THREADS  8
#define POOLS    2
#define OWN      64 /* live blocks of a thread */
#define MAILBOX  64 /* blocks in between threads */
#define GRANULES ((size_t)FAKE_UNITS / 4 * UNIT / POOL_GRANULE)
/* Stamps of large blocks are this far apart; a multiple of it starts every large block. */
#define STRIDE 64

struct parcel {
    uint64_t addr;
    size_t size;
    unsigned int pool;
};

struct kept {
    struct parcel parcel;
    struct kept *next;
};

static struct env envs[POOLS];
static _Atomic(uint8_t) *stamps[POOLS];
static struct parcel mailbox[MAILBOX]; /* addr 0: empty */
static pthread_mutex_t mailbox_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kept *kept[POOLS];
static _Atomic(const char *) fault;
static atomic_uint order_mood; /* calls fail while its bit 10 and some others are set */
static unsigned long steps;
/* The block that this thread is freeing, for order(). */
static _Thread_local const struct parcel *freeing;

static void expect(bool good, const char *what)
{
    if (!good)
        atomic_store(&fault, what);
}

/* Change the stamps of a block; all of them must have been as given. */
static void stamp(const struct parcel *parcel, uint8_t from, uint8_t to, const char *what)
{
    const size_t first = (size_t)(parcel->addr - envs[parcel->pool].fake->base) / POOL_GRANULE;
    const size_t count = (parcel->size + POOL_GRANULE - 1) / POOL_GRANULE;
    const size_t stride = count >= UNIT / POOL_GRANULE ? STRIDE : 1;

    for (size_t i = 0; i < count; i += stride)
        expect(atomic_exchange(&stamps[parcel->pool][first + i], to) == from, what);
}

#define NOBODY  0
#define GOING   255
#define TRAVELS 254

static int order_hook(struct fake *fake)
{
    const unsigned int pool = fake == envs[1].fake, mood = atomic_fetch_add(&order_mood, 1);
    const int rc = (mood & 0x700) == 0x700 ? (mood % 3 ? -EBUSY : -EIO) : 0;
    struct kept *entry, *next;

    if (rc) {
        if (freeing) {
            entry = malloc(sizeof(*entry));
            if (!entry)
                abort();
            entry->parcel = *freeing;
            pthread_mutex_lock(&kept_lock);
            entry->next = kept[pool];
            kept[pool] = entry;
            pthread_mutex_unlock(&kept_lock);
        }
        return rc;
    }
    pthread_mutex_lock(&kept_lock);
    entry = kept[pool];
    kept[pool] = NULL;
    /* With the lock: once a later order() returns, the pool may hand them out. */
    for (; entry; entry = next) {
        next = entry->next;
        stamp(&entry->parcel, GOING, NOBODY, "a kept block was handed out");
        free(entry);
    }
    pthread_mutex_unlock(&kept_lock);
    if (freeing)
        stamp(freeing, GOING, NOBODY, "a block was handed out before its order()");
    return 0;
}

static void give(const struct parcel *parcel, uint8_t owner)
{
    int rc;

    expect(pool_live_size(parcel->addr) == parcel->size, "wrong pool_live_size of an own block");
    expect(pool_of(parcel->addr) == envs[parcel->pool].pool, "wrong pool_of of an own block");
    stamp(parcel, owner, GOING, "somebody else has been handed a live block");
    freeing = parcel;
    rc = pool_free(parcel->addr);
    freeing = NULL;
    expect(rc == 0 || rc == -EIO, "pool_free failed");
}

static bool get(struct parcel *parcel, uint8_t owner, uint64_t *rng)
{
    int rc;

    parcel->pool = (unsigned int)rng_below(rng, POOLS);
    if (rng_below(rng, 32) == 0)
        parcel->size = (1 + rng_below(rng, 8)) * UNIT;
    else
        parcel->size = 1 + rng_below(rng, rng_below(rng, 8) ? 8 * KIB : rng_below(rng, 2) ? 256 * KIB : UNIT);
    rc = pool_alloc(envs[parcel->pool].pool, parcel->size, &parcel->addr);
    expect(rc == 0 || rc == -ENOMEM, "pool_alloc failed otherwise than with -ENOMEM");
    if (rc)
        return false;
    expect(parcel->addr % POOL_GRANULE == 0, "unaligned");
    stamp(parcel, NOBODY, owner, "a block that is somebody's was handed out");
    return true;
}

/* Its segment is to serve no more, while others allocate from it and free to it. */
static void withdraw(const struct parcel *parcel, uint8_t self, uint64_t *rng)
{
    struct parcel after;
    uint64_t base = 0;
    size_t size = 0;

    expect(pool_withdraw(parcel->addr) == 0, "pool_withdraw of an own block failed");
    expect(pool_segment_find(parcel->addr, &base, &size) == 0 && base <= parcel->addr &&
               parcel->addr + parcel->size <= base + size,
           "wrong pool_segment_find of an own block");
    if (!get(&after, self, rng))
        return;
    expect(after.addr < base || after.addr >= base + size, "a withdrawn segment serves on");
    give(&after, self);
}

static void ask(const struct parcel *parcel, uint8_t self, uint64_t *rng)
{
    struct pool_stats stats;
    uint64_t base, segment;
    size_t size;
    char text[128];

    switch (rng_below(rng, 4)) {
    case 0:
        expect(pool_block_find(parcel->addr + parcel->size - 1, &base, &size, &segment) == 0 && base == parcel->addr &&
                   size == parcel->size && segment <= base,
               "wrong pool_block_find of an own block");
        break;
    case 1:
        pool_stats_get(envs[parcel->pool].pool, &stats);
        expect(stats.live <= stats.held && stats.idle <= stats.held && stats.allocs == stats.hits + stats.misses,
               "counters do not agree");
        break;
    case 2:
        expect(pool_free(parcel->addr + 1) == -EINVAL, "an interior pointer was freed");
        break;
    default:
        switch (rng_below(rng, 40)) {
        case 0:
        case 1:
            pool_trim(envs[parcel->pool].pool, "test");
            break;
        case 2:
        case 3:
            pool_decay(envs[parcel->pool].pool, (unsigned int)rng_below(rng, 3));
            break;
        case 4:
            withdraw(parcel, self, rng);
            break;
        case 5:
            /* A block whose free makes room for it is neither in the program's hands nor free for a moment. */
            if (pool_check(envs[parcel->pool].pool, text, sizeof(text)) && !strstr(text, "program's hands"))
                expect(false, "pool_check found a fault");
            break;
        }
    }
}

static void *work(void *arg)
{
    const uint8_t self = (uint8_t)(1 + (size_t)arg);
    uint64_t rng = self;
    struct parcel own[OWN], parcel;
    size_t count = 0, at;

    for (unsigned long i = 0; i < steps && !atomic_load(&fault); i++) {
        switch (rng_below(&rng, 8)) {
        case 0: /* post a block, and free what lay there */
            if (!count)
                break;
            stamp(&own[--count], self, TRAVELS, "somebody else has been handed a live block");
            at = rng_below(&rng, MAILBOX);
            pthread_mutex_lock(&mailbox_lock);
            parcel = mailbox[at];
            mailbox[at] = own[count];
            pthread_mutex_unlock(&mailbox_lock);
            if (parcel.addr)
                give(&parcel, TRAVELS);
            break;
        case 1:
            if (count)
                ask(&own[rng_below(&rng, count)], self, &rng);
            break;
        case 2:
        case 3:
        case 4:
            if (count) {
                at = rng_below(&rng, count);
                parcel = own[at];
                own[at] = own[--count];
                give(&parcel, self);
            }
            break;
        default:
            if (count < OWN && get(&own[count], self, &rng))
                count++;
        }
    }
    while (count)
        give(&own[--count], self);
    return NULL;
}

static void run(bool prompt, size_t capacity)
{
    pthread_t threads[THREADS];

    alarm(DEADLOCK_SECONDS * 5);
    for (size_t p = 0; p < POOLS; p++) {
        struct pool_config config;

        envs[p].fake = fake_new();
        envs[p].fake->capacity = capacity;
        envs[p].fake->order_hook = order_hook;
        config = fake_config(envs[p].fake);
        config.excess_min = p ? 0 : config.excess_min; /* the second gives idle segments back where it grows */
        envs[p].fake->prompt = prompt;
        envs[p].pool = pool_new(&config);
        stamps[p] = calloc(GRANULES, sizeof(*stamps[p]));
        assert_non_null(stamps[p]);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, (void *)i), 0);
    join_all(threads, THREADS);
    if (atomic_load(&fault))
        fail_msg("%s", atomic_load(&fault));
    for (size_t i = 0; i < MAILBOX; i++)
        if (mailbox[i].addr)
            give(&mailbox[i], TRAVELS);
    memset(mailbox, 0, sizeof(mailbox));
    atomic_store(&order_mood, 0);
    for (size_t p = 0; p < POOLS; p++) {
        struct parcel last = {.size = 512, .pool = (unsigned int)p};

        envs[p].fake->capacity = FAKE_CAPACITY;
        assert_int_equal(pool_alloc(envs[p].pool, last.size, &last.addr), 0);
        stamp(&last, NOBODY, 1, "the last block is somebody's");
        give(&last, 1); /* brings what is still kept back */
        assert_sound(envs[p].pool, envs[p].fake);
        assert_int_equal(stats_of(envs[p].pool).live, 0);
        assert_int_equal(stats_of(envs[p].pool).idle, envs[p].fake->in_use);
        pool_trim(envs[p].pool, "test");
        assert_int_equal(envs[p].fake->in_use, 0);
        assert_int_equal(stats_of(envs[p].pool).held, 0);
        for (size_t i = 0; i < GRANULES; i++)
            if (atomic_load_explicit(&stamps[p][i], memory_order_relaxed))
                fail_msg("a granule is left over");
        pool_destroy(envs[p].pool);
        fake_delete(envs[p].fake);
        free(stamps[p]);
    }
    if (atomic_load(&fault))
        fail_msg("%s", atomic_load(&fault));
    alarm(0);
}

UNIT_CASE(test_threads_with_plenty_share_no_block)
{
    run(false, 4 * 1024 * MIB);
}

UNIT_CASE(test_threads_prompt_share_no_block)
{
    run(true, 4 * 1024 * MIB);
}

UNIT_CASE(test_threads_short_of_memory_share_no_block)
{
    run(true, 192 * MIB);
}

/* Two threads free the same block at the same time: one of them, and only one, succeeds. */

#define CONTESTS    5 /* for each step */
#define CONTESTS_NS 20000000000u

static uint64_t contested;
static struct meeting meeting;

/* The call that the other thread makes with the block each time, and its result. */
struct contest {
    int (*call)(uint64_t addr);
    int rc;
    bool goes_on;
    uint64_t start;
};

static void *contest_main(void *arg)
{
    struct contest *theirs = arg;
    unsigned int round = 0;

    for (;;) {
        meet(&meeting, 2, &round);
        if (!theirs->goes_on)
            return NULL;
        theirs->rc = theirs->call(contested);
        meet(&meeting, 2, &round);
    }
}

/* Whether there is a further contest: as many as there are to be, but on a busy machine fewer. */
static bool contest_next(struct contest *theirs, unsigned long i, unsigned int *round)
{
    theirs->start = i ? theirs->start : now_ns();
    theirs->goes_on = i < CONTESTS * steps && (i < 100 || now_ns() - theirs->start < CONTESTS_NS);
    if (!theirs->goes_on)
        meet(&meeting, 2, round);
    return theirs->goes_on;
}

POOL_CASE(test_threads_freeing_same_block_succeed_once)
{
    unsigned int bad = 0, round = 0;
    struct contest theirs = {.call = pool_free};
    pthread_t thread;
    int ours;

    atomic_store(&meeting.arrived, 0);
    assert_int_equal(pthread_create(&thread, NULL, contest_main, &theirs), 0);
    for (unsigned long i = 0; contest_next(&theirs, i, &round); i++) {
        bad += pool_alloc(env->pool, i % 2 ? 512 : 4 * MIB, &contested) != 0;
        meet(&meeting, 2, &round);
        for (unsigned long spin = 0; spin < i % 128; spin++) /* find the moment at which they collide */
            atomic_load(&meeting.arrived);
        ours = pool_free(contested);
        meet(&meeting, 2, &round);
        bad += !((ours == 0 && theirs.rc == -EINVAL) || (theirs.rc == 0 && ours == -EINVAL));
    }
    pthread_join(thread, NULL);
    assert_int_equal(bad, 0);
    assert_int_equal(stats_of(env->pool).live, 0);
}

/* One thread frees the last block of a segment while another withdraws that: it goes back, if not at once then with
 * the next free. */
POOL_CASE(test_threads_withdrawing_while_freeing_gives_back)
{
    const uint64_t keeper = alloc(env->pool, 64 * KIB); /* its segment is the one that stays */
    unsigned int bad = 0, left = 0, round = 0;
    struct contest theirs = {.call = pool_withdraw};
    pthread_t thread;

    atomic_store(&meeting.arrived, 0);
    assert_int_equal(pthread_create(&thread, NULL, contest_main, &theirs), 0);
    for (unsigned long i = 0; contest_next(&theirs, i, &round); i++) {
        bad += pool_alloc(env->pool, 4 * MIB, &contested) != 0;
        meet(&meeting, 2, &round);
        for (unsigned long spin = 0; spin < i % 128; spin++) /* find the moment at which they collide */
            atomic_load(&meeting.arrived);
        bad += pool_free(contested) != 0;
        meet(&meeting, 2, &round);
        bad += theirs.rc != 0; /* it is still there: nothing else gives it back */
        release(alloc(env->pool, 512));
        left += env->fake->in_use != UNIT;
    }
    pthread_join(thread, NULL);
    assert_int_equal(bad, 0);
    assert_int_equal(left, 0);
    release(keeper);
}

int main(void)
{
    const char *ops = getenv("CUPOOL_TEST_OPS");

    steps = ops ? strtoul(ops, NULL, 0) : 20000;
    return cases_run();
}
