/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - a caching pool of device memory.
 *
 * It takes large segments from a backend, cuts blocks out of them, splits and merges blocks, and hands freed blocks out
 * again once an order function has made that safe. All bookkeeping is in host memory.
 *
 * It knows nothing of CUDA, NCCL, environment variables or traces; those are behind the three tables below.
 *
 * Errors: 0 or a negative errno value. Out-parameters are last and written on success only. Sizes are in bytes.
 *
 * Ownership: the pool owns its segments until it gives them back to the backend; blocks belong to the caller until
 * pool_free.
 *
 * Threads: every function may be called from any thread, except pool_destroy (see there). The pool's own lock is never
 * held while a function of one of the tables runs. The tables may not call back into the same pool.
 */
#ifndef CUPOOL_POOL_POOL_H
#define CUPOOL_POOL_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Blocks are multiples of this and aligned to it, as cudaMalloc's allocations are. */
#define POOL_GRANULE 512u
/* Segments are multiples of this and aligned to it: the driver's unit of physical memory. */
#define POOL_SEGMENT_UNIT (2u << 20)

struct pool;

/* The questions of one request to other users of the device; all zeros before the first. */
struct pool_asking {
    uint64_t since; /* the time of the first question */
    bool given;     /* some may have given memory back */
    bool over;      /* not to be asked again */
};

/* The source of segments. kind: the kind of the segment, see pool_kind_set. */
struct pool_backend_ops {
    /* Get size bytes, a multiple of POOL_SEGMENT_UNIT and aligned to it. -ENOMEM: refused for lack of memory. Any other
     * error: not now; the pool then fails the request at once. */
    int (*alloc)(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr);
    /* Give a segment back. The pool takes this for a success. The memory may arrive later, once the device has passed
     * the work ordered before; this call does not wait for that. pool_alloc calls it too, beside alloc (see
     * excess_min). */
    void (*free)(void *arg, unsigned int kind, uint64_t addr, size_t size);
    /* May be NULL. Wait until all memory given back has arrived. */
    void (*collect)(void *arg);
    /* May be NULL, which means true. True if all memory given back has arrived; *ret_arriving: the bytes that have not.
     * Waits for nothing, except perhaps for another thread's call of free. */
    bool (*collected)(void *arg, size_t *ret_arriving);
    /* May be NULL. Wait for the work that the calling thread's own frees would natively have waited for, and then for
     * memory given back behind that work only. Does not wait for work behind other threads' frees. */
    void (*reclaim)(void *arg);
    /* May be NULL, which means false. True if idle segments may be given back even while the order table says
     * frozen. */
    bool (*gives_frozen)(void *arg);
    /* May be NULL. The last step after a refusal: ask other users of the device to give back what they do not need of
     * it, size bytes or more. True: make the request again, and ask again if it is refused, because others may have
     * taken what was given. False after a limited time, and after all have answered once that they have nothing. */
    bool (*ask)(void *arg, size_t size, struct pool_asking *asking);
    /* May be NULL. True if the device has so little memory left that idle segments should not be kept. Cheap. */
    bool (*scarce)(void *arg);
};

/* The ways to order. */
enum pool_order_how {
    POOL_ORDER_ASK,    /* only if all work has ended: neither the host nor the device waits */
    POOL_ORDER_FREE,   /* as for a cudaFree: the device waits, or the host where the device cannot */
    POOL_ORDER_DEVICE, /* the device may wait, the host may not */
    POOL_ORDER_OWN,    /* as POOL_ORDER_DEVICE; the calling thread itself has freed all that this orders */
};

/* The places (streams) where blocks of pool_free_async are freed; not more than a size_t has bits. */
#define POOL_PLACES 64u

/* Makes a freed block safe to hand out again. */
struct pool_order_ops {
    /* Make all work that any thread hands to the device after this call run behind all work handed to it before. 0:
     * done. -EBUSY: impossible now (a capture is under way, or it takes a wait that `how` does not allow); the block is
     * deferred and published by a later successful call. -ENOTRECOVERABLE: impossible for ever; pool_free returns the
     * error, and the block stays live. Another error: pool_free returns it, and the block is deferred. */
    int (*order)(void *arg, enum pool_order_how how);
    /* May be NULL: the contents of blocks do not matter. Otherwise hand a fill of these bytes to the device, behind the
     * work ordered before. shared: the segment is for requests under POOL_SEGMENT_UNIT. fresh: it just came from the
     * backend. 1: done, and filled() must follow; 0: no fill is needed; or an error. */
    int (*fill)(void *arg, uint64_t addr, size_t size, bool shared, bool fresh);
    /* Required if fill is. Make work handed to the device after this call run behind the fills so far. 0; -EBUSY: not
     * now (a capture is under way); or another error. */
    int (*filled)(void *arg);
    /* True while segments may be neither taken nor given back (a capture is under way). */
    bool (*frozen)(void *arg);
    /* Required for pool_free_async. For each place the last number whose block needs no order any more, nor do those
     * before it. False: nothing is known now. */
    bool (*freed_async_ended)(void *arg, uint64_t ret_ended[POOL_PLACES]);
};

/* Observer of a pool's events. Any function may be NULL. Called without the pool's lock, on the thread that caused the
 * event. ns: durations in nanoseconds. */
struct pool_observer_ops {
    void (*segment_alloc)(void *arg, unsigned int kind, uint64_t addr, size_t size, uint64_t ns);
    /* Called before the segment goes back, so that a trace never shows its successor at the same address first. */
    void (*segment_free)(void *arg, unsigned int kind, uint64_t addr, size_t size);
    void (*trim)(void *arg, size_t released, uint64_t ns, const char *why);
    /* A request met the bound (pool_config.bound_min) for the count-th time, and waited ns for memory to arrive. */
    void (*bound)(void *arg, size_t held, size_t bound, uint64_t ns, uint64_t count);
    /* The pool is being destroyed, or the segment was disowned: it was not given back. */
    void (*segment_lost)(void *arg, unsigned int kind, uint64_t addr, size_t size);
};

/* The parameters of a pool. The tables and arg must stay valid as long as the pool. */
struct pool_config {
    const struct pool_backend_ops *backend;
    const struct pool_order_ops *order;
    const struct pool_observer_ops *observer; /* may be NULL */
    void *arg;                                /* passed to all functions above */
    unsigned int kind;                        /* of segments, until pool_kind_set */
    size_t limit;                             /* most bytes held in segments; 0: no limit */
    size_t break_max; /* most bytes that large blocks which share a segment may keep from going back, on an empty
                         device; 0: no sharing */
    size_t capacity;  /* bytes that the device can give; break_max shrinks as the pool hands them out; 0: break_max
                         is constant */
    /*
     * A growing pool gives idle segments back, first those that will probably not be used for longest, until it holds
     * no more than peak_live, three quarters of the deferred-free budget (see below) and the greater of this many bytes
     * and a twentieth of peak_live. It may hold twice that excess rather than give back a segment of which less than a
     * quarter is too much; and, within the bound, as much as was in use before. SIZE_MAX / 2: never.
     */
    size_t excess_min;
    /*
     * The contract with other users of the device: before a pool grows beyond 1.10 times the most that the driver would
     * have had in use for the same requests, plus the deferred-free budget and this many bytes, with memory on its way
     * back included, it waits for the memory of the requesting thread's own frees to arrive. SIZE_MAX / 2: no bound.
     */
    size_t bound_min;
    /*
     * Batched frees: frees are deferred until this many bytes have been freed, and one order() serves them all. This
     * budget is at least deferred_min and deferred_percent of peak_live. Threads that free side by side have a share of
     * it each, which they order by themselves. Both 0: every free is ordered, together with all deferred blocks.
     */
    size_t deferred_min;
    unsigned int deferred_percent;
};

struct pool_stats {
#define COUNTER(name, traced) uint64_t name;
#include "counters.def"
#undef COUNTER
};

/* Where the bytes of a pool are, and how its free memory is laid out. The first seven members add up to held. */
struct pool_survey {
    uint64_t live;      /* in blocks handed out, rounded */
    uint64_t pending;   /* in blocks that were freed and are not ordered yet */
    uint64_t idle;      /* in segments without a block handed out: they can go back */
    uint64_t holes;     /* free, in segments with a block handed out */
    uint64_t withdrawn; /* as holes, in segments that serve no requests any more */
    uint64_t skipped;   /* not to be handed out, in segments with a block handed out */
    uint64_t leaving;   /* in segments that are being given back now */
    uint64_t held;
    uint64_t ranges, segments; /* number of holes, and of segments with holes */
    uint64_t largest;          /* bytes of the largest free range that serves requests, idle or hole */
};

/* Create a pool, which copies *config and owns nothing of it. -ENOMEM. */
int pool_create(const struct pool_config *config, struct pool **ret_pool);

/*
 * Forget a pool whose context was destroyed or reset: its segments are reported through segment_lost and not given
 * back, and its addresses are no longer pool addresses. No other thread may be inside a call on this pool or its
 * addresses. The descriptor is recycled; do not use it again.
 */
void pool_destroy(struct pool *pool);

/*
 * Get a block of at least size bytes (size > 0). May call backend->alloc, and backend->free: before, for excess_min,
 * bound_min and the limit, or after a refusal. Waits for the device only in backend->reclaim, at the bound, and in
 * backend->collect, after a refusal. -ENOMEM: refused, and no memory is left to give back. -EAGAIN: frozen, over the
 * limit, or over the capacity: the caller should ask the driver itself, and if that has no memory, pool_alloc_refused.
 */
int pool_alloc(struct pool *pool, size_t size, uint64_t *ret_addr);

/*
 * As pool_alloc, for a request that pool_alloc has left to the driver, which has refused it. The block comes from
 * memory that is free already, wherever that lies, even where it keeps a segment from going back. Calls no function of
 * the tables, so it serves while frozen, too. -ENOENT: nothing fits.
 */
int pool_alloc_refused(struct pool *pool, size_t size, uint64_t *ret_addr);

/*
 * Free a block of any pool by its address. -ENOENT: the address is in no pool. -EINVAL: it is in a pool but no live
 * block starts there (double free, interior pointer). Any other error comes from order(): except after -ENOTRECOVERABLE
 * the block is no longer live, and is reused only after a later order() succeeds.
 */
int pool_free(uint64_t addr);

/* As pool_free, for a free that must not wait or delay anything: the block is deferred until a later free is ordered or
 * pool_alloc needs it. -ENOENT and -EINVAL as above. */
int pool_free_later(uint64_t addr);
/* As pool_free_later, for a free that natively waits for nothing. freed: its number, POOL_PLACES or more, whose
 * remainder by POOL_PLACES is its place: pool_order_ops.freed_async_ended will know that its work has ended. Or
 * POOL_FREED_UNMARKED: nothing will be known of that work. */
#define POOL_FREED_UNMARKED 1u
int pool_free_async(uint64_t addr, uint64_t freed);

/* As pool_free, for memory whose last use cannot be ordered: it counts as handed out for ever. */
int pool_free_never(uint64_t addr);

/* From now on every free is ordered by itself: for a context that has failed, whose frees return its error. */
void pool_defer_never(struct pool *pool);

/* From now on no large blocks share a segment, except after a refusal: for a program that exports them. */
void pool_pack_never(struct pool *pool);

/*
 * The driver has just handed out this memory. If a segment of a pool is there, it was given back by a call that did not
 * pass us: forget it with all its blocks, and report it through segment_lost.
 */
void pool_disown(uint64_t addr, size_t size);

/* The pool that owns an address; NULL: none. A hint, unless the caller owns a live block there. Never blocks. */
struct pool *pool_of(uint64_t addr);

/* True if a live block starts at addr. A hint, unless the caller owns that block. Never blocks. */
bool pool_is_live(uint64_t addr);
/* The size that was requested for the live block that starts at addr; 0: none does. Never blocks. The caller owns that
 * block: no other thread frees it meanwhile. */
size_t pool_live_size(uint64_t addr);

/* As pool_live_size, and if there is one, its pool and its rounded size. */
size_t pool_live(uint64_t addr, struct pool **ret_pool, size_t *ret_block);

/* The arg of a pool's config. */
void *pool_arg(const struct pool *pool);

/* Find the live block that contains addr. -ENOENT: none. Slow, because it walks the segment; for IPC handles. */
int pool_block_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size, uint64_t *ret_segment);

/* Publish deferred blocks, if that takes no wait. */
void pool_flush(struct pool *pool);

/* Whose frees are deferred now, of blocks that may be free natively. Those of pool_free_async with a number are not:
 * else their work would be known to have ended. */
enum pool_deferred {
    POOL_DEFERRED_NONE,
    POOL_DEFERRED_UNKNOWN, /* POOL_FREED_UNMARKED alone */
    POOL_DEFERRED_OTHERS,
    POOL_DEFERRED_OWN, /* some are the calling thread's */
};
enum pool_deferred pool_deferred_by(struct pool *pool);

/* As pool_flush, if pool_free_later has deferred a block since the last call that published all of them. Costs little
 * where it has not; pool_later_any says whether it has in any pool. */
void pool_flush_later(struct pool *pool);
/* The number of pools in which it has. Only publish.c writes it. */
extern atomic_uint pool_later_count;
static inline bool pool_later_any(void)
{
    return atomic_load_explicit(&pool_later_count, memory_order_relaxed) != 0;
}

/* Give back idle segments, and those that are idle once deferred blocks are ordered. Returns the bytes given back; 0
 * while frozen. Also waits for other threads: 10 seconds at most for those that give segments to the backend, 0.3 for
 * those that wait themselves. */
size_t pool_trim(struct pool *pool, const char *why);

/* As pool_trim, for another user of the device: nothing is waited for, and deferred blocks are ordered only if all work
 * has ended. */
size_t pool_yield(struct pool *pool, const char *why);

/*
 * Give back, at leisure, segments that have been idle for `age` calls of this function, and all idle ones while memory
 * is scarce. The caller, a clock, decides how much time a call stands for. Returns the bytes given back; 0 while
 * frozen.
 */
size_t pool_decay(struct pool *pool, unsigned int age);

/*
 * Another party has got access to the memory of the segment that holds addr and may touch it at any time. So the
 * segment serves no more requests, and goes back once none of its blocks is handed out. -ENOENT: no segment.
 */
int pool_withdraw(uint64_t addr);

/*
 * New segments are of this kind from now on; only the backend interprets kinds. Segments of another kind serve no
 * requests that begin after this, and go back as after pool_withdraw; pool_trim gives back the idle ones at once.
 * excess_min, bound_min: as in the config, from now on. Calls no function of the tables.
 */
void pool_kind_set(struct pool *pool, unsigned int kind, size_t excess_min, size_t bound_min);
unsigned int pool_kind_get(const struct pool *pool);

/*
 * The memory of segments goes away for a while although blocks in them are handed out, and comes back at the same
 * addresses. The caller, one thread at a time for each pool, takes it away and brings it back:
 *
 *   pool_suspend, take the memory of pool_suspended_each away, pool_suspend_end;
 *   pool_resume_begin, bring the memory of pool_suspended_each back, pool_resume_end.
 *
 * From pool_suspend on, segments of this kind serve no requests; new ones do. Blocks in them can be freed at any time.
 * A suspended segment without a block handed out goes back to the backend, as after pool_withdraw, whose `free` must
 * therefore know it; but between suspend and suspend_end, and resume_begin and resume_end, all of them stay.
 *
 * pool_suspend: 0; -EALREADY: the pool is suspended; -EBUSY: pool_withdraw has been called for a segment that holds
 * blocks, which pool_has_withdrawn asks beforehand; -ETIMEDOUT: a thread is still filling a freed block. To undo
 * a success, call pool_resume_end without pool_suspend_end.
 * pool_resume_end: resumed says whether all memory is back; if not, the segments stay suspended.
 */
int pool_suspend(struct pool *pool, unsigned int kind);
void pool_suspend_end(struct pool *pool);
void pool_resume_begin(struct pool *pool);
void pool_resume_end(struct pool *pool, bool resumed);
bool pool_is_suspended(struct pool *pool);
bool pool_has_withdrawn(struct pool *pool, unsigned int kind);

/* Functions that are called under all locks of the pool, and so must call none of it: for each suspended segment, and
 * after that (NULL: not) for each of its blocks that is handed out, by address. */
struct pool_suspended_ops {
    void (*segment)(void *arg, uint64_t addr, size_t size);
    void (*live)(void *arg, uint64_t segment, uint64_t addr, size_t size);
};
void pool_suspended_each(struct pool *pool, const struct pool_suspended_ops *ops, void *arg);

/* The most bytes that the pool holds from now on (0: no limit); what it holds beyond that stays until it is idle. */
void pool_limit_set(struct pool *pool, size_t limit);

/* The segment that holds addr, if any of its blocks is handed out. -ENOENT: no segment, or it is idle. */
int pool_segment_find(uint64_t addr, uint64_t *ret_base, size_t *ret_size);

/*
 * A copy of the counters. An action of another thread meanwhile may be in one counter and not yet in another. At exit,
 * where a signal handler may have interrupted the holder of the lock, the copy is made without the lock after a second.
 */
void pool_stats_get(struct pool *pool, struct pool_stats *ret_stats);

/* Walk all segments, for a report. Holds all locks of the pool during the walk. */
void pool_survey_get(struct pool *pool, struct pool_survey *ret_survey);

/* Check every invariant; for tests. 0, or -EINVAL with a description in buf. */
int pool_check(struct pool *pool, char *buf, size_t len);

#endif
