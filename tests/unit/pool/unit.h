/* SPDX-License-Identifier: Apache-2.0 */
/* unit.h - what the unit tests of the pool share: a fake driver with pools, threads. */
#ifndef CUPOOL_TESTS_UNIT_H
#define CUPOOL_TESTS_UNIT_H

#include "cases.h"

#include <assert.h>
#include <time.h>

#include "fake.h"
#include "rest.h"

#define UNIT ((size_t)POOL_SEGMENT_UNIT)
/* A break_max that lets a segment be broken into once, for a request over 4 MiB that exposes so many bytes of it: a
 * quarter is reserved. */
#define BREAK_ONCE(exposes) ((exposes) / 3 * 4 + 4 * KIB)
/* Nothing here takes that long: a deadlock, then. */
#define DEADLOCK_SECONDS 280 /* the machine may be busy */

static inline void assert_sound(struct pool *pool, const struct fake *fake)
{
    char text[128] = "";

    if (pool_check(pool, text, sizeof(text)))
        fail_msg("pool_check: %s", text);
    if (fake->fault)
        fail_msg("%s", fake->fault);
}

/* Sound, while no thread is inside a call. */
static inline void assert_at_rest(struct pool *pool, const struct fake *fake)
{
    const char *fault = rest_fault(pool);

    if (fault)
        fail_msg("rest_fault: %s", fault);
    assert_sound(pool, fake);
}

static inline struct pool *pool_new(const struct pool_config *config)
{
    struct pool *pool = NULL;

    assert_int_equal(pool_create(config, &pool), 0);
    assert_non_null(pool);
    return pool;
}

static inline uint64_t alloc(struct pool *pool, size_t size)
{
    uint64_t addr = 0;

    assert_int_equal(pool_alloc(pool, size, &addr), 0);
    return addr;
}

static inline void release(uint64_t addr)
{
    assert_int_equal(pool_free(addr), 0);
}

static inline void alloc_all(struct pool *pool, uint64_t *ret_addrs, size_t count, size_t size)
{
    for (size_t i = 0; i < count; i++)
        ret_addrs[i] = alloc(pool, size);
}

static inline void release_all(const uint64_t *addrs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        release(addrs[i]);
}

static inline struct pool_stats stats_of(struct pool *pool)
{
    struct pool_stats stats;

    pool_stats_get(pool, &stats);
    return stats;
}

/* The offset of an address in its segment. */
static inline size_t offset_of(struct fake *fake, uint64_t addr)
{
    const struct fake_segment *segment = fake_segment_of(fake, addr);

    assert_non_null(segment);
    return (size_t)(addr - segment->addr);
}

/* One pool over one fake: what most tests start from. */
struct env {
    struct fake *fake;
    struct pool *pool;
};

static inline int env_setup(void **state)
{
    static struct env env;
    struct pool_config config;

    alarm(DEADLOCK_SECONDS);
    env.fake = fake_new();
    config = fake_config(env.fake);
    env.pool = pool_new(&config);
    *state = &env;
    return 0;
}

/* Replaces the pool of env by one with another config. */
static inline void env_pool(struct env *env, const struct pool_config *config)
{
    assert_at_rest(env->pool, env->fake);
    pool_destroy(env->pool);
    env->pool = pool_new(config);
}

/* A new pool with one member of the config set: ENV_WITH(env, limit = 10 * MIB). */
#define ENV_WITH(env, member)                                                                                          \
    do {                                                                                                               \
        struct pool_config config_ = fake_config((env)->fake);                                                         \
        config_.member;                                                                                                \
        env_pool(env, &config_);                                                                                       \
    } while (0)

/* Free a block while nothing can be ordered: it is deferred. */
static inline void release_unordered(struct env *env, uint64_t addr)
{
    env->fake->order_rc = -EBUSY;
    release(addr);
    env->fake->order_rc = 0;
}

static inline int env_teardown(void **state)
{
    struct env *env = *state;

    if (fake_abandon(env->fake))
        return 0;
    assert_at_rest(env->pool, env->fake);
    pool_destroy(env->pool);
    assert_int_equal(env->fake->observed ? env->fake->in_use : 0, 0);
    fake_delete(env->fake);
    alarm(0);
    return 0;
}

/* One call of pool_alloc, pool_free or pool_trim in a thread of its own. Results are valid after call_join. */
struct call {
    pthread_t thread;
    struct pool *pool;
    size_t size;     /* pool_alloc */
    uint64_t addr;   /* pool_alloc's result; pool_free's argument */
    const char *why; /* pool_trim */
    int rc;
    size_t released;
};

static inline void *call_alloc(void *arg)
{
    struct call *call = arg;

    call->rc = pool_alloc(call->pool, call->size, &call->addr);
    return NULL;
}

static inline void *call_free(void *arg)
{
    struct call *call = arg;

    call->rc = pool_free(call->addr);
    return NULL;
}

static inline void *call_trim(void *arg)
{
    struct call *call = arg;

    call->released = pool_trim(call->pool, call->why);
    return NULL;
}

static inline void call_start(struct call *call, void *(*function)(void *))
{
    assert_int_equal(pthread_create(&call->thread, NULL, function, call), 0);
}

static inline void call_join(struct call *call)
{
    assert_int_equal(pthread_join(call->thread, NULL), 0);
}

/* Has a call start in its thread, and returns when it is inside the fake's function of that kind, until call_go. */
static inline void call_stop(struct env *env, enum fake_kind kind, struct call *call, void *(*function)(void *))
{
    fake_stop(env->fake, kind);
    call_start(call, function);
    fake_wait(env->fake, kind);
}

static inline void call_go(struct env *env, enum fake_kind kind, struct call *call)
{
    fake_go(env->fake, kind);
    call_join(call);
}

/* Threads that meet leave at the same moment, unlike those of a pthread_barrier: for races of a few instructions. */
struct meeting {
    atomic_uint arrived;
};

/* round counts this thread's meetings, from 0. */
static inline void meet(struct meeting *meeting, unsigned int threads, unsigned int *round)
{
    const unsigned int want = ++*round * threads;

    atomic_fetch_add(&meeting->arrived, 1);
    /* On a busy machine a thread that yields comes back after milliseconds, one that sleeps at once. */
    for (unsigned int i = 1; atomic_load(&meeting->arrived) < want; i++)
        if (i % 20000 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
}

/* A test on an env of its own, which it calls env. */
#define ENV_CASE(name, setup, teardown)                                                                                \
    static void name##_on(struct env *env);                                                                            \
    CASE_WITH(name, setup, teardown)                                                                                   \
    {                                                                                                                  \
        name##_on(*state);                                                                                             \
    }                                                                                                                  \
    static void name##_on(struct env *env)
#define POOL_CASE(name) ENV_CASE(name, env_setup, env_teardown)

#endif
