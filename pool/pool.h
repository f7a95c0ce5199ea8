/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - a cached pool of device memory.
 *
 * What it is: takes large segments from a backend, carves blocks out of them, splits and merges blocks, and hands freed
 * blocks out again once an order function has said that this is safe. All bookkeeping lives in host memory.
 *
 * What it is not: it knows nothing of CUDA, NCCL, environment variables or traces; those are behind the three tables
 * below.
 *
 * Errors: 0 or a negative errno value. Out-parameters are last and written on success only.
 *
 * Threads: every function may be called from any thread, except pool_destroy (see there). The pool's own lock is never
 * held while a function of one of the tables runs. The tables may not call back into the same pool.
 */
#ifndef CUPOOL_POOL_H
#define CUPOOL_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blocks are multiples of this, and so aligned to it: cudaMalloc's own spacing. */
#define POOL_GRANULE 512u
/* Segments are multiples of this and aligned to it: the driver's unit of physical memory. */
#define POOL_SEGMENT_UNIT (2u << 20)

struct pool;

/* Where segments come from. kind: of the segment, see pool_kind_set. */
struct pool_backend_ops {
    /* Get size bytes, a multiple of POOL_SEGMENT_UNIT and aligned to it. -ENOMEM: refused for lack of memory. Anything
     * else: not now; the pool then gives up on the request at once. */
    int (*alloc)(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr);
    /* Give a segment back. Cannot fail as far as the pool is concerned. It may arrive later, when the device has come
     * past what was ordered before; does not wait for that. Called by pool_alloc too, beside alloc (see excess_min). */
    void (*free)(void *arg, unsigned int kind, uint64_t addr, size_t size);
    /* May be NULL. Wait until what was given back has arrived. */
    void (*collect)(void *arg);
    /* May be NULL: it always has. Has all that was given back arrived? ret_arriving: the bytes that have not. Waits for
     * nothing but, at most, for another thread's call of free. */
    bool (*collected)(void *arg, size_t *ret_arriving);
    /* May be NULL. Wait for the work that natively the calling thread's own frees would have waited for, and until what
     * was given back behind no other work has arrived. Does not wait for what other threads' frees left behind. */
    void (*reclaim)(void *arg);
    /* May be NULL: no. May idle segments be given back although the order table says frozen? */
    bool (*gives_frozen)(void *arg);
    /* May be NULL. True if the device has so little left that idle segments should not be kept. Cheap. */
    bool (*scarce)(void *arg);
};

/* How an order may be had. */
enum pool_order_how {
    POOL_ORDER_ASK,    /* only if all work is over: neither host nor device waits */
    POOL_ORDER_FREE,   /* as for a cudaFree: the device waits, or the host where the device cannot */
    POOL_ORDER_DEVICE, /* the device may wait, the host may not */
};

/* What makes a freed block safe to hand out again. */
struct pool_order_ops {
    /* Make everything that any caller hands to the device after this call run behind everything handed to it before.
     * Returns 0 when done; -EBUSY when it cannot be done now (a capture is under way): the block is kept back and
     * published by a later successful call; -ENOTRECOVERABLE if it never can be: pool_free returns it, and the block
     * stays live; another error: pool_free returns it, and the block is kept back. -EBUSY, too, if it would take a wait
     * that how does not allow. */
    int (*order)(void *arg, enum pool_order_how how);
    /* May be NULL: what is in a block does not matter. Otherwise: hand a fill of these bytes to the device, behind what
     * was ordered before. shared: of a segment for requests under POOL_SEGMENT_UNIT; fresh: just come from the backend.
     * Returns 1 if it did, and filled() must follow; 0 if there is nothing to be done; an error. */
    int (*fill)(void *arg, uint64_t addr, size_t size, bool shared, bool fresh);
    /* With fill alone. Make what is handed to the device after this call run behind the fills so far. 0; -EBUSY: not
     * now (a capture is under way); another error. */
    int (*filled)(void *arg);
    /* True while segments may be neither taken nor given back (a capture is under way). */
    bool (*frozen)(void *arg);
};

/* Who wants to know. Any function may be NULL. Called without the pool's lock, on the thread that caused it. */
struct pool_observer_ops {
    void (*segment_alloc)(void *arg, unsigned int kind, uint64_t addr, size_t size, uint64_t ns);
    /* Before the segment goes, so that a trace never shows its successor at the same address first. */
    void (*segment_free)(void *arg, unsigned int kind, uint64_t addr, size_t size);
    void (*trim)(void *arg, size_t released, uint64_t ns, const char *why);
    /* A request met the bound (pool_config.bound_min) for the count-th time and waited so long for memory to arrive. */
    void (*bound)(void *arg, size_t held, size_t bound, uint64_t ns, uint64_t count);
    /* The pool is going; this segment dies with its context and was not given back. */
    void (*segment_lost)(void *arg, unsigned int kind, uint64_t addr, size_t size);
};

struct pool_config {
    const struct pool_backend_ops *backend;
    const struct pool_order_ops *order;
    const struct pool_observer_ops *observer; /* may be NULL */
    void *arg;                                /* handed to all of the above */
    unsigned int kind;                        /* of segments, until pool_kind_set */
    size_t limit;                             /* most bytes held in segments; 0: no limit */
    size_t break_max; /* most bytes that large blocks which share a segment may keep from going back, on an empty
                         device; 0: none share one */
    size_t capacity;  /* bytes that the device can give; break_max shrinks as they are handed out; 0: it does not */
    /*
     * A pool that grows gives idle segments back, the longest idle first, until it holds no more than peak_live, the
     * slack (see below) and so many bytes, or a twentieth of peak_live if that is more; or once more as much, in place
     * of a segment of which less than a quarter would be too much; or, within the bound, as much as was in use before.
     * SIZE_MAX / 2: never.
     */
    size_t excess_min;
    /*
     * The contract with the device's other users: a pool does not grow beyond 1.10 times the most that the driver would
     * have had in use for these requests, the slack and so many bytes, what is on its way back included, before the
     * memory of the requesting thread's own frees has arrived. SIZE_MAX / 2: no bound.
     */
    size_t bound_min;
    /*
     * Frees wait for company until this many bytes have been freed, and one order() serves them all: at least slack_min
     * and slack_percent of peak_live; threads that free side by side have a share of it each, which they order by
     * themselves. Both 0: every free is ordered, and orders all that was kept back.
     */
    size_t slack_min;
    unsigned int slack_percent;
};

struct pool_stats {
    uint64_t allocs, hits, misses, frees, failed; /* failed: pool_alloc calls that returned an error */
    /* Bytes: in blocks handed out or kept (rounded), in segments. peak_live is of those handed out alone. With several
     * threads it may be a little off: what each is handed without the pool's lock counts with its next request that
     * takes the lock. */
    uint64_t live, held, peak_live, peak_held;
    uint64_t idle; /* bytes in segments of which nothing is handed out */
    uint64_t segments_alloc, segments_free, oom, order, kept;
    uint64_t bound; /* requests that met the bound */
};

/* Where the bytes of a pool are, and how its free ones lie. The first seven add up to held. */
struct pool_survey {
    uint64_t live;      /* in blocks that are handed out, rounded */
    uint64_t pending;   /* in blocks that were freed and may not be handed out yet */
    uint64_t idle;      /* in segments of which nothing is handed out: they could go back */
    uint64_t holes;     /* free, in segments of which something is handed out */
    uint64_t withdrawn; /* the same, in segments that serve nobody any more */
    uint64_t skipped;   /* not to be handed out, in segments of which something is */
    uint64_t leaving;   /* in segments that are on their way back right now */
    uint64_t held;
    uint64_t ranges, segments; /* how many holes there are, and in how many segments */
    uint64_t largest;          /* bytes of the largest free range that serves requests, idle or hole */
};

/* Create a pool. The pool owns nothing of config but copies it. -ENOMEM. */
int pool_create(const struct pool_config *config, struct pool **ret_pool);

/*
 * Forget a pool: its segments are reported through segment_lost and not given back, its addresses are no longer pool
 * addresses. For a context that was destroyed or reset. No other thread may be inside a call on this pool or its
 * addresses. The descriptor is recycled; do not use it again.
 */
void pool_destroy(struct pool *pool);

/*
 * Get a block of at least size bytes (size > 0). May call backend->alloc, and with it backend->free: before, for what
 * excess_min and bound_min say, and for the limit; or after it was refused. Waits for the device only as
 * backend->reclaim does, at the bound, and as backend->collect does, after a refusal. -ENOMEM: refused, nothing could
 * be given back any more. -EAGAIN: frozen, over the limit, or over the capacity: ask the driver yourself.
 */
int pool_alloc(struct pool *pool, size_t size, uint64_t *ret_addr);

/*
 * Free a block by its address, from whichever pool it came. -ENOENT: the address lies in no pool. -EINVAL: it lies in a
 * pool but no live block starts there (double free, interior pointer). Any other error comes from order(): except after
 * -ENOTRECOVERABLE the block is no longer live and will be reused only after a later order() succeeds.
 */
int pool_free(uint64_t addr);

/* The same, for a free that is not to wait and to hold up nothing: the block is kept until a later free has been
 * ordered, or pool_alloc needs it. -ENOENT and -EINVAL as above. */
int pool_free_later(uint64_t addr);

/* The same, where nobody can say when the memory may be used again: it stays handed out. */
int pool_free_never(uint64_t addr);

/* From now on every free is ordered by itself: for a context that has failed, whose frees return its error. */
void pool_defer_never(struct pool *pool);

/* From now on no more large blocks share a segment, but where the driver refuses: for a program that exports them. */
void pool_pack_never(struct pool *pool);

/*
 * The driver has just handed out this memory. A segment of ours that lies there was given back behind our back, by
 * somebody whose calls do not pass by us: it is forgotten, with every block in it, and reported through segment_lost.
 */
void pool_disown(uint64_t addr, size_t size);

/* The pool that owns an address, or NULL. A hint unless the caller owns a live block there. Never blocks. */
struct pool *pool_of(uint64_t addr);

/* The size that was asked for of the live block that starts at addr; 0: none does. Never blocks. */
size_t pool_live_size(uint64_t addr);

/* The same, and if there is one its pool and how much of that it takes, which its size was rounded up to. */
size_t pool_live(uint64_t addr, struct pool **ret_pool, size_t *ret_block);

/* The arg of a pool's config. */
void *pool_arg(const struct pool *pool);

/* Find the live block that contains addr. -ENOENT: none. Slow (walks the segment); for IPC handles. */
int pool_block_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size, uint64_t *ret_segment);

/* Make what was kept back available again, if that takes no waiting. */
void pool_flush(struct pool *pool);

/* Give back segments of which nothing is handed out; orders what was kept back first. Returns the bytes given back; 0
 * while frozen. What other threads are giving back has gone, too, unless that takes a second. */
size_t pool_trim(struct pool *pool, const char *why);

/*
 * Give back, without hurry, segments of which nothing has been handed out since age calls of this function. For a
 * clock: how much time a call stands for is the caller's business. Returns the bytes given back; 0 while frozen.
 */
size_t pool_decay(struct pool *pool, unsigned int age);

/*
 * The segment that holds addr serves no more requests and goes back once nothing of it is handed out: somebody outside
 * has got hold of its memory and may touch it at any time. -ENOENT: no segment.
 */
int pool_withdraw(uint64_t addr);

/*
 * Segments are of this kind from now on; what a kind is, the backend knows. Those of another kind serve no more
 * requests that begin after this, and go back as after pool_withdraw; which ones are idle can go with pool_trim at
 * once. excess_min, bound_min: as in the config, from now on. Calls no function of the tables.
 */
void pool_kind_set(struct pool *pool, unsigned int kind, size_t excess_min, size_t bound_min);
unsigned int pool_kind_get(const struct pool *pool);

/* The segment that holds addr, if anything of it is handed out. -ENOENT: none, or nothing is. */
int pool_segment_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size);

/*
 * A copy of the counters. What other threads do meanwhile may be in one of them and not yet in another. For exit, where
 * a signal handler may have interrupted the holder of the lock: after a fifth of a second without the lock, the copy is
 * taken as it is.
 */
void pool_stats_get(struct pool *pool, struct pool_stats *ret_stats);

/* Walk all segments, for a report: holds the lock for as long as that takes. */
void pool_survey_get(struct pool *pool, struct pool_survey *ret_survey);

/* Check every invariant; for tests. Returns 0, or -EINVAL with a description in buf. */
int pool_check(struct pool *pool, char *buf, size_t len);

#endif
