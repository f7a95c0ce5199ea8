/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.c - see caller.h.
 *
 * Locking: none; the cache is made of atomic words.
 */
#include "real/caller.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "real/object.h"

/* Prefixes of file names. */
static const struct {
    const char *prefix;
    enum caller caller;
} names[] = {
    {"libnccl", CALLER_INSIDE},       {"libnvshmem", CALLER_INSIDE}, {"nvshmem", CALLER_INSIDE},
    {"libcufile", CALLER_INSIDE},     {"libcupti", CALLER_INSIDE},   {"libucm", CALLER_TRANSFER},
    {"libucs", CALLER_TRANSFER},      {"libucp", CALLER_TRANSFER},   {"libuct", CALLER_TRANSFER},
    {"libucc", CALLER_TRANSFER},      {"libmpi", CALLER_TRANSFER},   {"libpmpi", CALLER_TRANSFER},
    {"libopen-pal", CALLER_TRANSFER}, {"mca_", CALLER_TRANSFER},     {"libfabric", CALLER_TRANSFER},
    {"libhcoll", CALLER_TRANSFER},    {"libyaksa", CALLER_TRANSFER}, {"libgdrapi", CALLER_TRANSFER},
    {"libcublas", CALLER_MATH},       {"libcudnn", CALLER_MATH},     {"libcusolver", CALLER_MATH},
    {"libcusparse", CALLER_MATH},     {"libcufft", CALLER_MATH},     {"libcurand", CALLER_MATH},
    {"libcutensor", CALLER_MATH},
};

/*
 * A lookup takes a microsecond and programs allocate from few places, so verdicts are cached by return address. An
 * entry holds the address, the verdict, and the generation, which every dlclose changes, because another library may be
 * loaded at the address.
 */
#define ENTRIES          1024
#define VERDICT_SHIFT    48 /* user addresses have no more bits than this */
#define VERDICT_MASK     ((uint64_t)3 << VERDICT_SHIFT)
#define GENERATION_SHIFT 50
static _Atomic(uint64_t) verdicts[ENTRIES];
static _Atomic(uint64_t) generation; /* in the bits that it has in an entry */
static atomic_uint unloading;        /* calls of dlclose under way, during which nothing is cached */

static __thread unsigned int own_unloads __attribute__((tls_model("initial-exec"))); /* those of this thread */

/* The class of an object by its file name. */
static enum caller caller_of_name(const char *path)
{
    const char *name = strrchr(path, '/');

    name = name ? name + 1 : path;
    for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(name, names[i].prefix, strlen(names[i].prefix)) == 0)
            return names[i].caller;
    return CALLER_PROGRAM;
}

/* Classifies by the name of the object that holds address. */
static enum caller look_up(const void *address)
{
    struct object object;

    return object_of(address, &object) ? caller_of_name(object.path) : CALLER_PROGRAM;
}

enum caller caller_of(const void *address)
{
    const uint64_t key = (uint64_t)(uintptr_t)address;
    const uint64_t now = atomic_load_explicit(&generation, memory_order_acquire);
    _Atomic(uint64_t) *entry = &verdicts[hash_of(key) >> 54];
    const uint64_t seen = atomic_load_explicit(entry, memory_order_relaxed);
    enum caller verdict;

    if ((seen & ~VERDICT_MASK) == (key | now))
        return (enum caller)((seen & VERDICT_MASK) >> VERDICT_SHIFT);
    verdict = look_up(address);
    if (!atomic_load(&unloading) && atomic_load(&generation) == now)
        atomic_store_explicit(entry, key | now | (uint64_t)verdict << VERDICT_SHIFT, memory_order_relaxed);
    return verdict;
}

/* Invalidate the cache. */
static void generation_change(void)
{
    /* The generation has wrapped around, so old entries could match again. */
    if (atomic_fetch_add(&generation, (uint64_t)1 << GENERATION_SHIFT) >> GENERATION_SHIFT ==
        UINT64_MAX >> GENERATION_SHIFT)
        for (unsigned int i = 0; i < ENTRIES; i++)
            atomic_store_explicit(&verdicts[i], 0, memory_order_relaxed);
}

void caller_unload_begin(void)
{
    own_unloads++;
    atomic_fetch_add(&unloading, 1);
    generation_change();
}

void caller_unload_end(void)
{
    generation_change();
    atomic_fetch_sub(&unloading, 1);
    own_unloads--;
}

bool caller_unloads(void)
{
    return own_unloads != 0;
}

void caller_name(const void *address, char *buf, size_t len)
{
    struct object object;
    const char *slash;

    if (!object_of(address, &object)) {
        snprintf(buf, len, "%p", address);
        return;
    }
    if (!*object.path) /* the loader has no name for the program itself */
        object.path = program_invocation_name;
    slash = strrchr(object.path, '/');
    snprintf(buf, len, "%s+%#zx%s%s%s", slash ? slash + 1 : object.path, (size_t)((uintptr_t)address - object.bias),
             object.symbol ? " (" : "", object.symbol ? object.symbol : "", object.symbol ? ")" : "");
}
