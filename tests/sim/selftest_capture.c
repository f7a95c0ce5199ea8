/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_capture.c - what stream capture allows, forbids and makes.
 *
 * The tests check what was seen on GPUs, in all three modes, from the capturing thread and from another one. Of graphs
 * they only replay a capture.
 *
 * Locking: none.
 */
#include "selftest.h"

#include <pthread.h>
#include <string.h>

static cudaStream_t s;
static cudaEvent_t ev; /* never captured */
static void *keep;
static CUcontext ctx;

enum call { MALLOC, FREE, QUERY, SYNC, CTX_RECORD, CALLS };

static int make(enum call call)
{
    void *p = NULL;
    int r;

    switch (call) {
    case MALLOC:
        r = cudaMalloc(&p, 256);
        break;
    case FREE:
        r = cudaFree(keep);
        if (r == 0)
            keep = NULL;
        break;
    case QUERY:
        r = cudaEventQuery(ev);
        break;
    case SYNC:
        r = cudaDeviceSynchronize();
        break;
    default:
        r = (int)drv.ctx_record(ctx, ev); /* a driver call: a new thread has no current context */
    }
    cudaGetLastError();
    if (p) { /* give it back when the capture is over */
        if (keep)
            return r;
        keep = p;
    }
    return r;
}

struct job {
    enum call call;
    bool relaxed;
    int result;
};

static void *job_run(void *arg)
{
    struct job *j = arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;

    if (j->relaxed)
        OK(cudaThreadExchangeStreamCaptureMode(&mode));
    j->result = make(j->call);
    if (j->relaxed)
        OK(cudaThreadExchangeStreamCaptureMode(&mode));
    return NULL;
}

/* Does call, made during a capture of this mode, succeed, and does the capture survive? */
static void one(enum cudaStreamCaptureMode mode, enum call call, bool other, bool relaxed, bool want)
{
    struct job j = {call, relaxed, 0};
    cudaGraph_t graph = NULL;
    pthread_t t;

    if (!keep)
        OK(cudaMalloc(&keep, 256));
    OK(cudaStreamBeginCapture(s, mode));
    if (other) {
        pthread_create(&t, NULL, job_run, &j);
        pthread_join(t, NULL);
    } else {
        job_run(&j);
    }
    int end = cudaStreamEndCapture(s, &graph);
    if (j.result != (want ? 0 : 900) || end != (want ? 0 : 901) || (graph != NULL) != want) {
        fprintf(stderr, "mode %d call %d other %d relaxed %d: %d, end %d\n", mode, call, other, relaxed, j.result, end);
        failures++;
    }
    checks++;
    cudaGetLastError();
    if (graph)
        OK(cudaGraphDestroy(graph));
}

static void test_rules(void)
{
    for (int mode = cudaStreamCaptureModeGlobal; mode <= cudaStreamCaptureModeRelaxed; mode++) {
        for (int call = 0; call < CALLS; call++) {
            for (int other = 0; other < 2; other++) {
                for (int relaxed = 0; relaxed < 2; relaxed++) {
                    bool never = call == SYNC || call == CTX_RECORD;
                    bool forbidden =
                        mode == cudaStreamCaptureModeGlobal || (mode == cudaStreamCaptureModeThreadLocal && !other);
                    one(mode, call, other, relaxed, !never && (relaxed || !forbidden));
                }
            }
        }
    }
}

static void count(void *arg)
{
    ++*(int *)arg;
}

static void test_graph(void)
{
    static int calls;
    cudaStream_t b;
    cudaEvent_t fork_ev, join_ev;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus st;
    unsigned char *h;
    void *p;

    OK(cudaMalloc(&p, 4096));
    OK(cudaMallocHost((void **)&h, 4096));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaEventCreate(&fork_ev));
    OK(cudaEventCreate(&join_ev));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(p, 9, 4096, s));
    OK(cudaEventRecord(fork_ev, s));
    OK(cudaStreamWaitEvent(b, fork_ev, 0));
    OK(cudaStreamIsCapturing(b, &st));
    CHECK_EQ(st, cudaStreamCaptureStatusActive);
    OK(cudaMemcpyAsync(h, p, 4096, cudaMemcpyDeviceToHost, b));
    OK(cudaLaunchHostFunc(b, count, &calls));
    OK(cudaEventRecord(join_ev, b));
    OK(cudaStreamWaitEvent(s, join_ev, 0));
    OK(cudaStreamEndCapture(s, &graph));
    CHECK_EQ(cudaEventQuery(join_ev), cudaErrorCapturedEvent);
    cudaGetLastError();
    memset(h, 0, 4096);
    OK(cudaStreamSynchronize(s));
    CHECK(calls == 0 && h[0] == 0);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphLaunch(exec, s));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaStreamSynchronize(s));
    CHECK(calls == 2 && h[0] == 9 && h[4095] == 9);
    /* Unjoined work, the wrong stream, the legacy stream. */
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    OK(cudaMemsetAsync(p, 9, 4096, s));
    OK(cudaEventRecord(fork_ev, s));
    OK(cudaStreamWaitEvent(b, fork_ev, 0));
    OK(cudaMemsetAsync(p, 8, 4096, b));
    CHECK_EQ(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureUnjoined);
    OK(cudaStreamIsCapturing(b, &st));
    CHECK_EQ(st, cudaStreamCaptureStatusNone);
    CHECK_EQ(cudaStreamEndCapture(s, &graph), cudaErrorIllegalState);
    CHECK_EQ(cudaStreamBeginCapture(0, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
    cudaStream_t blk;
    OK(cudaStreamCreate(&blk));
    OK(cudaStreamBeginCapture(blk, cudaStreamCaptureModeRelaxed));
    CHECK_EQ(cudaMemsetAsync(p, 1, 16, 0), cudaErrorStreamCaptureImplicit);
    CHECK_EQ(cudaStreamEndCapture(blk, &graph), cudaErrorStreamCaptureInvalidated);
    /* A stream destroyed in mid-capture takes the capture with it. */
    OK(cudaStreamBeginCapture(blk, cudaStreamCaptureModeGlobal));
    OK(cudaStreamDestroy(blk));
    OK(cudaMalloc(&keep, 256));
    OK(cudaFree(keep));
    keep = NULL;
    OK(cudaFree(p));
    OK(cudaFreeHost(h));
    OK(cudaStreamDestroy(b));
    OK(cudaEventDestroy(fork_ev));
    OK(cudaEventDestroy(join_ev));
    cudaGetLastError();
}

void test_capture(void)
{
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&ev, cudaEventDisableTiming));
    OK(drv.ctx_current(&ctx));
    test_rules();
    if (keep)
        OK(cudaFree(keep));
    keep = NULL;
    test_graph();
    OK(cudaEventDestroy(ev));
    OK(cudaStreamDestroy(s));
}
