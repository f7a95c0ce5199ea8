/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h - frees are ordered, and then published: the blocks may be handed out again. See publish.c. Private to
 * pool/. It does not decide whether a free is ordered or deferred; pool.c does.
 *
 * Ownership: a block passed in belongs to the caller, PENDING, until the call; then to its segment.
 *
 * Locking: no lock is held by the caller. Errors: those of order() (see pool_order_ops); -EBUSY: not now.
 */
#ifndef CUPOOL_POOL_PUBLISH_H
#define CUPOOL_POOL_PUBLISH_H
#include "pool_state.h"

/* Order, then publish block (NULL: none) and the deferred blocks. After an error see pool_free for the fate of block;
 * the others stay deferred. */
int order_and_publish(struct pool *pool, struct block *block, enum pool_order_how how);
/* The program's PENDING block has been ordered, or rc says why not: cache it, defer it, or restore it. */
void block_publish(struct pool *pool, struct block *block, int rc);
/* pool_free_later has deferred a block; the pool is destroyed. */
void later_set(struct pool *pool);
void later_clear(struct pool *pool);

#endif
