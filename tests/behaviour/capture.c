/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - allocation around and inside stream capture, in one thread.
 *
 * Captures survive what they natively survive, graphs replay the right bytes, and after a capture that failed
 * everything works again. In a global-mode capture a cudaMalloc natively fails with 900 and destroys the capture;
 * served from a cache it may succeed: then the capture has to survive as well. Other threads are in capture_beside.c.
 * Frees of memory that a captured graph still uses are wrong natively, too, and not here.
 */
#include "capture.h"

typedef const enum cudaStreamCaptureMode mode_arg;

static int around(const void *mode)
{
    struct cap c;
    void *p, *q;

    TRY(cap_init(&c));
    OK(cudaMalloc(&p, N));
    OK(cudaMalloc(&q, N));
    OK(cudaFree(p));
    TRY(cap_begin(&c, *(mode_arg *)mode));
    TRY(cap_end(&c));
    OK(cudaFree(q));
    return cap_fini(&c);
}
BT_ROW(around_global, around, &(mode_arg){cudaStreamCaptureModeGlobal})
BT_ROW(around_thread_local, around, &(mode_arg){cudaStreamCaptureModeThreadLocal})
BT_ROW(around_relaxed, around, &(mode_arg){cudaStreamCaptureModeRelaxed})

/* malloc or free in a capture that forbids it: the answer and the capture's fate agree. */
static int forbidden(enum cudaStreamCaptureMode mode, bool is_free)
{
    struct cap c;
    void *p = NULL;
    int rc;

    TRY(cap_init(&c));
    if (is_free)
        OK(cudaMalloc(&p, N));
    TRY(cap_begin(&c, mode));
    rc = is_free ? (int)cudaFree(p) : (int)cudaMalloc(&p, N);
    CHECK(rc == 0 || rc == cudaErrorStreamCaptureUnsupported);
    CHECK(rc || bt_preloaded());
    if (rc) {
        LAST(cudaErrorStreamCaptureUnsupported);
        TRY(cap_end_dead(&c));
        if (is_free)
            OK(cudaFree(p));
    } else {
        TRY(cap_end(&c));
        if (!is_free) {
            TRY(bt_fill(p, N, 1));
            OK(cudaFree(p));
        }
    }
    return cap_fini(&c);
}

static int malloc_in(const void *mode)
{
    return forbidden(*(mode_arg *)mode, false);
}
BT_ROW(malloc_in_global, malloc_in, &(mode_arg){cudaStreamCaptureModeGlobal})
BT_ROW(malloc_in_thread_local, malloc_in, &(mode_arg){cudaStreamCaptureModeThreadLocal})

static int free_in(const void *mode)
{
    return forbidden(*(mode_arg *)mode, true);
}
BT_ROW(free_in_global, free_in, &(mode_arg){cudaStreamCaptureModeGlobal})
BT_ROW(free_in_thread_local, free_in, &(mode_arg){cudaStreamCaptureModeThreadLocal})

BT_TEST(in_relaxed)
{
    struct cap c;
    char *out;

    TRY(cap_init(&c));
    OK(cudaMalloc((void **)&out, N));
    for (int i = 0; i < 3; i++) {
        TRY(bt_fill(out, N, 0));
        TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
        TRY(busy_allocation(out));
        TRY(cap_end(&c));
        TRY(bt_verify(out, N, 7));
    }
    OK(cudaFree(out));
    return cap_fini(&c);
}

/* The documented way to allocate in a global capture. */
BT_TEST(exchanged)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    struct cap c;
    void *p[10];

    TRY(cap_init(&c));
    TRY(cap_begin(&c, cudaStreamCaptureModeGlobal));
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    for (int i = 0; i < 10; i++)
        OK(cudaMalloc(&p[i], N << (i % 6)));
    for (int i = 0; i < 10; i++)
        OK(cudaFree(p[i]));
    CHECK(mode == cudaStreamCaptureModeGlobal);
    OK(cudaThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == cudaStreamCaptureModeRelaxed);
    TRY(cap_end(&c));
    return cap_fini(&c);
}

/* Freed with work in flight before a capture, reused while it is open. */
BT_TEST(freed_before)
{
    cudaStream_t a, b;
    struct cap c;
    char *t, *u, *out;

    TRY(cap_init(&c));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&out, N));
    TRY(bt_fill(out, N, 0));
    OK(cudaMalloc((void **)&t, N));
    OK(cudaMemsetAsync(t, 7, N, a));
    TRY(bt_slow(a, BT_SLOW_US));
    OK(cudaMemcpyAsync(out, t, N, cudaMemcpyDeviceToDevice, a));
    OK(cudaFree(t));
    TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
    OK(cudaMalloc((void **)&u, N));
    OK(cudaMemsetAsync(u, 0xff, N, b));
    OK(cudaStreamSynchronize(b));
    OK(cudaStreamSynchronize(a));
    TRY(cap_end(&c));
    TRY(bt_verify(out, N, 7));
    OK(cudaFree(u));
    OK(cudaFree(out));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    return cap_fini(&c);
}

/* Freed with work in flight while a capture is open, reused after its end. */
BT_TEST(freed_during)
{
    cudaStream_t a, b;
    struct cap c;
    char *t[8], *u[8], *out;

    TRY(cap_init(&c));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&out, 8 * N));
    for (int i = 0; i < 8; i++)
        OK(cudaMalloc((void **)&t[i], N));
    TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < 8; i++)
        OK(cudaMemsetAsync(t[i], 7 + i, N, a));
    TRY(bt_slow(a, 2 * BT_SLOW_US));
    for (int i = 0; i < 8; i++) {
        OK(cudaMemcpyAsync(out + (size_t)i * N, t[i], N, cudaMemcpyDeviceToDevice, a));
        OK(cudaFree(t[i]));
    }
    capturing_change(c.s, NULL);
    OK(cudaStreamEndCapture(c.s, &c.graph));
    OK(cudaGraphDestroy(c.graph));
    for (int i = 0; i < 8; i++) {
        OK(cudaMalloc((void **)&u[i], N));
        OK(cudaMemsetAsync(u[i], 0xff, N, b));
    }
    OK(cudaStreamSynchronize(b));
    OK(cudaStreamSynchronize(a));
    for (int i = 0; i < 8; i++) {
        TRY(bt_verify(out + (size_t)i * N, N, 7 + i));
        OK(cudaFree(u[i]));
    }
    OK(cudaFree(out));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    return cap_fini(&c);
}

/* After a capture that failed, frees are ordered again and blocks come back. */
static int works_again(void)
{
    cudaStream_t a, b;
    char *out;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&out, N));
    for (int i = 0; i < 3; i++) {
        TRY(bt_fill(out, N, 0));
        TRY(race(a, b, out));
        TRY(bt_verify(out, N, 7));
    }
    OK(cudaFree(out));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    return 0;
}

BT_TEST(after_invalidated)
{
    struct cap c;

    TRY(cap_init(&c));
    for (int i = 0; i < 3; i++) {
        TRY(cap_begin(&c, cudaStreamCaptureModeGlobal));
        EXPECT(cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
        LAST(cudaErrorStreamCaptureUnsupported);
        TRY(cap_end_dead(&c));
        TRY(works_again());
    }
    return cap_fini(&c);
}

/* A capture that begins where it may not. */
BT_TEST(after_refused)
{
    struct cap c;

    TRY(cap_init(&c));
    EXPECT(cudaStreamBeginCapture(cudaStreamLegacy, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
    LAST(cudaErrorStreamCaptureUnsupported);
    TRY(works_again());
    TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
    EXPECT(cudaStreamBeginCapture(c.s, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
    LAST(cudaErrorIllegalState);
    TRY(cap_end(&c));
    TRY(works_again());
    return cap_fini(&c);
}

/* A stream destroyed in the middle of its capture. */
BT_TEST(after_abandoned)
{
    struct cap c;

    for (int i = 0; i < 3; i++) {
        TRY(cap_init(&c));
        TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
        capturing_change(c.s, NULL);
        OK(cudaStreamDestroy(c.s));
        (void)cudaGetLastError();
        TRY(works_again());
        OK(cudaFree(c.a));
        OK(cudaFree(c.b));
    }
    return 0;
}

/* Two captures overlap; the first end does not open the way for what the second forbids. */
BT_TEST(two_at_once)
{
    struct cap c, d;
    char *out;

    TRY(cap_init(&c));
    TRY(cap_init(&d));
    OK(cudaMalloc((void **)&out, N));
    TRY(cap_begin(&c, cudaStreamCaptureModeRelaxed));
    TRY(cap_begin(&d, cudaStreamCaptureModeRelaxed));
    TRY(busy_allocation(out));
    capturing_change(c.s, NULL);
    OK(cudaStreamEndCapture(c.s, &c.graph));
    OK(cudaGraphDestroy(c.graph));
    TRY(busy_allocation(out));
    TRY(cap_end(&d));
    TRY(bt_verify(out, N, 7));
    OK(cudaFree(out));
    TRY(cap_fini(&c));
    return cap_fini(&d);
}

/* A relaxed capture through the driver's calls. */
BT_TEST(by_driver)
{
    struct cap c;
    CUgraph graph;
    char *out;

    TRY(cap_init(&c));
    OK(cudaMalloc((void **)&out, N));
    OK(cuStreamBeginCapture((CUstream)c.s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(BT_ADDRESS(c.a), 1, N, (CUstream)c.s));
    TRY(busy_allocation(out));
    OK(cuStreamEndCapture((CUstream)c.s, &graph));
    OK(cuGraphDestroy(graph));
    TRY(bt_verify(out, N, 7));
    OK(cudaFree(out));
    TRY(works_again());
    return cap_fini(&c);
}

int main(int argc, char **argv)
{
    cudaFree(NULL);
    bt_cleanup = capturing_end;
    return bt_main(argc, argv);
}
