/* SPDX-License-Identifier: Apache-2.0 */
/*
 * callers.c - a program whose libraries call CUDA for themselves: callers LIBRARY...
 *
 * Each library runs in a process of its own, which writes a trace of its own. The library is the other half of this
 * file (-DCALLER_LIBRARY; -DCALLER_RUNTIME: with the runtime's calls for memory): it takes and gives back memory, asks
 * for more than there is, asks the driver about the program's, as MPI does, maps host memory, as NVIDIA's mathematics
 * do, and exports the program's memory, which the program then frees before it takes some again. On stdout is a line
 * for each: PROCESS LIBRARY. test_callers.py finds the result of the calls in the traces.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../program.h"

__attribute__((visibility("default"))) int caller_run(CUdeviceptr program);

#ifdef CALLER_LIBRARY

#define TOO_MUCH ((size_t)1 << 50)

int caller_run(CUdeviceptr program)
{
    CUipcMemHandle handle;
    unsigned int type;
    void *host;
    int fd;

#ifdef CALLER_RUNTIME
    void *own;

    if (cudaMalloc(&own, 100000) || cudaFree(own) || !cudaMalloc(&own, TOO_MUCH))
        return 1;
#else
    CUdeviceptr own;

    if (cuMemAlloc(&own, 100000) || cuMemFree(own) || !cuMemAlloc(&own, TOO_MUCH))
        return 1;
#endif
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, program) ||
        cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP) || cuMemFreeHost(host))
        return 1;
    /* As NCCL does for a network card. Whether there is such a handle does not matter. */
    (void)cuMemGetHandleForAddressRange(&fd, program, 65536, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    return cuIpcGetMemHandle(&handle, program) != CUDA_SUCCESS;
}

#else

/* The program's last call of the runtime before those of the library. */
enum before { MALLOC, HOST_ALLOC, MALLOC_HOST, CALLS };

static int run(const char *path, enum before before)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *own, *host;
    __typeof__(&caller_run) function;

    if (!library || !(function = (__typeof__(&caller_run))dlsym(library, "caller_run")) || cudaMalloc(&own, 100000))
        return 1;
    /* The library's calls are its own, whichever of the program's came before. */
    if ((before == HOST_ALLOC && cudaHostAlloc(&host, 4096, cudaHostAllocPortable)) ||
        (before == MALLOC_HOST && cudaMallocHost(&host, 4096)))
        return 1;
    return function((uintptr_t)own) || cudaFree(own) || cudaMalloc(&own, 100000);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const pid_t child = fork();
        int status;

        if (child == 0)
            return run(argv[i], (enum before)(i % CALLS));
        if (child < 0 || waitpid(child, &status, 0) != child || status) {
            printf("%s: %s\n", argv[i], dlerror());
            return 1;
        }
        printf("%d %s\n", (int)child, argv[i]);
    }
    return 0;
}

#endif
