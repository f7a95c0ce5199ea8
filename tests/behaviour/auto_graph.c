/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_graph.c - after cudaFree the host may count on graphs that were launched before: captured ones, ones made node
 * by node, and nodes that came to touch host memory by a change.
 *
 * Each hazard holds a stream (auto_debts.h), to which the graph is launched. meson builds it a second time with
 * -DCUDA_API_PER_THREAD_DEFAULT_STREAM. The calls of CUDA 13.1 and later are in auto_later.c.
 */
#include "auto_debts.h"

static int to_host(void)
{
    return copy_async(host, dev, N, cudaMemcpyDeviceToHost, s);
}

static int to_dev(void)
{
    return copy_async(dev, host, N, cudaMemcpyHostToDevice, s);
}

static int set_host(void)
{
    OK(cudaMemsetAsync(host, 0x11, N, s));
    return 0;
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

static int node_1d(void *to, const void *from, enum cudaMemcpyKind kind)
{
    cudaGraphNode_t node;
    cudaGraph_t g;

    OK(cudaGraphCreate(&g, 0));
    OK(cudaGraphAddMemcpyNode1D(&node, g, NULL, 0, to, from, N, kind));
    return graph_ready((CUgraph)g, &graph);
}

static int built_d2h(void)
{
    return node_1d(host, dev, cudaMemcpyDeviceToHost);
}

static int built_h2d(void)
{
    return node_1d(dev, host, cudaMemcpyHostToDevice);
}

static int built_host(void)
{
    struct cudaHostNodeParams params = {.fn = fill_fn, .userData = host};
    cudaGraphNode_t node;
    cudaGraph_t g;

    OK(cudaGraphCreate(&g, 0));
    OK(cudaGraphAddHostNode(&node, g, NULL, 0, &params));
    return graph_ready((CUgraph)g, &graph);
}

/* A node that the driver's calls make for one memory and change to host memory: in the graph, or later in the
 * executable graph. */
static int fill_node(void *first, bool change, bool later)
{
    CUDA_MEMSET_NODE_PARAMS params = {
        .dst = BT_ADDRESS(first), .value = 0x11, .elementSize = 1, .width = N, .height = 1};
    CUgraphNode node;
    CUcontext context;
    CUgraph g;

    OK(cuCtxGetCurrent(&context));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&node, g, NULL, 0, &params, context));
    params.dst = BT_ADDRESS(host);
    if (change)
        OK(cuGraphMemsetNodeSetParams(node, &params));
    OK(cudaGraphInstantiate(&graph, (cudaGraph_t)g, 0));
    if (later)
        OK(cuGraphExecMemsetNodeSetParams((CUgraphExec)graph, node, &params, context));
    OK(cuGraphDestroy(g));
    return 0;
}

static int built_set(void)
{
    return fill_node(host, false, false);
}

static int changed_set(void)
{
    return fill_node(dev, true, false);
}

static int changed_set_later(void)
{
    return fill_node(dev, false, true);
}

/* Calls that take nodes of any type. */
#if CUDA_VERSION >= 13000
static int any(CUgraphNodeParams first, CUgraphNodeParams *then, CUgraphNodeParams *later)
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
    return 0;
}

static int any_d2h(void)
{
    return any(node_copy(host, dev, N), NULL, NULL);
}

static int any_host(void)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof(params));
    params.type = CU_GRAPH_NODE_TYPE_HOST;
    params.host.fn = fill_fn;
    params.host.userData = host;
    return any(params, NULL, NULL);
}

static int any_set(void)
{
    return any(node_set(host, 0x11, N), NULL, NULL);
}

static int any_changed(void)
{
    CUgraphNodeParams then = node_set(host, 0x11, N);

    return any(node_set(dev, 0x11, N), &then, NULL);
}

static int any_changed_later(void)
{
    CUgraphNodeParams later = node_set(host, 0x11, N);

    return any(node_set(dev, 0x11, N), NULL, &later);
}
#else
static int any(void)
{
    SKIP("needs CUDA 13");
}
#define any_d2h           any
#define any_host          any
#define any_set           any
#define any_changed       any
#define any_changed_later any
#endif

LANDS(graph_d2h, pinned, .captured = to_host)
LANDS(graph_forked_d2h, pinned, .captured = to_host_forked)
TAKEN(graph_h2d, pinned, .captured = to_dev)
LANDS(graph_host_func, pinned, .captured = call_fn)
LANDS(graph_pinned_set, pinned, .captured = set_host)
LANDS(graph_built_d2h, pinned, .make = built_d2h)
TAKEN(graph_built_h2d, pinned, .make = built_h2d)
LANDS(graph_built_host, pinned, .make = built_host)
LANDS(graph_built_set, pinned, .make = built_set)
LANDS(graph_changed_set, pinned, .make = changed_set)
LANDS(graph_changed_set_later, pinned, .make = changed_set_later)
LANDS(graph_any_d2h, pinned, .make = any_d2h)
LANDS(graph_any_host, pinned, .make = any_host)
LANDS(graph_any_set, pinned, .make = any_set)
LANDS(graph_any_changed, pinned, .make = any_changed)
LANDS(graph_any_changed_later, pinned, .make = any_changed_later)
