/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - the exported functions, one for each line of hooks.def. The only file that speaks cudaError_t and CUresult
 * to the program. What is decided is in core.c; here stands how each call passes that on.
 *
 * Errors are made by the real functions, so that code and last error are theirs: freeing the address 1 fails
 * harmlessly, and asking for the free memory answers with an error only if the context is in error.
 */
#include "capture.h"
#include "context.h"
#include "core.h"
#include "hooks.h"
#include "real.h"

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))
/* An address that is nobody's. */
#define NOWHERE 1

/* The value of a call with our hooks further down switched off. */
#define BYPASS(call)                                                                                                   \
    __extension__({                                                                                                    \
        core_bypass_begin();                                                                                           \
        const __typeof__(call) result_ = (call);                                                                       \
        core_bypass_end();                                                                                             \
        result_;                                                                                                       \
    })

/* The handle of the stream that 0 stands for. */
static CUstream named(CUstream stream, CUstream unnamed)
{
    return stream ? stream : unnamed;
}

static void add_idle(size_t *free, const size_t *total)
{
    const uint64_t idle = core_idle_bytes();

    if (free)
        *free = total && *free + idle > *total ? *total : *free + idle;
}

/* --- runtime API --- */

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size)
{
    uint64_t addr;

    switch (ptr ? core_alloc(size, CALLER, &addr) : CORE_FORWARD) {
    case CORE_DONE:
        *ptr = (void *)(uintptr_t)addr;
        return cudaSuccess;
    case CORE_FORWARD:
        return real_next(cudaMalloc)(ptr, size);
    default:
        return BYPASS(real_next(cudaMalloc)(ptr, size));
    }
}

static cudaError_t runtime_free_failed(enum core_verdict verdict)
{
    size_t free, total;

    if (verdict == CORE_INVALID)
        return BYPASS(real_next(cudaFree)((void *)NOWHERE));
    return BYPASS(real_next(cudaMemGetInfo)(&free, &total));
}

EXPORT cudaError_t cudaFree(void *ptr)
{
    const enum core_verdict verdict = ptr ? core_free((uintptr_t)ptr) : CORE_FORWARD;

    if (verdict == CORE_DONE)
        return cudaSuccess;
    return verdict == CORE_FORWARD ? real_next(cudaFree)(ptr) : runtime_free_failed(verdict);
}

/* While its stream captures, natively only memory of the graph can be freed: such a call fails whatever the address. */
static enum core_verdict free_async(uint64_t addr, CUstream stream)
{
    if (pool_of(addr) && !core_passive() && capture_active_on(stream))
        return CORE_INVALID;
    return core_free(addr);
}

EXPORT cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    const enum core_verdict verdict = ptr ? free_async((uintptr_t)ptr, named(stream, CU_STREAM_LEGACY)) : CORE_FORWARD;

    if (verdict == CORE_DONE)
        return cudaSuccess;
    return verdict == CORE_FORWARD ? real_next(cudaFreeAsync)(ptr, stream) : runtime_free_failed(verdict);
}

EXPORT cudaError_t cudaFreeAsync_ptsz(void *ptr, cudaStream_t stream)
{
    const enum core_verdict verdict =
        ptr ? free_async((uintptr_t)ptr, named(stream, CU_STREAM_PER_THREAD)) : CORE_FORWARD;

    if (verdict == CORE_DONE)
        return cudaSuccess;
    return verdict == CORE_FORWARD ? real_next(cudaFreeAsync_ptsz)(ptr, stream) : runtime_free_failed(verdict);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    const bool passive = core_passive();
    const cudaError_t error = BYPASS(real_next(cudaMemGetInfo)(free, total));

    if (!error && !passive)
        add_idle(free, total);
    return error;
}

EXPORT cudaError_t cudaDeviceReset(void)
{
    /* Which device, only the runtime knows. Normally the driver's reset below is hooked too, and has done this already.
     */
    const cudaError_t error = real_next(cudaDeviceReset)();

    if (!core_passive())
        context_sweep();
    return error;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
    void *named_ptr = core_ipc_allowed((uintptr_t)ptr) ? ptr : (void *)NOWHERE;

    return BYPASS(real_next(cudaIpcGetMemHandle)(handle, named_ptr));
}

/* A call that begins a capture on stream. */
#define BEGIN(stream, call)                                                                                            \
    __extension__({                                                                                                    \
        const bool passive_ = core_passive();                                                                          \
        const CUcontext own_ = passive_ ? NULL : capture_begin(stream);                                                \
        const __typeof__(call) begun_ = BYPASS(call);                                                                  \
        if (!passive_)                                                                                                 \
            capture_begun(own_, stream, begun_ == 0);                                                                  \
        begun_;                                                                                                        \
    })

/* A call that may end a capture on stream, or destroys the stream. */
#define END(stream, destroys, call)                                                                                    \
    __extension__({                                                                                                    \
        const bool passive_ = core_passive();                                                                          \
        const __typeof__(call) ended_ = BYPASS(call);                                                                  \
        if (!passive_)                                                                                                 \
            capture_check(stream, (destroys) && ended_ == 0);                                                          \
        ended_;                                                                                                        \
    })

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY), real_next(cudaStreamBeginCapture)(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD), real_next(cudaStreamBeginCapture_ptsz)(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY),
                 real_next(cudaStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
                                                      const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                      size_t count, enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD),
                 real_next(cudaStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return END(named(stream, CU_STREAM_LEGACY), false, real_next(cudaStreamEndCapture)(stream, graph));
}

EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
    return END(named(stream, CU_STREAM_PER_THREAD), false, real_next(cudaStreamEndCapture_ptsz)(stream, graph));
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return END(named(stream, CU_STREAM_LEGACY), true, real_next(cudaStreamDestroy)(stream));
}

/* --- driver API --- */

/* A call that takes memory; made again if it was refused and the pools had some to give back. */
#define TWICE(call)                                                                                                    \
    __extension__({                                                                                                    \
        CUresult taken_ = (call);                                                                                      \
        if (taken_ == CUDA_ERROR_OUT_OF_MEMORY && core_give_back())                                                    \
            taken_ = (call);                                                                                           \
        taken_;                                                                                                        \
    })

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
    uint64_t addr;

    if (!ptr || !core_hooks_driver() || core_alloc(size, CALLER, &addr) != CORE_DONE)
        return TWICE(real_next(cuMemAlloc_v2)(ptr, size));
    *ptr = addr;
    return CUDA_SUCCESS;
}

#define RUNTIME(symbol, parameters)
#define DRIVER(symbol, parameters)
#define RETRY(symbol, parameters, arguments)                                                                           \
    EXPORT CUresult symbol parameters                                                                                  \
    {                                                                                                                  \
        return TWICE(real_next(symbol) arguments); /* NOLINT(bugprone-macro-parentheses): a list */                    \
    }
#include "hooks.def"

static CUresult driver_free_failed(enum core_verdict verdict)
{
    size_t free, total;

    return verdict == CORE_INVALID ? CUDA_ERROR_INVALID_VALUE : real_next(cuMemGetInfo_v2)(&free, &total);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    const enum core_verdict verdict = core_free(ptr);

    if (verdict == CORE_DONE)
        return CUDA_SUCCESS;
    return verdict == CORE_FORWARD ? real_next(cuMemFree_v2)(ptr) : driver_free_failed(verdict);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    const enum core_verdict verdict = free_async(ptr, named(stream, CU_STREAM_LEGACY));

    if (verdict == CORE_DONE)
        return CUDA_SUCCESS;
    return verdict == CORE_FORWARD ? real_next(cuMemFreeAsync)(ptr, stream) : driver_free_failed(verdict);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    const enum core_verdict verdict = free_async(ptr, named(stream, CU_STREAM_PER_THREAD));

    if (verdict == CORE_DONE)
        return CUDA_SUCCESS;
    return verdict == CORE_FORWARD ? real_next(cuMemFreeAsync_ptsz)(ptr, stream) : driver_free_failed(verdict);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    const CUresult result = real_next(cuMemGetInfo_v2)(free, total);

    if (!result)
        add_idle(free, total);
    return result;
}

/* Errors of a call that has done nothing. Others come from earlier work: the context is gone all the same. */
static bool did_nothing(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_NOT_PERMITTED:
    case CUDA_ERROR_DEINITIALIZED:
        return true;
    default:
        return false;
    }
}

/* A call that ends the life of a context. */
#define LEAVE(found, call)                                                                                             \
    __extension__({                                                                                                    \
        struct context *leaving_ = core_passive() ? NULL : (found);                                                    \
        const CUresult left_ = (call);                                                                                 \
        context_gone(leaving_, !did_nothing(left_));                                                                   \
        left_;                                                                                                         \
    })

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return LEAVE(context_leaving_primary(device), real_next(cuDevicePrimaryCtxReset)(device));
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return LEAVE(context_leaving_primary(device), real_next(cuDevicePrimaryCtxReset_v2)(device));
}

/* Releasing takes a reference away; the context goes with the last one. */
static CUresult released(CUresult result)
{
    if (!core_passive())
        context_sweep();
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return released(real_next(cuDevicePrimaryCtxRelease)(device));
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return released(real_next(cuDevicePrimaryCtxRelease_v2)(device));
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    return LEAVE(context_leaving(context), real_next(cuCtxDestroy)(context));
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    return LEAVE(context_leaving(context), real_next(cuCtxDestroy_v2)(context));
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    const CUresult result = real_next(cuCtxFromGreenCtx)(context, green);

    if (!result && !core_passive())
        context_exempt(*context);
    return result;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    return core_ipc_allowed(ptr) ? real_next(cuIpcGetMemHandle)(handle, ptr) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY), real_next(cuStreamBeginCapture)(stream));
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD), real_next(cuStreamBeginCapture_ptsz)(stream));
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY), real_next(cuStreamBeginCapture_v2)(stream, mode));
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD), real_next(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                            const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY),
                 real_next(cuStreamBeginCaptureToGraph)(stream, graph, nodes, edges, count, mode));
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                 const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD),
                 real_next(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, nodes, edges, count, mode));
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return END(named(stream, CU_STREAM_LEGACY), false, real_next(cuStreamEndCapture)(stream, graph));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return END(named(stream, CU_STREAM_PER_THREAD), false, real_next(cuStreamEndCapture_ptsz)(stream, graph));
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    return END(named(stream, CU_STREAM_LEGACY), true, real_next(cuStreamDestroy_v2)(stream));
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const CUresult result = real_next(cuGetProcAddress)(symbol, function, version, flags);

    if (!result && function && core_hooks_driver())
        *function = real_route(*function);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    const CUresult result = real_next(cuGetProcAddress_v2)(symbol, function, version, flags, status);

    if (!result && function && core_hooks_driver())
        *function = real_route(*function);
    return result;
}
