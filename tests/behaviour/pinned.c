/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.c - pinned host memory is freed while copies from and to it are in flight, and written by the processor as
 * soon as it is handed out again: the device must see what was there at the copy.
 *
 * Natively cudaFreeHost waits for the device. With CUPOOL_HOST_POOL=1 it need not, and the pool must not hand memory
 * out before the work is over. Codes, flags and attributes are compared by the probe (tests/gpu/probe).
 */
#include <sys/mman.h>

#include "work.h"

#define SLOTS 8
#define LARGE (3 * BT_MIB)
/* The least that CUPOOL_HOST_POPULATE maps. */
#define POPULATED (256 * BT_MIB)
/* The thread sanitizer looks at every byte of them, and needs fewer. */
#if defined(__SANITIZE_THREAD__)
#define ROUNDS 10
#else
#define ROUNDS 40
#endif
/* More requests of the least size than a slab of the pool serves. */
#define SOME 50000

static const size_t sizes[] = {100, 5000, 64 * BT_KIB, 700 * BT_KIB, BT_MIB, LARGE};
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* The pool is on, and frees do not wait on the host: tests of the pool itself. */
static bool pooled_ordered(void)
{
    const char *pool = getenv("CUPOOL_HOST_POOL"), *policy = getenv("CUPOOL_FREE");

    return bt_preloaded() && pool && strcmp(pool, "1") == 0 && policy &&
           (strcmp(policy, "ordered") == 0 || strcmp(policy, "relaxed") == 0);
}

static _Atomic(int) go;

static void CUDART_CB wait_fn(void *arg)
{
    while (!go)
        bt_nap(100);
}

/* The free does not wait, and the block is not handed out before the work is over. It comes first: what the others'
 * threads have freed may serve before its block. */
BT_TEST(free_beside_work)
{
    if (!pooled_ordered())
        SKIP("natively the free waits");
    for (size_t i = 0; i < SIZES; i++) {
        /* Other free memory may be ready, too: as much as a slab, or some blocks. */
        const size_t most = 100 + 4 * BT_MIB / sizes[i];
        static unsigned char *some[SOME];
        unsigned char *p, *q;
        cudaStream_t stream;
        size_t n;

        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaMallocHost((void **)&p, sizes[i]));
        go = 0;
        OK(cudaLaunchHostFunc(stream, wait_fn, NULL));
        OK(cudaFreeHost(p)); /* a deadlock, if it waits */
        OK(cudaMallocHost((void **)&q, sizes[i]));
        CHECK(p != q);
        go = 1;
        OK(cudaStreamSynchronize(stream));
        for (n = 0; n < most && (n == 0 || some[n - 1] != p); n++) {
            if (n && n % (most / 100) == 0)
                bt_nap(1000); /* events may be over later than the stream that was waited for */
            OK(cudaMallocHost((void **)&some[n], sizes[i]));
        }
        CHECK(some[n - 1] == p);
        OK(cudaFreeHost(q));
        while (n)
            OK(cudaFreeHost(some[--n]));
        OK(cudaStreamDestroy(stream));
    }
    return 0;
}

struct worker {
    uint64_t seed;
    unsigned int devices;
};

/* Copies from memory that is freed at once, its successor is written at once. */
static int copies(void *arg)
{
    struct worker *w = arg;
    unsigned char *dev[SLOTS], *p;
    cudaStream_t stream;

    OK(cudaSetDevice((int)(w->seed % w->devices)));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int i = 0; i < SLOTS; i++)
        OK(cudaMalloc((void **)&dev[i], LARGE));
    for (int round = 0; round < ROUNDS; round++) {
        size_t used[SLOTS];

        for (int i = 0; i < SLOTS; i++) {
            used[i] = sizes[bt_random(&w->seed) % SIZES];
            if (bt_random(&w->seed) % 4 == 0)
                TRY(bt_slow(stream, 300));
            OK(cudaMallocHost((void **)&p, used[i]));
            memset(p, round * SLOTS + i, used[i]);
            OK(cudaMemcpyAsync(dev[i], p, used[i], cudaMemcpyHostToDevice, stream));
            OK(cudaFreeHost(p));
        }
        OK(cudaStreamSynchronize(stream));
        for (int i = 0; i < SLOTS; i++)
            TRY(bt_verify(dev[i], used[i], (round * SLOTS + i) & 0xff));
    }
    for (int i = 0; i < SLOTS; i++)
        OK(cudaFree(dev[i]));
    OK(cudaStreamDestroy(stream));
    return 0;
}

static int copies_one(void)
{
    struct worker w = {1, 1};

    return copies(&w);
}
BT_ADD(copies, .fn = copies_one)

BT_TEST(copies_threads)
{
    struct bt_thread threads[4];
    struct worker w[4];
    int devices, rc = 0;

    OK(cudaGetDeviceCount(&devices));
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){(uint64_t)i + 2, (unsigned int)devices};
        TRY(bt_thread_start(&threads[i], copies, &w[i]));
    }
    for (int i = 0; i < 4; i++)
        rc = bt_thread_join(&threads[i]) ? 1 : rc;
    return rc;
}

/* Written by the device when it is freed: what it writes must not end up in the successor. */
BT_TEST(written_by_device)
{
    unsigned char *dev, *p, *q;
    cudaStream_t stream;

    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, LARGE));
    TRY(bt_fill(dev, LARGE, 0xee));
    for (size_t i = 0; i < SIZES; i++) {
        OK(cudaHostAlloc((void **)&p, sizes[i], cudaHostAllocMapped));
        TRY(bt_slow(stream, BT_SLOW_US));
        OK(cudaMemcpyAsync(p, dev, sizes[i], cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeHost(p));
        OK(cudaHostAlloc((void **)&q, sizes[i], cudaHostAllocMapped));
        memset(q, 1, sizes[i]);
        OK(cudaStreamSynchronize(stream));
        for (size_t j = 0; j < sizes[i]; j++)
            CHECK(q[j] == 1);
        OK(cudaFreeHost(q));
    }
    OK(cudaFree(dev));
    OK(cudaStreamDestroy(stream));
    return 0;
}

/* Freed, and another one written, while an unrelated stream captures. */
BT_TEST(in_capture)
{
    cudaStream_t stream, busy;
    unsigned char *dev, *p, *q;

    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&busy, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, LARGE));
    for (size_t i = 0; i < SIZES; i++) {
        cudaGraph_t graph;

        OK(cudaMallocHost((void **)&p, sizes[i]));
        memset(p, 1, sizes[i]);
        TRY(bt_slow(busy, BT_SLOW_US));
        OK(cudaMemcpyAsync(dev, p, sizes[i], cudaMemcpyHostToDevice, busy));
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
        OK(cudaFreeHost(p));
        OK(cudaMallocHost((void **)&q, sizes[i]));
        memset(q, 2, sizes[i]);
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphDestroy(graph));
        OK(cudaStreamSynchronize(busy));
        TRY(bt_verify(dev, sizes[i], 1));
        OK(cudaFreeHost(q));
    }
    OK(cudaFree(dev));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(busy));
    return 0;
}

/* The host reads what the device has written, and has waited for it by no more than a free of other memory. */
BT_TEST(read_after_free)
{
    const char *policy = getenv("CUPOOL_FREE");

    if (policy && (strcmp(policy, "ordered") == 0 || strcmp(policy, "relaxed") == 0))
        SKIP("these do not keep it");
    for (size_t i = 0; i < SIZES; i++) {
        unsigned char *dev, *p, *q;
        cudaStream_t stream;

        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&dev, sizes[i]));
        OK(cudaMallocHost((void **)&p, sizes[i]));
        OK(cudaMallocHost((void **)&q, sizes[i]));
        TRY(bt_fill(dev, sizes[i], 0xcd));
        memset(p, 1, sizes[i]);
        TRY(bt_slow(stream, BT_SLOW_US));
        OK(cudaMemcpyAsync(p, dev, sizes[i], cudaMemcpyDeviceToHost, stream));
        OK(cudaFreeHost(q));
        CHECK(p[0] == 0xcd && p[sizes[i] - 1] == 0xcd);
        OK(cudaFreeHost(p));
        OK(cudaFree(dev));
        OK(cudaStreamDestroy(stream));
    }
    return 0;
}

/* How work that is launched after a free reads what was written before it. */
enum reads { ON_STREAM, BY_PLAIN_COPY, ON_PEER, AFTER_CAPTURE };

/* Work on one stream comes before a free of memory that it does not use, and a read on another one after it. */
static int later_work(const void *reads)
{
    const enum reads how = *(const enum reads *)reads;
    const char *policy = getenv("CUPOOL_FREE");
    cudaStream_t writer, reader, capturing;
    unsigned char *dev, *out, *other;
    cudaGraph_t graph;

    if (policy && strcmp(policy, "relaxed") == 0)
        SKIP("it puts no free of pinned memory in order");
    if (how == ON_PEER && policy && strcmp(policy, "ordered") == 0)
        SKIP("it orders no work of another device");
    if (how == ON_PEER) {
        TRY(bt_devices(2));
        OK(cudaSetDevice(1));
    }
    OK(cudaStreamCreateWithFlags(&reader, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&out, 64));
    TRY(bt_fill(out, 64, 0));
    OK(cudaSetDevice(0));
    TRY(bt_work_begin());
    OK(cudaStreamCreateWithFlags(&writer, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, 64));
    OK(cudaMallocHost((void **)&other, BT_MIB));
    TRY(bt_fill(dev, 64, 1));
    TRY(bt_work(writer, NULL, 5 * BT_SLOW_US));
    OK(cudaMemsetAsync(dev, 7, 64, writer));
    if (how == AFTER_CAPTURE)
        OK(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeRelaxed));
    OK(cudaFreeHost(other));
    if (how == AFTER_CAPTURE) {
        OK(cudaStreamEndCapture(capturing, &graph));
        OK(cudaGraphDestroy(graph));
    }
    if (how == BY_PLAIN_COPY)
        return bt_verify(dev, 64, 7);
    if (how == ON_PEER) {
        OK(cudaSetDevice(1));
        OK(cudaMemcpyPeerAsync(out, 1, dev, 0, 64, reader));
    } else {
        OK(cudaMemcpyAsync(out, dev, 64, cudaMemcpyDeviceToDevice, reader));
    }
    OK(cudaStreamSynchronize(reader));
    OK(cudaSetDevice(0));
    OK(cudaDeviceSynchronize());
    return bt_verify(out, 64, 7);
}
BT_ROW(later_on_a_stream, later_work, &(const enum reads){ON_STREAM})
BT_ROW(later_by_a_plain_copy, later_work, &(const enum reads){BY_PLAIN_COPY})
BT_ROW(later_after_a_capture, later_work, &(const enum reads){AFTER_CAPTURE})
BT_ROW(later_on_a_peer, later_work, &(const enum reads){ON_PEER})

/* A context takes its memory along; the next one gets other memory. */
BT_TEST(reset)
{
    for (size_t i = 0; i < SIZES; i++) {
        void *p, *q;

        OK(cudaMallocHost(&p, sizes[i]));
        OK(cudaMallocHost(&q, sizes[i]));
        memset(p, 1, sizes[i]);
        OK(cudaFreeHost(q));
        OK(cudaDeviceReset());
        EXPECT(cudaFreeHost(p), cudaErrorInvalidValue);
        LAST(cudaErrorInvalidValue);
        OK(cudaMallocHost(&p, sizes[i]));
        memset(p, 2, sizes[i]);
        OK(cudaFreeHost(p));
    }
    return 0;
}

/* The primary context has ended and is current: the driver refuses to free another one's memory, and the runtime begins
 * the primary one anew. */
BT_TEST(free_after_end)
{
    CUcontext primary, other;
    void *p, *q;

    for (size_t i = 0; i < SIZES; i++) {
        OK(cudaFree(NULL));
        OK(cuCtxGetCurrent(&primary));
        TRY(bt_context(&other));
        OK(cuMemAllocHost(&p, sizes[i]));
        OK(cuMemAllocHost(&q, sizes[i]));
        OK(cuCtxSetCurrent(primary));
        OK(cuDevicePrimaryCtxReset(0));
        EXPECT(cuMemFreeHost(p), CUDA_ERROR_CONTEXT_IS_DESTROYED);
        memset(p, 1, sizes[i]);
        OK(cudaFreeHost(q));
        OK(cuMemFreeHost(p));
        EXPECT(cuMemFreeHost(p), CUDA_ERROR_INVALID_VALUE);
        OK(cuCtxDestroy(other));
    }
    return 0;
}

BT_TEST(wrong_frees)
{
    for (size_t i = 0; i < SIZES; i++) {
        unsigned char *p;

        OK(cudaMallocHost((void **)&p, sizes[i]));
        EXPECT(cudaFreeHost(p + sizes[i] / 2), cudaErrorInvalidValue);
        LAST(cudaErrorInvalidValue);
        memset(p, 1, sizes[i]);
        OK(cudaFreeHost(p));
        EXPECT(cudaFreeHost(p), cudaErrorInvalidValue);
        LAST(cudaErrorInvalidValue);
    }
    return 0;
}

static int needs_populate(void)
{
    const char *populate = getenv("CUPOOL_HOST_POPULATE");

    if (!populate || strcmp(populate, "1") != 0)
        SKIP("needs CUPOOL_HOST_POPULATE=1");
    return 0;
}

/* Beyond the bound, so that the free gives the memory back at once: work still reads it. */
BT_TEST(populated)
{
    unsigned char *dev, *p;
    cudaStream_t stream;

    TRY(needs_populate());
    for (int round = 0; round < 3; round++) {
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&dev, LARGE));
        OK(cudaMallocHost((void **)&p, POPULATED));
        memset(p + POPULATED - LARGE, round + 1, LARGE);
        TRY(bt_slow(stream, BT_SLOW_US));
        OK(cudaMemcpyAsync(dev, p + POPULATED - LARGE, LARGE, cudaMemcpyHostToDevice, stream));
        OK(cudaFreeHost(p));
        OK(cudaStreamSynchronize(stream));
        TRY(bt_verify(dev, LARGE, round + 1));
        OK(cudaFree(dev));
        OK(cudaStreamDestroy(stream));
    }
    return 0;
}

/* The free waits for no other device, whose work may wait for this thread, and the memory is gone. */
BT_TEST(populated_beside_another_device)
{
    static int word;
    cudaStream_t stream;
    unsigned char *p;
    void *dev;
    int rc;

    TRY(needs_populate());
    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    TRY(bt_work_begin());
    OK(cudaMalloc(&dev, 64));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    bt_work_reset(&word);
    TRY(bt_work(stream, &word, 60000000));
    OK(cudaSetDevice(0));
    OK(cudaMallocHost((void **)&p, POPULATED));
    OK(cudaFreeHost(p));
    rc = msync(p, 4096, MS_ASYNC);
    bt_work_end(&word);
    CHECK(rc == -1);
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(dev));
    OK(cudaStreamDestroy(stream));
    return 0;
}
