/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_bound.c - what a pool holds is never more than 1.10 times what the driver would have had in use at the peak of
 * the same requests, and 64 MiB. The driver is the model that cupool-replay has; it serves each request beside the
 * pool.
 *
 * Random mixes take turns with the worst that a program can do to a pool that packs: fill it, free all but one block of
 * each segment, and ask for what does not fit in between. With frees that wait for company the slack may be held beside
 * that. A device that is behind has not come to what was freed: memory that is given back arrives later, the driver's
 * own as well as ours counts until then, and only what is behind no work can be ordered without a wait.
 *
 * The requests of several threads are those of one that uses several magazines, each request any of them: so a sequence
 * is the same each time.
 *
 * A program that repeats its steps near the bound ends up with layouts that need no segment of the driver.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences and lengths.
 */
#include "unit.h"

#include "heap.h"
#include "magazine.h" /* which one a request uses */
#include "space.h"

#define GIB       ((size_t)1 << 30)
#define CAPACITY  (64 * GIB)
#define BASE      ((uint64_t)1 << 44)
#define LIVE_MAX  100000u
#define SLACK_MIN (64 * MIB)

struct live {
    uint64_t addr, name; /* name: the model's */
    size_t size;
    uint64_t segment;
};

static struct {
    struct space space, driver_space;
    struct heap *driver;
    struct pool *pool;
    struct live live[LIVE_MAX];
    size_t count, bytes;
    uint64_t rng;
    unsigned long ops;
    double most; /* of what may be held, so much was */
    bool lags;   /* the device is behind, but for moments */
    bool behind; /* just now */
    unsigned int slack_percent, threads;
    struct {
        uint64_t addr;
        size_t size;
    } leaving[LIVE_MAX];
    size_t leaving_count, leaving_bytes, waits, given;
    unsigned int on_time; /* one request in so many finds the device on time */
    size_t others;        /* what other processes have of the device */
} test;

static int backend_alloc(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    (void)arg, (void)kind;
    return test.space.in_use + size + test.others > CAPACITY ? -ENOMEM : space_take(&test.space, size, ret_addr);
}

static void backend_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    (void)arg, (void)kind;
    test.given++;
    if (!test.behind || test.leaving_count == LIVE_MAX) {
        space_give(&test.space, addr, size);
        return;
    }
    test.leaving[test.leaving_count].addr = addr;
    test.leaving[test.leaving_count++].size = size;
    test.leaving_bytes += size;
}

/* The device comes to the end of its work. */
static void catch_up(void)
{
    while (test.leaving_count) {
        test.leaving_count--;
        space_give(&test.space, test.leaving[test.leaving_count].addr, test.leaving[test.leaving_count].size);
    }
    test.leaving_bytes = 0;
    test.behind = false;
}

static bool backend_collected(void *arg, size_t *ret_arriving)
{
    *ret_arriving = test.leaving_bytes;
    return !test.leaving_bytes;
}

static void backend_reclaim(void *arg)
{
    test.waits += test.behind;
    catch_up();
}

static int order_order(void *arg, enum pool_order_how how)
{
    return how == POOL_ORDER_ASK && test.behind ? -EBUSY : 0;
}

static bool order_frozen(void *arg)
{
    return false;
}

static const struct pool_backend_ops backend = {
    .alloc = backend_alloc, .free = backend_free, .collected = backend_collected, .reclaim = backend_reclaim};
static const struct pool_order_ops order = {.order = order_order, .frozen = order_frozen};

static void check(size_t size)
{
    const size_t peak = heap_stats_get(test.driver)->peak_held, slack = peak / 100 * test.slack_percent;
    const size_t most_slack = slack > SLACK_MIN ? slack : SLACK_MIN;
    const size_t bound = peak / 10 * 11 + 64 * MIB + (test.slack_percent ? most_slack : 0);
    const double part = (double)test.space.in_use / (double)bound;

    test.most = part > test.most ? part : test.most;
    if (test.space.in_use > bound)
        fail_msg("after %lu operations, the last for %zu bytes, %zu MiB are held; the driver alone had %zu at most",
                 test.ops, size, test.space.in_use / MIB, peak / MIB);
}

static void any_thread(void)
{
    if (test.threads > 1)
        magazine_index = (unsigned int)rng_below(&test.rng, test.threads);
}

static void get(size_t size)
{
    struct live *live = &test.live[test.count];
    size_t found;
    uint64_t base;

    if (test.count == LIVE_MAX)
        return;
    if (test.lags && rng_below(&test.rng, test.on_time) == 0)
        catch_up();
    else
        test.behind = test.lags;
    live->size = size;
    any_thread();
    assert_int_equal(pool_alloc(test.pool, size, &live->addr), 0);
    assert_int_equal(heap_alloc(test.driver, size, &live->name), 0);
    assert_int_equal(pool_block_find(live->addr, &base, &found, &live->segment), 0);
    test.count++;
    test.bytes += size;
    test.ops++;
    check(size);
}

static void put(size_t i)
{
    any_thread();
    release(test.live[i].addr);
    heap_free(test.driver, test.live[i].name);
    test.bytes -= test.live[i].size;
    test.live[i] = test.live[--test.count];
    test.ops++;
}

/* Sizes of a phase: from one to another, each power of two as often; of large ones so much more than whole units.
 * EXACT: the powers of two alone. */
#define EXACT SIZE_MAX
struct sizes {
    size_t from, to, beyond;
};

static size_t any_size(const struct sizes *sizes)
{
    const size_t low = sizes->from << rng_below(&test.rng, (size_t)__builtin_ctzll(sizes->to / sizes->from) + 1);
    const size_t size = sizes->beyond == EXACT ? low : low + rng_below(&test.rng, low);

    if (sizes->beyond && sizes->beyond != EXACT)
        return size / UNIT * UNIT + 1 + rng_below(&test.rng, sizes->beyond);
    return size;
}

static const struct sizes kinds[] = {
    {256, 32 * MIB, 0},      {2 * MIB, 2 * MIB, MIB},     {2 * MIB, 8 * MIB, MIB}, {512, MIB, 0},
    {2 * MIB, 32 * MIB, 0},  {16 * MIB, 32 * MIB, 0},     {MIB, 4 * MIB, 0},       {2 * MIB, 8 * MIB, 512},
    {4 * MIB, 4 * MIB, MIB}, {128 * KIB, 8 * MIB, EXACT},
};

static const struct sizes *any_kind(void)
{
    return &kinds[rng_below(&test.rng, sizeof(kinds) / sizeof(kinds[0]))];
}

static void fill(const struct sizes *sizes, size_t bytes)
{
    while (test.bytes < bytes && test.count < LIVE_MAX)
        get(any_size(sizes));
}

/* As much as the driver has had in use before. */
static void refill(const struct sizes *sizes)
{
    const struct heap_stats *driver = heap_stats_get(test.driver);

    for (size_t size = any_size(sizes); driver->held + size + UNIT <= driver->peak_held && test.count < LIVE_MAX;
         size = any_size(sizes))
        get(size);
}

static void mix(const struct sizes *sizes, size_t bytes, unsigned int steps)
{
    for (unsigned int i = 0; i < steps; i++) {
        if (!test.count || (rng_below(&test.rng, 100) < 60 && test.bytes < bytes))
            get(any_size(sizes));
        else
            put(rng_below(&test.rng, test.count));
    }
}

static int by_segment(const void *a, const void *b)
{
    const struct live *x = a, *y = b;

    if (x->segment != y->segment)
        return x->segment < y->segment ? -1 : 1;
    return x->size < y->size ? -1 : x->size > y->size;
}

/* Free all blocks of each segment but one: the smallest, or any. Small ones all go: which of them share a page is a
 * matter of chance, here and in the driver, and a program that knew it here could leave more pages pinned than there.
 */
static void pin(bool smallest)
{
    qsort(test.live, test.count, sizeof(test.live[0]), by_segment);
    for (size_t end = test.count; end;) {
        size_t first = end - 1, stays;

        while (first && test.live[first - 1].segment == test.live[end - 1].segment)
            first--;
        stays = smallest ? first : first + rng_below(&test.rng, end - first);
        /* put() fills a gap with a block from behind it, which has been dealt with. */
        for (size_t i = end; i-- > first;)
            if (i != stays || test.live[i].size < UNIT)
                put(i);
        end = first;
    }
}

static void drain(size_t bytes)
{
    while (test.bytes > bytes)
        put(rng_below(&test.rng, test.count));
}

/* All of a phase of small blocks goes, and its memory serves blocks that fill whole pages of the driver. */
static void small_then_powers(size_t bytes)
{
    const size_t small = 8 * KIB << rng_below(&test.rng, 3), power = 128 * KIB << rng_below(&test.rng, 4);

    drain(0);
    fill(&(struct sizes){small, small, 0}, bytes);
    drain(0);
    refill(&(struct sizes){power, power, EXACT});
}

/* Each draw is a statement of its own: in which order a call's arguments are evaluated is the compiler's choice, and
 * the sequences are to be alike with all of them. */
static void phase(void)
{
    const size_t bytes = (1 + rng_below(&test.rng, 32)) * GIB / 8;
    const uint64_t turn = rng_below(&test.rng, 6);
    const struct sizes *sizes = any_kind();
    const unsigned int steps = (unsigned int)rng_below(&test.rng, 2000);

    switch (turn) {
    case 0:
        drain(bytes);
        break;
    case 1:
    case 2:
        mix(sizes, bytes, 4000);
        break;
    case 3:
        small_then_powers(bytes / 32);
        break;
    default:
        fill(any_kind(), bytes);
        mix(sizes, bytes, steps);
        pin(rng_below(&test.rng, 2));
        refill(any_kind());
    }
}

static void begin(uint64_t seed, bool lags, unsigned int slack_percent, unsigned int threads)
{
    const struct pool_config config = {.backend = &backend,
                                       .order = &order,
                                       .break_max = CAPACITY / 16,
                                       .capacity = CAPACITY,
                                       .excess_min = 32 * MIB,
                                       .bound_min = 64 * MIB,
                                       .deferred_min = slack_percent ? SLACK_MIN : 0,
                                       .deferred_percent = slack_percent};

    memset(&test, 0, sizeof(test));
    test.rng = seed;
    test.on_time = 64;
    test.lags = lags;
    test.slack_percent = slack_percent;
    test.threads = threads;
    magazine_index = 0;
    assert_int_equal(space_init(&test.space, BASE, CAPACITY), 0);
    assert_int_equal(space_init(&test.driver_space, BASE * 2, CAPACITY), 0);
    test.driver = heap_new(HEAP_DRIVER, &test.driver_space);
    assert_non_null(test.driver);
    test.pool = pool_new(&config);
}

static void end(void)
{
    char text[128] = "";

    if (pool_check(test.pool, text, sizeof(text)))
        fail_msg("pool_check: %s", text);
    pool_destroy(test.pool);
    heap_delete(test.driver);
    space_fini(&test.space);
    space_fini(&test.driver_space);
}

static void run(uint64_t seed, unsigned long ops, bool lags, unsigned int slack_percent, unsigned int threads)
{
    char text[128] = "";

    begin(seed, lags, slack_percent, threads);
    small_then_powers(GIB / 2);
    test.ops = 0;
    while (test.ops < ops) {
        phase();
        if (pool_check(test.pool, text, sizeof(text)))
            fail_msg("pool_check: %s", text);
    }
    drain(0);
    end();
}

/* The large requests of a step of tests/gpu/workloads/ddp.py. A capital letter is a request of a size in `letters`; a
 * small letter frees a block of that size, so many below the last one as the number says, or, with +, as many more as
 * gradients of layers behind it lie above. */
#define LAYERS    12
#define GRADIENTS 26 /* of 2 MiB and more */
#define STATES    52

static const struct {
    char letter;
    size_t size;
} letters[] = {{'P', 9 * MIB / 4}, {'Q', 12 * MIB}, {'R', 24 * MIB},  {'S', 36 * MIB},     {'T', 48 * MIB},
               {'U', 72 * MIB},    {'V', 96 * MIB}, {'W', 132 * MIB}, {'Y', 66 * MIB / 5}, {'X', 256 * MIB}};

static const char forward[] = "S Q Q V V v1 V v1 Q Q Q q1 Q Q q1 Q T T Q Q q1 s10 Q";
static const char loss[] = "X X x1 x1 Q Q W w x2 q2 Q q2 q2";
static const char backward[] = "T P R r t4+ T t2 t4+ Q P V v t2 q5+ Q q2 q5+ q Q R r q5+ Q q1 Q V q2 q6+ V V v v1 v6+ "
                               "V v1 Q Q v2 q7+ q7+ S q1 q1 q1 S s1 Q U u s1 q5+ Q q1 q5+ q";

/* test.live is in the order of the requests here. */
static void put_below(size_t below)
{
    const size_t at = test.count - 1 - below;
    const struct live live = test.live[at];

    memmove(&test.live[at], &test.live[at + 1], below * sizeof(live));
    test.live[test.count - 1] = live;
    put(test.count - 1);
}

static void play(const char *text, size_t more, unsigned int times)
{
    const char *at = text;
    char *end = NULL;

    for (; times; at = *at ? at : text, times -= at == text) {
        const char letter = *at++;
        size_t below;

        for (size_t i = 0; i < sizeof(letters) / sizeof(letters[0]); i++)
            if (letters[i].letter == letter)
                get(letters[i].size);
        below = strtoul(at, &end, 10) + (*end == '+' ? more : 0);
        at = end + strspn(end, "+ ");
        if (letter >= 'p')
            put_below(below);
    }
}

static void step(unsigned int number)
{
    play("QQ", 0, 1);
    play(forward, 0, LAYERS);
    play("X X x1", 0, 1);
    for (unsigned int i = 0; number && i < GRADIENTS; i++)
        put_below(number == 1 ? 135 + STATES : 135);
    play(loss, 0, 1);
    for (unsigned int layer = 0; layer < LAYERS; layer++)
        play(backward, 2 * (size_t)layer, 1);
    play("Q Y y q25", 0, 1);
    play("Q Q q1 q", 0, 2);
    play("P P p1 p", 0, 2 * LAYERS);
    if (!number)
        play("QQQQ PPPP PPPP PPPP PPPP PPPP PPPP PPPP PPPP PPPP PPPP PPPP PPPP", 0, 1);
}

/* The host is ahead of the device, and the pool near its bound. */
UNIT_CASE(test_steps_that_repeat_end_up_with_no_wait_and_nothing_given_back)
{
    begin(/* seed: */ 1, /* lags: */ true, /* slack_percent: */ 0, 1);
    test.on_time = 2048;
    play("P", 0, 2 * LAYERS);
    play("QQ", 0, 1);
    for (unsigned int i = 0; i < 6; i++)
        get((size_t)(i < 2 ? 64 : i < 4 ? 32 : 27) * MIB);
    for (unsigned int i = 0; i < 80; i++)
        get(7 * MIB / 5);
    for (unsigned int i = 0; i < 16; i++) {
        if (i == 8)
            test.waits = test.given = 0;
        step(i);
    }
    assert_int_equal(test.waits, 0);
    assert_int_equal(test.given, 0);
    end();
}

/* A hole of a packed segment then serves whatever fits, which may be all that stays of it. */
UNIT_CASE(test_held_is_bounded_after_a_refusal)
{
    begin(/* seed: */ 1, /* lags: */ false, /* slack_percent: */ 0, 1);
    for (size_t i = 0; i < 32; i++)
        get((i < 11 ? 200 : 256) * MIB);
    for (size_t i = 11; i-- > 0; get(190 * MIB))
        put(i);
    test.others = CAPACITY - test.bytes - 110 * MIB; /* natively the next requests just fit */
    for (size_t i = 0; i < 11; i++)
        get(10 * MIB);
    test.others = 0;
    for (size_t i = test.count; i-- > 0;)
        if (test.live[i].size == 190 * MIB)
            put(i);
    for (size_t i = 0; i < 6; i++)
        get(300 * MIB);
    end();
}

static void check_runs(bool lags, unsigned int slack_percent, unsigned int threads, double near)
{
    const char *seed = getenv("CUPOOL_TEST_SEED"), *ops = getenv("CUPOOL_TEST_OPS");
    const unsigned long each = ops ? strtoul(ops, NULL, 0) : 62500;
    size_t waits = 0;
    double most = 0;

    alarm(DEADLOCK_SECONDS);
    for (uint64_t i = 0; i < (ops ? 1 : 4); i++) {
        run(seed ? strtoull(seed, NULL, 0) + i : i + 1, each, lags, slack_percent, threads);
        most = test.most > most ? test.most : most;
        waits += test.waits;
    }
    assert_true(ops || !lags || waits); /* it has been at the bound */
    /* It has come near, or this has shown nothing. */
    assert_true(ops || most > near);
    alarm(0);
}

UNIT_CASE(test_held_is_bounded_by_what_the_driver_would_have)
{
    check_runs(false, 0, 1, 0.95);
}

UNIT_CASE(test_held_is_bounded_where_the_device_is_behind)
{
    check_runs(true, 0, 1, 0.97);
}

UNIT_CASE(test_held_is_bounded_with_slack)
{
    check_runs(false, 10, 1, 0.88);
}

UNIT_CASE(test_held_is_bounded_with_slack_where_the_device_is_behind)
{
    check_runs(true, 10, 1, 0.9);
}

UNIT_CASE(test_held_is_bounded_with_threads)
{
    check_runs(false, 0, 4, 0.95);
}

UNIT_CASE(test_held_is_bounded_with_threads_and_slack_where_the_device_is_behind)
{
    check_runs(true, 10, 4, 0.9);
}
