/* SPDX-License-Identifier: Apache-2.0 */
/*
 * next.c - a library, linked to libcuda, that asks for the next cuGetProcAddress after itself, and (NEXT_MAIN) the
 * program that uses it. The answer is libcuda's, with our library preloaded or not: whoever says RTLD_NEXT has an
 * order in mind. Exit code 1: it is not.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int next_wrong(void);

#ifdef NEXT_MAIN

int main(void)
{
    return next_wrong() ? 1 : 0;
}

#else

/* Called, so that the linker keeps libcuda. */
int cuDriverGetVersion(int *version);

int next_wrong(void)
{
    /* A call through a volatile pointer cannot become a jump: dlsym sees this library as its caller. */
    void *(*volatile ask)(void *, const char *) = dlsym;
    int wrong = 0, version;

    cuDriverGetVersion(&version);
    for (int v = 1; v <= 2; v++) {
        void *p = ask(RTLD_NEXT, v == 1 ? "cuGetProcAddress" : "cuGetProcAddress_v2");
        Dl_info info;

        if (!p || !dladdr(p, &info) || !strstr(info.dli_fname, "/libcuda.so")) {
            printf("version %d of cuGetProcAddress: %s\n", v, p ? info.dli_fname : "none");
            wrong++;
        }
    }
    return wrong;
}

#endif
