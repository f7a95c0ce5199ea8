/* SPDX-License-Identifier: Apache-2.0 */
/*
 * teardown.c - contexts, threads and captures that end at awkward moments.
 *
 * The tests destroy contexts while other threads allocate, reset without a current context or in the middle of a
 * capture, and do both through pointers that the program looked up itself. The rules of capture are in capture.c,
 * contexts in one thread in contexts.c.
 *
 * The order of the tests matters: see looked_up_reset.
 */
#define BT_BEGIN() alarm(100) /* a hang is a failure, too */
#include "behaviour.h"

#include <stdatomic.h>

#define N         ((size_t)64 << 10)
#define BESIDE_NS 1200000000u

static atomic_bool stop;

/* The driver's functions as programs find them that do not link to it. */
static void *found(const char *name)
{
    static void *driver;

    if (!driver)
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return driver ? dlsym(driver, name) : NULL;
}

#define FOUND(pointer, name)                                                                                           \
    do {                                                                                                               \
        *(void **)&(pointer) = found(name);                                                                            \
        CHECK(pointer);                                                                                                \
    } while (0)

/* Memory of the primary context before and after its reset. The first test: the runtime has not used the context. */
BT_TEST(looked_up_reset)
{
    static const char *const names[] = {"cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"};
    CUresult (*reset)(CUdevice);
    CUdeviceptr p, q;
    CUcontext ctx;
    CUdevice dev;

    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    for (int i = 0; i < 2; i++) {
        FOUND(reset, names[i]);
        OK(cuDevicePrimaryCtxRetain(&ctx, dev));
        OK(cuCtxSetCurrent(ctx));
        OK(cuMemAlloc(&p, N));
        OK(cuMemAlloc(&q, N));
        OK(cuMemFree(q));
        OK(reset(dev));
        OK(cuCtxSetCurrent(NULL));
        OK(cuDevicePrimaryCtxRetain(&ctx, dev));
        OK(cuCtxSetCurrent(ctx));
        EXPECT(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
        for (size_t n = N; n < 32 * N; n *= 4) {
            OK(cuMemAlloc(&p, n));
            OK(cuMemsetD8(p, 1, n)); /* it is this context's */
            OK(cuMemFree(p));
        }
        OK(cuDevicePrimaryCtxRelease(dev));
        OK(cuCtxSetCurrent(NULL));
    }
    return 0;
}

/* Contexts come and go, each with memory of its own, which is freed or goes with the context. */
static int contexts_churn(void)
{
    const uint64_t end = bt_ns() + BESIDE_NS;

    do {
        CUdeviceptr p, q;
        CUcontext ctx;

        TRY(bt_context(&ctx));
        OK(cuMemAlloc(&p, 1000));
        OK(cuMemAlloc(&q, 1000));
        OK(cuMemFree(p));
        OK(cuCtxDestroy(ctx));
    } while (bt_ns() < end);
    return 0;
}

static int beside_contexts(int (*fn)(void *arg), int threads)
{
    struct bt_thread t[4];
    int rc;

    OK(cudaFree(NULL));
    atomic_store(&stop, false);
    for (int i = 0; i < threads; i++)
        TRY(bt_thread_start(&t[i], fn, NULL));
    rc = contexts_churn();
    atomic_store(&stop, true);
    for (int i = 0; i < threads; i++)
        if (bt_thread_join(&t[i]) && !rc)
            rc = 1;
    TRY(rc);
    OK(cudaSetDevice(0)); /* its context is current again */
    return bt_usable(N);
}

static int info_fn(void *arg)
{
    size_t avail, total;

    while (!atomic_load(&stop)) {
        OK(cudaMemGetInfo(&avail, &total));
        CHECK(avail <= total);
    }
    return 0;
}

BT_TEST(info_beside_contexts)
{
    return beside_contexts(info_fn, 3);
}

/* Refused each time: everything that is cached anywhere on the device is looked through before. */
static int refused_fn(void *arg)
{
    void *p;

    while (!atomic_load(&stop)) {
        EXPECT(cudaMalloc(&p, (size_t)1 << 42), cudaErrorMemoryAllocation);
        LAST(cudaErrorMemoryAllocation);
    }
    return 0;
}

BT_TEST(refusals_beside_contexts)
{
    return beside_contexts(refused_fn, 2);
}

/* In a thread that has no current context. The device comes back with the next call. */
static int reset_fn(void *arg)
{
    CUcontext ctx = (CUcontext)1;
    void *p = NULL;

    OK(cuCtxGetCurrent(&ctx));
    CHECK(ctx == NULL);
    OK(cudaDeviceReset());
    OK(cudaFree(NULL));
    for (int i = 0; i < 10; i++) {
        OK(cudaMalloc(&p, 100));
        OK(cudaMemset(p, 1, 100));
        TRY(bt_verify(p, 100, 1));
    }
    OK(cudaFree(p));
    return bt_usable(N);
}

BT_TEST(reset_without_context)
{
    struct bt_thread t;
    void *p, *q;

    OK(cudaMalloc(&p, 100));
    OK(cudaMalloc(&q, 100));
    OK(cudaFree(p));
    TRY(bt_thread_start(&t, reset_fn, NULL));
    TRY(bt_thread_join(&t));
    OK(cudaSetDevice(0));
    return bt_usable(N);
}

/* All of a device's memory but some can be had, after n bytes of it were freed. */
static int freed_is_back(size_t before, size_t n)
{
    size_t avail, total;
    void *p;

    OK(cudaMemGetInfo(&avail, &total));
    if (avail + n / 16 + 8 * BT_MIB < before)
        return BT_FAIL("%zu MiB free after %zu MiB were freed, %zu MiB at first", avail >> 20, n >> 20, before >> 20);
    OK(cudaMalloc(&p, before - before / 16));
    OK(cudaFree(p));
    return 0;
}

/* The capture goes with its device; frees on another one are frees again. */
BT_TEST(reset_while_capturing)
{
    size_t before, total, n = bt_max_mem() / 8;
    cudaStream_t s;
    void *p[6];

    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    OK(cudaFree(NULL));
    OK(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 6; i++)
        OK(cudaMalloc(&p[i], n));
    OK(cudaSetDevice(0));
    TRY(bt_usable(100));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaDeviceReset());
    OK(cudaSetDevice(1));
    for (int i = 0; i < 6; i++)
        OK(cudaFree(p[i]));
    TRY(freed_is_back(before, 6 * n));
    OK(cudaSetDevice(0));
    return bt_usable(N);
}

/* So it does with a context that nothing else was done in. */
BT_TEST(destroy_while_capturing)
{
    size_t before, total, n = bt_max_mem() / 8;
    CUcontext first, second;
    void *p[6];
    CUstream s;

    OK(cudaSetDevice(0));
    OK(cuCtxGetCurrent(&first));
    OK(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 6; i++)
        OK(cudaMalloc(&p[i], n));
    TRY(bt_context(&second)); /* is current now */
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(first));
    for (int i = 0; i < 6; i++)
        OK(cudaFree(p[i]));
    TRY(freed_is_back(before, 6 * n));
    return bt_usable(N);
}

static int capture_and_end_fn(void *arg)
{
    OK(cudaSetDevice(0));
    OK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
    return 0;
}

/* A thread ends before its capture does. At the latest after the next capture its memory is memory again. */
BT_TEST(thread_end_while_capturing)
{
    size_t before, total, n = bt_max_mem() / 2;
    struct bt_thread t;
    cudaGraph_t graph;
    cudaStream_t s;
    void *p, *q;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY(bt_usable(100)); /* the first free waits on the host, beside a capture as well, and keeps nothing back */
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaMalloc(&p, n));
    OK(cudaMalloc(&q, 100));
    TRY(bt_thread_start(&t, capture_and_end_fn, NULL));
    TRY(bt_thread_join(&t));
    OK(cudaFree(p));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(q));
    TRY(freed_is_back(before, n));
    OK(cudaStreamDestroy(s));
    return bt_usable(N);
}

BT_TEST(looked_up_capture)
{
    CUresult (*begin)(CUstream, CUstreamCaptureMode), (*end)(CUstream, CUgraph *);
    CUgraph graph = NULL;
    CUstream s;
    void *p[20];

    FOUND(begin, "cuStreamBeginCapture_v2");
    FOUND(end, "cuStreamEndCapture");
    OK(cudaFree(NULL));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 20; i++)
            OK(cudaMalloc(&p[i], (size_t)(i % 4 ? 100 : 5 << 20)));
        OK(begin(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        for (int i = 0; i < 20; i++)
            OK(cudaFree(p[i]));
        OK(end(s, &graph));
        CHECK(graph);
        OK(cuGraphDestroy(graph));
    }
    OK(cuStreamDestroy(s));
    return bt_usable(N);
}

BT_TEST(looked_up_destroy)
{
    CUresult (*destroy)(CUcontext);
    CUcontext first, second;
    CUdeviceptr p, q, r;

    FOUND(destroy, "cuCtxDestroy_v2");
    OK(cudaFree(NULL));
    OK(cuCtxGetCurrent(&first));
    OK(cuMemAlloc(&p, N));
    for (int i = 0; i < 5; i++) {
        TRY(bt_context(&second));
        OK(cuMemAlloc(&q, N));
        OK(cuMemAlloc(&r, N));
        OK(cuMemFree(r));
        OK(destroy(second));
        OK(cuCtxSetCurrent(first));
        EXPECT(cuMemFree(q), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemFree(r), CUDA_ERROR_INVALID_VALUE);
    }
    OK(cuMemFree(p));
    return bt_usable(N);
}

/* Each reference to a context is given up; it ends with the last one. */
BT_TEST(looked_up_detach)
{
    CUresult (*attach)(CUcontext *, unsigned int), (*detach)(CUcontext);
    CUcontext first, second, same;
    CUdeviceptr p, q, r;

    FOUND(attach, "cuCtxAttach");
    FOUND(detach, "cuCtxDetach");
    OK(cudaFree(NULL));
    OK(cuCtxGetCurrent(&first));
    for (int i = 0; i < 5; i++) {
        TRY(bt_context(&second));
        OK(cuMemAlloc(&p, 1000));
        OK(cuMemAlloc(&q, N));
        OK(cuMemFree(q));
        OK(attach(&same, 0));
        CHECK(same == second);
        OK(detach(second)); /* not the last one */
        OK(cuMemAlloc(&q, N));
        OK(cuMemsetD8(p, 1, 1000));
        OK(cuMemFree(p));
        OK(cuMemAlloc(&r, 1000));
        OK(detach(second));
        OK(cuCtxSetCurrent(first));
        EXPECT(cuMemFree(q), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemFree(r), CUDA_ERROR_INVALID_VALUE);
        OK(cuMemAlloc(&p, N));
        OK(cuMemsetD8(p, 1, N)); /* it is this context's */
        OK(cuMemFree(p));
    }
    return bt_usable(N);
}
