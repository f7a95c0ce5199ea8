/* SPDX-License-Identifier: Apache-2.0 */
/*
 * release_idle.h - segments go back to the backend; see release_idle.c. Private to pool/. It does not decide when
 * memory is needed; pool.c, bound.c and the callers of pool.h do.
 *
 * Ownership: a segment that has left the books belongs to the caller, who puts it back and retires its descriptor
 * (release_finish does both).
 *
 * Locking: each function says which lock its caller holds. No errors.
 */
#ifndef CUPOOL_POOL_RELEASE_IDLE_H
#define CUPOOL_POOL_RELEASE_IDLE_H
#include "pool_state.h"

/* The longest time, in nanoseconds, that a refused request waits for other threads that are ordering deferred blocks,
 * or wait for memory to arrive; natively it would not wait, and they may be waiting for work that waits for this
 * thread. */
#define OTHERS_WAIT_NS 300000000u
/* The longest time that it waits for others in all, while they do what takes no wait: give segments to the backend, and
 * ask whether work is over. Natively that memory would be free already, but the machine may be too busy to run them.
 * Such a thread may be the caller itself, below a signal handler. */
#define OTHERS_BUSY_NS 10000000000u

/* How long other threads are waited for: until limit, which moves while one of them does what takes no wait, but never
 * beyond last. Times of now_ns(). */
struct patience {
    uint64_t limit, last;
};

/* Selects the idle segments that go back, and how. */
struct release {
    const char *why; /* for the observer */
    unsigned int age;
    bool withdrawn_only, collect;
};

/* With all locks: remove an idle segment from the pool's books; it still counts as held. */
void segment_unlink(struct pool *pool, struct segment *segment);
/* With no lock: give a segment that is not in the books back to the backend. */
void segment_put(struct pool *pool, const struct segment *segment);
/* Give back a list of segments that have left the books, and release all locks. Returns the bytes. */
size_t release_finish(struct pool *pool, struct segment *going, const struct release *what);
/* With no lock: give back segments that serve no requests any more. */
void release_withdrawn(struct pool *pool, const char *why);
void patience_begin(struct patience *ret_patience);
/* With the pool's lock: true if the time has not passed. */
bool patience_lasts(struct pool *pool, struct patience *patience);
/* With no lock: pool_trim, but other threads are waited for once, and only until they have given back size bytes. */
size_t release_for(struct pool *pool, size_t size, const char *why, struct patience *patience);
/* With no lock: pool_trim, waiting for no other thread. Without may_wait, nothing waits for deferred blocks or for
 * memory to arrive. */
size_t release_trim(struct pool *pool, const char *why, bool may_wait);
/* With no lock: give back idle segments alone. Those go first: once deferred blocks are ordered, what goes back waits
 * for the work before them. */
size_t release_idle(struct pool *pool, const char *why);
/* With no lock, after a free: give back withdrawn segments, and, while memory is scarce, all idle ones, and wait until
 * they have arrived, as far as backend->reclaim does. */
void release_some(struct pool *pool);

#endif
