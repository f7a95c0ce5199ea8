/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passthrough.c - allocations that no pool serves: they work beside one, and cudaFree takes what it natively takes.
 *
 * The tests take pitched, 3D, managed, stream-ordered, array, host and mapped memory; and cudaMalloc's in a capture,
 * and at addresses that a call unseen by the pool has freed. Memory that a pool serves is in basic.c.
 */
#include "behaviour.h"

#include <dlfcn.h>

#define N ((size_t)100000)

BT_TEST(pitch)
{
    for (int i = 0; i < 5; i++) {
        size_t bytes = 0;
        char *p;

        OK(cudaMallocPitch((void **)&p, &bytes, 1000, 37));
        CHECK(p && bytes >= 1000 && bytes % 256 == 0);
        TRY(bt_fill(p, bytes * 37, 3));
        TRY(bt_verify(p, bytes * 37, 3));
        OK(cudaFree(p));
        EXPECT(cudaFree(p), cudaErrorInvalidValue);
        LAST(cudaErrorInvalidValue);
    }
    return 0;
}

BT_TEST(three_d)
{
    struct cudaExtent extent = {700, 5, 6};
    struct cudaPitchedPtr p;

    OK(cudaMalloc3D(&p, extent));
    CHECK(p.ptr && p.pitch >= 700);
    TRY(bt_fill(p.ptr, p.pitch * 30, 4));
    TRY(bt_verify(p.ptr, p.pitch * 30, 4));
    OK(cudaFree(p.ptr));
    return 0;
}

BT_TEST(managed)
{
    int has = 0;
    char *p;

    OK(cudaDeviceGetAttribute(&has, cudaDevAttrManagedMemory, 0));
    if (!has)
        SKIP("no managed memory");
    OK(cudaMallocManaged((void **)&p, N, cudaMemAttachGlobal));
    OK(cudaMemset(p, 5, N));
    OK(cudaDeviceSynchronize());
    CHECK(p[0] == 5 && p[N - 1] == 5);
    OK(cudaFree(p));
    EXPECT(cudaFree(p), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    return 0;
}

BT_TEST(stream_ordered)
{
    cudaStream_t s;
    void *p, *q;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < 20; i++) {
        OK(cudaMallocAsync(&p, N, s));
        OK(cudaMallocAsync(&q, N, s));
        CHECK(p != q);
        OK(cudaMemsetAsync(p, i, N, s));
        OK(cudaStreamSynchronize(s));
        TRY(bt_verify(p, N, i));
        OK(cudaFreeAsync(p, s));
        OK(cudaFree(q));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamDestroy(s));
    return 0;
}

/* cudaMalloc's memory, freed in stream order, comes back. */
BT_TEST(malloc_free_async)
{
    size_t before, after, total;
    cudaStream_t s;
    void *p;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMemGetInfo(&before, &total));
    for (int i = 0; i < 50; i++) {
        OK(cudaMalloc(&p, 16 << 20));
        OK(cudaMemsetAsync(p, i, 16 << 20, s));
        OK(cudaFreeAsync(p, s));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(after + 64 * BT_MIB >= before);
    OK(cudaStreamDestroy(s));
    return 0;
}

/* Not every simulated GPU has arrays. */
#pragma weak cudaMallocArray
#pragma weak cudaFreeArray

BT_TEST(array)
{
    struct cudaChannelFormatDesc desc = {8, 0, 0, 0, cudaChannelFormatKindUnsigned};
    cudaArray_t a;

    if (!cudaMallocArray || !cudaFreeArray)
        SKIP("no arrays here");
    OK(cudaMallocArray(&a, &desc, 256, 16, 0));
    CHECK(a);
    OK(cudaFreeArray(a));
    return 0;
}

BT_TEST(host)
{
    void *mapped = NULL;
    char *p;

    OK(cudaMallocHost((void **)&p, N));
    memset(p, 1, N);
    OK(cudaFreeHost(p));
    OK(cudaHostAlloc((void **)&p, N, cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer(&mapped, p, 0));
    CHECK(mapped);
    OK(cudaMemset(mapped, 6, N));
    OK(cudaDeviceSynchronize());
    CHECK(p[0] == 6 && p[N - 1] == 6);
    OK(cudaFreeHost(p));
    return 0;
}

BT_TEST(registered)
{
    char *p = (char *)aligned_alloc(4096, 64 << 10);
    char *dev;

    CHECK(p);
    memset(p, 7, 64 << 10);
    OK(cudaHostRegister(p, 64 << 10, cudaHostRegisterDefault));
    OK(cudaMalloc((void **)&dev, 64 << 10));
    OK(cudaMemcpy(dev, p, 64 << 10, cudaMemcpyHostToDevice));
    TRY(bt_verify(dev, 64 << 10, 7));
    OK(cudaHostUnregister(p));
    OK(cudaFree(dev));
    free(p);
    return 0;
}

/* All kinds alive at once keep their bytes. */
BT_TEST(together)
{
    void *kind[4], *pooled[4];
    size_t bytes;

    for (int round = 0; round < 5; round++) {
        OK(cudaMalloc(&pooled[0], N));
        OK(cudaMallocPitch(&kind[0], &bytes, N, 1));
        OK(cudaMalloc(&pooled[1], N));
        OK(cudaMallocAsync(&kind[1], N, NULL));
        OK(cudaMalloc(&pooled[2], N));
        OK(cudaMallocPitch(&kind[2], &bytes, N, 1));
        OK(cudaMalloc(&pooled[3], N));
        OK(cudaMallocPitch(&kind[3], &bytes, N, 1));
        for (int i = 0; i < 4; i++) {
            TRY(bt_fill(kind[i], N, 10 + i));
            TRY(bt_fill(pooled[i], N, 20 + i));
        }
        for (int i = 0; i < 4; i++) {
            TRY(bt_verify(kind[i], N, 10 + i));
            TRY(bt_verify(pooled[i], N, 20 + i));
        }
        for (int i = 0; i < 4; i++) {
            OK(cudaFree(kind[3 - i]));
            OK(cudaFree(pooled[i]));
        }
    }
    LAST(cudaSuccess);
    return 0;
}

static CUresult (*past_free)(CUdeviceptr);
static CUresult (*past_info)(size_t *, size_t *);

static size_t in_use(void)
{
    size_t avail = 0, total = 0;

    past_info(&avail, &total);
    return total - avail;
}

/* Blocks of n bytes each are freed past any pool, and one request that the driver serves comes to their addresses. */
static int freed_past(size_t n, int blocks, bool runtime)
{
    size_t before = in_use();
    cudaStream_t stream;
    cudaGraph_t graph;
    CUdeviceptr q;
    void *p[3];

    for (int i = 0; i < blocks; i++)
        OK(cudaMalloc(&p[i], n));
    for (int i = 0; i < blocks; i++) {
        CHECK((char *)p[i] == (char *)p[0] + (size_t)i * n);
        OK(past_free((CUdeviceptr)(uintptr_t)p[i]));
    }
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    if (runtime)
        OK(cudaMalloc((void **)&q, (size_t)blocks * n));
    else
        OK(cuMemAlloc(&q, (size_t)blocks * n));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(stream));
    CHECK(q == (CUdeviceptr)(uintptr_t)p[0]);
    TRY(bt_fill((char *)(uintptr_t)q + (size_t)blocks * n - 64, 64, 1));
    for (int i = 1; i < blocks; i++)
        EXPECT(cudaFree(p[i]), cudaErrorInvalidValue);
    OK(cudaFree((void *)(uintptr_t)q));
    CHECK(in_use() < before + n);
    EXPECT(cudaFree(p[0]), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    return 0;
}

/* The pool forgets what was freed so, and takes the driver's memory for the driver's. */
BT_TEST(others_frees)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);

    if (!driver || !dlsym(driver, "simgpu_count"))
        SKIP("needs the simulated GPU, which gives the lowest address");
    if (bt_virtual())
        SKIP("the driver's cuMemFree does not free virtual memory");
    past_free = (CUresult(*)(CUdeviceptr))dlsym(driver, "cuMemFree_v2");
    past_info = (CUresult(*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2");
    CHECK(past_free && past_info);
    for (int i = 0; i < 6; i++)
        TRY(freed_past(32 * BT_MIB, 1 + i / 2, i % 2));
    return 0;
}
