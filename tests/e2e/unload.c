/* SPDX-License-Identifier: Apache-2.0 */
/* unload.c - libraries (copies of loaded.c) that take each other's place: each in turn is loaded, allocates and is
 * unloaded, and prints how many of its requests reached the driver. Exit code 77: they do not come to the same
 * address. */
#include <cuda_runtime_api.h>

#include "../program.h"
#include "simgpu.h"

#define REQUESTS 20

int main(int argc, char **argv)
{
    int (*allocate)(void **p, size_t n), (*first)(void **p, size_t n) = NULL;
    unsigned long before;
    void *p, *library;

    if (cudaMalloc(&p, 1000) || cudaFree(p))
        return 3;
    for (int i = 1; i < argc; i++) {
        library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            return 5;
        *(void **)&allocate = dlsym(library, "loaded_allocate");
        first = first ? first : allocate;
        if (allocate != first)
            return 77;
        before = simgpu_count("cuMemAlloc");
        for (int n = 0; n < REQUESTS; n++)
            if (allocate(&p, 1000))
                return 3;
        printf("%s %lu\n", strrchr(argv[i], '/') + 1, simgpu_count("cuMemAlloc") - before);
        if (dlclose(library))
            return 5;
        library = dlopen(argv[i], RTLD_NOW | RTLD_NOLOAD);
        if (library)
            return 77; /* it stays */
    }
    return 0;
}
