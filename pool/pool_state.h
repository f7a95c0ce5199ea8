/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_state.h - the state of a pool: the structures that the files of pool/ share, and what guards each member.
 * Private to pool/. It holds no policy: ghosts.h, bound.h, large.h and publish.h do.
 *
 * Ownership: a pool owns its magazines and its segments.
 *
 * Locking: each member says what guards it. Order: the pool's lock, then those of magazines by index, then
 * spares_lock or idle_lock. No errors.
 */
#ifndef CUPOOL_POOL_POOL_STATE_H
#define CUPOOL_POOL_POOL_STATE_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bins.h"
#include "ghosts.h"
#include "lock.h"
#include "pool.h"
#include "segment.h"
#include "sizes.h"

#define MAGAZINES 16u

/* Sums over the blocks of some segments that are not free. May be read without the lock. */
struct books {
    _Atomic size_t live;
    _Atomic size_t idle; /* bytes in segments without such blocks */
};

/* See magazine.c; for its segments, shards.c. */
struct magazine {
    /* Guards the members below; the link, requested and (except LIVE to PENDING) state of the blocks on its lists; the
     * lists, sizes and states of the blocks of its own segments, and the map there. Atomic members may be read without
     * it. */
    struct lock lock;
    struct spares spares; /* survives recycling, like the lock itself */
    atomic_uint visitors; /* threads that hold or want the lock for a moment without using the magazine; a hint */
    atomic_bool used;     /* a thread has used the magazine */
    unsigned int cached_count, deferred_count, deferred_large;
    _Atomic size_t deferred_async; /* a bit for each place of deferred blocks that are marked */
    _Atomic ptrdiff_t handed;      /* bytes handed out here less bytes freed here, since handed_collect */
    _Atomic ptrdiff_t handed_most; /* the maximum of that */
    struct block *deferred;        /* deferred blocks: PENDING and not ordered yet */
    _Atomic size_t deferred_bytes; /* by native_size */
    _Atomic size_t hits, carved, frees, order, deferrals; /* parts of pool_stats; carved are hits, too */
    _Atomic size_t frees_seen;                            /* the value of frees when another thread last checked
                                                             whether the magazine is abandoned */
    /* Cached blocks, not coalesced with their neighbours, the last one first; blocks on one list have one size. */
    _Atomic uint64_t cached_set[LIST_SETS]; /* a bit for each list that is not empty */
    struct block *cached[LISTS];
    struct block *strays; /* cached blocks whose list holds another size */
    unsigned int strays_count;
    bool has_holes;       /* blocks with in_hole may be on the lists of small sizes */
    unsigned int streak;  /* requests since a cached block served one, see magazine_carve */
    size_t hits_at_start; /* the value of hits when that began */
    struct books books;
    struct bins bins;                     /* free blocks in its own segments */
    uint64_t deferred_first[POOL_PLACES]; /* at the places of deferred_async: no deferred block has a smaller `freed` */
} __attribute__((aligned(128)));

struct pool {
    struct magazine magazines[MAGAZINES];
    /* Members that hits and frees read without the lock, apart from those that misses change all the time. */
    struct {
        _Atomic size_t withdrawn;  /* bytes in withdrawn segments without a block handed out; set under the lock */
        _Atomic size_t budget;     /* the deferred-free budget: bytes that may be deferred for batching, less than
                                     budget_max while the pool has to grow meanwhile, and
                                     after the driver has refused */
        _Atomic size_t budget_max; /* the maximum of that */
        _Atomic size_t flush_from; /* the deferred bytes from which on a request asks whether they can be
                                    published */
        _Atomic size_t order;      /* successful order() calls outside a free; a part of pool_stats */
        atomic_uint magazines_used;
        atomic_uint magazine_count; /* no magazine from this index on was ever used; set under the lock */
        atomic_uint deferring;      /* magazines with deferred blocks; changed under their locks */
        atomic_uint ordering;       /* threads that have taken deferred blocks to order them */
        atomic_uint asking;         /* those of them that wait for nothing */
        atomic_uint filling;        /* threads that fill freed blocks, of segments that they have seen in use */
        atomic_uint kind;           /* of new segments; set under the lock */
        atomic_bool frees_fail;     /* the last free could not be ordered; known where blocks are deferred */
        atomic_bool defers;         /* frees are batched: there is a budget, and the context has not failed */
        atomic_bool later;          /* see pool_flush_later; counted in pool_later_count */
        atomic_bool nearly_full;    /* the pool holds nearly all that the device has, see held_add */
    } shown __attribute__((aligned(64)));
    struct pool_config config;
    _Atomic(void *) arg; /* config.arg, for readers that cannot know whether the pool has been recycled */
    /* Locks and descriptors survive recycling. */
    struct lock spares_lock; /* guards spares_common; a leaf */
    struct lock idle_lock;   /* guards the list of idle segments and idle_count, read under all locks as well; a leaf */
    struct spares spares, spares_common;
    /*
     * Guards spares and all members below, the list of segments, the lists and sizes of the blocks of segments that no
     * magazine owns, and writes to the map at their addresses. Only block->state may also change without it, from LIVE
     * to PENDING, and under a magazine's lock. A thread that takes the locks of two magazines holds this lock.
     */
    struct lock lock;
    struct books books;    /* of segments that no magazine owns */
    _Atomic size_t native; /* of these, the bytes that the driver would have in use, see native_size */
    struct bins large;
    struct segment *segments;
    /* Segments that are one free block in a bin, those idle longest first; in any order among those coalesced
     * together. */
    struct segment *idle_first, *idle_last;
    uint64_t idle_count; /* how often a segment became idle */
    struct ghosts ghosts;
    size_t native_peak; /* the maximum of native, without free and deferred blocks, seen when the pool grew */
    size_t used_peak;   /* the most bytes in segments that were not idle, seen when the pool grew */
    size_t growing;     /* bytes that the backend is being asked for */
    /*
     * Segments of more than one block, one of them large, are packed until none of their blocks is handed out. The
     * smallest block that has been in a packed segment could be the only one left, and keep the rest of the segment
     * from going back. exposed is the sum of these rests in bytes; exposed_wholly counts more of large segments, see
     * segment_wholly.
     */
    size_t exposed, exposed_wholly;
    size_t freed;            /* bytes of freed large blocks that left 1 MiB or more of their last 2 MiB unused */
    bool packs_never;        /* see pool_pack_never */
    ptrdiff_t handed;        /* bytes handed out to the program, without the counts still in the magazines */
    size_t leaving;          /* bytes that threads are giving to the backend now */
    unsigned int releasing;  /* number of these threads, with those that wait for memory to arrive */
    unsigned int putting;    /* those that do not wait */
    unsigned int clock;      /* calls of pool_decay */
    bool suspended;          /* see pool_suspend */
    bool changing;           /* suspended segments stay: their memory is on its way */
    struct pool_stats stats; /* without the counts still in the magazines */
    struct pool *next_retired;
};

/* For the holder of the lock to change; other threads read without it. */
static inline size_t size_value(const _Atomic size_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

static inline void size_set(_Atomic size_t *number, size_t to)
{
    atomic_store_explicit(number, to, memory_order_relaxed);
}

/* With the magazine's lock, so no atomic read-modify-write is needed. */
static inline void count_up(_Atomic size_t *number)
{
    atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + 1, memory_order_relaxed);
}

static inline ptrdiff_t balance(const _Atomic ptrdiff_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

/* Add to a counter; the caller holds the lock of its books. */
static inline void book(_Atomic size_t *number, size_t more)
{
    atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + more, memory_order_relaxed);
}

/* The books of a segment, which are guarded by the same lock as its blocks. */
static inline struct books *books_of(struct pool *pool, const struct segment *segment)
{
    return segment->owner ? &segment->owner->books : &pool->books;
}

/* The number of magazines that may hold blocks. */
static inline unsigned int magazine_count(const struct pool *pool)
{
    return atomic_load_explicit(&pool->shown.magazine_count, memory_order_relaxed);
}

#endif
