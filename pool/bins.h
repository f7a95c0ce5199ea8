/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bins.h - free blocks by size. Private to pool/. It neither splits nor merges blocks; split_merge.c does.
 *
 * There are 16 bins for each power of two, found through a bitmap. A search examines a few blocks of the first bins
 * that can hold a fitting one, so it is nearly best fit at constant cost. Its result depends only on the order of
 * insertions and removals, never on addresses: ranks that request the same sizes lay memory out alike.
 *
 * Ownership: the bins own no block; a block in them belongs to its segment.
 *
 * Locking: every function under the caller's lock (the pool's, or that of the magazine that owns the bins). No errors.
 */
#ifndef CUPOOL_POOL_BINS_H
#define CUPOOL_POOL_BINS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "segment.h"

#define BINS_WORDS 10
#define BINS_COUNT (BINS_WORDS * 64)

struct bins {
    struct block *head[BINS_COUNT];
    uint64_t used[BINS_WORDS];
};

/*
 * The inline part of bins.h; here because struct block is defined here, and inline because most small requests and
 * frees of random sizes use it. Sizes below 16 granules have a bin each; above, the four bits after the leading one
 * choose among 16.
 */
static inline unsigned int bin_of(size_t size)
{
    const uint64_t granules = size / POOL_GRANULE;
    unsigned int log2, bin;

    if (granules < 16)
        return (unsigned int)granules;
    log2 = 63u - (unsigned int)__builtin_clzll(granules);
    bin = (log2 - 3) * 16 + ((granules >> (log2 - 4)) & 15);
    return bin < BINS_COUNT ? bin : BINS_COUNT - 1;
}

static inline void bins_insert(struct bins *bins, struct block *block)
{
    const unsigned int bin = bin_of(block->size);

    block->bin = (unsigned short)bin;
    block->bin_prev = NULL;
    block->link = bins->head[bin];
    if (block->link)
        block->link->bin_prev = block;
    bins->head[bin] = block;
    bins->used[bin / 64] |= 1ull << (bin % 64);
}

static inline void bins_remove(struct bins *bins, struct block *block)
{
    const unsigned int bin = block->bin;

    if (block->bin_prev)
        block->bin_prev->link = block->link;
    else
        bins->head[bin] = block->link;
    if (block->link)
        block->link->bin_prev = block->bin_prev;
    if (!bins->head[bin])
        bins->used[bin / 64] &= ~(1ull << (bin % 64));
}

/*
 * The free block that serves a request of size bytes (a multiple of POOL_GRANULE); NULL: none. It stays in its bin. An
 * idle segment serves requests from POOL_SEGMENT_UNIT on if it is too large by less than that, or is broken if there
 * is room for what that exposes (see pool->exposed). A packed segment serves if there is room for what that exposes
 * more. room may be NULL for bins of shared segments; in the others every block that is large enough serves then.
 * all: ignore exposure, and examine every block before returning NULL.
 */
struct block *bins_find(const struct bins *bins, size_t size, const struct packing_room *room, bool all);

#endif
