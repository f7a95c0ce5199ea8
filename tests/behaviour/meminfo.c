/* SPDX-License-Identifier: Apache-2.0 */
/*
 * meminfo.c - what cudaMemGetInfo and cuMemGetInfo say before, during and after.
 *
 * Programs size themselves by these figures. Memory that a pool keeps back but would hand out has to count as free. The
 * figures are not exact: other processes and the driver's own needs move them by a few MiB.
 */
#define BT_BEGIN() cudaFree(NULL)
#include "behaviour.h"

#include <dlfcn.h>

#define SLOP (8 * BT_MIB)

BT_TEST(plain)
{
    size_t avail = 0, total = 0, avail2 = 0, total2 = 0;

    OK(cudaMemGetInfo(&avail, &total));
    CHECK(avail > 0 && avail <= total);
    OK(cuMemGetInfo(&avail2, &total2));
    CHECK(total == total2);
    CHECK(avail2 + SLOP >= avail && avail + SLOP >= avail2);
    return 0;
}

/* When nothing is on its way any more: what comes to the driver bit by bit counts as on its way until all has come. */
static int info(size_t *avail, size_t *total)
{
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(avail, total));
    return 0;
}

static int moves(size_t n)
{
    size_t before, during, after, total, total2;
    void *p = NULL;

    TRY(info(&before, &total));
    OK(cudaMalloc(&p, n));
    TRY(info(&during, &total2));
    CHECK(total == total2);
    CHECK(during + n <= before);
    CHECK(during + n + SLOP + 64 * BT_MIB >= before);
    OK(cudaFree(p));
    TRY(info(&after, &total2));
    CHECK(total == total2);
    CHECK(after + SLOP >= before);
    return 0;
}

BT_TEST(follows_malloc)
{
    OK(cudaFree(NULL));
    TRY(moves(64 * BT_MIB));
    TRY(moves(64 * BT_MIB)); /* the second comes from the cache */
    return moves(256 * BT_MIB);
}

BT_TEST(follows_many)
{
    size_t before, during, after, total;
    void *p[16];

    TRY(info(&before, &total));
    for (int i = 0; i < 16; i++)
        OK(cudaMalloc(&p[i], 16 * BT_MIB));
    TRY(info(&during, &total));
    CHECK(during + 256 * BT_MIB <= before);
    for (int i = 0; i < 16; i++)
        OK(cudaFree(p[i]));
    TRY(info(&after, &total));
    CHECK(after + SLOP >= before);
    return 0;
}

/* Either out-parameter may be missing. */
BT_TEST(null_arguments)
{
    size_t x = 0, y = 0, z = 0;

    OK(cudaMemGetInfo(&x, &z));
    OK(cudaMemGetInfo(&y, NULL));
    CHECK(y + SLOP >= x && x + SLOP >= y);
    y = 0;
    OK(cudaMemGetInfo(NULL, &y));
    CHECK(y == z);
    OK(cudaMemGetInfo(NULL, NULL));
    y = 0;
    OK(cuMemGetInfo(NULL, &y));
    CHECK(y == z);
    OK(cuMemGetInfo(&y, NULL));
    CHECK(y > 0);
    LAST(cudaSuccess);
    return 0;
}

/* The memory that it calls free can be had. */
BT_TEST(free_can_be_had)
{
    size_t avail, total, n;
    void *p = NULL;

    OK(cudaMemGetInfo(&avail, &total));
    n = avail - avail / 8;
    if (n > 16 * bt_max_mem())
        n = 16 * bt_max_mem();
    OK(cudaMalloc(&p, n));
    OK(cudaMemset((char *)p + n - 64, 1, 64));
    TRY(bt_verify((char *)p + n - 64, 64, 1));
    OK(cudaFree(p));
    return 0;
}

BT_TEST(each_device)
{
    size_t a0, t0, a1, t1, b0, b1;
    void *p = NULL, *past;
    cudaStream_t stream;

    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    TRY(info(&a1, &t1));
    OK(cudaSetDevice(0));
    TRY(info(&a0, &t0));
    OK(cudaMalloc(&p, 128 * BT_MIB));
    TRY(info(&b0, &t0));
    OK(cudaSetDevice(1));
    TRY(info(&b1, &t1));
    CHECK(b0 + 128 * BT_MIB <= a0);
    CHECK(b1 + SLOP >= a1);
    /* Memory past any pool: no figure of this device is near its total, which hides an excess. */
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&past, 256 * BT_MIB, stream));
    TRY(info(&a1, &t1));
    OK(cudaFree(p)); /* of device 0: device 1 has no more for that */
    TRY(info(&b1, &t1));
    CHECK(b1 <= a1 + SLOP && a1 <= b1 + SLOP);
    OK(cudaFreeAsync(past, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    OK(cudaMalloc(&p, 256 * BT_MIB));
    TRY(info(&b1, &t1));
    CHECK(b1 + 256 * BT_MIB <= t1);
    OK(cudaFree(p));
    OK(cudaSetDevice(0));
    return 0;
}

/* Memory freed in any context of the device is free, and memory freed by a stream is free when the stream has come
 * there. */
BT_TEST(of_all_contexts)
{
    size_t before, after, total;
    CUcontext first, second;
    cudaStream_t stream;
    void *q, *live;
    CUdeviceptr p;

    OK(cudaMalloc(&live, 256 * BT_MIB));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cuCtxGetCurrent(&first));
    OK(cudaDeviceSynchronize());
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&second, NULL, 0, 0));
#else
    OK(cuCtxCreate(&second, 0, 0));
#endif
    OK(cuMemGetInfo(&before, &total));
    OK(cuMemAlloc(&p, 64 * BT_MIB));
    OK(cuMemFree(p));
    OK(cuCtxSetCurrent(first));
    OK(cudaMalloc(&q, 64 * BT_MIB));
    OK(cudaFree(q));
    TRY(info(&after, &total));
    CHECK(after + SLOP >= before);
    OK(cudaMalloc(&q, 64 * BT_MIB));
    OK(cudaFreeAsync(q, stream));
    OK(cudaStreamSynchronize(stream));
    TRY(info(&after, &total));
    CHECK(after + SLOP >= before && after <= before + SLOP); /* once */
    OK(cudaStreamDestroy(stream));
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(first));
    OK(cudaFree(live));
    return 0;
}

/* No context: the driver call says so. */
static int thread_fn(void *arg)
{
    size_t a, b;

    EXPECT(cuMemGetInfo(&a, &b), CUDA_ERROR_INVALID_CONTEXT);
    OK(cudaMemGetInfo(&a, &b));
    OK(cuMemGetInfo(&a, &b));
    return 0;
}

BT_TEST(fresh_thread)
{
    struct bt_thread t;

    OK(cudaFree(NULL));
    TRY(bt_thread_start(&t, thread_fn, NULL));
    return bt_thread_join(&t);
}

/* A caller that no pool sees frees memory that a pool has kept. The last test: the kept memory is gone afterwards. */
BT_TEST(never_more_than_all)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY), *p;
    CUresult (*past_free)(CUdeviceptr) = NULL;
    size_t avail, total;

    if (!driver || !dlsym(driver, "simgpu_count"))
        SKIP("needs the simulated GPU");
    past_free = (CUresult(*)(CUdeviceptr))dlsym(driver, "cuMemFree_v2");
    CHECK(past_free);
    OK(cudaMalloc(&p, 512 * BT_MIB));
    OK(cudaFree(p));
    (void)past_free((CUdeviceptr)(uintptr_t)p);
    OK(cudaMemGetInfo(&avail, &total));
    CHECK(avail <= total);
    OK(cuMemGetInfo(&avail, &total));
    CHECK(avail <= total);
    return 0;
}

/* Blocks come and go while the card is nearly full; memory that is on its way back arrives bit by bit. */
BT_TEST(never_more_than_is_left)
{
    size_t before, avail, total, live = 0, sizes[128], count = 0, i, n;
    uint64_t random = 1;
    void *blocks[128];

    TRY(info(&before, &total));
    for (int step = 0; step < 6000; step++) {
        n = (1 + bt_random(&random) % 64) * (before / 4096 / (2 * BT_MIB) + 1) * 2 * BT_MIB;
        if (count < 128 && live + n <= before / 100 * 95) {
            OK(cudaMalloc(&blocks[count], n));
            sizes[count++] = n;
            live += n;
            continue;
        }
        for (int k = 0; k < 3 && count; k++) {
            i = bt_random(&random) % count;
            OK(cudaFree(blocks[i]));
            live -= sizes[i];
            blocks[i] = blocks[--count];
            sizes[i] = sizes[count];
        }
        OK(cudaMemGetInfo(&avail, &total));
        CHECK(avail <= before - live + SLOP);
    }
    while (count)
        OK(cudaFree(blocks[--count]));
    return 0;
}
