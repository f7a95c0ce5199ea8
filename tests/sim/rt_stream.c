/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_stream.c - the simulated cudart's streams, events, captures and graphs.
 *
 * Each is a thin call on the driver. There are no kernels: launching one is an error.
 *
 * Locking: none of its own.
 */
#include "rt.h"

RT_FN(cudaStreamCreate, (cudaStream_t * s), rt_drv.cuStreamCreate(s, 0))
RT_FN(cudaStreamCreateWithFlags, (cudaStream_t * s, unsigned int flags), rt_drv.cuStreamCreate(s, flags))
RT_FN(cudaStreamCreateWithPriority, (cudaStream_t * s, unsigned int flags, int priority),
      rt_drv.cuStreamCreateWithPriority(s, flags, priority))
RT_FN(cudaStreamDestroy, (cudaStream_t s), rt_drv.cuStreamDestroy(s))

RT_PAIR(ptsz, cudaStreamSynchronize, (cudaStream_t s), rt_drv.cuStreamSynchronize[pt](s))
RT_PAIR(ptsz, cudaStreamQuery, (cudaStream_t s), rt_drv.cuStreamQuery[pt](s))
RT_PAIR(ptsz, cudaStreamGetFlags, (cudaStream_t s, unsigned int *flags), rt_drv.cuStreamGetFlags[pt](s, flags))
RT_PAIR(ptsz, cudaStreamGetPriority, (cudaStream_t s, int *priority), rt_drv.cuStreamGetPriority[pt](s, priority))
RT_PAIR(ptsz, cudaStreamGetId, (cudaStream_t s, unsigned long long *id), rt_drv.cuStreamGetId[pt](s, id))
RT_PAIR(ptsz, cudaStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned int flags),
        rt_drv.cuStreamWaitEvent[pt](s, e, flags))
RT_PAIR(ptsz, cudaLaunchHostFunc, (cudaStream_t s, cudaHostFn_t fn, void *arg), rt_drv.cuLaunchHostFunc[pt](s, fn, arg))
RT_PAIR(ptsz, cudaStreamAddCallback, (cudaStream_t s, cudaStreamCallback_t cb, void *arg, unsigned int flags),
        rt_drv.cuStreamAddCallback[pt](s, (CUstreamCallback)(void *)cb, arg,
                                       flags)) /* the codes are the same numbers */

RT_FN(cudaEventCreate, (cudaEvent_t * e), rt_drv.cuEventCreate(e, 0))
RT_FN(cudaEventCreateWithFlags, (cudaEvent_t * e, unsigned int flags), rt_drv.cuEventCreate(e, flags))
RT_FN(cudaEventDestroy, (cudaEvent_t e), rt_drv.cuEventDestroy(e))

/* Also in a host function, where the driver does not say which context is current. */
cudaError_t CUDARTAPI cudaEventQuery(cudaEvent_t e)
{
    CUresult r = rt_driver_init();

    return rt_done(r == CUDA_SUCCESS ? rt_drv.cuEventQuery(e) : r);
}

RT_FN(cudaEventSynchronize, (cudaEvent_t e), rt_drv.cuEventSynchronize(e))
RT_FN(cudaEventElapsedTime, (float *ms, cudaEvent_t start, cudaEvent_t end), rt_drv.cuEventElapsedTime(ms, start, end))

RT_PAIR(ptsz, cudaEventRecord, (cudaEvent_t e, cudaStream_t s), rt_drv.cuEventRecord[pt](e, s))
RT_PAIR(ptsz, cudaEventRecordWithFlags, (cudaEvent_t e, cudaStream_t s, unsigned int flags),
        rt_drv.cuEventRecordWithFlags[pt](e, s, flags))

RT_FN(cudaThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode * mode),
      rt_drv.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode))

RT_PAIR(ptsz, cudaStreamBeginCapture, (cudaStream_t s, enum cudaStreamCaptureMode mode),
        rt_drv.cuStreamBeginCapture[pt](s, (CUstreamCaptureMode)mode))
RT_PAIR(ptsz, cudaStreamBeginCaptureToGraph,
        (cudaStream_t s, cudaGraph_t graph, const cudaGraphNode_t *deps, const cudaGraphEdgeData *data, size_t n,
         enum cudaStreamCaptureMode mode),
        rt_drv.cuStreamBeginCaptureToGraph[pt]
            ? rt_drv.cuStreamBeginCaptureToGraph[pt](s, graph, deps, (const void *)data, n, (CUstreamCaptureMode)mode)
            : CUDA_ERROR_NOT_SUPPORTED)
RT_PAIR(ptsz, cudaStreamBeginRecaptureToGraph,
        (cudaStream_t s, enum cudaStreamCaptureMode mode, cudaGraph_t graph, void *data),
        rt_drv.cuStreamBeginRecaptureToGraph[pt]
            ? rt_drv.cuStreamBeginRecaptureToGraph[pt](s, (CUstreamCaptureMode)mode, graph, NULL, data)
            : CUDA_ERROR_NOT_SUPPORTED)
RT_PAIR(ptsz, cudaStreamEndCapture, (cudaStream_t s, cudaGraph_t *graph), rt_drv.cuStreamEndCapture[pt](s, graph))
RT_PAIR(ptsz, cudaStreamIsCapturing, (cudaStream_t s, enum cudaStreamCaptureStatus *status),
        rt_drv.cuStreamIsCapturing[pt](s, (CUstreamCaptureStatus *)status))

static CUresult info(int pt, CUstream s, enum cudaStreamCaptureStatus *status, unsigned long long *id, CUgraph *graph,
                     const CUgraphNode **deps, size_t *n)
{
    cuuint64_t id_out = 0;
    CUresult r = rt_drv.cuStreamGetCaptureInfo[pt](s, (CUstreamCaptureStatus *)status, &id_out, graph, deps, n);

    if (r == CUDA_SUCCESS && id)
        *id = id_out;
    return r;
}

RT_PAIR(ptsz, cudaStreamGetCaptureInfo,
        (cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
         const cudaGraphNode_t **deps, const cudaGraphEdgeData **data, size_t *n),
        info(pt, s, status, id, graph, deps, n))

RT_FN(cudaGraphCreate, (cudaGraph_t * graph, unsigned int flags), rt_drv.cuGraphCreate(graph, flags))
RT_FN(cudaGraphDestroy, (cudaGraph_t graph), rt_drv.cuGraphDestroy(graph))
RT_FN(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n),
      rt_drv.cuGraphGetNodes(graph, nodes, n))

static CUresult add_copy(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t n,
                         const struct cudaMemcpy3DParms *p)
{
    CUDA_MEMCPY3D c;
    CUcontext ctx = NULL;
    CUresult r = rt_copy_3d(p, &c);

    if (r == CUDA_SUCCESS)
        r = rt_drv.cuCtxGetCurrent(&ctx);
    return r == CUDA_SUCCESS ? rt_drv.cuGraphAddMemcpyNode(node, graph, deps, n, &c, ctx) : r;
}

RT_FN(cudaGraphAddMemcpyNode,
      (cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t *deps, size_t n,
       const struct cudaMemcpy3DParms *p),
      add_copy(node, graph, deps, n, p))

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *deps,
                                               size_t n, void *dst, const void *src, size_t bytes,
                                               enum cudaMemcpyKind kind)
{
    struct cudaMemcpy3DParms p = {.srcPtr = {(void *)src, bytes, bytes, 1},
                                  .dstPtr = {dst, bytes, bytes, 1},
                                  .extent = {bytes, 1, 1},
                                  .kind = kind};

    RT_CALL(add_copy(node, graph, deps, n, &p));
}

RT_FN(cudaGraphAddHostNode,
      (cudaGraphNode_t * node, cudaGraph_t graph, const cudaGraphNode_t *deps, size_t n,
       const struct cudaHostNodeParams *params),
      rt_drv.cuGraphAddHostNode(node, graph, deps, n, (const CUDA_HOST_NODE_PARAMS *)params))
RT_FN(cudaGraphNodeGetType, (cudaGraphNode_t node, enum cudaGraphNodeType *type),
      rt_drv.cuGraphNodeGetType(node, (CUgraphNodeType *)type))
RT_FN(cudaGraphInstantiate, (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
      rt_drv.cuGraphInstantiateWithFlags(exec, graph, flags))
RT_FN(cudaGraphInstantiateWithFlags, (cudaGraphExec_t * exec, cudaGraph_t graph, unsigned long long flags),
      rt_drv.cuGraphInstantiateWithFlags(exec, graph, flags))
RT_FN(cudaGraphExecDestroy, (cudaGraphExec_t exec), rt_drv.cuGraphExecDestroy(exec))

RT_PAIR(ptsz, cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t s), rt_drv.cuGraphUpload[pt](exec, s))
RT_PAIR(ptsz, cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t s), rt_drv.cuGraphLaunch[pt](exec, s))

RT_PAIR(ptsz, cudaLaunchKernel, (const void *func, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s),
        CUDA_ERROR_NOT_SUPPORTED)
