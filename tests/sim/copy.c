/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - the exported copies and fills.
 *
 * Each call becomes one operation on a stream. Pageable host memory behaves as natively: a source is staged at the
 * call, a destination makes the call wait. work.c does the copying. CUDA arrays are not simulated.
 *
 * Locking: each function takes sim_lock() itself.
 */
#include "adversary.h"

static bool pageable(uint64_t addr)
{
    return !sim_is_device_va(addr) && !sim_alloc_find(addr);
}

static size_t side_bytes(const struct sim_side *s, size_t width, size_t height, size_t depth)
{
    return s->slice * (depth - 1) + s->pitch * (height - 1) + width;
}

static CUresult side_check(const struct sim_side *s, size_t bytes)
{
    if (!s->addr)
        return CUDA_ERROR_INVALID_VALUE;
    return s->must >= SIM_ON_DEVICE && !sim_alloc_range(s->addr, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* A pageable source as it is now. */
static void *stage(const struct sim_side *src, size_t width, size_t height, size_t depth)
{
    const char *from = (const char *)(uintptr_t)src->addr; /* NOLINT: an address of the program's */
    char *staged = malloc(width * height * depth), *to = staged;

    for (size_t z = 0; z < depth; z++) {
        for (size_t y = 0; y < height; y++, to += width)
            memcpy(to, from + z * src->slice + y * src->pitch, width);
    }
    return staged;
}

/* The other device's context that a copy names: to that it belongs as to its stream's. NULL: none. CUDA promises it of
 * copies that the host waits for, so with the adversary only these do. */
static CUcontext other_context(CUcontext own, const struct sim_side *side, bool sync)
{
    CUcontext ctx = side->must == SIM_OF_CONTEXT ? side->ctx : NULL;

    if (!ctx || (adversary_on() && !sync) || ctx->dev == own->dev || sim_ctx_check(ctx) != CUDA_SUCCESS)
        return NULL;
    return ctx->green ? sim_primary(ctx->dev) : ctx;
}

CUresult sim_copy(struct sim_side dst, struct sim_side src, size_t width, size_t height, size_t depth, CUstream handle,
                  bool pt, bool sync)
{
    struct sim_work w = {.kind = SIM_COPY};
    CUstream s;

    if (width == 0 || height == 0 || depth == 0)
        return CUDA_SUCCESS;
    if ((height > 1 || depth > 1) && (dst.pitch < width || src.pitch < width))
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS && sync && !s->cap)
        r = s->legacy ? sim_capture_implicit(s->ctx) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        r = side_check(&dst, side_bytes(&dst, width, height, depth));
    if (r == CUDA_SUCCESS)
        r = side_check(&src, side_bytes(&src, width, height, depth));
    w.copy.dst = dst.addr;
    w.copy.dpitch = dst.pitch;
    w.copy.dslice = dst.slice;
    w.copy.src = src.addr;
    w.copy.spitch = src.pitch;
    w.copy.sslice = src.slice;
    w.copy.width = width;
    w.copy.height = height;
    w.copy.depth = depth;
    if (r == CUDA_SUCCESS)
        r = sim_work_check(&w, dst.must == SIM_OF_CONTEXT ? -1 : s->ctx->dev);
    if (r == CUDA_SUCCESS) {
        w.copy.also = other_context(s->ctx, &src, sync);
        if (!w.copy.also)
            w.copy.also = other_context(s->ctx, &dst, sync);
        if (pageable(src.addr) && !s->cap && !sync)
            w.copy.staged = stage(&src, width, height, depth);
        r = sim_submit(s, &w, sync || (pageable(dst.addr) && !s->cap));
    }
    return r;
}

static CUresult copy1(uint64_t dst, enum sim_must dmust, uint64_t src, enum sim_must smust, size_t n, CUstream s,
                      bool pt, bool sync)
{
    return sim_copy((struct sim_side){dst, n, n, dmust, NULL}, (struct sim_side){src, n, n, smust, NULL}, n, 1, 1, s,
                    pt, sync);
}

static CUresult copy1_peer(uint64_t dst, CUcontext dctx, uint64_t src, CUcontext sctx, size_t n, CUstream s, bool pt,
                           bool sync)
{
    return sim_copy((struct sim_side){dst, n, n, SIM_OF_CONTEXT, dctx},
                    (struct sim_side){src, n, n, SIM_OF_CONTEXT, sctx}, n, 1, 1, s, pt, sync);
}

#define P(x) ((uint64_t)(uintptr_t)(x))

SIM_PAIR(cuMemcpy, cuMemcpy_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n),
         copy1(dst, SIM_ANY, src, SIM_ANY, n, NULL, pt, true))
SIM_PAIR(cuMemcpyAsync, cuMemcpyAsync_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s),
         copy1(dst, SIM_ANY, src, SIM_ANY, n, s, pt, false))
SIM_PAIR(cuMemcpyPeer, cuMemcpyPeer_ptds, (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n),
         copy1_peer(dst, dctx, src, sctx, n, NULL, pt, true))
SIM_PAIR(cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz,
         (CUdeviceptr dst, CUcontext dctx, CUdeviceptr src, CUcontext sctx, size_t n, CUstream s),
         copy1_peer(dst, dctx, src, sctx, n, s, pt, false))
SIM_PAIR(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds, (CUdeviceptr dst, const void *src, size_t n),
         copy1(dst, SIM_ON_DEVICE, P(src), SIM_ON_HOST, n, NULL, pt, true))
SIM_PAIR(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds, (void *dst, CUdeviceptr src, size_t n),
         copy1(P(dst), SIM_ON_HOST, src, SIM_ON_DEVICE, n, NULL, pt, true))
SIM_PAIR(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds, (CUdeviceptr dst, CUdeviceptr src, size_t n),
         copy1(dst, SIM_ON_DEVICE, src, SIM_ON_DEVICE, n, NULL, pt, true))
SIM_PAIR(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr dst, const void *src, size_t n, CUstream s),
         copy1(dst, SIM_ON_DEVICE, P(src), SIM_ON_HOST, n, s, pt, false))
SIM_PAIR(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz, (void *dst, CUdeviceptr src, size_t n, CUstream s),
         copy1(P(dst), SIM_ON_HOST, src, SIM_ON_DEVICE, n, s, pt, false))
SIM_PAIR(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s),
         copy1(dst, SIM_ON_DEVICE, src, SIM_ON_DEVICE, n, s, pt, false))

/* One side of a copy of rows; rows: from one layer to the next. False: a CUDA array. */
static bool side_of(CUmemorytype type, const void *host, CUdeviceptr dev, size_t pitch, size_t rows, size_t x, size_t y,
                    size_t z, size_t width, struct sim_side *ret)
{
    ret->pitch = pitch ? pitch : width;
    ret->slice = ret->pitch * rows;
    ret->ctx = NULL;
    ret->must = type == CU_MEMORYTYPE_DEVICE ? SIM_ON_DEVICE : SIM_ANY;
    ret->addr = (type == CU_MEMORYTYPE_HOST ? P(host) : dev) + z * ret->slice + y * ret->pitch + x;
    return type != CU_MEMORYTYPE_ARRAY;
}

static CUresult copy2(const CUDA_MEMCPY2D *c, CUstream s, bool pt, bool sync)
{
    struct sim_side dst, src;

    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    if (!side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c->Height, c->dstXInBytes, c->dstY, 0,
                 c->WidthInBytes, &dst) ||
        !side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c->Height, c->srcXInBytes, c->srcY, 0,
                 c->WidthInBytes, &src))
        return CUDA_ERROR_NOT_SUPPORTED;
    return sim_copy(dst, src, c->WidthInBytes, c->Height, 1, s, pt, sync);
}

SIM_PAIR(cuMemcpy2D_v2, cuMemcpy2D_v2_ptds, (const CUDA_MEMCPY2D *c), copy2(c, NULL, pt, true))
SIM_PAIR(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds, (const CUDA_MEMCPY2D *c), copy2(c, NULL, pt, true))
SIM_PAIR(cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz, (const CUDA_MEMCPY2D *c, CUstream s), copy2(c, s, pt, false))

CUresult sim_copy_of(const CUDA_MEMCPY3D *c, struct sim_side *ret_dst, struct sim_side *ret_src)
{
    if (!side_of(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstPitch, c->dstHeight ? c->dstHeight : c->Height,
                 c->dstXInBytes, c->dstY, c->dstZ, c->WidthInBytes, ret_dst) ||
        !side_of(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcPitch, c->srcHeight ? c->srcHeight : c->Height,
                 c->srcXInBytes, c->srcY, c->srcZ, c->WidthInBytes, ret_src))
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult copy3(const CUDA_MEMCPY3D *c, CUstream s, bool pt, bool sync)
{
    struct sim_side dst, src;
    CUresult r = c ? sim_copy_of(c, &dst, &src) : CUDA_ERROR_INVALID_VALUE;

    return r == CUDA_SUCCESS ? sim_copy(dst, src, c->WidthInBytes, c->Height, c->Depth, s, pt, sync) : r;
}

/* CUDA_MEMCPY3D with two contexts in place of reserved fields. */
static CUresult copy3_peer(const CUDA_MEMCPY3D_PEER *p, CUstream s, bool pt, bool sync)
{
    struct sim_side dst, src;
    CUDA_MEMCPY3D c;

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    _Static_assert(sizeof(c) == sizeof(*p), "one layout");
    memcpy(&c, p, sizeof(c));
    CUresult r = sim_copy_of(&c, &dst, &src);
    if (dst.must == SIM_ON_DEVICE && src.must == SIM_ON_DEVICE)
        dst.must = src.must = SIM_OF_CONTEXT;
    dst.ctx = p->dstContext;
    src.ctx = p->srcContext;
    return r == CUDA_SUCCESS ? sim_copy(dst, src, c.WidthInBytes, c.Height, c.Depth, s, pt, sync) : r;
}

SIM_PAIR(cuMemcpy3D_v2, cuMemcpy3D_v2_ptds, (const CUDA_MEMCPY3D *c), copy3(c, NULL, pt, true))
SIM_PAIR(cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz, (const CUDA_MEMCPY3D *c, CUstream s), copy3(c, s, pt, false))
SIM_PAIR(cuMemcpy3DPeer, cuMemcpy3DPeer_ptds, (const CUDA_MEMCPY3D_PEER *c), copy3_peer(c, NULL, pt, true))
SIM_PAIR(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz, (const CUDA_MEMCPY3D_PEER *c, CUstream s),
         copy3_peer(c, s, pt, false))

/* Natively not on the legacy stream, and each copy needs attributes; which ones makes no difference here. */
static CUresult copy_batch(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t count,
                           const void *attrs, const size_t *indices, size_t n_attrs, CUstream s, bool pt)
{
    if (!dsts || !srcs || !sizes || !count || !attrs || !indices || !n_attrs || n_attrs > count || indices[0] ||
        s == CU_STREAM_LEGACY || (!s && !pt))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult r = copy1(dsts[i], SIM_ANY, srcs[i], SIM_ANY, sizes[i], s, pt, false);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

static CUresult copy_batch_v1(const CUdeviceptr *dsts, const CUdeviceptr *srcs, const size_t *sizes, size_t count,
                              const void *attrs, const size_t *indices, size_t n_attrs, size_t *fail, CUstream s,
                              bool pt)
{
    if (fail)
        *fail = SIZE_MAX;
    return copy_batch(dsts, srcs, sizes, count, attrs, indices, n_attrs, s, pt);
}

SIM_PAIR(cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz,
         (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
          size_t *indices, size_t n_attrs, size_t *fail, CUstream s),
         copy_batch_v1(dsts, srcs, sizes, count, attrs, indices, n_attrs, fail, s, pt))
SIM_PAIR(cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz,
         (CUdeviceptr * dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
          size_t *indices, size_t n_attrs, CUstream s),
         copy_batch(dsts, srcs, sizes, count, attrs, indices, n_attrs, s, pt))

/* Rows of bytes: where their length and number are not said they are those of the copy. */
static struct sim_side operand_of(const CUmemcpy3DOperand *o, const CUextent3D *e)
{
    const size_t pitch = o->op.ptr.rowLength ? o->op.ptr.rowLength : e->width;

    return (struct sim_side){o->op.ptr.ptr, pitch, pitch * (o->op.ptr.layerHeight ? o->op.ptr.layerHeight : e->height),
                             SIM_ANY, NULL};
}

static CUresult copy3_batch(const CUDA_MEMCPY3D_BATCH_OP *ops, size_t count, unsigned long long flags, CUstream s,
                            bool pt)
{
    if (!ops || !count || flags || s == CU_STREAM_LEGACY || (!s && !pt))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUextent3D *e = &ops[i].extent;
        if (ops[i].dst.type != CU_MEMCPY_OPERAND_TYPE_POINTER || ops[i].src.type != CU_MEMCPY_OPERAND_TYPE_POINTER)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (!e->width || !e->height || !e->depth || !ops[i].srcAccessOrder)
            return CUDA_ERROR_INVALID_VALUE;
        CUresult r = sim_copy(operand_of(&ops[i].dst, e), operand_of(&ops[i].src, e), e->width, e->height, e->depth, s,
                              pt, false);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return CUDA_SUCCESS;
}

static CUresult copy3_batch_v1(const CUDA_MEMCPY3D_BATCH_OP *ops, size_t count, size_t *fail, unsigned long long flags,
                               CUstream s, bool pt)
{
    if (fail)
        *fail = SIZE_MAX;
    return copy3_batch(ops, count, flags, s, pt);
}

SIM_PAIR(cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail, unsigned long long flags, CUstream s),
         copy3_batch_v1(ops, count, fail, flags, s, pt))
SIM_PAIR(cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz,
         (size_t count, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream s),
         copy3_batch(ops, count, flags, s, pt))

/* One copy: as a batch of one. */
SIM_PAIR(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync_ptsz,
         (CUdeviceptr dst, CUdeviceptr src, size_t n, CUmemcpyAttributes *attr, CUstream s),
         copy_batch(&dst, &src, &n, 1, attr, &(size_t){0}, 1, s, pt))
SIM_PAIR(cuMemcpy3DWithAttributesAsync, cuMemcpy3DWithAttributesAsync_ptsz,
         (CUDA_MEMCPY3D_BATCH_OP * op, unsigned long long flags, CUstream s), copy3_batch(op, 1, flags, s, pt))

/* There are no CUDA arrays. */
SIM_PAIR(cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz,
         (CUarray dst, size_t offset, const void *src, size_t n, CUstream s), ((void)pt, CUDA_ERROR_NOT_SUPPORTED))
SIM_PAIR(cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz, (void *dst, CUarray src, size_t offset, size_t n, CUstream s),
         ((void)pt, CUDA_ERROR_NOT_SUPPORTED))

CUresult sim_set_of(uint64_t dst, size_t pitch, uint32_t value, unsigned elem, size_t width, size_t height,
                    struct sim_work *ret)
{
    *ret = (struct sim_work){.kind = SIM_SET};
    if ((elem != 1 && elem != 2 && elem != 4) || width > SIZE_MAX / elem || (height > 1 && pitch < width * elem) ||
        dst % elem)
        return CUDA_ERROR_INVALID_VALUE;
    ret->set.dst = dst;
    ret->set.pitch = pitch;
    ret->set.value = value;
    ret->set.elem = elem;
    ret->set.width = width * elem;
    ret->set.height = height;
    return CUDA_SUCCESS;
}

/* Does the host share the memory? */
static bool of_host(uint64_t addr)
{
    const struct sim_alloc *a = sim_alloc_find(addr);

    return a && (a->kind == SIM_MEM_HOST || a->kind == SIM_MEM_REGISTERED || a->kind == SIM_MEM_MANAGED);
}

/* In their plain form fills are asynchronous to the host for device memory, and wait for themselves for host memory. */
static CUresult set(uint64_t dst, size_t pitch, uint32_t value, unsigned elem, size_t width, size_t height,
                    CUstream handle, bool pt, bool plain)
{
    struct sim_work w;
    CUstream s;

    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    CUresult r = sim_set_of(dst, pitch, value, elem, width, height, &w);
    if (r != CUDA_SUCCESS)
        return r;
    SIM_LOCKED();
    r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS)
        r = sim_work_check(&w, s->ctx->dev);
    if (r == CUDA_SUCCESS)
        r = sim_submit(s, &w, plain && !s->cap && of_host(dst));
    return r;
}

SIM_PAIR(cuMemsetD8_v2, cuMemsetD8_v2_ptds, (CUdeviceptr dst, unsigned char v, size_t n),
         set(dst, 0, v, 1, n, 1, NULL, pt, true))
SIM_PAIR(cuMemsetD16_v2, cuMemsetD16_v2_ptds, (CUdeviceptr dst, unsigned short v, size_t n),
         set(dst, 0, v, 2, n, 1, NULL, pt, true))
SIM_PAIR(cuMemsetD32_v2, cuMemsetD32_v2_ptds, (CUdeviceptr dst, unsigned int v, size_t n),
         set(dst, 0, v, 4, n, 1, NULL, pt, true))
SIM_PAIR(cuMemsetD8Async, cuMemsetD8Async_ptsz, (CUdeviceptr dst, unsigned char v, size_t n, CUstream s),
         set(dst, 0, v, 1, n, 1, s, pt, false))
SIM_PAIR(cuMemsetD16Async, cuMemsetD16Async_ptsz, (CUdeviceptr dst, unsigned short v, size_t n, CUstream s),
         set(dst, 0, v, 2, n, 1, s, pt, false))
SIM_PAIR(cuMemsetD32Async, cuMemsetD32Async_ptsz, (CUdeviceptr dst, unsigned int v, size_t n, CUstream s),
         set(dst, 0, v, 4, n, 1, s, pt, false))
SIM_PAIR(cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h),
         set(dst, pitch, v, 1, w, h, NULL, pt, true))
SIM_PAIR(cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h),
         set(dst, pitch, v, 2, w, h, NULL, pt, true))
SIM_PAIR(cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds, (CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h),
         set(dst, pitch, v, 4, w, h, NULL, pt, true))
SIM_PAIR(cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h, CUstream s),
         set(dst, pitch, v, 1, w, h, s, pt, false))
SIM_PAIR(cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h, CUstream s),
         set(dst, pitch, v, 2, w, h, s, pt, false))
SIM_PAIR(cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz,
         (CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h, CUstream s),
         set(dst, pitch, v, 4, w, h, s, pt, false))
