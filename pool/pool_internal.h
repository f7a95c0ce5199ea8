/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h - the structures that pool/ shares with itself. Private to pool/. */
#ifndef CUPOOL_POOL_INTERNAL_H
#define CUPOOL_POOL_INTERNAL_H

#include <stdatomic.h>
#include <stdint.h>

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

#endif
