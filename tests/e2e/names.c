/* SPDX-License-Identifier: Apache-2.0 */
/* names.c - prints where look-ups from a library (nextlib.c), the program and the handles of libcuda and of a library
 * of the program's own (own_driver.c) lead; "names driver OWN" adds the last two, "names namespace" those of a libcuda
 * in a namespace of its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nextlib.h"

/* Called, so that the linker keeps libcudart, which stands behind the library in the order of look-ups. */
int cudaRuntimeGetVersion(int *version);

int main(int argc, char **argv)
{
    static const char *const driver_names[] = {"cuInit",           "cuMemAlloc_v2",       "cuCtxSynchronize",
                                               "nothing",          "cuGetProcAddress_v9", "cuGetProcAddres",
                                               "cuGetProcAddress", "cuGetProcAddress_v2"};
    static const char *const own_names[] = {"cuStreamSynchronize", "cuMemcpyDtoHAsync_v2", "cuCtxDestroy_v2",
                                            "cuGetProcAddress_v2", "cuStreamQuery"};
    int version;
    void *p;

    if (cudaRuntimeGetVersion(&version))
        return 5;
    library_look();
    p = dlsym(RTLD_DEFAULT, "getpid");
    looked_up("program default", "getpid", p);
    p = dlsym(RTLD_DEFAULT, "nothing");
    looked_up("program default", "nothing", p);
    p = dlsym(RTLD_NEXT, "getpid");
    looked_up("program next", "getpid", p);
    if (argc > 1) {
        void *driver = strcmp(argv[1], "namespace") == 0 ? dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)
                                                         : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

        if (!driver)
            return 5;
        for (unsigned int i = 0; i < sizeof(driver_names) / sizeof(driver_names[0]); i++) {
            p = dlsym(driver, driver_names[i]);
            looked_up("program libcuda", driver_names[i], p);
        }
        p = dlsym(RTLD_DEFAULT, "cudaMalloc");
        looked_up("program default", "cudaMalloc", p);
    }
    if (argc > 2) {
        void *own = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);

        if (!own)
            return 5;
        for (unsigned int i = 0; i < sizeof(own_names) / sizeof(own_names[0]); i++) {
            p = dlsym(own, own_names[i]);
            looked_up("program own", own_names[i], p);
        }
    }
    return 0;
}
