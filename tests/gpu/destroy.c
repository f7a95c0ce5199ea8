/* SPDX-License-Identifier: Apache-2.0 */
/*
 * destroy.c - whether a call that destroys something waits for the work that uses it, what captures over two devices
 * allow, and who holds the primary context: a table of a result, the milliseconds that a call took, and what a wait for
 * the device says then. The simulated GPU cannot say it.
 *
 *     cc -D_GNU_SOURCE -O2 -I/usr/local/cuda/include -o destroy tests/gpu/destroy.c -lcudart -lcuda
 *     ./destroy; LD_PRELOAD=build/shim/libcupool.so ./destroy
 *
 * Natively cudaFree waits, so whatever is destroyed after it is unused. With CUPOOL_FREE=auto it does not: a row "after
 * cudaFree" that takes 0 ms preloaded, or ends in an error (700), is a call that auto has to wait in. The first row has
 * to be equal with both. The capture's rows need two devices.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../program.h"

#define SIDE 1024

/* A kernel that computes for so many nanoseconds: no host memory, of which CUPOOL_FREE=auto would have to know. */
static const char spin[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                           ".visible .global .align 4 .u32 mark;\n"
                           ".visible .entry spin(.param .u64 ns)\n{\n"
                           ".reg .u64 %a, %b, %n;\n.reg .u32 %m;\n.reg .pred %p;\n"
                           "ld.param.u64 %n, [ns];\nmov.u64 %a, %globaltimer;\n"
                           "AGAIN:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\n"
                           "setp.lt.u64 %p, %b, %n;\n@%p bra AGAIN;\n"
                           "ld.global.u32 %m, [mark];\nadd.u32 %m, %m, 1;\nst.global.u32 [mark], %m;\nret;\n}\n";
static cudaStream_t stream;

/* A module of its own, whose kernel runs from now on for 300 ms, and then writes to the module's variable. */
static CUmodule busy(void)
{
    uint64_t ns = 300000000;
    void *arguments[] = {&ns};
    CUmodule module = NULL;
    CUfunction kernel = NULL;

    cudaDeviceSynchronize();
    if (cuModuleLoadData(&module, spin) || cuModuleGetFunction(&kernel, module, "spin") ||
        cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL))
        printf("no kernel\n");
    return module;
}

/* A row: the call's result and time, then what a wait for the device says. */
#define ROW(name, call)                                                                                                \
    do {                                                                                                               \
        const double start_ = now_ms();                                                                                \
        const int result_ = (int)(call);                                                                               \
        const double took_ = now_ms() - start_;                                                                        \
        printf("%-52s %4d %8.0f ms   then %d\n", name, result_, took_, (int)cudaDeviceSynchronize());                  \
        (void)cudaGetLastError();                                                                                      \
    } while (0)

static void free_block(int wanted)
{
    void *block = NULL;

    if (wanted && cudaMalloc(&block, 1000) == cudaSuccess)
        cudaFree(block);
}

/* Work that reads or writes it comes behind the kernel. */
static void arrays(int freed)
{
    const struct cudaChannelFormatDesc format = {.x = 8, .f = cudaChannelFormatKindUnsigned};
    cudaArray_t array;
    void *from;

    cudaMalloc(&from, SIDE * SIDE);
    cudaMallocArray(&array, &format, SIDE, SIDE, 0);
    busy();
    cudaMemcpy2DToArrayAsync(array, 0, 0, from, SIDE, SIDE, SIDE, cudaMemcpyDeviceToDevice, stream);
    free_block(freed);
    ROW(freed ? "busy, cudaFree, cudaFreeArray" : "busy, cudaFreeArray", cudaFreeArray(array));
    cudaFree(from);
}

static void modules(int freed)
{
    CUmodule module = busy();

    free_block(freed);
    ROW(freed ? "busy, cudaFree, cuModuleUnload of its kernel" : "busy, cuModuleUnload of its kernel",
        cuModuleUnload(module));
}

static void graphs(int freed)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    void *block;

    cudaMalloc(&block, SIDE);
    cudaDeviceSynchronize();
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    cudaMemsetAsync(block, 1, SIDE, stream);
    cudaStreamEndCapture(stream, &graph);
    if (cudaGraphInstantiate(&exec, graph, 0)) {
        printf("no graph\n");
        return;
    }
    busy();
    cudaGraphLaunch(exec, stream);
    free_block(freed);
    ROW(freed ? "busy, cudaFree, cudaGraphExecDestroy" : "busy, cudaGraphExecDestroy", cudaGraphExecDestroy(exec));
    cudaFree(block);
}

/* May an event draw a stream of another device into a capture, and what does a context event do to it there? */
static void captures(void)
{
    cudaStream_t other;
    cudaEvent_t there, back;
    CUevent own;
    CUcontext context;
    cudaGraph_t graph;
    int devices = 0;

    cudaGetDeviceCount(&devices);
    if (devices < 2) {
        printf("one device\n");
        return;
    }
    cudaSetDevice(1);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&back, cudaEventDisableTiming);
    cuCtxGetCurrent(&context);
    cuEventCreate(&own, CU_EVENT_DISABLE_TIMING);
    cudaSetDevice(0);
    cudaEventCreateWithFlags(&there, cudaEventDisableTiming);
    for (int recorded = 0; recorded < 2; recorded++) {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
        cudaEventRecord(there, stream);
        printf("%-52s %4d\n", "a wait on another device for a captured event",
               (int)cudaStreamWaitEvent(other, there, 0));
        if (recorded)
            printf("%-52s %4d\n", "cuCtxRecordEvent there", (int)cuCtxRecordEvent(context, own));
        cudaEventRecord(back, other);
        cudaStreamWaitEvent(stream, back, 0);
        printf("%-52s %4d\n", "the end of the capture", (int)cudaStreamEndCapture(stream, &graph));
        (void)cudaGetLastError();
    }
}

/* Does the runtime's first call take a reference of a primary context that the driver has made current? */
static void reference(void)
{
    CUcontext context;
    CUdevice device;
    unsigned int flags;
    int active = -1;
    void *block = NULL;

    cuInit(0);
    cuDeviceGet(&device, 0);
    cuDevicePrimaryCtxRetain(&context, device);
    cuCtxPushCurrent(context);
    cudaMalloc(&block, 1000);
    cuDevicePrimaryCtxRelease(device);
    cuDevicePrimaryCtxGetState(device, &flags, &active);
    printf("%-52s %4d\n", "cudaMalloc, last release by the driver: active?", active);
    cuCtxPopCurrent(&context);
    cudaDeviceReset();
    (void)cudaGetLastError();
}

int main(void)
{
    reference();
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
        fprintf(stderr, "no stream\n");
        return 1;
    }
    captures();
    for (int freed = 0; freed < 2; freed++) {
        arrays(freed);
        graphs(freed);
    }
    for (int freed = 1; freed >= 0; freed--) /* the last: an illegal address (700) ends the context */
        modules(freed);
    return 0;
}
