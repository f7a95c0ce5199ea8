/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_later.c - the calls of CUDA 13.1 and later after which the host or another device may look.
 *
 * Copies to host memory, host functions and graph nodes by the newest forms of the calls have to be over when cudaFree
 * returns (auto_debts.h); copies from another device must not come to fresh memory too early (auto_far.h). Calls that
 * the headers of CUDA 13.0 have are in the other auto_*.c, except for the synchronous forms of peer copies and fills.
 */
#include "auto_debts.h"
#include "auto_far.h"

/* Finds a function of the driver that the headers may not have. Skips if the driver does not have it either. */
#define FIND(function, symbol)                                                                                         \
    do {                                                                                                               \
        void *lib_ = dlopen("libcuda.so.1", RTLD_NOW);                                                                 \
        *(void **)&(function) = lib_ ? dlsym(lib_, symbol) : NULL;                                                     \
        if (!(function))                                                                                               \
            SKIP("no %s in this driver", symbol);                                                                      \
    } while (0)

static CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

static int copy_with(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *, CUstream);

    FIND(copy, "cuMemcpyWithAttributesAsync");
    OK(copy(BT_ADDRESS(to), BT_ADDRESS(from), n, &attributes, (CUstream)stream));
    return 0;
}

static int copy_3d_with(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUresult (*copy)(CUDA_MEMCPY3D_BATCH_OP *, unsigned long long, CUstream);
    CUDA_MEMCPY3D_BATCH_OP op = copy_op(to, from, n);

    FIND(copy, "cuMemcpy3DWithAttributesAsync");
    OK(copy(&op, 0, (CUstream)stream));
    return 0;
}

static int launch_function(void)
{
    CUresult (*launch)(CUstream, CUhostFn, void *, unsigned int);

    FIND(launch, "cuLaunchHostFunc_v2");
    OK(launch((CUstream)s, fill_fn, host, 0));
    return 0;
}

static int launch_once(CUgraph g, cudaStream_t stream)
{
    CUgraphExec exec;

    OK(cuGraphInstantiate(&exec, g, 0));
    OK(cuGraphLaunch(exec, (CUstream)stream));
    return 0;
}

static int add_node(CUgraph g, CUgraphNode *ret_node, CUgraphNodeParams params)
{
    CUresult (*add)(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUgraphNodeParams *);

    FIND(add, "cuGraphAddNode_v3");
    OK(add(ret_node, g, NULL, NULL, 0, &params));
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

    tos = BT_ADDRESS(to);
    froms = BT_ADDRESS(from);
    sizes = n;
    memset(&params, 0, sizeof(params));
    params.type = (CUgraphNodeType)14;
    memcpy(&params.memcpy, &batch, sizeof(batch));
    return params;
}

static int copy_node(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUgraphNode node;
    CUgraph g;

    OK(cuGraphCreate(&g, 0));
    TRY(add_node(g, &node, node_copy(to, from, n)));
    return launch_once(g, stream);
}

static int copy_node_batch(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUgraphNode node;
    CUgraph g;

    OK(cuGraphCreate(&g, 0));
    TRY(add_node(g, &node, node_batch(to, from, n)));
    return launch_once(g, stream);
}

/* The node fills device memory to begin with. */
static int launch_changed_node(void)
{
    CUresult (*set)(CUgraphNode, CUgraphNodeParams *);
    CUgraphNodeParams params = node_set(host, 0x11, N);
    CUgraphNode node;
    CUgraph g;

    FIND(set, "cuGraphNodeSetParams_v2");
    OK(cuGraphCreate(&g, 0));
    TRY(add_node(g, &node, node_set(dev, 0x11, N)));
    OK(set(node, &params));
    return launch_once(g, s);
}

/* A graph, captured anew, is a graph like any other. */
static int launch_recaptured(void)
{
    CUresult (*begin)(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);
    CUgraph g, same;

    FIND(begin, "cuStreamBeginRecaptureToGraph");
    OK(cuGraphCreate(&g, 0));
    OK(begin((CUstream)s, CU_STREAM_CAPTURE_MODE_RELAXED, g, NULL, NULL));
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, s));
    OK(cuStreamEndCapture((CUstream)s, &same));
    return launch_once(same, s);
}

/* A capture begun anew is not disturbed by frees and requests meanwhile. */
RIGHT(recapture)
{
    CUresult (*begin)(CUstream, CUstreamCaptureMode, CUgraph, void *, void *);
    CUgraph g, same;
    void *x, *y;

    FIND(begin, "cuStreamBeginRecaptureToGraph");
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, N));
    OK(cudaMalloc(&x, 1000));
    OK(cudaMalloc(&y, 1000));
    OK(cudaFree(y));
    OK(cuGraphCreate(&g, 0));
    OK(begin((CUstream)s, CU_STREAM_CAPTURE_MODE_RELAXED, g, NULL, NULL));
    OK(cudaMemsetAsync(dev, 7, N, s));
    if (bt_preloaded()) /* natively in relaxed mode, too, but it ends the capture where it synchronises */
        OK(cudaFree(x));
    OK(cuStreamEndCapture((CUstream)s, &same));
    TRY(launch_once(same, s));
    OK(cudaStreamSynchronize(s));
    return bt_verify(dev, N, 7);
}

/* --- synchronous calls, which bring device 1's bytes to memory of device 0 --- */

static int far_returned(void)
{
    OK(cudaStreamSynchronize(0));
    return far_done();
}

static int put_plain(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaMemcpyPeer(u, 0, far_buffer, 1, n));
    return far_returned();
}

static int put_3d_plain(char *u, size_t n, int byte)
{
    struct cudaMemcpy3DParms layers;
    struct cudaMemcpy3DPeerParms p = {.srcDevice = 1};

    TRY(far_fill(n, byte));
    layers = copy_layers(u, far_buffer, n, cudaMemcpyDefault);
    p.srcPtr = layers.srcPtr;
    p.dstPtr = layers.dstPtr;
    p.extent = layers.extent;
    OK(cudaMemcpy3DPeer(&p));
    return far_returned();
}

static int set_2d_plain(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cudaMemset2D(u, 4096, byte, 4096, n / 4096));
    return far_returned();
}

static int set_2d16_plain(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cuMemsetD2D16(BT_ADDRESS(u), 4096, (unsigned short)(byte << 8 | byte), 2048, n / 4096));
    return far_returned();
}

static int set_2d32_plain(char *u, size_t n, int byte)
{
    TRY(far_fill(n, byte));
    OK(cuMemsetD2D32(BT_ADDRESS(u), 4096, 0x01010101u * (unsigned int)byte, 1024, n / 4096));
    return far_returned();
}

/* A race that has to come out right with ordered, too: CUDA orders such a copy with the work of both devices. */
#define ORDERED(name_, write_) AUTO_ADD(name_, .fn = auto_race_row, .write = (write_))

LANDS(host_copy, pinned, TO_HOST(copy_with))
LANDS(host_copy_3d, pinned, TO_HOST(copy_3d_with))
LANDS(host_function, pinned, .launch = launch_function)
LANDS(host_node, pinned, TO_HOST(copy_node))
LANDS(host_node_batch, pinned, TO_HOST(copy_node_batch))
LANDS(host_changed_node, pinned, .launch = launch_changed_node)
LANDS(host_recaptured, pinned, .launch = launch_recaptured)
FAR_RACE(peer_put_with, copy_with, cudaMemcpyDefault)
FAR_RACE(peer_put_3d_with, copy_3d_with, cudaMemcpyDefault)
FAR_RACE(peer_put_node, copy_node, cudaMemcpyDefault)
FAR_RACE(peer_put_node_batch, copy_node_batch, cudaMemcpyDefault)
ORDERED(peer_put_plain, put_plain)
ORDERED(peer_put_3d_plain, put_3d_plain)
RACE(peer_set_2d_plain, set_2d_plain)
RACE(peer_set_2d16_plain, set_2d16_plain)
RACE(peer_set_2d32_plain, set_2d32_plain)
