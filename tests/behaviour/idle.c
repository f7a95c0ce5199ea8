/* SPDX-License-Identifier: Apache-2.0 */
/*
 * idle.c - memory that was freed goes back to the driver, and with it to other processes, CUPOOL_DECAY seconds later at
 * most; ten seconds more are allowed. Giving back harms no capture and hangs no program.
 *
 * idle --child free | take BYTES: the other process, without the preload.
 */
#include "crowd.h"

/* Try until it is right or the time is over. */
static bool comes_true(bool (*right)(void))
{
    const uint64_t end = bt_ns() + (uint64_t)(decay_seconds() + SPARE_S) * 1000000000u;

    do {
        if (right())
            return true;
        bt_nap(100000);
    } while (bt_ns() < end);
    return right();
}

static bool child_takes_most(void)
{
    size_t ignored;

    return child("take", start_child / 10 * 8, &ignored) == 0;
}

BT_TEST(second_process)
{
    size_t ignored;

    if (simulated())
        SKIP("memory counts per process on the simulated GPU");
    TRY(hoard_usual());
    if (!comes_true(child_takes_most))
        return BT_FAIL("another process cannot have 80 %% (exit %d); %zu of %zu MiB are free",
                       child("take", start_child / 10 * 8, &ignored), driver_free() / BT_MIB, start_free / BT_MIB);
    return most_usable();
}

/* The memory that cupool may hold without need. */
static size_t held_max(void)
{
    return 64 * BT_MIB > peak / 20 ? 64 * BT_MIB : peak / 20;
}

static bool child_sees_it_free(void)
{
    size_t avail;

    return child("free", 0, &avail) == 0 && avail + held_max() + SLACK >= start_child;
}

BT_TEST(idle_seen_outside)
{
    if (simulated())
        SKIP("memory counts per process on the simulated GPU");
    TRY(hoard_usual());
    CHECK(comes_true(child_sees_it_free));
    return most_usable();
}

/* --- giving back when idle --- */

static bool mostly_free(void)
{
    return driver_free() + held_max() + SLACK >= start_free;
}

/* Until it is given back, which need not happen, or has been long enough. */
static void idle_wait(void)
{
    const uint64_t end = bt_ns() + (uint64_t)(decay_seconds() + 2) * 1000000000u;

    while (!mostly_free() && bt_ns() < end)
        bt_nap(20000);
}

#define GIVEN_BACK()                                                                                                   \
    do {                                                                                                               \
        if (!comes_true(mostly_free))                                                                                  \
            return BT_FAIL("line %d: %zu of %zu MiB are free after %d s", __LINE__, driver_free() / BT_MIB,            \
                           start_free / BT_MIB, decay_seconds() + SPARE_S);                                            \
    } while (0)

/* Also twice; memory in use stays. */
BT_TEST(idle)
{
    const size_t n = 3 * BT_MIB;
    char *live[8];

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 8; i++) {
            OK(cudaMalloc((void **)&live[i], n));
            TRY(bt_fill(live[i], n, i + 1));
        }
        TRY(hoard_usual());
        GIVEN_BACK();
        for (int i = 0; i < 8; i++) {
            TRY(bt_verify(live[i], n, i + 1));
            OK(cudaFree(live[i]));
        }
        TRY(most_usable());
    }
    return 0;
}

/* cudaFreeAsync of cudaMalloc's memory: one block at a time is used again, many go back. */
BT_TEST(freed_async)
{
    const size_t n = 8 * BT_MIB;
    cudaStream_t stream;
    void *p[40];

    GIVEN_BACK(); /* what other tests have left */
    OK(cudaStreamCreate(&stream));
    for (int together = 1; together <= 40; together += 39) {
        for (int i = 0; i < 40; i += together) {
            for (int j = 0; j < together; j++) {
                OK(cudaMalloc(&p[j], n));
                OK(cudaMemsetAsync(p[j], i, BT_KIB, stream));
            }
            for (int j = 0; j < together; j++)
                OK(cudaFreeAsync(p[j], stream));
            OK(cudaStreamSynchronize(stream));
        }
        CHECK(together > 1 || mostly_free());
    }
    OK(cudaStreamDestroy(stream));
    GIVEN_BACK();
    return 0;
}

static bool mostly_free_beside_work(void)
{
    for (int i = 0; i < 20; i++)
        if (bt_usable(64 * BT_KIB))
            return false;
    return mostly_free();
}

/* The segment in which small blocks come and go is in use; the rest is not. */
BT_TEST(idle_beside_work)
{
    void *neighbour; /* keeps room for them: nothing is given back because a request was refused */

    OK(cudaMalloc(&neighbour, 64 * BT_KIB));
    TRY(hoard_usual());
    CHECK(comes_true(mostly_free_beside_work));
    OK(cudaFree(neighbour));
    return 0;
}

/* Memory is given back while a capture is open, or not: it survives. */
BT_TEST(idle_in_capture)
{
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                                                       cudaStreamCaptureModeRelaxed};
    cudaGraphExec_t exec;
    cudaGraph_t made;
    cudaStream_t s;
    char *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&p, BT_MIB));
    for (int i = 0; i < 3; i++) {
        TRY(hoard_usual());
        OK(cudaStreamBeginCapture(s, modes[i]));
        OK(cudaMemsetAsync(p, i + 5, BT_MIB, s));
        if (bt_preloaded()) /* memory may or may not be given back in here */
            bt_nap((uint64_t)(decay_seconds() + 2) * 1000000);
        OK(cudaMemsetAsync(p, i + 6, BT_KIB, s));
        OK(cudaStreamEndCapture(s, &made));
        OK(cudaGraphInstantiate(&exec, made, 0));
        OK(cudaGraphLaunch(exec, s));
        OK(cudaStreamSynchronize(s));
        TRY(bt_verify(p, BT_KIB, i + 6));
        TRY(bt_verify(p + BT_KIB, BT_MIB - BT_KIB, i + 5));
        OK(cudaGraphExecDestroy(exec));
        OK(cudaGraphDestroy(made));
    }
    OK(cudaStreamDestroy(s));
    OK(cudaFree(p));
    GIVEN_BACK();
    return 0;
}

/* Work that waits for a flag, and its release, launched later. */
struct waiting {
    cudaStream_t waits, sets;
    uint32_t *flag; /* in host memory */
    int done;
};

static int release(void *arg)
{
    struct waiting *w = (struct waiting *)arg;

    OK(cuStreamWriteValue32((CUstream)w->sets, BT_ADDRESS(w->flag), 1, 0));
    OK(cudaStreamSynchronize(w->sets));
    OK(cudaStreamSynchronize(w->waits));
    __atomic_store_n(&w->done, 1, __ATOMIC_RELEASE);
    return 0;
}

/* The driver's free waits for all work, and holds back launches meanwhile: the program has not asked for one here. */
BT_TEST(idle_behind_wait)
{
    struct bt_thread t;
    struct waiting w = {0};
    bool stalled = false;

    OK(cudaStreamCreateWithFlags(&w.waits, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&w.sets, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&w.flag, 4096));
    *w.flag = 0;
    TRY(hoard_usual());
    OK(cuStreamWaitValue32((CUstream)w.waits, BT_ADDRESS(w.flag), 1, CU_STREAM_WAIT_VALUE_EQ));
    idle_wait();
    TRY(bt_thread_start(&t, release, &w));
    for (int i = 0; i < 200 && !__atomic_load_n(&w.done, __ATOMIC_ACQUIRE); i++)
        bt_nap(100000);
    stalled = !__atomic_load_n(&w.done, __ATOMIC_ACQUIRE);
    __atomic_store_n(w.flag, 1, __ATOMIC_SEQ_CST); /* to the rescue */
    TRY(bt_thread_join(&t));
    OK(cudaStreamDestroy(w.waits));
    OK(cudaStreamDestroy(w.sets));
    OK(cudaFreeHost(w.flag));
    CHECK(!stalled);
    GIVEN_BACK();
    return 0;
}
