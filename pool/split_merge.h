/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split_merge.h - blocks within segments: split, handed out, merged; see split_merge.c. Private to pool/. It calls no
 * function of the tables, and does not choose the block that serves a request; large.h and shards.h do.
 *
 * Ownership: blocks belong to their segments.
 *
 * Locking: every function needs the lock of the segment's books: its magazine's, or the pool's. segment_enter also
 * needs the pool's. Errors: -ENOMEM, no host memory; nothing has changed then.
 */
#ifndef CUPOOL_POOL_SPLIT_MERGE_H
#define CUPOOL_POOL_SPLIT_MERGE_H
#include <errno.h>

#include "pool_state.h"

/* Put a free block into the bin where requests find it, if they may, and take it out again. */
void block_bin(struct pool *pool, struct block *block);
void block_unbin(struct pool *pool, struct block *block);
/* Hand out size bytes of a free block that is in no bin. -ENOMEM: no host memory; the block is then in its bin
 * again. */
int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested);
/* Hand out size bytes of a free block that bins_find has chosen. NULL, or no host memory: -ENOENT. */
static inline int block_take_found(struct pool *pool, struct block *block, size_t size, size_t requested,
                                   uint64_t *ret_addr)
{
    if (!block)
        return -ENOENT;
    block_unbin(pool, block);
    if (block_hand_out(pool, block, size, requested))
        return -ENOENT;
    *ret_addr = block->addr;
    return 0;
}
/* A block that is used no more becomes free and merges with its free neighbours. */
void block_free(struct pool *pool, struct block *block);
/* Merge block with its next neighbour, which is free. */
void block_merge_next(struct pool *pool, struct block *block);
/* As block_merge_next, for two blocks that are in no bin. */
void block_merge_unbinned(struct pool *pool, struct block *block);
/* With all locks: a segment of several blocks, none in a bin and some handed out, is packed again. */
void segment_expose(struct pool *pool, struct segment *segment, size_t exposed);
/* With the pool's lock and that of the segment's owner: enter memory from the backend as a segment with one free block.
 * -ENOMEM, or an error of map_segment_add; it leaves nothing behind. */
int segment_enter(struct pool *pool, struct segment *segment);

#endif
