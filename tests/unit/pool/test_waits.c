/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_waits.c - what a thread of the pool waits for, and that each wait has an end: for memory that another thread is
 * giving back or ordering, and for a lock whose holder does not come back.
 *
 * The clock is the test's, linked in the place of the system's: it stands still until the test moves it. So a wait is
 * seen to have begun by its looks at the clock, and nothing here takes any time, or depends on how long it takes.
 */
#include "unit.h"

#include "magazine.h" /* which one a request uses */
#include "release_idle.h"
#include "still_clock.h"
#include "wrapped.h"

static void much_later(void)
{
    atomic_fetch_add(&now, 1000000000);
}

static void later(void)
{
    atomic_fetch_add(&now, OTHERS_WAIT_NS / 3);
}

/* The step at which the other thread is stopped. */
enum about {
    IDLE, /* not stopped: it has freed the block */
    GONE, /* not stopped: it has given the block back */
    TRIM,
    DECAY,
    COLLECT,
    ORDER,
    ASK,
};

static const enum fake_kind stopped_in[] = {
    [TRIM] = FAKE_FREE, [DECAY] = FAKE_FREE, [COLLECT] = FAKE_COLLECT, [ORDER] = FAKE_ORDER, [ASK] = FAKE_ORDER};

static const struct scene {
    enum about other;
    bool after;      /* it begins when the request has been refused twice, else before */
    bool trim;       /* the waiting thread trims, in place of a request */
    bool ends;       /* the other thread gets on when it is waited for, else the time passes */
    uint64_t passes; /* so much of it passes at the second refusal */
    int rc;
} scenes[] = {
    {TRIM, false, false, true, 0, 0},
    {DECAY, false, false, true, 0, 0},
    {COLLECT, false, false, true, 0, 0},
    {ORDER, false, false, true, 0, 0},
    {TRIM, true, false, true, 0, 0},
    {DECAY, true, false, true, 0, 0},
    {COLLECT, true, false, true, 0, 0},
    {ORDER, true, false, true, 0, 0},
    {IDLE, true, false, true, OTHERS_WAIT_NS - 1, 0},
    {IDLE, true, false, true, OTHERS_WAIT_NS, 0}, /* what is idle then serves without the driver */
    {GONE, true, false, true, OTHERS_WAIT_NS - 1, 0},
    {GONE, true, false, true, OTHERS_WAIT_NS, -ENOMEM},
    {TRIM, false, true, true, 0, 0},
    {DECAY, false, true, true, 0, 0},
    {COLLECT, false, true, true, 0, 0},
    {ORDER, false, true, true, 0, 0},
    {TRIM, false, false, false, 0, -ENOMEM},
    {ORDER, false, false, false, 0, -ENOMEM},
    {TRIM, true, false, false, 0, -ENOMEM},
    {ORDER, true, false, false, 0, -ENOMEM},
    {TRIM, false, true, false, 0, 0},
    {ORDER, false, true, false, 0, 0},
    {ASK, false, false, true, 0, 0},
    {ASK, true, false, true, 0, 0},
    {DECAY, false, false, false, 0, -ENOMEM},
    {COLLECT, false, false, false, 0, -ENOMEM},
    {ASK, false, false, false, 0, -ENOMEM},
    {DECAY, false, true, false, 0, 0},
    {COLLECT, false, true, false, 0, 0},
    {ASK, false, true, false, 0, 0},
};

static const struct scene *scene;
static struct env *stage;
static struct call other;
static unsigned int refusals;
static uint64_t begun;
static const struct pool_backend_ops *backend;

static void *other_thread(void *arg)
{
    struct fake *fake = stage->fake;

    fake->order_rc = scene->other >= ORDER ? -EBUSY : 0; /* then the block is kept */
    release(other.addr);
    fake->order_rc = 0;
    if (scene->other > GONE)
        fake_stop(fake, stopped_in[scene->other]);
    if (scene->other == DECAY)
        other.released = pool_decay(other.pool, 0);
    else if (scene->other == ASK)
        pool_flush(other.pool);
    else if (scene->other != IDLE)
        other.released = pool_trim(other.pool, "test");
    return arg;
}

static void other_begins(void)
{
    looks = 0;
    call_start(&other, other_thread);
    if (scene->other <= GONE) {
        call_join(&other);
        return;
    }
    fake_wait(stage->fake, stopped_in[scene->other]);
    assert_int_equal(stats_of(other.pool).held, scene->other == COLLECT ? 0 : 16 * MIB);
    assert_sound(other.pool, stage->fake);
}

/* The other thread does what takes no wait, or waits itself. */
static uint64_t wait_for(enum about about)
{
    return about == COLLECT || about == ORDER ? OTHERS_WAIT_NS : OTHERS_BUSY_NS;
}

/* Late, but within the time. */
static void other_gets_on(void)
{
    if (scene->other > GONE && atomic_load(&now) - begun < wait_for(scene->other) - OTHERS_WAIT_NS / 2)
        later();
    else
        fake_go(stage->fake, stopped_in[scene->other]);
}

static int alloc_refused(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    const int rc = backend->alloc(arg, kind, size, ret_addr);

    if (rc && ++refusals == 2 && scene->after) {
        other_begins();
        atomic_fetch_add(&now, scene->passes);
    }
    return rc;
}

/* The device has 16 MiB, and another thread has them, or has them in its hands. */
static void play(void)
{
    struct pool_config config = fake_config(stage->fake);
    struct pool_backend_ops ops = *config.backend;
    uint64_t addr = 0, waited;
    int rc = 0;

    backend = config.backend;
    ops.alloc = alloc_refused;
    config.backend = &ops;
    stage->fake->capacity = 16 * MIB;
    stage->fake->late = scene->other == COLLECT;
    stage->fake->prompt = scene->other == ASK;
    env_pool(stage, &config);
    other = (struct call){.pool = stage->pool, .addr = alloc(stage->pool, 16 * MIB)};
    refusals = 0;
    if (!scene->after)
        other_begins();
    on_wait = scene->ends ? other_gets_on : later;
    begun = atomic_load(&now);
    if (scene->trim)
        assert_in_range(pool_trim(stage->pool, "oom"), 0, scene->ends && scene->other >= ORDER ? 16 * MIB : 0);
    else
        rc = pool_alloc(stage->pool, 16 * MIB, &addr);
    on_wait = NULL;
    waited = atomic_load(&now) - begun;
    if (!scene->ends) /* each later look at the clock moves it as well */
        assert_in_range(waited, wait_for(scene->other), wait_for(scene->other) + 2 * OTHERS_WAIT_NS);
    if (scene->trim && scene->ends && scene->other < ORDER) /* what is only then idle, either of them gives back */
        assert_int_equal(stats_of(stage->pool).held, 0);    /* whoever is refused asks the driver again now */
    if (scene->other > GONE) {
        fake_go(stage->fake, stopped_in[scene->other]);
        call_join(&other);
        assert_true(scene->other >= ORDER || other.released == 16 * MIB);
    }
    if (rc != scene->rc || stats_of(stage->pool).oom != (rc == -ENOMEM))
        fail_msg("scene %zu: %d", (size_t)(scene - scenes), rc);
    if (rc)
        addr = alloc(stage->pool, 16 * MIB);
    if (addr)
        release(addr);
    config = fake_config(stage->fake);
    env_pool(stage, &config); /* ops goes */
}

POOL_CASE(test_what_another_thread_gives_back_is_waited_for)
{
    stage = env;
    for (size_t i = 0; i < sizeof(scenes) / sizeof(*scenes); i++) {
        scene = &scenes[i];
        play();
    }
}

/* --- a batch that another thread gives back */

enum { BATCH = 8, NEEDS = 4 };

static unsigned int put_count;

/* The other thread needs the lock that this one may hold, so it is not waited for here. */
static void one_more_goes(void)
{
    looks = 0;
    if (put_count == BATCH || !fake_step(stage->fake, FAKE_FREE))
        return;
    put_count++;
    atomic_fetch_add(&now, OTHERS_WAIT_NS - 1);
}

static void *decay_thread(void *arg)
{
    other.released = pool_decay(other.pool, 0);
    return arg;
}

/* Each segment counts as soon as it has gone, however long the rest takes: a request is served by the first ones, and
 * waits anew after each of them. */
POOL_CASE(test_a_batch_is_waited_for_by_the_segment)
{
    struct pool_config config;
    uint64_t addr[BATCH], got = 0;

    stage = env;
    config = fake_config(stage->fake);
    config.break_max = 0; /* a segment for each */
    stage->fake->capacity = BATCH * 16 * MIB;
    env_pool(stage, &config);
    for (unsigned int i = 0; i < BATCH; i++)
        addr[i] = alloc(stage->pool, 16 * MIB);
    for (unsigned int i = 0; i < BATCH; i++)
        release(addr[i]);
    fake_stop(stage->fake, FAKE_FREE);
    other = (struct call){.pool = stage->pool};
    looks = put_count = 0;
    call_start(&other, decay_thread);
    fake_wait(stage->fake, FAKE_FREE);
    on_wait = one_more_goes;
    assert_int_equal(pool_alloc(stage->pool, NEEDS * 16 * MIB, &got), 0);
    on_wait = NULL;
    assert_in_range(put_count, NEEDS, NEEDS + 1); /* one more if the request looks at the clock while it is served */
    assert_in_range(stats_of(stage->pool).held, (BATCH - 1) * 16 * MIB, BATCH * 16 * MIB);
    assert_sound(stage->pool, stage->fake);
    fake_go(stage->fake, FAKE_FREE);
    call_join(&other);
    assert_int_equal(other.released, BATCH * 16 * MIB);
    release(got);
}

/* --- a thread that first orders, and then gives back */

static const struct pool_order_ops *order;
static pthread_t stage_thread;
static atomic_bool goes_on;
static unsigned int asked;

static void *tick_thread(void *arg)
{
    pool_flush(other.pool);
    while (!atomic_load(&goes_on))
        sched_yield();
    other.released = pool_decay(other.pool, 0);
    return arg;
}

/* The waiting thread has seen the other one's order end, and is about to look for idle memory. */
static bool frozen_late(void *arg)
{
    if (pthread_equal(pthread_self(), stage_thread) && ++asked == 3) {
        fake_stop(stage->fake, FAKE_FREE);
        atomic_store(&goes_on, true);
        fake_wait(stage->fake, FAKE_FREE);
    }
    return order->frozen(arg);
}

static void order_and_release_go_on(void)
{
    fake_go(stage->fake, FAKE_ORDER);
    if (asked >= 3)
        fake_go(stage->fake, FAKE_FREE);
}

POOL_CASE(test_a_tick_is_waited_for_to_its_end)
{
    struct pool_config config;
    struct pool_order_ops ops;

    stage = env;
    stage_thread = pthread_self();
    asked = 3;
    config = fake_config(stage->fake);
    order = config.order;
    ops = *order;
    ops.frozen = frozen_late;
    config.order = &ops;
    env_pool(stage, &config);
    stage->fake->prompt = true;
    release_unordered(stage, alloc(stage->pool, 16 * MIB));
    asked = looks = 0;
    fake_stop(stage->fake, FAKE_ORDER);
    other = (struct call){.pool = stage->pool};
    call_start(&other, tick_thread);
    fake_wait(stage->fake, FAKE_ORDER);
    on_wait = order_and_release_go_on;
    assert_int_equal(pool_trim(stage->pool, "oom"), 0);
    on_wait = NULL;
    assert_int_equal(stats_of(stage->pool).held, 0); /* the other thread has given it back by now */
    call_join(&other);
    stage->fake->prompt = false;
    config.order = order;
    env_pool(stage, &config); /* ops goes */
}

static int alloc_freezes(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    const int rc = backend->alloc(arg, kind, size, ret_addr);

    if (rc && ++refusals == 2)
        stage->fake->frozen = true;
    return rc;
}

/* A capture that begins meanwhile ends the wait: nothing can be given back then. */
POOL_CASE(test_frozen_pool_waits_for_nobody)
{
    struct pool_config config;
    struct pool_backend_ops ops;
    uint64_t addr;

    stage = env;
    config = fake_config(stage->fake);
    backend = config.backend;
    ops = *backend;
    ops.alloc = alloc_freezes;
    config.backend = &ops;
    env_pool(stage, &config);
    refusals = 0;
    stage->fake->refuse = true;
    assert_int_equal(pool_alloc(stage->pool, 8 * MIB, &addr), -ENOMEM);
    assert_int_equal(refusals, 2);
    stage->fake->frozen = false;
    config.backend = backend;
    env_pool(stage, &config); /* ops goes */
}

/* A signal handler may have interrupted the holder of a lock: the numbers are there after a while, and the lock is
 * still his. */
POOL_CASE(test_statistics_do_not_wait_for_ever)
{
    enum { LOCKS = 3 };
    struct lock *const locks[LOCKS] = {&env->pool->lock, &env->pool->magazines[0].lock, &env->pool->magazines[1].lock};
    struct pool_stats free, got;

    alloc(env->pool, 3 * MIB);
    alloc(env->pool, 5 * KIB);
    magazine_index++; /* two magazines are in use */
    alloc(env->pool, 7 * KIB);
    release_unordered(env, alloc(env->pool, 9 * KIB));
    pool_stats_get(env->pool, &free);
    assert_int_equal(free.live, 3 * MIB + 21 * KIB);
    for (size_t i = 0; i < LOCKS; i++) {
        lock_take(locks[i]);
        on_wait = much_later;
        looks = 0;
        pool_stats_get(env->pool, &got);
        on_wait = NULL;
        for (size_t k = 0; k < LOCKS; k++) {
            assert_int_equal(lock_try(locks[k]), k != i);
            lock_give(locks[k]);
        }
        assert_in_range(got.peak_live, 0, free.peak_live); /* what the magazines know of it is not read */
        got.peak_live = free.peak_live;
        assert_memory_equal(&got, &free, sizeof(got));
    }
    magazine_index = 0;
}

/* --- magazines */

static void (*on_yield)(void);
static struct magazine *visited;

WRAPPED(int, sched_yield, (void))
{
    if (on_yield)
        on_yield();
    return 0;
}

static void visitor_goes(void)
{
    if (atomic_load(&visited->visitors))
        magazine_unlock(visited);
}

/* A thread waits for a visitor of its magazine, but not for another thread that uses it, nor for ever. */
POOL_CASE(test_visitors_are_waited_for)
{
    static void (*const yields[])(void) = {visitor_goes, NULL};

    alloc(env->pool, 512);
    for (unsigned int i = 0; i < 4; i++) {
        const bool visits = i & 1;
        struct magazine *entered;

        magazine_index = 0;
        visited = &env->pool->magazines[0];
        if (visits)
            magazine_visit(visited);
        else
            lock_take(&visited->lock);
        on_yield = yields[i / 2];
        entered = magazine_enter(env->pool);
        on_yield = NULL;
        assert_ptr_equal(entered, visited + (visits && i / 2 == 0 ? 0 : 1));
        lock_give(&entered->lock);
        if (visits)
            visitor_goes();
        else
            lock_give(&visited->lock);
    }
    magazine_index = 0;
}

/* --- durations */

static uint64_t told[4]; /* of segments that came and of what went: how often, how long in all */
static struct pool_observer_ops observer;

static void takes(uint64_t ns)
{
    atomic_fetch_add(&now, ns);
}

static int alloc_takes(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    takes(3000000007);
    return backend->alloc(arg, kind, size, ret_addr);
}

static void free_takes(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    takes(11);
    backend->free(arg, kind, addr, size);
}

static void collect_takes(void *arg)
{
    takes(500);
    backend->collect(arg);
}

static void observe_alloc(void *arg, unsigned int kind, uint64_t addr, size_t size, uint64_t ns)
{
    (void)arg, (void)kind, (void)addr, (void)size;
    told[0]++;
    told[1] += ns;
}

static void observe_trim(void *arg, size_t released, uint64_t ns, const char *why)
{
    (void)arg, (void)released, (void)why;
    told[2]++;
    told[3] += ns;
}

/* Observers are told how long the driver took. */
POOL_CASE(test_durations)
{
    struct pool_config config = fake_config(env->fake);
    struct pool_backend_ops ops = *config.backend;

    backend = config.backend;
    ops.alloc = alloc_takes;
    ops.free = free_takes;
    ops.collect = collect_takes;
    config.backend = &ops;
    observer = (struct pool_observer_ops){.segment_alloc = observe_alloc, .trim = observe_trim};
    config.observer = &observer;
    env->fake->observed = false;
    env_pool(env, &config);
    for (size_t i = 1; i <= 3; i++)
        alloc(env->pool, i * 2 * MIB);
    release(alloc(env->pool, 8 * MIB));
    release(alloc(env->pool, 10 * MIB));
    assert_int_equal(pool_trim(env->pool, "test"), 18 * MIB);
    assert_int_equal(told[0], 5);
    assert_int_equal(told[1], 5 * 3000000007);
    assert_int_equal(told[2], 1);
    assert_int_equal(told[3], 522);
    config.observer = NULL;
    config.backend = backend;
    env_pool(env, &config); /* ops goes */
}
