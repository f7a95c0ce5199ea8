/* SPDX-License-Identifier: Apache-2.0 */
/* caller.c - see caller.h. */
#include "caller.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Beginnings of file names: NCCL, UCX, Open MPI, MPICH, NVSHMEM, GPUDirect Storage, CUPTI, libfabric, gdrcopy. */
static const char *const exempt[] = {"libnccl",   "libucm",    "libucs",      "libucp",     "libuct",    "libucc",
                                     "libmpi",    "libmpich",  "libopen-pal", "libnvshmem", "libcufile", "libcupti",
                                     "libfabric", "libgdrapi", "mca_",        "libpmpi",    "nvshmem"};

/*
 * Looking a caller up takes a microsecond, and programs allocate from few places: remember by return address. An entry
 * is the address with the verdict in its top bit, which no user address has. A library that is unloaded and another one
 * loaded in its place could inherit a verdict: its memory would then be pooled, or not, without need.
 */
#define ENTRIES 1024
#define EXEMPT  (1ull << 63)
static _Atomic(uint64_t) verdicts[ENTRIES];

bool caller_name_is_exempt(const char *path)
{
    const char *name = strrchr(path, '/');

    name = name ? name + 1 : path;
    for (unsigned int i = 0; i < sizeof(exempt) / sizeof(exempt[0]); i++)
        if (strncmp(name, exempt[i], strlen(exempt[i])) == 0)
            return true;
    return false;
}

/* Does the object that holds address have an exempt name? */
static bool look_up(const void *address)
{
    Dl_info info;
#ifdef DLFO_STRUCT_HAS_EH_DBASE /* glibc 2.35: without the loader's lock, which a constructor may hold that waits for  \
                                   us */
    struct dl_find_object object;

    if (_dl_find_object((void *)address, &object) == 0)
        return object.dlfo_link_map->l_name && caller_name_is_exempt(object.dlfo_link_map->l_name);
#endif
    return dladdr(address, &info) && info.dli_fname && caller_name_is_exempt(info.dli_fname);
}

bool caller_is_exempt(const void *address)
{
    const uint64_t key = (uint64_t)(uintptr_t)address;
    _Atomic(uint64_t) *entry = &verdicts[(key * 0x9e3779b97f4a7c15u) >> 54];
    const uint64_t seen = atomic_load_explicit(entry, memory_order_relaxed);
    bool verdict;

    if ((seen & ~EXEMPT) == key)
        return (seen & EXEMPT) != 0;
    verdict = look_up(address);
    atomic_store_explicit(entry, key | (verdict ? EXEMPT : 0), memory_order_relaxed);
    return verdict;
}
