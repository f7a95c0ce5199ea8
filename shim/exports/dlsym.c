/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym.c - the C half of our dlsym; see real/dlsym_next.h.
 *
 * It runs inside other code's dlsym calls, the start-up of sanitizer runtimes included, so it is built without
 * instrumentation and allocates no memory, takes no lock and prints nothing.
 */
#include "real/dlsym_next.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/process.h"
#include "real/hooks.h"

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

/* The file name of the object that holds a function; NULL: unknown. From glibc 2.35 on without the loader's lock. */
static const char *file_of(const void *function)
{
#ifdef DLFO_STRUCT_HAS_EH_DBASE
    struct dl_find_object object;
    const char *path = _dl_find_object((void *)function, &object) ? NULL : object.dlfo_link_map->l_name;
#else
    Dl_info info;
    const char *path = dladdr(function, &info) ? info.dli_fname : NULL;
#endif
    const char *slash = path ? strrchr(path, '/') : NULL;

    return slash ? slash + 1 : path;
}

/* True if the function is the driver's. A program may define such names itself, in a stand-in or a wrapper. */
static bool is_drivers(const void *function)
{
    static const char driver[] = "libcuda.so";
    const char *file = function ? file_of(function) : NULL;

    return file && strncmp(file, driver, sizeof(driver) - 1) == 0;
}

static const struct {
    const char *name;
    void *function;
} guards[] = {
#define RUNTIME(symbol, parameters)
#define DRIVER(symbol, parameters)
#define GUARD(symbol, parameters) {#symbol, (void *)(symbol)},
#include "hooks.def"
};

/*
 * The function to return instead of calling the real dlsym; NULL: call it. Functions that we pool are never returned: a
 * library that patches the functions it finds would patch ours.
 */
void *cupool_dlsym_filter(void *handle, const char *name)
{
    dlsym_fn *next = next_get();

    if (!name || handle == RTLD_NEXT || handle == RTLD_DEFAULT || name[0] != 'c' || name[1] != 'u')
        return NULL;
    for (unsigned int i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
        if (strcmp(name, guards[i].name) != 0)
            continue;
        /* Only if the real function exists; otherwise the caller gets the real dlsym's NULL and its dlerror. */
        return process_hooks_driver() && is_drivers(next(handle, name)) ? guards[i].function : NULL;
    }
    return NULL;
}

void *dlsym_real(void *handle, const char *name)
{
    return next_get()(handle, name);
}
