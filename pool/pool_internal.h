/* SPDX-License-Identifier: Apache-2.0 */
/* pool_internal.h - the structures that pool/ shares with itself. Private to pool/. */
#ifndef CUPOOL_POOL_INTERNAL_H
#define CUPOOL_POOL_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "bins.h"
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
    BLOCK_RECENT,  /* in pool->recent: free, but not merged with its neighbours and still on the map */
    BLOCK_SEIZED,  /* handed out, and about to be forgotten together with its segment */
};

/* Descriptors of blocks and segments are recycled but never unmapped: a double free may read one at any time. */
struct block {
    uint64_t addr;
    size_t size;
    size_t requested; /* what was asked for, until it is free */
    struct segment *segment;
    struct block *prev, *next;     /* neighbours by address, of the same segment */
    struct block *bin_prev, *link; /* a bin's list; link alone: the recent, kept and spare lists */
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
    bool broken;                 /* for several blocks, one of them large; until nothing of it is handed out */
    atomic_bool withdrawn;       /* its free blocks are in no bin; see pool_withdraw; set under the lock */
    unsigned int idle_since;     /* the pool's clock when the last of it was freed */
    struct segment *idle_prev, *idle_next; /* pool->idle_first */
    size_t got_for;                        /* what the request took for which the pool grew */
};

#define RECENT 64
/* More recent blocks than these join their neighbours at once, so that nobody waits for all of a program's at a time.
 */
#define RECENT_MAX 256u

/* How many sizes a pool remembers of which it has handed segments back. */
#define GONE 512u

struct pool {
    struct pool_config config;
    struct block *spare; /* guarded by the lock; survives recycling, like the lock itself */
    /*
     * Guards everything below, the lists and sizes of this pool's segments and blocks, and writes to the map at their
     * addresses. block->state alone is also changed without it, from LIVE to PENDING.
     */
    struct lock lock;
    struct bins shared, large;
    /*
     * Freed blocks that have not joined their neighbours, the last one first; all of a list were of the same size,
     * which has this hash. Most programs ask for the same sizes again and again. When none fits, or memory is given
     * back, they join first, so nothing that is free is overlooked.
     */
    struct block *recent[RECENT];
    uint64_t recent_set;       /* a bit for each list that is not empty */
    unsigned int recent_count; /* blocks on all lists */
    struct segment *segments;
    /* Segments that are one free block in a bin, the longest idle first; of what joined together, in any order. */
    struct segment *idle_first, *idle_last;
    /* What a growing pool has handed back: by a hash of segment->got_for, bytes in segments of the size that came last.
     */
    struct {
        size_t got_for, bytes;
    } gone[GONE];
    unsigned int again; /* how often it was asked for again lately; see regret_update */
    size_t regret;      /* so much more may be held for that */
    size_t asked;       /* bytes that the backend is being asked for */
    size_t broken;      /* bytes in broken segments */
    struct block *kept; /* PENDING blocks that have not been ordered yet */
    size_t kept_bytes;
    size_t ask_from; /* with slack: only from so many kept bytes on a request asks whether they can be used again */
    unsigned int releasing; /* threads that are giving segments back right now */
    unsigned int clock;     /* calls of pool_decay */
    size_t withdrawn;       /* bytes in withdrawn segments of which nothing is handed out */
    struct pool_stats stats;
    atomic_bool has_kept; /* kept is not empty; a hint for readers without the lock */
    atomic_bool defers;   /* frees wait for company: there is slack, and the context works */
    struct pool *next_retired;
};

static inline bool is_free(const struct block *block)
{
    return block && atomic_load_explicit(&block->state, memory_order_relaxed) == BLOCK_FREE;
}

/* What a large block has left of the last 2 MiB of its segment: free, and in no bin, because it is for nobody. */
static inline bool is_tail(const struct block *block)
{
    return block->prev && !block->segment->shared && !block->segment->broken;
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

/* What a request takes of its segment. */
static inline size_t rounded(size_t requested)
{
    return round_up(requested < SIZE_LARGEST ? requested : SIZE_LARGEST, POOL_GRANULE);
}

/* Nanoseconds of the monotonic clock. */
static inline uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* descriptors.c. A pool's spare blocks, with its lock; after spare_reserve the next two calls of spare_pop succeed. */
void spare_push(struct pool *pool, struct block *block);
int spare_reserve(struct pool *pool);
struct block *spare_pop(struct pool *pool);
/* NULL: no host memory. */
struct segment *segment_new(void);
void segment_retire(struct segment *segment);
struct pool *pool_descriptor_new(void);
void pool_descriptor_retire(struct pool *pool);

/* release.c. Give a segment that is on no books back to the backend. */
void segment_put(struct pool *pool, const struct segment *segment);
/* pool_trim; without may_wait nobody waits for what was kept back, nor until what is given back has arrived. */
size_t release_trim(struct pool *pool, const char *why, bool may_wait);
/* Before the pool grows by size bytes for a request that takes got_for: hand back what is idle and more than it is
 * worth to hold. Nobody waits. */
void release_excess(struct pool *pool, size_t size, size_t got_for);
/* After a free: what should not be kept goes back. withdrawn: there are such segments. */
void release_some(struct pool *pool, bool withdrawn);
/* Wait until no thread is giving memory back that it took off the books before we asked the driver. */
void releases_wait(struct pool *pool);

/*
 * blocks.c, with the lock. Put a free block into the bin where requests find it, if they may, and take it out again.
 */
void block_bin(struct pool *pool, struct block *block);
void block_unbin(struct pool *pool, struct block *block);
/*
 * Take a block from what is free. -ENOENT: nothing fits. refused: the driver has no more, so look at every block; but
 * break nothing, because a whole segment given back serves this request as well and leaves the driver able to serve the
 * next one.
 */
int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr);
/* The last resort of a small request: what is free in broken segments. -ENOENT: nothing fits. */
int block_take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr);
/* Hand out a block that was freed by a request of the same size. False: there is none. */
bool recent_take(struct pool *pool, size_t requested, uint64_t *ret_addr);
/* Merge what was freed recently: before anybody looks at bins, or at what is free. */
void recent_flush(struct pool *pool);
/* Hand out size bytes of a free block that is in no bin. -ENOMEM: no host memory; the block is then back in its bin. */
int block_hand_out(struct pool *pool, struct block *block, size_t size, size_t requested);
/* A PENDING block has been ordered: it may be handed out again. */
void block_publish(struct pool *pool, struct block *block);
/* Swallow the neighbour after block, which is free. */
void block_merge_next(struct pool *pool, struct block *block);
/* So many bytes of a segment are no longer handed out. */
void used_sub(struct pool *pool, struct segment *segment, size_t size);
/* Enter memory from the backend as a segment with one free block. Errors leave nothing behind. */
int segment_enter(struct pool *pool, struct segment *segment);

/* pool.c. */
/* Order, then publish block (NULL: none) and what was kept back before; an error: what became of block see pool_free,
 * the others are kept on. */
int order_and_publish(struct pool *pool, struct block *block, bool may_wait);

#endif
