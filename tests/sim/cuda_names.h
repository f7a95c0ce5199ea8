/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_names.h - cuda.h for the simulated libcuda: every exported symbol under its own name, also those that older
 * headers do not have. */
#ifndef SIM_CUDA_NAMES_H
#define SIM_CUDA_NAMES_H

/* As in NVIDIA's own build of the driver: declare each exported symbol under its own name, with no renaming macros. */
#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
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
