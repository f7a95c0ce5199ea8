/* SPDX-License-Identifier: Apache-2.0 */
/*
 * contexts.c - contexts that come and go, through the driver API.
 *
 * The tests retain, release and reset primary contexts, make a second context, and use a thread without one. devices.c
 * has the runtime's own view of a device; what single calls return without a context is in tests/gpu/probe.
 *
 * The order of the tests matters: tests that need a primary context that the runtime does not hold come first.
 */
#include "behaviour.h"

#define N ((size_t)1 << 20)

/* A block of the current context: written and read. */
static int block_get(CUdeviceptr *ret, size_t n, int byte)
{
    OK(cuMemAlloc(ret, n));
    CHECK(*ret);
    OK(cuMemsetD8(*ret, (unsigned char)byte, n));
    OK(cuCtxSynchronize());
    return 0;
}

static int block_check(CUdeviceptr p, size_t n, int byte)
{
    unsigned char *host = (unsigned char *)malloc(n);
    size_t i = 0;

    CHECK(host);
    OK(cuMemcpyDtoH(host, p, n));
    while (i < n && host[i] == (unsigned char)byte)
        i++;
    free(host);
    CHECK(i == n);
    return 0;
}

/* The last release destroys the context and everything in it. */
BT_TEST(primary_release)
{
    CUdevice dev;
    CUcontext ctx;
    CUdeviceptr p, q;

    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    for (int round = 0; round < 3; round++) {
        OK(cuDevicePrimaryCtxRetain(&ctx, dev));
        OK(cuCtxSetCurrent(ctx));
        TRY(block_get(&p, N, 3));
        TRY(block_get(&q, 100, 4));
        TRY(block_check(p, N, 3));
        OK(cuMemFree(q));
        OK(cuDevicePrimaryCtxRelease(dev));
        OK(cuCtxSetCurrent(NULL));
        OK(cuDevicePrimaryCtxRetain(&ctx, dev));
        OK(cuCtxSetCurrent(ctx));
        EXPECT(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
        TRY(block_get(&p, N, 5));
        OK(cuMemFree(p));
        OK(cuDevicePrimaryCtxRelease(dev));
        OK(cuCtxSetCurrent(NULL));
    }
    return 0;
}

BT_TEST(primary_reset)
{
    CUdevice dev;
    CUcontext ctx;
    CUdeviceptr p;

    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
    TRY(block_get(&p, N, 3));
    OK(cuDevicePrimaryCtxReset(dev));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
    EXPECT(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
    TRY(block_get(&p, N, 5));
    TRY(block_check(p, N, 5));
    OK(cuMemFree(p));
    OK(cuDevicePrimaryCtxRelease(dev));
    OK(cuCtxSetCurrent(NULL));
    return 0;
}

/* The runtime's first request in a primary context takes a reference: the context outlives the program's own. */
BT_TEST(primary_shared)
{
    CUcontext ctx;
    CUdevice dev;
    unsigned int flags;
    int active;
    void *p;

    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&ctx, dev));
    OK(cuCtxSetCurrent(ctx));
    OK(cudaMalloc(&p, N));
    OK(cuMemsetD8((CUdeviceptr)p, 8, N));
    OK(cuDevicePrimaryCtxRelease(dev));
    OK(cuDevicePrimaryCtxGetState(dev, &flags, &active));
    CHECK(active);
    TRY(block_check((CUdeviceptr)p, N, 8));
    OK(cudaFree(p));
    OK(cudaDeviceReset());
    return 0;
}

/* The primary context is reset, and released, beside one that is not primary: that one stays. */
BT_TEST(beside_primary)
{
    CUcontext ctx, primary;
    CUdeviceptr p, q;
    CUdevice dev;

    OK(cuInit(0));
    OK(cuDeviceGet(&dev, 0));
    OK(cuDevicePrimaryCtxRetain(&primary, dev));
    TRY(bt_context(&ctx));
    TRY(block_get(&p, N, 6));
    TRY(block_get(&q, 100, 7));
    OK(cuDevicePrimaryCtxReset(dev));
    TRY(block_check(p, N, 6));
    OK(cuMemFree(q));
    OK(cuDevicePrimaryCtxRetain(&primary, dev));
    OK(cuDevicePrimaryCtxRelease(dev));
    TRY(block_check(p, N, 6));
    OK(cuMemFree(p));
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSetCurrent(NULL));
    return 0;
}

/* A block is freed on a stream of another context of its device, in which nothing was ever allocated. It does not serve
 * again before that stream has come there. */
static int free_on(CUcontext own, CUcontext other, bool legacy)
{
    CUdeviceptr p, to, q[4];
    CUstream stream = NULL, beside;

    OK(cuCtxSetCurrent(own));
    TRY(block_get(&p, 4 * N, 7));
    TRY(block_get(&to, 4 * N, 0));
    OK(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
    OK(cuCtxSetCurrent(other));
    if (!legacy)
        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(stream, bt_sleep_fn, (void *)(uintptr_t)(10 * BT_SLOW_US)));
    OK(cuMemcpyAsync(to, p, 4 * N, stream));
    OK(cuMemFreeAsync(p, stream));
    OK(cuCtxSetCurrent(own));
    OK(cuMemAlloc(&q[0], 100));
    OK(cuMemFree(q[0])); /* orders earlier frees of its context, too */
    for (int i = 0; i < 4; i++) {
        OK(cuMemAlloc(&q[i], 4 * N));
        OK(cuMemsetD8Async(q[i], 0xff, 4 * N, beside));
    }
    OK(cuStreamSynchronize(beside));
    OK(cuCtxSetCurrent(other));
    OK(cuStreamSynchronize(stream));
    if (!legacy)
        OK(cuStreamDestroy(stream));
    OK(cuCtxSetCurrent(own));
    TRY(block_check(to, 4 * N, 7));
    for (int i = 0; i < 4; i++)
        OK(cuMemFree(q[i]));
    OK(cuMemFree(to));
    OK(cuStreamDestroy(beside));
    return 0;
}

BT_TEST(free_on_another)
{
    CUcontext primary, created, fresh;

    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    TRY(bt_context(&created));
    TRY(free_on(created, primary, false));
    TRY(free_on(created, primary, true));
    TRY(bt_context(&fresh));
    TRY(free_on(primary, fresh, false));
    TRY(free_on(primary, fresh, true));
    OK(cuCtxDestroy(fresh));
    OK(cuCtxDestroy(created));
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
    return 0;
}

BT_TEST(second_context)
{
    CUcontext first, second, now;
    CUdeviceptr p, q, r;

    OK(cudaSetDevice(0));
    OK(cudaFree(NULL));
    OK(cuCtxGetCurrent(&first));
    TRY(block_get(&p, N, 1));
    for (int round = 0; round < 3; round++) {
        TRY(bt_context(&second)); /* is current now */
        OK(cuCtxGetCurrent(&now));
        CHECK(now == second && now != first);
        TRY(block_get(&q, N, 2));
        TRY(block_get(&r, N, 3));
        CHECK(q != p && r != p && q != r);
        OK(cuMemFree(r));
        OK(cuCtxDestroy(second)); /* with q live; the first is current again */
        OK(cuCtxSetCurrent(first));
        TRY(block_check(p, N, 1));
        EXPECT(cuMemFree(q), CUDA_ERROR_INVALID_VALUE);
        EXPECT(cuMemFree(r), CUDA_ERROR_INVALID_VALUE);
        TRY(block_get(&r, N, 4));
        TRY(block_check(p, N, 1));
        OK(cuMemFree(r));
    }
    OK(cuMemFree(p));
    return 0;
}

/* A free does not care which context is current, and leaves the current one current. */
BT_TEST(free_across)
{
    CUcontext first, second, now;
    CUdeviceptr p, q;

    OK(cudaFree(NULL));
    OK(cuCtxGetCurrent(&first));
    OK(cuMemAlloc(&p, N));
    TRY(bt_context(&second));
    OK(cuMemFree(p));
    OK(cuMemAlloc(&q, N));
    OK(cuCtxGetCurrent(&now));
    CHECK(now == second);
    OK(cuCtxSetCurrent(first));
    OK(cuMemFree(q));
    OK(cuCtxGetCurrent(&now));
    CHECK(now == first);
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(first));
    return bt_usable(N);
}

/* Memory of a context is ordered by that context's work, whichever is current at the free. */
/* A context that has ended is current: the driver refuses a free of another one's memory, and the runtime begins the
 * context anew. */
BT_TEST(free_after_end)
{
    void *first, *second, *own;
    CUdeviceptr p;

    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    OK(cudaMalloc(&first, 1000));
    OK(cudaMalloc(&second, 3 * BT_MIB));
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&own, 1000));
    OK(cudaFree(own));
    OK(cudaDeviceReset());
    EXPECT(cuMemFree(BT_ADDRESS(first)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuMemFree(BT_ADDRESS(second)), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT(cuMemAlloc(&p, 1000), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cudaFree(first));
    OK(cuMemAlloc(&p, 1000));
    OK(cuMemFree(p));
    OK(cuMemFree(BT_ADDRESS(second)));
    EXPECT(cuMemFree(BT_ADDRESS(second)), CUDA_ERROR_INVALID_VALUE);
    EXPECT(cudaFree(first), cudaErrorInvalidValue);
    LAST(cudaErrorInvalidValue);
    return 0;
}

BT_TEST(race_across)
{
    CUcontext first, second;
    CUstream a, b;
    CUdeviceptr t, u, out;

    OK(cudaFree(NULL));
    OK(cuCtxGetCurrent(&first));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    TRY(block_get(&out, 4096, 0));
    TRY(block_get(&t, 4096, 7));
    OK(cuLaunchHostFunc(a, bt_sleep_fn, (void *)(uintptr_t)BT_SLOW_US));
    OK(cuMemcpyDtoDAsync(out, t, 4096, a));
    TRY(bt_context(&second));
    OK(cuMemFree(t));
    OK(cuCtxSetCurrent(first));
    OK(cuMemAlloc(&u, 4096));
    OK(cuMemsetD8Async(u, 0xff, 4096, b));
    OK(cuStreamSynchronize(b));
    OK(cuStreamSynchronize(a));
    TRY(block_check(out, 4096, 7));
    OK(cuMemFree(u));
    OK(cuMemFree(out));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    OK(cuCtxDestroy(second));
    OK(cuCtxSetCurrent(first));
    return 0;
}

/* Without a context there is no default stream: the driver refuses to free in its order, and the runtime first makes a
 * context current. The driver makes no handle of a block either. */
static int thread_free_async_fn(void *arg)
{
    void **blocks = arg;
    CUdeviceptr first = (CUdeviceptr)blocks[0];
    CUipcMemHandle handle;
    CUcontext now;

    EXPECT(cuMemFreeAsync(first, NULL), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuMemFreeAsync(first, CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT(cuIpcGetMemHandle(&handle, first), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuMemFreeAsync((CUdeviceptr)blocks[1], blocks[2]));
    OK(cuCtxGetCurrent(&now));
    CHECK(!now);
    OK(cudaFreeAsync(blocks[0], NULL));
    return 0; /* no second free: on an H100 it returns 0, and the driver fails later */
}

BT_TEST(fresh_thread_free_async)
{
    cudaStream_t stream;
    struct bt_thread t;
    void *blocks[3];

    TRY(bt_usable(N)); /* with CUPOOL_HOOK=runtime the first request of all is the driver's */
    OK(cudaMalloc(&blocks[0], N));
    OK(cudaMalloc(&blocks[1], N));
    OK(cudaStreamCreate(&stream));
    blocks[2] = stream;
    TRY(bt_thread_start(&t, thread_free_async_fn, blocks));
    TRY(bt_thread_join(&t));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(stream));
    return bt_usable(N);
}

/* The free that gives a thread the device's own context does so again once another one of its has ended. */
static int thread_ended_fn(void *arg)
{
    void **blocks = arg;
    CUcontext own, now;

    TRY(bt_context(&own));
    OK(cudaFree(blocks[0]));
    OK(cuCtxDestroy(own));
    OK(cuCtxGetCurrent(&now));
    CHECK(!now);
    OK(cudaFree(blocks[1]));
    OK(cuCtxGetCurrent(&now));
    CHECK(now);
    return 0;
}

BT_TEST(thread_after_a_context)
{
    struct bt_thread t;
    void *blocks[2];

    OK(cudaMalloc(&blocks[0], N));
    OK(cudaMalloc(&blocks[1], N));
    TRY(bt_thread_start(&t, thread_ended_fn, blocks));
    TRY(bt_thread_join(&t));
    return bt_usable(N);
}

enum { FRESH_HANDLE, FRESH_FREE, FRESH_DEFAULT, FRESH_PER_THREAD, FRESH_STREAM, FRESH_WAYS };

struct fresh {
    int way;
    void *block;
    cudaStream_t stream;
};

static int thread_runtime_fn(void *arg)
{
    const struct fresh *fresh = arg;
    cudaIpcMemHandle_t handle;
    CUcontext now;

    if (fresh->way == FRESH_HANDLE)
        OK(cudaIpcGetMemHandle(&handle, fresh->block));
    else if (fresh->way == FRESH_FREE)
        OK(cudaFree(fresh->block));
    else
        OK(cudaFreeAsync(fresh->block, fresh->stream));
    OK(cuCtxGetCurrent(&now));
    CHECK(!now == (fresh->way == FRESH_STREAM));
    return 0;
}

/* The runtime makes a context current for a thread that has none, unless the call names a stream that has one. */
BT_TEST(fresh_thread_runtime)
{
    struct fresh fresh;
    struct bt_thread t;
    cudaStream_t stream;

    OK(cudaStreamCreate(&stream));
    for (int way = 0; way < FRESH_WAYS; way++) {
        fresh = (struct fresh){.way = way,
                               .stream = way == FRESH_STREAM       ? stream
                                         : way == FRESH_PER_THREAD ? cudaStreamPerThread
                                                                   : NULL};
        OK(cudaMalloc(&fresh.block, N));
        TRY(bt_thread_start(&t, thread_runtime_fn, &fresh));
        TRY(bt_thread_join(&t));
    }
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(stream));
    return bt_usable(N);
}

/* Memory of a green context comes from the driver, each time. A free on its stream, for which the frees of the memory's
 * context wait anyhow, is like one on any stream: the block serves again. */
#if CUDA_VERSION >= 12050
static int green_memory(CUcontext context, CUgreenCtx green, unsigned long (*count)(const char *))
{
    int (*kernel)(void *, const int *, unsigned int) = NULL;
    unsigned long calls;
    size_t avail, total;
    CUcontext own;
    CUstream stream;
    CUdeviceptr p;
    int go = 0;

    *(void **)&kernel = dlsym(RTLD_DEFAULT, "simgpu_kernel");
    OK(cuCtxGetCurrent(&own));
    OK(cuCtxSetCurrent(context));
    calls = count("cuMemAlloc_v2");
    for (int i = 0; i < 3; i++) {
        TRY(block_get(&p, 1000, i));
        OK(cuMemFree(p));
    }
    CHECK(count("cuMemAlloc_v2") == calls + 3);
    OK(cuCtxSetCurrent(own));
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    TRY(block_get(&p, 3 * N, 1));
    OK(kernel(stream, &go, 10000000));
    OK(cuMemFreeAsync(p, stream));
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(stream));
    OK(cuMemGetInfo(&avail, &total)); /* orders the blocks that relaxed keeps */
    calls = count("cuMemAlloc_v2");
    TRY(block_get(&p, 3 * N, 2));
    OK(cuMemFree(p));
    CHECK(count("cuMemAlloc_v2") == calls + !bt_preloaded());
    OK(cuStreamDestroy(stream));
    return 0;
}
#endif

/* More green contexts than a table has room for, one after the other: the next context is pooled like any. */
BT_TEST(green_contexts)
{
#if CUDA_VERSION >= 12050
    unsigned long (*count)(const char *) = NULL;
    CUdevResourceDesc desc;
    CUcontext context;
    CUdevResource all;
    CUgreenCtx green;
    unsigned long calls;
    CUdeviceptr p;

    *(void **)&count = dlsym(RTLD_DEFAULT, "simgpu_count");
    if (!count)
        SKIP("needs the simulated GPU");
    OK(cudaFree(NULL));
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    for (int i = 0; i < 300; i++) {
        OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        OK(cuCtxFromGreenCtx(&context, green));
        if (i == 0)
            TRY(green_memory(context, green, count));
        OK(cuGreenCtxDestroy(green));
    }
    TRY(bt_context(&context));
    TRY(block_get(&p, 1000, 1));
    OK(cuMemFree(p));
    calls = count("cuMemAlloc_v2");
    TRY(block_get(&p, 1000, 2));
    OK(cuMemFree(p));
    CHECK(count("cuMemAlloc_v2") == calls + !bt_preloaded());
    OK(cuCtxDestroy(context));
    return 0;
#else
    SKIP("needs CUDA 12.5");
#endif
}
