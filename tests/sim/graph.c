/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph.c - graphs that captures made: instantiate and launch.
 *
 * What it is: an executable graph is its nodes' work in creation order, one of the orders that their edges allow; a
 * launch is one operation on a stream.
 *
 * What it is not: building graphs by hand, updating them, conditional and memory nodes.
 *
 * Locking: sim_lock(), taken here; an executable graph is kept by the launches that are under way.
 */
#include "sim.h"

void sim_graph_free(CUgraph graph)
{
    for (size_t i = 0; i < graph->nodes.n; i++) {
        CUgraphNode node = graph->nodes.at[i];
        sim_nodes_clear(&node->deps);
        sim_work_drop(&node->work);
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
