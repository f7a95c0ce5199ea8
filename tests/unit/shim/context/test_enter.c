/* SPDX-License-Identifier: Apache-2.0 */
/* test_enter.c - shim/context/free_order.c: entering a context and leaving it again, and the order behind a fill. */

#include "ready.h"

#define STRICT "CUPOOL_FREE=strict"

/* --- entering a context --- */

READY_CASE(test_enter)
{
    struct visit visit;

    assert_int_equal(context_enter(context, &visit), 0);
    assert_true(!visit.pushed && visit.relaxed && visit.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_false(fake_thread_is_clean(context->handle));
    context_leave(context, &visit);
    assert_true(fake_thread_is_clean(context->handle));
    fake_current(fake_context(1));
    assert_int_equal(context_enter(context, &visit), 0);
    assert_true(visit.pushed);
    fake_fail(FN(cuCtxPopCurrent_v2), CUDA_ERROR_UNKNOWN, 1); /* the program's calls must not end up there */
    context_leave(context, &visit);
    assert_true(fake_thread_is_clean(fake_context(1)));
    fake_fail(FN(cuCtxPushCurrent_v2), CUDA_ERROR_INVALID_CONTEXT, 2);
    assert_int_equal(context_enter(context, &visit), CUDA_ERROR_INVALID_CONTEXT);
    assert_true(!visit.pushed && !visit.relaxed);
    context_leave(context, &visit);
    /* Nothing of a call that fails once remains. */
    fake_fail(FN(cuCtxPushCurrent_v2), CUDA_ERROR_UNKNOWN, 1);
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(context_enter(context, &visit), 0);
    assert_true(visit.pushed && visit.relaxed);
    fake_fail(FN(cuThreadExchangeStreamCaptureMode), CUDA_ERROR_UNKNOWN, 1);
    context_leave(context, &visit);
    assert_true(fake_thread_is_clean(fake_context(1)));
    fake_fail(FN(cuThreadExchangeStreamCaptureMode), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(context_enter(context, &visit), 0);
    assert_true(visit.pushed && !visit.relaxed);
    context_leave(context, &visit);
    assert_true(fake_thread_is_clean(fake_context(1)));
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_DEINITIALIZED, 2);
    assert_int_equal(context_enter(context, &visit), CUDA_ERROR_DEINITIALIZED);
    context_leave(context, &visit);
    fake_lack(FN(cuThreadExchangeStreamCaptureMode));
    assert_int_equal(context_enter(context, &visit), 0);
    assert_false(visit.relaxed);
    context_leave(context, &visit);
    assert_true(fake_thread_is_clean(fake_context(1)));
}

/* --- behind a fill --- */

static const struct fill {
    const char *environment;
    size_t lacks, fails;
    bool captures;
    int rc;
    const char *log;
} fills[] = {
    {ORDERED, FNS, FNS, false, 0, "event:c0,2 record:e0,s0 wait:c0,e0"},
    {STRICT, FNS, FNS, false, 0, "sync:s0"},
    {ORDERED, FN(cuEventRecord), FNS, false, 0, "sync:s0"},
    {ORDERED, FN(cuCtxWaitEvent), FNS, false, 0, "sync:s0"},
    {ORDERED, FNS, FNS, true, 0, "sync:s0"},
    {ORDERED, FN(cuThreadExchangeStreamCaptureMode), FNS, true, -EBUSY, ""},
    {ORDERED, FNS, FN(cuEventCreate), false, -EBUSY, "event:c0,2"},
    {ORDERED, FNS, FN(cuEventRecord), false, -EBUSY, "event:c0,2 record:e0,s0"},
    {ORDERED, FNS, FN(cuCtxWaitEvent), false, -EBUSY, "event:c0,2 record:e0,s0 wait:c0,e0"},
    {STRICT, FNS, FN(cuStreamSynchronize), false, -EBUSY, "sync:s0"},
};

ISOLATED_OWN(test_filled, fills)
{
    const struct fill *row = *state;
    struct context *context = ready();

    atomic_store(&context->stream, fake_stream(0, 0));
    atomic_store(&capture_count, row->captures);
    if (row->lacks < FNS)
        fake_lack(row->lacks);
    if (row->fails < FNS)
        fake_fail(row->fails, CUDA_ERROR_OUT_OF_MEMORY, 1);
    assert_int_equal(order_filling_ops.filled(context), row->rc);
    assert_string_equal(fake_log(), row->log);
    if (row->fails < FNS)
        assert_non_null(strstr(fake.said, "2:filled memory could not be put in order (error 2)"));
    else
        assert_null(strstr(fake.said, "could not be put in order"));
    assert_int_equal(context->slots[1].seq, 2);
    assert_int_equal(context->slots[1].done, 0); /* nothing else is in order by this */
    if (row->rc)
        return;
    assert_int_equal(order_filling_ops.filled(context), 0);
    assert_null(strstr(fake_log(), "event:"));
    fake_current(fake_context(1));
    assert_int_equal(order_filling_ops.filled(context), 0);
    assert_non_null(strstr(fake_log(), "push:c0 "));
    assert_true(fake_thread_is_clean(fake_context(1)));
}
