/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h - models of other allocators, to compare with.
 *
 * Here: where PyTorch's caching allocator and the driver would put requests, by their documented rules, with
 * default settings and a single stream. Not here: their code. PyTorch's waiting for events, its other settings
 * (expandable segments, garbage collection, limits on splitting) and the driver's own overhead are not in it.
 *
 * Threads: one.
 */
#ifndef CUPOOL_REPLAY_HEAP_H
#define CUPOOL_REPLAY_HEAP_H

#include <stddef.h>
#include <stdint.h>

#include "space.h"

enum heap_rules {
    /* 512 bytes; up to 1 MiB from segments of 2 MiB, under 10 MiB from segments of 20 MiB, else a multiple of 2 MiB;
     * best fit, split if at least 512 bytes (small) or more than 1 MiB (large) remain; kept until out of memory. */
    HEAP_PYTORCH,
    /* Under 2 MiB: 512 bytes apart in shared pages of 2 MiB, best fit; else pages of its own. Goes back with its last
     * block. */
    HEAP_DRIVER,
};

struct heap;

struct heap_stats {
    uint64_t hits, misses, oom, segments_alloc, segments_free;
    uint64_t live, peak_live, held, peak_held; /* bytes: of blocks, of segments */
};

/* NULL: no host memory. The space is the caller's and outlives the heap. */
struct heap *heap_new(enum heap_rules rules, struct space *space);
/* The contents of the space stay. */
void heap_delete(struct heap *heap);

/* -ENOMEM. The block is a name for heap_free. */
int heap_alloc(struct heap *heap, size_t size, uint64_t *ret_block);
void heap_free(struct heap *heap, uint64_t block);

const struct heap_stats *heap_stats_get(const struct heap *heap);
/* Everything is gone, with its context. */
void heap_reset(struct heap *heap);

#endif
