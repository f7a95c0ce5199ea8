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
