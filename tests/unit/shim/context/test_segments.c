/* SPDX-License-Identifier: Apache-2.0 */
/* test_segments.c - shim/context/segment_driver.c: where segments come from, how they go back through a stream of our
 * own, and how long their arrival is waited for. */
#include "context/own_stream.h"
#include "ready.h"

#define FIRST   UINT64_C(0x7f0000000000) /* the first allocation */
#define SEGMENT (2 * MIB)

/* --- what the device can do --- */

/* As context_idle_bytes, without what is used. */
static uint64_t idle_of(int device)
{
    uint64_t used;

    return context_idle_bytes(device, &used);
}

ISOLATED_CASE(test_defers, .environment = ORDERED)
{
    static const size_t needed[] = {FN(cuMemFreeAsync), FN(cuStreamQuery), FN(cuStreamSynchronize),
                                    FN(cuDeviceGetAttribute)};

    fake_start();
    assert_true(cuda_memory_defers(&fake.driver, 0));
    assert_false(cuda_memory_defers(&fake.driver, 1)); /* there is no such device */
    fake_fail(FN(cuDeviceGetAttribute), CUDA_ERROR_UNKNOWN, 1);
    assert_true(cuda_memory_defers(&fake.driver, 0));
    fake_fail(FN(cuDeviceGetAttribute), CUDA_ERROR_UNKNOWN, 2);
    assert_false(cuda_memory_defers(&fake.driver, 0));
    fake.pools = false;
    assert_false(cuda_memory_defers(&fake.driver, 0));
    for (size_t i = 0; i < COUNT(needed); i++) {
        fake_start();
        fake_lack(needed[i]);
        assert_false(cuda_memory_defers(&fake.driver, 0));
    }
}

/* --- a segment comes --- */

READY_CASE(test_comes, .environment = ORDERED)
{
    uint64_t addr = 0;

    fake.free = 100 * MIB;
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, 4 * MIB, &addr), 0);
    assert_int_equal(addr, FIRST);
    assert_string_equal(fake_log(), "alloc:c0,4194304");
    assert_int_equal(context->device_free, 96 * MIB);
    assert_int_equal(fake.clocks, 1);
    fake_fail(FN(cuMemGetInfo_v2), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, 4 * MIB, &addr), 0);
    assert_int_equal(context->device_free, 96 * MIB);
    fake.next += 512; /* not as the pool needs it */
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), -EIO);
    assert_string_equal(fake_log(), "alloc:c0,4194304 alloc:c0,2097152 stream:c0,1 free:0x7f0000800200,s0");
    assert_non_null(strstr(fake.said, "2:the driver's memory is not aligned to 2 MiB"));
    assert_int_equal(fake.clocks, 2);
}

READY_CASE(test_refused, .environment = ORDERED)
{
    uint64_t addr = 1;

    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), -ENOMEM);
    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), -EIO);
    assert_int_equal(addr, 1);
    assert_string_equal(fake_log(), "alloc:c0,2097152 alloc:c0,2097152");
    assert_int_equal(fake.clocks, 0);
}

static void arrives(void *arg)
{
    if (fake_calls(FN(cuMemAlloc_v2)) == 1)
        context_arrived();
}

/* Asked again: memory has arrived meanwhile, or another context of the device had some. */
ISOLATED_CASE(test_refused_again, .environment = ORDERED)
{
    struct context *context = ready(), *other = pooled(4), *far = pooled(1);
    uint64_t addr = 0, idle[3] = {block(other, 3 * MIB), block(context, 3 * MIB), block(far, 3 * MIB)};

    fake.scripts[FN(cuMemAlloc_v2)].calls = 0;
    fake_before(FN(cuMemAlloc_v2), arrives, NULL);
    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), 0);
    fake_before(FN(cuMemAlloc_v2), NULL, NULL);
    for (unsigned int i = 0; i < 3; i++)
        assert_int_equal(pool_free(idle[i]), 0);
    fake_log();
    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), 0);
    /* Not its own: the pool does that; nor another device's. */
    assert_string_equal(fake_log(), "alloc:c0,2097152 push:c4 stream:c4,1 free:0x7f0000000000,s0 pop push:c4 pop "
                                    "push:c4 sync:s0 pop push:c4 pop alloc:c0,2097152");
    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY, 2);
    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), -ENOMEM);
}

/* --- and goes --- */

static uint64_t segment(struct context *context)
{
    uint64_t addr = 0;

    assert_int_equal(segment_ops.alloc(context, BACKEND_CUDA, SEGMENT, &addr), 0);
    return addr;
}

READY_CASE(test_goes, .environment = ORDERED)
{
    const uint64_t first = segment(context), second = segment(context);
    const size_t before = context->device_free;
    const unsigned int arrivals = context_arrivals();
    size_t arriving = 1;

    fake_log();
    assert_true(segment_ops.collected(context, &arriving));
    assert_int_equal(arriving, 0);
    segment_ops.free(context, BACKEND_CUDA, first, SEGMENT);
    assert_string_equal(fake_log(), "stream:c0,1 free:0x7f0000000000,s0");
    assert_int_equal(context->device_free, before + SEGMENT);
    assert_int_equal(context->given, SEGMENT);
    fake.streams[0].launched = 1; /* behind other work */
    assert_false(segment_ops.collected(context, &arriving));
    assert_int_equal(arriving, SEGMENT);
    assert_int_equal(idle_of(0), SEGMENT);
    assert_int_equal(context_arrivals(), arrivals);
    fake_current(fake_context(1));
    segment_ops.free(context, BACKEND_CUDA, second, SEGMENT);
    assert_string_equal(fake_log(), "push:c0 free:0x7f0000200000,s0 pop");
    fake_current(fake_context(0));
    fake.streams[0].over = 1;
    assert_true(segment_ops.collected(context, &arriving));
    assert_string_equal(fake_log(), "sync:s0");
    assert_int_equal(arriving, 0);
    assert_int_equal(context->arrived, 2 * SEGMENT);
    assert_int_equal(context_arrivals(), arrivals + 1);
    assert_true(segment_ops.collected(context, &arriving)); /* once */
    assert_string_equal(fake_log(), "");
    segment_ops.free(context, BACKEND_CUDA, segment(context), SEGMENT);
    fake.streams[0].launched = 2;
    assert_false(segment_ops.collected(context, &arriving));
    assert_int_equal(arriving, SEGMENT);
    assert_string_equal(fake.said, "");
}

/* Peers may still write into registered memory: the host waits, and what cannot be waited for stays. */
READY_CASE(test_goes_registered, .environment = ORDERED)
{
    const uint64_t first = segment(context), second = segment(context);

    fake_log();
    fake.registers = true;
    segment_ops.free(context, BACKEND_CUDA, first, SEGMENT);
    assert_string_equal(fake_log(), "sync:c0 stream:c0,1 free:0x7f0000000000,s0");
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_LAUNCH_FAILED, 2);
    segment_ops.free(context, BACKEND_CUDA, second, SEGMENT);
    assert_string_equal(fake_log(), "sync:c0 sync:c0");
    assert_non_null(strstr(fake.said, "are not given back"));
}

/* Whether a thread would be waited for whose context goes. */
static void *is_waited_for(void *arg)
{
    fake.relaxes = busy(arg, /* sleepers: */ false);
    assert_true(busy(arg, /* sleepers: */ true));
    return NULL;
}

/* Another thread asks: a thread's own calls do not count for it. */
static void meanwhile(void *arg)
{
    elsewhere(is_waited_for, arg);
}

/* Where there is no stream the driver's own free is made, which waits: a context may go beside it. */
static const struct put {
    bool pools;
    size_t lacks, fails;
    CUresult error;
    const char *log, *said;
    bool defers;
    bool once; /* it fails once, and not each of the two times that it is asked */
} puts_of[] = {
    {false, FNS, FNS, 0, "free:0x7f0000000000", "", false, false},
    {true, FN(cuStreamCreate), FNS, 0, "free:0x7f0000000000", "", true, false},
    {true, FNS, FN(cuStreamCreate), CUDA_ERROR_UNKNOWN, "stream:c0,1 free:0x7f0000000000", "", true, false},
    {true, FNS, FN(cuMemFreeAsync), CUDA_ERROR_NOT_SUPPORTED,
     "stream:c0,1 free:0x7f0000000000,s0 free:0x7f0000000000,s0 free:0x7f0000000000", "", false, false},
    {true, FNS, FN(cuMemFreeAsync), CUDA_ERROR_ILLEGAL_ADDRESS,
     "stream:c0,1 free:0x7f0000000000,s0 free:0x7f0000000000", "", false, true},
    {true, FNS, FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, "free:0x7f0000000000", "", true, false},
    {true, FNS, FN(cuPointerGetAttribute), CUDA_ERROR_UNKNOWN, "stream:c0,1 free:0x7f0000000000", "", true, false},
    {false, FNS, FN(cuMemFree_v2), CUDA_ERROR_UNKNOWN, "free:0x7f0000000000 free:0x7f0000000000",
     "2:the driver did not take back 2097152 bytes at 0x7f0000000000 (error 999)\n", false, false},
    {false, FNS, FN(cuMemFree_v2), CUDA_ERROR_NOT_PERMITTED, "free:0x7f0000000000 free:0x7f0000000000", "", false,
     true}, /* it would be lost */
    {false, FNS, FN(cuMemFree_v2), CUDA_ERROR_ILLEGAL_ADDRESS, "free:0x7f0000000000",
     "2:the driver did not take back 2097152 bytes at 0x7f0000000000 (error 700)\n", false, true},
    {false, FNS, FN(cuMemFree_v2), CUDA_ERROR_DEINITIALIZED, "free:0x7f0000000000 free:0x7f0000000000", "", false,
     false},
};

ISOLATED_ROWS(test_put, puts_of, .environment = ORDERED)
{
    const struct put *row = *state;
    struct context *context;
    unsigned int arrivals;
    uint64_t addr;

    fake.pools = row->pools;
    context = pooled(0);
    addr = segment(context);
    arrivals = context_arrivals();
    fake_log();
    if (row->lacks < FNS)
        fake_lack(row->lacks);
    if (row->fails < FNS)
        fake_fail(row->fails, row->error, row->once ? 1 : 2);
    fake_before(FN(cuMemFree_v2), meanwhile, context);
    pin_begin((uintptr_t)context);
    segment_ops.free(context, BACKEND_CUDA, addr, SEGMENT);
    assert_string_equal(fake_log(), row->log);
    assert_string_equal(fake.said, row->said);
    assert_int_equal(fake.relaxes, 0);
    assert_int_equal(context_arrivals(), arrivals + 1);
    assert_int_equal(context->given, 0);
    assert_int_equal(context->defers, row->defers);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

/* Of a failure nothing remains: otherwise no memory could go back while a stream captures. */
READY_CASE(test_put_fails_once, .environment = ORDERED)
{
    const uint64_t addr = segment(context);

    fake_log();
    fake_fail(FN(cuMemFreeAsync), CUDA_ERROR_UNKNOWN, 1);
    segment_ops.free(context, BACKEND_CUDA, addr, SEGMENT);
    assert_string_equal(fake_log(), "stream:c0,1 free:0x7f0000000000,s0 free:0x7f0000000000,s0");
    assert_int_equal(context->given, SEGMENT);
    assert_true(context->defers && segment_ops.gives_frozen(context));
}

/* --- what went has arrived --- */

static void stream_moves(void *arg)
{
    fake.streams[0].over += *(uint64_t *)arg;
}

static uint64_t moves = 1;

static struct context *with_gone(uint64_t work)
{
    struct context *context = ready();

    segment_ops.free(context, BACKEND_CUDA, segment(context), SEGMENT);
    fake.streams[0].launched = work;
    fake.relax = stream_moves;
    fake.relax_arg = &moves;
    fake_log();
    return context;
}

/* A request waits for its own thread's frees for half a minute, for other threads' frees much shorter, and after a wait
 * in vain only briefly. */
static const struct arrival {
    bool others;
    uint64_t work; /* milliseconds until the stream is there */
    uint64_t waits[2];
} arrivals_of[] = {
    {false, 20, {20, 0}}, {false, 29000, {29000, 0}}, {false, 60000, {30000, 30}},
    {true, 20, {20, 0}},  {true, 300, {300, 0}},      {true, 5000, {300, 30}},
};

ISOLATED_ROWS(test_collect, arrivals_of, .environment = ORDERED)
{
    const struct arrival *row = *state;
    struct context *context = with_gone(row->work);
    uint64_t start;

    if (row->others)
        elsewhere(free_one, context);
    for (unsigned int i = 0; i < 2; i++) {
        start = now();
        segment_ops.collect(context);
        assert_int_equal(now() - start, row->waits[i] * MS);
    }
    assert_int_equal(context->arrived, row->waits[1] ? 0 : SEGMENT);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

ISOLATED_CASE(test_collect_since, .environment = ORDERED)
{
    struct context *context = with_gone(5000);
    uint64_t start;

    elsewhere(free_one, context);
    segment_ops.collect(context);
    segment_ops.free(context, BACKEND_CUDA, segment(context), SEGMENT); /* more went: it may be another's */
    start = now();
    segment_ops.collect(context);
    assert_int_equal(now() - start, 300 * MS);
}

ISOLATED_CASE(test_collect_own_after_others, .environment = ORDERED)
{
    struct context *context = with_gone(5000);
    uint64_t start;

    elsewhere(free_one, context);
    segment_ops.collect(context); /* in vain */
    free_one(context);
    start = now();
    segment_ops.collect(context);
    assert_int_equal(now() - start, 4700 * MS);
    assert_int_equal(context->arrived, SEGMENT);
}

/* A stream that could not be queried was not waited for: the next request waits as long as the first would have. */
ISOLATED_CASE(test_collect_after_capture, .environment = ORDERED)
{
    struct context *context = with_gone(5000);
    uint64_t start = now();

    fake_lack(FN(cuThreadExchangeStreamCaptureMode));
    atomic_store(&capture_count, 1);
    segment_ops.collect(context);
    assert_int_equal(now(), start);
    atomic_store(&capture_count, 0);
    segment_ops.collect(context);
    assert_int_equal(now() - start, 5000 * MS);
    assert_int_equal(context->arrived, SEGMENT);
}

/* At the bound: one's own frees', and others' only once their work is over, while the driver takes a moment. */
ISOLATED_CASE(test_reclaim, .environment = ORDERED)
{
    struct context *context = with_gone(60000);
    uint64_t start = now();

    segment_ops.reclaim(context);
    assert_int_equal(now() - start, 30 * SECOND_NS);
    fake.contexts[0].launched = 1;
    elsewhere(free_one, context);
    start = now();
    segment_ops.reclaim(context);
    assert_int_equal(now(), start);
    fake.contexts[0].over = 1;
    segment_ops.reclaim(context);
    assert_int_equal(now() - start, 30 * MS);
}

static void other_frees(void *arg)
{
    stream_moves(&moves);
    if (fake.relaxes == 8)
        elsewhere(free_one, arg);
}

/* Another thread frees meanwhile: its work, which this thread's free natively would hold up, is on the stream then. */
ISOLATED_CASE(test_reclaim_until_others_come, .environment = ORDERED)
{
    struct context *context = with_gone(60000);
    uint64_t start = now();

    fake.relaxes = 0;
    fake.relax = other_frees;
    fake.relax_arg = context;
    segment_ops.reclaim(context);
    assert_int_equal(now() - start, 8 * MS);
    free_one(context);
    fake.relaxes = 0;
    start = now();
    segment_ops.collect(context); /* as for memory of others from then on */
    assert_int_equal(now() - start, 8 * MS + 300 * MS);
}

/* A thread that is about to put work on the stream has to be through before the stream is synchronised, and waits for
 * those who do that, but not for ever. */
ISOLATED_CASE(test_nobody_synchronises_others_work, .environment = ORDERED)
{
    struct context *context = with_gone(0);
    uint64_t start;

    own_stream_busy_begin(context);
    device_collect(0);
    assert_int_equal(context->arrived, 0);
    own_stream_busy_end(context);
    device_collect(0);
    assert_int_equal(context->arrived, SEGMENT);
    atomic_store(&context->syncing, 1);
    start = now();
    own_stream_busy_begin(context);
    assert_int_equal(now() - start, 300 * MS);
    assert_int_equal(context->streaming, 1);
    own_stream_busy_end(context);
    assert_int_equal(context->streaming, 0);
    atomic_store(&context->syncing, 0);
}

static unsigned int syncing_for;

static void other_is_through(void *arg)
{
    struct context *context = arg;

    stream_moves(&moves);
    if (--syncing_for == 0)
        atomic_store(&context->syncing, 0);
}

/* A thread that synchronises gives the memory back meanwhile: to a second one it has not arrived yet. */
ISOLATED_CASE(test_threads_synchronise_by_turns, .environment = ORDERED)
{
    struct context *context = with_gone(0);
    uint64_t start = now();

    atomic_store(&context->syncing, 1);
    syncing_for = 50;
    fake.relax = other_is_through;
    fake.relax_arg = context;
    device_collect(0);
    assert_int_equal(now() - start, 50 * MS);
    assert_int_equal(context->arrived, SEGMENT);
    context = with_gone(0);
    atomic_store(&context->syncing, 1); /* for ever: it has been cancelled */
    syncing_for = 1000;
    start = now();
    device_collect(0);
    assert_int_equal(now() - start, 300 * MS);
    assert_int_equal(context->arrived, 2 * SEGMENT);
}

ISOLATED_CASE(test_collect_refused, .environment = ORDERED)
{
    struct context *context = with_gone(0);

    atomic_store(&capture_count, 1);
    fake_lack(FN(cuThreadExchangeStreamCaptureMode)); /* it would disturb a capture */
    device_collect(0);
    assert_string_equal(fake_log(), "");
    atomic_store(&capture_count, 0);
    fake_fail(FN(cuStreamSynchronize), CUDA_ERROR_UNKNOWN, 1);
    device_collect(0);
    assert_int_equal(context->arrived, 0);
    fake_fail(FN(cuStreamQuery), CUDA_ERROR_UNKNOWN, 1);
    device_collect(0); /* it cannot be asked, and nobody is to wait */
    assert_string_equal(fake_log(), "sync:s0");
    fake_fail(FN(cuStreamQuery), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(device_yield(0, now()), 0); /* nor any longer */
    assert_string_equal(fake_log(), "");
    fake_fail(FN(cuStreamQuery), CUDA_ERROR_UNKNOWN, 1);
    segment_ops.collect(context); /* here somebody does */
    assert_string_equal(fake_log(), "sync:s0");
    assert_int_equal(context->arrived, SEGMENT);
}

static void context_ends(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 7)
        atomic_store(&context->ending, true);
}

ISOLATED_CASE(test_collect_context_goes, .environment = ORDERED)
{
    struct context *context = with_gone(100);

    fake.relax = context_ends;
    fake.relax_arg = context;
    segment_ops.collect(context);
    assert_int_equal(fake.relaxes, 7);
}

ISOLATED_CASE(test_settle_device, .environment = ORDERED)
{
    struct context *context = with_gone(0);

    pooled(1);
    fake_log();
    device_collect(1);
    assert_int_equal(context->arrived, 0);
    device_collect(0);
    assert_int_equal(context->arrived, SEGMENT);
    fake.streams[0].launched = 9;
    segment_ops.free(context, BACKEND_CUDA, segment(context), SEGMENT);
    fake.relaxes = 0;
    device_collect(0);
    assert_int_equal(fake.relaxes, 0);
    assert_int_equal(context->arrived, SEGMENT);
}
