/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bound.h - a pool that grows gives idle segments back, so that it holds no more than it may; see pool_config's
 * excess_min and bound_min. Private to pool/. It asks the backend for nothing; grow.h does.
 *
 * Locking: no lock is held by the caller. No errors.
 */
#ifndef CUPOOL_POOL_BOUND_H
#define CUPOOL_POOL_BOUND_H
#include "pool_state.h"

/* A request for which the pool grows. */
struct growth {
    bool alone;                    /* the segment must be for no second block */
    bool raised;                   /* the pool's peaks have the request in them, though it is not served yet */
    size_t native_peak, used_peak; /* those before */
};

/* Before the pool grows for a request of got_for bytes: give back idle segments beyond the excess that is worth
 * holding. No wait. second: this is the second call for the request. True: the pool would still grow beyond its bound.
 * growth: zeroed before the first call, but for alone, which is set if a segment for two would be beyond the bound. */
bool release_excess(struct pool *pool, size_t got_for, bool second, struct growth *growth);
/* The request is not served: take it out of the peaks again, or no bound would be left after a very large one. */
void bound_refused(struct pool *pool, const struct growth *growth);
/* The pool is at its bound: wait for the memory of this thread's own frees, and count that. */
void bound_wait(struct pool *pool);

#endif
