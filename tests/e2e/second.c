/* SPDX-License-Identifier: Apache-2.0 */
/*
 * second.c - another vendor's preload: wraps cudaMalloc, cudaFree and malloc, finds the next ones with RTLD_NEXT as
 * such tools do, and says at the end how often each was called.
 *
 * Its malloc uses a static buffer while it looks for the real one, because dlsym may need memory.
 */
#include "../program.h"

#define EXPORT __attribute__((visibility("default")))

static atomic_ulong mallocs, cuda_mallocs, cuda_frees;

EXPORT int cudaMalloc(void **p, size_t n);
EXPORT int cudaFree(void *p);
EXPORT void *malloc(size_t n);

EXPORT int cudaMalloc(void **p, size_t n)
{
    int (*next)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc");

    cuda_mallocs++;
    return next(p, n);
}

EXPORT int cudaFree(void *p)
{
    int (*next)(void *) = (int (*)(void *))dlsym(RTLD_NEXT, "cudaFree");

    cuda_frees++;
    return next(p);
}

EXPORT void *malloc(size_t n)
{
    static void *(*next)(size_t);
    static char early[4096];
    static size_t used;
    static __thread int inside;
    void *p;

    mallocs++;
    if (!next && inside) {
        p = early + used;
        used += (n + 15) / 16 * 16;
        return used <= sizeof(early) ? p : NULL;
    }
    if (!next) {
        inside = 1;
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
        inside = 0;
    }
    return next(n);
}

__attribute__((destructor)) static void report(void)
{
    char line[128];
    int n = snprintf(line, sizeof(line), "second: %lu cudaMalloc, %lu cudaFree, %s malloc\n", cuda_mallocs, cuda_frees,
                     mallocs ? "some" : "no");

    fwrite(line, 1, (size_t)n, stderr);
}
