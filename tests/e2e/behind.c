/* SPDX-License-Identifier: Apache-2.0 */
/*
 * behind.c - another vendor's preload that wraps functions of the driver, for a place behind the library's. It passes
 * each call on, and finds the next function in the way that BEHIND names:
 *
 *   next     dlsym(RTLD_NEXT): none where only the runtime has loaded the driver; natively nobody calls it there
 *   handle   dlsym on the driver's handle
 *   proc     cuGetProcAddress_v2
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuMemAlloc_v2(unsigned long long *ptr, size_t size);
EXPORT int cuMemFree_v2(unsigned long long ptr);
EXPORT int cuStreamEndCapture(void *stream, void **graph);

static void *next_of(const char *name, const char *plain)
{
    const char *how = getenv("BEHIND");
    int (*get)(const char *, void **, int, unsigned long long, int *);
    void *driver, *found = NULL;

    if (!how || strcmp(how, "next") == 0)
        return dlsym(RTLD_NEXT, name);
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (strcmp(how, "handle") == 0)
        return dlsym(driver, name);
    get = (int (*)(const char *, void **, int, unsigned long long, int *))dlsym(driver, "cuGetProcAddress_v2");
    return get(plain, &found, 13000, 0, NULL) ? NULL : found;
}

EXPORT int cuMemAlloc_v2(unsigned long long *ptr, size_t size)
{
    return ((int (*)(unsigned long long *, size_t))next_of("cuMemAlloc_v2", "cuMemAlloc"))(ptr, size);
}

EXPORT int cuMemFree_v2(unsigned long long ptr)
{
    return ((int (*)(unsigned long long))next_of("cuMemFree_v2", "cuMemFree"))(ptr);
}

EXPORT int cuStreamEndCapture(void *stream, void **graph)
{
    return ((int (*)(void *, void **))next_of("cuStreamEndCapture", "cuStreamEndCapture"))(stream, graph);
}
