/* SPDX-License-Identifier: Apache-2.0 */
/*
 * coalesce.h - cached blocks go back to the free memory of their segments. Private to pool/. It decides for no request;
 * its callers say which blocks.
 *
 * Locking: each function says which lock its caller holds. No errors.
 */
#ifndef CUPOOL_POOL_COALESCE_H
#define CUPOOL_POOL_COALESCE_H
#include "state.h"

/* Coalesce cached blocks that are on no list; with the lock of their segments. */
void join(struct pool *pool, struct block *block);
/* With all locks: coalesce all cached blocks, before the pool grows or free and idle memory is examined. */
void recent_flush(struct pool *pool);
/* With the pool's lock: add this thread's magazine's counts to the books, and coalesce its large blocks. */
void recent_settle(struct pool *pool);
/* With the pool's lock: coalesce the large blocks in all magazines. */
void recent_join_large(struct pool *pool);

#endif
