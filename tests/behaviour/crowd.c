/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crowd.c - memory that was freed is at once there for every other call that takes memory, and for other sizes.
 *
 * Natively freed memory is free for all. The tests fill the card, free it (crowd.h) and make the call. Memory that goes
 * back while the program is idle is in idle.c, fragmentation in oom.c and fill_up.c.
 */
#include "crowd.h"

/* Not in the simulated runtime. */
#pragma weak cudaMallocArray
#pragma weak cudaMalloc3DArray
#pragma weak cudaFreeArray

BT_TEST(get_info)
{
    size_t avail, total;

    TRY(hoard_usual());
    OK(cudaMemGetInfo(&avail, &total));
    if (avail + SLACK < start_free)
        return BT_FAIL("%zu MiB free, once %zu", avail / BT_MIB, start_free / BT_MIB);
    CHECK(avail <= start_free + SLACK);
    OK(cuMemGetInfo(&avail, &total));
    CHECK(avail + SLACK >= start_free && avail <= start_free + SLACK);
    return 0;
}

/* As a framework that empties its cache and asks for the free memory. */
BT_TEST(empty_cache)
{
    size_t avail, total;

    TRY(take(start_free / 50, most()));
    OK(cudaMemGetInfo(&avail, &total));
    CHECK(avail <= start_free - most() + start_free / 20);
    TRY(blocks_free());
    OK(cudaMemGetInfo(&avail, &total));
    CHECK(avail + SLACK >= start_free);
    return 0;
}

BT_TEST(larger_blocks)
{
    TRY(hoard(start_free / 1024));
    return most_usable();
}

BT_TEST(smaller_blocks)
{
    TRY(hoard(start_free / 16));
    TRY(take(start_free / 2048, start_free / 10 * 9));
    CHECK(blocks >= 2048 / 10 * 9);
    return blocks_free();
}

BT_TEST(pitch)
{
    size_t width;
    void *p;

    TRY(hoard_usual());
    OK(cudaMallocPitch(&p, &width, BT_MIB, most() / BT_MIB));
    TRY(bt_fill(p, BT_MIB, 1));
    OK(cudaFree(p));
    return 0;
}

BT_TEST(in_stream_order)
{
    cudaMemPool_t pool;
    cudaStream_t s;
    void *p;

    TRY(hoard_usual());
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMallocAsync(&p, most(), s));
    OK(cudaMemsetAsync(p, 1, BT_MIB, s));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaStreamDestroy(s));
    return 0;
}

/* No call tells the library of a page fault; the device's work meets what the last free has left. So the memory has to
 * be with the driver when cudaFree returns, though no thread waits for the device. */
BT_TEST(page_fault)
{
    size_t avail, total, spare;
    cudaStream_t s;
    char *m, *p;
    int rc;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMallocManaged((void **)&m, 4 * BT_MIB, cudaMemAttachGlobal));
    TRY(blocks_free());
    for (int round = 0; round < 3; round++) { /* in the first, the library's stream may not exist */
        OK(cudaMemGetInfo(&avail, &total));
        spare = 4 * BT_MIB;
        do /* the driver may need some itself */
            rc = (int)cudaMalloc((void **)&p, avail - (spare += 2 * BT_MIB));
        while (rc == cudaErrorMemoryAllocation && spare < 64 * BT_MIB);
        OK(rc);
        (void)cudaGetLastError();
        OK(cudaMemsetAsync(p, 1, BT_MIB, s));
        OK(cudaFree(p));
        CHECK(driver_free() + SLACK >= start_free);
    }
    OK(cudaMemsetAsync(m, 3, 4 * BT_MIB, s));
    OK(cudaStreamSynchronize(s));
    CHECK(m[0] == 3 && m[4 * BT_MIB - 1] == 3);
    OK(cudaFree(m));
    OK(cudaStreamDestroy(s));
    return 0;
}

/* Half of what is free, to be freed when other memory, which its number of bytes says, has taken the rest. */
static int half_and_rest(void **ret_half, size_t *ret_half_size, size_t *ret_rest)
{
    const size_t unit = 2 * BT_MIB;
    size_t avail, total;

    TRY(blocks_free());
    OK(cudaMemGetInfo(&avail, &total));
    *ret_half_size = avail / 2 / unit * unit;
    OK(cudaMalloc(ret_half, *ret_half_size));
    OK(cudaMemGetInfo(&avail, &total));
    *ret_rest = (avail - 6 * BT_MIB) / unit * unit; /* no more than the reserve of the smallest card stays */
    return 0;
}

/* A page fault, and a process that cannot ask for memory, find what was freed beside memory that no pool serves. */
BT_TEST(beside_stream_order)
{
    size_t half_size, rest;
    cudaMemPool_t pool;
    cudaStream_t s;
    void *half, *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY(half_and_rest(&half, &half_size, &rest));
    OK(cudaMallocAsync(&p, rest, s));
    OK(cudaFree(half));
    CHECK(driver_free() + SLACK >= half_size);
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolTrimTo(pool, 0));
    OK(cudaStreamDestroy(s));
    return 0;
}

BT_TEST(beside_physical_memory)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    size_t half_size, rest;
    void *half;

    TRY(half_and_rest(&half, &half_size, &rest));
    OK(cuMemCreate(&handle, rest, &prop, 0));
    OK(cudaFree(half));
    CHECK(driver_free() + SLACK >= half_size);
    OK(cuMemRelease(handle));
    return 0;
}

BT_TEST(beside_second_context)
{
    size_t half_size, rest;
    CUcontext context, before;
    CUdeviceptr p;
    void *half;

    OK(cuCtxGetCurrent(&before));
    TRY(bt_context(&context));
    OK(cuCtxSetCurrent(before));
    TRY(half_and_rest(&half, &half_size, &rest));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&p, rest));
    OK(cuCtxSetCurrent(before));
    OK(cudaFree(half));
    CHECK(driver_free() + SLACK >= half_size);
    OK(cuCtxSetCurrent(context));
    OK(cuMemFree(p));
    OK(cuCtxDestroy(context));
    OK(cuCtxSetCurrent(before));
    return 0;
}

/* A few MiB only, but nothing is left for them. */
BT_TEST(managed)
{
    char *p;

    TRY(hoard_usual());
    OK(cudaMallocManaged((void **)&p, 4 * BT_MIB, cudaMemAttachGlobal));
    TRY(bt_fill(p, 4 * BT_MIB, 3));
    CHECK(p[0] == 3 && p[4 * BT_MIB - 1] == 3);
    OK(cudaFree(p));
    return 0;
}

BT_TEST(array)
{
    const struct cudaChannelFormatDesc format = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    cudaArray_t a[64];
    int n = 0;

    if (!cudaMallocArray || !cudaFreeArray)
        SKIP("no arrays here");
    TRY(hoard_usual());
    for (; n < 64; n++) /* 512 MiB each on a large card */
        OK(cudaMallocArray(&a[n], &format, 16384, start_free / 128 / 65536, 0));
    while (n > 0)
        OK(cudaFreeArray(a[--n]));
    return 0;
}

BT_TEST(array_3d)
{
    const struct cudaChannelFormatDesc format = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    cudaArray_t a[16];
    int n = 0;

    if (!cudaMalloc3DArray || !cudaFreeArray)
        SKIP("no arrays here");
    TRY(hoard_usual());
    for (; n < 16; n++)
        OK(cudaMalloc3DArray(&a[n], &format, (struct cudaExtent){1024, 1024, start_free / 32 / (4 * BT_MIB)}, 0));
    while (n > 0)
        OK(cudaFreeArray(a[--n]));
    return 0;
}

/* Virtual memory management: as frameworks do that put their weights to sleep and wake them at the same addresses. */
BT_TEST(mapped)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const size_t n = most() / (2 * BT_MIB) * (2 * BT_MIB);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;

    for (int round = 0; round < 2; round++) {
        TRY(hoard_usual());
        OK(cuMemCreate(&handle, n, &prop, 0));
        OK(cuMemAddressReserve(&p, n, 0, 0, 0));
        OK(cuMemMap(p, n, 0, handle, 0));
        OK(cuMemSetAccess(p, n, &access, 1));
        TRY(bt_fill((void *)(uintptr_t)p, BT_MIB, 7));
        OK(cuMemUnmap(p, n));
        OK(cuMemRelease(handle));
        OK(cuMemAddressFree(p, n));
    }
    return 0;
}

BT_TEST(streams)
{
    cudaStream_t s[96];
    void *p;

    TRY(hoard_usual());
    OK(cudaMalloc(&p, BT_MIB));
    for (int i = 0; i < 96; i++) {
        OK(cudaStreamCreateWithFlags(&s[i], i % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
        OK(cudaMemsetAsync(p, i, BT_MIB, s[i]));
    }
    OK(cudaDeviceSynchronize());
    for (int i = 0; i < 96; i++)
        OK(cudaStreamDestroy(s[i]));
    OK(cudaFree(p));
    return 0;
}

/* A graph of many nodes, captured before, instantiated and launched when nothing is left. */
BT_TEST(graph)
{
    cudaGraphExec_t exec[16];
    cudaGraph_t made;
    cudaStream_t s;
    char *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&p, BT_MIB));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    for (size_t i = 0; i < 1024; i++)
        OK(cudaMemsetAsync(p + i * 1024, 9, 1024, s));
    OK(cudaStreamEndCapture(s, &made));
    TRY(hoard_usual());
    for (int i = 0; i < 16; i++) {
        OK(cudaGraphInstantiate(&exec[i], made, 0));
        TRY(bt_fill(p, BT_MIB, 0));
        OK(cudaGraphLaunch(exec[i], s));
        OK(cudaStreamSynchronize(s));
        TRY(bt_verify(p, BT_MIB, 9));
    }
    for (int i = 0; i < 16; i++)
        OK(cudaGraphExecDestroy(exec[i]));
    OK(cudaGraphDestroy(made));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(p));
    return 0;
}

BT_TEST(pinned)
{
    void *p;

    TRY(hoard_usual());
    OK(cudaMallocHost(&p, 64 * BT_MIB));
    OK(cudaFreeHost(p));
    return 0;
}

BT_TEST(second_context)
{
    CUcontext context, before;
    CUdeviceptr p;

    TRY(hoard_usual());
    OK(cuCtxGetCurrent(&before));
    TRY(bt_context(&context));
    OK(cuMemAlloc(&p, most()));
    OK(cuMemsetD8(p, 1, BT_MIB));
    OK(cuMemFree(p));
    OK(cuCtxDestroy(context));
    OK(cuCtxSetCurrent(before));
    return 0;
}
