/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pressure.c - the device's last bytes.
 *
 * The tests measure how much of the memory that cudaMemGetInfo calls free can be had in blocks of a size that does not
 * divide well, and how much a capture kept back. They use at most 512 MiB; a block that stays takes the rest.
 * Fragmentation is in oom.c.
 */
#define BT_BEGIN() cudaFree(NULL)
#include "behaviour.h"

#define BLOCKS 20000

static void *block[BLOCKS];
static int blocks;
static void *ballast;

static int end(void)
{
    for (; blocks > 0; blocks--)
        OK(cudaFree(block[blocks - 1]));
    OK(cudaFree(ballast));
    ballast = NULL;
    return bt_usable(4096);
}

static int begin(size_t *ret_free)
{
    size_t avail, total, max = bt_max_mem() < BT_GIB / 2 ? bt_max_mem() : BT_GIB / 2;

    TRY(end()); /* what a failed test left */
    OK(cudaMemGetInfo(&avail, &total));
    if (avail > max + BT_GIB / 4)
        OK(cudaMalloc(&ballast, avail - max));
    OK(cudaMemGetInfo(ret_free, &total));
    return 0;
}

/* Take blocks until one is refused. Together they have to be per cent of avail. */
static int fill(size_t n, size_t avail, size_t per_cent)
{
    const int before = blocks;
    size_t got;

    while (blocks < BLOCKS && cudaMalloc(&block[blocks], n) == cudaSuccess)
        blocks++;
    if (blocks == BLOCKS)
        return BT_FAIL("%d blocks of %zu of %zu", BLOCKS, n, avail);
    LAST(cudaErrorMemoryAllocation);
    LAST(cudaSuccess);
    got = (size_t)(blocks - before) * n;
    if (got < avail / 100 * per_cent || got > avail)
        return BT_FAIL("%d blocks of %zu of %zu", blocks - before, n, avail);
    return 0;
}

/* Two blocks of 1 MiB are a page of the driver's: none of it is left over. */
BT_TEST(megabytes)
{
    size_t avail;

    TRY(begin(&avail));
    TRY(fill(BT_MIB, avail, 97)); /* preloaded on an H200: 505 of 511 */
    return end();
}

/* A large block takes a part of the memory of a larger one that was freed; the rest is memory for small ones, too. */
BT_TEST(small_after_large)
{
    const size_t large = 200 * BT_MIB, part = 32 * BT_MIB, max = bt_max_mem() < BT_GIB / 2 ? bt_max_mem() : BT_GIB / 2;
    size_t avail, total;
    void *p;

    TRY(end());
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&p, large));
    OK(cudaFree(p));
    OK(cudaMalloc(&block[0], part));
    blocks = 1;
    avail -= part;
    if (avail > max + BT_GIB / 4) {
        OK(cudaMalloc(&ballast, avail - max));
        avail = max;
    }
    TRY(fill(60 * BT_KIB, avail, 97));
    return end();
}

/* Freed while a stream captured: when that has ended, everybody can have it. */
BT_TEST(freed_in_capture)
{
    size_t avail, pitch;
    cudaMemPool_t pool;
    cudaGraph_t graph;
    cudaStream_t s;
    void *p, *q;

    for (int round = 0; round < 3; round++) {
        TRY(begin(&avail));
        OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        OK(cudaMalloc(&p, avail / 4 * 3));
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        OK(cudaFree(p));
        OK(cudaStreamEndCapture(s, &graph));
        OK(cudaGraphDestroy(graph));
        if (round == 0) {
            OK(cudaMallocAsync(&q, avail / 2, s));
            OK(cudaFreeAsync(q, s));
            OK(cudaStreamSynchronize(s));
            OK(cudaDeviceGetDefaultMemPool(&pool, 0));
            OK(cudaMemPoolTrimTo(pool, 0));
        } else if (round == 1) {
            OK(cudaMallocPitch(&q, &pitch, avail / 2 / 64, 64));
            OK(cudaFree(q));
        } else {
            OK(cudaMalloc(&q, avail / 8 * 7));
            OK(cudaFree(q));
        }
        OK(cudaStreamDestroy(s));
        TRY(end());
    }
    return 0;
}
