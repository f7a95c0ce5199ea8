/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endings.c - what one thread's call that ends a context, or may end one, leaves alone: captures in contexts that are
 * not pooled yet, and other devices' threads. And the end of a primary context with its last green one, but not while
 * the runtime uses it.
 *
 * contexts.c has contexts that come and go on their own.
 *
 * The order of the tests matters: the first ones need a device on which nothing has been allocated.
 */
#include "behaviour.h"

#define N BT_MIB

/* --- a capture beside an end elsewhere --- */

static int release_other(void)
{
    CUcontext other;

    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuDevicePrimaryCtxRelease(1));
    return 0;
}

static int destroy_other(void)
{
    CUcontext other, own;

    OK(cuCtxGetCurrent(&own));
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&other, NULL, 0, 1));
#else
    OK(cuCtxCreate(&other, 0, 1));
#endif
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(own));
    return 0;
}

static int (*const ends[])(void) = {release_other, destroy_other};

/* The device's first request, or the free of freed, after an end elsewhere. */
static struct beside {
    int (*end)(void);
    void *freed;
} beside;

static int allocates_after(void *arg)
{
    const struct beside *b = (const struct beside *)arg;
    void *p;

    OK(cudaSetDevice(0));
    TRY(b->end());
    if (b->freed) {
        OK(cudaFree(b->freed));
        return 0;
    }
    OK(cudaMalloc(&p, N));
    OK(cudaFree(p));
    return 0;
}

static int allocate_after(int (*end)(void), void *freed)
{
    struct bt_thread thread;

    beside.end = end;
    beside.freed = freed;
    TRY(bt_thread_start(&thread, allocates_after, &beside));
    return bt_thread_join(&thread);
}

static int beside_end(const void *arg)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    int rc, ended;

    TRY(bt_devices(2));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    rc = allocate_after(*(int (*const *)(void))arg, NULL);
    ended = cudaStreamEndCapture(stream, &graph);
    TRY(rc);
    OK(ended);
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceReset());
    return 0;
}

BT_ROW(release_beside_capture, beside_end, &ends[0])
BT_ROW(destruction_beside_capture, beside_end, &ends[1])

/* --- green contexts --- */

#if CUDA_VERSION >= 12050
static int green_create(CUgreenCtx *ret_green, int device)
{
    CUdevResourceDesc desc;
    CUdevResource all;

    if (cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_ERROR_NOT_SUPPORTED)
        SKIP("no green contexts here");
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    OK(cuGreenCtxCreate(ret_green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
    return 0;
}

/* The last reference to the primary context goes with the green one, and all memory with it. */
static int last_reference(bool converted)
{
    CUcontext context, again;
    CUgreenCtx green;
    CUdeviceptr p;
    unsigned int flags;
    int active;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    if (active)
        SKIP("the primary context is in use");
    TRY(green_create(&green, 0));
    if (converted)
        OK(cuCtxFromGreenCtx(&context, green));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&p, N));
    OK(cuMemFree(p));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuGreenCtxDestroy(green));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(!active);
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    OK(cuCtxSetCurrent(again));
    OK(cuMemAlloc(&p, N));
    OK(cuMemsetD8(p, 1, N));
    OK(cuCtxSynchronize());
    OK(cuMemFree(p));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}

BT_TEST(last_green)
{
    return last_reference(false);
}

BT_TEST(last_green_converted)
{
    return last_reference(true);
}

/* Another thread's free beside a capture on a green context's stream, after an end elsewhere. */
static int green_beside(int (*end)(void))
{
    CUgreenCtx green;
    CUstream stream;
    CUgraph graph;
    int rc, ended;
    void *p, *to;

    TRY(bt_devices(2));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&to, N));
    OK(cudaMalloc(&p, N));
    OK(cudaFree(p));
    OK(cudaMalloc(&p, N));
    TRY(green_create(&green, 0));
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuMemsetD8Async(BT_ADDRESS(to), 1, N, stream));
    rc = allocate_after(end, p);
    ended = cuStreamEndCapture(stream, &graph);
    TRY(rc);
    OK(ended);
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(stream));
    OK(cuGreenCtxDestroy(green));
    OK(cudaFree(to));
    return 0;
}

BT_TEST(release_beside_green_capture)
{
    return green_beside(release_other);
}

/* The free of device 0's block on a stream of device 1's green context, which still reads it: the block does not serve
 * again before that is over. */
static int far_free(bool converted)
{
    char *p, *q, *other, *to, *host;
    CUcontext context;
    CUgreenCtx green;
    CUstream stream;

    TRY(bt_devices(2));
    OK(cudaSetDevice(0));
    OK(cudaMalloc((void **)&p, 8 * N));
    TRY(bt_fill(p, 8 * N, 7));
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&to, 8 * N));
    TRY(bt_fill(to, 8 * N, 1));
    TRY(green_create(&green, 1));
    if (converted)
        OK(cuCtxFromGreenCtx(&context, green));
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    TRY(bt_slow((cudaStream_t)stream, 10 * BT_SLOW_US));
    OK(cuMemcpyAsync(BT_ADDRESS(to), BT_ADDRESS(p), 8 * N, stream));
    OK(cuMemFreeAsync(BT_ADDRESS(p), stream));
    OK(cudaSetDevice(0));
    OK(cudaMalloc((void **)&q, 8 * N));
    OK(cudaMemset(q, 0xff, 8 * N));
    OK(cudaMalloc((void **)&other, 8 * N));
    OK(cudaMemset(other, 0xff, 8 * N));
    OK(cudaDeviceSynchronize());
    OK(cuStreamSynchronize(stream));
    host = (char *)malloc(8 * N);
    CHECK(host);
    OK(cudaMemcpy(host, to, 8 * N, cudaMemcpyDeviceToHost));
    CHECK(host[0] == 7 && host[8 * N - 1] == 7);
    free(host);
    OK(cudaFree(q));
    OK(cudaFree(other));
    OK(cudaFree(to));
    OK(cuStreamDestroy(stream));
    OK(cuGreenCtxDestroy(green));
    return 0;
}

BT_TEST(far_green_free)
{
    return far_free(false);
}

BT_TEST(far_green_free_converted)
{
    return far_free(true);
}
#endif

/* --- the runtime's own reference to a primary context --- */

static int frees(void *p)
{
    OK(cudaFree(p));
    return 0;
}

static int frees_async(void *p)
{
    OK(cudaFreeAsync(p, NULL));
    return 0;
}

static int exports(void *p)
{
    cudaIpcMemHandle_t handle;

    OK(cudaIpcGetMemHandle(&handle, p));
    OK(cuMemFree(BT_ADDRESS(p)));
    return 0;
}

/* It takes one with its first call, also if that frees or exports what the driver has allocated: the context outlives
 * the program's reference. cudaFreeAsync takes none. */
BT_TEST(primary_shared_by_others)
{
    int (*const calls[])(void *p) = {frees, exports, frees_async};
    CUdeviceptr kept, p;
    unsigned int flags;
    CUcontext context;
    int active;

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        OK(cudaDeviceReset());
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        OK(cuMemAlloc(&kept, N));
        OK(cuMemAlloc(&p, N)); /* beside the other: its IPC handle is the library's own */
        OK(cuMemsetD8(kept, 7, N));
        TRY(calls[i]((void *)(uintptr_t)p));
        OK(cuDevicePrimaryCtxRelease(0));
        OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
        EXPECT(active, calls[i] != frees_async);
        if (!active)
            continue;
        TRY(bt_verify((void *)(uintptr_t)kept, N, 7));
        OK(cuMemFree(kept));
    }
    return 0;
}
