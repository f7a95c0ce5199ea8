/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_peer.c - what other devices, other contexts and network cards may count on after cudaFree.
 *
 * What it is: the race for fresh memory and the look at finished work (auto_race and auto_stale in auto.h), with
 * somebody else's hands: a peer copy of every kind, peer access, a graph of the other device, a second context, a green
 * one, RDMA. Natively each is right, because cudaFree has waited on the host.
 *
 * What it is not: other processes (auto_ipc.c). RDMA is left out on real GPUs: it takes simgpu_poke.
 */
#include "auto.h"

static cudaStream_t far_stream; /* of device 1 */
static char *far_buffer;        /* there */
static size_t far_size;

static int far_setup(size_t n)
{
    int devices = 0, can = 0;

    OK(cudaGetDeviceCount(&devices));
    if (devices < 2)
        SKIP("needs two devices");
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    if (!can)
        SKIP("device 1 cannot reach device 0");
    if (far_size >= n)
        return 0;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&far_stream, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&far_buffer, n));
    far_size = n;
    OK(cudaSetDevice(0));
    return 0;
}

/* Wait for device 1's stream, and back to device 0. */
static int far_done(void)
{
    OK(cudaStreamSynchronize(far_stream));
    OK(cudaSetDevice(0));
    return 0;
}

/* The bytes to send lie on device 1, which is current then. */
static int far_fill(size_t n, int byte)
{
    TRY(far_setup(n));
    OK(cudaSetDevice(1));
    OK(cudaMemsetAsync(far_buffer, byte, n, far_stream));
    OK(cudaStreamSynchronize(far_stream));
    return 0;
}

/* --- who writes fresh memory of device 0 --- */

static int copy_peer(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaMemcpyPeerAsync(u, 0, far_buffer, 1, n, far_stream));
    return far_done();
}

static int copy_uva(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaMemcpyAsync(u, far_buffer, n, cudaMemcpyDefault, far_stream));
    return far_done();
}

static int copy_d2d(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaMemcpyAsync(u, far_buffer, n, cudaMemcpyDeviceToDevice, far_stream));
    return far_done();
}

/* Device 0 is current, the stream is device 1's. */
static int copy_not_current(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaSetDevice(0));
    OK(cudaMemcpyAsync(u, far_buffer, n, cudaMemcpyDefault, far_stream));
    return far_done();
}

static int copy_2d(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaMemcpy2DAsync(u, 4096, far_buffer, 4096, 4096, n / 4096, cudaMemcpyDefault, far_stream));
    return far_done();
}

static int copy_3d(char *u, size_t n, int byte)
{
    struct cudaMemcpy3DPeerParms p = {.srcDevice = 1, .dstDevice = 0};

    TRY(far_fill(n, byte));
    p.srcPtr = (struct cudaPitchedPtr){far_buffer, 4096, 4096, 16};
    p.dstPtr = (struct cudaPitchedPtr){u, 4096, 4096, 16};
    p.extent = (struct cudaExtent){4096, 16, n / 4096 / 16};
    OK(cudaMemcpy3DPeerAsync(&p, far_stream));
    return far_done();
}

static int copy_batch(char *u, size_t n, int byte)
{
#if CUDART_VERSION >= 13000
    struct cudaMemcpyAttributes attrs = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    void *dst = u;
    const void *src;
    size_t first = 0;

    TRY(far_fill(n, byte));
    src = far_buffer;
    OK(cudaMemcpyBatchAsync(&dst, &src, &n, 1, &attrs, &first, 1, far_stream));
    return far_done();
#else
    SKIP("needs CUDA 13");
#endif
}

static int copy_graph(char *u, size_t n, int byte)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;

    TRY(far_fill(n, byte));
    OK(cudaStreamBeginCapture(far_stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemcpyAsync(u, far_buffer, n, cudaMemcpyDefault, far_stream));
    OK(cudaStreamEndCapture(far_stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, far_stream));
    TRY(far_done());
    OK(cudaGraphExecDestroy(exec));
    return 0;
}

/* A graph that is made by hand. */
static int copy_graph_node(char *u, size_t n, int byte)
{
    struct cudaMemcpy3DParms p = {.kind = cudaMemcpyDefault};
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    cudaGraphNode_t node;

    TRY(far_fill(n, byte));
    p.srcPtr = (struct cudaPitchedPtr){far_buffer, 4096, 4096, 16};
    p.dstPtr = (struct cudaPitchedPtr){u, 4096, 4096, 16};
    p.extent = (struct cudaExtent){4096, 16, n / 4096 / 16};
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode(&node, graph, NULL, 0, &p));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, far_stream));
    TRY(far_done());
    OK(cudaGraphExecDestroy(exec));
    return 0;
}

static int launch_far(CUgraph graph)
{
    cudaGraphExec_t exec;

    OK(cudaGraphInstantiate(&exec, (cudaGraph_t)graph, 0));
    OK(cuGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, far_stream));
    TRY(far_done());
    OK(cudaGraphExecDestroy(exec));
    return 0;
}

/* A node that has copied within device 1 at first. */
static int copy_changed_node(char *u, size_t n, int byte)
{
    CUDA_MEMCPY3D copy;
    CUcontext context;
    CUgraphNode node;
    CUgraph graph;

    TRY(far_fill(n, byte));
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphCreate(&graph, 0));
    copy = auto_copy(far_buffer + n / 2, far_buffer, n / 2);
    OK(cuGraphAddMemcpyNode(&node, graph, NULL, 0, &copy, context));
    copy = auto_copy(u, far_buffer, n);
    OK(cuGraphMemcpyNodeSetParams(node, &copy));
    return launch_far(graph);
}

#if CUDA_VERSION >= 13000
static int copy_any_node(char *u, size_t n, int byte)
{
    CUgraphNodeParams params;
    CUgraphNode node;
    CUgraph graph;

    TRY(far_fill(n, byte));
    params = auto_node_copy(u, far_buffer, n);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &params));
    return launch_far(graph);
}

static int copy_any_changed_node(char *u, size_t n, int byte)
{
    CUgraphNodeParams params;
    CUgraphNode node;
    CUgraph graph;

    TRY(far_fill(n, byte));
    params = auto_node_copy(far_buffer + n / 2, far_buffer, n / 2);
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&node, graph, NULL, NULL, 0, &params));
    params = auto_node_copy(u, far_buffer, n);
    OK(cuGraphNodeSetParams(node, &params));
    return launch_far(graph);
}

static int copy_batch_3d(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    TRY(auto_copy_batch(u, far_buffer, n, far_stream));
    return far_done();
}
#else
static int copy_of_13(char *u, size_t n, int byte)
{
    SKIP("needs CUDA 13");
}
#define copy_any_node         copy_of_13
#define copy_any_changed_node copy_of_13
#define copy_batch_3d         copy_of_13
#endif

/* Device 1 may write device 0's memory, and does. */
static int set_by_access(char *u, size_t n, int byte)
{
    static bool enabled;

    TRY(far_setup(n));
    OK(cudaSetDevice(1));
    if (!enabled)
        OK(cudaDeviceEnablePeerAccess(0, 0));
    enabled = true;
    OK(cudaMemsetAsync(u, byte, n, far_stream));
    return far_done();
}

static int peer_copy(void)
{
    return auto_race(copy_peer);
}

static int peer_copy_uva(void)
{
    return auto_race(copy_uva);
}

static int peer_copy_d2d(void)
{
    return auto_race(copy_d2d);
}

static int peer_copy_not_current(void)
{
    return auto_race(copy_not_current);
}

static int peer_copy_2d(void)
{
    return auto_race(copy_2d);
}

static int peer_copy_3d(void)
{
    return auto_race(copy_3d);
}

static int peer_copy_batch(void)
{
    return auto_race(copy_batch);
}

static int peer_copy_graph(void)
{
    return auto_race(copy_graph);
}

static int peer_access(void)
{
    return auto_race(set_by_access);
}

static int peer_copy_graph_node(void)
{
    return auto_race(copy_graph_node);
}

static int peer_copy_changed_node(void)
{
    return auto_race(copy_changed_node);
}

static int peer_copy_any_node(void)
{
    return auto_race(copy_any_node);
}

static int peer_copy_any_changed_node(void)
{
    return auto_race(copy_any_changed_node);
}

static int peer_copy_batch_3d(void)
{
    return auto_race(copy_batch_3d);
}

/* Is device 0 idle when its cudaFree has returned? */
static int free_waits(void)
{
    cudaError_t after;
    cudaStream_t a;
    char *x;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&x, 1000));
    OK(cudaDeviceSynchronize());
    TRY(hold(a));
    OK(cudaFree(x));
    after = cudaStreamQuery(a);
    hold_release();
    OK(cudaStreamSynchronize(a));
    OK(cudaStreamDestroy(a));
    if (after == cudaErrorNotReady)
        return WRONG("device 0 was still at work after its cudaFree");
    OK(after);
    return 0;
}

/* Memory of device 1 that is mapped for device 0, too: what device 0's kernels do with it nobody sees, and its cudaFree
 * waits for that. */
static int peer_mapped(void)
{
    const CUmemAllocationProp where = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    const CUmemAccessDesc access[] = {
        {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
        {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUmemGenericAllocationHandle handle;
    const size_t n = 4 * BT_MIB;
    CUdeviceptr w;
    int rc;

    TRY(far_setup(n));
    OK(cudaSetDevice(1));
    OK(cuMemCreate(&handle, n, &where, 0));
    OK(cuMemAddressReserve(&w, n, 0, 0, 0));
    OK(cuMemMap(w, n, 0, handle, 0));
    OK(cuMemSetAccess(w, n, access, 1));
    OK(cudaSetDevice(0));
    OK(cuMemSetAccess(w, n, access + 1, 1));
    rc = free_waits();
    OK(cuMemUnmap(w, n));
    OK(cuMemAddressFree(w, n));
    OK(cuMemRelease(handle));
    return rc;
}

/* The same of memory that the driver pools. */
static int peer_pooled(void)
{
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemoryPool pool;
    int rc;

    TRY(far_setup(4 * BT_MIB));
    OK(cuDeviceGetDefaultMemPool(&pool, 1));
    OK(cuMemPoolSetAccess(pool, &access, 1));
    rc = free_waits();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolSetAccess(pool, &access, 1));
    return rc;
}

/* Memory of device 0 that is freed when a stream of device 1 comes there, which is still to write it. */
static int peer_free_async(void)
{
    const size_t n = 4 * BT_MIB;
    char *p, *q, *x;

    TRY(far_setup(n));
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    OK(cudaSetDevice(0));
    OK(cudaMalloc((void **)&p, n));
    OK(cudaMalloc((void **)&x, 1000));
    TRY(bt_fill(p, n, 1));
    OK(cudaSetDevice(1));
    TRY(hold(far_stream));
    OK(cudaMemsetAsync(p, 0x77, n, far_stream));
    OK(cudaSetDevice(0));
    OK(cudaFreeAsync(p, far_stream));
    OK(cudaFree(x));
    OK(cudaMalloc((void **)&q, n));
    TRY(bt_fill(q, n, 0x22));
    hold_release();
    OK(cudaStreamSynchronize(far_stream));
    TRY(bt_verify(q, n, 0x22));
    OK(cudaFree(q));
    return 0;
}

/* The same of a stream that waits for what the host does after the free. */
static int peer_free_async_waiting(void)
{
    unsigned int *go;
    char *p;

    TRY(far_setup(4096));
    OK(cudaHostAlloc((void **)&go, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
    *go = 0;
    OK(cudaMalloc((void **)&p, 4096));
    OK(cudaSetDevice(1));
    OK(cuStreamWaitValue32((CUstream)far_stream, (CUdeviceptr)(uintptr_t)go, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cudaSetDevice(0));
    OK(cudaFreeAsync(p, far_stream));
    *(volatile unsigned int *)go = 1;
    OK(cudaStreamSynchronize(far_stream));
    OK(cudaFreeHost(go));
    return 0;
}

/* While a stream of another thread captures. */
struct capturer {
    pthread_barrier_t barrier;
};

static int capture_main(void *arg)
{
    struct capturer *c = (struct capturer *)arg;
    cudaGraph_t graph = NULL;
    cudaStream_t s = NULL;
    int rc;

    rc = (int)cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (!rc)
        rc = (int)cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    pthread_barrier_wait(&c->barrier);
    pthread_barrier_wait(&c->barrier);
    OK(rc);
    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(s));
    return 0;
}

static int copy_beside_capture(char *u, size_t n, int byte)
{
    struct bt_thread thread;
    struct capturer c;
    int rc;

    CHECK(pthread_barrier_init(&c.barrier, NULL, 2) == 0);
    TRY(bt_thread_start(&thread, capture_main, &c));
    pthread_barrier_wait(&c.barrier);
    rc = copy_peer(u, n, byte);
    pthread_barrier_wait(&c.barrier);
    TRY(bt_thread_join(&thread));
    pthread_barrier_destroy(&c.barrier);
    return rc;
}

static int peer_copy_beside_capture(void)
{
    return auto_race(copy_beside_capture);
}

static int map_main(void *arg)
{
    void *p;

    OK(cudaHostAlloc(&p, 4096, cudaHostAllocMapped));
    return 0;
}

/* Another thread does something at the same time that makes the library wait; this one must not get past that. */
static int copy_beside_switch(char *u, size_t n, int byte)
{
    struct bt_thread thread;

    TRY(far_setup(n));
    TRY(bt_thread_start(&thread, map_main, NULL));
    bt_nap(10000);
    TRY(copy_peer(u, n, byte));
    return bt_thread_join(&thread);
}

static int peer_copy_beside_switch(void)
{
    return auto_race(copy_beside_switch);
}

/* --- who looks at what device 0 has written --- */

static int far_check(size_t n, int byte)
{
    long bad;

    TRY(far_done());
    OK(cudaSetDevice(1));
    bad = auto_count(far_buffer, n, byte);
    OK(cudaSetDevice(0));
    CHECK(bad >= 0);
    return bad ? WRONG("%ld bytes were fetched before they were written", bad) : 0;
}

static int fetch_peer(const char *w, size_t n, int byte)
{
    TRY(far_fill(n, 0));
    OK(cudaMemcpyPeerAsync(far_buffer, 1, w, 0, n, far_stream));
    return far_check(n, byte);
}

static int fetch_uva(const char *w, size_t n, int byte)
{
    TRY(far_fill(n, 0));
    OK(cudaMemcpyAsync(far_buffer, w, n, cudaMemcpyDefault, far_stream));
    return far_check(n, byte);
}

static int peer_fetch(void)
{
    return auto_stale(fetch_peer);
}

static int peer_fetch_uva(void)
{
    return auto_stale(fetch_uva);
}

/* Memory that is not of cudaMalloc. */
static int peer_fetch_pitch(void)
{
    size_t pitch;
    char *w;

    TRY(far_setup(4 * BT_MIB));
    OK(cudaMallocPitch((void **)&w, &pitch, 4096, BT_KIB));
    return auto_stale_in(w, pitch * BT_KIB, fetch_peer);
}

/* Device 0 writes memory of device 1 late, and its cudaFree waits for that. */
static int peer_push(void)
{
    const size_t n = 4 * BT_MIB;
    cudaStream_t a;
    char *from, *x;

    TRY(far_setup(n));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&from, n));
    for (int round = 0; round < 2; round++) {
        long bad;

        TRY(far_fill(n, 0));
        OK(cudaSetDevice(0));
        OK(cudaMalloc((void **)&x, 1000));
        TRY(bt_fill(from, n, 0x33));
        TRY(hold(a));
        OK(cudaMemcpyPeerAsync(far_buffer, 1, from, 0, n, a));
        OK(cudaFree(x));
        OK(cudaSetDevice(1));
        bad = auto_count(far_buffer, n, 0x33);
        OK(cudaSetDevice(0));
        hold_release();
        OK(cudaStreamSynchronize(a));
        CHECK(bad >= 0);
        if (bad)
            return WRONG("round %d: %ld bytes had not come to device 1 after device 0's cudaFree", round, bad);
    }
    OK(cudaFree(from));
    OK(cudaStreamDestroy(a));
    return 0;
}

/*
 * Work of device 0, launched after a cudaFree, waits for a flag that a peer copy sets. Natively the copy does not wait
 * for it.
 */
static int peer_flag(void)
{
    cudaStream_t a;
    char *flag, *x;

    TRY(far_setup(4096));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&flag, 4096));
    OK(cudaMalloc((void **)&x, 1000));
    TRY(bt_fill(flag, 4096, 0));
    OK(cudaFree(x));
    OK(cuStreamWaitValue32((CUstream)a, (CUdeviceptr)(uintptr_t)flag, 0x01010101, CU_STREAM_WAIT_VALUE_EQ));
    TRY(copy_peer(flag, 4096, 1));
    OK(cudaStreamSynchronize(a));
    OK(cudaFree(flag));
    return 0;
}

/* --- a second context on the device --- */

static struct {
    CUcontext own, other;
    CUdeviceptr buffer;
    CUstream stream;
} second;

static int second_enter(size_t n)
{
    CUdevice dev;

    if (second.other) {
        OK(cuCtxPushCurrent(second.other));
        return 0;
    }
    OK(cuCtxGetCurrent(&second.own));
    OK(cuDeviceGet(&dev, 0));
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(&second.other, NULL, 0, dev));
#else
    OK(cuCtxCreate(&second.other, 0, dev));
#endif
    OK(cuMemAlloc(&second.buffer, n));
    OK(cuStreamCreate(&second.stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

static int second_leave(void)
{
    CUcontext ignored;

    OK(cuStreamSynchronize(second.stream));
    OK(cuCtxPopCurrent(&ignored));
    return 0;
}

static int second_put(char *u, size_t n, int byte)
{
    TRY(second_enter(n));
    OK(cuMemsetD8Async(second.buffer, (unsigned char)byte, n, second.stream));
    OK(cuMemcpyPeerAsync((CUdeviceptr)(uintptr_t)u, second.own, second.buffer, second.other, n, second.stream));
    return second_leave();
}

static int second_get(const char *w, size_t n, int byte)
{
    static unsigned char copy[4 * BT_MIB];
    size_t bad = 0;

    CHECK(n <= sizeof(copy));
    TRY(second_enter(n));
    OK(cuMemcpyPeerAsync(second.buffer, second.other, (CUdeviceptr)(uintptr_t)w, second.own, n, second.stream));
    OK(cuStreamSynchronize(second.stream));
    OK(cuMemcpyDtoH(copy, second.buffer, n));
    TRY(second_leave());
    for (size_t i = 0; i < n; i++)
        bad += copy[i] != (unsigned char)byte;
    return bad ? WRONG("%zu bytes were fetched before they were written", bad) : 0;
}

static int context_put(void)
{
    return auto_race(second_put);
}

static int context_get(void)
{
    return auto_stale(second_get);
}

#if CUDA_VERSION >= 12050
/* A green context's stream fills the primary one's memory. The primary one's event holds that back, too. */
static int green_put(char *u, size_t n, int byte)
{
    static CUgreenCtx green;
    static CUcontext context;
    static CUstream stream;
    CUcontext ignored;

    if (!green) {
        CUdevResourceDesc desc;
        CUdevResource all;
        int rc = (int)cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);

        if (rc)
            SKIP("no green contexts here (%d)", rc);
        OK(cuDevResourceGenerateDesc(&desc, &all, 1));
        OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        OK(cuCtxFromGreenCtx(&context, green));
        OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    }
    OK(cuCtxPushCurrent(context));
    OK(cuMemsetD8Async((CUdeviceptr)(uintptr_t)u, (unsigned char)byte, n, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxPopCurrent(&ignored));
    return 0;
}

static int green(void)
{
    return auto_race(green_put);
}
#else
static int green(void)
{
    SKIP("needs CUDA 12.5");
}
#endif

/* --- network cards --- */

typedef int poke_fn(unsigned long long addr, const void *from, size_t n);
typedef void *host_fn(unsigned long long addr, size_t n);

static poke_fn *poke;
static host_fn *peek;
static int (*put)(CUdeviceptr, const void *, size_t, poke_fn *);
static int (*get)(CUdeviceptr, void *, size_t, host_fn *);

static int card(void)
{
    poke = (poke_fn *)dlsym(RTLD_DEFAULT, "simgpu_poke");
    peek = (host_fn *)dlsym(RTLD_DEFAULT, "simgpu_host");
    if (!poke || !peek)
        SKIP("needs the simulated GPU");
    return 0;
}

/* A communication library. */
static int library(const char *name)
{
    void *lib;

    TRY(card());
    TRY(auto_library(name, &lib));
    put = (int (*)(CUdeviceptr, const void *, size_t, poke_fn *))dlsym(lib, "standin_put");
    get = (int (*)(CUdeviceptr, void *, size_t, host_fn *))dlsym(lib, "standin_get");
    CHECK(put && get);
    return 0;
}

static int poke_bytes(char *u, size_t n, int byte, bool by_library)
{
    char *bytes = (char *)malloc(n);

    CHECK(bytes);
    memset(bytes, byte, n);
    if (by_library)
        OK(put((CUdeviceptr)(uintptr_t)u, bytes, n, poke));
    else
        OK(poke((uintptr_t)u, bytes, n));
    free(bytes);
    return 0;
}

static int receive(char *u, size_t n, int byte)
{
    return poke_bytes(u, n, byte, true);
}

static int transmit(const char *w, size_t n, int byte)
{
    unsigned char *copy = (unsigned char *)malloc(n);
    size_t bad = 0;

    CHECK(copy);
    OK(get((CUdeviceptr)(uintptr_t)w, copy, n, peek));
    for (size_t i = 0; i < n; i++)
        bad += copy[i] != (unsigned char)byte;
    free(copy);
    return bad ? WRONG("%zu bytes were sent before they were written", bad) : 0;
}

/* The program itself registers the buffer with its card. */
static int sync_memops_put(char *u, size_t n, int byte)
{
    unsigned int on = 1;

    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)(uintptr_t)u));
    return poke_bytes(u, n, byte, false);
}

static int dmabuf_put(char *u, size_t n, int byte)
{
    int fd = -1;

    OK(cuMemGetHandleForAddressRange(&fd, (CUdeviceptr)(uintptr_t)u, n, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
    TRY(poke_bytes(u, n, byte, false));
    CHECK(close(fd) == 0);
    return 0;
}

static int uct_receive(void)
{
    TRY(library("libuct_standin.so"));
    return auto_race(receive);
}

static int uct_send(void)
{
    TRY(library("libuct_standin.so"));
    return auto_stale(transmit);
}

static int mca_receive(void)
{
    TRY(library("mca_standin.so"));
    return auto_race(receive);
}

static int mca_send(void)
{
    TRY(library("mca_standin.so"));
    return auto_stale(transmit);
}

static int mpi_receive(void)
{
    TRY(library("libmpi_standin.so"));
    return auto_race(receive);
}

static int mpi_send(void)
{
    TRY(library("libmpi_standin.so"));
    return auto_stale(transmit);
}

static int sync_memops(void)
{
    TRY(card());
    return auto_race(sync_memops_put);
}

static int dmabuf(void)
{
    TRY(card());
    return auto_race(dmabuf_put);
}

/* clang-format off */
static const struct auto_test tests[] = {
    {"peer_copy", peer_copy, true},
    {"peer_copy_uva", peer_copy_uva, true},
    {"peer_copy_d2d", peer_copy_d2d, true},
    {"peer_copy_not_current", peer_copy_not_current, true},
    {"peer_copy_2d", peer_copy_2d, true},
    {"peer_copy_3d", peer_copy_3d, true},
    {"peer_copy_batch", peer_copy_batch, true},
    {"peer_copy_graph", peer_copy_graph, true},
    {"peer_copy_graph_node", peer_copy_graph_node, true},
    {"peer_copy_changed_node", peer_copy_changed_node, true},
    {"peer_copy_any_node", peer_copy_any_node, true},
    {"peer_copy_any_changed_node", peer_copy_any_changed_node, true},
    {"peer_copy_batch_3d", peer_copy_batch_3d, true},
    {"peer_copy_beside_capture", peer_copy_beside_capture, true},
    {"peer_copy_beside_switch", peer_copy_beside_switch, true},
    {"peer_access", peer_access, true},
    {"peer_mapped", peer_mapped, true},
    {"peer_pooled", peer_pooled, true},
    {"peer_free_async", peer_free_async, false},
    {"peer_free_async_waiting", peer_free_async_waiting, false},
    {"peer_fetch", peer_fetch, true},
    {"peer_fetch_uva", peer_fetch_uva, true},
    {"peer_fetch_pitch", peer_fetch_pitch, true},
    {"peer_push", peer_push, true},
    {"peer_flag", peer_flag, false},
    {"context_put", context_put, true},
    {"context_get", context_get, true},
    {"green", green, false},
    {"uct_receive", uct_receive, true},
    {"uct_send", uct_send, true},
    {"mca_receive", mca_receive, true},
    {"mca_send", mca_send, true},
    {"mpi_receive", mpi_receive, true},
    {"mpi_send", mpi_send, true},
    {"sync_memops", sync_memops, true},
    {"dmabuf", dmabuf, true},
    {NULL, NULL, false},
};
/* clang-format on */

int main(int argc, char **argv)
{
    return auto_main(argc, argv, tests);
}
