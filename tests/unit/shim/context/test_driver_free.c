/* SPDX-License-Identifier: Apache-2.0 */
/* test_driver_free.c - shim/context/driver_free.c: beside calls that wait in the driver, which hold up what other
 * threads record, nothing is asked. */
#include "context/driver_free.h"
#include "ready.h"

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

static void question_ends(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 4)
        atomic_store(&context->slots[SLOT_ASK].seq, 2);
}

/* A question under way is waited for, 10 ms at most: another free may hold it up. */
READY_CASE(test_free_waits_for_a_question, .environment = ORDERED)
{
    fake.driver.cuPointerGetAttribute = owner;
    atomic_store(&context->slots[SLOT_ASK].seq, 1);
    fake.relax_step = MS;
    driver_free_end(driver_free_begin(1));
    assert_int_equal(fake.relaxes, 10);
    fake.relaxes = 0;
    fake.relax = question_ends;
    fake.relax_arg = context;
    driver_free_end(driver_free_begin(1));
    assert_int_equal(fake.relaxes, 4);
    assert_int_equal(context->freeing, 0);
}

static void free_is_over(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 7)
        atomic_store(&context->freeing, 0);
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
