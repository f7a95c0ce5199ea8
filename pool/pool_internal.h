/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h - the structures and functions that the files of pool/ share. Private to pool/. Every function says
 * which lock its caller holds. */
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
 * Requests under this share segments of one unit, as the driver's own small requests share pages, so that no small
 * block keeps more memory from going back than natively.
 */
#define LARGE_MIN ((size_t)POOL_SEGMENT_UNIT)
/* No device has this much memory; the backend refuses it, and sums of sizes cannot overflow. */
#define SIZE_LARGEST ((size_t)1 << 47)

/* The states of a block. */
enum block_state {
    BLOCK_FREE,    /* in a bin */
    BLOCK_LIVE,    /* handed out */
    BLOCK_PENDING, /* freed by the program, not yet ordered: inside pool_free, or deferred */
    BLOCK_RECENT,  /* cached in a magazine: free, but in the books and the map as if handed out */
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
    struct segment *segment;
    struct block *bin_prev, *link; /* a bin's list; link alone: a magazine's lists, and the list of spares */
    struct block *prev, *next;     /* neighbours by address, in the same segment */
} __attribute__((aligned(128)));

/* One allocation of the backend, cut into blocks. */
struct segment {
    uint64_t addr;
    size_t size;
    struct magazine *owner;      /* of a shared segment; NULL: the pool. Changes only under all locks */
    size_t used;                 /* bytes of blocks that are not free */
    size_t recent;               /* of these, bytes in cached blocks; only inside recent_idle */
    _Atomic(struct pool *) pool; /* as is pool->arg */
    struct block *first;
    struct segment *prev, *next; /* the pool's list of segments */
    size_t skip;                 /* bytes at its start that are never handed out */
    unsigned int kind;           /* see pool_kind_set; constant while the segment is in the books */
    bool shared;                 /* for small blocks */
    size_t exposed;              /* see pool->exposed; 0: for one block alone, or shared, or withdrawn */
    atomic_bool withdrawn;       /* its free blocks are in no bin nor magazine; see pool_withdraw; set under the lock */
    unsigned int idle_since;     /* pool->clock when its last block was freed */
    struct segment *idle_prev, *idle_next; /* pool->idle_first; under idle_lock */
    size_t got_for;                        /* size of the request for which the pool grew */
};

#define MAGAZINES 16u
/* Up to CLOSE_MAX, blocks have one of a few sizes: FINE_GRANULES multiples of a granule, and then OCTAVE_CLASSES sizes
 * for each power of two. So a freed block serves requests of about its size, and is at most a sixteenth too large. */
#define FINE_GRANULES  32u
#define OCTAVE_CLASSES 16u
#define CLOSE_MAX      ((size_t)256 << 10)
/* The lists of a magazine: for sizes from LARGE_MIN on by a hash, for the sizes between by a hash, and then one list
 * for each of the few sizes. */
#define LARGE_LISTS  64u
#define MIDDLE_LISTS 64u
#define HASH_LISTS   (LARGE_LISTS + MIDDLE_LISTS)
#define CLOSE_LISTS  96u
#define RECENT       (HASH_LISTS + CLOSE_LISTS)
#define RECENT_SETS  ((RECENT + 63) / 64)
#define LARGE_SETS   (LARGE_LISTS / 64)
#define HASH_SETS    (HASH_LISTS / 64)
/* The most blocks in a magazine whose list holds blocks of another size: coalescing them takes the pool's lock. */
#define STRAY_MAX 32u
/* The most cached blocks in a magazine, because a thread may have to coalesce all of them at once. */
#define RECENT_MAX 512u
/* The most deferred blocks in a magazine: once ordered they must fit among the cached ones. */
#define KEPT_MAX (RECENT_MAX / 4)
/* The most large deferred blocks: ordering a little more often costs little, and other requests need their memory. */
#define KEPT_LARGE_MAX 32u
/* A block that takes more than this part of a magazine's share of the slack is ordered at once: few others would fit
 * beside it. */
#define COMPANY_PART 4u

/* The longest time, in nanoseconds, that a refused request waits for other threads that are giving memory back or
 * ordering; natively it would not wait. Such a thread may be the caller itself, below a signal handler. */
#define OTHERS_WAIT_NS 300000000u

/* A pool may hold at most this part of native_peak beyond it: see pool_config.bound_min. */
#define BOUND_PART 10

/* The size of the ghost list: the number of sizes for which a pool remembers segments that it gave back. */
#define GONE 512u

/* Unused descriptors of blocks. */
struct spares {
    struct block *first;
    unsigned int count;
};

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
    unsigned int recent_count, kept_count, kept_large;
    _Atomic ptrdiff_t handed;      /* bytes handed out here less bytes freed here, since handed_settle */
    _Atomic ptrdiff_t handed_most; /* the maximum of that */
    struct block *kept;            /* deferred blocks: PENDING and not ordered yet */
    _Atomic size_t kept_bytes;     /* by native_size */
    _Atomic size_t hits, carved, frees, order, kept_times; /* parts of pool_stats; carved are hits, too */
    _Atomic size_t frees_seen;                             /* the value of frees when another thread last checked
                                                              whether the magazine is abandoned */
    /* Cached blocks, not coalesced with their neighbours, the last one first; blocks on one list have one size. */
    _Atomic uint64_t recent_set[RECENT_SETS]; /* a bit for each list that is not empty */
    struct block *recent[RECENT];
    struct block *strays; /* cached blocks whose list holds another size */
    unsigned int strays_count;
    bool has_holes; /* blocks with in_hole may be on the lists of small sizes */
    struct books books;
    struct bins bins; /* free blocks in its own segments */
} __attribute__((aligned(128)));

struct pool {
    struct magazine magazines[MAGAZINES];
    /* Members that hits and frees read without the lock, apart from those that misses change all the time. */
    struct {
        _Atomic size_t withdrawn;  /* bytes in withdrawn segments without a block handed out; set under the lock */
        _Atomic size_t slack;      /* bytes that may be deferred for batching: less than slack_most while the pool
                                      has to grow meanwhile */
        _Atomic size_t slack_most; /* the maximum of that */
        _Atomic size_t ask_from;   /* with slack: the deferred bytes from which on a request asks whether they can be
                                      published */
        _Atomic size_t order;      /* successful order() calls outside a free; a part of pool_stats */
        atomic_uint magazines_used;
        atomic_uint places;   /* no magazine from this index on was ever used; set under the lock */
        atomic_uint keepers;  /* magazines with deferred blocks; changed under their locks */
        atomic_uint ordering; /* threads that have taken deferred blocks to order them */
        atomic_uint kind;     /* of new segments; set under the lock */
        atomic_bool defers;   /* frees are batched: there is slack, and the context has not failed */
    } shown __attribute__((aligned(64)));
    struct pool_config config;
    _Atomic(void *) arg; /* config.arg, for readers that cannot know whether the pool has been recycled */
    /* Locks and descriptors survive recycling. */
    struct lock spares_lock; /* guards spares_common; a leaf */
    struct lock idle_lock;   /* guards the list of idle segments; a leaf */
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
    /* The ghost list: by a hash of segment->got_for, the bytes of segments of the latest such size that a growing pool
     * gave back. */
    struct {
        size_t got_for, bytes;
    } gone[GONE];
    size_t native_peak; /* the maximum of native, without free and deferred blocks, seen when the pool grew */
    size_t used_peak;   /* the most bytes in segments that were not idle, seen when the pool grew */
    size_t regret;      /* readmission credit: bytes that may be held in addition, because sizes on the ghost list
                           were requested again */
    size_t asked;       /* bytes that the backend is being asked for */
    /*
     * Segments of more than one block, one of them large, are packed until none of their blocks is handed out. The
     * smallest block that has been in a packed segment could be the only one left, and keep the rest of the segment
     * from going back. exposed is the sum of these rests in bytes.
     */
    size_t exposed;
    size_t freed;            /* bytes of freed large blocks that left 1 MiB or more of their last 2 MiB unused */
    bool packs_never;        /* see pool_pack_never */
    ptrdiff_t handed;        /* bytes handed out to the program, without the counts still in the magazines */
    size_t leaving;          /* bytes that threads are giving back now */
    unsigned int releasing;  /* number of these threads */
    unsigned int again;      /* how often sizes on the ghost list were requested lately; see regret_update */
    unsigned int clock;      /* calls of pool_decay */
    struct pool_stats stats; /* without the counts still in the magazines */
    struct pool *next_retired;
};

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
static inline unsigned int places(const struct pool *pool)
{
    return atomic_load_explicit(&pool->shown.places, memory_order_relaxed);
}

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

/*
 * The inline part of bins.h; here because struct block is defined here, and inline because most small requests and
 * frees of random sizes use it. Sizes below 16 granules have a bin each; above, the four bits after the leading one
 * choose among 16.
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

/* True if the block is free or cached: neither handed out nor deferred. */
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

/* The size of the block for a request, and the list of a magazine for blocks of that size. */
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
 * The bytes that may be held beyond `native`, the most that the driver would have in use, without slack: see
 * pool_config.bound_min. A sixteenth stays unused, because small blocks have larger sizes here than in the driver and
 * do not lie in as many pages.
 */
static inline size_t bound_beyond(const struct pool *pool, size_t native)
{
    return (native / BOUND_PART + pool->config.bound_min) / 16 * 15;
}

/* The bytes that the driver would use for a block of this size: from 2 MiB on, whole units. */
static inline size_t native_size(size_t size)
{
    return size < LARGE_MIN ? size : round_up(size, POOL_SEGMENT_UNIT);
}

/* The number of spare blocks that move at once. One thread splits blocks where another one merges them, so a list with
 * too many spares shares them through the pool's common list. */
#define SPARES_CHUNK 256u

/* The list of spare blocks under the lock of a segment's blocks. */
static inline struct spares *spares_of(struct pool *pool, const struct segment *segment)
{
    return segment->owner ? &segment->owner->spares : &pool->spares;
}

/* descriptors.c, with the lock of the list. share: the list has too many spares; refill: it has fewer than two;
 * -ENOMEM. */
void spares_share(struct pool *pool, struct spares *spares);
int spares_refill(struct pool *pool, struct spares *spares);

static inline void spare_push(struct pool *pool, struct spares *spares, struct block *block)
{
    block->link = spares->first;
    spares->first = block;
    if (++spares->count > 2 * SPARES_CHUNK)
        spares_share(pool, spares);
}

/* Make sure that the next two calls of spare_pop succeed. -ENOMEM. */
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

/* descriptors.c; any thread, no lock held. */
/* NULL: no host memory. */
struct segment *segment_new(void);
void segment_retire(struct segment *segment);
struct pool *pool_descriptor_new(void);
void pool_descriptor_retire(struct pool *pool);

/* shards.c. All locks of a pool: its own and those of the magazines, whose threads wait meanwhile. */
void locks_take(struct pool *pool);
void locks_give(struct pool *pool);
/* The sums of the books of all segments; without locks they are approximate. */
size_t live_bytes(const struct pool *pool);
size_t native_bytes(const struct pool *pool);
size_t idle_bytes(const struct pool *pool);
/* With the lock of the segment: size bytes of it are handed out, or are not any more. */
void used_add(struct pool *pool, struct segment *segment, size_t size);
void used_sub(struct pool *pool, struct segment *segment, size_t size);
/* With all locks: coalesce all cached blocks, before the pool grows or free and idle memory is examined. */
void recent_flush(struct pool *pool);
/* With the pool's lock: add this thread's magazine's counts to the books, and coalesce its large blocks. */
void recent_settle(struct pool *pool);
/* With the pool's lock: coalesce the large blocks in all magazines. */
void recent_join_large(struct pool *pool);
/* With no lock: a block for a small request from any magazine's segments. Errors and refused as for block_take. */
int shards_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);

/* release.c. Give a segment that is not in the books back to the backend; no lock held. */
void segment_put(struct pool *pool, const struct segment *segment);
/* pool_trim. Without may_wait, nothing waits for deferred blocks or for memory to arrive. No lock held. */
size_t release_trim(struct pool *pool, const char *why, bool may_wait);
/* Before the pool grows for a request of got_for bytes: give back idle segments beyond the excess that is worth
 * holding. No wait. again: this is the second call for the request. True: the pool would still grow beyond its bound.
 * alone: the segment must be for no second block; set if a segment for two would be beyond the bound. */
bool release_excess(struct pool *pool, size_t got_for, bool again, bool *alone);
/* The pool is at its bound: wait for the memory of this thread's own frees, and count that. */
void bound_wait(struct pool *pool);
/* After a free: give back memory that should not be kept. */
void release_some(struct pool *pool);
/* With all locks: the segment serves no more requests. recent_flush coalesces blocks that threads cache meanwhile. */
void segment_withdraw(struct pool *pool, struct segment *segment);

/*
 * blocks.c, with the lock of the segment. Put a free block into the bin where requests find it, if they may, and take
 * it out again.
 */
void block_bin(struct pool *pool, struct block *block);
void block_unbin(struct pool *pool, struct block *block);
/*
 * With the pool's lock: take a large block from free memory. -ENOENT: nothing fits. refused: the driver has no more
 * memory, so examine every block, but break no idle segment: a whole segment given back serves this request as well,
 * and the driver can serve the next one.
 */
int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);
/* With the pool's lock, as a last resort of a small request: take free memory in packed segments. -ENOENT: nothing
 * fits. */
int block_take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr);
/* Hand out size bytes of a free block that is in no bin. -ENOMEM: no host memory; the block is then in its bin
 * again. */
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
/* A block that is used no more becomes free and merges with its free neighbours. */
void block_free(struct pool *pool, struct block *block);
/* Merge block with its next neighbour, which is free. */
void block_merge_next(struct pool *pool, struct block *block);
/* The bytes by which a block of size bytes would increase segment->exposed. */
size_t segment_exposes(const struct segment *segment, size_t size);
/* The size in bytes of a segment for two blocks of about size bytes: one unit less than two segments. */
size_t segment_size_for_two(size_t size);
/* With the lock: the size of a new segment for a block of size bytes; alone: for no second block. */
size_t block_segment_size(const struct pool *pool, size_t size, bool alone);
/* With the pool's lock and that of the segment's owner: enter memory from the backend as a segment with one free block.
 * An error leaves nothing behind. */
int segment_enter(struct pool *pool, struct segment *segment);

/* pool.c. */
/* Order, then publish block (NULL: none) and the deferred blocks. After an error see pool_free for the fate of block;
 * the others stay deferred. No lock held. */
int order_and_publish(struct pool *pool, struct block *block, enum pool_order_how how);

#endif
