/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture_race.c - captures of every kind and end, raced against threads that allocate and free.
 *
 * What it is: some threads capture, end captures in every way there is and replay what survives; others allocate, fill,
 * look and free all the time. The race is such that natively no capture is destroyed that its own thread does not
 * destroy: in the first round the racers' own capture mode is the default and nobody captures globally, in the second
 * all modes are used and the racers have exchanged theirs. So none may be lost preloaded. A racer's look at a block is
 * in flight when the block is freed; another value than its own means that the block had a new owner too early.
 *
 * What it is not: allocation by a thread inside a capture of its own (capture.c); anything on the legacy stream.
 *
 * Usage: capture_race [--captures N] [--captors C] [--racers R] [--max-bytes B] [--verify K] [--seconds S] [--seed X]
 * Every K-th surviving graph is replayed. Exit: 0 all is well, 1 a capture lost or foreign bytes, 2 a call failed that
 * has to succeed, 3 no capture ended for a minute.
 *
 * Locking: counters are atomic; a captor, a racer and what belongs to them are one thread's.
 */
#include "behaviour.h"

#include <stdatomic.h>

#define N            ((size_t)16 << 10)
#define STREAMS      3
#define THREADS_MAX  16
#define SLOTS        12
#define STUCK_S      60
#define MESSAGES_MAX 20
#define MODES        3
#define WITNESS      BT_GIB

static struct {
    uint64_t captures, captors, racers, max_bytes, verify, seconds, seed;
} opt = {.captures = 300, .captors = 2, .racers = 4, .max_bytes = 16 << 20, .verify = 4, .seconds = 0, .seed = 1};

static atomic_ullong next_capture, ended, lost, wrong, replayed, foreign, looked, allocs, messages;
static atomic_int stop, captors_left, broken;

/* Say it, unless too much has been said. */
#define SAY(...)                                                                                                       \
    do {                                                                                                               \
        if (atomic_fetch_add(&messages, 1) < MESSAGES_MAX)                                                             \
            fprintf(stderr, "capture_race: " __VA_ARGS__);                                                             \
    } while (0)

/* A call that succeeds whatever else is going on. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            SAY("line %d: %s: %d\n", __LINE__, #call, rc_);                                                            \
            atomic_store(&broken, 1);                                                                                  \
            atomic_store(&stop, 1);                                                                                    \
            return BROKEN;                                                                                             \
        }                                                                                                              \
    } while (0)

/* A call that succeeds unless somebody has destroyed the capture. */
#define ALIVE(call)                                                                                                    \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            SAY("line %d: %s: %d\n", __LINE__, #call, rc_);                                                            \
            return LOST;                                                                                               \
        }                                                                                                              \
    } while (0)

/* A call that fails, with this error. */
#define FAILS(call, want)                                                                                              \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        (void)cudaGetLastError();                                                                                      \
        if (rc_ != (int)(want)) {                                                                                      \
            SAY("line %d: %s: %d, expected %d\n", __LINE__, #call, rc_, (int)(want));                                  \
            return WRONG;                                                                                              \
        }                                                                                                              \
    } while (0)

/* What became of a capture. WRONG: an error that is not the native one. */
enum fate { FINE, LOST, WRONG, BROKEN };

/* --- captors --- */

struct captor {
    pthread_t thread;
    cudaStream_t s[STREAMS];
    cudaEvent_t e[4];
    char *buffer[3], *pinned; /* N bytes each */
    uint64_t seed;
    atomic_int at; /* the ending that is under way, for the watchdog */
};

static struct captor captors[THREADS_MAX];

static cudaError_t thread_mode(enum cudaStreamCaptureMode mode)
{
    return cudaThreadExchangeStreamCaptureMode(&mode);
}

static bool coin(struct captor *c)
{
    return bt_random(&c->seed) & 1;
}

static enum fate streams_open(struct captor *c)
{
    for (int i = 0; i < STREAMS; i++)
        MUST(cudaStreamCreateWithFlags(&c->s[i], coin(c) ? cudaStreamNonBlocking : cudaStreamDefault));
    return FINE;
}

/* With or without a capture on them. */
static enum fate streams_renew(struct captor *c)
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

#define PASS(call)                                                                                                     \
    do {                                                                                                               \
        enum fate fate_ = (call);                                                                                      \
        if (fate_ != FINE)                                                                                             \
            return fate_;                                                                                              \
    } while (0)

/* The same over three streams, one fork within the other. */
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

/* Something that another thread does to a capture, and ends. */
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

/* The ways to end a capture. Each answers with the graph, if there is to be one. */
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

/* The second ends last: what ends a capture is not what began last. */
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

/* Captures that do not begin, before and in one that does. Not on the legacy stream: that destroys others'. */
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
    (void)graph;
    MUST(begin(c, c->s[0], mode));
    PASS(nodes(c, c->s[0]));
    return streams_renew(c);
}

static enum fate destroyed_forked(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    (void)graph;
    MUST(begin(c, c->s[0], mode));
    PASS(nodes_forked(c, coin(c)));
    return streams_renew(c);
}

/* The stream goes with its thread. */
static enum fate thread_gone(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.c = c, .s = cudaStreamPerThread, .mode = mode};

    (void)graph;
    PASS(errand_run(&errand, errand_begin));
    ALIVE(errand.rc);
    return FINE;
}

/* The thread goes, the stream stays, and nobody can end the capture. */
static enum fate left_behind(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.c = c, .s = c->s[0], .mode = mode};

    (void)graph;
    PASS(errand_run(&errand, errand_begin));
    ALIVE(errand.rc);
    return streams_renew(c);
}

/* The same, but anybody may end it. */
static enum fate inherited(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph)
{
    struct errand errand = {.c = c, .s = c->s[0], .mode = mode};

    PASS(errand_run(&errand, errand_begin));
    ALIVE(errand.rc);
    ALIVE(end(c, c->s[0], graph));
    return FINE;
}

#define GLOBAL  (1u << cudaStreamCaptureModeGlobal)
#define LOCAL   (1u << cudaStreamCaptureModeThreadLocal)
#define RELAXED (1u << cudaStreamCaptureModeRelaxed)
#define ALL     (GLOBAL | LOCAL | RELAXED)

static const struct ending {
    const char *name;
    enum fate (*fn)(struct captor *c, enum cudaStreamCaptureMode mode, cudaGraph_t *graph);
    unsigned int modes;
    bool survives; /* there is a graph in the end */
} endings[] = {
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

#define ENDINGS ((int)(sizeof(endings) / sizeof(endings[0])))

static atomic_ullong counts[ENDINGS][MODES][2]; /* captures, and those that were not FINE */

/* The round's combinations of ending and mode. */
static struct {
    int ending, mode;
} plan[ENDINGS * MODES];
static int plans;

static void plan_make(unsigned int modes)
{
    plans = 0;
    for (int i = 0; i < ENDINGS; i++)
        for (int mode = 0; mode < MODES; mode++)
            if (endings[i].modes & modes & 1u << mode) {
                plan[plans].ending = i;
                plan[plans++].mode = mode;
            }
}

/* Launch a graph; its bytes have to be there. */
static enum fate replay(struct captor *c, cudaGraph_t graph)
{
    cudaGraphExec_t exec;

    MUST(cudaGraphInstantiate(&exec, graph, 0));
    memset(c->pinned, 0, 3 * N);
    for (int i = 0; i < 3; i++)
        MUST(cudaMemsetAsync(c->buffer[i], i + 1, N, c->s[0]));
    MUST(cudaGraphLaunch(exec, c->s[0]));
    for (int i = 0; i < 3; i++)
        MUST(cudaMemcpyAsync(c->pinned + (size_t)i * N, c->buffer[i], N, cudaMemcpyDeviceToHost, c->s[0]));
    MUST(cudaStreamSynchronize(c->s[0]));
    MUST(cudaGraphExecDestroy(exec));
    atomic_fetch_add(&replayed, 1);
    for (size_t i = 0; i < 3 * N; i++)
        if (c->pinned[i] != 0x21) {
            SAY("replay: byte %zu of buffer %zu is 0x%02x\n", i % N, i / N, c->pinned[i] & 0xff);
            atomic_fetch_add(&foreign, 1);
            break;
        }
    return FINE;
}

static enum fate capture(struct captor *c, uint64_t number)
{
    const struct ending *ending = &endings[plan[number % (uint64_t)plans].ending];
    const int mode = plan[number % (uint64_t)plans].mode;
    cudaGraph_t graph = NULL;
    enum fate fate;

    atomic_store(&c->at, (int)(ending - endings));
    MUST(thread_mode(cudaStreamCaptureModeGlobal));
    fate = ending->fn(c, (enum cudaStreamCaptureMode)mode, &graph);
    MUST(thread_mode(cudaStreamCaptureModeRelaxed));
    if (fate == FINE && ending->survives != (graph != NULL))
        fate = WRONG;
    atomic_fetch_add(&counts[ending - endings][mode][0], 1);
    if (fate == BROKEN)
        return BROKEN;
    if (fate != FINE) {
        SAY("capture %llu (%s, mode %d) %s\n", (unsigned long long)number, ending->name, mode,
            fate == LOST ? "was destroyed" : "answered wrongly");
        atomic_fetch_add(&counts[ending - endings][mode][1], 1);
        atomic_fetch_add(fate == LOST ? &lost : &wrong, 1);
        (void)cudaStreamEndCapture(cudaStreamPerThread, &graph);
        (void)cudaGetLastError();
        return streams_renew(c);
    }
    if (graph) {
        if (number / (uint64_t)plans % opt.verify == 0)
            PASS(replay(c, graph));
        MUST(cudaGraphDestroy(graph));
    }
    return FINE;
}

static enum fate captor_run(struct captor *c)
{
    uint64_t number;

    MUST(thread_mode(cudaStreamCaptureModeRelaxed));
    PASS(streams_open(c));
    for (int i = 0; i < 4; i++)
        MUST(cudaEventCreateWithFlags(&c->e[i], cudaEventDisableTiming));
    MUST(cudaMallocHost((void **)&c->pinned, 3 * N));
    for (int i = 0; i < 3; i++)
        MUST(cudaMalloc((void **)&c->buffer[i], N));
    while (!atomic_load(&stop) && (number = atomic_fetch_add(&next_capture, 1)) < opt.captures / 2) {
        PASS(capture(c, number));
        atomic_fetch_add(&ended, 1);
    }
    for (int i = 0; i < 3; i++)
        MUST(cudaFree(c->buffer[i]));
    MUST(cudaFreeHost(c->pinned));
    for (int i = 0; i < 4; i++)
        MUST(cudaEventDestroy(c->e[i]));
    for (int i = 0; i < STREAMS; i++)
        MUST(cudaStreamDestroy(c->s[i]));
    return FINE;
}

static void *captor_main(void *arg)
{
    (void)captor_run((struct captor *)arg);
    atomic_fetch_sub(&captors_left, 1);
    return NULL;
}

/* --- racers --- */

#define WORDS 4

struct slot {
    enum { EMPTY, LIVE, PENDING } state;
    char *p;
    size_t n; /* a multiple of 4 */
    uint32_t token;
    volatile uint32_t *pinned; /* what the look brought home */
    cudaStream_t s;
    cudaEvent_t event;
};

struct racer {
    pthread_t thread;
    unsigned int id;
    int mode; /* of the thread */
    cudaStream_t s[STREAMS];
    struct slot slot[SLOTS];
    uint32_t *pinned;
    uint64_t seed;
    uint32_t count;
};

static struct racer racers[THREADS_MAX];

/* Log-uniform, from 256 bytes on. */
static size_t size_draw(struct racer *r)
{
    const uint64_t octaves = 63 - (uint64_t)__builtin_clzll(opt.max_bytes) - 8;
    const size_t base = (size_t)256 << bt_random(&r->seed) % octaves;

    return (base + bt_random(&r->seed) % base) & ~(size_t)3;
}

static enum fate slot_open(struct racer *r, struct slot *slot)
{
    const uint64_t dice = bt_random(&r->seed);
    CUdeviceptr p = 0;

    slot->n = size_draw(r);
    if (dice % 4) {
        MUST(cudaMalloc((void **)&slot->p, slot->n));
    } else {
        MUST(cuMemAlloc(&p, slot->n));
        slot->p = (char *)(uintptr_t)p;
    }
    atomic_fetch_add(&allocs, 1);
    slot->s = r->s[dice / 4 % STREAMS];
    slot->token = (r->id + 1) << 24 | (r->count++ & 0xffffff);
    MUST(cuMemsetD32Async((CUdeviceptr)(uintptr_t)slot->p, slot->token, slot->n / 4, (CUstream)slot->s));
    slot->state = LIVE;
    return FINE;
}

/* Look at the block, at its ends and between, and let go of it while the look is in flight. */
static enum fate slot_close(struct racer *r, struct slot *slot)
{
    const uint64_t dice = bt_random(&r->seed);

    if (dice % 32 == 0)
        MUST(cudaLaunchHostFunc(slot->s, bt_sleep_fn, (void *)(uintptr_t)200));
    for (size_t i = 0; i < WORDS; i++)
        MUST(cudaMemcpyAsync((void *)&slot->pinned[i], slot->p + (slot->n - 4) / 4 * i / (WORDS - 1) * 4, 4,
                             cudaMemcpyDeviceToHost, slot->s));
    if (dice / 32 % 4 == 0) /* a late write that the next owner must not see */
        MUST(cuMemsetD32Async((CUdeviceptr)(uintptr_t)slot->p, slot->token ^ 0x800000, slot->n / 4, (CUstream)slot->s));
    MUST(cudaEventRecord(slot->event, slot->s));
    slot->state = PENDING;
    switch (dice / 128 % 8) {
    case 0:
        MUST(cudaFreeAsync(slot->p, slot->s));
        return FINE;
    case 1:
        MUST(cuMemFree((CUdeviceptr)(uintptr_t)slot->p));
        return FINE;
    default:
        MUST(cudaFree(slot->p));
        return FINE;
    }
}

static enum fate slot_verify(struct slot *slot)
{
    MUST(cudaEventSynchronize(slot->event));
    slot->state = EMPTY;
    for (int i = 0; i < WORDS; i++)
        if (slot->pinned[i] != slot->token) {
            SAY("word %d of %zu bytes at %p is %08x, filled with %08x\n", i, slot->n, (void *)slot->p, slot->pinned[i],
                slot->token);
            atomic_fetch_add(&foreign, 1);
            break;
        }
    atomic_fetch_add(&looked, 1);
    return FINE;
}

static enum fate racer_open(struct racer *r)
{
    MUST(thread_mode((enum cudaStreamCaptureMode)r->mode));
    r->s[0] = cudaStreamPerThread;
    for (int i = 1; i < STREAMS; i++)
        MUST(cudaStreamCreateWithFlags(&r->s[i], i & 1 ? cudaStreamNonBlocking : cudaStreamDefault));
    MUST(cudaMallocHost((void **)&r->pinned, SLOTS * WORDS * sizeof(*r->pinned)));
    for (int i = 0; i < SLOTS; i++) {
        r->slot[i].state = EMPTY;
        r->slot[i].pinned = r->pinned + (ptrdiff_t)i * WORDS;
        MUST(cudaEventCreateWithFlags(&r->slot[i].event, cudaEventDisableTiming));
    }
    return FINE;
}

static enum fate racer_close(struct racer *r)
{
    for (int i = 0; i < SLOTS; i++) {
        if (r->slot[i].state == LIVE)
            PASS(slot_close(r, &r->slot[i]));
        if (r->slot[i].state == PENDING)
            PASS(slot_verify(&r->slot[i]));
        MUST(cudaEventDestroy(r->slot[i].event));
    }
    MUST(cudaStreamSynchronize(cudaStreamPerThread));
    for (int i = 1; i < STREAMS; i++) {
        MUST(cudaStreamSynchronize(r->s[i]));
        MUST(cudaStreamDestroy(r->s[i]));
    }
    MUST(cudaFreeHost(r->pinned));
    return FINE;
}

static enum fate racer_run(struct racer *r)
{
    PASS(racer_open(r));
    while (atomic_load(&captors_left) > 0) {
        struct slot *slot = &r->slot[bt_random(&r->seed) % SLOTS];

        if (atomic_load(&stop))
            break;
        if (slot->state == LIVE) {
            PASS(slot_close(r, slot));
            continue;
        }
        if (slot->state == PENDING)
            PASS(slot_verify(slot));
        PASS(slot_open(r, slot));
    }
    return racer_close(r);
}

static void *racer_main(void *arg)
{
    (void)racer_run((struct racer *)arg);
    return NULL;
}

/* --- the whole --- */

/* Says how far we are; ends the program if nothing moves, the race if its time is over. */
static void *watchdog(void *arg)
{
    uint64_t seen = 0, still = 0;

    (void)arg;
    for (uint64_t s = 1; atomic_load(&captors_left) >= 0; s++) {
        const uint64_t now = atomic_load(&ended);

        bt_nap(1000000);
        still = now == seen && atomic_load(&captors_left) > 0 ? still + 1 : 0;
        seen = now;
        if (s % 5 == 0)
            fprintf(stderr, "capture_race: %llu captures, %llu lost; %llu allocations, %llu foreign\n",
                    (unsigned long long)now, (unsigned long long)atomic_load(&lost),
                    (unsigned long long)atomic_load(&allocs), (unsigned long long)atomic_load(&foreign));
        if (still >= STUCK_S) {
            fprintf(stderr, "capture_race: stuck in");
            for (uint64_t i = 0; i < opt.captors; i++)
                fprintf(stderr, " %s", endings[atomic_load(&captors[i].at)].name);
            fprintf(stderr, "\n");
            _exit(3);
        }
        if (opt.seconds && s == opt.seconds)
            atomic_store(&stop, 1);
    }
    return NULL;
}

/* Half of the captures. exchanged: the racers have changed their mode, and captures of every mode are made. */
static enum fate round_run(bool exchanged)
{
    static const int modes[] = {cudaStreamCaptureModeRelaxed, cudaStreamCaptureModeThreadLocal};
    size_t before, after, total;
    void *witness;

    MUST(cudaMemGetInfo(&before, &total));
    MUST(cudaMalloc(&witness, WITNESS));
    plan_make(exchanged ? ALL : LOCAL | RELAXED);
    atomic_store(&next_capture, 0);
    atomic_store(&captors_left, (int)opt.captors);
    for (uint64_t i = 0; i < opt.captors; i++) {
        captors[i].seed = opt.seed * 1009 + i * 2 + exchanged;
        MUST(pthread_create(&captors[i].thread, NULL, captor_main, &captors[i]));
    }
    for (uint64_t i = 0; i < opt.racers; i++) {
        racers[i].id = (unsigned int)i;
        racers[i].seed = opt.seed * 2003 + i * 2 + exchanged;
        racers[i].mode = exchanged ? modes[i % 2] : (int)cudaStreamCaptureModeGlobal;
        MUST(pthread_create(&racers[i].thread, NULL, racer_main, &racers[i]));
    }
    for (uint64_t i = 0; i < opt.captors; i++)
        MUST(pthread_join(captors[i].thread, NULL));
    for (uint64_t i = 0; i < opt.racers; i++)
        MUST(pthread_join(racers[i].thread, NULL));
    if (atomic_load(&broken))
        return BROKEN;
    /* Nothing is captured any more: what was kept back meanwhile is free again, and what is freed now is free at once.
     */
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(witness));
    MUST(bt_usable(BT_MIB));
    MUST(cudaMemGetInfo(&after, &total));
    if (after + WITNESS / 4 < before) {
        SAY("%zu MiB of memory are missing after all captures have ended\n", (before - after) / BT_MIB);
        atomic_fetch_add(&wrong, 1);
    }
    return FINE;
}

static void table_print(void)
{
    static const char *const names[MODES] = {"global", "thread-local", "relaxed"};

    printf("%-18s", "ending");
    for (int mode = 0; mode < MODES; mode++)
        printf(" %13s %5s", names[mode], "lost");
    printf("\n");
    for (int i = 0; i < ENDINGS; i++) {
        printf("%-18s", endings[i].name);
        for (int mode = 0; mode < MODES; mode++)
            printf(" %13llu %5llu", (unsigned long long)atomic_load(&counts[i][mode][0]),
                   (unsigned long long)atomic_load(&counts[i][mode][1]));
        printf("\n");
    }
    printf("captures %llu lost %llu wrong %llu replayed %llu allocations %llu looked at %llu foreign %llu\n",
           (unsigned long long)atomic_load(&ended), (unsigned long long)atomic_load(&lost),
           (unsigned long long)atomic_load(&wrong), (unsigned long long)atomic_load(&replayed),
           (unsigned long long)atomic_load(&allocs), (unsigned long long)atomic_load(&looked),
           (unsigned long long)atomic_load(&foreign));
}

static int option(const char *name, const char *value)
{
    static const struct {
        const char *name;
        uint64_t *value;
    } options[] = {{"--captures", &opt.captures}, {"--captors", &opt.captors},
                   {"--racers", &opt.racers},     {"--max-bytes", &opt.max_bytes},
                   {"--verify", &opt.verify},     {"--seconds", &opt.seconds},
                   {"--seed", &opt.seed}};

    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
        if (strcmp(name, options[i].name) == 0) {
            *options[i].value = strtoull(value, NULL, 0);
            return 0;
        }
    return -1;
}

int main(int argc, char **argv)
{
    pthread_t dog;

    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || option(argv[i], argv[i + 1])) {
            fprintf(stderr, "capture_race: bad options; see the head of capture_race.c\n");
            return 2;
        }
    if (!opt.captors || opt.captors > THREADS_MAX || opt.racers > THREADS_MAX || opt.max_bytes < 512 || !opt.verify) {
        fprintf(stderr, "capture_race: out of range; see the head of capture_race.c\n");
        return 2;
    }
    if (cudaFree(NULL) || bt_usable(BT_MIB) || pthread_create(&dog, NULL, watchdog, NULL))
        return 2;
    if (round_run(false) == FINE && !atomic_load(&stop))
        (void)round_run(true);
    atomic_store(&captors_left, -1);
    pthread_join(dog, NULL);
    table_print();
    if (atomic_load(&lost) || atomic_load(&foreign) || atomic_load(&wrong))
        return 1;
    return atomic_load(&broken) ? 2 : 0;
}
