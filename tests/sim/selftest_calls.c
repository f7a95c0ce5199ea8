/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_calls.c - the calls that cupool watches because they reach memory past a context's queue: copies of every
 * shape, flags, graphs made by hand, green contexts, what network cards need.
 *
 * The tests check the effect of each, in the order of its stream. The part of cudaFree is in tests/behaviour/auto_*.c.
 *
 * Locking: none.
 */
#include "selftest.h"

#include "simgpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOAD(name) __typeof__(&(name)) p_##name = (__typeof__(&(name)))dlsym(drv.lib, #name)

enum { W = 100, H = 7, Z = 5, N = 1 << 16 };

static unsigned char *pinned;
static unsigned char *dev;
static cudaStream_t s;

static int byte_at(size_t i)
{
    unsigned char b = 0;

    OK(cudaMemcpy(&b, dev + i, 1, cudaMemcpyDeviceToHost));
    return b;
}

/* Layers and rows land where the pitches say, nothing between them is touched, and back again. */
static void test_3d(void)
{
    enum { PITCH = 128, ROWS = 9, HOST_PITCH = 110, HOST_ROWS = 8 };
    struct cudaMemcpy3DParms p = {.kind = cudaMemcpyHostToDevice};
    struct gate g = {0};
    size_t bad = 0;

    for (size_t i = 0; i < (size_t)HOST_PITCH * HOST_ROWS * Z; i++)
        pinned[i] = (unsigned char)(i * 7 + 1);
    OK(cudaMemset(dev, 0, N));
    p.srcPtr = (struct cudaPitchedPtr){pinned, HOST_PITCH, W, HOST_ROWS};
    p.dstPtr = (struct cudaPitchedPtr){dev, PITCH, W, ROWS};
    p.extent = (struct cudaExtent){W - 3, H, Z - 1};
    p.dstPos = (struct cudaPos){2, 1, 1};
    OK(cudaLaunchHostFunc(s, gate_hold, &g));
    OK(cudaMemcpy3DAsync(&p, s));
    CHECK_EQ(byte_at((size_t)(PITCH * (ROWS + 1)) + 2), 0); /* asynchronous: pinned memory */
    gate_open(&g);
    OK(cudaStreamSynchronize(s));
    unsigned char *all = malloc((size_t)PITCH * ROWS * Z);
    OK(cudaMemcpy(all, dev, (size_t)PITCH * ROWS * Z, cudaMemcpyDeviceToHost));
    for (size_t z = 0; z < Z; z++) {
        for (size_t y = 0; y < ROWS; y++) {
            for (size_t x = 0; x < PITCH; x++) {
                bool in = z >= 1 && y >= 1 && y < 1 + H && x >= 2 && x < 2 + W - 3;
                size_t from = ((z - 1) * HOST_ROWS + y - 1) * HOST_PITCH + x - 2;
                bad += all[(z * ROWS + y) * PITCH + x] != (in ? (unsigned char)(from * 7 + 1) : 0);
            }
        }
    }
    CHECK_EQ(bad, 0);
    free(all);
    /* Back, into pageable memory: the call waits. */
    unsigned char back[W * H];
    p = (struct cudaMemcpy3DParms){.kind = cudaMemcpyDeviceToHost};
    p.srcPtr = (struct cudaPitchedPtr){dev, PITCH, W, ROWS};
    p.srcPos = (struct cudaPos){2, 1, 1};
    p.dstPtr = (struct cudaPitchedPtr){back, W, W, H};
    p.extent = (struct cudaExtent){W - 3, H, 1};
    OK(cudaMemcpy3DAsync(&p, s));
    CHECK(back[0] == 1 && back[W] == (unsigned char)(HOST_PITCH * 7 + 1));
    p.kind = cudaMemcpyHostToDevice; /* the wrong way round: not device memory */
    CHECK_EQ(cudaMemcpy3DAsync(&p, s), 1);
    cudaGetLastError();
}

static void test_3d_peer(void)
{
    struct cudaMemcpy3DPeerParms p = {.srcDevice = 1, .dstDevice = 0};
    void *far;

    OK(cudaSetDevice(1));
    OK(cudaMalloc(&far, 4096));
    OK(cudaMemset(far, 0x61, 4096));
    OK(cudaDeviceSynchronize());
    p.srcPtr = (struct cudaPitchedPtr){far, 64, 64, 64};
    p.dstPtr = (struct cudaPitchedPtr){dev, 128, 64, 64};
    p.extent = (struct cudaExtent){64, 2, 1};
    OK(cudaMemset(dev, 0, 512));
    OK(cudaMemcpy3DPeerAsync(&p, NULL));
    OK(cudaDeviceSynchronize());
    CHECK(byte_at(0) == 0x61 && byte_at(63) == 0x61 && byte_at(64) == 0 && byte_at(128 + 63) == 0x61);
    OK(cudaFree(far));
    OK(cudaSetDevice(0));
}

static void test_batch(void)
{
#if CUDART_VERSION >= 13000
    struct cudaMemcpyAttributes attrs = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    void *dsts[] = {dev, dev + 4096, pinned + 4096};
    const void *srcs[] = {pinned, pinned, dev};
    size_t sizes[] = {100, 200, 100}, first = 0;
    struct gate g = {0};

    OK(cudaMemset(dev, 0, N));
    OK(cudaDeviceSynchronize());
    memset(pinned, 0x51, 8192);
    memset(pinned + 4096, 0, 100);
    OK(cudaLaunchHostFunc(s, gate_hold, &g));
    OK(cudaMemcpyBatchAsync(dsts, srcs, sizes, 3, &attrs, &first, 1, s));
    CHECK_EQ(pinned[4096], 0);
    gate_open(&g);
    OK(cudaStreamSynchronize(s));
    CHECK(byte_at(99) == 0x51 && byte_at(100) == 0 && byte_at(4096 + 199) == 0x51 && pinned[4096 + 99] == 0x51);
    CHECK_EQ(cudaMemcpyBatchAsync(dsts, srcs, sizes, 3, &attrs, &first, 1, cudaStreamLegacy), 1);
    CHECK_EQ(cudaMemcpyBatchAsync(dsts, srcs, sizes, 3, &attrs, &first, 0, s), 1);
    cudaGetLastError();
#endif
}

static void test_mem_ops(void)
{
    LOAD(cuStreamBatchMemOp_v2);
    CUstreamBatchMemOpParams op[4] = {{0}};
    uint32_t *flags = (uint32_t *)pinned, read[4];

    memset(pinned, 0, 64);
    OK(cudaMemset(dev, 0, 64));
    OK(cudaDeviceSynchronize());
    op[0].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op[0].writeValue.address = (uintptr_t)pinned;
    op[0].writeValue.value = 5;
    op[1].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    op[1].waitValue.address = (uintptr_t)(pinned + 4);
    op[1].waitValue.value = 6;
    op[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    op[2].operation = CU_STREAM_MEM_OP_BARRIER;
    op[3].operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    op[3].writeValue.address = (uintptr_t)(dev + 8);
    op[3].writeValue.value64 = 0x100000007;
    OK(p_cuStreamBatchMemOp_v2((CUstream)s, 4, op, 0));
    while (__atomic_load_n(&flags[0], __ATOMIC_ACQUIRE) != 5)
        nap_ms(1);
    CHECK_EQ(cudaStreamQuery(s), cudaErrorNotReady);
    __atomic_store_n(&flags[1], 6, __ATOMIC_RELEASE);
    OK(cudaStreamSynchronize(s));
    OK(cudaMemcpy(read, dev, 16, cudaMemcpyDeviceToHost));
    CHECK(read[2] == 7 && read[3] == 1);
    CHECK_EQ(p_cuStreamBatchMemOp_v2((CUstream)s, 0, op, 0), 1);
    cudaGetLastError();
}

static void add_one(void *arg)
{
    ++*(unsigned char *)arg;
}

/* dev <- pinned, pinned[64] + 1, pinned + 128 <- dev. */
static void test_graph(void)
{
    struct cudaHostNodeParams host = {.fn = add_one, .userData = pinned + 64};
    LOAD(cuGraphMemcpyNodeGetParams);
    cudaGraphNode_t a, b, c;
    enum cudaGraphNodeType type;
    CUDA_MEMCPY3D params;
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    struct gate g = {0};

    memset(pinned, 0x31, 256);
    pinned[64] = 1;
    memset(pinned + 128, 0, 64);
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode1D(&a, graph, NULL, 0, dev, pinned, 64, cudaMemcpyHostToDevice));
    OK(cudaGraphAddHostNode(&b, graph, &a, 1, &host));
    OK(cudaGraphAddMemcpyNode1D(&c, graph, &b, 1, pinned + 128, dev, 64, cudaMemcpyDeviceToHost));
    OK(cudaGraphNodeGetType(a, &type));
    CHECK_EQ(type, cudaGraphNodeTypeMemcpy);
    OK(cudaGraphNodeGetType(b, &type));
    CHECK_EQ(type, cudaGraphNodeTypeHost);
    OK(p_cuGraphMemcpyNodeGetParams((CUgraphNode)c, &params));
    CHECK(params.srcMemoryType == CU_MEMORYTYPE_DEVICE && params.dstMemoryType == CU_MEMORYTYPE_HOST &&
          params.dstHost == pinned + 128 && params.srcDevice == (uintptr_t)dev && params.WidthInBytes == 64 &&
          params.Height == 1 && params.Depth == 1);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaLaunchHostFunc(s, gate_hold, &g));
    OK(cudaGraphLaunch(exec, s));
    CHECK(pinned[64] == 1 && pinned[128] == 0);
    gate_open(&g);
    OK(cudaStreamSynchronize(s));
    CHECK(pinned[64] == 2 && pinned[128] == 0x31 && pinned[191] == 0x31);
    OK(cudaGraphExecDestroy(exec));
}

/* A handle of its own; its streams are covered by the primary one's events, which lives on afterwards. */
static int cuda_usable(void)
{
    void *p;
    int rc = (int)cudaMalloc(&p, 1000);

    return rc ? rc : (int)cudaFree(p);
}

static void test_green(void)
{
    LOAD(cuDeviceGetDevResource);
    LOAD(cuDevResourceGenerateDesc);
    LOAD(cuGreenCtxCreate);
    LOAD(cuGreenCtxDestroy);
    LOAD(cuCtxFromGreenCtx);
    LOAD(cuGreenCtxStreamCreate);
    int (*kernel)(void *, const int *, unsigned) =
        (int (*)(void *, const int *, unsigned))dlsym(drv.lib, "simgpu_kernel");
    CUdevResourceDesc desc;
    CUdevResource res;
    LOAD(cuCtxPushCurrent_v2);
    LOAD(cuCtxPopCurrent_v2);
    LOAD(cuStreamGetCtx);
    CUcontext ctx = NULL, own = NULL, now = NULL;
    CUgreenCtx green;
    cudaEvent_t e;
    CUstream gs;
    int go = 0;

    OK(p_cuDeviceGetDevResource(0, &res, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(res.sm.smCount > 0);
    OK(p_cuDevResourceGenerateDesc(&desc, &res, 1));
    CHECK_EQ(p_cuGreenCtxCreate(&green, desc, 0, 0), 1);
    OK(p_cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(p_cuCtxFromGreenCtx(&ctx, green));
    OK(drv.ctx_current(&own));
    CHECK(ctx && ctx != own);
    OK(p_cuCtxPushCurrent_v2(ctx));
    OK(drv.ctx_current(&now));
    CHECK(now == ctx);
    OK(cuda_usable());
    OK(p_cuCtxPopCurrent_v2(&now));
    CHECK_EQ(p_cuGreenCtxStreamCreate(&gs, green, 0, 0), 1);
    OK(p_cuGreenCtxStreamCreate(&gs, green, CU_STREAM_NON_BLOCKING, 0));
    OK(p_cuStreamGetCtx(gs, &now));
    CHECK(now == ctx);
    OK(kernel(gs, &go, 5000000));
    OK(cudaMemsetAsync(dev, 0x21, 64, (cudaStream_t)gs));
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    OK(drv.ctx_record(own, e));
    CHECK_EQ(cudaEventQuery(e), cudaErrorNotReady);
    CHECK_EQ(cudaStreamQuery((cudaStream_t)gs), cudaErrorNotReady);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    OK(cudaStreamSynchronize((cudaStream_t)gs));
    CHECK_EQ(byte_at(63), 0x21);
    OK(p_cuGreenCtxDestroy(green));
    CHECK(p_cuGreenCtxDestroy(green) != 0);
    CHECK(p_cuCtxFromGreenCtx(&ctx, green) != 0);
    OK(cudaMemset(dev, 0, 64));
    OK(cudaEventDestroy(e));
    cudaGetLastError();
}

/* A network card's view: a descriptor, SYNC_MEMOPS, and bytes that arrive past every stream. */
static void test_rdma(void)
{
    int (*poke)(unsigned long long, const void *, size_t) =
        (int (*)(unsigned long long, const void *, size_t))dlsym(drv.lib, "simgpu_poke");
    int (*kernel)(void *, const int *, unsigned) =
        (int (*)(void *, const int *, unsigned))dlsym(drv.lib, "simgpu_kernel");
    LOAD(cuMemGetHandleForAddressRange);
    LOAD(cuPointerSetAttribute);
    LOAD(cuPointerGetAttribute);
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    unsigned one = 1, marked = 0;
    int fd = -1, go = 0;
    void *big; /* whole pages */

    OK(cudaMalloc(&big, 2 << 20));
    OK(p_cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (uintptr_t)dev));
    OK(p_cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, (uintptr_t)big));
    OK(p_cuPointerGetAttribute(&marked, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (uintptr_t)big));
    CHECK_EQ(marked, 1);
    OK(p_cuMemGetHandleForAddressRange(&fd, (uintptr_t)big, 2 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK_EQ(p_cuMemGetHandleForAddressRange(&fd, (uintptr_t)big, 4 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0), 1);
    OK(cudaFree(big));
    OK(cudaMemset(dev, 0, 64));
    OK(cudaDeviceSynchronize());
    OK(kernel(s, &go, 5000000));
    OK(cudaMemsetAsync(dev, 0x72, 1, s));
    OK(poke((uintptr_t)dev, "ab", 2));
    OK(cudaMemcpyAsync(pinned, dev, 2, cudaMemcpyDeviceToHost, s));
    CHECK_EQ(cudaStreamQuery(s), cudaErrorNotReady);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    OK(cudaStreamSynchronize(s));
    CHECK(pinned[0] == 0x72 && pinned[1] == 'b');
    CHECK(poke((uintptr_t)dev + N - 1, "ab", 2) != 0);
    OK(kernel(s, NULL, 1000)); /* ends by itself */
    OK(cudaStreamSynchronize(s));
    cudaGetLastError();
}

/* An object is looked up when the work runs, and its destruction does not wait for that. */
static void test_texture(void)
{
    int (*kernel)(void *, const int *, unsigned) =
        (int (*)(void *, const int *, unsigned))dlsym(drv.lib, "simgpu_kernel");
    int (*fetch)(void *, unsigned long long, unsigned long long, size_t) =
        (int (*)(void *, unsigned long long, unsigned long long, size_t))dlsym(drv.lib, "simgpu_fetch");
    LOAD(cuTexObjectCreate);
    LOAD(cuTexObjectDestroy);
    CUDA_RESOURCE_DESC from = {.resType = CU_RESOURCE_TYPE_LINEAR};
    const CUDA_TEXTURE_DESC how = {0};
    CUtexObject object, again;
    int go = 0;

    OK(cudaMemset(dev, 1, 64));
    OK(cudaMemset(dev + 64, 2, 64));
    OK(cudaDeviceSynchronize());
    from.res.linear.sizeInBytes = 64;
    CHECK_EQ(p_cuTexObjectCreate(&object, &from, &how, NULL), 1);
    from.res.linear.devPtr = (uintptr_t)dev;
    OK(p_cuTexObjectCreate(&object, &from, &how, NULL));
    OK(fetch(s, object, (uintptr_t)dev + 128, 64));
    OK(cudaStreamSynchronize(s));
    CHECK_EQ(byte_at(128 + 63), 1);
    OK(kernel(s, &go, 5000000));
    OK(fetch(s, object, (uintptr_t)dev + 128, 64));
    OK(p_cuTexObjectDestroy(object));
    CHECK_EQ(p_cuTexObjectDestroy(object), 1);
    CHECK_EQ(cudaStreamQuery(s), cudaErrorNotReady);
    from.res.linear.devPtr = (uintptr_t)dev + 64;
    OK(p_cuTexObjectCreate(&again, &from, &how, NULL));
    CHECK(again == object);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    OK(cudaStreamSynchronize(s));
    CHECK_EQ(byte_at(128 + 63), 2);
    OK(p_cuTexObjectDestroy(again));
    OK(cudaMemset(dev, 0, 192));
    cudaGetLastError();
}

void test_calls(void)
{
    OK(cudaMalloc((void **)&dev, N));
    OK(cudaMallocHost((void **)&pinned, N));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    test_3d();
    test_3d_peer();
    test_batch();
    test_mem_ops();
    test_graph();
    test_green();
    test_rdma();
    test_texture();
    OK(cudaStreamDestroy(s));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(dev));
}
