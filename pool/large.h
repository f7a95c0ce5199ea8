/* SPDX-License-Identifier: Apache-2.0 */
/*
 * large.h - large requests from free memory, and the size of the segment that the pool grows by; see large.c. Private
 * to pool/. It serves small requests only from packed segments, as a last resort; shards.h serves them otherwise.
 *
 * Ownership: an address that a function returns belongs to the caller, as after pool_alloc.
 *
 * Locking: every function needs the pool's lock. Errors: -ENOENT, nothing fits.
 */
#ifndef CUPOOL_POOL_LARGE_H
#define CUPOOL_POOL_LARGE_H
#include "pool_state.h"

/*
 * Take a large block from free memory. refused: the driver has no more memory, so examine every block, but break no
 * idle segment: a whole segment given back serves this request as well, and the driver can serve the next one.
 */
int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);
/* As a last resort of a small request: take free memory in packed segments. */
int block_take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr);
/* The size of a new segment for a block of size bytes; alone: for no second block. */
size_t block_segment_size(const struct pool *pool, size_t size, bool alone);

#endif
