/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpooled.h - counts the memory that the program takes by calls that the pool does not serve, for users who wonder why
 * cupool has no effect. Calls of libraries (NCCL, MPI) for themselves do not count.
 *
 * Threads: every function may be called from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_UNPOOLED_H
#define CUPOOL_SHIM_UNPOOLED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The kinds of calls that take memory past the pool. */
enum unpooled {
    UNPOOLED_CREATE,
    UNPOOLED_ASYNC,
    UNPOOLED_MANAGED,
    UNPOOLED_PITCH,
    UNPOOLED_ARRAY,
    UNPOOLED_KINDS, /* the kind of a call that takes no memory */
};

/* The kind of a function of the driver that is a RETRY row of hooks.def. The compiler evaluates it. */
static inline __attribute__((always_inline)) enum unpooled unpooled_kind(const char *symbol)
{
    if (strncmp(symbol, "cuMemAllocAsync", 15) == 0 || strncmp(symbol, "cuMemAllocFromPoolAsync", 23) == 0)
        return UNPOOLED_ASYNC;
    if (strncmp(symbol, "cuMemAllocPitch", 15) == 0)
        return UNPOOLED_PITCH;
    if (strncmp(symbol, "cuArray", 7) == 0 || strncmp(symbol, "cuMipmappedArray", 16) == 0)
        return UNPOOLED_ARRAY;
    return UNPOOLED_KINDS;
}

/* A call has succeeded. bytes: 0 if unknown. */
void unpooled_took(enum unpooled kind, uint64_t bytes);

#define UNPOOLED_PICK(first, second, ...) ((uint64_t)(uintptr_t)(second))
#define UNPOOLED_SECOND(...)              UNPOOLED_PICK(__VA_ARGS__, 0, 0)

/* The result of a call, which is counted if it takes memory. If its size is an argument, it is the second one. */
#define UNPOOLED(symbol, arguments, call)                                                                              \
    __extension__({                                                                                                    \
        const CUresult called_ = (call);                                                                               \
        if (unpooled_kind(#symbol) != UNPOOLED_KINDS && !called_ && core_watches(CALLER))                              \
            unpooled_took(unpooled_kind(#symbol),                                                                      \
                          unpooled_kind(#symbol) == UNPOOLED_ASYNC ? UNPOOLED_SECOND arguments : 0);                   \
        called_;                                                                                                       \
    })

/* All counts as text, such as "5120.0 MiB by cuMemCreate (512 calls)". False: there are none. */
bool unpooled_text(char *text, size_t len);

#endif
