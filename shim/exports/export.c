/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - the exported functions of the runtime and driver API, one for each line of hooks.def. The only file that
 * returns cudaError_t and CUresult to the program. core.c makes the decisions; this file translates them for each call.
 *
 * The real functions make the errors, so that the code and the last error are theirs: freeing the address 1 fails
 * harmlessly, and asking for free memory returns an error only if the context has one.
 */
#include "base/process.h"
#include "context/capture.h"
#include "context/context.h"
#include "context/policy.h"
#include "nccl/use.h"
#include "real/caller.h"
#include "real/hooks.h"
#include "real/real.h"
#include "report/oom.h"
#include "report/unpooled.h"
#include "serve/core.h"

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_extract_return_addr(__builtin_return_address(0))
/* An address that belongs to no allocation. */
#define NOWHERE 1
/* More bytes than any device has. */
#define TOO_MUCH ((size_t)1 << 60)

/* The value of a call, made with our hooks further down switched off. */
#define BYPASS(call)                                                                                                   \
    __extension__({                                                                                                    \
        process_bypass_begin();                                                                                        \
        const __typeof__(call) result_ = (call);                                                                       \
        process_bypass_end();                                                                                          \
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
    cudaError_t error;
    uint64_t addr;

    switch (ptr ? core_alloc(size, CALLER, &addr) : CORE_FORWARD) {
    case CORE_DONE:
        *ptr = (void *)(uintptr_t)addr;
        return cudaSuccess;
    case CORE_FORWARD:
        core_call_from(CALLER);
        error = real_runtime(cudaMalloc, CALLER)(ptr, size);
        core_call_from(NULL);
        return error;
    case CORE_REFUSED:
        oom_report(size);
        return BYPASS(real_runtime(cudaMalloc, CALLER)(ptr, TOO_MUCH));
    default:
        error = BYPASS(real_runtime(cudaMalloc, CALLER)(ptr, size));
        if (!error)
            core_bypassed((uintptr_t)*ptr, size, CALLER);
        else if (error == cudaErrorMemoryAllocation && core_would_pool(CALLER))
            oom_report(size);
        return error;
    }
}

static cudaError_t runtime_free_failed(enum core_verdict verdict, const void *caller)
{
    size_t free, total;

    if (verdict == CORE_INVALID)
        return BYPASS(real_runtime(cudaFree, caller)((void *)NOWHERE));
    return BYPASS(real_runtime(cudaMemGetInfo, caller)(&free, &total));
}

EXPORT cudaError_t cudaFree(void *ptr)
{
    const enum core_verdict verdict = ptr ? core_free((uintptr_t)ptr) : CORE_FORWARD;

    if (verdict == CORE_DONE) {
        if (core_lacks_context()) /* natively the runtime gives the thread a context here */
            BYPASS(real_runtime(cudaFree, CALLER)(NULL));
        return cudaSuccess;
    }
    return verdict == CORE_FORWARD ? real_runtime(cudaFree, CALLER)(ptr) : runtime_free_failed(verdict, CALLER);
}

/* While its stream captures, cudaFreeAsync natively accepts only memory of the graph and fails for any other
 * address. */
static enum core_verdict free_async(uint64_t addr, CUstream stream)
{
    if (pool_of(addr) && !process_is_passive() && capture_active_on(stream))
        return CORE_INVALID;
    return core_free_later(addr, stream);
}

EXPORT cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    const enum core_verdict verdict = ptr ? free_async((uintptr_t)ptr, named(stream, CU_STREAM_LEGACY)) : CORE_FORWARD;

    if (verdict == CORE_DONE)
        return cudaSuccess;
    if (verdict == CORE_INVALID || verdict == CORE_NOWHERE) /* not by cudaFree, which would invalidate a capture */
        return BYPASS(real_runtime(cudaFreeAsync, CALLER)((void *)NOWHERE, stream));
    return verdict == CORE_FORWARD ? real_runtime(cudaFreeAsync, CALLER)(ptr, stream)
                                   : runtime_free_failed(verdict, CALLER);
}

EXPORT cudaError_t cudaFreeAsync_ptsz(void *ptr, cudaStream_t stream)
{
    const enum core_verdict verdict =
        ptr ? free_async((uintptr_t)ptr, named(stream, CU_STREAM_PER_THREAD)) : CORE_FORWARD;

    if (verdict == CORE_DONE)
        return cudaSuccess;
    if (verdict == CORE_INVALID || verdict == CORE_NOWHERE) /* not by cudaFree, which would invalidate a capture */
        return BYPASS(real_runtime(cudaFreeAsync_ptsz, CALLER)((void *)NOWHERE, stream));
    return verdict == CORE_FORWARD ? real_runtime(cudaFreeAsync_ptsz, CALLER)(ptr, stream)
                                   : runtime_free_failed(verdict, CALLER);
}

/* A query for free memory, repeated if released memory has arrived meanwhile: that memory would count twice, as free
 * and as on its way. */
#define SETTLED(call)                                                                                                  \
    __extension__({                                                                                                    \
        __typeof__(call) answer_;                                                                                      \
        unsigned int arrivals_, tries_ = 0;                                                                            \
        do {                                                                                                           \
            core_idle_settle();                                                                                        \
            arrivals_ = core_arrivals();                                                                               \
            answer_ = (call);                                                                                          \
            core_idle_settle();                                                                                        \
        } while (arrivals_ != core_arrivals() && ++tries_ < 8);                                                        \
        answer_;                                                                                                       \
    })

EXPORT cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    const bool passive = process_is_passive();
    cudaError_t error;

    error = SETTLED(BYPASS(real_runtime(cudaMemGetInfo, CALLER)(free, total)));
    if (!error && !passive)
        add_idle(free, total);
    return error;
}

EXPORT cudaError_t cudaDeviceReset(void)
{
    /* Only the runtime knows which device. Where the driver's reset below is hooked too, that hook does the work. */
    const bool alone = !process_is_passive() && !process_hooks_driver();
    struct context_sweep sweep;
    cudaError_t error;

    if (alone)
        context_sweep_begin(&sweep);
    error = real_runtime(cudaDeviceReset, CALLER)();
    if (alone)
        context_sweep_end(&sweep);
    return error;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    core_pointer_asked((uintptr_t)ptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CALLER);
    return real_runtime(cudaPointerGetAttributes, CALLER)(attributes, ptr);
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
    void *named_ptr = core_ipc_allowed((uintptr_t)ptr) ? ptr : (void *)NOWHERE;
    const cudaError_t error = BYPASS(real_runtime(cudaIpcGetMemHandle, CALLER)(handle, named_ptr));

    if (!error)
        core_ipc_exported((uintptr_t)ptr, CALLER);
    return error;
}

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
        if (!passive_ && (destroys)) {                                                                                 \
            policy_stream_gone(stream);                                                                                \
            capture_asks_pause();                                                                                      \
        }                                                                                                              \
        const unsigned int before_ = atomic_load(&capture_total);                                                      \
        const __typeof__(call) ended_ = BYPASS(call);                                                                  \
        if (!passive_)                                                                                                 \
            capture_check(stream, (destroys) && ended_ == 0, before_);                                                 \
        if (!passive_ && (destroys))                                                                                   \
            capture_asks_resume();                                                                                     \
        ended_;                                                                                                        \
    })

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY), real_runtime(cudaStreamBeginCapture, CALLER)(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD), real_runtime(cudaStreamBeginCapture_ptsz, CALLER)(stream, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY),
                 real_runtime(cudaStreamBeginCaptureToGraph, CALLER)(stream, graph, nodes, edges, count, mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
                                                      const cudaGraphNode_t *nodes, const cudaGraphEdgeData *edges,
                                                      size_t count, enum cudaStreamCaptureMode mode)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD),
                 real_runtime(cudaStreamBeginCaptureToGraph_ptsz, CALLER)(stream, graph, nodes, edges, count, mode));
}

EXPORT cudaError_t cudaStreamBeginRecaptureToGraph(cudaStream_t stream, enum cudaStreamCaptureMode mode,
                                                   cudaGraph_t graph, void *callback)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY),
                 real_runtime(cudaStreamBeginRecaptureToGraph, CALLER)(stream, mode, graph, callback));
}

EXPORT cudaError_t cudaStreamBeginRecaptureToGraph_ptsz(cudaStream_t stream, enum cudaStreamCaptureMode mode,
                                                        cudaGraph_t graph, void *callback)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD),
                 real_runtime(cudaStreamBeginRecaptureToGraph_ptsz, CALLER)(stream, mode, graph, callback));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    return END(named(stream, CU_STREAM_LEGACY), false, real_runtime(cudaStreamEndCapture, CALLER)(stream, graph));
}

EXPORT cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t *graph)
{
    return END(named(stream, CU_STREAM_PER_THREAD), false,
               real_runtime(cudaStreamEndCapture_ptsz, CALLER)(stream, graph));
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return END(named(stream, CU_STREAM_LEGACY), true, real_runtime(cudaStreamDestroy, CALLER)(stream));
}

/* --- driver API --- */

/* A call that takes memory, repeated if the driver refused it and the pools had memory to give back. */
#define TWICE(call)                                                                                                    \
    __extension__({                                                                                                    \
        const unsigned int before_ = core_arrivals();                                                                  \
        CUresult taken_ = (call);                                                                                      \
        if (taken_ == CUDA_ERROR_OUT_OF_MEMORY && core_give_back(before_))                                             \
            taken_ = (call);                                                                                           \
        taken_;                                                                                                        \
    })

/* As TWICE, for a call that needs no current context and has a parameter `device`. */
#define TWICE_ON_DEVICE(call)                                                                                          \
    __extension__({                                                                                                    \
        const unsigned int before_ = core_arrivals();                                                                  \
        CUresult taken_ = (call);                                                                                      \
        if (taken_ == CUDA_ERROR_OUT_OF_MEMORY && !process_is_inside() &&                                              \
            (core_release(device, "oom") || core_arrivals() != before_))                                               \
            taken_ = (call);                                                                                           \
        taken_;                                                                                                        \
    })

/* As TWICE, for a call that NCCL makes inside ncclMemAlloc: there NCCL must not be called to take a segment back. */
#define TWICE_OUTSIDE(call) (process_is_inside() ? (call) : TWICE(call))

#define ONCE(call) (call)

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
    CUresult result;
    uint64_t addr;

    switch (ptr && process_hooks_driver() ? core_alloc(size, CALLER, &addr) : CORE_FORWARD) {
    case CORE_DONE:
        *ptr = addr;
        return CUDA_SUCCESS;
    case CORE_FORWARD:
        return TWICE(real_next(cuMemAlloc_v2)(ptr, size));
    case CORE_REFUSED:
        oom_report(size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        result = TWICE(real_next(cuMemAlloc_v2)(ptr, size));
        if (!result)
            core_bypassed(*ptr, size, CALLER);
        else if (result == CUDA_ERROR_OUT_OF_MEMORY && core_would_pool(CALLER))
            oom_report(size);
        return result;
    }
}

/* Macros and functions that the rows of hooks.def use. */
#define OWN                            (caller_of(CALLER) == CALLER_PROGRAM)
#define STRICT(condition, device, why) ((condition) ? (policy_strict(device, why), 0) : 0)
#define IS_DEVICE(type)                ((type) == CU_MEMORYTYPE_DEVICE || (type) == CU_MEMORYTYPE_UNIFIED)
#define REACH_OF(copy)                 REACH_BY(copy, named(stream, unnamed))
#define REACH_BY(copy, by)                                                                                             \
    ((copy) && IS_DEVICE((copy)->dstMemoryType) ? policy_reach((copy)->dstDevice, by) : (void)0,                       \
     (copy) && IS_DEVICE((copy)->srcMemoryType) ? policy_reach((copy)->srcDevice, by) : (void)0, 0)
#define COPY_OF(copy)                                                                                                  \
    (((copy)->dstMemoryType == CU_MEMORYTYPE_HOST || (copy)->srcMemoryType == CU_MEMORYTYPE_HOST)                      \
         ? policy_host_work(named(stream, unnamed))                                                                    \
         : policy_copy((copy)->dstMemoryType == CU_MEMORYTYPE_UNIFIED ? (copy)->dstDevice : 0,                         \
                       (copy)->srcMemoryType == CU_MEMORYTYPE_UNIFIED ? (copy)->srcDevice : 0,                         \
                       named(stream, unnamed)))
/* The members read here have the same place in every version of CUgraphNodeParams. */
#define GRAPH_NODE(parameters)                                                                                         \
    ((parameters)->type == CU_GRAPH_NODE_TYPE_MEMSET ? policy_graph_set((parameters)->memset.dst)                      \
     : stays_on_device((parameters)->type)           ? (void)0                                                         \
                                                     : policy_graph_node())
#define CONTEXT_FLAGS(flags)                                                                                           \
    STRICT((flags)&CU_CTX_SYNC_MEMOPS, device, "a device other than the GPU gets access to its memory")

#define GRAPH_REACH(parameters) reach_of_node(parameters, unnamed)

/* Kinds of nodes added after CUDA 13.0: CU_GRAPH_NODE_TYPE_MEMCPY_BATCH and _FABRIC_CPY_BATCH. */
#define NODE_COPIES 14
#define NODE_FABRIC 18
/* The first members of the parameters of CU_GRAPH_NODE_TYPE_MEMCPY_BATCH. */
struct node_copies {
    size_t count;
    CUdeviceptr *to, *from;
};

static int reach_of_node(const CUgraphNodeParams *parameters, CUstream by)
{
    const struct node_copies *copies = parameters ? (const void *)&parameters->memcpy : NULL;

    switch (parameters ? (int)parameters->type : -1) {
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return REACH_BY(&parameters->memcpy.copyParams, by);
    case CU_GRAPH_NODE_TYPE_MEMSET:
        policy_reach(parameters->memset.dst, by);
        return 0;
    case NODE_COPIES:
        policy_reach_many(copies->to, copies->from, copies->count, by);
        return 0;
    case NODE_FABRIC:
        return STRICT(1, POLICY_ALL, "copies over a fabric");
    default:
        return 0;
    }
}

/* Kinds of nodes that touch no host memory and run nothing on the host. Other kinds, new ones included, may. */
static bool stays_on_device(CUgraphNodeType type)
{
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_GRAPH: /* hooks have seen the nodes of the child graph */
    case CU_GRAPH_NODE_TYPE_EMPTY:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return true;
    default:
        return false;
    }
}

#define RUNTIME(symbol, parameters)
#define DRIVER(symbol, parameters)
#define WATCH(symbol, parameters, arguments, unnamed_stream, how, before, after)                                       \
    EXPORT CUresult symbol parameters                                                                                  \
    {                                                                                                                  \
        const bool watched = core_watches(CALLER);                                                                     \
        const CUstream unnamed __attribute__((unused)) = unnamed_stream;                                               \
        const uint64_t owed __attribute__((unused)) = watched ? (uint64_t)(before) : 0;                                \
        const CUresult result = how(real_next(symbol) arguments); /* NOLINT(bugprone-macro-parentheses): a list */     \
                                                                                                                       \
        if (watched && !result)                                                                                        \
            (void)(after);                                                                                             \
        else if (watched)                                                                                              \
            context_saw(result);                                                                                       \
        return result;                                                                                                 \
    }
#define RETRY(symbol, parameters, arguments)                                                                           \
    EXPORT CUresult symbol parameters                                                                                  \
    {                                                                                                                  \
        /* NOLINTNEXTLINE(bugprone-macro-parentheses): a list */                                                       \
        return UNPOOLED(symbol, arguments, TWICE(real_next(symbol) arguments));                                        \
    }
#include "hooks.def"

static CUresult driver_free_failed(enum core_verdict verdict)
{
    size_t free, total;

    switch (verdict) {
    case CORE_INVALID:
        return CUDA_ERROR_INVALID_VALUE;
    case CORE_NOWHERE:
        return CUDA_ERROR_INVALID_HANDLE;
    default:
        return real_next(cuMemGetInfo_v2)(&free, &total);
    }
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    const enum core_verdict verdict = core_free(ptr);
    CUresult result;

    if (verdict == CORE_DONE)
        return CUDA_SUCCESS;
    if (verdict == CORE_FORWARD && use_free(ptr, /* waits: */ true, &result))
        return result;
    return verdict == CORE_FORWARD ? real_next(cuMemFree_v2)(ptr) : driver_free_failed(verdict);
}

/* While its stream captures, such a call fails; the driver returns the error. */
static bool use_free_async(CUdeviceptr ptr, CUstream stream, CUresult *ret_result)
{
    return !capture_active_on(stream) && use_free(ptr, /* waits: */ false, ret_result);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    const enum core_verdict verdict = free_async(ptr, named(stream, CU_STREAM_LEGACY));
    CUresult result;

    if (verdict == CORE_DONE)
        return CUDA_SUCCESS;
    if (verdict == CORE_FORWARD && use_free_async(ptr, named(stream, CU_STREAM_LEGACY), &result))
        return result;
    return verdict == CORE_FORWARD ? real_next(cuMemFreeAsync)(ptr, stream) : driver_free_failed(verdict);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    const enum core_verdict verdict = free_async(ptr, named(stream, CU_STREAM_PER_THREAD));
    CUresult result;

    if (verdict == CORE_DONE)
        return CUDA_SUCCESS;
    if (verdict == CORE_FORWARD && use_free_async(ptr, named(stream, CU_STREAM_PER_THREAD), &result))
        return result;
    return verdict == CORE_FORWARD ? real_next(cuMemFreeAsync_ptsz)(ptr, stream) : driver_free_failed(verdict);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    CUresult result;

    result = SETTLED(real_next(cuMemGetInfo_v2)(free, total));
    if (!result)
        add_idle(free, total);
    return result;
}

/* Errors of a call that had no effect. Any other error comes from earlier work, and the context is gone all the
 * same. */
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

/* A call that ends a context. */
#define LEAVE(found, call)                                                                                             \
    __extension__({                                                                                                    \
        struct context *leaving_ = process_is_passive() ? NULL : (found);                                              \
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

/* A call that releases a reference; the primary context ends with the last one. */
#define RELEASE(device, call)                                                                                          \
    __extension__({                                                                                                    \
        struct context *leaving_ = process_is_passive() ? NULL : context_leaving_primary(device);                      \
        const CUresult left_ = (call);                                                                                 \
        context_primary_gone(leaving_);                                                                                \
        left_;                                                                                                         \
    })

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return RELEASE(device, real_next(cuDevicePrimaryCtxRelease)(device));
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return RELEASE(device, real_next(cuDevicePrimaryCtxRelease_v2)(device));
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    const CUresult result = LEAVE(context_leaving(context), real_next(cuCtxDestroy)(context));

    if (!result)
        policy_context_gone(context);
    return result;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    const CUresult result = LEAVE(context_leaving(context), real_next(cuCtxDestroy_v2)(context));

    if (!result)
        policy_context_gone(context);
    return result;
}

/* True once a context has been made from a green context. */
static atomic_bool green_exempt;

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    const CUresult result = real_next(cuCtxFromGreenCtx)(context, green);

    if (!result && !process_is_passive()) {
        context_exempt(*context);
        atomic_store(&green_exempt, true);
    }
    return result;
}

/* Its context's handle may be reused for a context that is pooled. */
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUcontext context = NULL;

    if (!process_is_passive() && atomic_load(&green_exempt) && real_next(cuCtxFromGreenCtx)(&context, green))
        context = NULL;
    return LEAVE(context_leaving(context), real_next(cuGreenCtxDestroy)(green));
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr)
{
    const CUresult result =
        core_ipc_allowed(ptr) ? real_next(cuIpcGetMemHandle)(handle, ptr) : CUDA_ERROR_INVALID_VALUE;

    if (!result)
        core_ipc_exported(ptr, CALLER);
    return result;
}

/* The address to ask the driver about: its allocation outlives the program's block. */
static CUdeviceptr asked_for(CUdeviceptr ptr, const void *caller)
{
    return core_is_freed(ptr, caller) ? NOWHERE : ptr;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    const CUresult result = real_next(cuMemGetAddressRange_v2)(base, size, asked_for(ptr, CALLER));
    uint64_t block;
    size_t length;

    if (result || !core_range(ptr, CALLER, &block, &length))
        return result;
    if (!length)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = block;
    if (size)
        *size = length;
    return CUDA_SUCCESS;
}

/* After the driver has answered: replace the range of its allocation by the range of the block. */
static CUresult range_tell(void *data, CUpointer_attribute attribute, CUdeviceptr ptr, const void *caller)
{
    uint64_t block;
    size_t length;

    if ((attribute != CU_POINTER_ATTRIBUTE_RANGE_START_ADDR && attribute != CU_POINTER_ATTRIBUTE_RANGE_SIZE) ||
        !core_range(ptr, caller, &block, &length))
        return CUDA_SUCCESS;
    if (!length)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        *(CUdeviceptr *)data = block;
    else
        *(size_t *)data = length;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult result;

    core_pointer_asked(ptr, attribute, CALLER);
    ptr = asked_for(ptr, CALLER);
    result = real_next(cuPointerGetAttribute)(data, attribute, ptr);
    return result ? result : range_tell(data, attribute, ptr, CALLER);
}

EXPORT CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                       CUdeviceptr ptr)
{
    CUresult result;

    for (unsigned int i = 0; attributes && i < count; i++)
        core_pointer_asked(ptr, attributes[i], CALLER);
    ptr = asked_for(ptr, CALLER);
    result = real_next(cuPointerGetAttributes)(count, attributes, data, ptr);
    for (unsigned int i = 0; attributes && data && !result && i < count; i++)
        result = range_tell(data[i], attributes[i], ptr, CALLER);
    return result;
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        core_rdma_prepared(ptr, CALLER);
    return real_next(cuPointerSetAttribute)(value, attribute, asked_for(ptr, CALLER));
}

EXPORT CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, CUmemRangeHandleType type,
                                              unsigned long long flags)
{
    core_rdma_prepared(ptr, CALLER);
    return real_next(cuMemGetHandleForAddressRange)(handle, ptr, size, type, flags);
}

/* Natively all work launched before a free has ended once the free returns, so its elapsed time is known. */
#define ELAPSED(call)                                                                                                  \
    __extension__({                                                                                                    \
        CUresult told_ = (call);                                                                                       \
        if (told_ == CUDA_ERROR_NOT_READY && core_watches(CALLER)) {                                                   \
            context_wait_frees(CONTEXT_ALL, /* others: */ false);                                                      \
            told_ = (call);                                                                                            \
        }                                                                                                              \
        told_;                                                                                                         \
    })

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return ELAPSED(real_next(cuEventElapsedTime)(ms, start, end));
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    return ELAPSED(real_next(cuEventElapsedTime_v2)(ms, start, end));
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

EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                              CUgraphRecaptureCallback callback, void *data)
{
    return BEGIN(named(stream, CU_STREAM_LEGACY),
                 real_next(cuStreamBeginRecaptureToGraph)(stream, mode, graph, callback, data));
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                   CUgraphRecaptureCallback callback, void *data)
{
    return BEGIN(named(stream, CU_STREAM_PER_THREAD),
                 real_next(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, callback, data));
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return END(named(stream, CU_STREAM_LEGACY), false, real_next(cuStreamEndCapture)(stream, graph));
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return END(named(stream, CU_STREAM_PER_THREAD), false, real_next(cuStreamEndCapture_ptsz)(stream, graph));
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return END(named(stream, CU_STREAM_LEGACY), true, real_next(cuStreamDestroy)(stream));
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    return END(named(stream, CU_STREAM_LEGACY), true, real_next(cuStreamDestroy_v2)(stream));
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const CUresult result = real_next(cuGetProcAddress)(symbol, function, version, flags);

    if (!result && function && process_hooks_driver())
        *function = real_route(*function);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    const CUresult result = real_next(cuGetProcAddress_v2)(symbol, function, version, flags, status);

    if (!result && function && process_hooks_driver())
        *function = real_route(*function);
    return result;
}
