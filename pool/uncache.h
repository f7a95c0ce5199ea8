/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uncache.h - cached blocks go back to the free memory of their segments. Private to pool/. It decides for no request;
 * its callers say which blocks.
 *
 * Locking: each function says which lock its caller holds. No errors.
 */
#ifndef CUPOOL_POOL_UNCACHE_H
#define CUPOOL_POOL_UNCACHE_H
#include "pool_state.h"

/* Coalesce cached blocks that are on no list; with the lock of their segments. */
void coalesce(struct pool *pool, struct block *block);
/* With all locks: coalesce all cached blocks, before the pool grows or free and idle memory is examined. */
void coalesce_all(struct pool *pool);
/* With the pool's lock: add this thread's magazine's counts to the books, and coalesce its large blocks. */
void coalesce_own_large(struct pool *pool);
/* With the pool's lock: coalesce the large blocks in all magazines. */
void coalesce_large(struct pool *pool);

#endif
