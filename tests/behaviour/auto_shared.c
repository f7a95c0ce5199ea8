/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_shared.c - calls after which somebody else may look at memory that the context's queue does not order: another
 * process, graphics, the processor, a network card.
 *
 * What it is: one test for each such call. Work is held, a block is freed, and natively the work is over then. With
 * CUPOOL_FREE=auto it need not be before the call, and has to be after it; with ordered it never is. See auto.h.
 *
 * What it is not: those others. Most calls do nothing on the simulated GPU, and are left out on a real one.
 */
#include "auto.h"

static cudaStream_t s;

/* Is work that was launched before a cudaFree over when that returns? */
static int free_waited(bool *ret_waited, unsigned int us)
{
    cudaError_t result;
    void *x;

    OK(cudaMalloc(&x, 1000));
    TRY(hold_for(s, us));
    OK(cudaFree(x));
    result = cudaStreamQuery(s);
    hold_release();
    OK(cudaStreamSynchronize(s));
    CHECK(result == cudaSuccess || result == cudaErrorNotReady);
    *ret_waited = result == cudaSuccess;
    return 0;
}

static bool is_auto(void)
{
    const char *policy = getenv("CUPOOL_FREE");

    return bt_preloaded() && hold_is_exact() && (!policy || strcmp(policy, "auto") == 0);
}

/* The context is known, and what it owes to begin with is paid. */
static int begin(void)
{
    bool waited;
    void *x;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        OK(cudaMalloc(&x, 1000));
        OK(cudaFree(x));
    }
    if (!is_auto())
        return 0;
    TRY(free_waited(&waited, 10000000));
    return waited ? BT_FAIL("cudaFree waited before there was a reason") : 0;
}

static int waits(void)
{
    for (int round = 0; round < 2; round++) {
        bool waited;

        TRY(free_waited(&waited, HOLD_US));
        if (!waited)
            return WRONG("round %d: work was under way when cudaFree had returned", round);
    }
    return 0;
}

/* --- calls that do nothing on the simulated GPU --- */

typedef long word;
#define WORDS 9

/* Arguments are numbers, pointers and structures of eight bytes, which all travel as one word each. */
static int call(const char *symbol, const word *w)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    CUresult (*function)(word, word, word, word, word, word, word, word, word) = NULL;

    *(void **)&function = lib ? dlsym(lib, symbol) : NULL;
    CHECK(function);
    OK(function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8]));
    return 0;
}

static int waits_after(const char *symbol, const word *words)
{
    if (!hold_is_exact())
        SKIP("needs the simulated GPU");
    TRY(begin());
    TRY(call(symbol, words));
    return waits();
}

static CUdeviceptr ptr;
static uint64_t room[16];
static CUmemPoolProps managed_pool = {.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED};
static CUmemPoolProps host_pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                   .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA}};
static CUmemPoolProps device_pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                     .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
#define P(object) ((word)(uintptr_t) & (object))

/* clang-format off */
#define CALLS(X)                                                                                                       \
    X(cuMemPoolExportToShareableHandle, P(room), 0, 1)                                                                 \
    X(cuMemPoolExportPointer, P(room), (word)ptr)                                                                      \
    X(cuImportExternalMemory, P(room), P(room))                                                                        \
    X(cuImportExternalSemaphore, P(room), P(room))                                                                     \
    X(cuLogicalEndpointCreate, 1, P(room))                                                                             \
    X(cuLogicalEndpointImport, 1, P(room), 1)                                                                          \
    X(cuFabricCpyBatchAsync, 1, P(room))                                                                               \
    X(cuFabricCpyBatchAsync_ptsz, 1, P(room))                                                                          \
    X(cuMulticastAddDevice, 1, 0)                                                                                      \
    X(cuFlushGPUDirectRDMAWrites, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX)                                  \
    X(cuMemAdvise, (word)ptr, 4096)                                                                                    \
    X(cuMemAdvise_v2, (word)ptr, 4096)                                                                                 \
    X(cuMemPrefetchAsync, (word)ptr, 4096)                                                                             \
    X(cuMemPrefetchAsync_ptsz, (word)ptr, 4096)                                                                        \
    X(cuMemPrefetchAsync_v2, (word)ptr, 4096)                                                                          \
    X(cuMemPrefetchAsync_v2_ptsz, (word)ptr, 4096)                                                                     \
    X(cuMemPrefetchBatchAsync, P(room), P(room), 1)                                                                    \
    X(cuMemPrefetchBatchAsync_ptsz, P(room), P(room), 1)                                                               \
    X(cuMemDiscardBatchAsync, P(room), P(room), 1)                                                                     \
    X(cuMemDiscardBatchAsync_ptsz, P(room), P(room), 1)                                                                \
    X(cuMemDiscardAndPrefetchBatchAsync, P(room), P(room), 1)                                                          \
    X(cuMemDiscardAndPrefetchBatchAsync_ptsz, P(room), P(room), 1)                                                     \
    X(cuStreamAttachMemAsync, 0, (word)ptr, 4096)                                                                      \
    X(cuStreamAttachMemAsync_ptsz, 0, (word)ptr, 4096)                                                                 \
    X(cuGraphicsGLRegisterBuffer, P(room), 1)                                                                          \
    X(cuGraphicsGLRegisterImage, P(room), 1, 1)                                                                        \
    X(cuGraphicsEGLRegisterImage, P(room), P(room))                                                                    \
    X(cuGraphicsVDPAURegisterVideoSurface, P(room), 1)                                                                 \
    X(cuGraphicsVDPAURegisterOutputSurface, P(room), 1)                                                                \
    X(cuGraphicsMapResources, 1, P(room))                                                                              \
    X(cuGraphicsMapResources_ptsz, 1, P(room))                                                                         \
    X(cuGLRegisterBufferObject, 1)                                                                                     \
    X(cuEGLStreamConsumerConnect, P(room), P(room))                                                                    \
    X(cuEGLStreamConsumerConnectWithFlags, P(room), P(room))                                                           \
    X(cuEGLStreamProducerConnect, P(room), P(room), 1, 1)                                                              \
    X(cuStreamBeginCaptureToCig, (word)(uintptr_t)s, P(room))                                                          \
    X(cuStreamBeginCaptureToCig_ptsz, (word)(uintptr_t)s, P(room))                                                     \
    X(cuCtxSetFlags, CU_CTX_SYNC_MEMOPS)                                                                               \
    X(cuDevicePrimaryCtxSetFlags, 0, CU_CTX_SYNC_MEMOPS)                                                               \
    X(cuDevicePrimaryCtxSetFlags_v2, 0, CU_CTX_SYNC_MEMOPS)                                                            \
    X(cuMemHostRegister, P(room), sizeof(room), CU_MEMHOSTREGISTER_DEVICEMAP)
/* clang-format on */
#define X(symbol, ...)                                                                                                 \
    static int symbol##_call(void)                                                                                     \
    {                                                                                                                  \
        return waits_after(#symbol, (const word[WORDS]){__VA_ARGS__});                                                 \
    }
CALLS(X)
#undef X

/* --- pools of the driver's --- */

static int pool_of_managed(void)
{
    return waits_after("cuMemPoolCreate", (const word[WORDS]){P(room), P(managed_pool)});
}

static int pool_of_host(void)
{
    return waits_after("cuMemPoolCreate", (const word[WORDS]){P(room), P(host_pool)});
}

static int pool_default(void)
{
    return waits_after("cuMemGetDefaultMemPool",
                       (const word[WORDS]){P(room), P(host_pool.location), CU_MEM_ALLOCATION_TYPE_PINNED});
}

static int pool_current(void)
{
    return waits_after("cuMemGetMemPool",
                       (const word[WORDS]){P(room), P(device_pool.location), CU_MEM_ALLOCATION_TYPE_MANAGED});
}

/* A node of a graph that copies over a fabric. */
static int fabric_node(void)
{
    CUgraphNodeParams params = {.type = (CUgraphNodeType)18};
    CUgraph graph;

    if (!hold_is_exact())
        SKIP("needs the simulated GPU");
    TRY(begin());
    OK(cuGraphCreate(&graph, 0));
    TRY(call("cuGraphAddNode_v3", (const word[WORDS]){P(room), (word)(uintptr_t)graph, 0, 0, 0, P(params)}));
    return waits();
}

/* --- contexts --- */

static int waits_beside(const char *symbol, const word *words)
{
    CUcontext own;

    if (!hold_is_exact())
        SKIP("needs the simulated GPU");
    TRY(begin());
    OK(cuCtxGetCurrent(&own));
    TRY(call(symbol, words));
    OK(cuCtxSetCurrent(own));
    return waits();
}

static int context_of_old(void)
{
    return waits_beside("cuCtxCreate", (const word[WORDS]){P(room)});
}

static int context_of_gl(void)
{
    return waits_beside("cuGLCtxCreate_v2", (const word[WORDS]){P(room)});
}

static int context_of_vdpau(void)
{
    return waits_beside("cuVDPAUCtxCreate_v2", (const word[WORDS]){P(room)});
}

/* --- what does not need a simulated GPU --- */

static int export_handle(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    int fd;

    TRY(begin());
    OK(cuMemCreate(&handle, 2 * BT_MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRY(waits());
    CHECK(close(fd) == 0);
    OK(cuMemRelease(handle));
    return 0;
}

/* Memory of the program that is not the pool's. */
static int pitched(CUdeviceptr *ret_ptr)
{
    size_t pitch;
    void *p;

    TRY(begin());
    OK(cudaMallocPitch(&p, &pitch, 4096, BT_KIB));
    *ret_ptr = AUTO_ADDRESS(p);
    return 0;
}

static int ipc_of_pitched(void)
{
    CUipcMemHandle handle;
    CUdeviceptr p;

    TRY(pitched(&p));
    OK(cuIpcGetMemHandle(&handle, p));
    return waits();
}

static int dmabuf_of_pitched(void)
{
    CUdeviceptr p;
    int rc, fd;

    TRY(pitched(&p));
    rc = (int)cuMemGetHandleForAddressRange(&fd, p, 2 * BT_MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (rc == CUDA_ERROR_NOT_SUPPORTED)
        SKIP("no dma-buf here");
    OK(rc);
    CHECK(close(fd) == 0);
    return waits();
}

static int sync_memops_of_pitched(void)
{
    unsigned int on = 1;
    CUdeviceptr p;

    TRY(pitched(&p));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    return waits();
}

/* --- what is no reason --- */

/* A fill of memory that is not the pool's, before the pool has seen the context; of the other device's, by its own
 * stream, while this one's context is current. */
static int fill_before(void)
{
    int devices = 0;
    size_t pitch;
    void *p;
    bool waited;

    OK(cudaMallocPitch(&p, &pitch, 4096, BT_KIB));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaMemset2D(p, pitch, 0, 4096, 4));
    OK(cudaDeviceSynchronize());
    OK(cudaGetDeviceCount(&devices));
    if (devices > 1) {
        cudaStream_t far;
        void *q;

        OK(cudaSetDevice(1));
        OK(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
        OK(cudaMallocPitch(&q, &pitch, 4096, BT_KIB));
        OK(cudaSetDevice(0));
        OK(cudaMemsetAsync(q, 0, 4096, far));
        OK(cudaStreamSynchronize(far));
    }
    TRY(begin());
    if (devices < 2 || !is_auto())
        return 0;
    OK(cudaSetDevice(1));
    TRY(begin());
    TRY(free_waited(&waited, 10000000));
    return waited ? BT_FAIL("device 1 waited") : 0;
}

/* The same of another device's memory is one, for both. */
static int fill_far_before(void)
{
    int devices = 0, can = 0;
    size_t pitch;
    void *p;

    OK(cudaGetDeviceCount(&devices));
    if (devices < 2)
        SKIP("needs two devices");
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    if (!can)
        SKIP("device 1 cannot reach device 0");
    OK(cudaSetDevice(1));
    OK(cudaMallocPitch(&p, &pitch, 4096, BT_KIB));
    OK(cudaSetDevice(0));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY(waits());
    OK(cudaStreamDestroy(s));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return waits();
}

/* A pool of the device's memory, flags of a context that say nothing of others, access for a part of the own device. */
static int no_reason(void)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc own = {.location = {.type = (CUmemLocationType)6},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    bool waited;
    CUdeviceptr p;

    TRY(begin());
    if (!is_auto())
        return 0;
    TRY(call("cuMemPoolCreate", (const word[WORDS]){P(room), P(device_pool)}));
    OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
    OK(cuMemCreate(&handle, 2 * BT_MIB, &prop, 0));
    OK(cuMemAddressReserve(&p, 2 * BT_MIB, 0, 0, 0));
    OK(cuMemMap(p, 2 * BT_MIB, 0, handle, 0));
    OK(cuMemSetAccess(p, 2 * BT_MIB, &own, 1));
    TRY(free_waited(&waited, 10000000));
    return waited ? BT_FAIL("cudaFree waited without a reason") : 0;
}

/* clang-format off */
static const struct auto_test tests[] = {
#define X(symbol, ...) {#symbol, symbol##_call, true},
    CALLS(X)
#undef X
    {"pool_of_managed", pool_of_managed, true},
    {"pool_of_host", pool_of_host, true},
    {"pool_default", pool_default, true},
    {"pool_current", pool_current, true},
    {"fabric_node", fabric_node, true},
    {"context_of_old", context_of_old, true},
    {"context_of_gl", context_of_gl, true},
    {"context_of_vdpau", context_of_vdpau, true},
    {"export_handle", export_handle, true},
    {"ipc_of_pitched", ipc_of_pitched, true},
    {"dmabuf_of_pitched", dmabuf_of_pitched, true},
    {"sync_memops_of_pitched", sync_memops_of_pitched, true},
    {"fill_before", fill_before, false},
    {"fill_far_before", fill_far_before, true},
    {"no_reason", no_reason, false},
    {NULL, NULL, false},
};
/* clang-format on */

int main(int argc, char **argv)
{
    return auto_main(argc, argv, tests);
}
