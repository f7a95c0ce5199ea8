/* SPDX-License-Identifier: Apache-2.0 */
/* test_waits.c - shim/context/free_order.c: what waits on the host for all of a context's or a device's work, for how
 * long, and when it gives up. test_frees.c has what waits for the work before frees. */

#include "ready.h"

#define MEMORY "alloc:c0,1 alloc:c0,1 free:0x7f0000200000"
#define ASK_NS 100000 /* a device is given so long to say that it is at rest */

/* --- all work of a context --- */

ALL_CASE(test_order_wait, .environment = ORDERED)
{
    assert_int_equal(order_wait(context), CUDA_SUCCESS);
    assert_string_equal(fake_log(), "sync:c0");
    assert_int_equal(context->slots[1].done, 1);
    atomic_store(&capture_count, 1);
    assert_int_equal(order_wait(context), CUDA_SUCCESS);
    assert_string_equal(fake_log(), MEMORY);
    assert_int_equal(context->slots[1].seq, 4);
    assert_int_equal(context->slots[1].done, 1);
    fake_lack(FN(cuThreadExchangeStreamCaptureMode));
    assert_int_equal(order_wait(context), CUDA_ERROR_NOT_READY);
    assert_string_equal(fake_log(), "");
    atomic_store(&capture_count, 0);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_LAUNCH_FAILED, 2);
    assert_int_equal(order_wait(context), CUDA_ERROR_LAUNCH_FAILED);
    assert_true(context_failed(context));
    assert_int_equal(context->slots[1].seq, 8);
    assert_int_equal(context->slots[1].done, 1); /* what failed orders nothing */
}

ALL_CASE(test_wait_device, .environment = ORDERED)
{
    assert_true(context_wait_device(0));
    assert_string_equal(fake_log(), "sync:c0 push:c4 sync:c4 pop");
    assert_true(context_wait_device(1));
    assert_string_equal(fake_log(), "push:c1 sync:c1 pop");
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 2);
    assert_false(context_wait_device(0)); /* and the others are waited for all the same */
    assert_string_equal(fake_log(), "sync:c0 sync:c0 push:c4 sync:c4 pop");
    assert_false(context_wait_device(2)); /* no context there */
    assert_string_equal(fake_log(), "");
    assert_true(context_pin(context)); /* what was pinned is not any more */
    context_unpin(context);
}

/* None of the device's contexts is pooled yet: the current one, which is then. */
ISOLATED_CASE(test_wait_device_current, .environment = ORDERED)
{
    const bool limited = *state != NULL;

    fake.devices = 2;
    assert_false(limited ? context_wait_device_for(1, 10) : context_wait_device(1));
    assert_null(strstr(fake_log(), "c0,e"));
    context_gone(context_leaving(fake_context(0)), true);
    fake_log();
    fake.absent = true;
    assert_false(limited ? context_wait_device_for(0, 10) : context_wait_device(0));
    fake.absent = false;
    assert_true(limited ? context_wait_device_for(0, 10) : context_wait_device(0));
    assert_non_null(strstr(fake_log(), limited ? "record:c0,e0" : "sync:c0"));
    fake_current(fake_context(1));
    fake.contexts[1].launched = 1;
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 2);
    assert_false(limited ? context_wait_device_for(1, 10) : context_wait_device(1));
    context_gone(context_leaving(fake_context(1)), true);
    fake_current(NULL);
    assert_false(limited ? context_wait_device_for(1, 10) : context_wait_device(1));
}
ISOLATED_AGAIN(test_wait_device_current, for_so_long, .environment = ORDERED, .row = "for so long")

/* --- the same, for so long --- */

ALL_CASE(test_wait_until, .environment = ORDERED)
{
    uint64_t start;

    fake.relax_step = MS;
    assert_true(order_wait_until(context, 0));
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0");
    assert_int_equal(context->slots[1].done, 0); /* a free may record it again */
    works(0, 30);
    start = now();
    assert_true(order_wait_until(context, start + 30 * MS));
    assert_int_equal(now() - start, 30 * MS);
    works(0, 31);
    start = now();
    assert_false(order_wait_until(context, start + 30 * MS));
    assert_int_equal(now() - start, 30 * MS);
    fake.relax = NULL;
    fake.relax_step = 1000;
    start = now();
    assert_false(order_wait_until(context, 0)); /* asked for a while in any case */
    assert_int_equal(now() - start, ASK_NS);
    fake.relax_step = MS;
    fake_current(fake_context(1));
    assert_false(order_wait_until(context, 0));
    assert_true(fake_thread_is_clean(fake_context(1)));
}

ISOLATED_CASE(test_wait_until_refused, .environment = ORDERED)
{
    static const size_t lacks[] = {FN(cuCtxRecordEvent), FN(cuEventQuery)};
    struct context *context;

    for (size_t i = 0; i < COUNT(lacks); i++) {
        context = ready_all();
        fake_lack(lacks[i]);
        assert_false(order_wait_until(context, now() + MS));
        context_gone(context_leaving(context->handle), true);
    }
    context = ready_all();
    fake_fail(FN(cuCtxRecordEvent), CUDA_ERROR_UNKNOWN, 1);
    assert_false(order_wait_until(context, now() + MS));
    fake_fail_after(FN(cuCtxGetCurrent), 0, CUDA_ERROR_UNKNOWN, 2);
    assert_false(order_wait_until(context, now() + MS));
    fake_fail(FN(cuEventQuery), CUDA_ERROR_LAUNCH_FAILED, 2);
    assert_false(order_wait_until(context, now() + MS));
    assert_int_equal(fake.relaxes, 0);
}

static void capture_ends(void *arg)
{
    if (fake.relaxes == *(unsigned int *)arg)
        atomic_store(&capture_count, 0);
}

/* A capture is waited for, a second at most, and no longer than asked. */
ALL_CASE(test_wait_until_beside_capture, .environment = ORDERED)
{
    unsigned int ends = 20;
    uint64_t start;

    atomic_store(&capture_count, 1);
    start = now();
    assert_false(order_wait_until(context, start + 5 * MS));
    assert_int_equal(now() - start, 5 * MS);
    start = now();
    assert_false(order_wait_until(context, start + 5000 * MS));
    assert_int_equal(now() - start, SECOND_NS);
    assert_string_equal(fake_log(), "");
    fake.relaxes = 0;
    fake.relax = capture_ends;
    fake.relax_arg = &ends;
    assert_true(order_wait_until(context, now() + 5000 * MS));
    assert_int_equal(fake.relaxes, 20);
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0");
}

/* Its context goes: nothing is waited for any more. */
ISOLATED_CASE(test_wait_until_context_goes, .environment = ORDERED)
{
    struct context *context = ready_all();

    fake.relax = context_goes;
    fake.relax_arg = context;
    fake.contexts[0].launched = 1;
    atomic_store(&capture_count, *state != NULL);
    assert_false(order_wait_until(context, now() + 500 * MS));
    assert_int_equal(fake.relaxes, 7);
}
ISOLATED_AGAIN(test_wait_until_context_goes, beside_a_capture, .environment = ORDERED, .row = "beside a capture")

ISOLATED_CASE(test_wait_device_for, .environment = ORDERED)
{
    uint64_t start;

    ready_all();
    fake.relax_step = MS;
    assert_true(context_wait_device_for(0, 10));
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0 push:c4 event:c4,2 pop record:c4,e1 push:c4 pop");
    works(0, 11);
    start = now();
    assert_false(context_wait_device_for(0, 10)); /* and the other one is asked all the same */
    assert_int_equal(now() - start, 10 * MS);
    assert_non_null(strstr(fake_log(), "record:c4,e1"));
    fake.contexts[0].over = fake.contexts[0].launched;
    works(1, 5);
    assert_true(context_wait_device_for(0, 10));
    assert_true(context_wait_device_for(1, 5));
    assert_false(context_wait_device_for(2, 5));
}

/* --- all contexts --- */

static void context_ends(void *arg)
{
    struct context *context = arg;

    atomic_store(&context->leaving, 1);
    atomic_store(&context->ending, true);
}

/* Another thread's reset ends a context beside the wait, and its work with it. */
ALL_CASE(test_wait_all_context_ends, .environment = ORDERED)
{
    bool late = true;

    fake_before(FN(cuCtxSynchronize), context_ends, context);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_CONTEXT_IS_DESTROYED, 2);
    assert_int_equal(context_wait_all(WAIT_NO_LIMIT, &late), CUDA_SUCCESS);
    assert_false(late);
    assert_string_equal(fake_log(), "sync:c0 sync:c0 push:c1 sync:c1 pop push:c4 sync:c4 pop");
    assert_false(busy(context, true));
}

ISOLATED_CASE(test_wait_all_fails, .environment = ORDERED)
{
    bool late = true;

    ready_all();
    fake_fail_after(FN(cuCtxSynchronize), 1, CUDA_ERROR_LAUNCH_FAILED, 2);
    assert_int_equal(context_wait_all(WAIT_NO_LIMIT, &late), CUDA_ERROR_LAUNCH_FAILED);
    assert_false(late);
    assert_string_equal(fake_log(), "sync:c0 push:c1 sync:c1 sync:c1 pop");
}

ALL_CASE(test_wait_all_until, .environment = ORDERED)
{
    bool late = false;

    fake.relax_step = MS;
    works(0, 31);
    assert_int_equal(context_wait_all(now() + 30 * MS, &late), CUDA_SUCCESS);
    assert_true(late);
    works(0, 1000);
    fake.relaxes = 0;
    fake.relax = context_goes;
    fake.relax_arg = context;
    assert_int_equal(context_wait_all(now() + 30 * MS, &late), CUDA_SUCCESS);
    assert_false(late);
    assert_int_equal(fake.relaxes, 7);
}

/* Other threads may launch more work all the time: the driver's own wait has no limit. */
ALL_CASE(test_wait_all_until_launches, .environment = ORDERED)
{
    bool late = true;

    fake.relax_step = MS;
    works(0, 5);
    assert_int_equal(context_wait_all(now() + 30 * MS, &late), CUDA_SUCCESS);
    assert_false(late);
    assert_int_equal(fake_calls(FN(cuCtxSynchronize)), 0);
}

/* No work has been late. */
ALL_CASE(test_wait_all_until_fails, .environment = ORDERED)
{
    bool late = true;

    fake.relax_step = MS;
    fake.contexts[0].error = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(context_wait_all(now() + 30 * MS, &late), CUDA_ERROR_UNKNOWN);
    assert_false(late);
    fake.contexts[0].error = CUDA_SUCCESS;
    atomic_store(&capture_count, 1);
    assert_int_equal(context_wait_all(now() + 30 * MS, &late), CUDA_ERROR_NOT_READY);
    assert_false(late);
    atomic_store(&capture_count, 0);
}

/* --- primary contexts in which nothing was pooled --- */

static void primary_resets(void *arg)
{
    ((struct fake_context *)arg)->active = false;
}

READY_CASE(test_wait_primaries, .environment = ORDERED)
{
    fake.contexts[1].active = true;
    assert_int_equal(context_wait_primaries(), CUDA_SUCCESS);
    assert_string_equal(fake_log(), "retain:1 push:c1 sync:c1 pop release:1");
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_LAUNCH_FAILED, 1);
    assert_int_equal(context_wait_primaries(), CUDA_ERROR_LAUNCH_FAILED);
    assert_string_equal(fake_log(), "retain:1 push:c1 sync:c1 pop release:1");
    atomic_store(&capture_count, 1); /* that wait would invalidate it */
    assert_int_equal(context_wait_primaries(), CUDA_ERROR_NOT_READY);
    pooled(1);
    fake_log();
    assert_int_equal(context_wait_primaries(), CUDA_SUCCESS);
    assert_string_equal(fake_log(), "");
    assert_int_equal(atomic_load(&contexts.probing[1]), 0);
}

/* Another thread's reset ends the work that is waited for. */
ISOLATED_CASE(test_wait_primaries_reset, .environment = ORDERED)
{
    (void)state;
    ready();
    fake.contexts[1].active = true;
    fake_before(FN(cuCtxSynchronize), primary_resets, &fake.contexts[1]);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_CONTEXT_IS_DESTROYED, 1);
    assert_int_equal(context_wait_primaries(), CUDA_SUCCESS);
    assert_string_equal(fake_log(), "retain:1 push:c1 sync:c1 pop release:1");
}
