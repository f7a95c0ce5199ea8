/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.h - finds the segment and the block that own an address. Private to pool/. It owns neither.
 *
 * A two-level table over all 48-bit addresses, one entry for each 2 MiB, shared by all pools of the process, because
 * cudaFree passes an address and nothing else. Its memory is never given back, so readers need no lock and never touch
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

/* Enter a segment. -EINVAL: not aligned; -ENOMEM: no host memory, or an address beyond 48 bits; -EEXIST: part of the
 * range is taken. After an error nothing is entered. */
int map_segment_add(uint64_t addr, size_t size, struct segment *segment);
/* Remove a range that map_segment_add has entered. Its blocks must have been removed before. */
void map_segment_remove(uint64_t addr, size_t size);
/* NULL: the address is in no pool. */
struct segment *map_segment_get(uint64_t addr);

/* As map_segment_get; *ret_block is the block that starts at addr, or NULL. */
struct segment *map_find(uint64_t addr, struct block **ret_block);

/* Set the block that starts at addr, which is in an entered segment; NULL: none. -ENOMEM only if block is not NULL. */
int map_block_set(uint64_t addr, struct block *block);
struct block *map_block_get(uint64_t addr);
/* The last block that starts at addr or before, in the unit of addr. NULL: none. */
struct block *map_block_before(uint64_t addr);

#endif
