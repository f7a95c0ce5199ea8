/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bins.h - free blocks by size. Private to pool/.
 *
 * 16 bins for each power of two, found through a bitmap. A search looks at a few blocks of the first bins that can hold
 * a fitting one, so it is nearly best fit at constant cost. What it returns depends on the order of insertions and
 * removals alone, never on addresses: ranks that ask for the same lay memory out alike.
 *
 * Threads: the caller's lock (the pool's, or the magazine's whose bins they are).
 */
#ifndef CUPOOL_POOL_BINS_H
#define CUPOOL_POOL_BINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block;

#define BINS_WORDS 10
#define BINS_COUNT (BINS_WORDS * 64)

struct bins {
    struct block *head[BINS_COUNT];
    uint64_t used[BINS_WORDS];
};

/* bins_insert and bins_remove are in pool_internal.h. */

/*
 * The free block to serve size bytes (a multiple of POOL_GRANULE) from, or NULL. It stays in its bin. A segment of
 * which nothing is handed out serves requests from POOL_SEGMENT_UNIT on, if it is less than that too large, or is
 * broken into, if that exposes at most room bytes (see pool->exposed), of large segments less. A packed one serves if
 * that exposes at most room bytes more. all: whatever that exposes, and every block is looked at before the answer is
 * NULL.
 */
struct block *bins_find(const struct bins *bins, size_t size, size_t room, bool all);

#endif
