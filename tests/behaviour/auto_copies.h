/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_copies.h - the calls that copy n bytes, and graphs that do, each behind one signature, so that a table of tests
 * can name them.
 *
 * n is a multiple of 16 rows. This is no list of all calls (tests/rows has one), only of the forms that differ in the
 * way in which the library sees where a copy comes from and goes to.
 */
#ifndef BEHAVIOUR_AUTO_COPIES_H
#define BEHAVIOUR_AUTO_COPIES_H

#include "auto.h"

#define AUTO_ROW 256

BT_UNUSED static int copy_async(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    OK(cudaMemcpyAsync(to, from, n, kind, s));
    return 0;
}

BT_UNUSED static int copy_driver(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    if (kind == cudaMemcpyDeviceToHost)
        OK(cuMemcpyDtoHAsync(to, BT_ADDRESS(from), n, (CUstream)s));
    else
        OK(cuMemcpyHtoDAsync(BT_ADDRESS(to), from, n, (CUstream)s));
    return 0;
}

/* A call that takes both sides for device memory. */
BT_UNUSED static int copy_as_device(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const CUresult rc = cuMemcpyDtoDAsync(BT_ADDRESS(to), BT_ADDRESS(from), n, (CUstream)s);

    if (rc)
        SKIP("this driver does not (%d)", rc);
    return 0;
}

BT_UNUSED static int copy_2d(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    OK(cudaMemcpy2DAsync(to, AUTO_ROW, from, AUTO_ROW, AUTO_ROW, n / AUTO_ROW, kind, s));
    return 0;
}

BT_UNUSED static struct cudaMemcpy3DParms copy_layers(void *to, const void *from, size_t n, enum cudaMemcpyKind kind)
{
    struct cudaMemcpy3DParms p = {.kind = kind};

    p.srcPtr = (struct cudaPitchedPtr){(void *)(uintptr_t)from, AUTO_ROW, AUTO_ROW, 16};
    p.dstPtr = (struct cudaPitchedPtr){to, AUTO_ROW, AUTO_ROW, 16};
    p.extent = (struct cudaExtent){AUTO_ROW, 16, n / AUTO_ROW / 16};
    return p;
}

BT_UNUSED static int copy_3d(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const struct cudaMemcpy3DParms p = copy_layers(to, from, n, kind);

    OK(cudaMemcpy3DAsync(&p, s));
    return 0;
}

/* So do these, which describe the copy by a structure. */
BT_UNUSED static int copy_2d_as_device(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    CUDA_MEMCPY2D copy;
    CUresult rc;

    memset(&copy, 0, sizeof(copy));
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = BT_ADDRESS(from);
    copy.dstDevice = BT_ADDRESS(to);
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = AUTO_ROW;
    copy.Height = n / AUTO_ROW;
    rc = cuMemcpy2DAsync(&copy, (CUstream)s);
    if (rc)
        SKIP("this driver does not (%d)", rc);
    return 0;
}

BT_UNUSED static int copy_3d_as_device(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    CUDA_MEMCPY3D copy;
    CUresult rc;

    memset(&copy, 0, sizeof(copy));
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = BT_ADDRESS(from);
    copy.dstDevice = BT_ADDRESS(to);
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = AUTO_ROW;
    copy.Height = n / AUTO_ROW;
    copy.Depth = 1;
    rc = cuMemcpy3DAsync(&copy, (CUstream)s);
    if (rc)
        SKIP("this driver does not (%d)", rc);
    return 0;
}

/* The runtime's copy between devices, on one device. */
BT_UNUSED static int copy_3d_peer(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    const struct cudaMemcpy3DParms p = copy_layers(to, from, n, kind);
    const struct cudaMemcpy3DPeerParms peer = {.srcPtr = p.srcPtr, .dstPtr = p.dstPtr, .extent = p.extent};
    const cudaError_t rc = cudaMemcpy3DPeerAsync(&peer, s);

    if (rc) {
        cudaGetLastError();
        SKIP("this driver does not (%d)", rc);
    }
    return 0;
}

BT_UNUSED static int copy_batch(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
#if CUDART_VERSION >= 13000
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
    size_t first = 0;

    OK(cudaMemcpyBatchAsync(&to, &from, &n, 1, &attributes, &first, 1, s));
    return 0;
#else
    SKIP("needs CUDA 13");
#endif
}

/* --- nodes of graphs --- */

/* A copy of n bytes, which are one row. */
BT_UNUSED static CUDA_MEMCPY3D copy_row(const void *to, const void *from, size_t n)
{
    CUDA_MEMCPY3D copy;

    memset(&copy, 0, sizeof(copy));
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = BT_ADDRESS(from);
    copy.dstDevice = BT_ADDRESS(to);
    copy.WidthInBytes = n;
    copy.Height = copy.Depth = 1;
    return copy;
}

#if CUDA_VERSION >= 13000
BT_UNUSED static CUDA_MEMCPY3D_BATCH_OP copy_op(const void *to, const void *from, size_t n)
{
    CUDA_MEMCPY3D_BATCH_OP op;

    memset(&op, 0, sizeof(op));
    op.src.type = op.dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    op.src.op.ptr.ptr = BT_ADDRESS(from);
    op.dst.op.ptr.ptr = BT_ADDRESS(to);
    op.extent = (CUextent3D){n, 1, 1};
    op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    return op;
}

/* A batch of one copy. */
BT_UNUSED static int copy_batch_3d(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    CUDA_MEMCPY3D_BATCH_OP op = copy_op(to, from, n);

    OK(cuMemcpy3DBatchAsync(1, &op, 0, (CUstream)s));
    return 0;
}

BT_UNUSED static CUgraphNodeParams node_copy(const void *to, const void *from, size_t n)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof(params));
    params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    cuCtxGetCurrent(&params.memcpy.copyCtx);
    params.memcpy.copyParams = copy_row(to, from, n);
    return params;
}

BT_UNUSED static CUgraphNodeParams node_set(const void *to, int byte, size_t n)
{
    CUgraphNodeParams params;

    memset(&params, 0, sizeof(params));
    params.type = CU_GRAPH_NODE_TYPE_MEMSET;
    params.memset.dst = BT_ADDRESS(to);
    params.memset.value = (unsigned int)byte;
    params.memset.elementSize = 1;
    params.memset.width = n;
    params.memset.height = 1;
    cuCtxGetCurrent(&params.memset.ctx);
    return params;
}
#else
BT_UNUSED static int copy_batch_3d(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
    SKIP("needs CUDA 13");
}
#endif

/* A graph becomes an executable one and ends. */
BT_UNUSED static int graph_ready(CUgraph graph, cudaGraphExec_t *ret_exec)
{
    OK(cudaGraphInstantiate(ret_exec, (cudaGraph_t)graph, 0));
    OK(cuGraphDestroy(graph));
    return 0;
}

#endif
