/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_host.c - what the host may count on after cudaFree: everything launched before has happened.
 *
 * What it is: a stream is held; behind it something that writes host memory, reads host memory or runs on the host; an
 * unrelated block is freed; then the host looks at the memory, or overwrites it, without synchronising. Natively that
 * is right every time. Built a second time with -DCUDA_API_PER_THREAD_DEFAULT_STREAM. See auto.h.
 *
 * What it is not: other devices, contexts and processes (auto_peer.c, auto_ipc.c).
 */
#include "auto.h"

#define N   (64 * BT_KIB) /* bytes that travel; rows and layers divide it */
#define ROW 256

static cudaStream_t s;
static unsigned char *dev;  /* N bytes of device memory */
static unsigned char *host; /* N bytes that the host and the device share in some way, by default pinned */
static void *victim;        /* what is freed */
static cudaGraphExec_t graph;

static int setup(void)
{
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, N));
    OK(cudaMalloc(&victim, 1000));
    return 0;
}

static int pinned(void)
{
    OK(cudaMallocHost((void **)&host, N));
    return setup();
}

static int free_victim(void)
{
    OK(cudaFree(victim));
    return 0;
}

static int free_victim_driver(void)
{
    OK(cuMemFree((CUdeviceptr)(uintptr_t)victim));
    return 0;
}

static int free_thread_main(void *arg)
{
    return free_victim();
}

static int free_victim_thread(void)
{
    struct bt_thread thread;

    TRY(bt_thread_start(&thread, free_thread_main, NULL));
    return bt_thread_join(&thread);
}

static int free_victim_device(void)
{
    int devices = 0;

    OK(cudaGetDeviceCount(&devices));
    if (devices < 2)
        SKIP("needs two devices");
    OK(cudaSetDevice(1));
    TRY(free_victim());
    OK(cudaSetDevice(0));
    return 0;
}

/* While another thread's stream captures. The capture must not suffer. */
static int free_beside_capture(void)
{
    cudaGraph_t graph_made;
    cudaStream_t c;

    OK(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(c, cudaStreamCaptureModeThreadLocal));
    TRY(free_victim_thread());
    OK(cudaStreamEndCapture(c, &graph_made));
    OK(cudaGraphDestroy(graph_made));
    OK(cudaStreamDestroy(c));
    return 0;
}

/* Bytes of host memory that are not this one, as they are now. */
static size_t host_count(size_t n, int byte)
{
    const volatile unsigned char *p = host;
    size_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad += p[i] != (unsigned char)byte;
    return bad;
}

/* launch has the device write n bytes 0x11 to host memory: they are there when a cudaFree has returned. */
static int lands_by(int (*launch)(void), size_t n, int (*release)(void))
{
    for (int round = 0; round < 2; round++) {
        size_t missing;

        TRY(bt_fill(dev, N, 0x11));
        memset(host, 0, N);
        TRY(hold(s));
        TRY(launch());
        TRY(release());
        missing = host_count(n, 0x11);
        hold_release();
        OK(cudaDeviceSynchronize());
        if (host_count(n, 0x11))
            return BT_FAIL("round %d: %zu bytes never came", round, host_count(n, 0x11));
        if (missing)
            return WRONG("round %d: %zu of %zu bytes were not there after cudaFree", round, missing, n);
        OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

static int lands(int (*launch)(void))
{
    return lands_by(launch, N, free_victim);
}

/* launch has the device read N bytes of host memory: they may be overwritten when a cudaFree has returned. */
static int taken(int (*launch)(void))
{
    for (int round = 0; round < 2; round++) {
        long bad;

        TRY(bt_fill(dev, N, 0));
        memset(host, 0x11, N);
        TRY(hold(s));
        TRY(launch());
        TRY(free_victim());
        memset(host, 0x22, N);
        hold_release();
        OK(cudaDeviceSynchronize());
        bad = auto_count(dev, N, 0x11);
        CHECK(bad >= 0);
        if (bad)
            return WRONG("round %d: %ld bytes were read after cudaFree", round, bad);
        OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

/* --- copies --- */

static int to_host(void)
{
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, s));
    return 0;
}

static int to_host_default(void)
{
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDefault, s));
    return 0;
}

/* By a call that names it device memory. */
static int to_host_as_device(void)
{
    const CUresult rc = cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)host, (CUdeviceptr)(uintptr_t)dev, N, (CUstream)s);

    if (rc)
        SKIP("this driver does not (%d)", rc);
    return 0;
}

static int to_host_driver(void)
{
    OK(cuMemcpyDtoHAsync(host, (CUdeviceptr)(uintptr_t)dev, N, (CUstream)s));
    return 0;
}

static int to_host_2d(void)
{
    OK(cudaMemcpy2DAsync(host, ROW, dev, ROW, ROW, N / ROW, cudaMemcpyDeviceToHost, s));
    return 0;
}

static int copy_3d(void *dst, void *src, enum cudaMemcpyKind kind)
{
    struct cudaMemcpy3DParms p = {.kind = kind};

    p.srcPtr = (struct cudaPitchedPtr){src, ROW, ROW, 16};
    p.dstPtr = (struct cudaPitchedPtr){dst, ROW, ROW, 16};
    p.extent = (struct cudaExtent){ROW, 16, N / ROW / 16};
    OK(cudaMemcpy3DAsync(&p, s));
    return 0;
}

static int to_host_3d(void)
{
    return copy_3d(host, dev, cudaMemcpyDeviceToHost);
}

static int copy_batch(void *dst, const void *src)
{
#if CUDART_VERSION >= 13000
    struct cudaMemcpyAttributes attrs = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t size = N, first = 0;

    OK(cudaMemcpyBatchAsync(&dst, &src, &size, 1, &attrs, &first, 1, s));
    return 0;
#else
    SKIP("needs CUDA 13");
#endif
}

static int to_host_batch(void)
{
    return copy_batch(host, dev);
}

static int to_host_batch_3d(void)
{
#if CUDA_VERSION >= 13000
    return auto_copy_batch(host, dev, N, s);
#else
    SKIP("needs CUDA 13");
#endif
}

static int to_host_legacy(void)
{
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, cudaStreamLegacy));
    return 0;
}

static int to_host_per_thread(void)
{
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    return 0;
}

/* From other pinned memory. */
static int to_host_from_host(void)
{
    static unsigned char *from;

    if (!from)
        OK(cudaMallocHost((void **)&from, N));
    memset(from, 0x11, N);
    OK(cudaMemcpyAsync(host, from, N, cudaMemcpyHostToHost, s));
    return 0;
}

static int to_dev(void)
{
    OK(cudaMemcpyAsync(dev, host, N, cudaMemcpyHostToDevice, s));
    return 0;
}

static int to_dev_driver(void)
{
    OK(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)dev, host, N, (CUstream)s));
    return 0;
}

static int to_dev_2d(void)
{
    OK(cudaMemcpy2DAsync(dev, ROW, host, ROW, ROW, N / ROW, cudaMemcpyHostToDevice, s));
    return 0;
}

static int to_dev_3d(void)
{
    return copy_3d(dev, host, cudaMemcpyHostToDevice);
}

static int to_dev_batch(void)
{
    return copy_batch(dev, host);
}

static int d2h(void)
{
    TRY(pinned());
    return lands(to_host);
}

static int d2h_default(void)
{
    TRY(pinned());
    return lands(to_host_default);
}

static int d2h_as_device(void)
{
    TRY(pinned());
    return lands(to_host_as_device);
}

static int d2h_driver(void)
{
    TRY(pinned());
    return lands_by(to_host_driver, N, free_victim_driver);
}

static int d2h_thread(void)
{
    TRY(pinned());
    return lands_by(to_host, N, free_victim_thread);
}

static int d2h_device(void)
{
    TRY(pinned());
    return lands_by(to_host, N, free_victim_device);
}

/* On a stream of a green context. */
static int d2h_green(void)
{
#if CUDA_VERSION >= 12050
    CUdevResourceDesc desc;
    CUdevResource all;
    CUcontext context;
    CUgreenCtx green;
    CUstream stream;
    int rc;

    TRY(pinned());
    rc = (int)cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);
    if (rc)
        SKIP("no green contexts here (%d)", rc);
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    s = (cudaStream_t)stream;
    return lands(to_host);
#else
    SKIP("needs CUDA 12.5");
#endif
}

/* Another stream copies to the host, too, and that one is waited for. */
static int other_sync(bool before)
{
    static cudaStream_t other;
    static unsigned char *there;

    if (!other) {
        OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        OK(cudaMallocHost((void **)&there, N));
    }
    if (before)
        OK(cudaMemcpyAsync(there, dev, N, cudaMemcpyDeviceToHost, other));
    TRY(to_host());
    if (!before)
        OK(cudaMemcpyAsync(there, dev, N, cudaMemcpyDeviceToHost, other));
    OK(cudaStreamSynchronize(other));
    return 0;
}

static int to_host_and_sync(void)
{
    return other_sync(false);
}

static int sync_and_to_host(void)
{
    return other_sync(true);
}

static int d2h_other_sync(void)
{
    TRY(pinned());
    TRY(lands(to_host_and_sync));
    return lands(sync_and_to_host);
}

static int d2h_beside_capture(void)
{
    TRY(pinned());
    return lands_by(to_host, N, free_beside_capture);
}

/* As cublasGetVectorAsync does. */
static int (*library_fetch)(void *, CUdeviceptr, size_t, CUstream);

static int to_host_library(void)
{
    OK(library_fetch(host, (CUdeviceptr)(uintptr_t)dev, N, (CUstream)s));
    return 0;
}

static int d2h_library(void)
{
    void *lib;

    TRY(auto_library("libcublas_standin.so", &lib));
    library_fetch = (int (*)(void *, CUdeviceptr, size_t, CUstream))dlsym(lib, "standin_fetch");
    CHECK(library_fetch);
    TRY(pinned());
    return lands(to_host_library);
}

static int d2h_2d(void)
{
    TRY(pinned());
    return lands(to_host_2d);
}

static int d2h_3d(void)
{
    TRY(pinned());
    return lands(to_host_3d);
}

static int d2h_batch(void)
{
    TRY(pinned());
    return lands(to_host_batch);
}

/* The stream that is held is the one that copies. */
static int d2h_legacy(void)
{
    TRY(pinned());
    s = cudaStreamLegacy;
    return lands(to_host_legacy);
}

static int d2h_per_thread(void)
{
    TRY(pinned());
    s = cudaStreamPerThread;
    return lands(to_host_per_thread);
}

static int h2h(void)
{
    TRY(pinned());
    return lands(to_host_from_host);
}

static int h2d(void)
{
    TRY(pinned());
    return taken(to_dev);
}

static int h2d_driver(void)
{
    TRY(pinned());
    return taken(to_dev_driver);
}

static int h2d_2d(void)
{
    TRY(pinned());
    return taken(to_dev_2d);
}

static int h2d_3d(void)
{
    TRY(pinned());
    return taken(to_dev_3d);
}

static int d2h_batch_3d(void)
{
    TRY(pinned());
    return lands(to_host_batch_3d);
}

static int h2d_batch(void)
{
    TRY(pinned());
    return taken(to_dev_batch);
}

/* Memory of the program's own that was pinned afterwards. */
static int registered(void)
{
    host = (unsigned char *)aligned_alloc(4096, N);
    CHECK(host);
    OK(cudaHostRegister(host, N, cudaHostRegisterDefault));
    return setup();
}

static int d2h_registered(void)
{
    TRY(registered());
    return lands(to_host);
}

static int h2d_registered(void)
{
    TRY(registered());
    return taken(to_dev);
}

/* --- functions on the host --- */

static void CUDART_CB fill_fn(void *arg)
{
    memset(arg, 0x11, N);
}

static void CUDART_CB fill_cb(cudaStream_t stream, cudaError_t status, void *arg)
{
    memset(arg, 0x11, N);
}

static int call_fn(void)
{
    OK(cudaLaunchHostFunc(s, fill_fn, host));
    return 0;
}

static int call_cb(void)
{
    OK(cudaStreamAddCallback(s, fill_cb, host, 0));
    return 0;
}

static int host_func(void)
{
    TRY(pinned());
    return lands(call_fn);
}

static int callback(void)
{
    TRY(pinned());
    return lands(call_cb);
}

/* --- graphs --- */

static int graph_launch(void)
{
    OK(cudaGraphLaunch(graph, s));
    return 0;
}

/* What launch does, as a graph. */
static int graph_capture(int (*launch)(void))
{
    cudaGraph_t g;

    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    TRY(launch());
    OK(cudaStreamEndCapture(s, &g));
    OK(cudaGraphInstantiate(&graph, g, 0));
    OK(cudaGraphDestroy(g));
    return 0;
}

static int graph_d2h(void)
{
    TRY(pinned());
    TRY(graph_capture(to_host));
    return lands(graph_launch);
}

/* The copy is on a stream that joins the capture. */
static int to_host_forked(void)
{
    cudaEvent_t fork_event, join_event;
    cudaStream_t other;

    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&fork_event, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join_event, cudaEventDisableTiming));
    OK(cudaEventRecord(fork_event, s));
    OK(cudaStreamWaitEvent(other, fork_event, 0));
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, other));
    OK(cudaEventRecord(join_event, other));
    OK(cudaStreamWaitEvent(s, join_event, 0));
    return 0;
}

static int graph_forked_d2h(void)
{
    TRY(pinned());
    TRY(graph_capture(to_host_forked));
    return lands(graph_launch);
}

static int graph_h2d(void)
{
    TRY(pinned());
    TRY(graph_capture(to_dev));
    return taken(graph_launch);
}

static int graph_host_func(void)
{
    TRY(pinned());
    TRY(graph_capture(call_fn));
    return lands(graph_launch);
}

static int graph_node(void *dst, const void *src, enum cudaMemcpyKind kind)
{
    cudaGraphNode_t node;
    cudaGraph_t g;

    OK(cudaGraphCreate(&g, 0));
    OK(cudaGraphAddMemcpyNode1D(&node, g, NULL, 0, dst, src, N, kind));
    OK(cudaGraphInstantiate(&graph, g, 0));
    OK(cudaGraphDestroy(g));
    return 0;
}

static int graph_built_d2h(void)
{
    TRY(pinned());
    TRY(graph_node(host, dev, cudaMemcpyDeviceToHost));
    return lands(graph_launch);
}

static int graph_built_h2d(void)
{
    TRY(pinned());
    TRY(graph_node(dev, host, cudaMemcpyHostToDevice));
    return taken(graph_launch);
}

static int graph_built_host(void)
{
    struct cudaHostNodeParams params = {.fn = fill_fn};
    cudaGraphNode_t node;
    cudaGraph_t g;

    TRY(pinned());
    params.userData = host;
    OK(cudaGraphCreate(&g, 0));
    OK(cudaGraphAddHostNode(&node, g, NULL, 0, &params));
    OK(cudaGraphInstantiate(&graph, g, 0));
    OK(cudaGraphDestroy(g));
    return lands(graph_launch);
}

/* A node that is made and changed by the driver's calls. */
static int graph_built_set(void)
{
    CUDA_MEMSET_NODE_PARAMS params = {.value = 0x11, .elementSize = 1, .width = N, .height = 1};
    CUgraphNode node;
    CUcontext context;
    CUgraph g;

    TRY(pinned());
    params.dst = AUTO_ADDRESS(host);
    OK(cuCtxGetCurrent(&context));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&node, g, NULL, 0, &params, context));
    OK(cudaGraphInstantiate(&graph, (cudaGraph_t)g, 0));
    OK(cuGraphDestroy(g));
    return lands(graph_launch);
}

/* First device memory, then host memory: in the graph, or in what has been made of it. */
static int changed_set(bool later)
{
    CUDA_MEMSET_NODE_PARAMS params = {
        .dst = AUTO_ADDRESS(dev), .value = 0x11, .elementSize = 1, .width = N, .height = 1};
    CUgraphNode node;
    CUcontext context;
    CUgraph g;

    OK(cuCtxGetCurrent(&context));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&node, g, NULL, 0, &params, context));
    params.dst = AUTO_ADDRESS(host);
    if (!later)
        OK(cuGraphMemsetNodeSetParams(node, &params));
    OK(cudaGraphInstantiate(&graph, (cudaGraph_t)g, 0));
    if (later)
        OK(cuGraphExecMemsetNodeSetParams((CUgraphExec)graph, node, &params, context));
    OK(cuGraphDestroy(g));
    return lands(graph_launch);
}

static int graph_changed_set(void)
{
    TRY(pinned());
    return changed_set(false);
}

static int graph_changed_set_later(void)
{
    TRY(pinned());
    return changed_set(true);
}

#if CUDA_VERSION >= 13000
/* The same by calls that take nodes of any type. */
static int graph_any(CUgraphNodeParams first, CUgraphNodeParams *then, CUgraphNodeParams *later)
{
    CUgraphNode node;
    CUgraph g;

    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddNode(&node, g, NULL, NULL, 0, &first));
    if (then)
        OK(cuGraphNodeSetParams(node, then));
    OK(cudaGraphInstantiate(&graph, (cudaGraph_t)g, 0));
    if (later)
        OK(cuGraphExecNodeSetParams((CUgraphExec)graph, node, later));
    OK(cuGraphDestroy(g));
    return lands(graph_launch);
}

static int graph_any_d2h(void)
{
    TRY(pinned());
    return graph_any(auto_node_copy(host, dev, N), NULL, NULL);
}

static int graph_any_host(void)
{
    CUgraphNodeParams params;

    TRY(pinned());
    memset(&params, 0, sizeof(params));
    params.type = CU_GRAPH_NODE_TYPE_HOST;
    params.host.fn = fill_fn;
    params.host.userData = host;
    return graph_any(params, NULL, NULL);
}

static int graph_any_set(void)
{
    TRY(pinned());
    return graph_any(auto_node_set(host, 0x11, N), NULL, NULL);
}

static int graph_any_changed(void)
{
    CUgraphNodeParams then;

    TRY(pinned());
    then = auto_node_set(host, 0x11, N);
    return graph_any(auto_node_set(dev, 0x11, N), &then, NULL);
}

static int graph_any_changed_later(void)
{
    CUgraphNodeParams later;

    TRY(pinned());
    later = auto_node_set(host, 0x11, N);
    return graph_any(auto_node_set(dev, 0x11, N), NULL, &later);
}
#else
static int graph_any(void)
{
    SKIP("needs CUDA 13");
}
#define graph_any_d2h           graph_any
#define graph_any_host          graph_any
#define graph_any_set           graph_any
#define graph_any_changed       graph_any
#define graph_any_changed_later graph_any
#endif

/* --- flags, and memory that the device writes without a copy --- */

static unsigned char *alias; /* where the device sees host */

static int write_value_32(void)
{
    OK(cuStreamWriteValue32((CUstream)s, (CUdeviceptr)(uintptr_t)alias, 0x11111111, 0));
    return 0;
}

static int write_value_64(void)
{
    OK(cuStreamWriteValue64((CUstream)s, (CUdeviceptr)(uintptr_t)alias, 0x1111111111111111u, 0));
    return 0;
}

static int write_batch(void)
{
    CUstreamBatchMemOpParams op = {0};

    op.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = (CUdeviceptr)(uintptr_t)alias;
    op.writeValue.value = 0x11111111;
    OK(cuStreamBatchMemOp((CUstream)s, 1, &op, 0));
    return 0;
}

static int set_alias(void)
{
    OK(cudaMemsetAsync(alias, 0x11, N, s));
    return 0;
}

static int copy_alias(void)
{
    OK(cudaMemcpyAsync(alias, dev, N, cudaMemcpyDefault, s));
    return 0;
}

static int from_alias(void)
{
    OK(cudaMemcpyAsync(dev, alias, N, cudaMemcpyDefault, s));
    return 0;
}

static int mapped(void)
{
    OK(cudaHostAlloc((void **)&host, N, cudaHostAllocMapped));
    OK(cudaHostGetDevicePointer((void **)&alias, host, 0));
    return setup();
}

static int mapped_registered(void)
{
    host = (unsigned char *)aligned_alloc(4096, N);
    CHECK(host);
    OK(cudaHostRegister(host, N, cudaHostRegisterMapped));
    OK(cudaHostGetDevicePointer((void **)&alias, host, 0));
    return setup();
}

/* Pinned memory that nobody asked to be mapped: under unified addressing the device can write it all the same. */
static int unmapped(void)
{
    TRY(pinned());
    alias = host;
    return 0;
}

static int managed(void)
{
    int concurrent = 0;

    OK(cudaDeviceGetAttribute(&concurrent, cudaDevAttrConcurrentManagedAccess, 0));
    if (!concurrent)
        SKIP("the host may not touch managed memory while this device works");
    OK(cudaMallocManaged((void **)&host, N, cudaMemAttachGlobal));
    alias = host;
    return setup();
}

static int value_mapped(void)
{
    TRY(mapped());
    return lands_by(write_value_32, 4, free_victim);
}

static int value_pinned(void)
{
    TRY(unmapped());
    return lands_by(write_value_32, 4, free_victim);
}

static int value_64(void)
{
    TRY(unmapped());
    return lands_by(write_value_64, 8, free_victim);
}

static int value_batch(void)
{
    TRY(unmapped());
    return lands_by(write_batch, 4, free_victim);
}

static int mapped_set(void)
{
    TRY(mapped());
    return lands(set_alias);
}

static int mapped_copy(void)
{
    TRY(mapped());
    return lands(copy_alias);
}

static int mapped_source(void)
{
    TRY(mapped());
    return taken(from_alias);
}

static int mapped_registered_set(void)
{
    TRY(mapped_registered());
    return lands(set_alias);
}

static int pinned_set(void)
{
    TRY(unmapped());
    return lands(set_alias);
}

static int graph_pinned_set(void)
{
    TRY(unmapped());
    TRY(graph_capture(set_alias));
    return lands(graph_launch);
}

static int managed_set(void)
{
    TRY(managed());
    return lands(set_alias);
}

static int managed_copy(void)
{
    TRY(managed());
    return lands(copy_alias);
}

static int managed_source(void)
{
    TRY(managed());
    return taken(from_alias);
}

/* --- events --- */

/* Events recorded before a cudaFree are complete after it: the time between them is known. */
static int elapsed(void)
{
    cudaEvent_t begin, end;

    TRY(pinned());
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    for (int round = 0; round < 2; round++) {
        float ms = -1;
        int rc;

        OK(cudaEventRecord(begin, s));
        TRY(hold(s));
        OK(cudaEventRecord(end, s));
        TRY(free_victim());
        rc = (int)cudaEventElapsedTime(&ms, begin, end);
        hold_release();
        OK(cudaDeviceSynchronize());
        if (rc == cudaErrorNotReady) {
            LAST(cudaSuccess);
            return WRONG("round %d: not ready after cudaFree", round);
        }
        OK(rc);
        CHECK(ms >= 0);
        OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

/* One that was recorded after it is not. */
static int elapsed_later(void)
{
    cudaEvent_t begin, end;
    float ms;

    TRY(pinned());
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, s));
    TRY(free_victim());
    TRY(hold(s));
    OK(cudaEventRecord(end, s));
    EXPECT(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
    LAST(cudaSuccess);
    hold_release();
    OK(cudaStreamSynchronize(s));
    OK(cudaEventElapsedTime(&ms, begin, end));
    return 0;
}

/*
 * Somebody else's cudaFree makes nobody wait who does not free. Here, natively, that cudaFree is still waiting when
 * this thread asks, and the device waits for this thread.
 */
static int elapsed_other_thread(void)
{
    struct bt_thread thread;
    cudaEvent_t begin, end;
    float ms;
    int rc;

    if (!hold_is_exact())
        SKIP("needs the simulated GPU");
    TRY(pinned());
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, s));
    TRY(hold_for(s, 5000000));
    OK(cudaEventRecord(end, s));
    TRY(bt_thread_start(&thread, free_thread_main, NULL));
    bt_nap(20000); /* by now it is most likely in its cudaFree; if not, nothing is shown */
    rc = (int)cudaEventElapsedTime(&ms, begin, end);
    hold_release();
    TRY(bt_thread_join(&thread));
    OK(cudaDeviceSynchronize());
    EXPECT(rc, cudaErrorNotReady);
    LAST(cudaSuccess);
    return 0;
}

/* --- what must not hang --- */

/*
 * Device work, launched after a cudaFree, waits for a flag that other device work sets later. Nothing that the program
 * does in between waits natively. begin: such a call.
 */
static int behind_flag(int (*begin)(void))
{
    cudaStream_t b;

    TRY(pinned());
    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    TRY(bt_fill(dev, N, 0));
    TRY(free_victim());
    OK(cuStreamWaitValue32((CUstream)s, (CUdeviceptr)(uintptr_t)dev, 1, CU_STREAM_WAIT_VALUE_EQ));
    TRY(begin());
    OK(cuStreamWriteValue32((CUstream)b, (CUdeviceptr)(uintptr_t)dev, 1, 0));
    OK(cudaStreamSynchronize(s));
    return 0;
}

static int begin_mapped(void)
{
    void *p;

    OK(cudaHostAlloc(&p, 4096, cudaHostAllocMapped));
    return 0;
}

static int begin_managed(void)
{
    void *p;

    OK(cudaMallocManaged(&p, 4096, cudaMemAttachGlobal));
    return 0;
}

static int begin_export(void)
{
    cudaIpcMemHandle_t handle;
    void *p;

    OK(cudaMalloc(&p, 4 * BT_MIB));
    OK(cudaIpcGetMemHandle(&handle, p));
    return 0;
}

static int flag_mapped(void)
{
    return behind_flag(begin_mapped);
}

static int flag_managed(void)
{
    return behind_flag(begin_managed);
}

static int flag_export(void)
{
    return behind_flag(begin_export);
}

/* --- what auto does not wait for --- */

/* With auto a cudaFree that owes the host nothing returns while the device is busy. About the library, not CUDA. */
static int does_not_wait(int (*launch)(void))
{
    const char *policy = getenv("CUPOOL_FREE");
    void *p;
    int rc;

    if (!bt_preloaded() || (policy && *policy && strcmp(policy, "strict") == 0))
        SKIP("about CUPOOL_FREE=auto and ordered");
    /* A context's first free waits: nobody saw what was launched before. */
    OK(cudaMalloc(&p, 1000));
    OK(cudaFree(p));
    TRY(hold(s));
    TRY(launch());
    TRY(free_victim());
    rc = (int)cudaStreamQuery(s);
    hold_release();
    OK(cudaDeviceSynchronize());
    EXPECT(rc, cudaErrorNotReady);
    LAST(cudaSuccess);
    OK(cudaMalloc(&victim, 1000));
    return 0;
}

static int device_only(void)
{
    OK(cudaMemsetAsync(dev, 1, N / 2, s));
    OK(cudaMemcpyAsync(dev + N / 2, dev, N / 2, cudaMemcpyDeviceToDevice, s));
    return 0;
}

/* Work of the device alone is no debt. */
static int ordered_device(void)
{
    TRY(pinned());
    return does_not_wait(device_only);
}

/* Nor in a graph. */
static int ordered_graph(void)
{
    TRY(pinned());
    TRY(graph_capture(device_only));
    return does_not_wait(graph_launch);
}

/* A debt is paid once. */
static int ordered_again(void)
{
    TRY(pinned());
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, s));
    OK(cudaLaunchHostFunc(s, fill_fn, host));
    TRY(free_victim());
    OK(cudaDeviceSynchronize());
    OK(cudaMalloc(&victim, 1000));
    return does_not_wait(device_only);
}

/* clang-format off */
static const struct auto_test tests[] = {
    {"d2h", d2h, true},
    {"d2h_default", d2h_default, true},
    {"d2h_as_device", d2h_as_device, true},
    {"d2h_driver", d2h_driver, true},
    {"d2h_thread", d2h_thread, true},
    {"d2h_device", d2h_device, true},
    {"d2h_green", d2h_green, true},
    {"d2h_other_sync", d2h_other_sync, true},
    {"d2h_beside_capture", d2h_beside_capture, true},
    {"d2h_library", d2h_library, true},
    {"d2h_2d", d2h_2d, true},
    {"d2h_3d", d2h_3d, true},
    {"d2h_batch", d2h_batch, true},
    {"d2h_batch_3d", d2h_batch_3d, true},
    {"d2h_legacy", d2h_legacy, true},
    {"d2h_per_thread", d2h_per_thread, true},
    {"d2h_registered", d2h_registered, true},
    {"h2h", h2h, true},
    {"h2d", h2d, true},
    {"h2d_driver", h2d_driver, true},
    {"h2d_2d", h2d_2d, true},
    {"h2d_3d", h2d_3d, true},
    {"h2d_batch", h2d_batch, true},
    {"h2d_registered", h2d_registered, true},
    {"host_func", host_func, true},
    {"callback", callback, true},
    {"graph_d2h", graph_d2h, true},
    {"graph_forked_d2h", graph_forked_d2h, true},
    {"graph_h2d", graph_h2d, true},
    {"graph_host_func", graph_host_func, true},
    {"graph_built_d2h", graph_built_d2h, true},
    {"graph_built_h2d", graph_built_h2d, true},
    {"graph_built_host", graph_built_host, true},
    {"graph_built_set", graph_built_set, true},
    {"graph_changed_set", graph_changed_set, true},
    {"graph_changed_set_later", graph_changed_set_later, true},
    {"graph_any_d2h", graph_any_d2h, true},
    {"graph_any_host", graph_any_host, true},
    {"graph_any_set", graph_any_set, true},
    {"graph_any_changed", graph_any_changed, true},
    {"graph_any_changed_later", graph_any_changed_later, true},
    {"graph_pinned_set", graph_pinned_set, true},
    {"value_mapped", value_mapped, true},
    {"value_pinned", value_pinned, true},
    {"value_64", value_64, true},
    {"value_batch", value_batch, true},
    {"mapped_set", mapped_set, true},
    {"mapped_copy", mapped_copy, true},
    {"mapped_source", mapped_source, true},
    {"mapped_registered_set", mapped_registered_set, true},
    {"pinned_set", pinned_set, true},
    {"managed_set", managed_set, true},
    {"managed_copy", managed_copy, true},
    {"managed_source", managed_source, true},
    {"elapsed", elapsed, false},
    {"elapsed_later", elapsed_later, false},
    {"elapsed_other_thread", elapsed_other_thread, false},
    {"flag_mapped", flag_mapped, false},
    {"flag_managed", flag_managed, false},
    {"flag_export", flag_export, false},
    {"ordered_device", ordered_device, false},
    {"ordered_graph", ordered_graph, false},
    {"ordered_again", ordered_again, false},
    {NULL, NULL, false},
};
/* clang-format on */

int main(int argc, char **argv)
{
    return auto_main(argc, argv, tests);
}
