/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.h - lets one source of a kernel be code for a GPU and code for the host.
 *
 * Here: a kernel is written as a block runs it: parts that each thread does (EACH_THREAD), with SYNC() between
 * parts that read what other threads wrote. On a GPU a part is done by the thread itself. On the host a loop does it
 * for one thread after the other, so a kernel's barriers hold without threads. A value that a thread keeps from part to
 * part is in an array of OWN elements, at [OF(t)].
 *
 * On the host a launch is a host function in the stream. It asks the simulated GPU where device memory lies, which no
 * real GPU can answer: there the program has to be built by nvcc.
 *
 * Not here: for any kernel. No warp functions, no atomics, no return before a SYNC().
 *
 * Threads: launches from any thread.
 */
#ifndef DECODER_TARGET_H
#define DECODER_TARGET_H

#include "kernels.h"

#ifdef __CUDACC__

#define DEVICE         static __device__ __forceinline__
#define KERNEL(name)   static __global__ void __launch_bounds__(THREADS) name##_kernel(struct name a)
#define SHARED         static __shared__ __align__(16)
#define SYNC()         __syncthreads()
#define EACH_THREAD(t) for (int t = (int)threadIdx.x, t##_last = t; t <= t##_last; t++)
#define OWN            1
#define OF(t)          0
#define UNROLL         _Pragma("unroll")
#define block_x        ((int)blockIdx.x)
#define block_y        ((int)blockIdx.y)
#define block_z        ((int)blockIdx.z)
#define blocks_y       ((int)gridDim.y)

#define LAUNCHER(name, after_pointers)                                                                                 \
    extern "C" cudaError_t launch_##name(cudaStream_t stream, struct grid grid, const struct name *args)               \
    {                                                                                                                  \
        name##_kernel<<<dim3(grid.x, grid.y, grid.z), THREADS, 0, stream>>>(*args);                                    \
        return cudaGetLastError();                                                                                     \
    }

#else

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE       static inline
#define KERNEL(name) static void name##_block(struct name a, int block_x, int block_y, int block_z, int blocks_y)
#define SHARED
#define SYNC()         ((void)0)
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a name, which is declared here */
#define EACH_THREAD(t) for (int t = 0; t < THREADS; t++)
#define OWN            THREADS
#define OF(t)          (t)
#define UNROLL
#define rsqrtf(x) (1.0f / sqrtf(x))

struct launch {
    void (*blocks)(const void *args, struct grid grid);
    struct grid grid;
    size_t pointers;
    union {
        void *pointer[24];
        char bytes[24 * sizeof(void *)];
    } args;
};

typedef void *host_address(unsigned long long address, size_t size);

/* The simulated GPU's simgpu_host. libcuda is loaded: cudart, which is linked, has loaded it by now. */
static host_address *host_address_find(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    host_address *found = driver ? (host_address *)dlsym(driver, "simgpu_host") : NULL;

    if (!found) {
        (void)fprintf(
            stderr,
            "decoder: its kernels were compiled for the host, for simulated GPUs; nvcc builds it for real ones\n");
        exit(2);
    }
    return found;
}

/* In the stream. A pointer that leads nowhere is left as it is: the program ends there, as by an illegal access. */
static void CUDART_CB launch_run(void *arg)
{
    struct launch *l = (struct launch *)arg;
    host_address *host = host_address_find();

    for (size_t i = 0; i < l->pointers; i++)
        if (l->args.pointer[i]) {
            void *there = host((unsigned long long)(size_t)l->args.pointer[i], 1);

            if (there)
                l->args.pointer[i] = there;
        }
    l->blocks(l->args.bytes, l->grid);
    free(l);
}

static cudaError_t launch_host(cudaStream_t stream, struct grid grid, const void *args, size_t size, size_t pointers,
                               void (*blocks)(const void *, struct grid))
{
    struct launch *l = (struct launch *)malloc(sizeof(*l));
    cudaError_t error;

    if (!l)
        return cudaErrorMemoryAllocation;
    (void)host_address_find(); /* says so at once, and not on a thread of the driver's */
    l->blocks = blocks;
    l->grid = grid;
    l->pointers = pointers;
    memcpy(l->args.bytes, args, size);
    error = cudaLaunchHostFunc(stream, launch_run, l);
    if (error)
        free(l);
    return error;
}

#define LAUNCHER(name, after_pointers)                                                                                 \
    static void name##_blocks(const void *args, struct grid grid)                                                      \
    {                                                                                                                  \
        for (unsigned z = 0; z < grid.z; z++)                                                                          \
            for (unsigned y = 0; y < grid.y; y++)                                                                      \
                for (unsigned x = 0; x < grid.x; x++)                                                                  \
                    name##_block(*(const struct name *)args, (int)x, (int)y, (int)z, (int)grid.y);                     \
    }                                                                                                                  \
    cudaError_t launch_##name(cudaStream_t stream, struct grid grid, const struct name *args)                          \
    {                                                                                                                  \
        _Static_assert(sizeof(*args) <= sizeof(((struct launch *)0)->args), "a launch has room for " #name);           \
        return launch_host(stream, grid, args, sizeof(*args), offsetof(struct name, after_pointers) / sizeof(void *),  \
                           name##_blocks);                                                                             \
    }

#endif
#endif
