/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unpooled.h - counts the memory that the program takes by calls that the pool does not serve, for users who wonder why
 * cupool has no effect. Calls of libraries (NCCL, MPI) for themselves do not count.
 *
 * Threads: every function may be called from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_REPORT_UNPOOLED_H
#define CUPOOL_SHIM_REPORT_UNPOOLED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The kinds of calls that take memory past the pool. */
enum unpooled {
    UNPOOLED_CREATE,
    UNPOOLED_ASYNC,
    UNPOOLED_MANAGED,
    UNPOOLED_PITCH,
    UNPOOLED_ARRAY,
    UNPOOLED_KINDS, /* the kind of a call that takes no memory */
};

/* A call has succeeded. bytes: 0 if unknown. */
void unpooled_took(enum unpooled kind, uint64_t bytes);

/* All counts as text, such as "5120.0 MiB by cuMemCreate (512 calls)". False: there are none. */
bool unpooled_text(char *text, size_t len);

#endif
