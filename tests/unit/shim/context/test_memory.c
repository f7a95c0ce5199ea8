/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory.c - shim/context/segment_driver.c: what is given back without a request, what is told of the memory of
 * all contexts of a device, and what is done in memory on our own account; frees of what another process holds.
 * test_segments.c has where segments come from and go. */

#include "context/device_free.h"
#include "context/ipc_table.h"
#include "ready.h"
#include "serve/serve.h"

/* --- for those who cannot ask us --- */

/* As context_idle_bytes, without what is used. */
static uint64_t idle_of(int device)
{
    uint64_t used;

    return context_idle_bytes(device, &used);
}

/* A neighbour does not get what only cuMemFree could give back. */
READY_CASE(test_yield_without_deferring, .environment = ORDERED)
{
    assert_int_equal(pool_free(block(context, 3 * MIB)), 0);
    atomic_store(&context->defers, false);
    fake_log();
    assert_int_equal(device_yield(0, now()), 0);
    assert_null(strstr(fake_log(), "free"));
    atomic_store(&context->defers, true);
    assert_true(device_yield(0, now() + SECOND_NS) > 0);
}

/* Used is all that the driver has given and that is not idle, whatever the program has of it. */
READY_CASE(test_used, .environment = ORDERED)
{
    struct pool_stats stats;
    uint64_t used;

    block(context, 1000);
    pool_stats_get(context->pool, &stats);
    context_idle_bytes(0, &used);
    assert_int_equal(used, stats.held - stats.idle);
    assert_true(used >= MIB);
}

/* Another thread's call ends the context: the idle memory counts until it has ended, what was freed on a stream as
 * well, and nobody waits or calls the driver. */
READY_CASE(test_idle_bytes_beside_an_end, .environment = ORDERED)
{
    const uint64_t later = block(context, 5 * MIB), start = now();
    uint64_t before, used_before, used;

    context->primary = false;
    assert_int_equal(pool_free(block(context, MIB)), 0);
    before = context_idle_bytes(0, &used_before);
    assert_int_equal(pool_free_later(later), 0);
    atomic_store(&context->leaving, 1);
    fake_log();
    assert_int_equal(context_idle_bytes(0, &used), before + 5 * MIB);
    assert_int_equal(used, used_before - 5 * MIB);
    assert_int_equal(idle_of(1), 0);
    assert_string_equal(fake_log(), "");
    assert_int_equal(now(), start);
    assert_false(busy(context, true));
    atomic_store(&context->ending, true);
    assert_int_equal(idle_of(0), 0);
    atomic_store(&context->ending, false);
    atomic_store(&context->undecided, true);
    assert_int_equal(idle_of(0), 0);
}

static void end_decided(void *arg)
{
    atomic_store(&((struct context *)arg)->leaving, fake.relaxes < 3);
}

/* Or it gives back a reference to a primary context, mostly not the last one: that is waited for, once. */
READY_CASE(test_idle_bytes_beside_a_release, .environment = ORDERED)
{
    const uint64_t start = now();
    uint64_t used;

    assert_int_equal(pool_free_later(block(context, 5 * MIB)), 0);
    atomic_store(&context->leaving, 1);
    for (unsigned int i = 0; i < 2; i++) {
        assert_int_equal(context_idle_bytes(0, &used), 5 * MIB);
        assert_int_equal(now() - start, SECOND_NS);
    }
    atomic_store(&context->waited_for, false);
    fake.relax = end_decided;
    fake.relax_arg = context;
    assert_int_equal(context_idle_bytes(0, &used), 6 * MIB); /* the segment, which nothing uses */
    assert_int_equal(used, 0);
    assert_false(busy(context, true));
}

/* Natively its idle memory would be free: that is waited for, once, and nothing else. */
READY_CASE(test_trim_beside_an_end, .environment = ORDERED)
{
    const uint64_t addr = block(context, 3 * MIB), start = now();

    context->primary = false;
    atomic_store(&context->leaving, 1);
    assert_false(device_trim(0, NULL) || context_release(0, "test"));
    assert_int_equal(now(), start);
    atomic_store(&context->leaving, 0);
    assert_int_equal(pool_free(addr), 0);
    atomic_store(&context->leaving, 1);
    for (unsigned int i = 0; i < 2; i++)
        assert_false(device_trim(0, NULL) || context_release(0, "test"));
    assert_int_equal(now() - start, SECOND_NS);
    atomic_store(&context->leaving, 0); /* it has stayed */
    assert_true(device_trim(0, NULL));
}

READY_CASE(test_scarce, .environment = ORDERED)
{
    assert_false(segment_ops.scarce(context));
    atomic_store(&context->device_free, FAKE_CAPACITY / 128);
    assert_false(segment_ops.scarce(context));
    atomic_store(&context->device_free, FAKE_CAPACITY / 128 - 1);
    assert_true(segment_ops.scarce(context));
}

/* The figure is the lowest that it can be: the driver is asked before memory goes back for it, and only then. */
READY_CASE(test_scarce_beside_direct_memory, .environment = ORDERED)
{
    struct context *other = pooled(4), *far = pooled(1);

    atomic_store(&context->device_free, FAKE_CAPACITY / 2);
    atomic_store(&other->device_free, FAKE_CAPACITY / 2);
    fake.free = FAKE_CAPACITY / 4;
    fake.scripts[FN(cuMemGetInfo_v2)].calls = 0;
    device_free_taken(FAKE_CAPACITY / 4);
    assert_int_equal(context->device_free, FAKE_CAPACITY / 4);
    assert_int_equal(other->device_free, FAKE_CAPACITY / 4);
    assert_int_equal(far->device_free, FAKE_CAPACITY - FAKE_CAPACITY / 4);
    assert_false(segment_ops.scarce(context));
    assert_int_equal(fake_calls(FN(cuMemGetInfo_v2)), 0);
    device_free_taken(0); /* of unknown size */
    assert_int_equal(context->device_free, 0);
    fake_log();
    assert_false(segment_ops.scarce(other)); /* it was another device's */
    assert_string_equal(fake_log(), "push:c4 pop");
    assert_int_equal(context->device_free, FAKE_CAPACITY / 4);
    assert_int_equal(far->device_free, 0);
    fake.free = 0;
    device_free_taken(FAKE_CAPACITY);
    assert_true(segment_ops.scarce(context));
    assert_true(segment_ops.scarce(context));
    assert_int_equal(fake_calls(FN(cuMemGetInfo_v2)), 2);
    device_free_more(other, FAKE_CAPACITY);
    assert_false(segment_ops.scarce(context));
    device_free_less(context, FAKE_CAPACITY - 1);
    assert_true(segment_ops.scarce(other));
}

READY_CASE(test_scarce_if_nobody_says, .environment = ORDERED)
{
    fake.scripts[FN(cuMemGetInfo_v2)].calls = 0;
    device_free_taken(FAKE_CAPACITY);
    fake_fail(FN(cuMemGetInfo_v2), CUDA_ERROR_UNKNOWN, 1);
    assert_true(segment_ops.scarce(context));
    atomic_store(&capture_count, 1);
    assert_true(segment_ops.scarce(context));
    atomic_store(&capture_count, 0);
    assert_int_equal(fake_calls(FN(cuMemGetInfo_v2)), 1);
    fake.free = FAKE_CAPACITY;
    assert_false(segment_ops.scarce(context));
}

READY_CASE(test_scarce_always, .environment = ORDERED " CUPOOL_DECAY=0")
{
    assert_true(segment_ops.scarce(context));
}

ISOLATED_CASE(test_never_scarce, .environment = ORDERED " CUPOOL_BACKEND=nccl")
{
    struct context *context = ready(); /* ranks have to agree */

    atomic_store(&context->device_free, 0);
    assert_false(segment_ops.scarce(context));
}
ISOLATED_AGAIN(test_never_scarce, at_once, .environment = ORDERED " CUPOOL_BACKEND=nccl CUPOOL_DECAY=0")

READY_CASE(test_gives_frozen, .environment = ORDERED)
{
    assert_true(segment_ops.gives_frozen(context));
    fake.registers = true; /* it may be part of a graph */
    assert_false(segment_ops.gives_frozen(context));
    fake.registers = false;
    atomic_store(&context->defers, false);
    assert_false(segment_ops.gives_frozen(context));
    atomic_store(&context->defers, true);
    context_back(BACKEND_NCCL);
    assert_false(segment_ops.gives_frozen(context));
}

/* --- contexts together --- */

READY_CASE(test_trim, .environment = ORDERED)
{
    const unsigned int before = context_arrivals();
    uint64_t addr;

    assert_false(context_trim(before));
    addr = block(context, 3 * MIB);
    assert_false(context_trim(context_arrivals()));
    assert_int_equal(pool_free(addr), 0);
    assert_true(context_trim(context_arrivals()));
    assert_int_equal(context->arrived, context->given);
    addr = block(context, 3 * MIB);
    assert_int_equal(pool_free(addr), 0);
    fake.streams[0].launched++; /* it does not arrive: it went all the same */
    assert_true(context_trim(context_arrivals()));
    fake.streams[0].over++;
    device_collect(0);
    assert_true(context_trim(context_arrivals() - 1));
    assert_false(context_trim(context_arrivals()));
    fake.parked = MIB;
    assert_true(context_trim(context_arrivals()));
    assert_false(context_trim(context_arrivals()));
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_UNKNOWN, 1);
    assert_false(context_trim(context_arrivals() - 1));
    fake.absent = true;
    assert_false(context_trim(context_arrivals() - 1));
}

ISOLATED_CASE(test_release, .environment = ORDERED)
{
    struct context *context = ready(), *far = pooled(1);
    uint64_t addr = block(context, 3 * MIB), other = block(far, 3 * MIB);

    assert_int_equal(context_release(CONTEXT_ALL, "test"), 0);
    assert_int_equal(pool_free(addr) + pool_free(other), 0);
    atomic_store(&capture_count, 1);
    assert_int_equal(context_release(0, "test"), 0);
    atomic_store(&capture_count, 0);
    assert_int_equal(context_release(0, "test"), 4 * MIB);
    assert_int_equal(context->arrived, 4 * MIB);
    assert_int_equal(far->given, 0);
    assert_int_equal(context_release(CONTEXT_ALL, "test"), 4 * MIB);
    assert_int_equal(far->arrived, 4 * MIB);
    fake.parked = MIB; /* of the function that waits for other threads */
    assert_int_equal(context_release(CONTEXT_ALL, "test"), MIB);
}

ISOLATED_CASE(test_idle_bytes, .environment = ORDERED)
{
    struct context *context = ready(), *second = pooled(4);
    struct pool_survey survey;
    uint64_t addr = block(context, 3 * MIB), other = block(second, 5 * MIB), live;

    live = block(context, 1000);
    assert_int_equal(idle_of(0), 0);
    assert_int_equal(pool_free(addr) + pool_free(other), 0);
    assert_int_equal(idle_of(0), 10 * MIB);
    assert_int_equal(idle_of(1), 0);
    context_survey(0, false, &survey);
    assert_int_equal(survey.live, 1024);
    assert_int_equal(survey.held, 12 * MIB);
    assert_int_equal(survey.segments, 0);
    context_survey(0, true, &survey);
    assert_int_equal(survey.live, 1024);
    assert_int_equal(survey.held, 12 * MIB);
    assert_int_equal(survey.idle, 10 * MIB);
    assert_int_equal(survey.live + survey.pending + survey.idle + survey.holes + survey.withdrawn + survey.skipped +
                         survey.leaving,
                     survey.held);
    assert_int_equal(survey.segments, 1);
    assert_int_equal(survey.largest, 6 * MIB);
    assert_int_equal(pool_free_later(block(context, 3 * MIB)), 0);
    assert_int_equal(pool_withdraw(live), 0);
    context_survey(0, true, &survey);
    assert_true(survey.pending && survey.withdrawn);
    assert_int_equal(survey.live + survey.pending + survey.idle + survey.holes + survey.withdrawn + survey.skipped +
                         survey.leaving,
                     survey.held);
    context_survey(1, true, &survey);
    assert_int_equal(survey.held, 0);
}

/* Blocks that were kept back, and that the device has passed by now. */
ISOLATED_CASE(test_kept_ask, .environment = ORDERED)
{
    struct context *context = ready(), *second = pooled(1);
    const uint64_t addr = block(context, 3 * MIB), other = block(second, 3 * MIB);

    assert_int_equal(pool_free_later(addr) + pool_free_later(other), 0);
    fake.contexts[0].launched = 1;
    fake_log();
    device_publish(0);
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0");
    assert_int_equal(idle_of(0), 0);
    fake.contexts[0].over = 1;
    device_publish(0);
    assert_string_equal(fake_log(), "record:c0,e0 record:c0,e0");
    device_publish(0);
    assert_string_equal(fake_log(), "");
    assert_int_equal(idle_of(0), 4 * MIB);
}

ISOLATED_CASE(test_decay, .environment = ORDERED)
{
    const bool decays = *state == NULL;
    struct context *context = ready();
    const uint64_t addr = block(context, 3 * MIB), kept = block(context, 5 * MIB);

    assert_int_equal(pool_free(addr) + pool_free_later(kept), 0);
    context_decay_all(0);
    context_decay_all(2);
    assert_int_equal(context->given, 0);
    context_decay_all(2);
    context_decay_all(2);
    assert_int_equal(context->given, decays ? 10 * MIB : 0);
    assert_int_equal(context->arrived, context->given);
}
ISOLATED_AGAIN(test_decay, agree, .environment = ORDERED " CUPOOL_BACKEND=nccl", .row = "agree")

/* The rest may have been taken unseen, so the driver is asked at each tick, if there is memory to give back. */
READY_CASE(test_decay_of_a_full_device, .environment = ORDERED)
{
    const uint64_t addr = block(context, 3 * MIB), kept = block(context, 5 * MIB);

    fake.free = FAKE_CAPACITY / 2;
    fake.scripts[FN(cuMemGetInfo_v2)].calls = 0;
    context_decay_all(7);
    assert_int_equal(fake_calls(FN(cuMemGetInfo_v2)), 0);
    assert_int_equal(pool_free(addr) + pool_free_later(kept), 0);
    context_decay_all(7);
    assert_int_equal(context->given, 0);
    fake.free = FAKE_CAPACITY / 128 - 1;
    context_decay_all(7);
    assert_int_equal(context->given, 10 * MIB);
    context_decay_all(7);
    assert_int_equal(context->arrived, context->given);
    assert_int_equal(fake_calls(FN(cuMemGetInfo_v2)), 2);
}

READY_CASE(test_decay_waits, .environment = ORDERED)
{
    const uint64_t addr = block(context, 3 * MIB);

    assert_int_equal(pool_free(addr), 0);
    atomic_store(&context->defers, false); /* it would hold up the program's launches */
    for (unsigned int i = 0; i < 5; i++)
        context_decay_all(1);
    assert_int_equal(idle_of(0), 4 * MIB);
}

/* --- on our own account --- */

READY_CASE(test_write, .environment = ORDERED)
{
    assert_int_equal(context_write(context, 0x1000, 7, 99), 0);
    assert_string_equal(fake_log(), "stream:c0,1 set:0x1000,7,99,s0 sync:s0");
    fake_fail(FN(cuStreamSynchronize), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(context_write(context, 0x1000, 7, 99), -EIO);
    fake_fail(FN(cuMemsetD8Async), CUDA_ERROR_UNKNOWN, 1);
    fake_log();
    assert_int_equal(context_write(context, 0x1000, 7, 99), -EIO);
    assert_string_equal(fake_log(), "set:0x1000,7,99,s0");
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 2);
    assert_int_equal(context_write(context, 0x1000, 7, 99), -EIO);
    atomic_store(&capture_count, 1);
    assert_int_equal(context_write(context, 0x1000, 7, 99), -EIO);
    atomic_store(&capture_count, 0);
    fake_lack(FN(cuMemsetD8Async));
    assert_int_equal(context_write(context, 0x1000, 7, 99), -EIO);
    assert_string_equal(fake_log(), "");
    assert_true(fake_thread_is_clean(fake_context(0)));
}

READY_CASE(test_read, .environment = ORDERED)
{
    unsigned char byte = 0;

    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), 0);
    assert_string_equal(fake_log(), "sync:c0 stream:c0,1 read:0x1000,1,s0 sync:s0");
    assert_int_equal(byte, 0x5a);
    assert_int_equal(context_read(context, 0x1000, &byte, 1, now() + MS), 0);
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0 read:0x1000,1,s0 sync:s0");
    fake.contexts[0].launched = 1;
    assert_int_equal(context_read(context, 0x1000, &byte, 1, now() + MS), -EIO);
    assert_string_equal(fake_log(), "record:c0,e0");
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 2);
    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), -EIO);
    assert_string_equal(fake_log(), "sync:c0 sync:c0");
    fake_fail(FN(cuStreamSynchronize), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), -EIO);
    fake_fail(FN(cuMemcpyDtoHAsync_v2), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), -EIO);
    fake_log();
    atomic_store(&capture_count, 1);
    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), -EIO);
    atomic_store(&capture_count, 0);
    fake_current(fake_context(1));
    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), 0);
    assert_string_equal(fake_log(), "push:c0 sync:c0 pop push:c0 read:0x1000,1,s0 sync:s0 pop");
    assert_true(fake_thread_is_clean(fake_context(1)));
    fake_lack(FN(cuMemcpyDtoHAsync_v2));
    assert_int_equal(context_read(context, 0x1000, &byte, 1, 0), -EIO);
    assert_string_equal(fake_log(), "");
}

static const struct fill {
    const char *environment;
    bool shared, fresh;
    size_t lacks, fails;
    int rc;
    const char *log;
} fills[] = {
    {"CUPOOL_FILL=native", true, false, FNS, FNS, 0, ""}, /* the driver's own comes so */
    {"CUPOOL_FILL=native", false, true, FNS, FNS, 0, ""},
    {"CUPOOL_FILL=native", false, false, FNS, FNS, 1, "stream:c0,1 set:0x1000,0,99,s0"},
    {"CUPOOL_FILL=0x5a", true, true, FNS, FNS, 1, "stream:c0,1 set:0x1000,90,99,s0"},
    {"CUPOOL_FILL=0x5a", false, false, FN(cuMemsetD8Async), FNS, -EIO, "stream:c0,1"},
    {"CUPOOL_FILL=0x5a", false, false, FN(cuStreamSynchronize), FNS, -EIO, "stream:c0,1"},
    {"CUPOOL_FILL=0x5a", false, false, FNS, FN(cuStreamCreate), -EIO, "stream:c0,1"},
    {"CUPOOL_FILL=0x5a", false, false, FNS, FN(cuMemsetD8Async), -EIO, "stream:c0,1 set:0x1000,90,99,s0"},
    {"CUPOOL_FILL=0x5a", false, false, FNS, FN(cuCtxGetCurrent), -EIO, ""},
};

ISOLATED_OWN(test_fill, fills)
{
    const struct fill *row = *state;
    struct context *context = ready();

    if (row->lacks < FNS)
        fake_lack(row->lacks);
    if (row->fails < FNS)
        fake_fail(row->fails, CUDA_ERROR_UNKNOWN, 2);
    assert_int_equal(order_filling_ops.fill(context, 0x1000, 99, row->shared, row->fresh), row->rc);
    assert_string_equal(fake_log(), row->log);
    assert_int_equal(row->rc < 0, strstr(fake.said, "2:memory could not be filled (error ") != NULL);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

static void stream_made(void *arg)
{
    struct context *context = arg;

    fake_before(FN(cuStreamCreate), NULL, NULL);
    atomic_store(&context->stream, fake_stream(5, 0));
}

/* Two threads make it: the first one's is the context's. */
READY_CASE(test_stream_meanwhile, .environment = ORDERED)
{
    fake_before(FN(cuStreamCreate), stream_made, context);
    assert_int_equal(context_write(context, 0x1000, 7, 99), 0);
    assert_string_equal(fake_log(), "stream:c0,1 set:0x1000,7,99,s5 sync:s5");
    assert_ptr_equal(atomic_load(&context->stream), fake_stream(5, 0));
}

/* --- blocks that another process held --- */

static uint64_t held_elsewhere(struct context *context, struct ipc_holder *holder)
{
    const uint64_t addr = block(context, 1000);
    const struct ipc_segment segment = {.addr = addr, .size = MIB, .how = IPC_NATIVE, .fd = -1};
    struct ipc_request request;
    struct ipc_grant granted;
    struct ipc_name name;
    int fd;

    assert_int_equal(ipc_table_add(context, addr, 1024, &segment, &name), 0);
    ipc_request_make(&request, IPC_OPEN, 1, &name);
    ipc_table_grant(holder, &request, &granted, &fd);
    return addr;
}

/* The free waits for work also while a call may be about to end some context. */
READY_CASE(test_freed_beside_an_end)
{
    struct ipc_holder holder = {0};
    const uint64_t addr = held_elsewhere(context, &holder);

    fake.contexts[0].launched = 1;
    atomic_fetch_add(&contexts_closing, 1);
    assert_int_equal(serve_free(addr), SERVE_DONE);
    assert_int_equal(fake.contexts[0].over, 1);
    atomic_fetch_sub(&contexts_closing, 1);
}

/* The context goes while the last holder does: the block leaves the books with nothing freed, and nobody looks for it
 * again and again. */
READY_CASE(test_released_while_it_goes)
{
    struct ipc_holder holder = {0};
    const uint64_t addr = held_elsewhere(context, &holder);

    assert_int_equal(ipc_table_free(addr), IPC_FREE_PARKED);
    ipc_table_end(&holder);
    context_leaving(fake_context(0));
    atomic_store(&context->ending, true);
    serve_ipc_tick(now());
    assert_false(ipc_table_any());
}
