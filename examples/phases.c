/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases.c - a program that knows of cupool: it marks its phases in the trace, hands back between them what the next
 * one has no use for, and prints what the pool held. Without the preload it does the same work and says so.
 *
 *     cc -I/usr/local/cuda/include $(pkg-config --cflags cupool) phases.c -L/usr/local/cuda/lib64 -lcudart -o phases
 *     cupool-run -- ./phases
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "cupool.h"

#define MIB ((size_t)1 << 20)
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_) {                                                                                                  \
            fprintf(stderr, "%s: error %d\n", #call, (int)error_);                                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void phase(const char *name, size_t size, int rounds)
{
    void *p;

    cupool_mark(name); /* nowhere to go before the first request: that is when the trace begins */
    for (int i = 0; i < rounds; i++) {
        CHECK(cudaMalloc(&p, size));
        CHECK(cudaMemset(p, i, size));
        CHECK(cudaFree(p));
    }
}

static void report(const char *when)
{
    struct cupool_stats stats;

    if (cupool_stats_get(CUPOOL_ALL_DEVICES, &stats) == 0)
        printf("%s: %llu requests, %llu without the driver, %llu MiB held\n", when, (unsigned long long)stats.allocs,
               (unsigned long long)stats.hits, (unsigned long long)stats.held / MIB);
}

int main(void)
{
    if (!cupool_enabled())
        printf("cupool is not there\n");
    phase("load", 16 * MIB, 10);
    report("loaded");
    cupool_trim(CUPOOL_ALL_DEVICES); /* no later phase asks for so much at a time */
    phase("train", 2 * MIB, 100);
    report("trained");
    return 0;
}
