/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - graphs: made by captures or node by node, instantiated, launched.
 *
 * What it is: an executable graph is its nodes' work in creation order, one of the orders that their edges allow; a
 * launch is one operation on a stream.
 *
 * What it is not: nodes other than copies and host functions by hand, updating, conditional and memory nodes.
 *
 * Locking: sim_lock(), taken here; an executable graph is kept by the launches that are under way.
 */
#include "sim.h"

CUgraphNode sim_graph_add(CUgraph graph, const CUgraphNode *deps, size_t n, const struct sim_work *w)
{
    CUgraphNode node = calloc(1, sizeof(*node));

    node->magic = SIM_MAGIC_NODE;
    node->graph = graph;
    node->work = *w;
    for (size_t i = 0; i < n; i++)
        sim_nodes_add(&node->deps, deps[i]);
    sim_nodes_add(&graph->nodes, node);
    return node;
}

void sim_graph_free(CUgraph graph)
{
    for (size_t i = 0; i < graph->nodes.n; i++) {
        CUgraphNode node = graph->nodes.at[i];
        sim_nodes_clear(&node->deps);
        sim_work_drop(&node->work);
        node->magic = 0;
        free(node);
    }
    sim_nodes_clear(&graph->nodes);
    graph->magic = 0;
    free(graph);
}

CUresult cuGraphCreate(CUgraph *ret, unsigned int flags)
{
    SIM_ENTER(cuGraphCreate);
    if (!ret || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = calloc(1, sizeof(**ret));
    (*ret)->magic = SIM_MAGIC_GRAPH;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    SIM_ENTER(cuGraphDestroy);
    if (!graph || graph->magic != SIM_MAGIC_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    sim_graph_free(graph);
    sim_unlock();
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    SIM_ENTER(cuGraphGetNodes);
    if (!graph || graph->magic != SIM_MAGIC_GRAPH || !n)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    for (size_t i = 0; nodes && i < *n; i++)
        nodes[i] = i < graph->nodes.n ? graph->nodes.at[i] : NULL;
    if (!nodes || *n > graph->nodes.n)
        *n = graph->nodes.n;
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n, struct sim_work w)
{
    if (!ret || !graph || graph->magic != SIM_MAGIC_GRAPH || (n && !deps))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult r = sim_work_check(&w);
    for (size_t i = 0; i < n; i++) {
        if (!deps[i] || deps[i]->magic != SIM_MAGIC_NODE || deps[i]->graph != graph)
            r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS)
        *ret = sim_graph_add(graph, deps, n, &w);
    sim_unlock();
    return r;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n,
                              const CUDA_MEMCPY3D *c, CUcontext ctx)
{
    SIM_ENTER(cuGraphAddMemcpyNode);
    struct sim_work w = {.kind = SIM_COPY};
    struct sim_side dst, src;
    CUresult r = c && ctx ? sim_copy_of(c, &dst, &src) : CUDA_ERROR_INVALID_VALUE;

    if (r != CUDA_SUCCESS)
        return r;
    if (!c->WidthInBytes || !c->Height || !c->Depth)
        return CUDA_ERROR_INVALID_VALUE;
    w.copy.dst = dst.addr;
    w.copy.dpitch = dst.pitch;
    w.copy.dslice = dst.slice;
    w.copy.src = src.addr;
    w.copy.spitch = src.pitch;
    w.copy.sslice = src.slice;
    w.copy.width = c->WidthInBytes;
    w.copy.height = c->Height;
    w.copy.depth = c->Depth;
    return add(ret, graph, deps, n, w);
}

CUresult cuGraphAddHostNode(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n,
                            const CUDA_HOST_NODE_PARAMS *params)
{
    SIM_ENTER(cuGraphAddHostNode);
    struct sim_work w = {.kind = SIM_HOST};

    if (!params || !params->fn)
        return CUDA_ERROR_INVALID_VALUE;
    w.host.fn = params->fn;
    w.host.arg = params->userData;
    return add(ret, graph, deps, n, w);
}

static CUgraphNodeType type_of(const struct sim_work *w)
{
    switch (w->kind) {
    case SIM_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case SIM_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case SIM_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    case SIM_WRITE_VALUE:
    case SIM_WAIT_VALUE:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    case SIM_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case SIM_GRAPH:
        return CU_GRAPH_NODE_TYPE_GRAPH;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *ret)
{
    SIM_ENTER(cuGraphNodeGetType);
    if (!node || node->magic != SIM_MAGIC_NODE || !ret)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = type_of(&node->work);
    return CUDA_SUCCESS;
}

static CUmemorytype memory_of(uint64_t addr)
{
    return sim_is_device_va(addr) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *ret)
{
    SIM_ENTER(cuGraphMemcpyNodeGetParams);
    if (!node || node->magic != SIM_MAGIC_NODE || node->work.kind != SIM_COPY || !ret)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    const struct sim_work *w = &node->work;
    *ret = (CUDA_MEMCPY3D){.srcMemoryType = memory_of(w->copy.src), .dstMemoryType = memory_of(w->copy.dst)};
    ret->srcHost = (const void *)(uintptr_t)w->copy.src; /* NOLINT: an address of the program's */
    ret->srcDevice = w->copy.src;
    ret->srcPitch = w->copy.spitch;
    ret->srcHeight = w->copy.spitch ? w->copy.sslice / w->copy.spitch : 0;
    ret->dstHost = (void *)(uintptr_t)w->copy.dst; /* NOLINT */
    ret->dstDevice = w->copy.dst;
    ret->dstPitch = w->copy.dpitch;
    ret->dstHeight = w->copy.dpitch ? w->copy.dslice / w->copy.dpitch : 0;
    ret->WidthInBytes = w->copy.width;
    ret->Height = w->copy.height;
    ret->Depth = w->copy.depth;
    sim_unlock();
    return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *ret)
{
    SIM_ENTER(cuGraphHostNodeGetParams);
    if (!node || node->magic != SIM_MAGIC_NODE || node->work.kind != SIM_HOST || !ret)
        return CUDA_ERROR_INVALID_VALUE;
    ret->fn = node->work.host.fn;
    ret->userData = node->work.host.arg;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *ret, CUgraph graph, unsigned long long flags)
{
    SIM_ENTER(cuGraphInstantiateWithFlags);
    if (!ret || !graph || graph->magic != SIM_MAGIC_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUgraphExec exec = calloc(1, sizeof(*exec));
    exec->magic = SIM_MAGIC_EXEC;
    exec->refs = 1;
    exec->n = graph->nodes.n;
    exec->works = calloc(exec->n ? exec->n : 1, sizeof(*exec->works));
    for (size_t i = 0; i < exec->n; i++)
        sim_work_copy(&exec->works[i], &graph->nodes.at[i]->work);
    sim_unlock();
    *ret = exec;
    return CUDA_SUCCESS;
}

void sim_exec_drop(CUgraphExec exec)
{
    if (--exec->refs)
        return;
    for (size_t i = 0; i < exec->n; i++)
        sim_work_drop(&exec->works[i]);
    free(exec->works);
    exec->magic = 0;
    free(exec);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    SIM_ENTER(cuGraphExecDestroy);
    if (!exec || exec->magic != SIM_MAGIC_EXEC)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    sim_exec_drop(exec);
    sim_unlock();
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool pt, bool run)
{
    struct sim_work w = {.kind = SIM_GRAPH, .exec = exec};
    CUstream s;

    if (!exec || exec->magic != SIM_MAGIC_EXEC)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS && run) {
        exec->refs++;
        r = sim_submit(s, &w, false);
    }
    sim_unlock();
    return r;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream s)
{
    SIM_ENTER(cuGraphLaunch);
    return launch(exec, s, false, true);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream s)
{
    SIM_ENTER(cuGraphLaunch_ptsz);
    return launch(exec, s, true, true);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream s)
{
    SIM_ENTER(cuGraphUpload);
    return launch(exec, s, false, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream s)
{
    SIM_ENTER(cuGraphUpload_ptsz);
    return launch(exec, s, true, false);
}
