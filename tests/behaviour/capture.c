/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - allocation beside and inside stream capture.
 *
 * What it is: captures survive what they natively survive, graphs replay the right bytes, memory freed meanwhile is not
 * handed out too early, and after a capture that failed everything works again.
 *
 * What it is not: frees of memory that a captured graph still uses, which is wrong natively too. In a global-mode
 * capture a cudaMalloc natively fails with 900 and destroys the capture; served from a cache it may succeed: then the
 * capture has to survive as well.
 */
#include "behaviour.h"

#define N ((size_t)64 << 10)

struct cap {
    cudaStream_t s;
    char *a, *b;
    cudaGraph_t graph;
};

/* Streams that capture: what a failed test leaves would otherwise be the next one's failure. */
static cudaStream_t capturing[2];

static void capturing_change(cudaStream_t from, cudaStream_t to)
{
    for (int i = 0; i < 2; i++)
        if (capturing[i] == from) {
            capturing[i] = to;
            return;
        }
}

static void capturing_end(void)
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

static int cap_init(struct cap *c)
{
    memset(c, 0, sizeof(*c));
    OK(cudaStreamCreateWithFlags(&c->s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&c->a, N));
    OK(cudaMalloc((void **)&c->b, N));
    TRY(bt_fill(c->a, N, 0));
    return bt_fill(c->b, N, 0);
}

static int cap_begin(struct cap *c, enum cudaStreamCaptureMode mode)
{
    OK(cudaStreamBeginCapture(c->s, mode));
    capturing_change(NULL, c->s);
    OK(cudaMemsetAsync(c->a, 0x21, N, c->s));
    return 0;
}

/* End a capture that has to be alive, and replay it. */
static int cap_end(struct cap *c)
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
static int cap_end_dead(struct cap *c)
{
    cudaGraph_t graph = NULL;

    capturing_change(c->s, NULL);
    EXPECT(cudaStreamEndCapture(c->s, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(graph == NULL);
    (void)cudaGetLastError();
    return 0;
}

static int cap_fini(struct cap *c)
{
    OK(cudaFree(c->a));
    OK(cudaFree(c->b));
    OK(cudaStreamDestroy(c->s));
    TRY(bt_usable(N));
    LAST(cudaSuccess);
    return 0;
}

/* The reuse race, with whatever going on around it: work in flight on a, free, malloc, write on b. Nothing here is
 * captured. */
static int race(cudaStream_t a, cudaStream_t b, char *out)
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

static int around(enum cudaStreamCaptureMode mode)
{
    struct cap c;
    void *p, *q;

    TRY(cap_init(&c));
    OK(cudaMalloc(&p, N));
    OK(cudaMalloc(&q, N));
    OK(cudaFree(p));
    TRY(cap_begin(&c, mode));
    TRY(cap_end(&c));
    OK(cudaFree(q));
    return cap_fini(&c);
}

static int around_global(void)
{
    return around(cudaStreamCaptureModeGlobal);
}

static int around_thread_local(void)
{
    return around(cudaStreamCaptureModeThreadLocal);
}

static int around_relaxed(void)
{
    return around(cudaStreamCaptureModeRelaxed);
}

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

static int malloc_in_global(void)
{
    return forbidden(cudaStreamCaptureModeGlobal, false);
}

static int free_in_global(void)
{
    return forbidden(cudaStreamCaptureModeGlobal, true);
}

static int malloc_in_thread_local(void)
{
    return forbidden(cudaStreamCaptureModeThreadLocal, false);
}

static int free_in_thread_local(void)
{
    return forbidden(cudaStreamCaptureModeThreadLocal, true);
}

/* Many sizes, so that some need the driver. All succeed; what was freed is not reused too early. */
static int busy_allocation(void *arg)
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

static int in_relaxed(void)
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

/* A thread-local capture is no business of other threads. */
static int beside_thread_local(void)
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
static int beside_global(void)
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

/* The documented way to allocate in a global capture. */
static int exchanged(void)
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
static int freed_before(void)
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
static int freed_during(void)
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

static int after_invalidated(void)
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
static int after_refused(void)
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
static int after_abandoned(void)
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
static int two_at_once(void)
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

/* The same through the driver's capture calls. */
static int by_driver(void)
{
    struct cap c;
    CUgraph graph;
    char *out;

    TRY(cap_init(&c));
    OK(cudaMalloc((void **)&out, N));
    OK(cuStreamBeginCapture((CUstream)c.s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)c.a, 1, N, (CUstream)c.s));
    TRY(busy_allocation(out));
    OK(cuStreamEndCapture((CUstream)c.s, &graph));
    OK(cuGraphDestroy(graph));
    TRY(bt_verify(out, N, 7));
    OK(cudaFree(out));
    TRY(works_again());
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
static int under_load(void)
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

/* Hardly ever not in a free. */
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

static int by_new_threads(void)
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

/* Another thread's free waits for the device, which waits for what the host does once its capture has begun. */
static int free_main(void *p)
{
    OK(cudaFree(p));
    return 0;
}

static int beside_waiting_free(void)
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
    if (cuStreamWaitValue32((CUstream)waiting, (CUdeviceptr)(uintptr_t)go, 1, CU_STREAM_WAIT_VALUE_GEQ))
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

static const struct bt_test tests[] = {
    {"around_global", around_global},
    {"around_thread_local", around_thread_local},
    {"around_relaxed", around_relaxed},
    {"malloc_in_global", malloc_in_global},
    {"free_in_global", free_in_global},
    {"malloc_in_thread_local", malloc_in_thread_local},
    {"free_in_thread_local", free_in_thread_local},
    {"in_relaxed", in_relaxed},
    {"beside_thread_local", beside_thread_local},
    {"beside_global", beside_global},
    {"exchanged", exchanged},
    {"freed_before", freed_before},
    {"freed_during", freed_during},
    {"after_invalidated", after_invalidated},
    {"after_refused", after_refused},
    {"after_abandoned", after_abandoned},
    {"two_at_once", two_at_once},
    {"by_driver", by_driver},
    {"under_load", under_load},
    {"by_new_threads", by_new_threads},
    {"beside_waiting_free", beside_waiting_free}, /* last: it makes the device strict */
    {NULL, NULL},
};

int main(int argc, char **argv)
{
    cudaFree(NULL);
    bt_cleanup = capturing_end;
    return bt_main(argc, argv, tests);
}
