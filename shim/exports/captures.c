/* SPDX-License-Identifier: Apache-2.0 */
/*
 * captures.c - the exported functions of the runtime and the driver that begin a capture, may end one, or destroy a
 * stream. context/capture.c keeps the captures; this file tells it of them.
 *
 * Locking: none.
 */
#include "context/capture.h"
#include "context/policy.h"
#include "exports/export.h"
#include "real/real.h"
#include "serve/core.h"

/* A call that begins a capture on stream. */
#define BEGIN(stream, call)                                                                                            \
    __extension__({                                                                                                    \
        const bool passive_ = process_is_passive();                                                                    \
        if (!passive_)                                                                                                 \
            core_kept_ask();                                                                                           \
        const CUcontext own_ = passive_ ? NULL : capture_begin(stream);                                                \
        const __typeof__(call) begun_ = BYPASS(call);                                                                  \
        if (!passive_)                                                                                                 \
            capture_begun(own_, stream, begun_ == 0);                                                                  \
        begun_;                                                                                                        \
    })

/* A call that may end a capture on stream, or destroys the stream. */
#define END(stream, destroys, call)                                                                                    \
    __extension__({                                                                                                    \
        const bool passive_ = process_is_passive();                                                                    \
        if (!passive_ && (destroys))                                                                                   \
            policy_stream_gone(stream);                                                                                \
        const unsigned int before_ = atomic_load(&capture_total);                                                      \
        const __typeof__(call) ended_ = BYPASS(call);                                                                  \
        if (!passive_)                                                                                                 \
            capture_check(stream, (destroys) && ended_ == 0, before_);                                                 \
        ended_;                                                                                                        \
    })

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return BEGIN(or_legacy(stream), real_runtime(cudaStreamBeginCapture, CALLER)(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return BEGIN(or_per_thread(stream), real_runtime(cudaStreamBeginCapture_ptsz, CALLER)(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode)
{
    return BEGIN(or_legacy(stream),
                 real_runtime(cudaStreamBeginCaptureToGraph, CALLER)(stream, graph, nodes, edges, count, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
                                                      const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                      size_t count, enum cudaStreamCaptureMode mode)
{
    return BEGIN(or_per_thread(stream),
                 real_runtime(cudaStreamBeginCaptureToGraph_ptsz, CALLER)(stream, graph, nodes, edges, count, mode));
}

EXPORT cudaError_t cudaStreamBeginRecaptureToGraph(cudaStream_t stream, enum cudaStreamCaptureMode mode,
                                                   cudaGraph_t graph, void *callback)
{
    return BEGIN(or_legacy(stream),
                 real_runtime(cudaStreamBeginRecaptureToGraph, CALLER)(stream, mode, graph, callback));
}

EXPORT cudaError_t cudaStreamBeginRecaptureToGraph_ptsz(cudaStream_t stream, enum cudaStreamCaptureMode mode,
                                                        cudaGraph_t graph, void *callback)
{
    return BEGIN(or_per_thread(stream),
                 real_runtime(cudaStreamBeginRecaptureToGraph_ptsz, CALLER)(stream, mode, graph, callback));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return END(or_legacy(stream), false, real_runtime(cudaStreamEndCapture, CALLER)(stream, graph));
}

EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
    return END(or_per_thread(stream), false, real_runtime(cudaStreamEndCapture_ptsz, CALLER)(stream, graph));
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return END(or_legacy(stream), true, real_runtime(cudaStreamDestroy, CALLER)(stream));
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    return BEGIN(or_legacy(stream), real_next(cuStreamBeginCapture)(stream));
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return BEGIN(or_per_thread(stream), real_next(cuStreamBeginCapture_ptsz)(stream));
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return BEGIN(or_legacy(stream), real_next(cuStreamBeginCapture_v2)(stream, mode));
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return BEGIN(or_per_thread(stream), real_next(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                            const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return BEGIN(or_legacy(stream), real_next(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                 const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return BEGIN(or_per_thread(stream),
                 real_next(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}

EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                              CUgraphRecaptureCallback callback, void *data)
{
    return BEGIN(or_legacy(stream), real_next(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                   CUgraphRecaptureCallback callback, void *data)
{
    return BEGIN(or_per_thread(stream),
                 real_next(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data));
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return END(or_legacy(stream), false, real_next(cuStreamEndCapture)(stream, graph));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return END(or_per_thread(stream), false, real_next(cuStreamEndCapture_ptsz)(stream, graph));
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return END(or_legacy(stream), true, real_next(cuStreamDestroy)(stream));
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    return END(or_legacy(stream), true, real_next(cuStreamDestroy_v2)(stream));
}
