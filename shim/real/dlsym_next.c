/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym_next.c - see dlsym_next.h.
 *
 * It runs inside other code's dlsym calls, the start-up of sanitizer runtimes included, so it is built without
 * instrumentation and allocates no memory, takes no lock and prints nothing.
 */
#include "real/dlsym_next.h"

#include <dlfcn.h>
#include <stddef.h>

_Atomic(dlsym_fn *) cupool_dlsym_next;

static void *dlsym_missing(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

dlsym_fn *dlsym_next_get(void)
{
    /* The version that dlsym has had since libdl became part of libc, and the first versions on aarch64 and on
     * x86-64. */
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    dlsym_fn *next = atomic_load_explicit(&cupool_dlsym_next, memory_order_acquire);

    if (next)
        return next;
    for (unsigned int i = 0; !next && i < sizeof(versions) / sizeof(versions[0]); i++)
        next = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    /* Another preload behind us may stand in for dlsym too. Its dlsym has no version, so only the real dlsym finds
     * it. */
    if (next && next(RTLD_NEXT, "dlsym"))
        next = (dlsym_fn *)next(RTLD_NEXT, "dlsym");
    if (!next)
        next = dlsym_missing;
    atomic_store_explicit(&cupool_dlsym_next, next, memory_order_release);
    return next;
}

void *dlsym_real(void *handle, const char *name)
{
    return dlsym_next_get()(handle, name);
}
