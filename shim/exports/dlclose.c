/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlclose.c - the exported dlclose: the only way to learn, without the loader's lock, that an object may have been
 * unloaded. It does what the real one does.
 *
 * Locking: none.
 */
#include <dlfcn.h>
#include <stdatomic.h>

#include "exports/export.h"
#include "real/caller.h"
#include "real/dlsym_next.h"

EXPORT int dlclose(void *handle)
{
    static _Atomic(void *) next;
    void *function = atomic_load_explicit(&next, memory_order_relaxed);
    int rc;

    if (!function) {
        function = dlsym_real(RTLD_NEXT, "dlclose");
        atomic_store_explicit(&next, function, memory_order_relaxed);
    }
    if (!function)
        return -1;
    caller_unload_begin();
    rc = ((int (*)(void *))function)(handle);
    caller_unload_end();
    return rc;
}
