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
    assert_int_equal(idle_after_flush(context), 6 * MIB);
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
    assert_int_equal(idle_after_flush(context), 4 * MIB);
    assert_int_equal(idle_after_flush(context), 4 * MIB);
    fake.contexts[0].over = 1;
    assert_int_equal(idle_after_flush(context), 10 * MIB);
}

/* A busy stream's event is recorded again and again: frees from before the last question have one of their own. */
READY_CASE(test_generations, .environment = ORDERED)
{
    uint64_t addr[6];

    work();
    for (unsigned int i = 0; i < 6; i++) /* before one of them can be handed out again */
        addr[i] = block(context, 32 * MIB);
    for (unsigned int i = 0; i < 6; i++) {
        fake.streams[0].launched++;
        assert_int_equal(serve_free_later(addr[i], fake_stream(0, 0)), SERVE_DONE);
        assert_int_equal(idle_after_flush(context), i ? (i - 1) * 32 * MIB : 0);
        fake.streams[0].over += i != 0;
        assert_int_equal(idle_after_flush(context), i * 32 * MIB);
    }
    fake.streams[0].over++;
    assert_int_equal(idle_after_flush(context), 6 * 32 * MIB);
}

/* Of two frees on a stream the later one hides the earlier one from no question, nor does a question the later one. */
READY_CASE(test_later_twice, .environment = ORDERED)
{
    const uint64_t addr[] = {block(context, 3 * MIB), block(context, 5 * MIB)};
    struct pool_stats stats;

    work();
    for (unsigned int i = 0; i < 2; i++) {
        fake.streams[0].launched++;
        assert_int_equal(serve_free_later(addr[i], fake_stream(0, 0)), SERVE_DONE);
        pool_flush_later(context->pool);
    }
    for (unsigned int i = 0; i < 2; i++) {
        fake.streams[0].over++;
        pool_flush_later(context->pool);
        pool_stats_get(context->pool, &stats);
        assert_int_equal(stats.idle, i ? 10 * MIB : 4 * MIB);
    }
}

/* Two streams that never come to their frees, begun one after the other, hold nothing up that others free. */
READY_CASE(test_long_streams, .environment = ORDERED)
{
    uint64_t held = 0, there = 0, addr[6];

    work();
    for (unsigned int i = 0; i < 6; i++) /* before one of them can be handed out again */
        addr[i] = block(context, 32 * MIB);
    fake_stream(2, 0);
    fake.streams[0].launched = fake.streams[1].launched = 1;
    for (unsigned int i = 0; i < 6; i++) {
        const unsigned int stream = i == 0 ? 0 : i == 3 ? 1 : 2;

        assert_int_equal(serve_free_later(addr[i], fake_stream(stream, 0)), SERVE_DONE);
        *(stream == 2 ? &there : &held) += 32 * MIB;
        assert_int_equal(idle_after_flush(context), there);
    }
    fake.streams[1].over = 1;
    assert_int_equal(idle_after_flush(context), there + held / 2);
    fake.streams[0].over = 1;
    assert_int_equal(idle_after_flush(context), there + held);
}

/* Has the work of this free ended? */
static bool has_ended(struct context *context, uint64_t freed)
{
    uint64_t ended[POOL_PLACES];

    return order_freed_async_ended(context, ended) && freed <= ended[freed % POOL_PLACES];
}

/* A free on a stream, whose event the caller makes; 0: there is none for it. */
static uint64_t noted(struct context *context, CUstream stream)
{
    struct free_mark mark;
    _Atomic(CUevent) *event = free_streams_begin(&context->free_streams, stream, 0, &mark);

    if (!event)
        return 0;
    if (!atomic_load(event))
        assert_int_equal(order_event_make(context, event), CUDA_SUCCESS);
    assert_int_equal(fake.driver.cuEventRecord(atomic_load(event), stream), CUDA_SUCCESS);
    return free_streams_end(&context->free_streams, &mark);
}

/* One stream too many; entries whose events have been reached serve others. */
READY_CASE(test_many_streams, .environment = ORDERED)
{
    static struct fake_stream streams[FREE_STREAMS_MAX + 1];
    uint64_t freed[FREE_STREAMS_MAX + 1];

    for (unsigned int i = 0; i <= FREE_STREAMS_MAX; i++) {
        streams[i].launched = 1;
        freed[i] = noted(context, (CUstream)&streams[i]);
        assert_int_equal(freed[i] != 0, i < FREE_STREAMS_MAX);
    }
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        assert_false(has_ended(context, freed[i]));
    streams[7].over = 1;
    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        assert_int_equal(has_ended(context, freed[i]), i == 7);
    freed[FREE_STREAMS_MAX] = noted(context, (CUstream)&streams[FREE_STREAMS_MAX]);
    assert_int_equal(freed[FREE_STREAMS_MAX], freed[7] + POOL_PLACES);
    assert_true(has_ended(context, freed[7]));
    assert_false(has_ended(context, freed[FREE_STREAMS_MAX]));
    assert_int_equal(noted(context, (CUstream)&streams[7]), 0);
}

/* Entries whose events have been reached serve others though nobody has asked. */
READY_CASE(test_full, .environment = ORDERED)
{
    static struct fake_stream streams[FREE_STREAMS_MAX];

    for (unsigned int i = 0; i < FREE_STREAMS_MAX; i++)
        assert_true(noted(context, (CUstream)&streams[i]));
    work();
    freed_on(context, 0, 3 * MIB);
    assert_int_equal(idle_after_flush(context), 4 * MIB);
}

/* The handle means another stream on each thread. */
READY_CASE(test_per_thread, .environment = ORDERED)
{
    const uint64_t addr[] = {block(context, 3 * MIB), block(context, 5 * MIB), block(context, 3 * MIB)};
    const struct free_stream *at = context->free_streams.at;

    assert_int_equal(serve_free_later(addr[0], CU_STREAM_PER_THREAD), SERVE_DONE);
    assert_int_not_equal(at[0].thread, 0);
    context->free_streams.at[0].thread++; /* another thread's */
    assert_int_equal(serve_free_later(addr[1], CU_STREAM_PER_THREAD), SERVE_DONE);
    assert_int_equal(at[1].thread + 1, at[0].thread);
    assert_int_equal(serve_free_later(addr[2], fake_stream(0, 0)), SERVE_DONE);
    assert_ptr_equal(at[2].stream, fake_stream(0, 0));
    assert_int_equal(at[2].thread, 0);
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
    assert_int_equal(idle_after_flush(context), 6 * MIB);
    fake.streams[0].over = 1;
    assert_int_equal(idle_after_flush(context), 10 * MIB);
    context_stream_gone(fake_stream(2, 0)); /* one that nobody knows */
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

/* A thread is about to record the event: its free is not in the answer. */
READY_CASE(test_recording, .environment = ORDERED)
{
    struct free_mark mark, other;
    uint64_t freed;

    assert_non_null(free_streams_begin(&context->free_streams, fake_stream(0, 0), 0, &mark));
    assert_null(free_streams_begin(&context->free_streams, fake_stream(0, 0), 0, &other)); /* there is no event yet */
    freed = mark.generation * POOL_PLACES;
    assert_false(has_ended(context, freed));
    assert_false(has_ended(context, freed));
    assert_int_equal(free_streams_end(&context->free_streams, &mark), freed); /* the event could not be made */
    assert_true(has_ended(context, freed));
}

/* Two threads find at the same time that a generation has ended: the later one says nothing of the next. */
static struct context *asked_by;
static uint64_t asked_for[3];
static bool asks_other; /* the answer for the first stream is there */

static void ask_meanwhile(void *arg)
{
    if (!asks_other) {
        asks_other = true;
        return;
    }
    fake_before(FN(cuEventQuery), NULL, NULL);
    assert_true(has_ended(asked_by, asked_for[0]));
    fake.streams[0].launched = 2;
    asked_for[1] = noted(asked_by, fake_stream(0, 0));
    assert_false(has_ended(asked_by, asked_for[1]));
    fake.streams[0].launched = 3;
    asked_for[2] = noted(asked_by, fake_stream(0, 0));
}

READY_CASE(test_asked_twice, .environment = ORDERED)
{
    asked_by = context;
    fake.streams[0].launched = fake.streams[0].over = 1;
    asked_for[0] = noted(context, fake_stream(0, 0));
    assert_int_not_equal(noted(context, fake_stream(1, 0)), 0);
    fake_before(FN(cuEventQuery), ask_meanwhile, NULL);
    assert_true(has_ended(context, asked_for[0]));
    assert_false(has_ended(context, asked_for[1]));
    fake.streams[0].over = 2;
    assert_true(has_ended(context, asked_for[1]));
    assert_false(has_ended(context, asked_for[2]));
    fake.streams[0].over = 3;
    assert_true(has_ended(context, asked_for[2]));
}

/* Freed beside other work, where no event is recorded: there only once all work has ended. */
static void freed_unmarked(struct context *context, uint64_t addr, CUstream stream)
{
    work();
    fake.contexts[0].over = 0;
    assert_int_equal(serve_free_later(addr, stream), SERVE_DONE);
    atomic_store(&context->freeing, 0);
    atomic_store(&capture_count, 0);
    assert_int_equal(idle_after_flush(context), 0);
    fake.contexts[0].over = 1;
    assert_int_equal(idle_after_flush(context), 4 * MIB);
    assert_int_equal(block(context, 4 * MIB), addr);
}

/* The driver would hold the record up, or it would disturb a capture, or it fails. */
READY_CASE(test_not_recorded, .environment = ORDERED)
{
    const uint64_t addr = block(context, 4 * MIB);

    atomic_store(&context->freeing, 1);
    freed_unmarked(context, addr, fake_stream(0, 0));
    atomic_store(&capture_count, 1);
    freed_unmarked(context, addr, CU_STREAM_LEGACY);
    assert_int_equal(fake_calls(FN(cuEventRecord)), 0);
    fake_fail(FN(cuEventRecord), CUDA_ERROR_UNKNOWN, 1);
    freed_unmarked(context, addr, fake_stream(0, 0));
    fake_fail(FN(cuEventCreate), CUDA_ERROR_UNKNOWN, 1);
    freed_unmarked(context, addr, fake_stream(1, 0));
}
