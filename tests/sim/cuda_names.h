/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_names.h - cuda.h for the simulated libcuda: every exported symbol under its own name, also those that older
 * headers do not have.
 */
#ifndef SIM_CUDA_NAMES_H
#define SIM_CUDA_NAMES_H

/* As in NVIDIA's own build of the driver: declare each exported symbol under its own name, with no renaming macros. */
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#if CUDA_VERSION < 12050
CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event);
CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event);
CUresult cuCtxCreate_v4(CUcontext *pctx, void *params, unsigned int flags, CUdevice dev);
typedef void CUctxCreateParams;
#endif
#if CUDA_VERSION < 12010
CUresult cuCtxSetFlags(unsigned int flags);
#endif
#if CUDA_VERSION < 12030
typedef void CUgraphEdgeData;
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *data,
                                     size_t n, CUstreamCaptureMode mode);
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *data,
                                          size_t n, CUstreamCaptureMode mode);
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **deps, const void **data, size_t *n);
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **deps, const void **data, size_t *n);
#endif
#if CUDA_VERSION < 12080
CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end);
CUresult cuStreamGetDevice(CUstream stream, CUdevice *dev);
CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *dev);
#endif
#if CUDA_VERSION < 12080
typedef void CUmemcpyAttributes;
#endif
#if CUDA_VERSION < 13000
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *indices, size_t n_attrs, CUstream stream);
CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attrs, size_t *indices, size_t n_attrs, CUstream stream);
CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext ctx);
CUresult cuCtxSynchronize_v2(CUcontext ctx);
#endif
#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn fn, void *arg, unsigned int mode);
CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn fn, void *arg, unsigned int mode);
CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUmemcpyAttributes *attr, CUstream s);
CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n, CUmemcpyAttributes *attr,
                                          CUstream s);
CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream s);
CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream s);
#endif
#if CUDA_VERSION < 13030
typedef cuuint32_t CUlogicalEndpointId;
typedef struct CUlogicalEndpointProp_st CUlogicalEndpointProp;
typedef unsigned int CUlogicalEndpointIpcHandleType;
typedef CUresult(CUDA_CB *CUgraphRecaptureCallback)(void *data, CUgraphNode node, const CUgraphNodeParams *before,
                                                    const CUgraphNodeParams *now, CUresult status);
CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback fn,
                                       void *data);
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode mode, CUgraph graph,
                                            CUgraphRecaptureCallback fn, void *data);
#endif
#if CUDA_VERSION < 13040
CUresult cuGraphAddNode_v3(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *edges,
                           size_t n, CUgraphNodeParams *params);
CUresult cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams *params);
#endif
#if CUDA_VERSION < 13050
typedef struct CUDA_FABRIC_COPY_BATCH_OP_st CUDA_FABRIC_COPY_BATCH_OP;
#endif
/* cudaGL.h needs OpenGL's headers. */
CUresult cuGLCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult cuGLCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev);
CUresult cuVDPAUCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int display, void *get);
CUresult cuVDPAUCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev, unsigned int display, void *get);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define SIM_STUB(base, sym, version, params, result)            CUresult sym params;
#define SIM_STUB_PT(base, sym, version, pt_sym, params, result) CUresult sym params, pt_sym params;
#include "stubs.def"
#undef SIM_STUB
#undef SIM_STUB_PT
#pragma GCC diagnostic pop
#include "simgpu.h"
#pragma GCC visibility pop

#endif
