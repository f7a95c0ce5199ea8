/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_beside.c - allocation by other threads while one captures: their calls do no harm to a thread-local or
 * relaxed capture, and the capture none to their order.
 *
 * A capture of a thread of its own, and everything inside a capture, is in capture.c; many captures raced against many
 * threads are in capture_race.c.
 */
#include "capture.h"

/* A thread-local capture does not limit other threads. */
BT_TEST(beside_thread_local)
{
    struct bt_thread t;
    struct cap c;
    char *out;

    TRY(cap_init(&c));
    OK(cudaMalloc((void **)&out, N));
    for (int i = 0; i < 3; i++) {
        TRY(bt_fill(out, N, 0));
        TRY(cap_begin(&c, cudaStreamCaptureModeThreadLocal));
        TRY(bt_thread_start(&t, busy_allocation, out));
        TRY(bt_thread_join(&t));
        TRY(cap_end(&c));
        TRY(bt_verify(out, N, 7));
    }
    OK(cudaFree(out));
    return cap_fini(&c);
}

static int malloc_only(void *arg)
{
    *(int *)arg = (int)cudaMalloc(&(void *){NULL}, N);
    return 0;
}

/* A global capture minds what others do: the answer and the capture's fate agree. */
BT_TEST(beside_global)
{
    struct bt_thread t;
    struct cap c;
    int rc = -1;

    TRY(cap_init(&c));
    TRY(cap_begin(&c, cudaStreamCaptureModeGlobal));
    TRY(bt_thread_start(&t, malloc_only, &rc));
    TRY(bt_thread_join(&t));
    CHECK(rc == 0 || rc == cudaErrorStreamCaptureUnsupported);
    CHECK(rc || bt_preloaded());
    TRY(rc ? cap_end_dead(&c) : cap_end(&c));
    return cap_fini(&c);
}

struct free_call {
    void *p;
    int result, last;
};

static int free_first(void *arg)
{
    struct free_call *call = (struct free_call *)arg;

    call->result = (int)cudaFree(call->p); /* its first call, which gives the thread a context */
    call->last = (int)cudaGetLastError();
    return 0;
}

/* A thread that has no context yet, and frees. */
BT_TEST(beside_global_free)
{
    struct free_call call = {.p = NULL};
    struct bt_thread t;
    struct cap c;

    TRY(cap_init(&c));
    OK(cudaMalloc(&call.p, N));
    OK(cudaDeviceSynchronize());
    TRY(cap_begin(&c, cudaStreamCaptureModeGlobal));
    TRY(bt_thread_start(&t, free_first, &call));
    TRY(bt_thread_join(&t));
    EXPECT(call.last, call.result);
    EXPECT(call.result, bt_preloaded() ? 0 : cudaErrorStreamCaptureUnsupported);
    TRY(call.result ? cap_end_dead(&c) : cap_end(&c));
    if (call.result)
        OK(cudaFree(call.p));
    return cap_fini(&c);
}

struct beside {
    volatile int stop;
};

static int allocate_until(void *arg)
{
    struct beside *b = (struct beside *)arg;
    uint64_t seed = 3;

    while (!__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE)) {
        size_t n = 1 + bt_random(&seed) % 300000;
        void *p;

        OK(cudaMalloc(&p, n));
        OK(cudaMemsetAsync(p, 1, n, cudaStreamPerThread));
        OK(cudaFree(p));
    }
    return 0;
}

/* Captures begin and end while other threads allocate all the time: none is destroyed. */
BT_TEST(under_load)
{
    struct bt_thread t[2];
    struct beside b = {0};
    struct cap c;
    int rc = 0;

    TRY(cap_init(&c));
    for (int i = 0; i < 2; i++)
        TRY(bt_thread_start(&t[i], allocate_until, &b));
    for (int i = 0; i < 60 && !rc; i++) {
        enum cudaStreamCaptureMode mode = i % 2 ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeThreadLocal;

        rc = cap_begin(&c, mode);
        bt_nap(300);
        capturing_change(c.s, NULL);
        if (!rc && cudaStreamEndCapture(c.s, &c.graph))
            rc = BT_FAIL("capture %d was destroyed", i);
        if (!rc)
            cudaGraphDestroy(c.graph);
    }
    __atomic_store_n(&b.stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        TRY(bt_thread_join(&t[i]));
    TRY(rc);
    return cap_fini(&c);
}

/* Nearly always inside a free. */
static int free_until(void *arg)
{
    struct beside *b = (struct beside *)arg;
    void *p;

    while (!__atomic_load_n(&b->stop, __ATOMIC_ACQUIRE)) {
        OK(cudaMalloc(&p, 4096));
        OK(cudaFree(p));
    }
    return 0;
}

/* Threads that have no context when their capture begins, beside threads that free. */
static int capture_once(void *arg)
{
    cudaGraph_t graph;

    OK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(arg, 1, 64, cudaStreamPerThread));
    OK(cudaMemsetAsync(arg, 2, 64, cudaStreamPerThread));
    OK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
    OK(cudaGraphDestroy(graph));
    return 0;
}

BT_TEST(by_new_threads)
{
    struct bt_thread t[2], captor;
    struct beside b = {0};
    int rc = 0;
    void *p;

    OK(cudaMalloc(&p, 64));
    for (int i = 0; i < 2; i++)
        TRY(bt_thread_start(&t[i], free_until, &b));
    for (int i = 0; i < 4000 && !rc; i++) {
        TRY(bt_thread_start(&captor, capture_once, p));
        rc = bt_thread_join(&captor);
    }
    __atomic_store_n(&b.stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        TRY(bt_thread_join(&t[i]));
    TRY(rc);
    OK(cudaFree(p));
    return 0;
}

/* Take the device's memory but for some MiB, and then those. */
static int take_all(void **block, int n)
{
    static const size_t sizes[] = {32 * BT_MIB, 2 * BT_MIB, N};
    size_t avail, total;
    int i = 1;

    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&block[0], avail > BT_GIB / 2 ? avail - BT_GIB / 2 : N));
    for (int k = 0; k < 3; k++) {
        while (i < n && !cudaMalloc(&block[i], sizes[k]))
            i++;
        LAST(cudaErrorMemoryAllocation);
    }
    return 0;
}

/* All memory is in use but a half of what has been one block before. */
BT_TEST(all_but_a_half)
{
    static void *block[1000];
    void *whole, *half[2], *late[2];
    struct cap c;

    TRY(cap_init(&c));
    OK(cudaMalloc(&whole, 16 * BT_MIB));
    OK(cudaFree(whole));
    for (int i = 0; i < 2; i++)
        OK(cudaMalloc(&half[i], 8 * BT_MIB));
    TRY(take_all(block, 1000));
    TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
    OK(cudaFree(half[1]));
    for (int i = 0; i < 2; i++)
        OK(cudaMalloc(&late[i], i ? 4 * BT_MIB : N));
    LAST(cudaSuccess);
    capturing_change(c.s, NULL);
    OK(cudaStreamEndCapture(c.s, &c.graph));
    OK(cudaGraphDestroy(c.graph));
    for (int i = 0; i < 2; i++) {
        TRY(bt_fill(half[0], N, 1));
        TRY(bt_fill(late[i], N, 2));
        TRY(bt_verify(half[0], N, 1));
        OK(cudaFree(late[i]));
    }
    OK(cudaFree(half[0]));
    for (int i = 0; i < 1000; i++)
        OK(cudaFree(block[i]));
    return cap_fini(&c);
}

/* Another thread's free waits for the device, which waits for what the host does once its capture has begun. */
static int free_main(void *p)
{
    OK(cudaFree(p));
    return 0;
}

/* The last test: it makes the device strict. */
BT_TEST(beside_waiting_free)
{
    struct bt_thread t;
    cudaStream_t waiting;
    unsigned int *go;
    struct cap c;
    void *p;

    if (!bt_preloaded())
        SKIP("natively a capture begins when the free is over, so this would never end");
    OK(cudaHostAlloc((void **)&go, 4096, cudaHostAllocMapped)); /* from now on frees wait on the host */
    *go = 0;
    OK(cudaMalloc(&p, 4096));
    OK(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking));
    TRY(cap_init(&c));
    if (cuStreamWaitValue32((CUstream)waiting, BT_ADDRESS(go), 1, CU_STREAM_WAIT_VALUE_GEQ))
        SKIP("this device cannot wait for the host");
    TRY(bt_thread_start(&t, free_main, p));
    bt_nap(100000);
    TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
    capturing_change(c.s, NULL);
    OK(cudaStreamEndCapture(c.s, &c.graph));
    cudaGraphDestroy(c.graph);
    *(volatile unsigned int *)go = 1;
    TRY(bt_thread_join(&t));
    OK(cudaStreamSynchronize(waiting));
    OK(cudaStreamDestroy(waiting));
    OK(cudaFreeHost(go));
    return cap_fini(&c);
}

int main(int argc, char **argv)
{
    cudaFree(NULL);
    bt_cleanup = capturing_end;
    return bt_main(argc, argv);
}
