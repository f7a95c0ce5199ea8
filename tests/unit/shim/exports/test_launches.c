/* SPDX-License-Identifier: Apache-2.0 */
/* test_launches.c - shim/exports/watch.c and hazards.c: what the driver is asked around a call that launches work. */
#include "base/process.h"
#include "context/ready.h"
#include "exports/hazards.h"

static bool runs; /* the work; another thread may destroy the stream */

static int next_launch(void)
{
    runs = true;
    return 0;
}

static void asked_about_stream(void *arg)
{
    assert_false(runs);
}

#define LAUNCHES(EACH)                                                                                                 \
    EACH(cuMemcpyAsync, (0x1000, 0x2000, 8, s))                                                                        \
    EACH(cuMemcpyDtoHAsync_v2, (NULL, 0x1000, 8, s))                                                                   \
    EACH(cuMemcpyHtoAAsync_v2, (NULL, 0, NULL, 8, s))                                                                  \
    EACH(cuMemcpy2DAsync_v2, (&(CUDA_MEMCPY2D){.dstMemoryType = CU_MEMORYTYPE_HOST}, s))                               \
    EACH(cuMemcpy3DAsync_v2, (&(CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_UNIFIED, .dstDevice = 0x1000}, s))       \
    EACH(cuMemcpyBatchAsync_v2, (NULL, NULL, NULL, 1, NULL, NULL, 0, s))                                               \
    EACH(cuMemcpy3DBatchAsync_v2, (0, NULL, 0, s))                                                                     \
    EACH(cuMemsetD8Async, (0x1000, 0, 8, s))                                                                           \
    EACH(cuLaunchHostFunc, (s, NULL, NULL))                                                                            \
    EACH(cuGraphLaunch, (NULL, s))
#define CALL(symbol, arguments)                                                                                        \
    static int call_##symbol(CUstream s)                                                                               \
    {                                                                                                                  \
        return (int)symbol arguments;                                                                                  \
    }
LAUNCHES(CALL)

static const struct launch {
    enum real_symbol symbol;
    int (*call)(CUstream stream);
} launches[] = {
#define ROW(symbol, arguments) {REAL_##symbol, call_##symbol},
    LAUNCHES(ROW)};

/* The driver crashes when it is asked about a stream that another thread destroys, for example once the work runs. */
ISOLATED_ROWS(test_launch, launches)
{
    const struct launch *row = *state;
    struct context *context = ready();
    const CUstream stream = fake_stream(0, 0);
    uint64_t debts;

    fake.devices = 1;
    hazard_graph_node();
    capture_begun(capture_begin(fake_stream(1, 0)), fake_stream(1, 0), true);
    hazard_context_wait_end(NULL, hazard_context_wait_begin(NULL));
    fake.scripts[FN(cuStreamGetCtx)].calls = fake.scripts[FN(cuStreamIsCapturing)].calls = 0;
    fake_before(FN(cuStreamGetCtx), asked_about_stream, NULL);
    fake_before(FN(cuStreamIsCapturing), asked_about_stream, NULL);
    fake.next_of[row->symbol] = (void *)next_launch;
    assert_int_equal(row->call(stream), 0);
    assert_true(runs && policy_waits(&context->policy, &debts));
    assert_int_equal(fake_calls(FN(cuStreamGetCtx)), 1);
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 1);
}

/* The driver's: each event has another handle than those before. */
static uintptr_t events_made;

static CUresult next_event_create(CUevent *event, unsigned int flags)
{
    *event = (CUevent)(0x10000 + 64 * events_made++);
    return CUDA_SUCCESS;
}

static CUresult next_event_call(void)
{
    return CUDA_SUCCESS;
}

static bool waits_behind(struct context *context, CUevent event)
{
    const CUstream stream = fake_stream(0, 0);
    uint64_t debts;

    hazard_context_wait_end(NULL, hazard_context_wait_begin(NULL));
    assert_int_equal(cuStreamWaitEvent(stream, event, 0), 0);
    return policy_waits(&context->policy, &debts);
}

/* However many events come and go, one that stays is known, and the handle of one that has gone is not: it may be that
 * of another device's by now. */
ISOLATED_CASE(test_events_that_go)
{
    struct context *context = ready();
    CUevent stays, goes;

    fake.devices = 2;
    fake.next_of[REAL_cuEventCreate] = (void *)next_event_create;
    fake.next_of[REAL_cuEventDestroy] = fake.next_of[REAL_cuEventDestroy_v2] = (void *)next_event_call;
    fake.next_of[REAL_cuStreamWaitEvent] = (void *)next_event_call;
    assert_int_equal(cuEventCreate(&stays, 0), 0);
    for (int i = 0; i < 100000; i++) {
        assert_int_equal(cuEventCreate(&goes, 0), 0);
        assert_false(i % 1000 == 0 && waits_behind(context, goes));
        assert_int_equal(i % 2 ? cuEventDestroy(goes) : cuEventDestroy_v2(goes), 0);
    }
    assert_false(waits_behind(context, stays));
    assert_true(waits_behind(context, goes));
}

/* A wait for another device's event may draw a stream into a capture: from then on a launched graph may be one of
 * several devices. */
ISOLATED_CASE(test_capture_of_several_devices)
{
    struct context *context = ready();
    uint64_t debts;

    fake.devices = 2;
    fake.next_of[REAL_cuStreamWaitEvent] = fake.next_of[REAL_cuGraphLaunch] = (void *)next_event_call;
    assert_true(waits_behind(context, (CUevent)0x10000));
    hazard_context_wait_end(NULL, hazard_context_wait_begin(NULL));
    assert_int_equal(cuGraphLaunch(NULL, fake_stream(0, 0)), 0);
    assert_false(policy_waits(&context->policy, &debts));
    capture_begun(capture_begin(fake_stream(1, 0)), fake_stream(1, 0), true);
    assert_true(waits_behind(context, (CUevent)0x10000));
    hazard_context_wait_end(NULL, hazard_context_wait_begin(NULL));
    assert_int_equal(cuGraphLaunch(NULL, fake_stream(0, 0)), 0);
    assert_true(policy_waits(&context->policy, &debts));
}
