/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h - the structures that pool/ shares with itself. Private to pool/. */
#ifndef CUPOOL_POOL_INTERNAL_H
#define CUPOOL_POOL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "bins.h"
#include "pool.h"

enum block_state {
    BLOCK_FREE,    /* in a bin */
    BLOCK_LIVE,    /* handed out */
    BLOCK_PENDING, /* freed by the program, not yet ordered: in pool_free's hands, or kept back */
};

/* Descriptors of blocks and segments are recycled but never unmapped: a double free may read one at any time. */
struct block {
    uint64_t addr;
    size_t size;
    size_t requested; /* what was asked for, while live */
    struct segment *segment;
    struct block *prev, *next;     /* neighbours by address, of the same segment */
    struct block *bin_prev, *link; /* a bin's list; link alone: the kept and the spare lists */
    _Atomic int state;             /* LIVE to PENDING without a lock, everything else under the pool's */
};

struct segment {
    uint64_t addr;
    size_t size;
    size_t used; /* bytes of blocks that are not free */
    struct pool *pool;
    struct block *first;
    struct segment *prev, *next; /* the pool's segments */
    size_t skip;                 /* bytes at its start that are never handed out */
    bool shared;                 /* for small blocks */
};

struct pool {
    struct pool_config config;
    struct block *spare; /* guarded by the lock; survives recycling, like the lock itself */
    /*
     * Guards everything below, the lists and sizes of this pool's segments and blocks, and writes to the map at their
     * addresses. block->state alone is also changed without it, from LIVE to PENDING.
     */
    pthread_mutex_t lock;
    pthread_cond_t released; /* releasing has become 0 */
    struct bins shared, large;
    struct segment *segments;
    size_t asked;           /* bytes that the backend is being asked for */
    size_t broken;          /* bytes in large segments that are broken into */
    struct block *kept;     /* PENDING blocks whose order() has not succeeded yet */
    unsigned int releasing; /* threads that are giving segments back right now */
    struct pool_stats stats;
    atomic_bool has_kept; /* kept is not empty; a hint for readers without the lock */
    struct pool *next_retired;
};

static inline bool is_free(const struct block *block)
{
    return block && atomic_load_explicit(&block->state, memory_order_relaxed) == BLOCK_FREE;
}

#endif
