/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_snapshot.c - random programs against what this pool was seen to do: each call of the tables, each result, each
 * counter and the numbers that policy goes by, in the order in which they come. They are added up to digests, one for
 * every so many steps, and compared with snapshot.txt. Ranks of a job rely on that: they lay memory out alike only
 * while equal requests lead to equal decisions, on every machine.
 *
 * The test does not tell whether a decision is right; model.c, test_policy.c and the other tests do. A change that is
 * meant to decide otherwise fails here, too; look at the other failures, then record.
 *
 * One thread, which uses several magazines in turn. With `meanwhile` the program goes on inside the tables' functions,
 * as another thread would: the pool holds no lock then. The clock moves only when it is read, so that waits end.
 */
#define STEPS 16000u
#define EVERY 4000u /* steps for each digest, which is of all steps so far */

#include "snapshot.h"

#include "unit.h"

#include "deferred.h"
#include "magazine.h"
#include "recorder.h"
#include "still_clock.h"
#include "wrapped.h"

#define LIVE  400u
#define NEVER (SIZE_MAX / 2)

/* The state of the program. */
#define FILLS     1u  /* contents matter */
#define SPARSE    2u  /* the tables have no optional function */
#define LATE      4u  /* memory given back arrives later */
#define PROMPT    8u  /* order() never waits */
#define CALM      16u /* nothing rare happens */
#define MEANWHILE 32u /* other threads go on inside the tables' functions */

enum sizes { SMALL, LARGE, PHASES, PAIRS, ANY, SIZES };

/* The shape of a program and its pool. 0 in bytes: as in pool_config. */
static const struct setting {
    const char *name;
    enum sizes sizes;
    size_t limit, break_max, capacity, excess_min, bound_min, slack_min;
    unsigned int slack_percent, magazines;
    unsigned int is;
} settings[] = {
    {"small", SMALL, 0, NEVER, 0, NEVER, NEVER, 0, 0, 1, PROMPT},
    {"any", ANY, 0, 64 * MIB, 0, 16 * MIB, NEVER, 0, 0, 1, 0},
    {"any, sparse tables", ANY, 0, 64 * MIB, 0, 16 * MIB, 32 * MIB, 0, 0, 2, SPARSE | PROMPT},
    {"any, bound, late", ANY, 0, 64 * MIB, 2048 * MIB, 0, 16 * MIB, 0, 0, 1, LATE | PROMPT},
    {"any, limit", ANY, 256 * MIB, 32 * MIB, 0, NEVER, NEVER, 0, 0, 3, PROMPT},
    {"any, deferred", ANY, 0, 64 * MIB, 0, 32 * MIB, 64 * MIB, 16 * MIB, 10, 1, PROMPT},
    {"any, deferred, magazines", ANY, 0, 64 * MIB, 0, 0, 0, 8 * MIB, 5, 4, LATE | PROMPT},
    {"small, deferred, magazines", SMALL, 0, 0, 0, 0, NEVER, 4 * MIB, 0, 3, 0},
    {"phases", PHASES, 0, 0, 0, 0, NEVER, 0, 0, 1, PROMPT | CALM},
    {"phases, bound", PHASES, 0, 128 * MIB, 1024 * MIB, 0, 8 * MIB, 0, 0, 1, LATE | PROMPT | CALM},
    {"phases, deferred", PHASES, 0, 0, 0, 0, 32 * MIB, 32 * MIB, 10, 1, PROMPT | CALM},
    {"phases, little excess", PHASES, 0, 96 * MIB, 0, 24 * MIB, NEVER, 0, 0, 1, LATE | PROMPT | CALM},
    {"any, calm", ANY, 0, 128 * MIB, 8192 * MIB, 0, 32 * MIB, 8 * MIB, 10, 2, PROMPT | CALM},
    {"large, calm", LARGE, 0, 128 * MIB, 4096 * MIB, 0, 0, 0, 0, 1, LATE | PROMPT | CALM},
    {"pairs, calm", PAIRS, 0, 128 * MIB, 4096 * MIB, 0, 32 * MIB, 0, 0, 1, PROMPT | CALM},
    {"pairs", PAIRS, 0, 256 * MIB, 4096 * MIB, 8 * MIB, 64 * MIB, 0, 0, 1, PROMPT},
    {"pairs, limit, sparse tables", PAIRS, 512 * MIB, NEVER, 0, 0, NEVER, 0, 0, 1, SPARSE | PROMPT},
    {"fills", ANY, 0, 64 * MIB, 0, 32 * MIB, NEVER, 0, 0, 2, FILLS | PROMPT},
    {"fills, deferred, late", LARGE, 0, 64 * MIB, 512 * MIB, 0, 32 * MIB, 16 * MIB, 10, 2, FILLS | LATE},
    {"large, magazines", LARGE, 0, NEVER, 0, 64 * MIB, 16 * MIB, 0, 0, 4, LATE | PROMPT},
    {"small, all magazines", SMALL, 0, 0, 0, 8 * MIB, NEVER, 2 * MIB, 0, MAGAZINES, PROMPT},
    {"any, meanwhile", ANY, 0, 64 * MIB, 0, 16 * MIB, 32 * MIB, 0, 0, 2, PROMPT | MEANWHILE},
    {"any, deferred, meanwhile", ANY, 0, 64 * MIB, 4096 * MIB, 0, 8 * MIB, 16 * MIB, 10, 3, LATE | PROMPT | MEANWHILE},
    {"any, limit, meanwhile", ANY, 256 * MIB, 64 * MIB, 0, NEVER, NEVER, 4 * MIB, 0, 2, PROMPT | MEANWHILE},
    {"phases, meanwhile", PHASES, 0, 0, 0, 0, 8 * MIB, 8 * MIB, 0, 2, LATE | PROMPT | CALM | MEANWHILE},
    {"pairs, meanwhile", PAIRS, 0, 256 * MIB, 0, 0, 32 * MIB, 0, 0, 2, LATE | PROMPT | CALM | MEANWHILE},
    {"fills, meanwhile", ANY, 0, 64 * MIB, 0, 32 * MIB, 32 * MIB, 8 * MIB, 0, 2, FILLS | MEANWHILE},
};
#define SETTINGS (sizeof(settings) / sizeof(*settings))

/* There is one thread, which waits only until the clock says that it need not: none of these waits takes time. */
WRAPPED(void, lock_relax, (unsigned int times))
{
}

extern _Thread_local void (*lock_hook)(struct lock *lock); /* of checked_lock.h */

/* The program and its pool. */
static struct run {
    const struct setting *is;
    struct pool *pool;
    uint64_t rng;
    uint64_t live[LIVE + 64]; /* with room for what happens meanwhile */
    unsigned int count, step;
    bool nested;
} run;

static void step(unsigned int i);

static size_t below(size_t bound)
{
    return rng_below(&run.rng, bound);
}

/* Another thread goes on, with a magazine of its own. */
static void meanwhile(void)
{
    const unsigned int index = magazine_index;

    if (!(run.is->is & MEANWHILE) || run.nested || below(4))
        return;
    run.nested = true;
    magazine_index = (index + 1) % run.is->magazines;
    for (size_t n = 1 + below(4); n > 0; n--)
        step(run.step);
    magazine_index = index;
    run.nested = false;
}

/* --- what the pool says, and goes by --- */

static void add_stats(void)
{
    struct pool_stats stats = stats_of(run.pool);
    const uint64_t *number = (const uint64_t *)&stats;

    /* The last one is a time, which decides nothing. */
    for (size_t i = 0; i < offsetof(struct pool_stats, driver_ns) / sizeof(*number); i++)
        recorder_add(number[i]);
}

static void add_survey(void)
{
    struct pool_survey survey;
    const uint64_t *number = (const uint64_t *)&survey;

    pool_survey_get(run.pool, &survey);
    for (size_t i = 0; i < sizeof(survey) / sizeof(*number); i++)
        recorder_add(number[i]);
}

static void add_policy(void)
{
    const struct pool *pool = run.pool;

    recorder_add(pool->shown.budget);
    recorder_add(pool->shown.budget_max);
    recorder_add(pool->shown.flush_from);
    recorder_add(pool->shown.withdrawn);
    recorder_add(pool->ghosts.credit);
    recorder_add(pool->ghosts.streak);
    recorder_add(pool->native_peak);
    recorder_add(pool->used_peak);
    recorder_add(pool->exposed);
    recorder_add(pool->freed);
    recorder_add(deferred_bytes(pool));
}

/* Where every block lies and what it is. */
static void add_blocks(void)
{
    for (const struct segment *segment = run.pool->segments; segment; segment = segment->next)
        for (const struct block *block = segment->first; block; block = block->next)
            recorder_call(15, block->addr, block->size, (uint64_t)atomic_load(&block->state));
}

/* --- the program --- */

static size_t random_size(unsigned int step)
{
    static const size_t phases[3][4] = {{5 * MIB, 9 * MIB, 700 * KIB, 3 * MIB},
                                        {7 * MIB, 12 * MIB, 2 * MIB, 40 * KIB},
                                        {21 * MIB, 4 * MIB + 1, 6 * MIB, 33 * MIB}};

    /* Drawn first, because the order in which operands are evaluated is the compiler's. */
    const size_t units = 2 * MIB * (1 + below(8)), some = below(4);

    switch (run.is->sizes) {
    case SMALL:
        return 1 + below(some ? 20 * KIB : 2 * MIB);
    case LARGE:
        return some ? MIB + below(24 * MIB) : units;
    case PHASES:
        return phases[step / 64 % 3][some];
    case PAIRS:
        return units + 1 + below(MIB);
    default:
        break;
    }
    switch (below(8)) {
    case 0:
        return 1 + below(48 * MIB);
    case 1:
        return UNIT - 2048 + below(4096);
    case 2:
        return units + (some ? 0 : below(2 * MIB));
    case 3:
        return 1 + below(MIB);
    default:
        return some > 1 ? (size_t)2000 << below(8) : 1 + below(64 * KIB);
    }
}

static void request(unsigned int step)
{
    const size_t size = random_size(step);
    uint64_t addr = 0;
    const int rc = pool_alloc(run.pool, size, &addr);

    recorder_call(16, addr, size, (unsigned int)rc);
    if (rc == 0)
        run.live[run.count++] = addr;
}

/* The address, which is not the program's any more. */
static uint64_t take_out(void)
{
    const size_t last = run.count < 8 ? run.count : 8, i = below(4) ? run.count - 1 - below(last) : below(run.count);
    const uint64_t addr = run.live[i];

    run.live[i] = run.live[--run.count];
    return addr;
}

/* Blocks that the pool has forgotten together with a segment are not the program's any more. */
static void forget_lost(void)
{
    for (unsigned int i = 0; i < run.count;)
        if (pool_of(run.live[i]) != run.pool)
            run.live[i] = run.live[--run.count];
        else
            i++;
}

static void disown(uint64_t addr)
{
    uint64_t base = 0;
    size_t size = 0;

    if ((run.is->is & SPARSE) || pool_segment_find(addr, &base, &size))
        return;
    base += below(size);
    pool_disown(base, below(2) ? 1 : UNIT);
    forget_lost();
}

static void rare(unsigned int what)
{
    struct fake *fake = recorder.fake;

    switch (what) {
    case 0:
        fake->order_rc = below(3) ? 0 : below(4) ? -EBUSY : -EIO;
        break;
    case 1:
        fake->frozen = run.nested ? fake->frozen : below(8) == 0; /* it begins between calls of the tables */
        break;
    case 2:
        fake->capacity = below(3) ? FAKE_CAPACITY : 64 * MIB + below(512) * MIB;
        break;
    case 3:
        fake->fail_at = fake->calls[FAKE_ALLOC] + 1;
        fake->fail_rc = below(2) ? -ENOMEM : -EBUSY;
        break;
    case 4:
        if (below(6) == 0)
            recorder_add(pool_trim(run.pool, "test"));
        break;
    case 5:
        recorder_add(pool_decay(run.pool, (unsigned int)below(4)));
        break;
    case 6:
        pool_flush(run.pool);
        break;
    case 7:
        fake->scarce = below(8) == 0;
        break;
    case 8:
        if (run.count && below(4) == 0)
            recorder_add((unsigned int)pool_withdraw(run.live[below(run.count)] + 500));
        break;
    case 9:
        if (below(8) == 0)
            pool_kind_set(run.pool, (unsigned int)below(2), run.is->excess_min, run.is->bound_min);
        break;
    case 10:
        if (run.count && below(4) == 0)
            disown(run.live[below(run.count)]);
        break;
    case 11:
        fake->fill_rc = below(2);
        fake->filled_rc = below(4) ? 0 : -EBUSY;
        break;
    case 12:
        if (run.count)
            recorder_add(pool_live_size(run.live[below(run.count)]));
        break;
    case 13:
        if (run.count && !run.nested && below(2)) {
            const uint64_t addr = take_out();

            recorder_add((unsigned int)pool_free_later(addr));
            recorder_add((unsigned int)pool_free(addr)); /* a second time */
        }
        break;
    case 14:
        if (run.count && below(40) == 0)
            pool_free_never(take_out());
        break;
    default:
        magazine_index = (unsigned int)below(run.is->magazines);
    }
}

static void step(unsigned int i)
{
    /* Growth and decline in turn; in phases, each gets its memory and then frees it. */
    const unsigned int crowd = run.is->sizes == PHASES ? (i % 64 < 32 ? 24u : 0) : 16u << i / 400 % 5;

    if (below(16) == 0)
        rare((run.is->is & CALM) ? 15 : (unsigned int)below(17));
    else if (run.count && (run.count >= LIVE || below(2 * (size_t)crowd + 1) < run.count))
        recorder_add((unsigned int)pool_free(take_out()));
    else
        request(i);
    if (!run.nested && i == STEPS / 4 * 3 && run.is->magazines > 2)
        pool_defer_never(run.pool);
    if (!run.nested && i == STEPS / 8 * 7)
        pool_pack_never(run.pool);
}

static struct pool *pool_of_setting(const struct setting *is)
{
    struct pool_config config = recorder_config(is->is & FILLS, is->is & SPARSE);

    config.limit = is->limit;
    config.break_max = is->break_max;
    config.capacity = is->capacity;
    config.excess_min = is->excess_min;
    config.bound_min = is->bound_min;
    config.deferred_min = is->slack_min;
    config.deferred_percent = is->slack_percent;
    return pool_new(&config);
}

/* The digests of a run. */
static void play(size_t setting, uint64_t ret_digests[DIGESTS])
{
    const struct setting *is = &settings[setting];

    memset(&run, 0, sizeof(run));
    run.is = is;
    run.rng = (uint64_t)(is - settings) + 1;
    recorder = (struct recorder){.fake = fake_new(), .meanwhile = meanwhile};
    recorder.fake->observed = !(is->is & SPARSE);
    recorder.fake->late = is->is & LATE;
    recorder.fake->prompt = is->is & PROMPT;
    run.pool = pool_of_setting(is);
    magazine_index = 0;
    for (unsigned int i = 0; i < STEPS; i++) {
        run.step = i;
        step(i);
        add_stats();
        add_policy();
        if (i % 16 == 0)
            add_survey();
        if (i % 64 == 0) {
            add_blocks();
            assert_at_rest(run.pool, recorder.fake);
        }
        if (i % EVERY == EVERY - 1)
            ret_digests[i / EVERY] = recorder.digest;
    }
    pool_destroy(run.pool);
    fake_delete(recorder.fake);
    magazine_index = 0;
}

/* Most requests and frees do not take it. */
static void see_lock(struct lock *lock)
{
    if (run.pool && lock == &run.pool->lock)
        recorder_add(18);
}

static void tick(void)
{
    atomic_fetch_add(&now, 1000000);
}

static const char *name(size_t setting)
{
    return settings[setting].name;
}

UNIT_CASE(test_decisions_are_those_recorded)
{
    alarm(DEADLOCK_SECONDS);
    on_wait = tick;
    lock_hook = see_lock;
    snapshot_test("pool/snapshot", SETTINGS, name, play);
    lock_hook = NULL;
    alarm(0);
}
