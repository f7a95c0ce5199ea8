/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_device.c - the simulated cudart's device, error and version functions.
 *
 * Each is a thin call on the driver. Memory is in rt_mem.c, streams and graphs in rt_stream.c.
 *
 * Locking: none of its own.
 */
#include "rt.h"

#include <stdio.h>

/* These must not make a context. */
#define NO_CONTEXT(call)                                                                                               \
    do {                                                                                                               \
        CUresult r_ = rt_driver_init();                                                                                \
        return rt_done(r_ != CUDA_SUCCESS ? r_ : (call));                                                              \
    } while (0)

#define RT_BARE(sym, params, call)                                                                                     \
    cudaError_t CUDARTAPI sym params                                                                                   \
    {                                                                                                                  \
        NO_CONTEXT(call);                                                                                              \
    }

static CUresult device_get(int *dev)
{
    CUcontext ctx;

    if (!dev)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = rt_drv.cuCtxGetCurrent(&ctx); /* refused in a host function */
    if (r == CUDA_SUCCESS)
        *dev = rt_device();
    return r;
}

RT_BARE(cudaGetDeviceCount, (int *count), rt_drv.cuDeviceGetCount(count))
RT_BARE(cudaGetDevice, (int *dev), device_get(dev))
RT_BARE(cudaSetDevice, (int dev), rt_device_set(dev))
RT_BARE(cudaDeviceReset, (void), rt_device_reset())
RT_FN(cudaDeviceSynchronize, (void), rt_drv.cuCtxSynchronize())
RT_BARE(cudaDeviceGetAttribute, (int *value, enum cudaDeviceAttr attr, int dev),
        rt_drv.cuDeviceGetAttribute(value, (CUdevice_attribute)attr, dev))
RT_FN(cudaDeviceGetStreamPriorityRange, (int *least, int *greatest),
      rt_drv.cuCtxGetStreamPriorityRange(least, greatest))
RT_BARE(cudaDeviceGetPCIBusId, (char *id, int len, int dev), rt_drv.cuDeviceGetPCIBusId(id, len, dev))
RT_BARE(cudaDeviceCanAccessPeer, (int *can, int dev, int peer), rt_drv.cuDeviceCanAccessPeer(can, dev, peer))

static CUresult peer(int dev, unsigned flags, bool on)
{
    CUcontext ctx;
    CUresult r = rt_primary(dev, &ctx);

    if (r != CUDA_SUCCESS)
        return r;
    return on ? rt_drv.cuCtxEnablePeerAccess(ctx, flags) : rt_drv.cuCtxDisablePeerAccess(ctx);
}

RT_FN(cudaDeviceEnablePeerAccess, (int dev, unsigned int flags), peer(dev, flags, true))
RT_FN(cudaDeviceDisablePeerAccess, (int dev), peer(dev, 0, false))

static int attr(int dev, CUdevice_attribute a)
{
    int v = 0;

    rt_drv.cuDeviceGetAttribute(&v, a, dev);
    return v;
}

static CUresult properties(struct cudaDeviceProp *p, int dev)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    memset(p, 0, sizeof(*p));
    CUresult r = rt_drv.cuDeviceGetName(p->name, sizeof(p->name), dev);
    if (r != CUDA_SUCCESS)
        return r;
    rt_drv.cuDeviceTotalMem(&p->totalGlobalMem, dev);
    rt_drv.cuDeviceGetUuid((CUuuid *)&p->uuid, dev);
    p->sharedMemPerBlock = (size_t)attr(dev, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    p->regsPerBlock = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    p->warpSize = attr(dev, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    p->memPitch = (size_t)attr(dev, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    p->maxThreadsPerBlock = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    p->maxThreadsDim[0] = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    p->maxThreadsDim[1] = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    p->maxThreadsDim[2] = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    p->maxGridSize[0] = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    p->maxGridSize[1] = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    p->maxGridSize[2] = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    p->totalConstMem = (size_t)attr(dev, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    p->major = attr(dev, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    p->minor = attr(dev, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    p->textureAlignment = (size_t)attr(dev, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    p->multiProcessorCount = attr(dev, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    p->canMapHostMemory = attr(dev, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    p->concurrentKernels = attr(dev, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
    p->pciBusID = attr(dev, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    p->asyncEngineCount = attr(dev, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
    p->unifiedAddressing = attr(dev, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    p->maxThreadsPerMultiProcessor = attr(dev, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    p->streamPrioritiesSupported = attr(dev, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
    p->managedMemory = attr(dev, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
    p->concurrentManagedAccess = attr(dev, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
    p->memoryPoolsSupported = attr(dev, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    p->gpuDirectRDMASupported = attr(dev, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
    return CUDA_SUCCESS;
}

RT_BARE(cudaGetDeviceProperties, (struct cudaDeviceProp * p, int dev), properties(p, dev))

cudaError_t CUDARTAPI cudaGetLastError(void)
{
    return rt_last(true);
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void)
{
    return rt_last(false);
}

/* Differs from the driver's in the names only: CUDA_ERROR_X against cudaErrorX. */
/* clang-format off */
#define ERRORS(X) \
    X(cudaSuccess) X(cudaErrorInvalidValue) X(cudaErrorMemoryAllocation) X(cudaErrorInitializationError) \
    X(cudaErrorMissingConfiguration) \
    X(cudaErrorCudartUnloading) X(cudaErrorInsufficientDriver) X(cudaErrorNoDevice) X(cudaErrorInvalidDevice) \
    X(cudaErrorDeviceUninitialized) X(cudaErrorMapBufferObjectFailed) X(cudaErrorOperatingSystem) \
    X(cudaErrorInvalidResourceHandle) X(cudaErrorIllegalState) X(cudaErrorSymbolNotFound) X(cudaErrorNotReady) \
    X(cudaErrorIllegalAddress) X(cudaErrorPeerAccessAlreadyEnabled) X(cudaErrorPeerAccessNotEnabled) \
    X(cudaErrorContextIsDestroyed) X(cudaErrorHostMemoryAlreadyRegistered) X(cudaErrorHostMemoryNotRegistered) \
    X(cudaErrorLaunchFailure) X(cudaErrorNotPermitted) X(cudaErrorNotSupported) X(cudaErrorStreamCaptureUnsupported) \
    X(cudaErrorStreamCaptureInvalidated) X(cudaErrorStreamCaptureMerge) X(cudaErrorStreamCaptureUnmatched) \
    X(cudaErrorStreamCaptureUnjoined) X(cudaErrorStreamCaptureIsolation) X(cudaErrorStreamCaptureImplicit) \
    X(cudaErrorCapturedEvent) X(cudaErrorStreamCaptureWrongThread) X(cudaErrorUnknown)
/* clang-format on */

const char *CUDARTAPI cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define X(code)                                                                                                        \
    case code:                                                                                                         \
        return #code;
        ERRORS(X)
#undef X
    default:
        return "unrecognized error code";
    }
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
    const char *text = NULL;

    if (error == cudaErrorInsufficientDriver)
        return "CUDA driver version is insufficient for CUDA runtime version";
    if (rt_driver_init() == CUDA_SUCCESS)
        rt_drv.cuGetErrorString((CUresult)error, &text);
    return text ? text : "unrecognized error code";
}

static CUresult runtime_version(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDART_VERSION;
    return CUDA_SUCCESS;
}

RT_BARE(cudaDriverGetVersion, (int *version), rt_drv.cuDriverGetVersion(version))

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *version)
{
    return rt_done(runtime_version(version));
}

cudaError_t CUDARTAPI cudaInitDevice(int dev, unsigned int dev_flags, unsigned int flags)
{
    CUcontext ctx;

    NO_CONTEXT(rt_primary(dev, &ctx));
}
