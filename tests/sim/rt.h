/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt.h - what the files of the simulated cudart share.
 *
 * The table of driver functions is filled as the real cudart fills it: dlopen, one dlsym for cuGetProcAddress_v2, then
 * everything by base name, version and flags. The header also has the entry and exit of every runtime call (lazy
 * context, last error). The simulated cudart needs nothing of the simulated libcuda; it runs on a real driver just as
 * well.
 *
 * Locking: the table is written once; device state is atomic; the last error and the device are the thread's own.
 */
#ifndef SIM_RT_H
#define SIM_RT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#ifndef SIM_STATIC
#pragma GCC visibility push(default)
#endif
#include <cuda_runtime_api.h>
#if CUDART_VERSION < 13030
cudaError_t cudaStreamBeginRecaptureToGraph(cudaStream_t s, enum cudaStreamCaptureMode mode, cudaGraph_t graph,
                                            void *data);
cudaError_t cudaStreamBeginRecaptureToGraph_ptsz(cudaStream_t s, enum cudaStreamCaptureMode mode, cudaGraph_t graph,
                                                 void *data);
CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph, void *fn, void *data);
#endif
cudaError_t cudaMemcpy3D_ptds(const struct cudaMemcpy3DParms *p);
cudaError_t cudaMemcpy3DAsync_ptsz(const struct cudaMemcpy3DParms *p, cudaStream_t s);
cudaError_t cudaMemcpy3DPeer_ptds(const struct cudaMemcpy3DPeerParms *p);
cudaError_t cudaMemcpy3DPeerAsync_ptsz(const struct cudaMemcpy3DPeerParms *p, cudaStream_t s);
cudaError_t cudaMemcpyBatchAsync_ptsz(void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,
                                      struct cudaMemcpyAttributes *attrs, size_t *indices, size_t n_attrs,
                                      cudaStream_t s);
cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **fn, unsigned long long flags,
                                         enum cudaDriverEntryPointQueryResult *status);
#ifndef SIM_STATIC
#pragma GCC visibility pop
#endif

/* clang-format off */
/* F: one variant. P: also a per-thread one, [1]. Base name, symbol that has the type, version. */
#define RT_DRIVER(F, P) \
    F(cuInit, cuInit, 2000) F(cuDriverGetVersion, cuDriverGetVersion, 2020) F(cuGetErrorName, cuGetErrorName, 6000) \
    F(cuGetErrorString, cuGetErrorString, 6000) F(cuDeviceGet, cuDeviceGet, 2000) \
    F(cuDeviceGetCount, cuDeviceGetCount, 2000) F(cuDeviceGetName, cuDeviceGetName, 2000) \
    F(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020) F(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000) \
    F(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040) F(cuDeviceGetPCIBusId, cuDeviceGetPCIBusId, 4010) \
    F(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000) \
    F(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020) \
    F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) \
    F(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000) \
    F(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000) \
    F(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000) F(cuCtxSetCurrent, cuCtxSetCurrent, 4000) \
    F(cuCtxGetCurrent, cuCtxGetCurrent, 4000) F(cuCtxGetDevice, cuCtxGetDevice, 2000) \
    F(cuCtxSynchronize, cuCtxSynchronize, 2000) F(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050) \
    F(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000) F(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000) \
    F(cuMemGetInfo, cuMemGetInfo_v2, 3020) F(cuMemAlloc, cuMemAlloc_v2, 3020) \
    F(cuMemAllocPitch, cuMemAllocPitch_v2, 3020) F(cuMemFree, cuMemFree_v2, 3020) \
    F(cuMemAllocHost, cuMemAllocHost_v2, 3020) F(cuMemFreeHost, cuMemFreeHost, 2000) \
    F(cuMemHostAlloc, cuMemHostAlloc, 2020) F(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020) \
    F(cuMemHostGetFlags, cuMemHostGetFlags, 2030) F(cuMemHostRegister, cuMemHostRegister_v2, 6050) \
    F(cuMemHostUnregister, cuMemHostUnregister, 4000) F(cuArrayDestroy, cuArrayDestroy, 2000) \
    F(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000) F(cuMemAllocManaged, cuMemAllocManaged, 6000) \
    F(cuPointerGetAttributes, cuPointerGetAttributes, 7000) F(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010) \
    F(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000) F(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010) \
    F(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020) F(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020) \
    F(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020) F(cuStreamCreate, cuStreamCreate, 2000) \
    F(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050) F(cuStreamDestroy, cuStreamDestroy_v2, 4000) \
    F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010) \
    F(cuEventCreate, cuEventCreate, 2000) F(cuEventDestroy, cuEventDestroy_v2, 4000) \
    F(cuEventQuery, cuEventQuery, 2000) F(cuEventSynchronize, cuEventSynchronize, 2000) \
    F(cuEventElapsedTime, cuEventElapsedTime, 2000) F(cuGraphCreate, cuGraphCreate, 10000) \
    F(cuGraphDestroy, cuGraphDestroy, 10000) F(cuGraphGetNodes, cuGraphGetNodes, 10000) \
    F(cuGraphAddMemcpyNode, cuGraphAddMemcpyNode, 10000) F(cuGraphAddHostNode, cuGraphAddHostNode, 10000) \
    F(cuGraphNodeGetType, cuGraphNodeGetType, 10000) \
    F(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040) \
    F(cuGraphExecDestroy, cuGraphExecDestroy, 10000) \
    P(cuMemcpy, cuMemcpy, 4000) P(cuMemcpyAsync, cuMemcpyAsync, 4000) P(cuMemcpyPeer, cuMemcpyPeer, 4000) \
    P(cuMemcpyPeerAsync, cuMemcpyPeerAsync, 4000) P(cuMemcpy3D, cuMemcpy3D_v2, 3020) \
    P(cuMemcpy3DAsync, cuMemcpy3DAsync_v2, 3020) P(cuMemcpy3DPeer, cuMemcpy3DPeer, 4000) \
    P(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, 4000) P(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, 13000) \
    P(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020) P(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020) \
    P(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020) P(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020) \
    P(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020) P(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020) \
    P(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, 3020) P(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, 3020) \
    P(cuMemsetD8, cuMemsetD8_v2, 3020) P(cuMemsetD8Async, cuMemsetD8Async, 3020) \
    P(cuMemsetD2D8, cuMemsetD2D8_v2, 3020) P(cuMemsetD2D8Async, cuMemsetD2D8Async, 3020) \
    P(cuMemAllocAsync, cuMemAllocAsync, 11020) P(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020) \
    P(cuMemFreeAsync, cuMemFreeAsync, 11020) P(cuStreamSynchronize, cuStreamSynchronize, 2000) \
    P(cuStreamQuery, cuStreamQuery, 2000) P(cuStreamWaitEvent, cuStreamWaitEvent, 3020) \
    P(cuStreamGetFlags, cuStreamGetFlags, 5050) P(cuStreamGetPriority, cuStreamGetPriority, 5050) \
    P(cuStreamGetId, cuStreamGetId, 12000) P(cuStreamAddCallback, cuStreamAddCallback, 5000) \
    P(cuLaunchHostFunc, cuLaunchHostFunc, 10000) P(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010) \
    P(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030) \
    P(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph, 13030) \
    P(cuStreamEndCapture, cuStreamEndCapture, 10000) P(cuStreamIsCapturing, cuStreamIsCapturing, 10000) \
    P(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030) P(cuEventRecord, cuEventRecord, 2000) \
    P(cuEventRecordWithFlags, cuEventRecordWithFlags, 11010) P(cuGraphUpload, cuGraphUpload, 11010) \
    P(cuGraphLaunch, cuGraphLaunch, 10000)
/* clang-format on */

/* NOLINTBEGIN(bugprone-macro-parentheses): base is the name declared */
struct rt_driver {
#define F(base, sym, ver) __typeof__(sym) *base;
#define P(base, sym, ver) __typeof__(sym) *base[2];
    RT_DRIVER(F, P)
#undef F
#undef P
    __typeof__(cuGetProcAddress_v2) *get_proc;
};
/* NOLINTEND(bugprone-macro-parentheses) */
extern struct rt_driver rt_drv;

/* Find the driver and initialise it. */
CUresult rt_driver_init(void);
/* The above, and make sure that the thread has a live context: its device's primary one unless it chose another. */
CUresult rt_enter(void);
/* As rt_enter for a default stream; on another stream the driver is initialised alone. */
CUresult rt_enter_for(cudaStream_t stream);
/* As rt_enter_for, but a primary context that is current is not the runtime's afterwards: cudaFreeAsync takes no
 * reference to it (one H200, 2026-11-29). */
CUresult rt_enter_to_free(cudaStream_t stream);
bool rt_renew(void); /* after CUDA_ERROR_CONTEXT_IS_DESTROYED: is it worth while to call once more? */
/* Note the outcome as the thread's last error. */
cudaError_t rt_done(CUresult r);
int rt_device(void);
CUresult rt_device_set(int dev);
CUresult rt_device_reset(void);
CUresult rt_primary(int dev, CUcontext *ret);
cudaError_t rt_last(bool clear);
/* A 3D copy in the driver's words (rt_mem.c). */
CUresult rt_copy_3d(const struct cudaMemcpy3DParms *p, CUDA_MEMCPY3D *ret);

/* Body of a runtime function: enter, evaluate call, note the outcome. */
#define RT_CALL(call) RT_CALL_BY(rt_enter(), call)
#define RT_CALL_BY(enter, call)                                                                                        \
    do {                                                                                                               \
        CUresult r_ = (enter);                                                                                         \
        r_ = r_ != CUDA_SUCCESS ? r_ : (call);                                                                         \
        if (r_ == CUDA_ERROR_CONTEXT_IS_DESTROYED && rt_renew())                                                       \
            r_ = (call);                                                                                               \
        return rt_done(r_);                                                                                            \
    } while (0)

/* A runtime function that is one call on the driver. */
#define RT_FN(sym, params, call)                                                                                       \
    cudaError_t CUDARTAPI sym params                                                                                   \
    {                                                                                                                  \
        RT_CALL(call);                                                                                                 \
    }

/* One runtime function and its per-thread twin, whose name ends in the suffix; pt picks the driver's variant. */
#define RT_PAIR(suffix, sym, params, call) RT_PAIR_BY(rt_enter(), suffix, sym, params, call)
/* One on a stream s, which gives a thread without a context one only if that is a default stream. */
#define RT_PAIR_ON_STREAM(suffix, sym, params, call) RT_PAIR_BY(rt_enter_for(s), suffix, sym, params, call)
#define RT_PAIR_BY(enter, suffix, sym, params, call)                                                                   \
    cudaError_t CUDARTAPI sym params                                                                                   \
    {                                                                                                                  \
        enum { pt = 0 };                                                                                               \
        RT_CALL_BY(enter, call);                                                                                       \
    }                                                                                                                  \
    cudaError_t CUDARTAPI sym##_##suffix params                                                                        \
    {                                                                                                                  \
        enum { pt = 1 };                                                                                               \
        RT_CALL_BY(enter, call);                                                                                       \
    }

#endif
