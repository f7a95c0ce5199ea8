/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_peer.c - what another device may count on after cudaFree: the races of auto.h with peer copies of every kind,
 * peer access, a graph of the other device, memory that both devices map; and on the other device, if device 0 waits
 * for it by an event, or runs a graph of both.
 *
 * Natively each is right, because cudaFree has waited on the host. Other contexts are in auto_context.c, network cards
 * in auto_nic.c, other processes in auto_ipc.c, the calls of CUDA 13.1 and later in auto_later.c.
 */
#include "auto_far.h"

static int peer_put(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    OK(cudaMemcpyPeerAsync(to, 0, from, 1, n, s));
    return 0;
}

static int peer_get(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    OK(cudaMemcpyPeerAsync(to, 1, from, 0, n, s));
    return 0;
}

/* Device 0 is current, the stream is device 1's. */
static int not_current(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    OK(cudaSetDevice(0));
    return copy_async(to, from, n, kind, s);
}

static int peer_3d(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const struct cudaMemcpy3DParms layers = copy_layers(to, from, n, kind);
    const struct cudaMemcpy3DPeerParms p = {
        .srcDevice = 1, .srcPtr = layers.srcPtr, .dstPtr = layers.dstPtr, .extent = layers.extent};

    OK(cudaMemcpy3DPeerAsync(&p, s));
    return 0;
}

/* The graph runs once. */
static int run(CUgraph graph, cudaStream_t s)
{
    cudaGraphExec_t exec;

    TRY(graph_ready(graph, &exec));
    OK(cudaGraphLaunch(exec, s));
    TRY(far_done());
    OK(cudaGraphExecDestroy(exec));
    return 0;
}

static int captured(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    cudaGraph_t graph;

    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    TRY(copy_async(to, from, n, kind, s));
    OK(cudaStreamEndCapture(s, &graph));
    return run((CUgraph)graph, s);
}

static int node(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const struct cudaMemcpy3DParms p = copy_layers(to, from, n, kind);
    cudaGraphNode_t made;
    cudaGraph_t graph;

    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode(&made, graph, NULL, 0, &p));
    return run((CUgraph)graph, s);
}

/* A node that has copied within device 1 at first. */
static int changed_node(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    CUDA_MEMCPY3D copy = copy_row(far_buffer + n / 2, far_buffer, n / 2);
    CUcontext context;
    CUgraphNode made;
    CUgraph graph;

    OK(cuCtxGetCurrent(&context));
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemcpyNode(&made, graph, NULL, 0, &copy, context));
    copy = copy_row(to, from, n);
    OK(cuGraphMemcpyNodeSetParams(made, &copy));
    return run(graph, s);
}

#if CUDA_VERSION >= 13000
static int any_node(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    CUgraphNodeParams params = node_copy(to, from, n);
    CUgraphNode made;
    CUgraph graph;

    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&made, graph, NULL, NULL, 0, &params));
    return run(graph, s);
}

static int any_changed_node(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    CUgraphNodeParams params = node_copy(far_buffer + n / 2, far_buffer, n / 2);
    CUgraphNode made;
    CUgraph graph;

    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddNode(&made, graph, NULL, NULL, 0, &params));
    params = node_copy(to, from, n);
    OK(cuGraphNodeSetParams(made, &params));
    return run(graph, s);
}
#else
#define any_node         copy_batch_3d /* skips, too */
#define any_changed_node copy_batch_3d
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

/* Memory of device 1 that is mapped for device 0, too: no call shows what device 0's kernels do with it, and its
 * cudaFree waits for that. */
HAZARD(peer_mapped)
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

/* So does one beside memory that the driver pools and that both devices may use. */
HAZARD(peer_pooled)
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
RIGHT(peer_free_async)
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

/* Such a stream may also wait for the host to do something after the free. */
RIGHT(peer_free_async_waiting)
{
    unsigned int *go;
    char *p;

    TRY(far_setup(4096));
    OK(cudaHostAlloc((void **)&go, 4096, cudaHostAllocMapped | cudaHostAllocPortable));
    *go = 0;
    OK(cudaMalloc((void **)&p, 4096));
    OK(cudaSetDevice(1));
    OK(cuStreamWaitValue32((CUstream)far_stream, BT_ADDRESS(go), 1, CU_STREAM_WAIT_VALUE_GEQ));
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
    rc = far_put(u, n, byte);
    pthread_barrier_wait(&c.barrier);
    TRY(bt_thread_join(&thread));
    pthread_barrier_destroy(&c.barrier);
    return rc;
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
    TRY(far_put(u, n, byte));
    return bt_thread_join(&thread);
}

/* Memory that is not of cudaMalloc. */
HAZARD(peer_fetch_pitch, .copy = peer_get)
{
    size_t pitch;
    char *w;

    TRY(far_setup(4 * BT_MIB));
    OK(cudaMallocPitch((void **)&w, &pitch, 4096, BT_KIB));
    return auto_stale_in(w, pitch * BT_KIB, far_fetch);
}

/* Device 0 writes memory of device 1 late, and its cudaFree waits for that. */
HAZARD(peer_push)
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

/* Work of device 0, launched after a cudaFree, waits for a flag that a peer copy sets. Natively the copy does not wait
 * for it. */
RIGHT(peer_flag, .copy = peer_put)
{
    cudaStream_t a;
    char *flag, *x;

    TRY(far_setup(4096));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&flag, 4096));
    OK(cudaMalloc((void **)&x, 1000));
    TRY(bt_fill(flag, 4096, 0));
    OK(cudaFree(x));
    OK(cuStreamWaitValue32((CUstream)a, BT_ADDRESS(flag), 0x01010101, CU_STREAM_WAIT_VALUE_EQ));
    TRY(far_put(flag, 4096, 1));
    OK(cudaStreamSynchronize(a));
    OK(cudaFree(flag));
    return 0;
}

/* A stream of device 0 waits for all that far_stream has to do, and memory of device 0 is freed: natively far_stream is
 * idle then. Device 1 is current before and after. */
static int free_behind_far(void)
{
    cudaEvent_t event;
    cudaStream_t a;
    void *x;

    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    OK(cudaEventRecord(event, far_stream));
    OK(cudaSetDevice(0));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaMalloc(&x, 1000));
    OK(cudaStreamWaitEvent(a, event, 0));
    OK(cudaFree(x));
    OK(cudaSetDevice(1));
    return 0;
}

/* Device 1 writes host memory. */
HAZARD(event_host)
{
    const size_t n = 64 * BT_KIB;
    size_t missing = 0;
    char *host;

    TRY(far_setup(n));
    OK(cudaMallocHost((void **)&host, n));
    for (int round = 0; round < 2 && !missing; round++) {
        TRY(far_fill(n, 0x11));
        memset(host, 0, n);
        TRY(hold(far_stream));
        OK(cudaMemcpyAsync(host, far_buffer, n, cudaMemcpyDeviceToHost, far_stream));
        TRY(free_behind_far());
        for (size_t i = 0; i < n; i++)
            missing += ((volatile char *)host)[i] != 0x11;
        hold_release();
        TRY(far_done());
    }
    OK(cudaFreeHost(host));
    return missing ? WRONG("%zu bytes of device 1 were not there after device 0's cudaFree", missing) : 0;
}

/* Device 1 reads memory that another stream of its own writes then. */
HAZARD(event_stream)
{
    const size_t n = 64 * BT_KIB;
    cudaStream_t b;
    char *copied;
    long bad = 0;

    TRY(far_setup(n));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&copied, n));
    for (int round = 0; round < 2 && !bad; round++) {
        TRY(far_fill(n, 0x11));
        TRY(hold(far_stream));
        OK(cudaMemcpyAsync(copied, far_buffer, n, cudaMemcpyDeviceToDevice, far_stream));
        TRY(free_behind_far());
        OK(cudaMemsetAsync(far_buffer, 0x22, n, b));
        OK(cudaStreamSynchronize(b));
        hold_release();
        OK(cudaStreamSynchronize(far_stream));
        bad = auto_count(copied, n, 0x11);
        CHECK(bad >= 0);
    }
    OK(cudaFree(copied));
    OK(cudaStreamDestroy(b));
    return bad ? WRONG("%ld bytes of device 1 were written before they had been read", bad) : 0;
}

/* Device 1 reads memory in a graph of device 0, and a stream of its own writes that memory after device 0's free. */
HAZARD(graph_stream)
{
    const size_t n = 64 * BT_KIB;
    cudaGraphExec_t graph;
    cudaStream_t a, b;
    char *copied;
    long bad = 0;
    void *x;

    TRY(far_setup(n));
    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&copied, n));
    OK(cudaSetDevice(0));
    TRY(far_graph(copied, far_buffer, n, &graph));
    for (int round = 0; round < 2 && !bad; round++) {
        TRY(far_fill(n, 0x11));
        OK(cudaSetDevice(0));
        OK(cudaMalloc(&x, 1000));
        TRY(hold(a));
        OK(cudaGraphLaunch(graph, a));
        OK(cudaFree(x));
        OK(cudaSetDevice(1));
        OK(cudaMemsetAsync(far_buffer, 0x22, n, b));
        OK(cudaStreamSynchronize(b));
        hold_release();
        OK(cudaSetDevice(0));
        OK(cudaStreamSynchronize(a));
        OK(cudaSetDevice(1));
        bad = auto_count(copied, n, 0x11);
        CHECK(bad >= 0);
    }
    return bad ? WRONG("%ld bytes of device 1 were written before a graph had read them", bad) : 0;
}

FAR_RACE(peer_copy, peer_put, cudaMemcpyDefault)
FAR_RACE(peer_copy_uva, copy_async, cudaMemcpyDefault)
FAR_RACE(peer_copy_d2d, copy_async, cudaMemcpyDeviceToDevice)
FAR_RACE(peer_copy_not_current, not_current, cudaMemcpyDefault)
FAR_RACE(peer_copy_2d, copy_2d, cudaMemcpyDefault)
FAR_RACE(peer_copy_3d, peer_3d, cudaMemcpyDefault)
FAR_RACE(peer_copy_batch, copy_batch, cudaMemcpyDefault)
FAR_RACE(peer_copy_graph, captured, cudaMemcpyDefault)
FAR_RACE(peer_copy_graph_node, node, cudaMemcpyDefault)
FAR_RACE(peer_copy_changed_node, changed_node, cudaMemcpyDefault)
FAR_RACE(peer_copy_any_node, any_node, cudaMemcpyDefault)
FAR_RACE(peer_copy_any_changed_node, any_changed_node, cudaMemcpyDefault)
FAR_RACE(peer_copy_batch_3d, copy_batch_3d, cudaMemcpyDefault)
RACE(peer_copy_beside_capture, copy_beside_capture, .copy = peer_put)
RACE(peer_copy_beside_switch, copy_beside_switch, .copy = peer_put)
RACE(peer_access, set_by_access)
FAR_STALE(peer_fetch, peer_get, cudaMemcpyDefault)
FAR_STALE(peer_fetch_uva, copy_async, cudaMemcpyDefault)
