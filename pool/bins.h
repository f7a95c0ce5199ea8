/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bins.h - free blocks by size. Private to pool/. It neither splits nor merges blocks; blocks.c does.
 *
 * There are 16 bins for each power of two, found through a bitmap. A search examines a few blocks of the first bins
 * that can hold a fitting one, so it is nearly best fit at constant cost. Its result depends only on the order of
 * insertions and removals, never on addresses: ranks that request the same sizes lay memory out alike.
 *
 * Threads: under the caller's lock (the pool's, or that of the magazine that owns the bins).
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
 * The free block that serves a request of size bytes (a multiple of POOL_GRANULE); NULL: none. It stays in its bin. An
 * idle segment serves requests from POOL_SEGMENT_UNIT on if it is too large by less than that, or is broken if that
 * exposes at most room bytes (see pool->exposed; for large segments fewer). A packed segment serves if that exposes at
 * most room bytes more. all: ignore exposure, and examine every block before returning NULL.
 */
struct block *bins_find(const struct bins *bins, size_t size, size_t room, bool all);

#endif
