/* SPDX-License-Identifier: Apache-2.0 */
/*
 * beside_capture.c - what a byte of the driver's memory costs, made and freed, and what two threads that do so cost a
 * third one that captures: first while nothing else small is in use, then beside a byte that stays. And whether
 * cuMemFree of a byte waits for the device. The simulated GPU cannot say it; capture_wait.c is built upon it.
 *
 *     cc -D_GNU_SOURCE -O2 -I/usr/local/cuda/include -o beside_capture tests/gpu/beside_capture.c -lcuda -lpthread
 *     ./beside_capture
 */
#include <cuda.h>

#include "../program.h"

#define PAIRS    300
#define CAPTURES 100
#define LIMIT_MS 8000

static CUcontext context;
static unsigned int *go;
static int stop;

static void relaxed(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    OK(cuCtxSetCurrent(context));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
}

static void pair(void)
{
    CUdeviceptr byte;

    OK(cuMemAlloc(&byte, 1));
    OK(cuMemFree(byte));
}

static void *pairs(void *arg)
{
    relaxed();
    while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE))
        pair();
    return arg;
}

static void *capture(void *arg)
{
    CUgraph graph;

    OK(cuCtxSetCurrent(context));
    OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(*(const CUdeviceptr *)arg, 1, 64, CU_STREAM_PER_THREAD));
    OK(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
    OK(cuGraphDestroy(graph));
    return NULL;
}

static void measure(const char *name, CUdeviceptr large)
{
    const double start = now_ms();
    double begin, took, worst = 0;
    pthread_t two[2], captor;
    int made = 0;

    for (int i = 0; i < PAIRS; i++)
        pair();
    printf("%s: %.1f us a pair", name, (now_ms() - start) * 1000 / PAIRS);
    stop = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(&two[i], NULL, pairs, NULL);
    begin = now_ms();
    for (; made < CAPTURES && now_ms() - begin < LIMIT_MS; made++) {
        took = now_ms();
        pthread_create(&captor, NULL, capture, &large);
        pthread_join(captor, NULL);
        took = now_ms() - took;
        worst = took > worst ? took : worst;
    }
    printf(", %d captures beside two threads: %.3f ms each, at most %.1f\n", made, (now_ms() - begin) / made, worst);
    __atomic_store_n(&stop, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 2; i++)
        pthread_join(two[i], NULL);
}

static void *let_go(void *arg)
{
    nap_ms(50);
    *(volatile unsigned int *)go = 1;
    return arg;
}

int main(void)
{
    CUdeviceptr large, small, byte, word;
    CUdevice device;
    CUstream stream;
    pthread_t later;
    double begin;

    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    relaxed();
    OK(cuMemAlloc(&large, (size_t)4 << 20));
    measure("nothing else small", large);
    OK(cuMemAlloc(&small, 1));
    measure("a byte stays", large);

    OK(cuMemHostAlloc((void **)&go, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&word, go, 0));
    *go = 0;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&byte, 1));
    OK(cuStreamWaitValue32(stream, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    pthread_create(&later, NULL, let_go, NULL);
    begin = now_ms();
    OK(cuMemFree(byte));
    printf("cuMemFree of a byte beside a stream that waits 50 ms: %.1f ms\n", now_ms() - begin);
    pthread_join(later, NULL);
    return 0;
}
