/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - graphs: made by captures or node by node, instantiated, launched.
 *
 * An executable graph is its nodes' work in creation order, one of the orders that their edges allow; a launch is one
 * operation on a stream. Only copies, fills and host functions can be nodes made by hand; graphs are not updated as a
 * whole, and conditional and memory nodes are not simulated.
 *
 * Locking: sim_lock(), taken here; a launch has a copy of its executable graph, which may change or end meanwhile.
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
    SIM_LOCKED();
    sim_graph_free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
    SIM_ENTER(cuGraphGetNodes);
    if (!graph || graph->magic != SIM_MAGIC_GRAPH || !n)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    for (size_t i = 0; nodes && i < *n; i++)
        nodes[i] = i < graph->nodes.n ? graph->nodes.at[i] : NULL;
    if (!nodes || *n > graph->nodes.n)
        *n = graph->nodes.n;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n, struct sim_work w)
{
    if (!ret || !graph || graph->magic != SIM_MAGIC_GRAPH || (n && !deps))
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_work_check(&w, -1);
    for (size_t i = 0; i < n; i++) {
        if (!deps[i] || deps[i]->magic != SIM_MAGIC_NODE || deps[i]->graph != graph)
            r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS)
        *ret = sim_graph_add(graph, deps, n, &w);
    return r;
}

static CUresult copy_of(const CUDA_MEMCPY3D *c, struct sim_work *ret)
{
    struct sim_side dst, src;
    CUresult r = c ? sim_copy_of(c, &dst, &src) : CUDA_ERROR_INVALID_VALUE;

    if (r != CUDA_SUCCESS)
        return r;
    if (!c->WidthInBytes || !c->Height || !c->Depth)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = (struct sim_work){.kind = SIM_COPY};
    ret->copy.dst = dst.addr;
    ret->copy.dpitch = dst.pitch;
    ret->copy.dslice = dst.slice;
    ret->copy.src = src.addr;
    ret->copy.spitch = src.pitch;
    ret->copy.sslice = src.slice;
    ret->copy.width = c->WidthInBytes;
    ret->copy.height = c->Height;
    ret->copy.depth = c->Depth;
    return CUDA_SUCCESS;
}

static CUresult host_of(CUhostFn fn, void *arg, struct sim_work *ret)
{
    *ret = (struct sim_work){.kind = SIM_HOST};
    ret->host.fn = fn;
    ret->host.arg = arg;
    return fn ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_of(const CUDA_MEMSET_NODE_PARAMS *p, struct sim_work *ret)
{
    return p ? sim_set_of(p->dst, p->pitch, p->value, p->elementSize, p->width, p->height, ret)
             : CUDA_ERROR_INVALID_VALUE;
}

/* Kinds of CUDA 13.4 and 13.5, which older headers do not name, and how the parameters of the first begin. */
#define NODE_MEMCPY_BATCH 14
#define NODE_FABRIC_BATCH 18

struct batch {
    size_t count;
    CUdeviceptr *dsts, *srcs;
    size_t *sizes;
};

/* A batch of one. */
static CUresult batch_of(const struct batch *b, struct sim_work *ret)
{
    CUDA_MEMCPY3D c = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED, .dstMemoryType = CU_MEMORYTYPE_UNIFIED};

    if (b->count != 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    c.srcDevice = b->srcs[0];
    c.dstDevice = b->dsts[0];
    c.WidthInBytes = b->sizes[0];
    c.Height = c.Depth = 1;
    return copy_of(&c, ret);
}

static CUresult any_of(const CUgraphNodeParams *p, struct sim_work *ret)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)p->type) {
    case NODE_MEMCPY_BATCH:
        return batch_of((const void *)&p->memcpy, ret);
    case NODE_FABRIC_BATCH: /* a watching library sees it succeed */
        *ret = (struct sim_work){.kind = SIM_NOP};
        return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return p->memcpy.copyCtx ? copy_of(&p->memcpy.copyParams, ret) : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return p->memset.ctx ? sim_set_of(p->memset.dst, p->memset.pitch, p->memset.value, p->memset.elementSize,
                                          p->memset.width, p->memset.height, ret)
                             : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_HOST:
        return host_of(p->host.fn, p->host.userData, ret);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* made fills w. */
#define ADD(sym, params, made)                                                                                         \
    CUresult sym params                                                                                                \
    {                                                                                                                  \
        SIM_ENTER(sym);                                                                                                \
        struct sim_work w;                                                                                             \
        CUresult r = (made);                                                                                           \
        return r == CUDA_SUCCESS ? add(ret, graph, deps, n, w) : r;                                                    \
    }

ADD(cuGraphAddMemcpyNode,
    (CUgraphNode * ret, CUgraph graph, const CUgraphNode *deps, size_t n, const CUDA_MEMCPY3D *c, CUcontext ctx),
    ctx ? copy_of(c, &w) : CUDA_ERROR_INVALID_VALUE)
ADD(cuGraphAddMemsetNode,
    (CUgraphNode * ret, CUgraph graph, const CUgraphNode *deps, size_t n, const CUDA_MEMSET_NODE_PARAMS *params,
     CUcontext ctx),
    ctx ? set_of(params, &w) : CUDA_ERROR_INVALID_VALUE)
ADD(cuGraphAddHostNode,
    (CUgraphNode * ret, CUgraph graph, const CUgraphNode *deps, size_t n, const CUDA_HOST_NODE_PARAMS *params),
    params ? host_of(params->fn, params->userData, &w) : CUDA_ERROR_INVALID_VALUE)
ADD(cuGraphAddNode, (CUgraphNode * ret, CUgraph graph, const CUgraphNode *deps, size_t n, CUgraphNodeParams *params),
    any_of(params, &w))

/* The kind of an edge makes no difference here. */
ADD(cuGraphAddNode_v2,
    (CUgraphNode * ret, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t n,
     CUgraphNodeParams *params),
    any_of(params, &w))
ADD(cuGraphAddNode_v3,
    (CUgraphNode * ret, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges, size_t n,
     CUgraphNodeParams *params),
    any_of(params, &w))

/* --- other parameters for a node: in its graph, or in what was made of that --- */

static CUresult change(struct sim_work *at, const struct sim_work *w)
{
    CUresult r = at->kind == w->kind ? sim_work_check(w, -1) : CUDA_ERROR_INVALID_VALUE;

    if (r == CUDA_SUCCESS) {
        sim_work_drop(at);
        *at = *w;
    }
    return r;
}

static CUresult node_change(CUgraphNode node, CUresult r, const struct sim_work *w)
{
    if (r != CUDA_SUCCESS || !node || node->magic != SIM_MAGIC_NODE)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    r = change(&node->work, w);
    return r;
}

/* Launches that have been made keep what they were made with. */
static CUresult exec_change(CUgraphExec exec, CUgraphNode node, CUresult r, const struct sim_work *w)
{
    if (r != CUDA_SUCCESS || !exec || exec->magic != SIM_MAGIC_EXEC || !node || node->magic != SIM_MAGIC_NODE)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    r = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < exec->n && i < node->graph->nodes.n; i++) {
        if (node->graph->nodes.at[i] == node)
            r = change(&exec->works[i], w);
    }
    return r;
}

#define CHANGE(sym, params, made, changed)                                                                             \
    CUresult sym params                                                                                                \
    {                                                                                                                  \
        SIM_ENTER(sym);                                                                                                \
        struct sim_work w;                                                                                             \
        CUresult r = (made);                                                                                           \
        return (changed);                                                                                              \
    }
#define SET(sym, params, made)      CHANGE(sym, params, made, node_change(node, r, &w))
#define EXEC_SET(sym, params, made) CHANGE(sym, params, made, exec_change(exec, node, r, &w))

SET(cuGraphMemcpyNodeSetParams, (CUgraphNode node, const CUDA_MEMCPY3D *c), copy_of(c, &w))
EXEC_SET(cuGraphExecMemcpyNodeSetParams, (CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *c, CUcontext ctx),
         ctx ? copy_of(c, &w) : CUDA_ERROR_INVALID_VALUE)
SET(cuGraphMemsetNodeSetParams, (CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params), set_of(params, &w))
EXEC_SET(cuGraphExecMemsetNodeSetParams,
         (CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx),
         ctx ? set_of(params, &w) : CUDA_ERROR_INVALID_VALUE)
SET(cuGraphNodeSetParams, (CUgraphNode node, CUgraphNodeParams *params), any_of(params, &w))
SET(cuGraphNodeSetParams_v2, (CUgraphNode node, CUgraphNodeParams *params), any_of(params, &w))
EXEC_SET(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params), any_of(params, &w))

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
    SIM_LOCKED();
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

/* Both ends of an executable graph wait for another thread's free, in whichever context is current. */
static void stalled_here(void)
{
    CUcontext ctx;

    if (sim_current(&ctx) == CUDA_SUCCESS)
        sim_ctx_stalled(ctx);
}

static CUgraphExec exec_new(size_t n)
{
    CUgraphExec exec = calloc(1, sizeof(*exec));

    exec->magic = SIM_MAGIC_EXEC;
    exec->refs = 1;
    exec->n = n;
    exec->works = calloc(n ? n : 1, sizeof(*exec->works));
    return exec;
}

static CUresult instantiate(CUgraphExec *ret, CUgraph graph)
{
    if (!ret || !graph || graph->magic != SIM_MAGIC_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    stalled_here();
    CUgraphExec exec = exec_new(graph->nodes.n);
    for (size_t i = 0; i < exec->n; i++)
        sim_work_copy(&exec->works[i], &graph->nodes.at[i]->work);
    sim_unlock();
    *ret = exec;
    return CUDA_SUCCESS;
}

SIM_CALL(cuGraphInstantiate, (CUgraphExec * ret, CUgraph graph, CUgraphNode *node, char *log, size_t n),
         instantiate(ret, graph))
SIM_CALL(cuGraphInstantiate_v2, (CUgraphExec * ret, CUgraph graph, CUgraphNode *node, char *log, size_t n),
         instantiate(ret, graph))
SIM_CALL(cuGraphInstantiateWithFlags, (CUgraphExec * ret, CUgraph graph, unsigned long long flags),
         instantiate(ret, graph))

SIM_PAIR(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz,
         (CUgraphExec * ret, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
         ((void)pt, params ? instantiate(ret, graph) : CUDA_ERROR_INVALID_VALUE))

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
    SIM_LOCKED();
    stalled_here();
    sim_exec_drop(exec);
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec exec, CUstream handle, bool pt, bool run)
{
    struct sim_work w = {.kind = SIM_GRAPH};
    CUstream s;

    if (!exec || exec->magic != SIM_MAGIC_EXEC)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS && run) {
        w.exec = exec_new(exec->n);
        for (size_t i = 0; i < exec->n; i++)
            sim_work_copy(&w.exec->works[i], &exec->works[i]);
        r = sim_submit(s, &w, false);
    }
    return r;
}

SIM_PAIR(cuGraphLaunch, cuGraphLaunch_ptsz, (CUgraphExec exec, CUstream s), launch(exec, s, pt, true))
SIM_PAIR(cuGraphUpload, cuGraphUpload_ptsz, (CUgraphExec exec, CUstream s), launch(exec, s, pt, false))
