/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_shared.c - memory that is not the pool's, and calls after which another process or a network card may look at
 * it, which the context's queue does not order.
 *
 * Each test holds work and frees a block; natively the work is over then. With CUPOOL_FREE=auto it may go on before the
 * call, and has to be over after it; with ordered it never is (auto.h). tests/rows makes every such call; here the
 * process or card that looks is left out.
 */
#include "auto_far.h"

static cudaStream_t s;

/* Is work that was launched before a cudaFree over when that returns? */
static int free_waited(bool *ret_waited, unsigned int us)
{
    cudaError_t result;
    void *x;

    OK(cudaMalloc(&x, 1000));
    TRY(hold_for(s, us));
    OK(cudaFree(x));
    result = cudaStreamQuery(s);
    hold_release();
    OK(cudaStreamSynchronize(s));
    CHECK(result == cudaSuccess || result == cudaErrorNotReady);
    *ret_waited = result == cudaSuccess;
    return 0;
}

static bool is_auto(void)
{
    const char *policy = getenv("CUPOOL_FREE");

    return bt_preloaded() && hold_is_exact() && (!policy || strcmp(policy, "auto") == 0);
}

/* The context is known, and what it owes to begin with is paid. */
static int begin(void)
{
    bool waited;
    void *x;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++) {
        OK(cudaMalloc(&x, 1000));
        OK(cudaFree(x));
    }
    if (!is_auto())
        return 0;
    TRY(free_waited(&waited, 10000000));
    return waited ? BT_FAIL("cudaFree waited before there was a reason") : 0;
}

static int waits(void)
{
    for (int round = 0; round < 2; round++) {
        bool waited;

        TRY(free_waited(&waited, HOLD_US));
        if (!waited)
            return WRONG("round %d: work was under way when cudaFree had returned", round);
    }
    return 0;
}

HAZARD(export_handle)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle;
    int fd;

    TRY(begin());
    OK(cuMemCreate(&handle, 2 * BT_MIB, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    TRY(waits());
    CHECK(close(fd) == 0);
    OK(cuMemRelease(handle));
    return 0;
}

/* Memory of the program that is not the pool's. */
static int pitched(CUdeviceptr *ret_ptr)
{
    size_t pitch;
    void *p;

    TRY(begin());
    OK(cudaMallocPitch(&p, &pitch, 4096, BT_KIB));
    *ret_ptr = BT_ADDRESS(p);
    return 0;
}

HAZARD(ipc_of_pitched)
{
    CUipcMemHandle handle;
    CUdeviceptr p;

    TRY(pitched(&p));
    OK(cuIpcGetMemHandle(&handle, p));
    return waits();
}

HAZARD(dmabuf_of_pitched)
{
    CUdeviceptr p;
    int rc, fd;

    TRY(pitched(&p));
    rc = (int)cuMemGetHandleForAddressRange(&fd, p, 2 * BT_MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    if (rc == CUDA_ERROR_NOT_SUPPORTED)
        SKIP("no dma-buf here");
    OK(rc);
    CHECK(close(fd) == 0);
    return waits();
}

HAZARD(sync_memops_of_pitched)
{
    unsigned int on = 1;
    CUdeviceptr p;

    TRY(pitched(&p));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    return waits();
}

/* --- calls that are no reason --- */

/* A fill of memory that is not the pool's, before the pool has seen the context; of the other device's, by its own
 * stream, while this one's context is current. */
RIGHT(fill_before)
{
    int devices = 0;
    size_t pitch;
    void *p;
    bool waited;

    OK(cudaMallocPitch(&p, &pitch, 4096, BT_KIB));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaMemset2D(p, pitch, 0, 4096, 4));
    OK(cudaDeviceSynchronize());
    OK(cudaGetDeviceCount(&devices));
    if (devices > 1) {
        cudaStream_t far;
        void *q;

        OK(cudaSetDevice(1));
        OK(cudaStreamCreateWithFlags(&far, cudaStreamNonBlocking));
        OK(cudaMallocPitch(&q, &pitch, 4096, BT_KIB));
        OK(cudaSetDevice(0));
        OK(cudaMemsetAsync(q, 0, 4096, far));
        OK(cudaStreamSynchronize(far));
    }
    TRY(begin());
    if (devices < 2 || !is_auto())
        return 0;
    OK(cudaSetDevice(1));
    TRY(begin());
    TRY(free_waited(&waited, 10000000));
    return waited ? BT_FAIL("device 1 waited") : 0;
}

/* A fill of another device's memory is a reason, for both devices. */
HAZARD(fill_far_before)
{
    size_t pitch;
    void *p;

    TRY(far_devices());
    OK(cudaSetDevice(1));
    OK(cudaMallocPitch(&p, &pitch, 4096, BT_KIB));
    OK(cudaSetDevice(0));
    OK(cudaMemset(p, 0, 4096));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    TRY(waits());
    OK(cudaStreamDestroy(s));
    OK(cudaSetDevice(1));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return waits();
}

/* A pool of the device's memory, flags of a context that say nothing of others, access for a part of the own device. */
RIGHT(no_reason)
{
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc own = {.location = {.type = (CUmemLocationType)6},
                                 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUmemPoolProps device_pool = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = prop.location};
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    bool waited;
    CUdeviceptr p;

    TRY(begin());
    if (!is_auto())
        return 0;
    OK(cuMemPoolCreate(&pool, &device_pool));
    OK(cuCtxSetFlags(CU_CTX_SCHED_YIELD));
    OK(cuMemCreate(&handle, 2 * BT_MIB, &prop, 0));
    OK(cuMemAddressReserve(&p, 2 * BT_MIB, 0, 0, 0));
    OK(cuMemMap(p, 2 * BT_MIB, 0, handle, 0));
    OK(cuMemSetAccess(p, 2 * BT_MIB, &own, 1));
    TRY(free_waited(&waited, 10000000));
    return waited ? BT_FAIL("cudaFree waited without a reason") : 0;
}
