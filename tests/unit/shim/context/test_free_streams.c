/* SPDX-License-Identifier: Apache-2.0 */
/* test_free_streams.c - shim/context/free_streams.c: memory that was freed on streams is there once these are idle,
 * whatever else the context's device does. */

#include "context/capture_gate.h"
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
    assert_null(strstr(fake_log(), "record"));
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

/* A stream that cannot be asked: nothing but the end of all work will do, and only of work launched before. */
static void ask_unknown(struct context *context)
{
    uint64_t mark;

    assert_false(order_freed_async_ended(context));
    mark = free_streams_mark(&context->free_streams);
    free_streams_add(&context->free_streams, fake_stream(0, 0), true);
    free_streams_idle(&context->free_streams, mark);
    assert_false(order_freed_async_ended(context));
    free_streams_idle(&context->free_streams, free_streams_mark(&context->free_streams));
    assert_true(order_freed_async_ended(context));
}

READY_CASE(test_unknown, .environment = ORDERED)
{
    free_streams_add(&context->free_streams, fake_stream(0, 0), false);
    ask_unknown(context);
    for (uintptr_t i = 0; i <= FREE_STREAMS_MAX; i++)
        free_streams_add(&context->free_streams, (CUstream)(0x1000 + i), true);
    assert_int_equal(context->free_streams.count, FREE_STREAMS_MAX);
    ask_unknown(context);
    free_streams_add(&context->free_streams, fake_stream(1, 0), true);
    context_stream_gone(fake_stream(2, 0)); /* another one */
    assert_true(order_freed_async_ended(context));
    free_streams_add(&context->free_streams, fake_stream(1, 0), true);
    context_stream_gone(fake_stream(1, 0));
    ask_unknown(context);
    assert_int_equal(serve_free_later(block(context, MIB), CU_STREAM_PER_THREAD), SERVE_DONE);
    ask_unknown(context);
}

/* An order of all work says enough of streams that cannot be asked. */
READY_CASE(test_all_work, .environment = ORDERED)
{
    free_streams_add(&context->free_streams, fake_stream(0, 0), false);
    assert_int_equal(pool_free_later(block(context, 3 * MIB)), 0);
    work();
    assert_int_equal(idle_after_flush(context), 0);
    assert_false(order_freed_async_ended(context));
    fake.contexts[0].over = 1;
    assert_int_equal(idle_after_flush(context), 4 * MIB);
    assert_true(order_freed_async_ended(context));
}

/* The driver would hold the question up, or it would disturb a capture. */
READY_CASE(test_not_asked, .environment = ORDERED)
{
    free_streams_add(&context->free_streams, fake_stream(0, 0), true);
    atomic_store(&context->freeing, 1);
    assert_false(order_freed_async_ended(context));
    atomic_store(&context->freeing, 0);
    fake_fail(FN(cuStreamQuery), CUDA_ERROR_UNKNOWN, 1);
    assert_false(order_freed_async_ended(context));
    assert_ptr_equal(capture_begin(fake_stream(1, 0)), fake_context(0));
    assert_false(order_freed_async_ended(context));
    assert_int_equal(fake_calls(FN(cuStreamQuery)), 1);
}
