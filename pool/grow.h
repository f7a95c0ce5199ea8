/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grow.h - a pool grows: it asks the backend for a segment, and hands out a block of it. Private to pool/. It does not
 * decide that the pool has to grow; pool.c does.
 *
 * Ownership: *ret_addr belongs to the caller, as after pool_alloc.
 *
 * Locking: no lock is held by the caller. Errors: -ENOMEM, the backend refused; -EAGAIN, over the limit or no host
 * memory, or the backend said "not now".
 */
#ifndef CUPOOL_POOL_GROW_H
#define CUPOOL_POOL_GROW_H
#include "pool_state.h"

/* Get a new segment, just large enough, and hand out a block of it. alone: for no second block. */
int grow(struct pool *pool, size_t size, size_t requested, bool alone, uint64_t *ret_addr);

#endif
