/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - the exported copies and fills.
 *
 * What it is: each call becomes one operation on a stream. Pageable host memory behaves as natively: a source is staged
 * at the call, a destination makes the call wait.
 *
 * What it is not: the copying itself (work.c). CUDA arrays and 3D are not simulated.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "sim.h"

#include <string.h>

enum { ANY, HOST, DEVICE }; /* what a pointer must be */

struct side {
    uint64_t addr;
    size_t pitch;
    int must;
};

static bool pageable(uint64_t addr)
{
    return !sim_is_device_va(addr) && !sim_alloc_find(addr);
}

static CUresult side_check(const struct side *s, size_t bytes)
{
    if (!s->addr)
        return CUDA_ERROR_INVALID_VALUE;
    return s->must == DEVICE && !sim_alloc_range(s->addr, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult copy(struct side dst, struct side src, size_t width, size_t height, CUstream handle, bool pt, bool sync)
{
    struct sim_work w = {.kind = SIM_COPY};
    CUstream s;

    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    if (height > 1 && (dst.pitch < width || src.pitch < width))
        return CUDA_ERROR_INVALID_VALUE;
    sim_lock();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS && sync && !s->cap)
        r = s->legacy ? sim_capture_implicit(s->ctx) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && sync)
        r = sim_capture_unsafe();
    if (r == CUDA_SUCCESS)
        r = side_check(&dst, dst.pitch * (height - 1) + width);
    if (r == CUDA_SUCCESS)
        r = side_check(&src, src.pitch * (height - 1) + width);
    w.copy.dst = dst.addr;
    w.copy.dpitch = dst.pitch;
    w.copy.src = src.addr;
    w.copy.spitch = src.pitch;
    w.copy.width = width;
    w.copy.height = height;
    if (r == CUDA_SUCCESS)
        r = sim_work_check(&w);
    if (r == CUDA_SUCCESS) {
        bool stage = pageable(src.addr) && !s->cap && !sync;
        if (stage) {
            const char *from = (const char *)(uintptr_t)src.addr; /* NOLINT: an address of the program's */
            w.copy.staged = malloc(width * height);
            for (size_t y = 0; y < height; y++)
                memcpy((char *)w.copy.staged + y * width, from + y * src.pitch, width);
        }
        r = sim_submit(s, &w, sync || (pageable(dst.addr) && !s->cap));
    }
    sim_unlock();
    return r;
}

static CUresult copy1(uint64_t dst, int dmust, uint64_t src, int smust, size_t n, CUstream s, bool pt, bool sync)
{
    return copy((struct side){dst, n, dmust}, (struct side){src, n, smust}, n, 1, s, pt, sync);
}

#define P(x) ((uint64_t)(uintptr_t)(x))

SIM_PAIR(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n),
         copy1(dst, ANY, src, ANY, n, NULL, pt, true))
SIM_PAIR(cuMemcpyAsync, cuMemcpyAsync_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s),
         copy1(dst, ANY, src, ANY, n, s, pt, false))
SIM_PAIR(cuMemcpyPeer, cuMemcpyPeer_ptds, (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n),
         copy1(dst, DEVICE, src, DEVICE, n, NULL, pt, true))
SIM_PAIR(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
         (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n, CUstream s),
         copy1(dst, DEVICE, src, DEVICE, n, s, pt, false))
SIM_PAIR(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr dst, const void *src, size_t n),
         copy1(dst, DEVICE, P(src), HOST, n, NULL, pt, true))
SIM_PAIR(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *dst, CUdeviceptr src, size_t n),
         copy1(P(dst), HOST, src, DEVICE, n, NULL, pt, true))
SIM_PAIR(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n),
         copy1(dst, DEVICE, src, DEVICE, n, NULL, pt, true))
SIM_PAIR(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr dst, const void *src, size_t n, CUstream s),
         copy1(dst, DEVICE, P(src), HOST, n, s, pt, false))
SIM_PAIR(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, (void *dst, CUdeviceptr src, size_t n, CUstream s),
         copy1(P(dst), HOST, src, DEVICE, n, s, pt, false))
SIM_PAIR(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s),
         copy1(dst, DEVICE, src, DEVICE, n, s, pt, false))

static bool side_of(CUmemorytype type, const void *host, CUdeviceptr dev, size_t pitch, size_t x, size_t y,
                    size_t width, struct side *ret)
{
    ret->pitch = pitch ? pitch : width;
    ret->must = type == CU_MEMORYTYPE_DEVICE ? DEVICE : ANY;
    ret->addr = (type == CU_MEMORYTYPE_HOST ? P(host) : dev) + y * ret->pitch + x;
    return type != CU_MEMORYTYPE_ARRAY;
}

static CUresult copy2(const CUDA_MEMCPY2D *c, CUstream s, bool pt, bool sync)
{
    struct side dst, src;

    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    if (!side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c->dstXInBytes, c->dstY, c->WidthInBytes,
                 &dst) ||
        !side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c->srcXInBytes, c->srcY, c->WidthInBytes,
                 &src))
        return CUDA_ERROR_NOT_SUPPORTED;
    return copy(dst, src, c->WidthInBytes, c->Height, s, pt, sync);
}

SIM_PAIR(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *c), copy2(c, NULL, pt, true))
SIM_PAIR(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *c), copy2(c, NULL, pt, true))
SIM_PAIR(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *c, CUstream s), copy2(c, s, pt, false))

/* Fills are asynchronous to the host even in their plain form, as natively for device memory. */
static CUresult set(uint64_t dst, size_t pitch, uint32_t value, unsigned elem, size_t width, size_t height,
                    CUstream handle, bool pt)
{
    struct sim_work w = {.kind = SIM_SET};
    CUstream s;

    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    if (width > SIZE_MAX / elem || (height > 1 && pitch < width * elem) || dst % elem)
        return CUDA_ERROR_INVALID_VALUE;
    w.set.dst = dst;
    w.set.pitch = pitch;
    w.set.value = value;
    w.set.elem = elem;
    w.set.width = width * elem;
    w.set.height = height;
    sim_lock();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS)
        r = sim_work_check(&w);
    if (r == CUDA_SUCCESS)
        r = sim_submit(s, &w, false);
    sim_unlock();
    return r;
}

SIM_PAIR(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (CUdeviceptr dst, unsigned char v, size_t n),
         set(dst, 0, v, 1, n, 1, NULL, pt))
SIM_PAIR(cuMemsetD16_v2, cuMemsetD16_v2_ptds, (CUdeviceptr dst, unsigned short v, size_t n),
         set(dst, 0, v, 2, n, 1, NULL, pt))
SIM_PAIR(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (CUdeviceptr dst, unsigned int v, size_t n),
         set(dst, 0, v, 4, n, 1, NULL, pt))
SIM_PAIR(cuMemsetD8Async, cuMemsetD8Async_ptsz, (CUdeviceptr dst, unsigned char v, size_t n, CUstream s),
         set(dst, 0, v, 1, n, 1, s, pt))
SIM_PAIR(cuMemsetD16Async, cuMemsetD16Async_ptsz, (CUdeviceptr dst, unsigned short v, size_t n, CUstream s),
         set(dst, 0, v, 2, n, 1, s, pt))
SIM_PAIR(cuMemsetD32Async, cuMemsetD32Async_ptsz, (CUdeviceptr dst, unsigned int v, size_t n, CUstream s),
         set(dst, 0, v, 4, n, 1, s, pt))
SIM_PAIR(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h),
         set(dst, pitch, v, 1, w, h, NULL, pt))
SIM_PAIR(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h),
         set(dst, pitch, v, 2, w, h, NULL, pt))
SIM_PAIR(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h),
         set(dst, pitch, v, 4, w, h, NULL, pt))
SIM_PAIR(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s),
         set(dst, pitch, v, 1, w, h, s, pt))
SIM_PAIR(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s),
         set(dst, pitch, v, 2, w, h, s, pt))
SIM_PAIR(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h, CUstream s),
         set(dst, pitch, v, 4, w, h, s, pt))
