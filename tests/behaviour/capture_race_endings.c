/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_race_endings.c - the captures of capture_race, one function for each way to end a capture. Each answers with
 * the graph, if there is to be one.
 *
 * Locking: a captor is one thread's.
 */
#include "capture_race.h"

cudaError_t thread_mode(enum cudaStreamCaptureMode mode)
{
    return cudaThreadExchangeStreamCaptureMode(&mode);
}

static bool coin(struct captor *c)
{
    return bt_random(&c->seed) & 1;
}

enum fate streams_open(struct captor *c)
{
    for (int i = 0; i < STREAMS; i++)
        MUST(cudaStreamCreateWithFlags(&c->s[i], coin(c) ? cudaStreamNonBlocking : cudaStreamDefault));
    return FINE;
}

enum fate streams_renew(struct captor *c)
{
    MUST(thread_mode(cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < STREAMS; i++)
        MUST(cudaStreamDestroy(c->s[i]));
    return streams_open(c);
}

/* Through the runtime or the driver. */
static int begin(struct captor *c, cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    return coin(c) ? (int)cuStreamBeginCapture((CUstream)s, (CUstreamCaptureMode)mode)
                   : (int)cudaStreamBeginCapture(s, mode);
}

static int end(struct captor *c, cudaStream_t s, cudaGraph_t *graph)
{
    return coin(c) ? (int)cuStreamEndCapture((CUstream)s, graph) : (int)cudaStreamEndCapture(s, graph);
}

/* All three buffers become 0x21. */
static enum fate nodes(struct captor *c, cudaStream_t s)
{
    ALIVE(cudaMemsetAsync(c->buffer[0], 0x21, N, s));
    ALIVE(cudaMemcpyAsync(c->buffer[1], c->buffer[0], N, cudaMemcpyDeviceToDevice, s));
    ALIVE(cudaMemcpyAsync(c->buffer[2], c->buffer[1], N, cudaMemcpyDeviceToDevice, s));
    return FINE;
}

/* nodes over three streams, one fork within the other. */
static enum fate nodes_forked(struct captor *c, bool join)
{
    ALIVE(cudaMemsetAsync(c->buffer[0], 0x21, N, c->s[0]));
    ALIVE(cudaEventRecord(c->e[0], c->s[0]));
    ALIVE(cudaStreamWaitEvent(c->s[1], c->e[0], 0));
    ALIVE(cudaMemcpyAsync(c->buffer[1], c->buffer[0], N, cudaMemcpyDeviceToDevice, c->s[1]));
    ALIVE(cudaEventRecord(c->e[1], c->s[1]));
    ALIVE(cudaStreamWaitEvent(c->s[2], c->e[1], 0));
    ALIVE(cudaMemcpyAsync(c->buffer[2], c->buffer[1], N, cudaMemcpyDeviceToDevice, c->s[2]));
    ALIVE(cudaEventRecord(c->e[2], c->s[2]));
    if (!join)
        return FINE;
    ALIVE(cudaStreamWaitEvent(c->s[1], c->e[2], 0));
    ALIVE(cudaEventRecord(c->e[3], c->s[1]));
    ALIVE(cudaStreamWaitEvent(c->s[0], c->e[3], 0));
    return FINE;
}

/* A thread does one thing to a capture and ends. */
struct errand {
    struct captor *c;
    cudaStream_t s;
    enum cudaStreamCaptureMode mode;
    cudaGraph_t graph;
    int rc;
};

static void *errand_end(void *arg)
{
    struct errand *errand = (struct errand *)arg;

    errand->rc = (int)cudaStreamEndCapture(errand->s, &errand->graph);
    return NULL;
}

static void *errand_begin(void *arg)
{
    struct errand *errand = (struct errand *)arg;

    errand->rc = (int)cudaStreamBeginCapture(errand->s, errand->mode);
    if (!errand->rc)
        errand->rc = (int)nodes(errand->c, errand->s);
    return NULL;
}

static enum fate errand_run(struct errand *errand, void *(*fn)(void *arg))
{
    pthread_t thread;

    MUST(pthread_create(&thread, NULL, fn, errand));
    MUST(pthread_join(thread, NULL));
    return FINE;
}

static enum fate plain(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, c->s[0], mode));
    PASS(nodes(c, c->s[0]));
    ALIVE(end(c, c->s[0], graph));
    return FINE;
}

static enum fate per_thread(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, cudaStreamPerThread, mode));
    PASS(nodes(c, cudaStreamPerThread));
    ALIVE(end(c, cudaStreamPerThread, graph));
    return FINE;
}

static enum fate forked(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, c->s[0], mode));
    PASS(nodes_forked(c, true));
    ALIVE(end(c, c->s[0], graph));
    return FINE;
}

static enum fate to_graph(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    cudaGraph_t own, same = NULL;

    MUST(cudaGraphCreate(&own, 0));
    MUST(cudaStreamBeginCaptureToGraph(c->s[0], own, NULL, NULL, 0, mode));
    PASS(nodes(c, c->s[0]));
    ALIVE(end(c, c->s[0], &same));
    if (same != own)
        return WRONG;
    *graph = own;
    return FINE;
}

/* The capture that began last ends last. */
static enum fate two_at_once(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    cudaGraph_t other;

    MUST(begin(c, c->s[0], mode));
    ALIVE(begin(c, c->s[1], mode));
    PASS(nodes(c, c->s[0]));
    ALIVE(end(c, c->s[0], graph));
    PASS(nodes(c, c->s[1]));
    ALIVE(end(c, c->s[1], &other));
    MUST(cudaGraphDestroy(other));
    return FINE;
}

static enum fate by_another(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.s = c->s[0]};

    MUST(begin(c, c->s[0], mode));
    PASS(nodes(c, c->s[0]));
    PASS(errand_run(&errand, errand_end));
    ALIVE(errand.rc);
    *graph = errand.graph;
    return FINE;
}

/* Only a relaxed capture may be ended by another thread: an H200 then ends the capture and keeps the graph. */
static enum fate by_wrong(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.s = c->s[0]};
    enum cudaStreamCaptureStatus status;

    MUST(begin(c, c->s[0], mode));
    PASS(nodes(c, c->s[0]));
    PASS(errand_run(&errand, errand_end));
    FAILS(errand.rc, cudaErrorStreamCaptureWrongThread);
    MUST(cudaStreamIsCapturing(c->s[0], &status));
    if (status == cudaStreamCaptureStatusNone)
        return FINE;
    ALIVE(end(c, c->s[0], graph)); /* the simulated GPU goes on capturing */
    MUST(cudaGraphDestroy(*graph));
    *graph = NULL;
    return FINE;
}

/* Captures that do not begin, before and in one that does. Not on the legacy stream: that destroys the captures of
 * others. */
static enum fate refused(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    FAILS(begin(c, c->s[0], (enum cudaStreamCaptureMode)77), cudaErrorInvalidValue);
    MUST(begin(c, c->s[0], mode));
    FAILS(begin(c, c->s[0], mode), cudaErrorIllegalState);
    PASS(nodes(c, c->s[0]));
    ALIVE(end(c, c->s[0], graph));
    return FINE;
}

static enum fate unjoined(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, c->s[0], mode));
    PASS(nodes_forked(c, false));
    FAILS(end(c, c->s[0], graph), cudaErrorStreamCaptureUnjoined);
    return FINE;
}

static enum fate invalidated(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, c->s[0], mode));
    PASS(nodes(c, c->s[0]));
    if (coin(c)) {
        FAILS(cudaStreamSynchronize(c->s[0]), cudaErrorStreamCaptureUnsupported);
    } else {
        ALIVE(cudaEventRecord(c->e[0], c->s[0]));
        FAILS(cudaEventQuery(c->e[0]), cudaErrorCapturedEvent);
    }
    FAILS(end(c, c->s[0], graph), cudaErrorStreamCaptureInvalidated);
    return FINE;
}

static enum fate destroyed(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, c->s[0], mode));
    PASS(nodes(c, c->s[0]));
    return streams_renew(c);
}

static enum fate destroyed_forked(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    MUST(begin(c, c->s[0], mode));
    PASS(nodes_forked(c, coin(c)));
    return streams_renew(c);
}

/* The stream goes with its thread. */
static enum fate thread_gone(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.c = c, .s = cudaStreamPerThread, .mode = mode};

    PASS(errand_run(&errand, errand_begin));
    ALIVE(errand.rc);
    return FINE;
}

/* The thread goes, the stream stays, and no thread can end the capture. */
static enum fate left_behind(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.c = c, .s = c->s[0], .mode = mode};

    PASS(errand_run(&errand, errand_begin));
    ALIVE(errand.rc);
    return streams_renew(c);
}

/* The thread goes, the stream stays, and any thread may end the relaxed capture. */
static enum fate inherited(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.c = c, .s = c->s[0], .mode = mode};

    PASS(errand_run(&errand, errand_begin));
    ALIVE(errand.rc);
    ALIVE(end(c, c->s[0], graph));
    return FINE;
}

const struct ending endings[ENDINGS] = {
    {"plain", plain, ALL, true},
    {"per_thread", per_thread, ALL, true},
    {"forked", forked, ALL, true},
    {"to_graph", to_graph, ALL, true},
    {"two_at_once", two_at_once, ALL, true},
    {"by_another", by_another, RELAXED, true},
    {"by_wrong", by_wrong, GLOBAL | LOCAL, false},
    {"refused", refused, ALL, true},
    {"inherited", inherited, RELAXED, true},
    {"unjoined", unjoined, ALL, false},
    {"invalidated", invalidated, ALL, false},
    {"destroyed", destroyed, ALL, false},
    {"destroyed_forked", destroyed_forked, ALL, false},
    {"thread_gone", thread_gone, ALL, false},
    {"left_behind", left_behind, GLOBAL | LOCAL, false},
};
