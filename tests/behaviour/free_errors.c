/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_errors.c - frees that are wrong: what they return, and that nobody else is harmed.
 *
 * The tests make interior and double frees, and frees where none is allowed. tests/gpu/probe has the results of a
 * wild free, of one after a reset and of one by the wrong function; right frees that come early are in order.c.
 */
#include "behaviour.h"

#define N 4096

static char *block[3];

static int neighbours_get(size_t n)
{
    for (int i = 0; i < 3; i++) {
        OK(cudaMalloc((void **)&block[i], n));
        TRY(bt_fill(block[i], n, 0x10 + i));
    }
    return 0;
}

static int neighbours_check(size_t n)
{
    for (int i = 0; i < 3; i++)
        if (block[i])
            TRY(bt_verify(block[i], n, 0x10 + i));
    return 0;
}

static int neighbours_put(void)
{
    for (int i = 0; i < 3; i++)
        OK(cudaFree(block[i]));
    LAST(cudaSuccess);
    return 0;
}

/* A free that has to fail, with its last error. */
static int refused(void *p)
{
    EXPECT(cudaFree(p), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    LAST(cudaSuccess);
    return 0;
}

BT_TEST(interior)
{
    static const size_t sizes[] = {N, 3 << 20};

    for (int s = 0; s < 2; s++) {
        size_t n = sizes[s];

        TRY(neighbours_get(n));
        TRY(refused(block[1] + 1));
        TRY(refused(block[1] + 512));
        TRY(refused(block[1] + n - 1));
        TRY(refused(block[1] + n / 2));
        TRY(neighbours_check(n));
        TRY(neighbours_put());
    }
    return 0;
}

/* cupool gives the memory of an exported block back at once. The driver may still know its address. */
BT_TEST(twice_exported)
{
    cudaIpcMemHandle_t handle;
    char *p;

    for (int i = 0; i < 4; i++) {
        OK(cudaMalloc((void **)&p, 20 << 20));
        OK(cudaMemset(p, i, 1 << 20));
        OK(cudaIpcGetMemHandle(&handle, p));
        OK(cudaFree(p));
        TRY(refused(p));
        OK(cudaDeviceSynchronize());
        TRY(refused(p));
        /* Memory that the driver has put there since is freed. */
        OK(cudaMallocAsync((void **)&p, 20 << 20, NULL));
        OK(cudaFree(p));
    }
    return 0;
}

BT_TEST(twice)
{
    static const size_t sizes[] = {100, N, 3 << 20};

    for (int s = 0; s < 3; s++) {
        size_t n = sizes[s];
        char *p, *again[2];

        TRY(neighbours_get(n));
        p = block[1];
        OK(cudaFree(p));
        block[1] = NULL;
        TRY(refused(p));
        TRY(refused(p));
        TRY(neighbours_check(n));
        /* A free list that took the block twice would hand it out twice. */
        OK(cudaMalloc((void **)&again[0], n));
        OK(cudaMalloc((void **)&again[1], n));
        CHECK(again[0] != again[1]);
        OK(cudaFree(again[0]));
        OK(cudaFree(again[1]));
        TRY(neighbours_check(n));
        TRY(neighbours_put());
    }
    return 0;
}

BT_TEST(driver)
{
    CUdeviceptr p = 0;

    OK(cudaFree(NULL)); /* makes the primary context current */
    TRY(neighbours_get(N));
    EXPECT(cuMemFree(1), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cuMemFree((CUdeviceptr)(uintptr_t)block[1] + 512), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAlloc(&p, N));
    OK(cuMemFree(p));
    EXPECT(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
    LAST(cudaSuccess); /* the driver API leaves the runtime's last error alone */
    TRY(neighbours_check(N));
    return neighbours_put();
}

/* Errors in the middle leave later frees and mallocs alone. */
BT_TEST(not_sticky)
{
    for (int i = 0; i < 100; i++) {
        void *p = NULL;

        OK(cudaMalloc(&p, 1000));
        EXPECT(cudaFree((char *)p + 256), cudaErrorInvalidValue);
        OK(cudaFree(p));
    }
    EXPECT(cudaGetLastError(), cudaErrorInvalidValue);
    return bt_usable(N);
}

BT_TEST(stream_ordered)
{
    cudaStream_t s;
    void *p = NULL;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    EXPECT(cudaFreeAsync((void *)0x10, s), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    OK(cudaMalloc(&p, N));
    OK(cudaFreeAsync(p, s));
    OK(cudaStreamSynchronize(s));
    TRY(refused(p));
    OK(cudaMallocAsync(&p, N, s));
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(p));
    TRY(refused(p));
    OK(cudaStreamDestroy(s));
    return 0;
}

/* Memory of cudaMalloc is none that can be mapped, and the calls for that leave it alone. */
BT_TEST(unmapped)
{
    static const size_t sizes[] = {N, 3 << 20};
    const size_t page = 2 * BT_MIB;
    const CUmemAccessDesc none = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE};

    for (int s = 0; s < 2; s++) {
        size_t n = sizes[s];
        CUdeviceptr at;

        TRY(neighbours_get(n));
        at = BT_ADDRESS(block[0]) / page * page;
        CHECK(cuMemSetAccess(at, page, &none, 1));
        CHECK(cuMemUnmap(at, page));
        CHECK(cuMemAddressFree(at, page));
        TRY(neighbours_check(n));
        TRY(neighbours_put());
    }
    return 0;
}

/* Natively nothing can be freed in there: then the memory stays the program's. */
static int host_result, host_async_result, host_driver_result, host_native_result;

static void CUDART_CB free_on_host(void *p)
{
    size_t avail, total;

    host_native_result = (int)cudaMemGetInfo(&avail, &total);
    host_result = (int)cudaFree(p);
    host_async_result = (int)cudaFreeAsync(p, 0);
    host_driver_result = (int)cuMemFree(BT_ADDRESS(p)); /* a static cudart may not come so far */
}

#define ODD ((size_t)77777) /* bytes, of which there is nothing else */

BT_TEST(host_function)
{
    void *p = NULL, *q[4];
    cudaStream_t s;

    OK(cudaStreamCreate(&s));
    OK(cudaMalloc(&p, ODD));
    TRY(bt_fill(p, ODD, 5));
    OK(cudaLaunchHostFunc(s, free_on_host, p));
    OK(cudaStreamSynchronize(s));
    if (!host_native_result)
        SKIP("nothing was refused");
    CHECK(host_result == host_native_result && host_async_result == host_native_result);
    CHECK(host_driver_result == host_native_result);
    (void)cudaGetLastError();
    for (int i = 0; i < 4; i++) {
        OK(cudaMalloc(&q[i], 1000)); /* what a free keeps back comes with a later one */
        OK(cudaFree(q[i]));
        OK(cudaMalloc(&q[i], ODD));
        TRY(bt_fill(q[i], ODD, 6));
    }
    TRY(bt_verify(p, ODD, 5));
    for (int i = 0; i < 4; i++)
        OK(cudaFree(q[i]));
    OK(cudaFree(p));
    OK(cudaStreamDestroy(s));
    return 0;
}
