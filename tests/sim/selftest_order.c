/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_order.c - does work run in the order that CUDA promises, and only in that?
 *
 * The tests use streams, default streams, events, context-wide events, and frees that wait; `selftest bench` prints its
 * figures from here. Captures are in selftest_capture.c.
 *
 * Locking: none.
 */
#include "selftest.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 16 };

static unsigned char *pinned;
static void *dev;

static int first_byte(void)
{
    unsigned char b = 0;
    cudaStream_t s;

    /* On a stream of its own, so that looking changes nothing. */
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMemcpyAsync(&b, dev, 1, cudaMemcpyDeviceToHost, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    return b;
}

static void test_async(void)
{
    struct gate g = {0};
    cudaStream_t a, b;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMemset(dev, 1, N));
    OK(cudaDeviceSynchronize());
    /* A held stream does not hold another one, and the host gets past both. */
    OK(cudaLaunchHostFunc(a, gate_hold, &g));
    OK(cudaMemsetAsync(dev, 2, N, a));
    CHECK_EQ(cudaStreamQuery(a), cudaErrorNotReady);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    OK(cudaMemsetAsync(dev, 3, N, b));
    OK(cudaStreamSynchronize(b));
    CHECK_EQ(first_byte(), 3);
    gate_open(&g);
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamQuery(a));
    CHECK_EQ(first_byte(), 2);
    /* Pinned memory is read when the copy runs, pageable memory at the call. */
    unsigned char page[16];
    g.open = 0;
    memset(page, 5, sizeof(page));
    memset(pinned, 5, 16);
    OK(cudaLaunchHostFunc(a, gate_hold, &g));
    OK(cudaMemcpyAsync(dev, page, 16, cudaMemcpyHostToDevice, a));
    OK(cudaMemcpyAsync((char *)dev + 16, pinned, 16, cudaMemcpyHostToDevice, a));
    memset(page, 6, sizeof(page));
    memset(pinned, 6, 16);
    gate_open(&g);
    OK(cudaStreamSynchronize(a));
    unsigned char out[32];
    OK(cudaMemcpy(out, dev, 32, cudaMemcpyDeviceToHost));
    CHECK(out[0] == 5 && out[16] == 6);
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
}

static void test_events(void)
{
    struct gate g = {0};
    cudaStream_t a, b;
    cudaEvent_t e, f;
    float ms = -1;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreate(&e));
    OK(cudaEventCreate(&f));
    OK(cudaEventQuery(e));
    OK(cudaEventRecord(f, a));
    OK(cudaLaunchHostFunc(a, gate_hold, &g));
    OK(cudaMemsetAsync(dev, 10, N, a));
    OK(cudaEventRecord(e, a));
    OK(cudaStreamWaitEvent(b, e, 0));
    OK(cudaMemsetAsync(dev, 11, N, b));
    CHECK_EQ(cudaEventQuery(e), cudaErrorNotReady);
    CHECK_EQ(cudaStreamQuery(b), cudaErrorNotReady);
    nap_ms(5);
    gate_open(&g);
    OK(cudaEventSynchronize(e));
    OK(cudaStreamSynchronize(b));
    CHECK_EQ(first_byte(), 11);
    OK(cudaEventElapsedTime(&ms, f, e));
    CHECK(ms >= 4 && ms < 10000);
    OK(cudaEventDestroy(e));
    OK(cudaEventDestroy(f));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    cudaGetLastError();
}

static void test_legacy(void)
{
    struct gate g = {0}, g2 = {0}, g3 = {0}; /* one each: the last to look at a gate may be late */
    cudaStream_t blk, nb;

    OK(cudaStreamCreate(&blk));
    OK(cudaStreamCreateWithFlags(&nb, cudaStreamNonBlocking));
    /* The legacy stream waits for blocking streams, and they for it; non-blocking ones do not take part. */
    OK(cudaLaunchHostFunc(blk, gate_hold, &g));
    OK(cudaMemsetAsync(dev, 20, N, blk));
    OK(cudaMemsetAsync(dev, 21, N, 0));
    OK(cudaMemsetAsync(dev, 22, N, blk));
    OK(cudaMemsetAsync(dev, 23, N, nb));
    OK(cudaStreamSynchronize(nb));
    CHECK_EQ(first_byte(), 23);
    CHECK_EQ(cudaStreamQuery(0), cudaErrorNotReady);
    CHECK_EQ(cudaStreamQuery(blk), cudaErrorNotReady);
    gate_open(&g);
    OK(cudaStreamSynchronize(blk));
    CHECK_EQ(first_byte(), 22);
    OK(cudaLaunchHostFunc(nb, gate_hold, &g2));
    OK(cudaMemset(dev, 24, N));
    OK(cudaStreamSynchronize(0));
    CHECK_EQ(first_byte(), 24);
    gate_open(&g2);
    /* A per-thread stream is a blocking one. */
    OK(cudaLaunchHostFunc(cudaStreamPerThread, gate_hold, &g3));
    OK(cudaMemsetAsync(dev, 25, N, 0));
    CHECK_EQ(cudaStreamQuery(cudaStreamLegacy), cudaErrorNotReady);
    gate_open(&g3);
    OK(cudaDeviceSynchronize());
    CHECK_EQ(first_byte(), 25);
    OK(cudaStreamDestroy(blk));
    OK(cudaStreamDestroy(nb));
    cudaGetLastError();
}

static void test_context_event(void)
{
    struct gate g = {0}, later = {0};
    cudaStream_t a, b, c;
    cudaEvent_t e;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(cudaLaunchHostFunc(a, gate_hold, &g));
    OK(cudaMemsetAsync(dev, 30, N, a));
    OK(drv.ctx_record(NULL, e));
    /* The record alone holds nobody back. */
    OK(cudaMemsetAsync(dev, 31, N, b));
    OK(cudaStreamSynchronize(b));
    CHECK_EQ(cudaEventQuery(e), cudaErrorNotReady);
    /* After the wait, streams that exist and streams to come wait. */
    OK(drv.ctx_wait(NULL, e));
    OK(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(dev, 32, N / 2, b));
    OK(cudaMemsetAsync((char *)dev + N / 2, 33, 1, c));
    nap_ms(5);
    CHECK_EQ(cudaStreamQuery(b), cudaErrorNotReady);
    CHECK_EQ(cudaStreamQuery(c), cudaErrorNotReady);
    /* Work after the record is not waited for. */
    OK(cudaLaunchHostFunc(c, gate_hold, &later));
    gate_open(&g);
    OK(cudaEventSynchronize(e));
    OK(cudaStreamSynchronize(b));
    CHECK_EQ(first_byte(), 32);
    gate_open(&later);
    OK(cudaDeviceSynchronize());
    /* An event of another device's context. */
    OK(cudaSetDevice(1));
    cudaEvent_t far;
    cudaStream_t fs;
    struct gate fg = {0};
    CUcontext ctx0 = NULL;
    OK(cudaStreamCreate(&fs));
    OK(cudaEventCreate(&far));
    OK(cudaLaunchHostFunc(fs, gate_hold, &fg));
    OK(drv.ctx_record(NULL, far));
    OK(cudaSetDevice(0));
    OK(drv.ctx_current(&ctx0));
    CHECK_EQ(drv.ctx_record(ctx0, far), CUDA_ERROR_INVALID_HANDLE);
    OK(drv.ctx_wait(ctx0, far));
    OK(cudaMemsetAsync(dev, 34, N, a));
    nap_ms(3);
    CHECK_EQ(cudaStreamQuery(a), cudaErrorNotReady);
    gate_open(&fg);
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamDestroy(fs));
    OK(cudaEventDestroy(far));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    OK(cudaStreamDestroy(c));
    OK(cudaEventDestroy(e));
    cudaGetLastError();
}

static void *opener(void *arg)
{
    nap_ms(200);
    gate_open(arg);
    return NULL;
}

static double launched;

static void *launcher(void *arg)
{
    nap_ms(50);
    OK(cudaMemsetAsync((char *)dev + 64, 1, 1, arg));
    launched = now_ms();
    return NULL;
}

static void test_free_waits(void)
{
    struct gate g = {0};
    pthread_t t, l;
    cudaStream_t nb;
    void *p, *q;

    OK(cudaStreamCreateWithFlags(&nb, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 256));
    OK(cudaLaunchHostFunc(nb, gate_hold, &g));
    OK(cudaMalloc(&q, 1 << 20)); /* does not wait, or this would hang */
    OK(cudaSetDevice(1));        /* nor does a free on an idle device */
    void *r;
    OK(cudaMalloc(&r, 256));
    OK(cudaFree(r));
    double t0 = now_ms();
    pthread_create(&t, NULL, opener, &g);
    pthread_create(&l, NULL, launcher, nb);
    OK(cudaFree(p)); /* device 0's, while 1 is current */
    CHECK(now_ms() - t0 > 190);
    pthread_join(t, NULL);
    pthread_join(l, NULL);
    CHECK(launched - t0 > 190); /* the other thread's launch stalled meanwhile */
    OK(cudaSetDevice(0));
    OK(cudaFree(q));
    OK(cudaStreamDestroy(nb));
}

static void *stress(void *arg)
{
    unsigned seed = (unsigned)(uintptr_t)arg;
    cudaStream_t s[3];
    unsigned char *h;
    void *p;

    OK(cudaMallocHost((void **)&h, 4096));
    for (int i = 0; i < 3; i++)
        OK(cudaStreamCreateWithFlags(&s[i], i ? cudaStreamNonBlocking : 0));
    for (int round = 0; round < 150; round++) {
        unsigned char v = (unsigned char)rand_r(&seed);
        cudaStream_t at = s[rand_r(&seed) % 3];
        size_t bad = 0;
        OK(cudaMalloc(&p, 4096));
        OK(cudaMemsetAsync(p, v, 4096, at));
        OK(cudaMemcpyAsync(h, p, 4096, cudaMemcpyDeviceToHost, at));
        OK(cudaFree(p)); /* waits, so h is there */
        for (int i = 0; i < 4096; i++)
            bad += h[i] != v;
        CHECK(bad == 0);
    }
    for (int i = 0; i < 3; i++)
        OK(cudaStreamDestroy(s[i]));
    OK(cudaFreeHost(h));
    return NULL;
}

void test_order(void)
{
    pthread_t t[4];

    OK(cudaMalloc(&dev, N));
    OK(cudaMallocHost((void **)&pinned, N));
    test_async();
    test_events();
    test_legacy();
    test_context_event();
    test_free_waits();
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, stress, (void *)(i + 1));
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    OK(cudaFree(dev));
    OK(cudaFreeHost(pinned));
}

static double per_op_us(double t0, int n)
{
    return (now_ms() - t0) * 1e3 / n;
}

void bench(void)
{
    enum { OPS = 200000, PAIRS = 500000 };
    cudaStream_t s;
    cudaEvent_t e;
    CUcontext ctx;
    void *p;

    OK(cudaMalloc(&p, 4096));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(drv.ctx_current(&ctx));
    double t0 = now_ms();
    for (int i = 0; i < OPS; i++)
        cudaMemsetAsync(p, i, 64, s);
    cudaStreamSynchronize(s);
    double us = per_op_us(t0, OPS);
    printf("memsetAsync, one stream: %.2f us each, %.0f k/s\n", us, 1e3 / us);
    t0 = now_ms();
    for (int i = 0; i < PAIRS; i++) {
        drv.ctx_record(ctx, e);
        drv.ctx_wait(ctx, e);
    }
    printf("context record + wait, idle: %.3f us\n", per_op_us(t0, PAIRS));
    struct gate g = {0};
    cudaStream_t many[64];
    for (int i = 0; i < 64; i++) {
        cudaStreamCreateWithFlags(&many[i], cudaStreamNonBlocking);
        cudaMemsetAsync(p, i, 64, many[i]);
    }
    cudaLaunchHostFunc(s, gate_hold, &g);
    t0 = now_ms();
    for (int i = 0; i < PAIRS; i++) {
        drv.ctx_record(ctx, e);
        drv.ctx_wait(ctx, e);
    }
    printf("context record + wait, 65 streams, one busy: %.3f us\n", per_op_us(t0, PAIRS));
    gate_open(&g);
    cudaDeviceSynchronize();
    t0 = now_ms();
    for (int i = 0; i < OPS; i++) {
        cudaMemsetAsync(p, i, 64, many[i % 64]);
        drv.ctx_record(ctx, e);
        drv.ctx_wait(ctx, e);
    }
    cudaDeviceSynchronize();
    printf("memsetAsync round 64 streams + record + wait: %.2f us each\n", per_op_us(t0, OPS));
    t0 = now_ms();
    for (int i = 0; i < OPS; i++) {
        void *q;
        cudaMalloc(&q, 1000);
        cudaFree(q);
    }
    printf("cudaMalloc + cudaFree, idle: %.2f us\n", per_op_us(t0, OPS));
    t0 = now_ms();
    for (int i = 0; i < OPS / 20; i++) {
        cudaMemsetAsync(p, i, 64, s);
        cudaStreamSynchronize(s);
    }
    printf("memsetAsync + synchronize: %.2f us\n", per_op_us(t0, OPS / 20));
}
