/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h - the structures that pool/ shares with itself. Private to pool/. */
#ifndef CUPOOL_POOL_INTERNAL_H
#define CUPOOL_POOL_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bins.h"
#include "clock.h"
#include "lock.h"
#include "pool.h"

/*
 * Requests under this share segments. These are of one unit, like the driver's own pages for small requests, so that no
 * small block keeps more from going back than it does natively.
 */
#define LARGE_MIN ((size_t)POOL_SEGMENT_UNIT)
/* No device has this much; the backend refuses it, and sums of sizes cannot overflow. */
#define SIZE_LARGEST ((size_t)1 << 47)

enum block_state {
    BLOCK_FREE,    /* in a bin */
    BLOCK_LIVE,    /* handed out */
    BLOCK_PENDING, /* freed by the program, not yet ordered: in pool_free's hands, or kept back */
    BLOCK_RECENT,  /* in a magazine: free, but on the books and on the map as if it were handed out */
    BLOCK_SEIZED,  /* handed out, and about to be forgotten together with its segment */
};

/* Descriptors of blocks and segments are recycled but never unmapped: a double free may read one at any time. Aligned,
 * so that threads whose blocks are neighbours share no line of the cache; what a hit touches is in the first one. */
struct block {
    _Atomic int state;   /* LIVE to PENDING without a lock, everything else under that of the segment's books */
    unsigned short list; /* list_of(size), while it is not free */
    unsigned short bin;  /* while it is in one */
    bool in_hole;        /* of a broken segment, and on the list of a close size; while it is not free */
    uint64_t addr;
    size_t size;
    size_t requested; /* what was asked for, until it is free */
    struct segment *segment;
    struct block *bin_prev, *link; /* a bin's list; link alone: a magazine's lists, and the spare one */
    struct block *prev, *next;     /* neighbours by address, of the same segment */
} __attribute__((aligned(128)));

struct segment {
    uint64_t addr;
    size_t size;
    struct magazine *owner;      /* of a shared one; NULL: the pool. Changes while all locks are taken */
    size_t used;                 /* bytes of blocks that are not free */
    size_t recent;               /* of these, in recent blocks; only while recent_idle counts */
    _Atomic(struct pool *) pool; /* as is pool->arg */
    struct block *first;
    struct segment *prev, *next; /* the pool's segments */
    size_t skip;                 /* bytes at its start that are never handed out */
    unsigned int kind;           /* see pool_kind_set; does not change while the segment is on the books */
    bool shared;                 /* for small blocks */
    size_t exposed;              /* see pool->exposed; 0: it is for one block alone, or shared, or withdrawn */
    atomic_bool withdrawn;       /* its free blocks are in no bin nor magazine; see pool_withdraw; set under the lock */
    unsigned int idle_since;     /* the pool's clock when the last of it was freed */
    struct segment *idle_prev, *idle_next; /* pool->idle_first; under idle_lock */
    size_t got_for;                        /* what the request took for which the pool grew */
};

#define MAGAZINES 16u
/* Up to CLOSE_MAX, blocks have one of a few sizes: these many granules, and then 16 sizes for each power of two. So a
 * block that was freed serves requests of about its size, and is at most a sixteenth too large. */
#define FINE_GRANULES  32u
#define OCTAVE_CLASSES 16u
#define CLOSE_MAX      ((size_t)256 << 10)
/* Lists of a magazine: of sizes from LARGE_MIN on by a hash, of sizes between by a hash, then one for each of those
 * sizes. */
#define LARGE_LISTS  64u
#define MIDDLE_LISTS 64u
#define HASH_LISTS   (LARGE_LISTS + MIDDLE_LISTS)
#define CLOSE_LISTS  96u
#define RECENT       (HASH_LISTS + CLOSE_LISTS)
#define RECENT_SETS  ((RECENT + 63) / 64)
#define LARGE_SETS   (LARGE_LISTS / 64)
#define HASH_SETS    (HASH_LISTS / 64)
/* A magazine holds no more blocks than these of sizes whose list another size has: to join them takes the pool's lock.
 */
#define STRAY_MAX 32u
/* A magazine holds no more recent blocks than these: somebody has to join all of them at a time. */
#define RECENT_MAX 512u
/* It keeps no more for company: once they are ordered there has to be place for them among the recent ones. */
#define KEPT_MAX (RECENT_MAX / 4)
/* It keeps fewer large blocks: an order that comes a little more often costs little, and their memory is missed. */
#define KEPT_LARGE_MAX 32u
/* A block that takes more than this part of what a magazine may keep is ordered at once: few would fit beside it. */
#define COMPANY_PART 4u

/* How long a request that was refused waits for what other threads are giving back or ordering; natively it would not.
 * One of them may be the caller, far below. */
#define OTHERS_WAIT_NS 300000000u

/* This part of native_peak may be held beyond it at the most: see pool_config.bound_min. */
#define BOUND_PART 10

/* How many sizes a pool remembers of which it has handed segments back. */
#define GONE 512u

/* Descriptors of blocks that are out of use. */
struct spares {
    struct block *first;
    unsigned int count;
};

/* Sums over the blocks of some segments that are not free. Read without the lock. */
struct books {
    _Atomic size_t live;
    _Atomic size_t idle; /* bytes in segments without such blocks */
};

/* See magazine.c, and shards.c for its segments. */
struct magazine {
    /* Guards the rest of it, and link, requested and, but from LIVE to PENDING, state of the blocks on its lists; the
     * lists, sizes and states of the blocks of its own segments, and the map there. Atomic members are read without it.
     */
    struct lock lock;
    struct spares spares; /* survives recycling, like the lock itself */
    atomic_uint visitors; /* threads that have or want the lock for a moment, as no users of the magazine; a hint */
    atomic_bool used;     /* at some time a thread has */
    unsigned int recent_count, kept_count, kept_large;
    _Atomic ptrdiff_t handed;      /* bytes handed out here less bytes freed here, since handed_settle */
    _Atomic ptrdiff_t handed_most; /* the most of that */
    struct block *kept;            /* PENDING blocks that have not been ordered yet */
    _Atomic size_t kept_bytes;     /* by native_size */
    _Atomic size_t hits, carved, frees, order, kept_times; /* parts of pool_stats; carved are hits, too */
    _Atomic size_t frees_seen;                             /* frees when another thread last asked whether it is left */
    /* Freed blocks that have not joined their neighbours, the last one first; all of a list are of the same size. */
    _Atomic uint64_t recent_set[RECENT_SETS]; /* a bit for each list that is not empty */
    struct block *recent[RECENT];
    struct block *strays; /* those whose list was that of another size */
    unsigned int strays_count;
    bool has_holes; /* there may be blocks in_hole on the lists of small sizes */
    struct books books;
    struct bins bins; /* what is free in its own segments */
} __attribute__((aligned(128)));

struct pool {
    struct magazine magazines[MAGAZINES];
    /* What hits and frees look at without the lock, apart from what requests that are no hits change all the time. */
    struct {
        _Atomic size_t withdrawn;  /* bytes in withdrawn segments of which nothing is handed out; set under the lock */
        _Atomic size_t slack;      /* how much may be kept for company: less while the pool has to grow meanwhile */
        _Atomic size_t slack_most; /* the most of that */
        _Atomic size_t ask_from;   /* with slack: from so many kept bytes on a request asks whether they are ordered */
        _Atomic size_t order;      /* successful order() calls that no free of its own caused; a part of pool_stats */
        atomic_uint magazines_used;
        atomic_uint places;   /* no magazine from this one on was ever used; set under the lock */
        atomic_uint keepers;  /* magazines that keep something; changed under their locks */
        atomic_uint ordering; /* threads that are ordering what was kept, and have it */
        atomic_uint kind;     /* of new segments; set under the lock */
        atomic_bool defers;   /* frees wait for company: there is slack, and the context works */
    } shown __attribute__((aligned(64)));
    struct pool_config config;
    _Atomic(void *) arg; /* config.arg, for readers that cannot know whether the pool has been recycled */
    /* Locks and descriptors survive recycling. */
    struct lock spares_lock; /* guards spares_common; a leaf */
    struct lock idle_lock;   /* guards the list of idle segments; a leaf */
    struct spares spares, spares_common;
    /*
     * Guards spares and everything below, the list of segments, the lists and sizes of the blocks of those that no
     * magazine owns, and writes to the map at their addresses. block->state alone is also changed without it, from LIVE
     * to PENDING, and under a magazine's. A thread that takes the locks of two magazines has this one.
     */
    struct lock lock;
    struct books books;    /* of what no magazine owns */
    _Atomic size_t native; /* of that: what the driver would have in use for it, see native_size */
    struct bins large;
    struct segment *segments;
    /* Segments that are one free block in a bin, the longest idle first; of what joined together, in any order. */
    struct segment *idle_first, *idle_last;
    /* What a growing pool has handed back: by a hash of segment->got_for, bytes in segments of the size that came last.
     */
    struct {
        size_t got_for, bytes;
    } gone[GONE];
    size_t native_peak; /* the most of that, without what is free or kept, seen when the pool grew */
    size_t used_peak;   /* the most bytes in segments of which something is handed out, seen when the pool grew */
    size_t regret;      /* so much more may be held for what was asked for again */
    size_t asked;       /* bytes that the backend is being asked for */
    /*
     * Segments of more than one block, one of them large, are packed, until nothing of them is handed out. The smallest
     * block that has been in one could be the only one left, and keep the rest from going back: the bytes of all these
     * rests.
     */
    size_t exposed;
    size_t freed;            /* bytes of large blocks that were freed and leave 1 MiB or more of their last 2 MiB */
    bool packs_never;        /* see pool_pack_never */
    ptrdiff_t handed;        /* bytes in the program's hands, but for what the magazines have counted since */
    size_t leaving;          /* bytes that threads are giving back right now */
    unsigned int releasing;  /* how many threads that are */
    unsigned int again;      /* how often it was asked lately for what was handed back; see regret_update */
    unsigned int clock;      /* calls of pool_decay */
    struct pool_stats stats; /* less what the magazines count */
    struct pool *next_retired;
};

/* With the lock of what it counts. */
static inline void book(_Atomic size_t *number, size_t more)
{
    atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + more, memory_order_relaxed);
}

static inline struct books *books_of(struct pool *pool, const struct segment *segment)
{
    return segment->owner ? &segment->owner->books : &pool->books;
}

/* How many magazines there may be something in. */
static inline unsigned int places(const struct pool *pool)
{
    return atomic_load_explicit(&pool->shown.places, memory_order_relaxed);
}

static inline bool is_free(const struct block *block)
{
    return block && atomic_load_explicit(&block->state, memory_order_relaxed) == BLOCK_FREE;
}

/* What a large block has left of the last 2 MiB of its segment: free, and in no bin, because it is for nobody. */
static inline bool is_tail(const struct block *block)
{
    return block->prev && !block->segment->shared && !block->segment->exposed;
}

/*
 * Of bins.h; here because what a block is is known here, and in a header because most small requests and frees of
 * random sizes come by. Sizes below 16 granules have a bin each; above, the four bits after the leading one choose
 * among 16.
 */
static inline unsigned int bin_of(size_t size)
{
    const uint64_t granules = size / POOL_GRANULE;
    unsigned int log2, bin;

    if (granules < 16)
        return (unsigned int)granules;
    log2 = 63u - (unsigned int)__builtin_clzll(granules);
    bin = (log2 - 3) * 16 + ((granules >> (log2 - 4)) & 15);
    return bin < BINS_COUNT ? bin : BINS_COUNT - 1;
}

static inline void bins_insert(struct bins *bins, struct block *block)
{
    const unsigned int bin = bin_of(block->size);

    block->bin = (unsigned short)bin;
    block->bin_prev = NULL;
    block->link = bins->head[bin];
    if (block->link)
        block->link->bin_prev = block;
    bins->head[bin] = block;
    bins->used[bin / 64] |= 1ull << (bin % 64);
}

static inline void bins_remove(struct bins *bins, struct block *block)
{
    const unsigned int bin = block->bin;

    if (block->bin_prev)
        block->bin_prev->link = block->link;
    else
        bins->head[bin] = block->link;
    if (block->link)
        block->link->bin_prev = block->bin_prev;
    if (!bins->head[bin])
        bins->used[bin / 64] &= ~(1ull << (bin % 64));
}

/* Is nothing of it in the program's hands or on its way back? */
static inline bool is_unused(const struct block *block)
{
    const int state = atomic_load_explicit(&block->state, memory_order_relaxed);

    return state == BLOCK_FREE || state == BLOCK_RECENT;
}

static inline size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static inline unsigned int log2_of(size_t number)
{
    return 63u - (unsigned int)__builtin_clzll(number);
}

/* What a request takes of its segment, and the list of a magazine for blocks of that size. */
static inline size_t size_class(size_t requested, unsigned int *ret_list)
{
    const size_t last = ((requested < SIZE_LARGEST ? requested : SIZE_LARGEST) - 1) / POOL_GRANULE;
    unsigned int shift;

    if (last < FINE_GRANULES) {
        *ret_list = HASH_LISTS + (unsigned int)last;
        return (last + 1) * POOL_GRANULE;
    }
    if (last >= CLOSE_MAX / POOL_GRANULE) {
        *ret_list = (unsigned int)((uint64_t)(last + 1) * 0x9e3779b97f4a7c15u >> 58) +
                    (last < (LARGE_MIN - 1) / POOL_GRANULE ? LARGE_LISTS : 0);
        return (last + 1) * POOL_GRANULE;
    }
    shift = log2_of(last) - 4;
    *ret_list = HASH_LISTS + OCTAVE_CLASSES * shift + (unsigned int)(last >> shift);
    return (((last >> shift) + 1) << shift) * POOL_GRANULE;
}

static inline size_t rounded(size_t requested)
{
    unsigned int list;

    return size_class(requested, &list);
}

/*
 * How much may be held beyond native, the most that the driver would have in use, without slack: see
 * pool_config.bound_min. A sixteenth stays unused: small blocks have larger sizes here than there, and do not lie in as
 * many pages.
 */
static inline size_t bound_beyond(const struct pool *pool, size_t native)
{
    return (native / BOUND_PART + pool->config.bound_min) / 16 * 15;
}

/* What the driver would take of the device for a block of this size: from 2 MiB on, whole units. */
static inline size_t native_size(size_t size)
{
    return size < LARGE_MIN ? size : round_up(size, POOL_SEGMENT_UNIT);
}

/* One thread splits where another one merges, so spare blocks that are too many for one list go to the pool's common
 * one.
 */
#define SPARES_CHUNK 256u

/* The list of spare blocks that has the lock of a segment's blocks. */
static inline struct spares *spares_of(struct pool *pool, const struct segment *segment)
{
    return segment->owner ? &segment->owner->spares : &pool->spares;
}

/* descriptors.c, with the lock of the list. There are many; there are not two left. */
void spares_share(struct pool *pool, struct spares *spares);
int spares_refill(struct pool *pool, struct spares *spares);

static inline void spare_push(struct pool *pool, struct spares *spares, struct block *block)
{
    block->link = spares->first;
    spares->first = block;
    if (++spares->count > 2 * SPARES_CHUNK)
        spares_share(pool, spares);
}

/* The next two calls of spare_pop succeed. */
static inline int spare_reserve(struct pool *pool, struct spares *spares)
{
    return spares->count >= 2 ? 0 : spares_refill(pool, spares);
}

static inline struct block *spare_pop(struct spares *spares)
{
    struct block *block = spares->first;

    spares->first = block->link;
    spares->count--;
    return block;
}

/* descriptors.c. */
/* NULL: no host memory. */
struct segment *segment_new(void);
void segment_retire(struct segment *segment);
struct pool *pool_descriptor_new(void);
void pool_descriptor_retire(struct pool *pool);

/*
 * shards.c. All locks of a pool: its own, and those of the magazines, whose threads wait meanwhile.
 */
void locks_take(struct pool *pool);
void locks_give(struct pool *pool);
/* Without locks, so about: the sums of the books of all segments. */
size_t live_bytes(const struct pool *pool);
size_t native_bytes(const struct pool *pool);
size_t idle_bytes(const struct pool *pool);
/* With the lock of the segment. So many bytes of it are handed out, or no longer. */
void used_add(struct pool *pool, struct segment *segment, size_t size);
void used_sub(struct pool *pool, struct segment *segment, size_t size);
/* With all locks. Join all that is recent: before the pool grows, or anybody looks at what is free or idle. */
void recent_flush(struct pool *pool);
/* With the pool's lock. Bring the books up to date with this thread's own magazine, and join what is large there. */
void recent_settle(struct pool *pool);
/* With the pool's lock. Join what is large in all magazines. */
void recent_join_large(struct pool *pool);
/* With no lock. A block for a small request from any magazine's segments. Errors and refused as for block_take. */
int shards_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);

/* release.c. Give a segment that is on no books back to the backend. */
void segment_put(struct pool *pool, const struct segment *segment);
/* pool_trim; without may_wait nobody waits for what was kept back, nor until what is given back has arrived. */
size_t release_trim(struct pool *pool, const char *why, bool may_wait);
/* Before the pool grows for a request that takes so many bytes: hand back what is idle and more than it is worth to
 * hold. Nobody waits. again: it has been called for this request. True: the pool would still grow beyond its bound.
 * alone: the segment is to be for no other block; set if one for two would be beyond the bound. */
bool release_excess(struct pool *pool, size_t got_for, bool again, bool *alone);
/* The pool is at its bound: wait for the memory of this thread's own frees, and count that. */
void bound_wait(struct pool *pool);
/* After a free: what should not be kept goes back. */
void release_some(struct pool *pool);
/* Let a segment serve no more requests; with the lock. What threads put into magazines meanwhile, recent_flush joins.
 */
void segment_withdraw(struct pool *pool, struct segment *segment);

/*
 * blocks.c, with the lock of the segment. Put a free block into the bin where requests find it, if they may, and take
 * it out again.
 */
void block_bin(struct pool *pool, struct block *block);
void block_unbin(struct pool *pool, struct block *block);
/*
 * With the pool's lock. Take a large block from what is free. -ENOENT: nothing fits. refused: the driver has no more,
 * so look at every block; but break nothing, because a whole segment given back serves this request as well and leaves
 * the driver able to serve the next one.
 */
int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);
/* With the pool's lock. The last resort of a small request: what is free in packed segments. -ENOENT: nothing fits. */
int block_take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr);
/* Hand out size bytes of a free block that is in no bin. -ENOMEM: no host memory; the block is then back in its bin. */
int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested);
/* Hand out size bytes of a free block that bins_find has chosen. NULL, or no host memory: -ENOENT. */
static inline int block_take_found(struct pool *pool, struct block *block, size_t size, size_t requested,
                                   uint64_t *ret_addr)
{
    if (!block)
        return -ENOENT;
    block_unbin(pool, block);
    if (block_hand_out(pool, block, size, requested))
        return -ENOENT;
    *ret_addr = block->addr;
    return 0;
}
/* A block of which nothing is used any more becomes a free one, whole with its free neighbours. */
void block_free(struct pool *pool, struct block *block);
/* Swallow the neighbour after block, which is free. */
void block_merge_next(struct pool *pool, struct block *block);
/* How much more of a segment would be exposed (see pool->exposed) with a block of size bytes in it. */
size_t segment_exposes(const struct segment *segment, size_t size);
/* How large a segment is for two blocks of about size bytes, if that is less than one for each. */
size_t segment_size_for_two(size_t size);
/* With the lock. How large a segment should be for a block that takes so many bytes; with alone, for no other one. */
size_t block_segment_size(const struct pool *pool, size_t size, bool alone);
/* With the lock of its owner, too. Enter memory from the backend as a segment with one free block. Errors leave nothing
 * behind. */
int segment_enter(struct pool *pool, struct segment *segment);

/* pool.c. */
/* Order, then publish block (NULL: none) and what was kept back before; an error: what became of block see pool_free,
 * the others are kept on. */
int order_and_publish(struct pool *pool, struct block *block, enum pool_order_how how);

#endif
