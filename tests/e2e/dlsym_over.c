/* SPDX-License-Identifier: Apache-2.0 */
/* dlsym_over.c - another vendor's preload that overrides dlsym itself, passes on, and says at the end if it was asked.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_ulong calls;

__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name)
{
    static void *(*next)(void *, const char *);
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};

    calls++;
    for (int i = 0; !next && i < 3; i++)
        next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    return next ? next(handle, name) : NULL;
}

__attribute__((destructor)) static void report(void)
{
    fprintf(stderr, "dlsym_over: %s\n", calls ? "asked" : "not asked");
}
