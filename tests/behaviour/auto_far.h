/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_far.h - device 1 writes and reads memory of device 0: a stream and a buffer of device 1, and the rows of tests[]
 * that run the races of auto.h with a copy between the two.
 *
 * Between the functions device 0 is current, except where one says otherwise.
 */
#ifndef BEHAVIOUR_AUTO_FAR_H
#define BEHAVIOUR_AUTO_FAR_H

#include "auto_copies.h"

static cudaStream_t far_stream; /* of device 1 */
static char *far_buffer;        /* there */
static size_t far_size;

BT_UNUSED static int far_devices(void)
{
    int can = 0;

    TRY(bt_devices(2));
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    if (!can)
        SKIP("device 1 cannot reach device 0");
    return 0;
}

BT_UNUSED static int far_setup(size_t n)
{
    TRY(far_devices());
    if (far_size >= n)
        return 0;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&far_stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&far_buffer, n));
    far_size = n;
    OK(cudaSetDevice(0));
    return 0;
}

/* Wait for device 1's stream, and back to device 0. */
BT_UNUSED static int far_done(void)
{
    OK(cudaStreamSynchronize(far_stream));
    OK(cudaSetDevice(0));
    return 0;
}

/* The bytes to send lie on device 1, which is current then. */
BT_UNUSED static int far_fill(size_t n, int byte)
{
    TRY(far_setup(n));
    OK(cudaSetDevice(1));
    OK(cudaMemsetAsync(far_buffer, byte, n, far_stream));
    OK(cudaStreamSynchronize(far_stream));
    return 0;
}

BT_UNUSED static int far_check(size_t n, int byte)
{
    long bad;

    TRY(far_done());
    OK(cudaSetDevice(1));
    bad = auto_count(far_buffer, n, byte);
    OK(cudaSetDevice(0));
    CHECK(bad >= 0);
    return bad ? WRONG("%ld bytes were fetched before they were written", bad) : 0;
}

/* A graph of device 0, whose node on device 1 copies n bytes. The streams by which device 1 joins the capture, and by
 * which device 0 waits for it, have not been part of it before. */
BT_UNUSED static int far_graph(void *to, const void *from, size_t n, cudaGraphExec_t *ret)
{
    cudaStream_t first, far, last;
    cudaEvent_t begun, copied, joined;
    cudaGraph_t captured;

    OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&last, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(begun, first));
    OK(cudaStreamWaitEvent(far, begun, 0));
    OK(cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, far));
    OK(cudaEventRecord(copied, far));
    OK(cudaStreamWaitEvent(last, copied, 0));
    OK(cudaEventRecord(joined, last));
    OK(cudaStreamWaitEvent(first, joined, 0));
    OK(cudaStreamEndCapture(first, &captured));
    OK(cudaSetDevice(0));
    OK(cudaGraphInstantiate(ret, captured, 0));
    OK(cudaGraphDestroy(captured));
    OK(cudaStreamDestroy(far));
    OK(cudaStreamDestroy(last));
    OK(cudaStreamDestroy(first));
    return 0;
}

/* auto_now->copy brings the bytes to u. */
BT_UNUSED static int far_put(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    TRY(auto_now->copy(u, far_buffer, n, auto_now->kind, far_stream));
    return far_done();
}

BT_UNUSED static int far_fetch(const char *w, size_t n, int byte)
{
    TRY(far_fill(n, 0));
    TRY(auto_now->copy(far_buffer, w, n, auto_now->kind, far_stream));
    return far_check(n, byte);
}

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are initialisers */
#define FAR_RACE(name_, copy_, kind_)  RACE(name_, far_put, .copy = copy_, .kind = kind_)
#define FAR_STALE(name_, copy_, kind_) STALE(name_, far_fetch, .copy = copy_, .kind = kind_)
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
