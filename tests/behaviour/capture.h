/* SPDX-License-Identifier: Apache-2.0 */
/* capture.h - a capture of its own stream that a test begins, ends and replays; and a reuse race beside it. For
 * capture.c and capture_beside.c. */
#ifndef BEHAVIOUR_CAPTURE_H
#define BEHAVIOUR_CAPTURE_H

#define BT_OWN_MAIN
#include "behaviour.h"

#define N ((size_t)64 << 10)

struct cap {
    cudaStream_t s;
    char *a, *b;
    cudaGraph_t graph;
};

/* Streams that capture. Cleaned up after a failed test, so that its capture does not fail the next test. */
static cudaStream_t capturing[2];

BT_UNUSED static void capturing_change(cudaStream_t from, cudaStream_t to)
{
    for (int i = 0; i < 2; i++)
        if (capturing[i] == from) {
            capturing[i] = to;
            return;
        }
}

BT_UNUSED static void capturing_end(void)
{
    for (int i = 0; i < 2; i++)
        if (capturing[i]) {
            cudaGraph_t graph = NULL;

            if (cudaStreamEndCapture(capturing[i], &graph) == cudaSuccess)
                (void)cudaGraphDestroy(graph);
            capturing[i] = NULL;
        }
    (void)cudaGetLastError();
}

BT_UNUSED static int cap_init(struct cap *c)
{
    memset(c, 0, sizeof(*c));
    OK(cudaStreamCreateWithFlags(&c->s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&c->a, N));
    OK(cudaMalloc((void **)&c->b, N));
    TRY(bt_fill(c->a, N, 0));
    return bt_fill(c->b, N, 0);
}

BT_UNUSED static int cap_begin(struct cap *c, enum cudaStreamCaptureMode mode)
{
    OK(cudaStreamBeginCapture(c->s, mode));
    capturing_change(NULL, c->s);
    OK(cudaMemsetAsync(c->a, 0x21, N, c->s));
    return 0;
}

/* End a capture that has to be alive, and replay it. */
BT_UNUSED static int cap_end(struct cap *c)
{
    enum cudaStreamCaptureStatus status;
    cudaGraphExec_t exec;

    OK(cudaStreamIsCapturing(c->s, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaMemcpyAsync(c->b, c->a, N, cudaMemcpyDeviceToDevice, c->s));
    capturing_change(c->s, NULL);
    OK(cudaStreamEndCapture(c->s, &c->graph));
    CHECK(c->graph);
    OK(cudaGraphInstantiate(&exec, c->graph, 0));
    for (int i = 0; i < 3; i++) {
        TRY(bt_fill(c->a, N, 1));
        TRY(bt_fill(c->b, N, 2));
        OK(cudaGraphLaunch(exec, c->s));
        TRY(bt_usable(N)); /* allocation beside the replay */
        OK(cudaStreamSynchronize(c->s));
        TRY(bt_verify(c->a, N, 0x21));
        TRY(bt_verify(c->b, N, 0x21));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(c->graph));
    return 0;
}

/* End a capture that something has destroyed. */
BT_UNUSED static int cap_end_dead(struct cap *c)
{
    cudaGraph_t graph = NULL;

    capturing_change(c->s, NULL);
    EXPECT(cudaStreamEndCapture(c->s, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(graph == NULL);
    (void)cudaGetLastError();
    return 0;
}

BT_UNUSED static int cap_fini(struct cap *c)
{
    OK(cudaFree(c->a));
    OK(cudaFree(c->b));
    OK(cudaStreamDestroy(c->s));
    TRY(bt_usable(N));
    LAST(cudaSuccess);
    return 0;
}

/* The reuse race: work in flight on a, free, malloc, write on b. Nothing here is captured. */
BT_UNUSED static int race(cudaStream_t a, cudaStream_t b, char *out)
{
    char *t, *u;

    OK(cudaMalloc((void **)&t, N));
    OK(cudaMemsetAsync(t, 7, N, a));
    TRY(bt_slow(a, BT_SLOW_US));
    OK(cudaMemcpyAsync(out, t, N, cudaMemcpyDeviceToDevice, a));
    OK(cudaFree(t));
    OK(cudaMalloc((void **)&u, N));
    OK(cudaMemsetAsync(u, 0xff, N, b));
    OK(cudaStreamSynchronize(b));
    OK(cudaStreamSynchronize(a));
    OK(cudaFree(u));
    return 0;
}

/* Many sizes, so that some need the driver. All succeed; what was freed is not reused too early. */
BT_UNUSED static int busy_allocation(void *arg)
{
    char *out = (char *)arg;
    cudaStream_t a, b;
    void *p[40];

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    for (int i = 0; i < 40; i++)
        OK(cudaMalloc(&p[i], (size_t)(i % 7 + 1) * (i % 10 ? 30000 : 3000000)));
    TRY(race(a, b, out));
    for (int i = 0; i < 40; i++)
        OK(cudaFree(p[i]));
    TRY(race(a, b, out));
    OK(cudaStreamDestroy(a));
    OK(cudaStreamDestroy(b));
    return 0;
}

#endif
