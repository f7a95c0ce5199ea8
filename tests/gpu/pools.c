/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pools.c - what the driver does with memory of its own pools, of graphs, of NCCL, and with calls for virtual memory on
 * memory of cudaMalloc: a table of a result, the milliseconds that a call took, and MiB. Natively and preloaded the
 * tables should differ in times alone; the simulated GPU cannot say most of it.
 *
 *     cc -D_GNU_SOURCE -O2 -I/usr/local/cuda/include -o pools tests/gpu/pools.c -lcudart -lcuda -ldl
 *     ./pools >native.txt; LD_PRELOAD=build/shim/libcupool.so ./pools | diff -y native.txt -
 *
 * "busy": beside work of 300 ms on the stream that uses the memory. left: MiB that the pool still holds. NCCL's rows
 * need libnccl.so.2 to be found.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../program.h"

#define SIZE ((size_t)64 << 20)

/* A kernel that computes for so many nanoseconds: no host memory, of which CUPOOL_FREE=auto would have to know. */
static const char spin[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                           ".visible .entry spin(.param .u64 ns)\n{\n"
                           ".reg .u64 %a, %b, %n;\n.reg .pred %p;\n"
                           "ld.param.u64 %n, [ns];\nmov.u64 %a, %globaltimer;\n"
                           "AGAIN:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\n"
                           "setp.lt.u64 %p, %b, %n;\n@%p bra AGAIN;\nret;\n}\n";
static CUfunction kernel;
static cudaStream_t stream;

/* From now on the stream computes for 300 ms, then writes to ptr. */
static void busy(void *ptr)
{
    uint64_t ns = 300000000;
    void *arguments[] = {&ns};

    cudaDeviceSynchronize();
    cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
    cudaMemsetAsync(ptr, 1, SIZE, stream);
}

/* A row: the call's result and time, then what a wait for the device says. */
#define ROW(name, call)                                                                                                \
    do {                                                                                                               \
        const double start_ = now_ms();                                                                                \
        const int result_ = (int)(call);                                                                               \
        const double took_ = now_ms() - start_;                                                                        \
        printf("%-44s %4d %8.0f ms   then %d\n", name, result_, took_, (int)cudaDeviceSynchronize());                  \
        (void)cudaGetLastError();                                                                                      \
    } while (0)

static unsigned long left(cudaMemPool_t pool)
{
    uint64_t bytes = 0;

    cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes);
    return (unsigned long)(bytes >> 20);
}

/* Memory of a pool that keeps what was freed is freed under work; a cudaFree later the pool is trimmed. */
static void pools(void)
{
    const struct cudaMemPoolProps how = {.allocType = cudaMemAllocationTypePinned,
                                         .location.type = cudaMemLocationTypeDevice};
    uint64_t all = UINT64_MAX;
    cudaMemPool_t pool;
    void *ptr, *block, *large;
    size_t free, total;

    cudaMemPoolCreate(&pool, &how);
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all);
    cudaMalloc(&block, 1000);
    cudaMallocFromPoolAsync(&ptr, SIZE, pool, stream);
    busy(ptr);
    cudaFreeAsync(ptr, stream);
    ROW("busy, cudaFree of other memory", cudaFree(block));
    cudaMalloc(&block, 1000);
    cudaMallocFromPoolAsync(&ptr, SIZE, pool, stream);
    busy(ptr);
    cudaFreeAsync(ptr, stream);
    cudaFree(block);
    cudaMemPoolTrimTo(pool, 0);
    printf("%-44s %4lu MiB\n", "left after cudaFree, cudaMemPoolTrimTo", left(pool));
    cudaMallocFromPoolAsync(&ptr, SIZE, pool, stream);
    cudaFreeAsync(ptr, stream);
    cudaStreamSynchronize(stream);
    cudaMemGetInfo(&free, &total);
    ROW("cudaMalloc of more than is left beside a pool", cudaMalloc(&large, free + SIZE / 2));
    printf("%-44s %4lu MiB\n", "left after it", left(pool));
    cudaFree(large);
    cudaMallocFromPoolAsync(&ptr, SIZE, pool, stream);
    busy(ptr);
    ROW("busy, cudaFree of a pool's memory", cudaFree(ptr));
    cudaMallocFromPoolAsync(&ptr, SIZE, pool, stream);
    ROW("cudaMemPoolDestroy with a live block", cudaMemPoolDestroy(pool));
    ROW("cudaFree of that block", cudaFree(ptr));
}

/* Attributes of a graph's memory, and whether its free waits. */
static void graphs(void)
{
    struct cudaMemAllocNodeParams node = {.poolProps.allocType = cudaMemAllocationTypePinned,
                                          .poolProps.location.type = cudaMemLocationTypeDevice,
                                          .bytesize = SIZE};
    cudaGraphNode_t made;
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    CUmemoryPool pool = (CUmemoryPool)(uintptr_t)1;
    int legacy = -1, result;

    cudaGraphCreate(&graph, 0);
    if (cudaGraphAddMemAllocNode(&made, graph, NULL, 0, &node) || cudaGraphInstantiate(&exec, graph, 0)) {
        printf("no memory nodes\n");
        return;
    }
    cudaGraphLaunch(exec, stream);
    result = (int)cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, (CUdeviceptr)(uintptr_t)node.dptr);
    printf("%-44s %4d %s\n", "MEMPOOL_HANDLE of a graph's memory", result, pool ? "a pool" : "none");
    result = (int)cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                        (CUdeviceptr)(uintptr_t)node.dptr);
    printf("%-44s %4d %d\n", "IS_LEGACY_CUDA_IPC_CAPABLE of it", result, legacy);
    busy(node.dptr);
    ROW("busy, cudaFree of a graph's memory", cudaFree(node.dptr));
    ROW("cudaDeviceGraphMemTrim", cudaDeviceGraphMemTrim(0));
    cudaGraphLaunch(exec, stream);
    busy(node.dptr);
    cudaFreeAsync(node.dptr, stream);
    ROW("busy, freed in the stream, cudaDeviceGraphMemTrim", cudaDeviceGraphMemTrim(0));
}

/* Calls for virtual memory on memory of cudaMalloc; the contents must stay. */
static void mapped(void)
{
    const CUmemAccessDesc none = {.location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    const size_t page = (size_t)2 << 20;
    unsigned char byte = 0;
    CUdeviceptr ptr;

    cuMemAlloc(&ptr, page);
    cuMemsetD8(ptr, 7, page);
    ROW("cuMemSetAccess of cudaMalloc's memory", cuMemSetAccess(ptr, page, &none, 1));
    ROW("cuMemUnmap of it", cuMemUnmap(ptr, page));
    ROW("cuMemAddressFree of it", cuMemAddressFree(ptr, page));
    ROW("a copy from it", cuMemcpyDtoH(&byte, ptr, 1));
    printf("%-44s %4d\n", "the byte (7)", byte);
    ROW("cuMemFree of it", cuMemFree(ptr));
}

static void nccl(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW), *own = NULL, *block;
    int (*take)(void **, size_t) = library ? (int (*)(void **, size_t))dlsym(library, "ncclMemAlloc") : NULL;
    int (*give)(void *) = library ? (int (*)(void *))dlsym(library, "ncclMemFree") : NULL;

    if (!take || !give || take(&own, SIZE)) {
        printf("no memory of NCCL's\n");
        return;
    }
    cudaMalloc(&block, 1000);
    busy(own);
    cudaFree(block);
    ROW("busy, cudaFree, ncclMemFree", give(own));
}

int main(void)
{
    CUmodule module;

    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) || cuModuleLoadData(&module, spin) ||
        cuModuleGetFunction(&kernel, module, "spin")) {
        fprintf(stderr, "no stream, or no kernel\n");
        return 1;
    }
    pools();
    graphs();
    mapped();
    nccl(); /* the last: an illegal address (700) ends the context */
    return 0;
}
