/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ready.h - what most unit tests of contexts start from: a driver with two devices, and the first one's primary
 * context, which the library knows.
 *
 * Only tests of contexts, and of exported functions that need one, include it. Threads: a test's own.
 */
#ifndef CUPOOL_TESTS_SHIM_READY_H
#define CUPOOL_TESTS_SHIM_READY_H

#include "context/driver_free.h"
#include "isolated.h"
#include "room.h"

#define ORDERED "CUPOOL_FREE=ordered"
#define MS      UINT64_C(1000000)

/* Context i is seen; afterwards context 0 is current. */
static inline struct context *pooled(unsigned int i)
{
    struct context *context;

    fake_current(fake_context(i));
    context = context_current(&fake.driver);
    assert_non_null(context);
    fake_current(fake_context(0));
    return context;
}

static inline struct context *ready(void)
{
    struct context *context;

    fake_start();
    fake.devices = 2;
    context = pooled(0);
    fake_log();
    return context;
}

static inline uint64_t block(struct context *context, size_t size)
{
    uint64_t addr = 0;

    assert_int_equal(pool_alloc(context->pool, size, &addr), 0);
    return addr;
}

static inline uint64_t now(void)
{
    return atomic_load(&fake.ns);
}

static inline bool busy(const struct context *context, bool sleepers)
{
    return context && pins_any(context, context->pool, sleepers);
}

/* A thread whose free in the context is ordered. */
static inline void *free_one(void *arg)
{
    const struct context *context = arg;

    fake_current(context->handle);
    assert_int_equal(order_ops.order(arg, POOL_ORDER_FREE), 0);
    return NULL;
}

/* Contexts 1, of the other device, and 4, a second one of this, are known, too. */
static inline struct context *ready_all(void)
{
    struct context *context = ready();

    pooled(1);
    pooled(4);
    fake_log();
    return context;
}

#define ALL_CASE(function, ...) CONTEXT_CASE(function, ready_all, __VA_ARGS__)

/* The context ends while one waits. */
static inline void context_goes(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 7) {
        atomic_store(&context->leaving, 1);
        atomic_store(&context->ending, true);
    }
}

/* The device gets on while one waits. */
static inline void device_moves(void *arg)
{
    fake_context_of(arg)->over++;
}

static inline void works(unsigned int context, uint64_t work)
{
    fake.contexts[context].launched += work;
    fake.relax = device_moves;
    fake.relax_arg = fake_context(context);
}

/* Another thread's free in the driver begins and ends: how often it looks whether the gate is empty. */
static inline void *driver_frees(void *arg)
{
    const struct context *context = arg;

    fake.relaxes = 0;
    fake_current(context->handle);
    driver_free_end(driver_free_begin_current());
    return NULL;
}

/* It begins while this thread is in a call of the driver that it would hold up, and waits for this thread, 10 ms. */
static unsigned int frees_beside;
static inline void free_begins(void *context)
{
    elsewhere(driver_frees, context);
    assert_int_equal(fake.relaxes, 10);
    frees_beside++;
}

/* And once this thread has made count such calls it does not wait any more. */
static inline void assert_left(struct context *context, unsigned int count)
{
    assert_int_equal(frees_beside, count);
    elsewhere(driver_frees, context);
    assert_int_equal(fake.relaxes, 0);
}

#endif
