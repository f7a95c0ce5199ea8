/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - from an address to the segment and the block that own it. Private to pool/.
 *
 * A two-level table over all 48-bit addresses, one entry for each 2 MiB, shared by all pools of the process: cudaFree
 * names an address and nothing else. Its memory is never given back, so readers need no lock and can never touch
 * unmapped memory.
 *
 * Threads: readers are lock-free. The writer of an address range is the pool that owns it, under its lock.
 */
#ifndef CUPOOL_POOL_MAP_H
#define CUPOOL_POOL_MAP_H

#include <stddef.h>
#include <stdint.h>

struct segment;
struct block;

/* Enter a segment. -ENOMEM: no host memory, or addresses that the table cannot hold; -EEXIST: part of it is taken. */
int map_segment_add(uint64_t addr, size_t size, struct segment *segment);
void map_segment_remove(uint64_t addr, size_t size);
/* NULL: the address is in no pool. */
struct segment *map_segment_get(uint64_t addr);

/* The same, and which block starts at addr, NULL: none. */
struct segment *map_find(uint64_t addr, struct block **ret_block);

/* Note which block starts at addr, which lies in an entered segment; NULL: none does. -ENOMEM only if block is not
 * NULL. */
int map_block_set(uint64_t addr, struct block *block);
struct block *map_block_get(uint64_t addr);

#endif
