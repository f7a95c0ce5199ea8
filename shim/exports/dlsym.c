/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym.c - the filter of the exported dlsym.
 *
 * A statically linked cudart, and every shared one since 11.3, gets at the driver through dlsym(libcuda,
 * "cuGetProcAddress"). The exported dlsym (dlsym_ARCH.S) returns what the filter returns, which answers that call and
 * those for the GUARD rows of hooks.def; for all others it jumps to the real dlsym. It must not call that, because
 * glibc reads the return address to find the object that RTLD_NEXT refers to.
 *
 * It runs inside other code's dlsym calls, the start-up of sanitizer runtimes included, so it is built without
 * instrumentation and allocates no memory, takes no lock and prints nothing.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/process.h"
#include "real/dlsym_next.h"
#include "real/find_object.h"
#include "real/hooks.h"
#include "real/real.h"

/* Called by the assembly. */
void *cupool_dlsym_filter(void *handle, const char *name, const void *caller) __attribute__((visibility("hidden")));

/* True if the file name of the object that holds a function begins with prefix; *ret: that object. From glibc 2.35 on
 * without the loader's lock. */
static bool is_in(const void *function, const char *prefix, struct found_object *ret)
{
    const char *path = find_object(function, ret) ? ret->map->l_name : NULL;
    const char *slash = path ? strrchr(path, '/') : NULL;

    return path && strncmp(slash ? slash + 1 : path, prefix, strlen(prefix)) == 0;
}

/*
 * True if the function is the driver's. A program may define such names itself, in a stand-in or a wrapper. It may also
 * have a second driver in a namespace of its own (dlmopen): our functions would pass its calls to the first one.
 */
static bool is_drivers(const void *function)
{
    struct found_object found;
    Lmid_t namespace;

    return function && is_in(function, "libcuda.so", &found) &&
           (dlinfo((void *)found.map, RTLD_DI_LMID, &namespace) || namespace == LM_ID_BASE);
}

/* UCX's libucm overwrites the first bytes of the functions that it finds, to learn where device memory is. It can do so
 * with the driver's alone: where it fails with one, UCX remembers no registrations and asks about each buffer anew. */
static bool is_patcher(const void *caller)
{
    struct found_object found;

    return is_in(caller, "libucm", &found);
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
void *cupool_dlsym_filter(void *handle, const char *name, const void *caller)
{
    dlsym_fn *next = dlsym_next_get();

    if (!name || handle == RTLD_NEXT || handle == RTLD_DEFAULT || name[0] != 'c' || name[1] != 'u')
        return NULL;
    for (unsigned int i = 0; i < sizeof(guards) / sizeof(guards[0]); i++) {
        if (strcmp(name, guards[i].name) != 0)
            continue;
        /* A cudart that was loaded after the driver was used initialises itself, perhaps. */
        next_fill_runtime(caller);
        /* Only if the real function exists; otherwise the caller gets the real dlsym's NULL and its dlerror. */
        return process_hooks_driver() && is_drivers(next(handle, name)) && !is_patcher(caller) ? guards[i].function
                                                                                               : NULL;
    }
    return NULL;
}
