/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver_free.c - shim/context/driver_free.c: beside calls that wait in the driver, which hold up what other
 * threads record, nothing is asked. */
#include "context/capture_gate.h"
#include "context/capture_wait.h"
#include "context/cuda_memory.h"
#include "context/device.h"
#include "context/driver_free.h"
#include "context/free_gate.h"
#include "context/pins.h"
#include "ready.h"
#include "serve/serve.h"

#include <sched.h>

static CUresult owner(void *data, CUpointer_attribute attribute, CUdeviceptr addr)
{
    assert_int_equal(attribute, CU_POINTER_ATTRIBUTE_CONTEXT);
    *(CUcontext *)data = fake_context(addr > 1);
    return addr > 2 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Meanwhile nothing is asked in the context that has the memory. */
READY_CASE(test_nothing_is_asked_beside_a_free, .environment = ORDERED)
{
    struct context *other = pooled(1), *first;

    fake.driver.cuPointerGetAttribute = owner;
    first = driver_free_begin(1);
    assert_ptr_equal(first, context);
    assert_null(driver_free_begin(1));      /* the thread is counted already */
    atomic_fetch_add(&context->freeing, 1); /* another one */
    fake_log();
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), -EBUSY);
    assert_string_equal(fake_log(), "");
    assert_int_equal(order_ops.order(other, POOL_ORDER_ASK), 0);
    driver_free_end(first);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), -EBUSY);
    atomic_fetch_sub(&context->freeing, 1);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), 0);
    assert_null(driver_free_begin(0));
    assert_null(driver_free_begin(3));
    driver_free_end(NULL);
    atomic_store(&capture_count, 1); /* it may end before the free */
    assert_ptr_equal(driver_free_begin(1), context);
    driver_free_end(context);
    atomic_store(&capture_count, 0);
    fake.driver.cuPointerGetAttribute = NULL;
    assert_null(driver_free_begin(1));
}

/* So it is beside a call that waits for the current context. */
READY_CASE(test_nothing_is_asked_beside_an_end, .environment = ORDERED)
{
    struct context *other = pooled(1);

    fake_current(fake_context(1));
    assert_ptr_equal(driver_free_begin_current(), other);
    assert_int_equal(order_ops.order(other, POOL_ORDER_ASK), -EBUSY);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), 0);
    driver_free_end(other);
    assert_int_equal(order_ops.order(other, POOL_ORDER_ASK), 0);
    fake_current(NULL);
    assert_null(driver_free_begin_current());
}

/* It does not come out of the driver. */
static void *is_cancelled(void *arg)
{
    assert_ptr_equal(driver_free_begin(1), arg);
    pthread_exit(NULL);
}

READY_CASE(test_cancelled_in_a_free, .environment = ORDERED)
{
    fake.driver.cuPointerGetAttribute = owner;
    for (unsigned int i = 0; i < 2; i++) /* the next thread has its record */
        elsewhere(is_cancelled, context);
    assert_int_equal(context->freeing, 0);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), 0);
}

/* The stream by which other threads give memory back is there before the driver would hold its creation up. */
READY_CASE(test_stream_before_a_free, .environment = ORDERED)
{
    fake.driver.cuPointerGetAttribute = owner;
    for (unsigned int i = 0; i < 2; i++) {
        driver_free_end(driver_free_begin(1));
        assert_non_null(context->stream);
        assert_int_equal(fake_calls(FN(cuStreamCreate)), 1);
    }
    assert_true(fake_thread_is_clean(fake_context(0)));
}

static void left(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 4)
        atomic_store(&context->inside, 0);
}

/* A thread inside the gate is waited for, 10 ms at most: another free may hold it up. */
READY_CASE(test_free_waits_for_the_gate, .environment = ORDERED)
{
    fake.driver.cuPointerGetAttribute = owner;
    atomic_store(&context->inside, 1);
    fake.relax_step = MS;
    driver_free_end(driver_free_begin(1));
    assert_int_equal(fake.relaxes, 10);
    fake.relaxes = 0;
    assert_int_equal(capture_wait(context), 0);
    assert_int_equal(fake.relaxes, 10);
    fake.relaxes = 0;
    atomic_store(&context->defers, false);
    assert_true(cuda_source.put(context, 2, 1)); /* a segment that goes back by a free that waits */
    assert_int_equal(fake.relaxes, 10);
    fake.relaxes = 0;
    fake.relax = left;
    fake.relax_arg = context;
    driver_free_end(driver_free_begin(1));
    assert_int_equal(fake.relaxes, 4);
    assert_int_equal(context->freeing, 0);
}

/* How often a thread finds it open after it has found it closed. */
#define TURNS 1000u
static atomic_bool is_closed;
static atomic_uint turns, wrong;

static void *enters(void *arg)
{
    for (bool refused = false; atomic_load(&turns) < TURNS;) {
        if (!free_gate_enter(arg)) {
            refused = true;
            continue;
        }
        wrong += atomic_load(&is_closed);
        free_gate_leave(arg);
        turns += refused;
        refused = false;
    }
    return NULL;
}

static void lets_others(void *arg)
{
    sched_yield();
}

/* No thread is inside while it is closed, whichever came first. */
READY_CASE(test_gate_is_empty, .environment = ORDERED)
{
    pthread_t thread;

    fake.step = fake.relax_step = 0; /* without limit */
    fake.relax = lets_others;
    assert_int_equal(pthread_create(&thread, NULL, enters, context), 0);
    for (unsigned int i = 0; atomic_load(&turns) < TURNS; i++) {
        assert_true(free_gate_close(context));
        fake.relaxes = 0;
        atomic_store(&is_closed, true);
        for (unsigned int looks = 0; looks < 500 && !wrong; looks++)
            atomic_signal_fence(memory_order_seq_cst);
        atomic_store(&is_closed, false);
        free_gate_open(context);
        for (unsigned int looks = 0; looks < i % 500; looks++)
            atomic_signal_fence(memory_order_seq_cst);
    }
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    assert_int_equal(context->inside, 0);
    assert_true(free_gate_enter(context));
}

static bool ends_inside;

static void *enters_and_ends(void *arg)
{
    assert_true(pins_possible()); /* it has a record, as each thread in a request or a free */
    assert_true(free_gate_enter(arg));
    assert_int_equal(((struct context *)arg)->inside, 1);
    if (!ends_inside)
        free_gate_leave(arg);
    return NULL;
}

/* A thread that is cancelled in a call of the driver, inside, keeps no later free waiting. */
READY_CASE(test_gate_is_left_by_a_thread_that_ends, .environment = ORDERED)
{
    pthread_t thread;

    for (unsigned int i = 0; i < 2; i++) {
        ends_inside = i;
        assert_int_equal(pthread_create(&thread, NULL, enters_and_ends, context), 0);
        pthread_join(thread, NULL);
        assert_int_equal(context->inside, 0);
    }
}

/* A thread that asks, or records behind a free on a stream, is waited for. */
READY_CASE(test_free_begins_beside_a_record, .environment = ORDERED)
{
    const uint64_t addr = block(context, 4 * MIB);

    fake_before(FN(cuCtxRecordEvent), free_begins, context);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), 0);
    assert_left(context, 1);
    fake_before(FN(cuEventRecord), free_begins, context);
    assert_int_equal(serve_free_later(addr, fake_stream(0, 0)), SERVE_DONE);
    assert_left(context, 2);
}

/* So is one that waits for another context's stream: by the frees of that context. */
READY_CASE(test_free_begins_beside_a_foreign_record, .environment = ORDERED)
{
    const uint64_t addr = block(context, 4 * MIB);
    struct context *other = pooled(1);

    fake_before(FN(cuEventRecord), free_begins, other);
    fake_before(FN(cuEventDestroy_v2), free_begins, other);
    assert_int_equal(serve_free_later(addr, fake_stream(0, 1)), SERVE_DONE);
    assert_left(other, 2);
}

/* Freed by a stream without an event, as beside a capture. */
static void defer(struct context *context)
{
    const uint64_t addr = block(context, 4 * MIB);

    atomic_store(&capture_count, 1);
    assert_int_equal(serve_free_later(addr, CU_STREAM_LEGACY), SERVE_DONE);
    atomic_store(&capture_count, 0);
}

/* A request that was refused orders deferred blocks, and is waited for. */
READY_CASE(test_free_begins_beside_an_order, .environment = ORDERED)
{
    defer(context);
    fake_before(FN(cuCtxRecordEvent), free_begins, context);
    assert_true(device_trim(0, NULL));
    assert_left(context, 1);
}

static void free_is_over(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 7)
        atomic_store(&context->freeing, 0);
}

static void is_open(void *arg)
{
    assert_int_equal(fake.relaxes, 7);
    fake.contexts[0].over = 1;
}

static void closes(void *arg)
{
    struct context *context = arg;

    fake_before(FN(cuEventQuery), NULL, NULL);
    fake.relaxes = 0;
    atomic_store(&context->freeing, 1);
}

/* An order that is held up by the driver, as natively. */
static void *orders(void *context)
{
    assert_true(pins_possible()); /* it has a record */
    assert_int_equal(order_ops.order(context, POOL_ORDER_DEVICE), 0);
    return NULL;
}

/* It has found the gate open, and orders nothing once that is closed: it waits until the free is over. */
READY_CASE(test_free_begins_before_an_order, .environment = ORDERED)
{
    const uint64_t addr = block(context, 4 * MIB);

    fake.streams[0].launched = fake.contexts[0].launched = 1;
    assert_int_equal(serve_free_later(addr, fake_stream(0, 0)), SERVE_DONE);
    defer(context);
    fake_before(FN(cuEventQuery), closes, context);
    fake.relax = free_is_over;
    fake.relax_arg = context;
    fake_before(FN(cuCtxRecordEvent), is_open, NULL);
    assert_true(device_trim(0, NULL));
    assert_int_equal(fake_calls(FN(cuCtxWaitEvent)), 1);
    fake_before(FN(cuCtxRecordEvent), NULL, NULL);
    atomic_store(&context->freeing, 1);
    assert_int_equal(order_ops.order(context, POOL_ORDER_ASK), -EBUSY);
    orders(context);
}

static void *hurries(void *arg)
{
    pin_hurry_begin();
    pthread_exit(NULL);
}

/* The next thread has its record. */
READY_CASE(test_cancelled_in_a_hurry, .environment = ORDERED)
{
    elsewhere(hurries, NULL);
    atomic_store(&context->freeing, 1);
    elsewhere(orders, context);
}

/* A request waits for it, as it would for memory: half a minute if it is for this thread's frees, and 0.3 s for
 * others', but not often in vain. */
READY_CASE(test_request_waits_for_a_free, .environment = ORDERED)
{
    uint64_t start = now();

    assert_true(arrivals_wait_freeing(context, true));
    assert_int_equal(now(), start);
    atomic_store(&context->freeing, 1);
    fake.relax_step = MS;
    assert_false(arrivals_wait_freeing(context, true));
    assert_int_equal(now() - start, 30000 * MS);
    start = now();
    assert_false(arrivals_wait_freeing(context, false));
    assert_int_equal(now() - start, 300 * MS);
    for (unsigned int own = 0; own < 2; own++) {
        start = now();
        assert_false(arrivals_wait_freeing(context, own));
        assert_int_equal(now() - start, 30 * MS);
    }
    fake.relaxes = 0;
    fake.relax = free_is_over;
    fake.relax_arg = context;
    assert_true(arrivals_wait_freeing(context, false));
    assert_int_equal(fake.relaxes, 7);
}
