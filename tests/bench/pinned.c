/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pinned.c - pairs of cudaMallocHost and cudaFreeHost: pinned THREADS PAIRS [BYTES]...
 *
 * It prints microseconds for a pair, of the slowest thread, for sizes from 4 KiB to 256 MiB or those given, with one
 * block for each thread at a time. Threads begin together, after three pairs each. On a GPU: cc -O2 -o pinned
 * tests/bench/pinned.c -lcudart -lpthread, or tests/gpu/pinned; on the simulated GPU its times say nothing.
 */
#include <cuda_runtime_api.h>

#include "../program.h"

#define THREADS_MAX 64

static size_t size;
static long pairs;
static pthread_barrier_t begin;

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
    (void)pthread_barrier_wait(&begin);
    start = now_us();
    pairs_make(pairs);
    *(double *)ret_us = (now_us() - start) / (double)pairs;
    return NULL;
}

/* The microseconds of the slowest thread, or a negative number. */
static double threads_run(long threads)
{
    pthread_t thread[THREADS_MAX];
    double us[THREADS_MAX], most = 0;

    if (pthread_barrier_init(&begin, NULL, (unsigned int)threads))
        return -1;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, thread_main, &us[i]))
            return -1;
    for (long i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        most = us[i] > most ? us[i] : most;
    }
    (void)pthread_barrier_destroy(&begin);
    return most;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {4096, 65536, 1 << 20, 64 << 20, 256 << 20};
    const int count = argc > 3 ? argc - 3 : (int)(sizeof(sizes) / sizeof(sizes[0]));
    const long threads = argc >= 3 ? atol(argv[1]) : 0;

    pairs = argc >= 3 ? atol(argv[2]) : 0;
    if (threads < 1 || threads > THREADS_MAX || pairs < 1) {
        fprintf(stderr, "usage: pinned THREADS PAIRS [BYTES]...\n");
        return 2;
    }
    for (int k = 0; k < count; k++) {
        double us;

        size = argc > 3 ? (size_t)atoll(argv[3 + k]) : sizes[k];
        us = threads_run(threads);
        if (us < 0)
            return 3;
        printf("%zu KiB: %.2f us\n", size >> 10, us);
        (void)fflush(stdout);
    }
    return 0;
}
