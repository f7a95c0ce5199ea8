/* SPDX-License-Identifier: Apache-2.0 */
/*
 * next.c - the next definition of each hook of the runtime and the driver; see real.h.
 *
 * Locking: none; what was found is atomic, and only grows.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/log.h"
#include "real/caller.h"
#include "real/dlsym_next.h"
#include "real/loaded.h"
#include "real/real_internal.h"

const struct real_hook real_hooks[REAL_COUNT] = {
#define RUNTIME(symbol, parameters) {#symbol, false},
#define DRIVER(symbol, parameters)  {#symbol, true},
#include "hooks.def"
};

static _Atomic(void *) next[REAL_COUNT];

static CUresult missing_driver(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static cudaError_t missing_runtime(void)
{
    return cudaErrorSharedObjectSymbolNotFound;
}

bool real_is_loaded(const char *name)
{
    return loaded_path(name) != NULL;
}

/* The next definition of a hook; NULL: none. */
static void *look_for(enum real_symbol symbol)
{
    const struct real_hook *hook = &real_hooks[symbol];
    void *function = dlsym_real(RTLD_NEXT, hook->name), *handle = NULL;
    const char *path;

    if (!function && hook->driver) {
        handle = loaded_handle("libcuda.so.1");
    } else if (!function) {
        path = cudart_path();
        handle = path ? loaded_handle(path) : NULL;
    }
    if (handle)
        function = dlsym_real(handle, hook->name);
    /* Never one of our own functions, should the search lead back to us. */
    if (!function || loaded_object(function) == loaded_object(next))
        return NULL;
    /* A cudart that is called by a destructor of what was linked to it goes with that. */
    if (!hook->driver && caller_unloads())
        return function;
    loaded_keep(function);
    atomic_store_explicit(&next[symbol], function, memory_order_release);
    return function;
}

/* Find all functions while CUDA initialises itself, which takes the loader's locks as well: a search in a later request
 * might wait for a constructor that waits for that request. */
void next_fill(void)
{
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        if (!atomic_load_explicit(&next[i], memory_order_relaxed))
            look_for(i);
}

void next_fill_or(void *const *others)
{
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        if (!real_hooks[i].driver && !atomic_load_explicit(&next[i], memory_order_relaxed) && !look_for(i) && others)
            atomic_store_explicit(&next[i], others[i], memory_order_release);
}

void *next_get(enum real_symbol symbol)
{
    void *function = atomic_load_explicit(&next[symbol], memory_order_acquire);

    return function ? function : look_for(symbol);
}

void *real_find(enum real_symbol symbol)
{
    void *function = next_get(symbol);

    if (function)
        return function;
    /* Not cached: the library may be loaded later. */
    log_write(LOG_ERROR, "%s was called, but nothing that is loaded defines it", real_hooks[symbol].name);
    return real_hooks[symbol].driver ? (void *)missing_driver : (void *)missing_runtime;
}
