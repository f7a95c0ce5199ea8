/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app_goes.c - scenarios of nccl_app: the pool's memory goes, or its communicator does, while the other is there.
 *
 * Captures are in nccl_app_captures.c. See nccl_app.h.
 */
#include "nccl_app.h"

#include <cuda.h>

#include "simgpu.h"

/* Memory goes back while a communicator lives, because something larger needs it; the device holds 64 MiB. */
SCENARIO(trim)
{
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 4; i++) {
        at = get(20 * MIB);
        all_gather(r, at, at + MIB);
        ring(r, at, at + MIB);
        CU(cudaFree(at));
        at = get(48 * MIB);
        all_gather(r, at + 40 * MIB, at + MIB);
        CU(cudaFree(at));
    }
    /* More than there is: the native error, and life goes on. */
    get_refused(100 * MIB);
    at = get(20 * MIB);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

struct block {
    int device;
    void *at;
};

static void *block_free(void *arg)
{
    const struct block *block = arg;

    CU(cudaSetDevice(block->device));
    CU(cudaFree(block->at));
    return NULL;
}

/* Freed while the GPU is still at work with it, and then needed for something larger. Another thread frees it: a
 * request waits for the frees of its own thread before any memory goes. */
SCENARIO(busy)
{
    struct block block = {.device = r->rank};
    pthread_t other;
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 4; i++) {
        block.at = at = get(20 * MIB);
        fill(at, r->rank, COUNT);
        for (int j = 0; j < 8; j++)
            NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
        pthread_create(&other, NULL, block_free, &block);
        pthread_join(other, NULL);
        at = get(48 * MIB);
        CU(cudaFree(at));
    }
    comm_end(r);
}

static void *comm_destroy(void *arg)
{
    const struct rank *r = arg;

    CU(cudaSetDevice(r->rank));
    NC(ncclCommDestroy(r->comm));
    return NULL;
}

/* Memory that could not go when it was freed goes in another thread, behind work, when something larger is needed. */
SCENARIO(going)
{
    pthread_t other;
    char *at, *more = get(MIB);
    struct rank second;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        second = *r;
        comm_make(&second, i + 1);
        at = get(20 * MIB);
        all_gather(r, at, at + MIB);
        NC(ncclGroupStart());
        CU(cudaFree(at));
        NC(ncclGroupEnd());
        for (int j = 0; j < 20; j++)
            CU(cudaMemsetAsync(more, j, MIB, r->stream));
        pthread_create(&other, NULL, comm_destroy, &second);
        usleep(10000);
        at = get(48 * MIB);
        pthread_join(other, NULL);
        CU(cudaFree(at));
    }
    comm_end(r);
    CU(cudaFree(more));
}

/* Deregistering takes longer in the other thread than the request that needs the memory, which nothing keeps. */
SCENARIO(slowly_going)
{
    struct rank second = *r;
    pthread_t other;
    char *at;

    comm_make(r, 0);
    comm_make(&second, 1);
    at = get(20 * MIB);
    all_gather(r, at, at + MIB);
    NC(ncclGroupStart());
    CU(cudaFree(at));
    NC(ncclGroupEnd());
    pthread_create(&other, NULL, comm_destroy, &second);
    usleep(100000);
    at = get(48 * MIB);
    pthread_join(other, NULL);
    CU(cudaFree(at));
    comm_end(r);
}

/* As trim, with 96 MiB, of which some may not come back. */
SCENARIO(lose)
{
    static const size_t sizes[] = {20, 22, 60};
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        at = get(sizes[i] * MIB);
        all_gather(r, at, at + MIB);
        CU(cudaFree(at));
    }
    comm_end(r);
}

/* Revoked, and destroyed later; memory that it has used goes back in between. The device has 64 MiB. */
SCENARIO(revoked)
{
    char *at = get(20 * MIB), *other = get(20 * MIB);

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    NC(ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT));
    CU(cudaFree(at));
    CU(cudaFree(other));
    at = get(30 * MIB); /* takes the place of what no communicator has used */
    CU(cudaFree(at));
    NC(ncclCommDestroy(r->comm));
    comm_make(r, 1);
    at = get(58 * MIB);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* It ends beside work that waits for what the host does after that. */
SCENARIO(ends_beside_work)
{
    static atomic_int flag[RANKS_MAX];
    char *at = get(8 * MIB);
    cudaStream_t other;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaLaunchHostFunc(other, on_flag, &flag[r->rank]));
    NC(ncclCommFinalize(r->comm));
    atomic_store(&flag[r->rank], 1);
    CU(cudaStreamSynchronize(other));
    NC(ncclCommDestroy(r->comm));
    comm_make(r, 1);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* The program's own ncclMemAlloc finds the device full of memory that the pool has idle and registered. */
SCENARIO(own_memory)
{
    char *at = get(20 * MIB), *other = get(20 * MIB);
    void *own;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaFree(at));
    CU(cudaFree(other));
    NC(ncclMemAlloc(&own, 50 * MIB));
    all_gather(r, own, (char *)own + MIB);
    if (!ncclMemAlloc(&(void *){NULL}, 50 * MIB))
        FAIL("there is memory twice");
    NC(ncclMemFree(own));
    comm_end(r);
}

/* Most of the device is the pool's when it is reset, and is there again afterwards; blocks, too, that were not freed.
 */
SCENARIO(after_reset)
{
    char *at;

    for (int i = 0; i < 3; i++) {
        CU(cudaFree(get(20 * MIB)));
        get(50 * MIB); /* what is idle goes back for it */
        CU(cudaDeviceReset());
    }
    at = get(50 * MIB);
    CU(cudaStreamCreate(&r->stream));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaFree(at));
    comm_end(r);
}

#if CUDA_VERSION >= 13000
#define CTX_CREATE(context, device) cuCtxCreate(context, NULL, 0, device)
#else
#define CTX_CREATE(context, device) cuCtxCreate(context, 0, device)
#endif

/* Memory of another context goes with that, and has been registered with a communicator that does not. */
SCENARIO(other_context)
{
    char *at = get(8 * MIB), *other;
    CUcontext first, second;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        if (cuCtxGetCurrent(&first) || CTX_CREATE(&second, r->rank))
            FAIL("no second context");
        other = get(8 * MIB);
        if (cuCtxSetCurrent(first))
            FAIL("the first context does not come back");
        all_gather(r, at, at + MIB);
        if (cuCtxDestroy(second))
            FAIL("the second context does not go");
        (void)other;
        other = get(8 * MIB); /* at its addresses, perhaps */
        all_gather(r, other, other + MIB);
    }
    comm_end(r);
}

/* For cuCtxDestroy: which rank's call is refused is not left to chance. */
static pthread_mutex_t destroying = PTHREAD_MUTEX_INITIALIZER;

static void context_destroy(CUcontext context, int refused)
{
    CUresult result;

    pthread_mutex_lock(&destroying);
    if (refused)
        simgpu_refuse("cuCtxDestroy_v2", refused);
    result = cuCtxDestroy(context);
    pthread_mutex_unlock(&destroying);
    if ((int)result != refused)
        FAIL("cuCtxDestroy returns another result than the driver's");
}

/* A context whose end was refused stays, and its memory is registered again when it is used. A primary one's, which the
 * driver never destroys, stays registered. */
SCENARIO(context_stays)
{
    char *at = get(8 * MIB), *other;
    CUcontext first, second;

    comm_make(r, 0);
    if (cuCtxGetCurrent(&first) || CTX_CREATE(&second, r->rank))
        FAIL("no second context");
    other = get(8 * MIB);
    if (cuCtxSetCurrent(first))
        FAIL("the first context does not come back");
    all_gather(r, other, other + MIB);
    context_destroy(second, CUDA_ERROR_INVALID_VALUE);
    all_gather(r, other, other + MIB);
    context_destroy(second, 0);
    all_gather(r, at, at + MIB);
    context_destroy(first, CUDA_ERROR_INVALID_CONTEXT);
    all_gather(r, at, at + MIB);
    comm_end(r);
}

static void *free_block(void *block)
{
    CU(cudaFree(block));
    return NULL;
}

/* Natively cudaFree waits for the work that uses it, and ncclMemFree for nothing. */
static void own_memory_goes(struct rank *r, bool freed_elsewhere)
{
    char *block = get(MIB);
    pthread_t other;
    void *own;

    NC(ncclMemAlloc(&own, 4 * MIB));
    CU(cudaDeviceSynchronize()); /* the first free waits for what came before */
    CU(simgpu_kernel(r->stream, NULL, 50000));
    CU(cudaMemsetAsync(own, 1, 4 * MIB, r->stream));
    if (freed_elsewhere) {
        pthread_create(&other, NULL, free_block, block);
        pthread_join(other, NULL);
    } else {
        CU(cudaFree(block));
    }
    NC(ncclMemFree(own));
    CU(cudaStreamSynchronize(r->stream));
}

SCENARIO(own_memory_under_work)
{
    own_memory_goes(r, /* freed_elsewhere: */ false);
}

SCENARIO(own_memory_under_work_of_all)
{
    own_memory_goes(r, /* freed_elsewhere: */ true);
}
