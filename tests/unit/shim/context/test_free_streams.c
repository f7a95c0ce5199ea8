/* SPDX-License-Identifier: Apache-2.0 */
/* test_free_streams.c - shim/context/free_streams.c: memory that was freed on streams is there once these are idle,
 * whatever else the context's device does. */

#include "context/capture_gate.h"
#include "context/context_end.h"
#include "context/free_order.h"
#include "context/free_streams.h"
#include "context/registry.h"
#include "ready.h"
#include "serve/serve.h"

/* Other work of the context that does not end. */
static void work(void)
{
    fake.contexts[0].launched = 1;
}

/* Bytes that serve requests, after what is deferred was asked for. */
static uint64_t idle_after_flush(struct context *context)
{
    struct pool_stats stats;

    pool_flush(context->pool);
    pool_stats_get(context->pool, &stats);
    return stats.idle;
}

/* Freed on a stream of its own by the program's call. */
static void freed_on(struct context *context, unsigned int stream, size_t size)
{
    assert_int_equal(serve_free_later(block(context, size), fake_stream(stream, 0)), SERVE_DONE);
}

READY_CASE(test_idle_streams, .environment = ORDERED)
{
    work();
    fake.streams[0].launched = 1;
    freed_on(context, 0, 3 * MIB);
    freed_on(context, 1, 5 * MIB);
    assert_int_equal(idle_after_flush(context), 0);
    fake.streams[0].over = 1;
    fake_log();
    assert_int_equal(idle_after_flush(context), 10 * MIB);
    assert_null(strstr(fake_log(), "record:c0"));
}

/* The call that says that the program has waited asks, too, before the blocks are taken. */
READY_CASE(test_later, .environment = ORDERED)
{
    struct pool_stats stats;

    work();
    freed_on(context, 0, 4 * MIB);
    assert_true(pool_later_any());
    pool_flush_later(context->pool);
    pool_stats_get(context->pool, &stats);
    assert_int_equal(stats.idle, 4 * MIB);
    assert_false(pool_later_any());
}

/* A block whose order failed, or of which nobody knows the stream, is deferred, too. */
READY_CASE(test_other_blocks, .environment = ORDERED)
{
    const uint64_t other = block(context, 5 * MIB);

    work();
    freed_on(context, 0, 3 * MIB);
    assert_int_equal(pool_free_later(other), 0);
    assert_int_equal(idle_after_flush(context), 0);
    assert_int_equal(idle_after_flush(context), 0);
    fake.contexts[0].over = 1;
    assert_int_equal(idle_after_flush(context), 10 * MIB);
}

/* A free on a stream; false: the event could not be recorded. */
static void noted(struct context *context, CUstream stream, bool is_own, bool recorded)
{
    struct free_stream *at = free_streams_begin(&context->free_streams, stream, is_own);

    if (at && !atomic_load(&at->event))
        assert_int_equal(fake.driver.cuEventCreate((CUevent *)&at->event, 2), CUDA_SUCCESS);
    if (at)
        free_streams_end(&context->free_streams, at, recorded);
}

/* A stream that cannot be asked: nothing but the end of all work will do, and only of work launched before. */
static void ask_unknown(struct context *context)
{
    uint64_t mark;

    assert_false(order_freed_async_ended(context));
    mark = free_streams_mark(&context->free_streams);
    noted(context, fake_stream(0, 0), true, true);
    free_streams_idle(&context->free_streams, mark);
    assert_false(order_freed_async_ended(context));
    free_streams_idle(&context->free_streams, free_streams_mark(&context->free_streams));
    assert_true(order_freed_async_ended(context));
}

READY_CASE(test_unknown, .environment = ORDERED)
{
    noted(context, fake_stream(0, 0), false, true);
    ask_unknown(context);
    for (uintptr_t i = 0; i <= FREE_STREAMS_MAX; i++)
        noted(context, (CUstream)(0x1000 + i), true, true);
    assert_int_equal(context->free_streams.count, FREE_STREAMS_MAX);
    ask_unknown(context);
    noted(context, fake_stream(1, 0), true, false);
    ask_unknown(context);
}

/* The handle means another stream on each thread. */
READY_CASE(test_per_thread, .environment = ORDERED)
{
    struct free_stream *own = free_streams_begin(&context->free_streams, CU_STREAM_PER_THREAD, true);

    assert_int_not_equal(own->thread, 0);
    free_streams_end(&context->free_streams, own, true);
    own->thread++; /* another thread's */
    assert_ptr_not_equal(free_streams_begin(&context->free_streams, CU_STREAM_PER_THREAD, true), own);
    assert_int_equal(context->free_streams.count, 2);
}

/* The handle of a stream that was destroyed may be that of a new one: the new one's event says nothing of the old. */
READY_CASE(test_gone, .environment = ORDERED)
{
    work();
    fake.streams[0].launched = 1;
    freed_on(context, 0, 3 * MIB);
    context_stream_gone(fake_stream(0, 0));
    fake.streams[0].launched = 0;
    freed_on(context, 0, 5 * MIB);
    assert_int_equal(context->free_streams.count, 2);
    assert_int_equal(idle_after_flush(context), 0);
    fake.streams[0].over = 1;
    assert_int_equal(idle_after_flush(context), 10 * MIB);
    context_stream_gone(fake_stream(2, 0)); /* one that nobody knows */
    assert_true(order_freed_async_ended(context));
}

/* The events went with their context: the next one in its entry makes its own. */
READY_CASE(test_next_context, .environment = ORDERED)
{
    unsigned int made;

    freed_on(context, 0, 3 * MIB);
    context_gone(context_leaving(fake_context(0)), true);
    assert_ptr_equal(pooled(4), context);
    fake_current(fake_context(4));
    made = fake_calls(FN(cuEventCreate));
    assert_int_equal(serve_free_later(block(context, 3 * MIB), fake_stream(1, 4)), SERVE_DONE);
    assert_int_equal(fake_calls(FN(cuEventCreate)), made + 1);
}

/* A thread is about to record the event: its block is not in the answer, and the entry is not another stream's. */
READY_CASE(test_recording, .environment = ORDERED)
{
    struct free_stream *at = free_streams_begin(&context->free_streams, fake_stream(0, 0), true);

    assert_false(order_freed_async_ended(context));
    free_streams_idle(&context->free_streams, free_streams_mark(&context->free_streams));
    assert_int_equal(context->free_streams.count, 1);
    assert_null(free_streams_begin(&context->free_streams, fake_stream(0, 0), true)); /* there is no event yet */
    free_streams_end(&context->free_streams, at, true);
    assert_false(order_freed_async_ended(context));
}

/* An order of all work says enough of streams that cannot be asked. */
READY_CASE(test_all_work, .environment = ORDERED)
{
    noted(context, fake_stream(0, 0), false, true);
    assert_int_equal(pool_free_later(block(context, 3 * MIB)), 0);
    work();
    assert_int_equal(idle_after_flush(context), 0);
    assert_false(order_freed_async_ended(context));
    fake.contexts[0].over = 1;
    assert_int_equal(idle_after_flush(context), 4 * MIB);
    assert_true(order_freed_async_ended(context));
}

/* The driver would hold the record up, or it would disturb a capture, or it fails. */
READY_CASE(test_not_recorded, .environment = ORDERED)
{
    const uint64_t addr[3] = {block(context, 2 * MIB), block(context, 2 * MIB), block(context, 2 * MIB)};

    atomic_store(&context->freeing, 1);
    assert_int_equal(serve_free_later(addr[0], fake_stream(0, 0)), SERVE_DONE);
    atomic_store(&context->freeing, 0);
    ask_unknown(context);
    atomic_store(&capture_count, 1);
    assert_int_equal(serve_free_later(addr[1], CU_STREAM_LEGACY), SERVE_DONE);
    atomic_store(&capture_count, 0);
    ask_unknown(context);
    assert_int_equal(fake_calls(FN(cuEventRecord)), 0);
    fake_fail(FN(cuEventRecord), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(serve_free_later(addr[2], fake_stream(0, 0)), SERVE_DONE);
    ask_unknown(context);
}
