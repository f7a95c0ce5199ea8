/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_later.c - the calls of CUDA 13.1 and later after which the host or another device may look.
 *
 * What it is: copies to host memory, host functions and graph nodes made by the newest forms of the calls, which have
 * to be over when cudaFree returns, as in auto_host.c; and copies that come to fresh memory from another device, as in
 * auto_peer.c. See auto.h.
 *
 * What it is not: about calls that the headers of CUDA 13.0 have; but for the plain forms of peer copies and fills.
 */
#include "auto.h"

#define N (64 * BT_KIB)

static cudaStream_t s;
static char *dev;
static unsigned char *host; /* pinned */
static int ran;

/* A function of the driver that the headers may not have; skips where the driver does not have it either. */
#define FIND(function, symbol)                                                                                         \
    do {                                                                                                               \
        void *lib_ = dlopen("libcuda.so.1", RTLD_NOW);                                                                 \
        *(void **)&(function) = lib_ ? dlsym(lib_, symbol) : NULL;                                                     \
        if (!(function))                                                                                               \
            SKIP("no %s in this driver", symbol);                                                                      \
    } while (0)

static CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

static int copy_with(const void *to, const void *from, size_t n, cudaStream_t stream)
{
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *, CUstream);

    FIND(copy, "cuMemcpyWithAttributesAsync");
    OK(copy(AUTO_ADDRESS(to), AUTO_ADDRESS(from), n, &attributes, (CUstream)stream));
    return 0;
}

static int copy_3d_with(const void *to, const void *from, size_t n, cudaStream_t stream)
{
    CUresult (*copy)(CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream);
    CUDA_MEMCPY3D_BATCH_OP op;

    FIND(copy, "cuMemcpy3DWithAttributesAsync");
    memset(&op, 0, sizeof(op));
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = AUTO_ADDRESS(from);
    op.dst.op.ptr.ptr = AUTO_ADDRESS(to);
    op.extent = (CUextent3D){n, 1, 1};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    OK(copy(&op, 0, (CUstream)stream));
    return 0;
}

static void CUDART_CB run(void *arg)
{
    *(int *)arg = 1;
    memset(host, 0x11, N);
}

static int launch_copy(void)
{
    return copy_with(host, dev, N, s);
}

static int launch_copy_3d(void)
{
    return copy_3d_with(host, dev, N, s);
}

static int launch_function(void)
{
    CUresult (*launch)(CUstream, CUhostFn, void *, unsigned int);

    FIND(launch, "cuLaunchHostFunc_v2");
    OK(launch((CUstream)s, run, &ran, 0));
    return 0;
}

static int launch_graph(CUgraph graph)
{
    CUgraphExec exec;

    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, (CUstream)s));
    return 0;
}

static int add_node(CUgraph graph, CUgraphNode *ret_node, CUgraphNodeParams params)
{
    CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUgraphNodeParams *);

    FIND(add, "cuGraphAddNode_v3");
    OK(add(ret_node, graph, NULL, NULL, 0, &params));
    return 0;
}

/* A batch of one copy, as the headers of CUDA 13.4 know it. */
static CUgraphNodeParams node_batch(const void *to, const void *from, size_t n)
{
    static CUdeviceptr tos, froms;
    static size_t sizes, index;
    const struct {
        size_t count;
        CUdeviceptr *to, *from;
        size_t *sizes;
        CUmemcpyAttributes *attributes;
        size_t *indices, attribute_count;
    } batch = {1, &tos, &froms, &sizes, &attributes, &index, 1};
    CUgraphNodeParams params;

    tos = AUTO_ADDRESS(to);
    froms = AUTO_ADDRESS(from);
    sizes = n;
    memset(&params, 0, sizeof(params));
    params.type = (CUgraphNodeType)14;
    memcpy(&params.memcpy, &batch, sizeof(batch));
    return params;
}

static int launch_node_batch(void)
{
    CUgraphNode node;
    CUgraph graph;

    OK(cuGraphCreate(&graph, 0));
    TRY(add_node(graph, &node, node_batch(host, dev, N)));
    return launch_graph(graph);
}

static int launch_node(void)
{
    CUgraphNode node;
    CUgraph graph;

    OK(cuGraphCreate(&graph, 0));
    TRY(add_node(graph, &node, auto_node_copy(host, dev, N)));
    return launch_graph(graph);
}

/* The node is an innocent one to begin with. */
static int launch_changed_node(void)
{
    CUresult (*set)(CUgraphNode, CUgraphNodeParams *);
    CUgraphNodeParams params = auto_node_set(host, 0x11, N);
    CUgraphNode node;
    CUgraph graph;

    FIND(set, "cuGraphNodeSetParams_v2");
    OK(cuGraphCreate(&graph, 0));
    TRY(add_node(graph, &node, auto_node_set(dev, 0x11, N)));
    OK(set(node, &params));
    return launch_graph(graph);
}

/* What is captured anew is a graph like any other. */
static int launch_recaptured(void)
{
    CUresult (*begin)(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);
    CUgraph graph, same;

    FIND(begin, "cuStreamBeginRecaptureToGraph");
    OK(cuGraphCreate(&graph, 0));
    OK(begin((CUstream)s, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL, NULL));
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, s));
    OK(cuStreamEndCapture((CUstream)s, &same));
    return launch_graph(same);
}

/* launch has N bytes 0x11 written to host memory: they are there when a cudaFree has returned. */
static int lands(int (*launch)(void))
{
    void *victim;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMallocHost((void **)&host, N));
    OK(cudaMalloc((void **)&dev, N));
    for (int round = 0; round < 2; round++) {
        size_t missing = 0;

        OK(cudaMalloc(&victim, 1000));
        TRY(bt_fill(dev, N, 0x11));
        memset(host, 0, N);
        TRY(hold(s));
        TRY(launch());
        OK(cudaFree(victim));
        for (size_t i = 0; i < N; i++)
            missing += ((volatile unsigned char *)host)[i] != 0x11;
        hold_release();
        OK(cudaDeviceSynchronize());
        CHECK(host[0] == 0x11 && host[N - 1] == 0x11);
        if (missing)
            return WRONG("round %d: %zu bytes were not there after cudaFree", round, missing);
    }
    return 0;
}

static int host_copy(void)
{
    return lands(launch_copy);
}

static int host_copy_3d(void)
{
    return lands(launch_copy_3d);
}

static int host_function(void)
{
    return lands(launch_function);
}

static int host_node(void)
{
    return lands(launch_node);
}

static int host_node_batch(void)
{
    return lands(launch_node_batch);
}

static int host_changed_node(void)
{
    return lands(launch_changed_node);
}

static int host_recaptured(void)
{
    return lands(launch_recaptured);
}

/* A capture begun anew is not disturbed by frees and requests meanwhile. */
static int recapture(void)
{
    CUresult (*begin)(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);
    CUgraph graph, same;
    void *x, *y;

    FIND(begin, "cuStreamBeginRecaptureToGraph");
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, N));
    OK(cudaMalloc(&x, 1000));
    OK(cudaMalloc(&y, 1000));
    OK(cudaFree(y));
    OK(cuGraphCreate(&graph, 0));
    OK(begin((CUstream)s, CU_STREAM_CAPTURE_MODE_RELAXED, graph, NULL, NULL));
    OK(cudaMemsetAsync(dev, 7, N, s));
    if (bt_preloaded()) /* natively in relaxed mode, too, but it ends the capture where it synchronises */
        OK(cudaFree(x));
    OK(cuStreamEndCapture((CUstream)s, &same));
    TRY(launch_graph(same));
    OK(cudaStreamSynchronize(s));
    return bt_verify(dev, N, 7);
}

/* --- from another device --- */

static char *far_buffer;
static cudaStream_t far_stream;

static int far_setup(size_t n, int byte)
{
    int devices = 0, can = 0;

    OK(cudaGetDeviceCount(&devices));
    if (devices < 2)
        SKIP("needs two devices");
    OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    if (!can)
        SKIP("device 1 cannot reach device 0");
    OK(cudaSetDevice(1));
    if (!far_buffer) {
        OK(cudaStreamCreateWithFlags(&far_stream, cudaStreamNonBlocking));
        OK(cudaMalloc((void **)&far_buffer, n));
    }
    return bt_fill(far_buffer, n, byte);
}

static int far_done(void)
{
    OK(cudaStreamSynchronize(far_stream));
    OK(cudaStreamSynchronize(0));
    OK(cudaSetDevice(0));
    return 0;
}

static int put_with(char *u, size_t n, int byte)
{
    TRY(far_setup(n, byte));
    TRY(copy_with(u, far_buffer, n, far_stream));
    return far_done();
}

static int put_3d_with(char *u, size_t n, int byte)
{
    TRY(far_setup(n, byte));
    TRY(copy_3d_with(u, far_buffer, n, far_stream));
    return far_done();
}

static int put_node(char *u, size_t n, int byte)
{
    CUgraphExec exec;
    CUgraphNode node;
    CUgraph graph;

    TRY(far_setup(n, byte));
    OK(cuGraphCreate(&graph, 0));
    TRY(add_node(graph, &node, auto_node_copy(u, far_buffer, n)));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, (CUstream)far_stream));
    return far_done();
}

static int put_node_batch(char *u, size_t n, int byte)
{
    CUgraphExec exec;
    CUgraphNode node;
    CUgraph graph;

    TRY(far_setup(n, byte));
    OK(cuGraphCreate(&graph, 0));
    TRY(add_node(graph, &node, node_batch(u, far_buffer, n)));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphLaunch(exec, (CUstream)far_stream));
    return far_done();
}

static int put_plain(char *u, size_t n, int byte)
{
    TRY(far_setup(n, byte));
    OK(cudaMemcpyPeer(u, 0, far_buffer, 1, n));
    return far_done();
}

static int put_3d_plain(char *u, size_t n, int byte)
{
    struct cudaMemcpy3DPeerParms p = {0};

    TRY(far_setup(n, byte));
    p.srcDevice = 1;
    p.srcPtr = (struct cudaPitchedPtr){far_buffer, 4096, 4096, n / 4096};
    p.dstPtr = (struct cudaPitchedPtr){u, 4096, 4096, n / 4096};
    p.extent = (struct cudaExtent){4096, n / 4096, 1};
    OK(cudaMemcpy3DPeer(&p));
    return far_done();
}

static int set_2d_plain(char *u, size_t n, int byte)
{
    TRY(far_setup(n, byte));
    OK(cudaMemset2D(u, 4096, byte, 4096, n / 4096));
    return far_done();
}

static int set_2d16_plain(char *u, size_t n, int byte)
{
    TRY(far_setup(n, byte));
    OK(cuMemsetD2D16(AUTO_ADDRESS(u), 4096, (unsigned short)(byte << 8 | byte), 2048, n / 4096));
    return far_done();
}

static int set_2d32_plain(char *u, size_t n, int byte)
{
    TRY(far_setup(n, byte));
    OK(cuMemsetD2D32(AUTO_ADDRESS(u), 4096, 0x01010101u * (unsigned int)byte, 1024, n / 4096));
    return far_done();
}

/* clang-format off */
#define RACES(X) X(put_with) X(put_3d_with) X(put_node) X(put_node_batch) X(put_plain) X(put_3d_plain) X(set_2d_plain) X(set_2d16_plain) X(set_2d32_plain)
/* clang-format on */
#define X(put)                                                                                                         \
    static int peer_##put(void)                                                                                        \
    {                                                                                                                  \
        return auto_race(put);                                                                                         \
    }
RACES(X)
#undef X

/* clang-format off */
static const struct auto_test tests[] = {
    {"host_copy", host_copy, true},
    {"host_copy_3d", host_copy_3d, true},
    {"host_function", host_function, true},
    {"host_node", host_node, true},
    {"host_node_batch", host_node_batch, true},
    {"host_changed_node", host_changed_node, true},
    {"host_recaptured", host_recaptured, true},
    {"recapture", recapture, false},
#define X(put) {"peer_" #put, peer_##put, true},
    RACES(X)
#undef X
    {NULL, NULL, false},
};
/* clang-format on */

int main(int argc, char **argv)
{
    return auto_main(argc, argv, tests);
}
