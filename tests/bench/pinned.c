/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.c - pairs of cudaMallocHost and cudaFreeHost: pinned THREADS PAIRS
 *
 * It prints microseconds for a pair, of the slowest thread, for sizes from 4 KiB to 256 MiB, with one block for each
 * thread at a time. On a GPU: cc -O2 -o pinned tests/bench/pinned.c -lcudart -lpthread; on the simulated GPU its times
 * say nothing.
 */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define THREADS_MAX 64

static size_t size;
static long pairs;

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void pairs_make(long n)
{
    void *p;

    for (long i = 0; i < n; i++)
        if (cudaMallocHost(&p, size) || cudaFreeHost(p))
            exit(3);
}

static void *thread_main(void *ret_us)
{
    double start;

    if (cudaSetDevice(0))
        exit(3);
    pairs_make(3);
    start = now_us();
    pairs_make(pairs);
    *(double *)ret_us = (now_us() - start) / (double)pairs;
    return NULL;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4096, 65536, 1 << 20, 64 << 20, 256 << 20};
    const long threads = argc == 3 ? atol(argv[1]) : 0;
    pthread_t thread[THREADS_MAX];
    double us[THREADS_MAX], most;

    pairs = argc == 3 ? atol(argv[2]) : 0;
    if (threads < 1 || threads > THREADS_MAX || pairs < 1) {
        fprintf(stderr, "usage: pinned THREADS PAIRS\n");
        return 2;
    }
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
        size = sizes[k];
        most = 0;
        for (long i = 0; i < threads; i++)
            if (pthread_create(&thread[i], NULL, thread_main, &us[i]))
                return 3;
        for (long i = 0; i < threads; i++) {
            pthread_join(thread[i], NULL);
            most = us[i] > most ? us[i] : most;
        }
        printf("%zu KiB: %.2f us\n", size >> 10, most);
    }
    return 0;
}
