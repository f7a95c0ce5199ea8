/* SPDX-License-Identifier: Apache-2.0 */
/*
 * which_cudart.c - which libcudart an object calls, where a process has several; see real_find_for in real.h.
 *
 * Nothing that a call of an initialised libcudart needs asks for a lock of the loader (glibc 2.35 and later): the
 * thread may be one that a destructor or a constructor waits for, which holds it. And a child that is forked meanwhile
 * would find the lock of dl_iterate_phdr taken for ever, and hang in its next dlopen.
 *
 * Locking: none; the answer of several_cudarts is cached in an atomic word, and the list of libcudarts only grows.
 */
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "real/caller.h"
#include "real/dlsym_next.h"
#include "real/find_object.h"
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

/* A libcudart that has initialised itself. The list only grows, and they stay loaded. */
struct cudart {
    const char *name; /* its own, by which objects are linked to it */
    struct cudart *next;
    void *functions[REAL_COUNT]; /* NULL: it lacks the function, or the driver has it */
};
static _Atomic(struct cudart *) cudarts;

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

/* The first libcudart's name that an object's dynamic section has behind this tag; NULL: none. */
static const char *name_in(const struct link_map *map, int64_t tag)
{
    const char *strings = NULL;

    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        if (d->d_tag == DT_STRTAB)
            strings = (const char *)d->d_un.d_ptr;
    for (const ElfW(Dyn) *d = map->l_ld; strings && d->d_tag != DT_NULL; d++)
        if (d->d_tag == tag && cudart_is(strings + d->d_un.d_val))
            return strings + d->d_un.d_val;
    return NULL;
}

/* The libcudart that holds an address; NULL: none does. */
static const struct link_map *cudart_at(const void *address)
{
    struct found_object found;

    return find_object(address, &found) && found.map->l_name && cudart_is(found.map->l_name) ? found.map : NULL;
}

static const struct cudart *known_cudart(const char *name)
{
    const struct cudart *cudart = atomic_load_explicit(&cudarts, memory_order_acquire);

    while (cudart && strcmp(cudart->name, name) != 0)
        cudart = cudart->next;
    return cudart;
}

/* Find all functions of the libcudart that holds this address, by symbol. NULL: none does, or it may be unloaded. */
static void *const *cudart_fill(const void *address)
{
    const struct link_map *map = caller_unloads() ? NULL : cudart_at(address);
    const char *name = map ? name_in(map, DT_SONAME) : NULL;
    const struct cudart *known = name ? known_cudart(name) : NULL;
    /* Of two with the same name the loader gives callers the one that was loaded first. */
    struct cudart *cudart = name && !known && loaded_handle(name) == map ? calloc(1, sizeof(*cudart)) : NULL;

    if (!cudart)
        return known ? known->functions : NULL;
    cudart->name = name;
    for (unsigned int i = 0; i < REAL_COUNT; i++)
        cudart->functions[i] = real_hooks[i].driver ? NULL : dlsym_real((void *)map, real_hooks[i].name);
    cudart->next = atomic_load(&cudarts);
    while (!atomic_compare_exchange_weak(&cudarts, &cudart->next, cudart))
        ;
    return cudart->functions;
}

void next_fill_runtime(const void *caller)
{
    if (cudart_path())
        next_fill_or(cudart_fill(caller)); /* older libcudarts lack some functions */
}

/* The name of the libcudart that the object around caller was linked to; NULL: that has none. */
static const char *own_name(const void *caller)
{
    struct found_object found;

    return find_object(caller, &found) ? name_in(found.map, DT_NEEDED) : NULL;
}

/* The function of the libcudart with this name. NULL: it lacks the function, or is not needed to find it. */
static void *function_of(const char *name, enum real_symbol symbol)
{
    const struct cudart *known = known_cudart(name);
    void *handle;

    if (known)
        return known->functions[symbol];
    handle = several_cudarts() ? loaded_handle(name) : NULL;
    return handle ? dlsym_real(handle, real_hooks[symbol].name) : NULL;
}

void *real_find_for(enum real_symbol symbol, const void *caller)
{
    void *const first = next_get(symbol);
    const char *const name = !first || cudart_at(first) ? own_name(caller) : NULL;
    void *const function = name ? function_of(name, symbol) : NULL;

    /* If the next definition is not libcudart's, another preload stands between us and libcudart, and it decides. If
     * there is none, the libcudart that comes first is too old for this function. */
    return function ? function : first ? first : real_find(symbol);
}
