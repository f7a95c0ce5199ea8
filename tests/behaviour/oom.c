/* SPDX-License-Identifier: Apache-2.0 */
/*
 * oom.c - at the end of the device's memory.
 *
 * The tests fill the memory to refusal, fragment it, and refill it; requests that natively are served are served, by
 * cudaMalloc and by all other calls. On a large device one block first takes most of the memory, so that
 * BEHAVIOUR_MAX_MEM (4 GiB) are left. The tests do not check how much a pool keeps.
 */
#define BT_BEGIN() cudaFree(NULL)
#include "behaviour.h"

#define BLOCKS 512

static void *ballast;
static void *block[BLOCKS];
static size_t size[BLOCKS];
static int blocks;
static cudaStream_t freeing; /* all blocks but the last one are freed there; NULL: by cudaFree */

/* The driver gives what a stream has freed back when the stream is synchronised. */
static int all_free(void)
{
    for (int i = 0; i < blocks; i++) {
        if (freeing && i == blocks - 1)
            OK(cudaStreamSynchronize(freeing));
        OK(freeing && i + 1 < blocks ? cudaFreeAsync(block[i], freeing) : cudaFree(block[i]));
    }
    blocks = 0;
    return 0;
}

static int end(void)
{
    TRY(all_free());
    OK(cudaFree(ballast));
    ballast = NULL;
    return bt_usable(4096);
}

/* Leave at most BEHAVIOUR_MAX_MEM free. */
static int begin(size_t *ret_free)
{
    size_t avail, total;

    TRY(end()); /* what a failed test left */
    OK(cudaMemGetInfo(&avail, &total));
    if (avail > bt_max_mem() + BT_GIB)
        OK(cudaMalloc(&ballast, avail - bt_max_mem()));
    OK(cudaMemGetInfo(ret_free, &total));
    return 0;
}

/* Take blocks of lo..hi bytes until one is refused; then smaller ones down to lo. Each block's ends are marked. */
static int fill(size_t lo, size_t hi, uint64_t seed)
{
    size_t n = 0;
    int rc = 0;

    for (blocks = 0; blocks < BLOCKS; blocks++) {
        n = rc ? lo : lo + bt_random(&seed) % (hi - lo + 1);
        rc = (int)cudaMalloc(&block[blocks], n);
        if (rc && n > lo) {
            LAST(cudaErrorMemoryAllocation);
            rc = (int)cudaMalloc(&block[blocks], n = lo);
        }
        if (rc)
            break;
        size[blocks] = n;
        OK(cudaMemset(block[blocks], blocks, 64));
        OK(cudaMemset((char *)block[blocks] + n - 64, blocks, 64));
    }
    EXPECT(rc, cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    LAST(cudaSuccess);
    CHECK(blocks > 4);
    return 0;
}

static int marks_check(void)
{
    for (int i = 0; i < blocks; i++)
        if (block[i]) {
            TRY(bt_verify(block[i], 64, i));
            TRY(bt_verify((char *)block[i] + size[i] - 64, 64, i));
        }
    return 0;
}

/* Free every second block; returns what that gave back. */
static int thin(size_t *ret_freed)
{
    *ret_freed = 0;
    for (int i = 0; i < blocks; i += 2) {
        OK(cudaFree(block[i]));
        block[i] = NULL;
        *ret_freed += size[i];
    }
    return 0;
}

/* Filled, every second freed: one block of nearly all that was freed is natively served, since pages need not be
 * neighbours. */
BT_TEST(fragmented)
{
    size_t avail, freed;
    void *p = NULL;

    TRY(begin(&avail));
    for (int round = 0; round < 3; round++) {
        size_t lo = avail / 64 < 64 * BT_MIB ? avail / 64 : 64 * BT_MIB;

        TRY(fill(lo, 4 * lo, (uint64_t)round));
        TRY(marks_check());
        TRY(thin(&freed));
        OK(cudaMalloc(&p, freed - freed / 16));
        TRY(bt_fill(p, 4096, 1));
        TRY(marks_check());
        OK(cudaFree(p));
        TRY(all_free());
    }
    return end();
}

/* All of the memory in blocks of one size, then of half that size, and so on. */
BT_TEST(reshaped)
{
    size_t avail, now, total;

    TRY(begin(&avail));
    for (size_t n = avail / 3; n > avail / 200; n /= 2) {
        size_t got = 0, per = (n + 2 * BT_MIB - 1) & ~(2 * BT_MIB - 1); /* the driver's pages */

        for (blocks = 0; blocks < BLOCKS && cudaMalloc(&block[blocks], n) == cudaSuccess; blocks++)
            got += per;
        LAST(blocks < BLOCKS ? cudaErrorMemoryAllocation : cudaSuccess);
        if (got + per + avail / 16 < avail)
            return BT_FAIL("%d blocks of %zu of %zu", blocks, n, avail);
        TRY(all_free());
        OK(cudaMemGetInfo(&now, &total));
        CHECK(now + 32 * BT_MIB >= avail);
    }
    return end();
}

/* Everything, after small and large blocks, as one. */
BT_TEST(all_as_one)
{
    static void *small[3000];
    size_t avail;
    void *p = NULL;

    TRY(begin(&avail));
    for (int i = 0; i < 3000; i++)
        OK(cudaMalloc(&small[i], (size_t)(i % 50 + 1) * 1000));
    TRY(fill(avail / 40, avail / 10, 5));
    for (int i = 0; i < 3000; i++)
        OK(cudaFree(small[i]));
    TRY(all_free());
    OK(cudaMalloc(&p, avail - avail / 32 - 16 * BT_MIB));
    TRY(bt_fill(p, 4096, 1));
    OK(cudaFree(p));
    return end();
}

/* Cached memory does not stand in the way of calls that no pool serves. */
BT_TEST(others_served)
{
    size_t avail, n, pitch;
    cudaStream_t s;
    cudaMemPool_t pool;
    void *p = NULL;

    TRY(begin(&avail));
    n = avail / 4 * 3;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int round = 0; round < 3; round++) {
        TRY(fill(avail / 40, avail / 10, (uint64_t)round + 9));
        TRY(all_free());
        if (round == 0) {
            OK(cudaMallocPitch(&p, &pitch, n / 64, 64));
            OK(cudaFree(p));
        } else if (round == 1) {
            OK(cudaMallocAsync(&p, n, s));
            OK(cudaFreeAsync(p, s));
            OK(cudaStreamSynchronize(s));
            OK(cudaDeviceGetDefaultMemPool(&pool, 0));
            OK(cudaMemPoolTrimTo(pool, 0));
        } else {
            CUdeviceptr q;

            OK(cuMemAllocPitch(&q, &pitch, n / 64, 64, 16));
            OK(cuMemFree(q));
        }
    }
    OK(cudaStreamDestroy(s));
    return end();
}

struct fighter {
    size_t budget;
    uint64_t seed;
};

/* Stay within a budget: everything has to be served. */
static int fight(void *arg)
{
    const struct fighter *f = (const struct fighter *)arg;
    uint64_t seed = f->seed;
    void *p[6] = {NULL};

    for (int i = 0; i < 200; i++) {
        int k = (int)(bt_random(&seed) % 6);

        OK(cudaFree(p[k]));
        OK(cudaMalloc(&p[k], 1 + bt_random(&seed) % (f->budget / 6)));
    }
    for (int k = 0; k < 6; k++)
        OK(cudaFree(p[k]));
    return 0;
}

/* Four threads that together need at most 85 % of the memory, natively never refused. */
BT_TEST(several_threads)
{
    struct bt_thread t[4];
    struct fighter f[4];
    size_t avail;
    int rc = 0;

    TRY(begin(&avail));
    for (int i = 0; i < 4; i++) {
        f[i].budget = avail / 100 * 85 / 4;
        f[i].seed = (uint64_t)i + 1;
        TRY(bt_thread_start(&t[i], fight, &f[i]));
    }
    for (int i = 0; i < 4; i++)
        rc |= bt_thread_join(&t[i]);
    TRY(rc);
    return end();
}

/* All blocks are freed, and so much is asked for. */
static int ask(void *size_wanted)
{
    void *p;

    TRY(all_free());
    OK(cudaMalloc(&p, *(size_t *)size_wanted));
    OK(cudaFree(p));
    return 0;
}

/* While a stream captures in this mode, another thread frees all blocks, asks for so much and gets it. */
static int served_beside_capture(enum cudaStreamCaptureMode mode, size_t want)
{
    struct bt_thread thread;
    cudaStream_t stream;
    cudaGraph_t graph;

    OK(cudaStreamCreate(&stream));
    OK(cudaStreamBeginCapture(stream, mode));
    TRY(bt_thread_start(&thread, ask, &want));
    TRY(bt_thread_join(&thread));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
    return 0;
}

/* A request that natively the driver serves while another thread captures: nothing is in use, however much is held. */
BT_TEST(beside_capture)
{
    static const enum cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
    size_t avail;
    void *p;

    TRY(begin(&avail));
    for (int i = 0; i < 2; i++) {
        OK(cudaMalloc(&p, avail / 16 * 11));
        OK(cudaFree(p));
        OK(cudaDeviceSynchronize());
        TRY(served_beside_capture(modes[i], avail / 16 * 13));
    }
    return end();
}

/* Memory freed during the capture can be had before it ends, whether one large block or many small ones. */
BT_TEST(freed_beside_capture)
{
    static const size_t parts[] = {1, 64};
    size_t avail;

    TRY(begin(&avail));
    for (int i = 0; i < 2; i++) {
        for (blocks = 0; blocks < (int)parts[i]; blocks++)
            OK(cudaMalloc(&block[blocks], avail / 16 * 11 / parts[i]));
        TRY(served_beside_capture(cudaStreamCaptureModeThreadLocal, avail - 32 * BT_MIB));
    }
    return end();
}

/* So can memory that a stream has freed, once a free has waited. */
BT_TEST(freed_by_stream_beside_capture)
{
    size_t avail;

    TRY(begin(&avail));
    for (blocks = 0; blocks < 2; blocks++)
        OK(cudaMalloc(&block[blocks], avail / 16 * 5));
    OK(cudaStreamCreateWithFlags(&freeing, cudaStreamNonBlocking));
    TRY(served_beside_capture(cudaStreamCaptureModeThreadLocal, avail - 32 * BT_MIB));
    OK(cudaStreamDestroy(freeing));
    freeing = NULL;
    return end();
}

/* Blocks that CUPOOL_FREE=relaxed has kept since they were freed, and that can be ordered no more during the capture.
 */
BT_TEST(freed_before_capture)
{
    enum { PIECES = 6 };
    const size_t piece = 8 * BT_MIB;
    size_t avail;
    void *p[PIECES];

    TRY(begin(&avail));
    for (int i = 0; i < PIECES; i++)
        OK(cudaMalloc(&p[i], piece));
    for (int i = 0; i < PIECES; i++)
        OK(cudaFree(p[i]));
    OK(cudaDeviceSynchronize());
    TRY(served_beside_capture(cudaStreamCaptureModeThreadLocal, avail - PIECES * piece / 2));
    return end();
}
