/* SPDX-License-Identifier: Apache-2.0 */
/*
 * withdraw.h - segments that serve no requests any more, and go back once none of their blocks is handed out. Private
 * to pool/. It gives none back; release_some does. pool_withdraw, pool_pack_never and pool_kind_set are in withdraw.c,
 * too.
 *
 * Locking: all locks. No errors.
 */
#ifndef CUPOOL_POOL_WITHDRAW_H
#define CUPOOL_POOL_WITHDRAW_H
#include "pool_state.h"

/* The segment serves no more requests. coalesce_all coalesces blocks that threads cache meanwhile. */
void segment_withdraw(struct pool *pool, struct segment *segment);

#endif
