/* SPDX-License-Identifier: Apache-2.0 */
/* world_mem.c - a module for world.c: one way to reach CUDA's allocator, in a shared object of its own. Compiled with
 * API_RUNTIME against a shared or with a static cudart, of CUDA 13 or as of CUDA 12; or with API_DRIVER, where
 * WORLD_OLD makes its context as programs of CUDA 12 do. */
#include "world.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>

#ifdef API_RUNTIME
#include <cuda_runtime_api.h>

static int mem_alloc(void **p, size_t n)
{
    volatile int rc = (int)cudaMalloc(p, n); /* volatile: no tail call; some tests are about who called */

    return rc;
}

static int mem_free(void *p)
{
    volatile int rc = (int)cudaFree(p);

    return rc;
}

static int mem_fill(void *p, int byte, size_t n)
{
    const cudaError_t rc = cudaMemset(p, byte, n);

    return (int)(rc ? rc : cudaDeviceSynchronize());
}

static int mem_read(void *host, void *p, size_t n)
{
    return (int)cudaMemcpy(host, p, n, cudaMemcpyDeviceToHost);
}

static int mem_start(void)
{
    unsigned char byte = 0;
    void *pinned;
    int rc = (int)cudaMallocHost(&pinned, 4096);

    if (rc)
        return rc;
    /* The stand-in's threads, too. */
    rc = (int)cudaMemsetAsync(pinned, 1, 4096, NULL);
    if (!rc)
        rc = mem_read(&byte, pinned, 1);
    cudaFreeHost(pinned);
    return rc ? rc : byte == 1 ? 0 : 999;
}

static int mem_last(void)
{
    return (int)cudaGetLastError();
}

static int mem_device(int ordinal)
{
    return (int)cudaSetDevice(ordinal);
}

static int mem_reset(void)
{
    volatile int rc = (int)cudaDeviceReset();

    return rc;
}

static int mem_graph(void)
{
#ifdef WORLD_12_0
    return (int)cudaErrorNotSupported;
#else
    cudaStream_t stream;
    cudaGraph_t graph = NULL, same;
    /* The first call of this cudart, perhaps; no graph is an error. */
    int rc = (int)cudaStreamBeginCaptureToGraph(cudaStreamLegacy, NULL, NULL, NULL, 0, cudaStreamCaptureModeRelaxed);

    if (rc == cudaErrorSharedObjectSymbolNotFound)
        return rc;
    cudaGetLastError();
    rc = (int)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (!rc)
        rc = (int)cudaGraphCreate(&graph, 0);
    if (!rc)
        rc = (int)cudaStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, cudaStreamCaptureModeRelaxed);
    if (!rc)
        rc = (int)cudaStreamEndCapture(stream, &same);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return rc;
#endif
}

#else
#ifdef WORLD_OLD
#define __CUDA_API_VERSION_INTERNAL /* the old versions' names and prototypes */
#endif
#include <cuda.h>

static int mem_alloc(void **p, size_t n)
{
    CUdeviceptr at = 0;
    const CUresult rc = cuMemAlloc_v2(&at, n);

    *p = (void *)at;
    return (int)rc;
}

static int mem_free(void *p)
{
    volatile int rc = (int)cuMemFree_v2((CUdeviceptr)p);

    return rc;
}

static int mem_fill(void *p, int byte, size_t n)
{
    const CUresult rc = cuMemsetD8_v2((CUdeviceptr)p, (unsigned char)byte, n);

    return (int)(rc ? rc : cuCtxSynchronize());
}

static int mem_read(void *host, void *p, size_t n)
{
    return (int)cuMemcpyDtoH_v2(host, (CUdeviceptr)p, n);
}

static int mem_start(void)
{
    unsigned char byte = 0;
    CUcontext context;
    CUdevice device;
    void *pinned;
    int rc = (int)cuInit(0);

#ifdef WORLD_OLD
    if (!rc)
        rc = (int)cuCtxCreate_v2(&context, 0, 0);
#else
    if (!rc)
        rc = (int)cuDevicePrimaryCtxRetain(&context, 0);
    if (!rc)
        rc = (int)cuCtxSetCurrent(context);
#endif
    if (!rc)
        rc = (int)cuCtxGetDevice(&device);
    if (!rc)
        rc = (int)cuMemAllocHost_v2(&pinned, 4096);
    if (rc)
        return rc;
    /* The stand-in's threads, too. */
    rc = (int)cuMemsetD8Async((CUdeviceptr)pinned, 1, 4096, NULL);
    if (!rc)
        rc = (int)cuMemcpy((CUdeviceptr)&byte, (CUdeviceptr)pinned, 1);
    cuMemFreeHost(pinned);
    return rc ? rc : byte == 1 ? 0 : 999;
}

static int mem_last(void)
{
    return 0;
}

static int mem_device(int ordinal)
{
    return 801;
}

static int mem_reset(void)
{
    return (int)cuDevicePrimaryCtxReset_v2(0);
}

static int mem_graph(void)
{
    return 801;
}

#endif

static char leaves_with;

static void mem_leave(char call)
{
    leaves_with = call;
}

static void *leaves_now(void *arg)
{
    void *p = (void *)1;

    (void)arg;

    if (leaves_with == 'a')
        printf("leaves: alloc %d\n", mem_alloc(&p, (size_t)1 << 60));
    if (leaves_with == 'f')
        printf("leaves: free %d\n", mem_free(p));
    if (leaves_with == 'r')
        printf("leaves: reset %d\n", mem_reset());
    if (leaves_with == 'g')
        printf("leaves: graph %d\n", mem_graph());
    return NULL;
}

__attribute__((destructor)) static void leaves(void)
{
    pthread_t id;

    if (!isupper((unsigned char)leaves_with)) {
        leaves_now(NULL);
        return;
    }
    leaves_with = (char)tolower((unsigned char)leaves_with);
    if (pthread_create(&id, NULL, leaves_now, NULL) == 0)
        pthread_join(id, NULL);
}

__attribute__((visibility("default"))) const struct world_api *world_module(void)
{
    static const struct world_api api = {.alloc = mem_alloc,
                                         .free = mem_free,
                                         .fill = mem_fill,
                                         .read = mem_read,
                                         .start = mem_start,
                                         .last = mem_last,
                                         .device = mem_device,
                                         .reset = mem_reset,
                                         .graph = mem_graph,
                                         .leave = mem_leave};

    return &api;
}
