/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - is a freed buffer handed out while work on it is still in flight?
 *
 * This is the reuse race of shared/workloads without kernels. A slow stream uses a buffer, the host frees it, allocates
 * again and writes on another stream; the tests combine every kind of stream, of free and of interference. A pool that
 * hands freed blocks straight back fails each of them. No test relies on cudaFree for the host's sake: each
 * synchronises before it reads. meson builds it a second time with -DCUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
#include "behaviour.h"

#define ROUNDS 4

enum how { FREE, FREE_DRIVER, FREE_ASYNC, FREE_THREAD, FREE_DEVICE };

struct race {
    cudaStream_t a, b;
    size_t n;
    enum how how;
    bool destroy_a; /* before the free */
    bool create_b;  /* after the free */
    char *t, *u, *out;
};

static int free_main(void *p)
{
    OK(cudaFree(p));
    return 0;
}

static int race_free(const struct race *r)
{
    struct bt_thread thread;

    switch (r->how) {
    case FREE:
        OK(cudaFree(r->t));
        break;
    case FREE_DRIVER:
        OK(cuMemFree(BT_ADDRESS(r->t)));
        break;
    case FREE_ASYNC:
        OK(cudaFreeAsync(r->t, r->a));
        break;
    case FREE_THREAD:
        TRY(bt_thread_start(&thread, free_main, r->t));
        TRY(bt_thread_join(&thread));
        break;
    case FREE_DEVICE:
        OK(cudaSetDevice(1));
        OK(cudaFree(r->t));
        OK(cudaSetDevice(0));
        break;
    }
    return 0;
}

/* After the buffer's last use was enqueued on a: free it, get another, write that one on b. */
static int race_reuse(struct race *r, int byte)
{
    if (r->destroy_a)
        OK(cudaStreamDestroy(r->a));
    TRY(race_free(r));
    OK(cudaMalloc((void **)&r->u, r->n));
    if (r->create_b)
        OK(cudaStreamCreateWithFlags(&r->b, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(r->u, byte, r->n, r->b));
    OK(cudaStreamSynchronize(r->b));
    if (r->create_b)
        OK(cudaStreamDestroy(r->b));
    if (r->destroy_a)
        OK(cudaDeviceSynchronize());
    else
        OK(cudaStreamSynchronize(r->a));
    return 0;
}

/* The old owner still reads: it must read its own bytes. */
static int race_read(struct race *r)
{
    OK(cudaMalloc((void **)&r->out, r->n));
    TRY(bt_fill(r->out, r->n, 0));
    OK(cudaMalloc((void **)&r->t, r->n));
    OK(cudaMemsetAsync(r->t, 7, r->n, r->a));
    TRY(bt_slow(r->a, BT_SLOW_US));
    OK(cudaMemcpyAsync(r->out, r->t, r->n, cudaMemcpyDeviceToDevice, r->a));
    TRY(race_reuse(r, 0xff));
    TRY(bt_verify(r->out, r->n, 7));
    TRY(bt_verify(r->u, r->n, 0xff));
    OK(cudaFree(r->u));
    OK(cudaFree(r->out));
    return 0;
}

/* The old owner still writes: the new owner must not see it. */
static int race_write(struct race *r)
{
    OK(cudaMalloc((void **)&r->t, r->n));
    TRY(bt_slow(r->a, BT_SLOW_US));
    OK(cudaMemsetAsync(r->t, 7, r->n, r->a));
    TRY(race_reuse(r, 0xee));
    TRY(bt_verify(r->u, r->n, 0xee));
    OK(cudaFree(r->u));
    return 0;
}

static int race_run(struct race *r)
{
    static const size_t sizes[] = {16 << 10, 1000, 3 << 20, 512 << 10};

    for (int i = 0; i < ROUNDS; i++) {
        r->n = sizes[i % 4];
        if (r->destroy_a)
            OK(cudaStreamCreateWithFlags(&r->a, cudaStreamNonBlocking));
        TRY(race_read(r));
        if (r->destroy_a)
            OK(cudaStreamCreateWithFlags(&r->a, cudaStreamNonBlocking));
        TRY(race_write(r));
    }
    return 0;
}

/* Of new streams. */
static int race_flags(unsigned a, unsigned b, enum how how)
{
    struct race r = {.how = how};

    OK(cudaStreamCreateWithFlags(&r.a, a));
    OK(cudaStreamCreateWithFlags(&r.b, b));
    TRY(race_run(&r));
    OK(cudaStreamDestroy(r.a));
    OK(cudaStreamDestroy(r.b));
    return 0;
}

static int race_how(const void *how)
{
    return race_flags(cudaStreamNonBlocking, cudaStreamNonBlocking, *(const enum how *)how);
}
BT_ROW(nonblocking, race_how, &(const enum how){FREE})
BT_ROW(by_driver, race_how, &(const enum how){FREE_DRIVER})
BT_ROW(by_free_async, race_how, &(const enum how){FREE_ASYNC})
BT_ROW(by_thread, race_how, &(const enum how){FREE_THREAD})

/* One side is a built-in stream, then the other. */
static int race_builtin(const void *builtin)
{
    struct race r = {.how = FREE, .a = (cudaStream_t)(uintptr_t)builtin};

    OK(cudaStreamCreateWithFlags(&r.b, cudaStreamNonBlocking));
    TRY(race_run(&r));
    r.a = r.b;
    r.b = (cudaStream_t)(uintptr_t)builtin;
    TRY(race_run(&r));
    OK(cudaStreamDestroy(r.a));
    return 0;
}
BT_ROW(null_stream, race_builtin, NULL)
BT_ROW(legacy, race_builtin, cudaStreamLegacy)
BT_ROW(per_thread, race_builtin, cudaStreamPerThread)

BT_TEST(blocking)
{
    return race_flags(cudaStreamDefault, cudaStreamDefault, FREE);
}

BT_TEST(mixed)
{
    TRY(race_flags(cudaStreamDefault, cudaStreamNonBlocking, FREE));
    return race_flags(cudaStreamNonBlocking, cudaStreamDefault, FREE);
}

BT_TEST(legacy_and_per_thread)
{
    struct race r = {.a = cudaStreamLegacy, .b = cudaStreamPerThread, .how = FREE};

    TRY(race_run(&r));
    r.a = cudaStreamPerThread;
    r.b = cudaStreamLegacy;
    return race_run(&r);
}

BT_TEST(priority)
{
    struct race r = {.how = FREE};
    int least, greatest;

    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    OK(cudaStreamCreateWithPriority(&r.a, cudaStreamNonBlocking, least));
    OK(cudaStreamCreateWithPriority(&r.b, cudaStreamNonBlocking, greatest));
    TRY(race_run(&r));
    OK(cudaStreamDestroy(r.a));
    OK(cudaStreamDestroy(r.b));
    return 0;
}

BT_TEST(created_after)
{
    struct race r = {.how = FREE, .create_b = true};

    OK(cudaStreamCreateWithFlags(&r.a, cudaStreamNonBlocking));
    TRY(race_run(&r));
    OK(cudaStreamDestroy(r.a));
    return 0;
}

BT_TEST(destroyed_before)
{
    struct race r = {.how = FREE, .destroy_a = true};

    OK(cudaStreamCreateWithFlags(&r.b, cudaStreamNonBlocking));
    TRY(race_run(&r));
    OK(cudaStreamDestroy(r.b));
    return 0;
}

BT_TEST(by_device)
{
    TRY(bt_devices(2));
    return race_flags(cudaStreamNonBlocking, cudaStreamNonBlocking, FREE_DEVICE);
}

struct flow {
    cudaStream_t stream;
    int id;
};

#define FLOW_ROUNDS 150

/* Each round's buffer is copied out and freed at once; the copies accumulate and are checked at the end. */
static int flow_run(void *arg)
{
    const struct flow *f = (const struct flow *)arg;
    const size_t n = 8192;
    char *out;

    OK(cudaMalloc((void **)&out, n * FLOW_ROUNDS));
    for (int i = 0; i < FLOW_ROUNDS; i++) {
        char *t;

        OK(cudaMalloc((void **)&t, n));
        OK(cudaMemsetAsync(t, f->id * 31 + i, n, f->stream));
        if (i % 16 == 0)
            TRY(bt_slow(f->stream, 500));
        OK(cudaMemcpyAsync(out + (size_t)i * n, t, n, cudaMemcpyDeviceToDevice, f->stream));
        OK(cudaFree(t));
    }
    OK(cudaStreamSynchronize(f->stream));
    for (int i = 0; i < FLOW_ROUNDS; i++)
        TRY(bt_verify(out + (size_t)i * n, n, f->id * 31 + i));
    OK(cudaFree(out));
    return 0;
}

/* Four threads with a stream each, everybody's blocks wandering between them. */
BT_TEST(threads)
{
    struct flow flow[4];
    struct bt_thread thread[4];
    int rc = 0;

    OK(cudaFree(NULL));
    for (int i = 0; i < 4; i++) {
        flow[i].id = i + 1;
        flow[i].stream = cudaStreamPerThread;
        if (i < 3)
            OK(cudaStreamCreateWithFlags(&flow[i].stream, i % 2 ? cudaStreamDefault : cudaStreamNonBlocking));
        TRY(bt_thread_start(&thread[i], flow_run, &flow[i]));
    }
    for (int i = 0; i < 4; i++)
        rc |= bt_thread_join(&thread[i]);
    for (int i = 0; i < 3; i++)
        OK(cudaStreamDestroy(flow[i].stream));
    return rc;
}
