/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym.c - the C half of our dlsym; see dlsym.h.
 *
 * Runs inside other people's dlsym calls, sanitizer runtimes' start-up included, so it is built without instrumentation
 * and does next to nothing: no memory, no lock, no output.
 */
#include "dlsym.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

#include "core.h"
#include "hooks.h"

typedef void *dlsym_fn(void *, const char *);

static void *dlsym_missing(void *handle, const char *name)
{
    (void)handle;
    (void)name;
    return NULL;
}

/* Read by the assembly. */
#define HIDDEN __attribute__((visibility("hidden")))
extern _Atomic(dlsym_fn *) cupool_dlsym_next HIDDEN;
_Atomic(dlsym_fn *) cupool_dlsym_next;

void *cupool_dlsym_filter(void *handle, const char *name) HIDDEN;

static dlsym_fn *next_get(void)
{
    /* x86-64's first version, aarch64's first version, and the one since libdl became part of libc. */
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    dlsym_fn *next = atomic_load_explicit(&cupool_dlsym_next, memory_order_acquire);

    if (next)
        return next;
    for (unsigned int i = 0; !next && i < sizeof(versions) / sizeof(versions[0]); i++)
        next = (dlsym_fn *)dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    /* Another preload behind us may stand in for dlsym too; it has no version, so only the real one finds it. */
    if (next && next(RTLD_NEXT, "dlsym"))
        next = (dlsym_fn *)next(RTLD_NEXT, "dlsym");
    if (!next)
        next = dlsym_missing;
    atomic_store_explicit(&cupool_dlsym_next, next, memory_order_release);
    return next;
}

/* What to answer instead of asking the real dlsym; NULL: ask it. */
void *cupool_dlsym_filter(void *handle, const char *name)
{
    dlsym_fn *next = next_get();

    if (!name || handle == RTLD_NEXT || handle == RTLD_DEFAULT || strncmp(name, "cuGetProcAddress", 16) != 0)
        return NULL;
    /* Only where there is something to stand in for: otherwise the caller gets the real dlsym's NULL and its dlerror.
     */
    if (strcmp(name, "cuGetProcAddress") == 0 && core_hooks_driver() && next(handle, name))
        return (void *)cuGetProcAddress;
    if (strcmp(name, "cuGetProcAddress_v2") == 0 && core_hooks_driver() && next(handle, name))
        return (void *)cuGetProcAddress_v2;
    return NULL;
}

void *dlsym_real(void *handle, const char *name)
{
    return next_get()(handle, name);
}
