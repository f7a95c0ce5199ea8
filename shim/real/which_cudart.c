/* SPDX-License-Identifier: Apache-2.0 */
/*
 * which_cudart.c - which libcudart an object calls, where a process has several; see real_find_for in real.h.
 *
 * Locking: none; the answer of several_cudarts is cached in an atomic word.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "real/dlsym_next.h"
#include "real/loaded.h"
#include "real/real_internal.h"

/* Counts the loaded libcudart; stops at two. */
static int count_cudart(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(int *)arg += info->dlpi_name && cudart_is(info->dlpi_name);
    return *(int *)arg > 1;
}

/* The number of objects loaded and unloaded so far. */
static int read_changes(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(uint64_t *)arg = info->dlpi_adds + info->dlpi_subs;
    return 1;
}

static bool several_cudarts(void)
{
    static _Atomic(uint64_t) seen;
    uint64_t now = 0, known = atomic_load_explicit(&seen, memory_order_relaxed);
    int count = 0;

    /* The lowest bit of `seen` is the last answer, valid while no object has been loaded or unloaded since. */
    dl_iterate_phdr(read_changes, &now);
    if (known >> 1 != now) {
        dl_iterate_phdr(count_cudart, &count);
        known = now << 1 | (count > 1);
        atomic_store_explicit(&seen, known, memory_order_relaxed);
    }
    return known & 1;
}

/* The name of the libcudart that the object around address was linked to; NULL: none. */
static const char *cudart_of(const void *address)
{
    const char *strings = NULL;
    struct link_map *map;
    Dl_info info;

    if (!dladdr1(address, &info, (void **)&map, RTLD_DL_LINKMAP))
        return NULL;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB)
            strings = (const char *)d->d_un.d_ptr;
    for (const ElfW(Dyn) *d = map->l_ld; strings && d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_NEEDED && cudart_is(strings + d->d_un.d_val))
            return strings + d->d_un.d_val;
    return NULL;
}

void *real_find_for(enum real_symbol symbol, const void *caller)
{
    void *const first = real_find(symbol);
    void *handle, *function = NULL;
    const char *name;
    Dl_info info;

    /* If the next definition is not libcudart's, another preload stands between us and libcudart, and it decides. */
    if (!several_cudarts() || !dladdr(first, &info) || !info.dli_fname || !cudart_is(info.dli_fname))
        return first;
    name = cudart_of(caller);
    handle = name ? loaded_handle(name) : NULL;
    if (handle)
        function = dlsym_real(handle, real_hooks[symbol].name);
    return function ? function : first;
}
