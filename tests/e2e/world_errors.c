/* SPDX-License-Identifier: Apache-2.0 */
/* world_errors.c - where errors surface: prints the result of a list of calls, "NAME RESULT LAST", the last being the
 * last error after it. "sticky": after an illegal access, by a fill of memory that was freed in stream order on another
 * stream. "elsewhere": after one, frees by a thread whose current context is another, or that has none. "freed": copies
 * and fills of memory that was given back with cudaFree. */
#include <cuda.h>
#include <cuda_runtime_api.h>

#include "../program.h"

#define SIZE ((size_t)4 << 20)

static atomic_int gate;

static void CUDART_CB gate_wait(void *arg)
{
    const struct timespec nap = {0, 100000};

    for (int i = 0; i < 100000 && !atomic_load(&gate); i++)
        nanosleep(&nap, NULL);
}

static void show(const char *name, cudaError_t rc)
{
    printf("%s %d", name, (int)rc);
    printf(" %d\n", (int)cudaPeekAtLastError());
}

#define SHOW(call) show(#call, call)

static int fault(void)
{
    cudaStream_t one, other;
    void *p;

    if (cudaStreamCreateWithFlags(&one, cudaStreamNonBlocking) ||
        cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) || cudaMallocAsync(&p, SIZE, other) ||
        cudaStreamSynchronize(other) || cudaLaunchHostFunc(one, gate_wait, NULL) || cudaMemsetAsync(p, 1, SIZE, one) ||
        cudaFreeAsync(p, other) || cudaStreamSynchronize(other))
        return 5;
    atomic_store(&gate, 1);
    SHOW(cudaStreamSynchronize(one));
    return 0;
}

static int sticky(void)
{
    size_t free_bytes, total;
    cudaEvent_t event;
    void *before[3], *p = NULL;
    char host[16] = "";

    for (int i = 0; i < 3; i++)
        if (cudaMalloc(&before[i], i ? SIZE : 1000))
            return 5;
    if (cudaEventCreate(&event) || fault())
        return 5;
    SHOW(cudaFree(before[0]));
    SHOW(cudaMalloc(&p, 1000));
    SHOW(cudaMalloc(&p, SIZE));
    SHOW(cudaFree(before[1]));
    SHOW(cudaMemset(before[2], 1, SIZE));
    SHOW(cudaMemcpy(host, before[2], sizeof(host), cudaMemcpyDeviceToHost));
    SHOW(cudaMemcpyAsync(before[2], host, sizeof(host), cudaMemcpyHostToDevice, NULL));
    SHOW(cudaEventRecord(event, NULL));
    SHOW(cudaEventQuery(event));
    SHOW(cudaMemGetInfo(&free_bytes, &total));
    SHOW(cudaMallocAsync(&p, 1000, NULL));
    SHOW(cudaMallocHost(&p, 1000));
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaGetLastError());
    SHOW(cudaFree(NULL));
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaDeviceReset());
    SHOW(cudaGetLastError());
    SHOW(cudaGetLastError());
    SHOW(cudaFree(before[2]));
    SHOW(cudaGetLastError());
    SHOW(cudaMalloc(&p, SIZE));
    SHOW(cudaMemset(p, 7, SIZE));
    SHOW(cudaMemcpy(host, p, sizeof(host), cudaMemcpyDeviceToHost));
    printf("byte %d\n", host[5]);
    SHOW(cudaFree(p));
    SHOW(cudaDeviceSynchronize());
    return 0;
}

static int elsewhere(void)
{
    CUcontext ignored;
    void *before[6];

    for (int i = 0; i < 6; i++)
        if (cudaMalloc(&before[i], i % 2 ? SIZE : 1000))
            return 5;
    if (fault() || cudaGetLastError() != cudaErrorIllegalAddress || cudaSetDevice(1))
        return 5;
    SHOW(cudaFree(before[0]));
    SHOW(cudaFree(before[1]));
    SHOW((cudaError_t)cuMemFree((CUdeviceptr)before[2]));
    SHOW(cudaGetLastError());
    SHOW(cudaDeviceSynchronize());
    if (cuCtxPopCurrent(&ignored))
        return 5;
    SHOW((cudaError_t)cuMemFree((CUdeviceptr)before[3]));
    printf("current %d\n", !cuCtxGetCurrent(&ignored) && ignored);
    SHOW(cudaFree(before[4]));
    return 0;
}

static int freed(void)
{
    void *p, *live;
    char host[16] = "";

    if (cudaMalloc(&p, SIZE) || cudaMalloc(&live, SIZE) || cudaFree(p))
        return 5;
    SHOW(cudaMemset(p, 1, SIZE));
    SHOW(cudaMemcpy(host, p, sizeof(host), cudaMemcpyDeviceToHost));
    SHOW(cudaMemcpy(p, host, sizeof(host), cudaMemcpyHostToDevice));
    SHOW(cudaMemcpyAsync(live, p, SIZE, cudaMemcpyDeviceToDevice, NULL));
    SHOW(cudaGetLastError());
    SHOW(cudaFree(p));
    SHOW(cudaGetLastError());
    SHOW(cudaDeviceSynchronize());
    SHOW(cudaFree(live));
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "sticky") == 0)
        return sticky();
    if (argc == 2 && strcmp(argv[1], "elsewhere") == 0)
        return elsewhere();
    return argc == 2 && strcmp(argv[1], "freed") == 0 ? freed() : 5;
}
