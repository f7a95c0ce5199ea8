/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpooled.h - how much the program takes by calls that the pool does not serve, for people who wonder why it does
 * nothing for them. Libraries' own calls (NCCL's, MPI's) do not count.
 *
 * Threads: every function, from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_UNPOOLED_H
#define CUPOOL_SHIM_UNPOOLED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum unpooled {
    UNPOOLED_CREATE,
    UNPOOLED_ASYNC,
    UNPOOLED_MANAGED,
    UNPOOLED_PITCH,
    UNPOOLED_ARRAY,
    UNPOOLED_KINDS, /* of a call that takes no memory */
};

/* Of a function of the driver that hooks.def has as RETRY. The compiler knows the answer. */
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

/* A call has succeeded. bytes: 0 where that is not known. */
void unpooled_took(enum unpooled kind, uint64_t bytes);

#define UNPOOLED_PICK(first, second, ...) ((uint64_t)(uintptr_t)(second))
#define UNPOOLED_SECOND(...)              UNPOOLED_PICK(__VA_ARGS__, 0, 0)

/* The result of a call, which is counted if it takes memory. Where its size is an argument, it is the second one. */
#define UNPOOLED(symbol, arguments, call)                                                                              \
    __extension__({                                                                                                    \
        const CUresult called_ = (call);                                                                               \
        if (unpooled_kind(#symbol) != UNPOOLED_KINDS && !called_ && core_watches(CALLER))                              \
            unpooled_took(unpooled_kind(#symbol),                                                                      \
                          unpooled_kind(#symbol) == UNPOOLED_ASYNC ? UNPOOLED_SECOND arguments : 0);                   \
        called_;                                                                                                       \
    })

/* All of it as text, such as "5120.0 MiB by cuMemCreate (512 calls)"; false: nothing was taken so. */
bool unpooled_text(char *text, size_t len);

#endif
