/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rt_mem.c - the simulated cudart's memory functions: allocation, attributes, IPC, copies, fills.
 *
 * Each is a thin call on the driver; cudaMalloc's pointer is cuMemAlloc's. There are no CUDA arrays and no symbols.
 *
 * Locking: none of its own.
 */
#include "rt.h"

#define D(p) ((CUdeviceptr)(uintptr_t)(p))

static CUresult device_alloc(void **ret, size_t size)
{
    CUdeviceptr p = 0;
    CUresult r = size ? rt_drv.cuMemAlloc(&p, size) : CUDA_SUCCESS;

    if (r == CUDA_SUCCESS)
        *ret = (void *)(uintptr_t)p; /* NOLINT: a device address */
    return r;
}

/* Without a place for the address it is refused before it makes a context. */
cudaError_t CUDARTAPI cudaMalloc(void **ret, size_t size)
{
    CUresult r = rt_driver_init();

    if (r != CUDA_SUCCESS || !ret)
        return rt_done(r == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : r);
    RT_CALL(device_alloc(ret, size));
}

RT_FN(cudaFree, (void *p), rt_drv.cuMemFree(D(p)))

static CUresult pitch_alloc(void **ret, size_t *pitch, size_t width, size_t height)
{
    CUdeviceptr p = 0;

    if (!ret || !pitch)
        return CUDA_ERROR_INVALID_VALUE;
    if (width == 0 || height == 0) {
        *ret = NULL;
        *pitch = 0;
        return CUDA_SUCCESS;
    }
    CUresult r = rt_drv.cuMemAllocPitch(&p, pitch, width, height, 4);
    if (r == CUDA_SUCCESS)
        *ret = (void *)(uintptr_t)p; /* NOLINT */
    return r;
}

RT_FN(cudaMallocPitch, (void **ret, size_t *pitch, size_t width, size_t height), pitch_alloc(ret, pitch, width, height))

static CUresult alloc_3d(struct cudaPitchedPtr *ret, struct cudaExtent e)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    ret->xsize = e.width;
    ret->ysize = e.height;
    return pitch_alloc(&ret->ptr, &ret->pitch, e.width, e.height * e.depth);
}

RT_FN(cudaMalloc3D, (struct cudaPitchedPtr * ret, struct cudaExtent extent), alloc_3d(ret, extent))

static CUresult managed_alloc(void **ret, size_t size, unsigned flags)
{
    CUdeviceptr p;

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = rt_drv.cuMemAllocManaged(&p, size, flags);
    if (r == CUDA_SUCCESS)
        *ret = (void *)(uintptr_t)p; /* NOLINT */
    return r;
}

RT_FN(cudaMallocManaged, (void **ret, size_t size, unsigned int flags), managed_alloc(ret, size, flags))

static CUresult host_alloc(void **ret, size_t size, unsigned flags)
{
    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    if (size == 0) {
        *ret = NULL;
        return CUDA_SUCCESS;
    }
    CUresult r = rt_drv.cuMemHostAlloc(ret, size, flags);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        *ret = NULL;
    return r;
}

RT_FN(cudaMallocHost, (void **ret, size_t size), host_alloc(ret, size, 0))
RT_FN(cudaHostAlloc, (void **ret, size_t size, unsigned int flags), host_alloc(ret, size, flags))
RT_FN(cudaFreeHost, (void *p), rt_drv.cuMemFreeHost(p))
RT_FN(cudaHostRegister, (void *p, size_t size, unsigned int flags), rt_drv.cuMemHostRegister(p, size, flags))
RT_FN(cudaHostUnregister, (void *p), rt_drv.cuMemHostUnregister(p))
RT_FN(cudaFreeArray, (cudaArray_t array), rt_drv.cuArrayDestroy((CUarray)array))
RT_FN(cudaFreeMipmappedArray, (cudaMipmappedArray_t array), rt_drv.cuMipmappedArrayDestroy((CUmipmappedArray)array))

static CUresult host_pointer(void **ret, void *p, unsigned flags)
{
    CUdeviceptr d;

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = rt_drv.cuMemHostGetDevicePointer(&d, p, flags);
    if (r == CUDA_SUCCESS)
        *ret = (void *)(uintptr_t)d; /* NOLINT */
    return r;
}

RT_FN(cudaHostGetDevicePointer, (void **ret, void *p, unsigned int flags), host_pointer(ret, p, flags))
RT_FN(cudaHostGetFlags, (unsigned int *ret, void *p), rt_drv.cuMemHostGetFlags(ret, p))
RT_FN(cudaMemGetInfo, (size_t * ret_free, size_t *ret_total), rt_drv.cuMemGetInfo(ret_free, ret_total))

static CUresult async_alloc(void **ret, size_t size, CUmemoryPool pool, CUstream s, int pt)
{
    CUdeviceptr p = 0;
    CUresult r = CUDA_SUCCESS;

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    if (size)
        r = pool ? rt_drv.cuMemAllocFromPoolAsync[pt](&p, size, pool, s) : rt_drv.cuMemAllocAsync[pt](&p, size, s);
    if (r == CUDA_SUCCESS)
        *ret = (void *)(uintptr_t)p; /* NOLINT */
    return r;
}

RT_PAIR_ON_STREAM(ptsz, cudaMallocAsync, (void **ret, size_t size, cudaStream_t s), async_alloc(ret, size, NULL, s, pt))
RT_PAIR(ptsz, cudaMallocFromPoolAsync, (void **ret, size_t size, cudaMemPool_t pool, cudaStream_t s),
        pool ? async_alloc(ret, size, pool, s, pt) : CUDA_ERROR_INVALID_VALUE)
RT_PAIR_BY(rt_enter_to_free(s), ptsz, cudaFreeAsync, (void *p, cudaStream_t s),
           p ? rt_drv.cuMemFreeAsync[pt](D(p), s) : CUDA_SUCCESS)

RT_FN(cudaDeviceGetDefaultMemPool, (cudaMemPool_t * pool, int dev), rt_drv.cuDeviceGetDefaultMemPool(pool, dev))
RT_FN(cudaMemPoolTrimTo, (cudaMemPool_t pool, size_t keep), rt_drv.cuMemPoolTrimTo(pool, keep))
RT_FN(cudaMemPoolSetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value),
      rt_drv.cuMemPoolSetAttribute(pool, (CUmemPool_attribute)attr, value))
RT_FN(cudaMemPoolGetAttribute, (cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value),
      rt_drv.cuMemPoolGetAttribute(pool, (CUmemPool_attribute)attr, value))

static CUresult attributes(struct cudaPointerAttributes *ret, const void *p)
{
    unsigned type = 0, managed = 0;
    int dev = -2;
    CUdeviceptr dptr = 0, hptr = 0;
    CUpointer_attribute what[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                  CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *out[] = {&type, &managed, &dev, &dptr, &hptr};

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = rt_drv.cuPointerGetAttributes(5, what, out, D(p));
    if (r != CUDA_SUCCESS)
        return r;
    memset(ret, 0, sizeof(*ret));
    ret->type = managed                        ? cudaMemoryTypeManaged
                : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                                               : cudaMemoryTypeUnregistered;
    ret->device = dev;
    ret->devicePointer = (void *)(uintptr_t)dptr;                                                     /* NOLINT */
    ret->hostPointer = ret->type == cudaMemoryTypeUnregistered ? (void *)p : (void *)(uintptr_t)hptr; /* NOLINT */
    return CUDA_SUCCESS;
}

RT_FN(cudaPointerGetAttributes, (struct cudaPointerAttributes * ret, const void *p), attributes(ret, p))
RT_FN(cudaIpcGetMemHandle, (cudaIpcMemHandle_t * handle, void *p),
      rt_drv.cuIpcGetMemHandle((CUipcMemHandle *)handle, D(p)))

static CUresult ipc_open(void **ret, cudaIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle h;
    CUdeviceptr p;

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&h, &handle, sizeof(h));
    CUresult r = rt_drv.cuIpcOpenMemHandle(&p, h, flags);
    if (r == CUDA_SUCCESS)
        *ret = (void *)(uintptr_t)p; /* NOLINT */
    return r;
}

RT_FN(cudaIpcOpenMemHandle, (void **ret, cudaIpcMemHandle_t handle, unsigned int flags), ipc_open(ret, handle, flags))
RT_FN(cudaIpcCloseMemHandle, (void *p), rt_drv.cuIpcCloseMemHandle(D(p)))

static CUresult copy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, int pt)
{
    if (n == 0)
        return CUDA_SUCCESS;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_drv.cuMemcpyHtoD[pt](D(dst), src, n);
    case cudaMemcpyDeviceToHost:
        return rt_drv.cuMemcpyDtoH[pt](dst, D(src), n);
    case cudaMemcpyDeviceToDevice:
        return rt_drv.cuMemcpyDtoD[pt](D(dst), D(src), n);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        return rt_drv.cuMemcpy[pt](D(dst), D(src), n);
    default:
        return (CUresult)cudaErrorInvalidMemcpyDirection;
    }
}

static CUresult copy_async(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, CUstream s, int pt)
{
    if (n == 0)
        return CUDA_SUCCESS;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return rt_drv.cuMemcpyHtoDAsync[pt](D(dst), src, n, s);
    case cudaMemcpyDeviceToHost:
        return rt_drv.cuMemcpyDtoHAsync[pt](dst, D(src), n, s);
    case cudaMemcpyDeviceToDevice:
        return rt_drv.cuMemcpyDtoDAsync[pt](D(dst), D(src), n, s);
    case cudaMemcpyHostToHost:
    case cudaMemcpyDefault:
        return rt_drv.cuMemcpyAsync[pt](D(dst), D(src), n, s);
    default:
        return (CUresult)cudaErrorInvalidMemcpyDirection;
    }
}

static CUresult copy_2d(void *dst, size_t dpitch, const void *src, size_t spitch, size_t width, size_t height,
                        enum cudaMemcpyKind kind, CUstream s, int pt, bool async)
{
    CUDA_MEMCPY2D c = {.dstPitch = dpitch, .srcPitch = spitch, .WidthInBytes = width, .Height = height};

    if ((unsigned)kind > cudaMemcpyDefault)
        return (CUresult)cudaErrorInvalidMemcpyDirection;
    if (width > dpitch || width > spitch)
        return (CUresult)cudaErrorInvalidPitchValue;
    c.dstMemoryType = c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    c.dstDevice = D(dst);
    c.srcDevice = D(src);
    return async ? rt_drv.cuMemcpy2DAsync[pt](&c, s) : rt_drv.cuMemcpy2DUnaligned[pt](&c);
}

RT_PAIR(ptds, cudaMemcpy, (void *dst, const void *src, size_t n, enum cudaMemcpyKind kind), copy(dst, src, n, kind, pt))
RT_PAIR(ptsz, cudaMemcpyAsync, (void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t s),
        copy_async(dst, src, n, kind, s, pt))
RT_PAIR(ptds, cudaMemcpy2D,
        (void *dst, size_t dpitch, const void *src, size_t spitch, size_t w, size_t h, enum cudaMemcpyKind kind),
        copy_2d(dst, dpitch, src, spitch, w, h, kind, NULL, pt, false))
RT_PAIR(ptsz, cudaMemcpy2DAsync,
        (void *dst, size_t dpitch, const void *src, size_t spitch, size_t w, size_t h, enum cudaMemcpyKind kind,
         cudaStream_t s),
        copy_2d(dst, dpitch, src, spitch, w, h, kind, s, pt, true))
RT_PAIR(ptds, cudaMemset, (void *p, int value, size_t n),
        n ? rt_drv.cuMemsetD8[pt](D(p), (unsigned char)value, n) : CUDA_SUCCESS)
RT_PAIR(ptsz, cudaMemsetAsync, (void *p, int value, size_t n, cudaStream_t s),
        n ? rt_drv.cuMemsetD8Async[pt](D(p), (unsigned char)value, n, s) : CUDA_SUCCESS)
RT_PAIR(ptds, cudaMemset2D, (void *p, size_t pitch, int value, size_t w, size_t h),
        w &&h ? rt_drv.cuMemsetD2D8[pt](D(p), pitch, (unsigned char)value, w, h) : CUDA_SUCCESS)
RT_PAIR(ptsz, cudaMemset2DAsync, (void *p, size_t pitch, int value, size_t w, size_t h, cudaStream_t s),
        w &&h ? rt_drv.cuMemsetD2D8Async[pt](D(p), pitch, (unsigned char)value, w, h, s) : CUDA_SUCCESS)

static CUresult copy_peer(void *dst, int ddev, const void *src, int sdev, size_t n, CUstream s, bool async)
{
    CUcontext dctx, sctx;
    CUresult r = rt_primary(ddev, &dctx);

    if (r == CUDA_SUCCESS)
        r = rt_primary(sdev, &sctx);
    if (r != CUDA_SUCCESS || n == 0)
        return r;
    return async ? rt_drv.cuMemcpyPeerAsync[0](D(dst), dctx, D(src), sctx, n, s)
                 : rt_drv.cuMemcpyPeer[0](D(dst), dctx, D(src), sctx, n);
}

RT_FN(cudaMemcpyPeer, (void *dst, int ddev, const void *src, int sdev, size_t n),
      copy_peer(dst, ddev, src, sdev, n, NULL, false))
RT_FN(cudaMemcpyPeerAsync, (void *dst, int ddev, const void *src, int sdev, size_t n, cudaStream_t s),
      copy_peer(dst, ddev, src, sdev, n, s, true))

static CUmemorytype side_type(enum cudaMemcpyKind kind, bool dst)
{
    if (kind == cudaMemcpyDefault)
        return CU_MEMORYTYPE_UNIFIED;
    bool device = dst ? kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice
                      : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    return device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

/* In the driver's words; positions count bytes here, because there are no arrays. */
static void side_src(CUDA_MEMCPY3D *c, const struct cudaPitchedPtr *p, struct cudaPos at, CUmemorytype type)
{
    c->srcMemoryType = type;
    c->srcHost = p->ptr;
    c->srcDevice = D(p->ptr);
    c->srcPitch = p->pitch;
    c->srcHeight = p->ysize;
    c->srcXInBytes = at.x;
    c->srcY = at.y;
    c->srcZ = at.z;
}

static void side_dst(CUDA_MEMCPY3D *c, const struct cudaPitchedPtr *p, struct cudaPos at, CUmemorytype type)
{
    c->dstMemoryType = type;
    c->dstHost = p->ptr;
    c->dstDevice = D(p->ptr);
    c->dstPitch = p->pitch;
    c->dstHeight = p->ysize;
    c->dstXInBytes = at.x;
    c->dstY = at.y;
    c->dstZ = at.z;
}

CUresult rt_copy_3d(const struct cudaMemcpy3DParms *p, CUDA_MEMCPY3D *ret)
{
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->srcArray || p->dstArray)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((unsigned)p->kind > cudaMemcpyDefault)
        return (CUresult)cudaErrorInvalidMemcpyDirection;
    memset(ret, 0, sizeof(*ret));
    side_src(ret, &p->srcPtr, p->srcPos, side_type(p->kind, false));
    side_dst(ret, &p->dstPtr, p->dstPos, side_type(p->kind, true));
    ret->WidthInBytes = p->extent.width;
    ret->Height = p->extent.height;
    ret->Depth = p->extent.depth;
    return CUDA_SUCCESS;
}

static CUresult copy_3d(const struct cudaMemcpy3DParms *p, CUstream s, int pt, bool async)
{
    CUDA_MEMCPY3D c;
    CUresult r = rt_copy_3d(p, &c);

    if (r != CUDA_SUCCESS)
        return r;
    return async ? rt_drv.cuMemcpy3DAsync[pt](&c, s) : rt_drv.cuMemcpy3D[pt](&c);
}

static CUresult copy_3d_peer(const struct cudaMemcpy3DPeerParms *p, CUstream s, int pt, bool async)
{
    CUDA_MEMCPY3D c = {0};
    CUDA_MEMCPY3D_PEER peer;
    CUcontext dctx, sctx;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->srcArray || p->dstArray)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = rt_primary(p->dstDevice, &dctx);
    if (r == CUDA_SUCCESS)
        r = rt_primary(p->srcDevice, &sctx);
    if (r != CUDA_SUCCESS)
        return r;
    side_src(&c, &p->srcPtr, p->srcPos, CU_MEMORYTYPE_DEVICE);
    side_dst(&c, &p->dstPtr, p->dstPos, CU_MEMORYTYPE_DEVICE);
    c.WidthInBytes = p->extent.width;
    c.Height = p->extent.height;
    c.Depth = p->extent.depth;
    _Static_assert(sizeof(c) == sizeof(peer), "one layout");
    memcpy(&peer, &c, sizeof(peer));
    peer.srcContext = sctx;
    peer.dstContext = dctx;
    return async ? rt_drv.cuMemcpy3DPeerAsync[pt](&peer, s) : rt_drv.cuMemcpy3DPeer[pt](&peer);
}

RT_PAIR(ptds, cudaMemcpy3D, (const struct cudaMemcpy3DParms *p), copy_3d(p, NULL, pt, false))
RT_PAIR(ptsz, cudaMemcpy3DAsync, (const struct cudaMemcpy3DParms *p, cudaStream_t s), copy_3d(p, s, pt, true))
RT_PAIR(ptds, cudaMemcpy3DPeer, (const struct cudaMemcpy3DPeerParms *p), copy_3d_peer(p, NULL, pt, false))
RT_PAIR(ptsz, cudaMemcpy3DPeerAsync, (const struct cudaMemcpy3DPeerParms *p, cudaStream_t s),
        copy_3d_peer(p, s, pt, true))

RT_PAIR(ptsz, cudaMemcpyBatchAsync,
        (void *const *dsts, const void *const *srcs, const size_t *sizes, size_t count,
         struct cudaMemcpyAttributes *attrs, size_t *indices, size_t n_attrs, cudaStream_t s),
        rt_drv.cuMemcpyBatchAsync[pt]
            ? rt_drv.cuMemcpyBatchAsync[pt]((CUdeviceptr *)dsts, (CUdeviceptr *)srcs, (size_t *)sizes, count,
                                            (CUmemcpyAttributes *)attrs, indices, n_attrs, s)
            : CUDA_ERROR_NOT_SUPPORTED)
