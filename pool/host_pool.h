/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_pool.h - a caching pool of pinned host memory.
 *
 * The processor may write into a block at once, so no order on the device makes a reused block safe. A freed block is
 * handed out again only when all work launched before its free has completed. Until then a request gets another block,
 * or memory from the driver.
 *
 * Requests of more than HOST_SMALL_MAX get a whole driver allocation each, in size classes that waste 12.5 % at most.
 * Smaller requests share allocations of HOST_SLAB bytes, whose first bytes are never handed out: a library that
 * bypasses the pool and frees a small block by the driver gets an error and does not free the block's neighbours.
 *
 * It knows nothing of CUDA and never touches the memory. It is not the pool of device memory (pool.h), which orders
 * frees on the device.
 *
 * Errors: 0 or a negative errno value. Out-parameters are last and written on success only. Sizes are in bytes.
 *
 * Ownership: the pool owns its segments until it gives them back; blocks belong to the caller until host_pool_free.
 *
 * Threads: every function may be called from any thread, except host_pool_destroy. The pool's lock is never held while
 * a function of struct host_ops runs. These functions may not call back into the same pool.
 */
#ifndef CUPOOL_POOL_HOST_POOL_H
#define CUPOOL_POOL_HOST_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Small blocks are multiples of this and aligned to it; from HOST_PAGE on they are multiples of HOST_PAGE. */
#define HOST_GRANULE 512u
#define HOST_PAGE    4096u
#define HOST_SLAB    ((size_t)2 << 20)
/* Requests up to this size share slabs; larger ones get driver allocations of their own. Two of them fit into a slab.
 */
#define HOST_SMALL_MAX ((size_t)960 << 10)

struct host_pool;

/* Memory serves only requests with an equal key: the context that owns it, where its pages lie, the driver's flags. */
struct host_key {
    uint64_t owner;
    uint64_t numa;
    unsigned int flags;
};

struct host_ops {
    /* Allocate size bytes from the driver. -ENOMEM: refused for lack of memory. Another error: the request fails at
     * once. */
    int (*alloc)(void *arg, const struct host_key *key, size_t size, uint64_t *ret_addr);
    /* Give memory back to the driver. may_wait: the call may wait for work that is under way, as the driver's own free
     * does. -EBUSY: not now (it would have to wait, or a capture is under way); the pool keeps the memory. Other
     * results: the memory is gone, or lost. */
    int (*free)(void *arg, const struct host_key *key, uint64_t addr, size_t size, bool may_wait);
    /* Record a token: it is over when all work that any thread has launched before this call has completed, on every
     * context. *token: 0, and then one is made, or one that no thread asks about or waits for, to be used again.
     * -EBUSY: not now (a capture is under way). Waits for no work. After an error, *token may be used again all the
     * same. */
    int (*record)(void *arg, uint64_t *token);
    /* 1: the token is over. 0: it is not. -EBUSY: not to be asked now. Another error: unknown. Never waits. Several
     * threads may ask about one token. */
    int (*query)(void *arg, uint64_t token);
    /* Wait until the work of this owner's context that the token covers is over; other contexts' may not be.
     * -ETIMEDOUT: it has taken too long. */
    int (*wait)(void *arg, uint64_t token, uint64_t owner);
    /* The pool does not use the token any more: it is about to be destroyed. */
    void (*drop)(void *arg, uint64_t token);
    /* May be NULL. The pool has this memory now; the alloc took ns nanoseconds. Memory that it overlaps was reported as
     * lost.
     */
    void (*got)(void *arg, const struct host_key *key, uint64_t addr, size_t size, uint64_t ns);
    /* May be NULL. Memory was forgotten without ops->free: its context has ended, or another call has freed it. */
    void (*lost)(void *arg, const struct host_key *key, uint64_t addr, size_t size);
};

struct host_config {
    const struct host_ops *ops; /* stays valid as long as the pool */
    void *arg;                  /* passed to its functions */
    size_t limit;               /* most bytes of cached and live memory; 0: no limit */
    size_t bound_min;           /* see host_pool_alloc */
    uint64_t ask_ns;            /* how long a request asks whether other threads' memory has become idle */
    bool sharded;               /* as if threads had contended for the pool already, see host_internal.h; for tests */
};

/* Segments are driver allocations; live and peak_live are bytes that were requested, rounded to granules. */
struct host_stats {
#define HOST_COUNTER(name) uint64_t name;
#define HOST_OWN(name)     uint64_t name;
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
};

/* Create a pool, which copies *config. -ENOMEM. */
int host_pool_create(const struct host_config *config, struct host_pool **ret_pool);

/* Forget everything; memory is not given back but reported as lost. No other thread may be inside a call. */
void host_pool_destroy(struct host_pool *pool);

/*
 * Get at least size bytes (size > 0).
 *
 * The bound: the pool, with what is on its way back, holds no more than 1.10 times the most that was live at a time
 * and bound_min, and no more than the limit. A request that would exceed it first gives idle memory back, then waits
 * for the calling thread's own last free, for which the driver's free would have waited, then asks for a short time
 * whether other memory has become idle. Last, it gets a block of its own that goes back to the driver when it is freed.
 *
 * When the driver refuses, all idle memory goes back, except memory that later work keeps. One block of that memory
 * serves the request if it is large enough. If such memory is enough in all, or the calling thread's last free left its
 * token to another thread, or could not be waited for, the request asks until the work is over, for 30 s at most.
 *
 * -ENOMEM: the driver refused, even after that. Otherwise an error of ops->alloc.
 */
int host_pool_alloc(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr);

/*
 * Free a block by its address. -ENOENT: the address is in no segment of the pool. -EINVAL: it is in one, but no live
 * block starts there (double free, interior pointer). Another error comes from record: the block is freed all the same,
 * and serves again only when a later token is over.
 */
int host_pool_free(struct host_pool *pool, uint64_t addr);

/* Results as host_pool_free's, without freeing. 0: a live block starts at addr; its requested size and key. */
int host_pool_find(struct host_pool *pool, uint64_t addr, size_t *ret_size, struct host_key *ret_key);

/* The live block that contains addr: its start, its requested size. -ENOENT: the address is in no segment of the pool.
 * -EINVAL: it is in one, but in no live block, or beyond the requested size. */
int host_pool_block(struct host_pool *pool, uint64_t addr, uint64_t *ret_base, size_t *ret_size);

/* Give back all idle memory that is complete. may_wait: as for ops->free. Returns the bytes given back. */
size_t host_pool_trim(struct host_pool *pool, bool may_wait);

/* As host_pool_trim without waiting, for memory that has been idle for `age` calls of this function. */
size_t host_pool_decay(struct host_pool *pool, unsigned int age);

/* The owner's memory is gone, live blocks included, because its context has ended: forget it. */
void host_pool_owner_gone(struct host_pool *pool, uint64_t owner);

/* The driver has handed out this memory. Segments of the pool that overlap it were freed by a call that did not pass
 * the pool: forget them. */
void host_pool_disown(struct host_pool *pool, uint64_t addr, size_t size);

/* A copy of the counters. */
void host_pool_stats_get(struct host_pool *pool, struct host_stats *ret_stats);

/* Check every invariant; for tests. 0, or -EINVAL with a description in buf. */
int host_pool_check(struct host_pool *pool, char *buf, size_t len);

#endif
