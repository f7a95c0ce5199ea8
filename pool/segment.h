/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.h - the descriptors of segments and blocks, and questions that one descriptor answers. Private to pool/. It
 * changes neither; split_merge.h does.
 *
 * Ownership: descriptors.h makes and recycles descriptors; a block's belongs to its segment, a segment's to its pool.
 *
 * Locking: each member says what guards it. The functions need the lock of the segment's books (see pool_state.h). No
 * errors.
 */
#ifndef CUPOOL_POOL_SEGMENT_H
#define CUPOOL_POOL_SEGMENT_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sizes.h"

struct magazine;

/* The states of a block. */
enum block_state {
    BLOCK_FREE,    /* in a bin */
    BLOCK_LIVE,    /* handed out */
    BLOCK_PENDING, /* freed by the program, not yet ordered: inside pool_free, or deferred */
    BLOCK_CACHED,  /* cached in a magazine: free, but in the books and the map as if handed out */
    BLOCK_SEIZED,  /* handed out, and about to be forgotten together with its segment */
};

/* Descriptors of blocks and segments are recycled but never unmapped, because a double free may read one at any time.
 * Aligned, so that threads with neighbouring blocks share no cache line; the members that a hit uses are in the first
 * one. */
struct block {
    _Atomic int state;   /* LIVE to PENDING without a lock; every other change under the lock of the segment's books */
    unsigned short list; /* see size_class; while the block is not free */
    unsigned short bin;  /* while it is in a bin */
    bool in_hole;        /* a small block in a packed segment; while it is not free */
    uint64_t addr;
    size_t size;
    size_t requested; /* the size requested, while it is not free */
    uint64_t freed;   /* while it is deferred: see pool_free_async; 0: another free */
    struct segment *segment;
    struct block *bin_prev, *link; /* a bin's list; link alone: a magazine's lists, and the list of spares */
    struct block *prev, *next;     /* neighbours by address, in the same segment */
    const void *freed_by;          /* while it is deferred: &magazine_index of the thread that freed it */
} __attribute__((aligned(128)));

/* One allocation of the backend, cut into blocks. */
struct segment {
    uint64_t addr;
    size_t size;
    struct magazine *owner;      /* of a shared segment; NULL: the pool. Changes only under all locks */
    size_t used;                 /* bytes of blocks that are not free */
    size_t cached;               /* of these, bytes in cached blocks; only inside cached_idle */
    _Atomic(struct pool *) pool; /* as is pool->arg */
    struct block *first;
    struct segment *prev, *next; /* the pool's list of segments */
    size_t skip;                 /* bytes at its start that are not handed out; chosen when it is idle */
    unsigned int kind;           /* see pool_kind_set; constant while the segment is in the books */
    bool shared;                 /* for small blocks */
    size_t exposed;              /* see pool->exposed; 0: for one block alone, or shared, or withdrawn */
    size_t exposed_before;       /* while it is suspended: exposed, before that */
    bool suspended;              /* see pool_suspend; set under all locks, as the next one */
    bool serves_again;           /* while it is suspended: nothing else has withdrawn it */
    atomic_bool withdrawn;       /* its free blocks are in no bin nor magazine; see pool_withdraw; set under the lock */
    unsigned int idle_since;     /* pool->clock when its last block was freed */
    struct segment *idle_prev, *idle_next; /* pool->idle_first; under idle_lock, read under all locks as well */
    uint64_t listed;                       /* pool->idle_count when it became idle */
    uint64_t idle_for;                     /* how often segments became idle while this one was idle last */
    size_t got_for;                        /* size of the request for which the pool grew */
};

/* Unused descriptors of blocks. */
struct spares {
    struct block *first;
    unsigned int count;
};

static inline bool is_free(const struct block *block)
{
    return block && atomic_load_explicit(&block->state, memory_order_relaxed) == BLOCK_FREE;
}

/* The tail of a large block: the part of the last 2 MiB of its segment that it leaves. It is free, in no bin, and never
 * handed out. */
static inline bool is_tail(const struct block *block)
{
    return block->prev && !block->segment->shared && !block->segment->exposed;
}

/* True if the block is free or cached: neither handed out nor deferred. */
static inline bool is_unused(const struct block *block)
{
    const int state = atomic_load_explicit(&block->state, memory_order_relaxed);

    return state == BLOCK_FREE || state == BLOCK_CACHED;
}

/* The bytes that a live block of size bytes, the smallest of its segment, keeps from going back. */
static inline size_t segment_rest(const struct segment *segment, size_t size)
{
    return segment->size - native_size(size);
}

/* The bytes by which a block of size bytes would increase segment->exposed. */
static inline size_t segment_exposes(const struct segment *segment, size_t size)
{
    const size_t rest = segment_rest(segment, size);

    return rest > segment->exposed ? rest - segment->exposed : 0;
}

/* A packed segment of more than this many bytes counts, for the device, as if its smallest block were the smallest
 * large one, because such a one may come: when the driver refuses, a hole serves whatever fits. Smaller segments lose
 * less. */
#define EXPOSED_WHOLLY_FROM ((size_t)32 << 20)

/* The part of pool->exposed_wholly of a segment with so many exposed bytes. */
static inline size_t segment_wholly(const struct segment *segment, size_t exposed)
{
    const size_t most = segment->size - POOL_SEGMENT_UNIT;

    return exposed && exposed < most && segment->size > EXPOSED_WHOLLY_FROM ? most : exposed;
}

/* The room of packing: the bytes by which pool->exposed and pool->exposed_wholly may grow. */
struct packing_room {
    size_t bound, device;
};

/* Is there room for what a block of size bytes would expose? */
static inline bool segment_fits(const struct segment *segment, size_t size, const struct packing_room *room)
{
    const size_t before = segment->exposed, more = segment_exposes(segment, size);

    return more <= room->bound &&
           segment_wholly(segment, before + more) - segment_wholly(segment, before) <= room->device;
}

#endif
