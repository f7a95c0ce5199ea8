/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - the types of CUDA and NCCL, and the prototypes of the functions in hooks.def. Private to shim/; nothing
 * here links to CUDA. */
#ifndef CUPOOL_SHIM_REAL_HOOKS_H
#define CUPOOL_SHIM_REAL_HOOKS_H

#include <cuda.h>
#include <driver_types.h>
#include <stddef.h>

#include "real/nccl_abi.h"

#if CUDA_VERSION < 13000
#error "the headers of CUDA 13.0 or later are needed (the driver at run time may be older)"
#endif

/* The headers rename these to their newest version; here every symbol has its own name. */
#undef cuCtxDestroy
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuGetProcAddress
#undef cuStreamBeginCapture
#undef cuGraphInstantiate
#undef cuEventElapsedTime
#undef cuEventDestroy
#undef cuGraphAddNode
#undef cuIpcOpenMemHandle
#undef cuMemcpyBatchAsync
#undef cuMemcpy3DBatchAsync
#undef cuStreamBatchMemOp
#undef cuStreamWriteValue32
#undef cuStreamWriteValue64
#undef cuCtxCreate
#undef cuDevicePrimaryCtxSetFlags
#undef cuMemAdvise
#undef cuMemHostRegister
#undef cuMemPrefetchAsync
#undef cuMulticastBindAddr
#undef cuMulticastBindMem
#undef cuStreamDestroy

/* Types of later headers. We pass pointers to them on and never look inside. */
#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
#endif
#if CUDA_VERSION < 13030
typedef CUresult(CUDA_CB *CUgraphRecaptureCallback)(void *data, CUgraphNode node, const CUgraphNodeParams *original,
                                                    const CUgraphNodeParams *recaptured, CUresult status);
typedef cuuint32_t CUlogicalEndpointId;
typedef struct CUlogicalEndpointProp_st CUlogicalEndpointProp;
typedef unsigned int CUlogicalEndpointIpcHandleType;
#endif
#if CUDA_VERSION < 13050
typedef struct CUDA_FABRIC_COPY_BATCH_OP_st CUDA_FABRIC_COPY_BATCH_OP;
#endif

/* Programs call deprecated functions, so they are hooked. */
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

#define RUNTIME(symbol, parameters) cudaError_t symbol parameters;
#define DRIVER(symbol, parameters)  CUresult symbol parameters;
#define NCCL(symbol, parameters)    ncclResult_t symbol parameters;
#include "hooks.def"

#endif
