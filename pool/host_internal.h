/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_internal.h - the structures and functions that the files of the host pool share. Private to pool/host_*.c.
 *
 * Locking: host_pool.lock, and host_shard.lock, which may be taken while the former is held and never before it.
 * host_tokens.lock is a leaf. "The lock" is the pool's. Every function says whether its caller holds it. No function of
 * struct host_ops is called under one.
 */
#ifndef CUPOOL_POOL_HOST_INTERNAL_H
#define CUPOOL_POOL_HOST_INTERNAL_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "host_pool.h"
#include "host_sizes.h"
#include "lock.h"

/* When asking was in vain, the next request asks for this part of the time only. */
#define HOST_VAIN_PART 10
/* After a refusal the longest wait for later work that keeps enough idle memory from going back: natively that memory
 * would be the driver's already, and the work may be waiting for this thread. */
#define HOST_BUSY_NS 30000000000u
/* The longest pause between two questions. */
#define HOST_ASK_NAP_NS 50000u
/* held may exceed peak_live by this part of it, see host_pool_alloc. */
#define HOST_BOUND_PART 10
/* A block of the next size class serves if it is too large by this part at most. */
#define HOST_FIT_PART 8
/* The most tokens that are not over. Beyond that, every second one is given up. */
#define HOST_TOKENS 64u
/* Frees of so many bytes share a token. A free of as much or more has one at once, unless a combiner is at work. */
#define HOST_TOKEN_BYTES ((uint64_t)960 << 10)
/* How often a request goes on after news of what is complete, before it asks the driver for memory. Other threads have
 * then taken that often what was complete, while the driver takes as long as a thousand questions, and more. */
#define HOST_NEWS 4096
/* After so many tokens in a row that were over, the newest one is asked about, which answers for all. */
#define HOST_LUCK 8
/* Threads that contend have so many shards. So often a thread has found the lock taken before there are shards. */
#define HOST_SHARDS    16u
#define HOST_CONTENDED 64u
/* Of blocks for requests up to this size a shard keeps so many bytes, or blocks, that are freed, and as many for each
 * of a few size classes that are ready. Of larger ones it keeps so many that are freed. It knows so many live ones. */
#define HOST_SHARD_SIZE    ((size_t)128 << 10)
#define HOST_SHARD_KEPT    8u
#define HOST_SHARD_BYTES   ((size_t)256 << 10)
#define HOST_SHARD_BLOCKS  32u
#define HOST_SHARD_OUT     256u
#define HOST_SHARD_BUCKETS 256u
#define HOST_MAGAZINES     4u
/* Caches load lines in pairs. */
#define HOST_LINES 128
/* Ranges in slabs, by the greatest class that fits into them; up to HOST_SLAB. */
#define HOST_BINS     (HOST_FINE + HOST_STEPS - 1 + HOST_STEPS * 5)
#define HOST_BIN_SETS ((HOST_BINS + 63) / 64)

enum host_state {
    HOST_NOWHERE, /* about to get another state */
    HOST_FRONT,   /* the start of a slab, never handed out */
    HOST_RANGE,   /* free memory of a slab, in a bin, merged with its neighbours */
    HOST_LIVE,    /* handed out */
    HOST_WAITING, /* freed, in the waiting list of its class */
    HOST_READY,   /* freed and known to be complete, in the ready list of its class */
    HOST_LENT,    /* a shard has it; host_block.lent says more */
};

enum host_lent {
    HOST_LENT_READY, /* complete, in a magazine */
    HOST_LENT_OUT,   /* handed out, in a bucket */
    HOST_LENT_FREED, /* in the shard's list of freed blocks */
    HOST_LENT_KEPT,  /* in its list of large freed blocks, with a stamp */
};

struct host_block {
    _Alignas(HOST_LINES) uint64_t addr; /* no two shards' blocks share lines */
    size_t size;
    size_t requested; /* while it is live */
    uint64_t stamp;   /* of its last free, see struct host_pool */
    struct host_segment *segment;
    struct host_block *before, *after; /* neighbours by address in the segment */
    struct host_block *prev, *next;    /* in a list of its family or shard; next: in the list of spares */
    enum host_state state;
    enum host_lent lent; /* while a shard has it: this, requested, stamp, prev and next are guarded by its lock */
    unsigned int shard;  /* its index */
    unsigned int class;  /* of the list or the bin that it is in, or was in last */
};

/* A driver allocation. */
struct host_segment {
    uint64_t addr;
    size_t size;
    struct host_key key;
    struct host_family *family; /* while it is in the table */
    struct host_block *first;
    struct host_block **starts; /* of a slab: the block that starts at each granule; else NULL */
    struct host_segment *next;  /* in a list of segments that leave, or of spares */
    uint64_t stamp;             /* the greatest of its blocks' */
    unsigned int live;          /* number of live blocks */
    unsigned int idle_tick;     /* pool->tick when the last one was freed */
    bool lost;                  /* while it leaves: it was lost meanwhile, see host_segment_leaves */
    bool passing;               /* beyond the bound: goes back when its block is freed, or as soon as possible */
};

struct host_list {
    struct host_block *first, *last;
};

/* The memory of one key. */
struct host_family {
    struct host_key key;
    struct host_family *next;
    struct host_list waiting[HOST_CLASSES]; /* by stamp, the oldest first */
    struct host_list ready[HOST_CLASSES];   /* the last freed first */
    struct host_list bins[HOST_BINS];
    uint64_t bin_set[HOST_BIN_SETS]; /* a bit for each bin that is not empty */
};

/* Blocks of one size class that a shard may hand out. */
struct host_magazine {
    struct host_key key;
    struct host_list list;
    unsigned int class, count;
    unsigned int batch; /* so many are taken at a time: twice as many each time that all have been used */
};

/*
 * Threads that contend for the pool's lock have shards. A shard gets complete blocks from the pool, and gives freed
 * ones back, many at a time; its threads take and free them under its own lock. Large blocks stay: the shard stamps
 * them at their free, and hands them out again once they are complete. To the segment, and so to the bound, its blocks
 * are in use. Before the pool asks the driver for memory or gives some back, all shards give back theirs.
 */
struct host_shard {
    _Alignas(HOST_LINES) struct lock lock; /* guards the shard and, as host_block says, its blocks */
    uint64_t live, blocks, hits, frees;    /* to be added to the pool's; the first two may mean less than nothing */
    struct host_list freed;
    unsigned int freed_count;
    size_t freed_bytes;
    struct host_list kept; /* by stamp, the oldest first */
    unsigned int kept_count;
    unsigned int out;                               /* the number of blocks in buckets */
    struct host_magazine magazines[HOST_MAGAZINES]; /* by class */
    struct host_list buckets[HOST_SHARD_BUCKETS];   /* by address */
};

/* A token of struct host_ops, if it has been recorded already; it is recorded again and again. */
struct host_token {
    uint64_t token, epoch;
    struct host_token *next; /* by epoch, or among the unused */
    unsigned int users;      /* threads that ask about it or wait for it */
    bool gone;               /* not in the list any more, and unused once its last user has left it */
};

/*
 * Epochs: a free stamps its block with the current epoch. To record a token is to end an epoch and then to call
 * ops->record, so the token of an epoch covers all frees with that stamp or a smaller one. A block serves again once
 * its stamp is not greater than `done`, the greatest epoch whose token is known to be over.
 *
 * Recording and asking take the driver's lock, so one thread at a time, the combiner, does both for all. A free that
 * finds a combiner at work leaves its token to it; a request waits for the combiner's news, a short time only, and then
 * asks beside it. They take no lock for that: a free uses one pair of cache lines, a request looks at another one, and
 * the combiner changes both once or twice for all of them.
 */
struct host_tokens {
    _Alignas(HOST_LINES) _Atomic uint64_t done; /* requests that wait look at it all the time */
    _Alignas(HOST_LINES) _Atomic uint64_t epoch;
    _Atomic uint64_t unrecorded; /* bytes freed in the current epoch, more or less: for HOST_TOKEN_BYTES */
    atomic_bool combining;       /* there is a combiner */
    atomic_bool awaited;         /* a request has waited for news since a combiner last asked */
    atomic_uint luck;            /* so many questions in a row found their token over */
    _Atomic uint64_t recorded;   /* the greatest epoch of a token so far; that one is in the list until it is over */
    /* Guards the lists and the members of tokens. */
    _Alignas(HOST_LINES) struct lock lock;
    struct host_token *first, *unused;
    struct host_token all[HOST_TOKENS];
};

struct host_pool {
    const struct host_ops *ops;
    void *arg;
    size_t limit, bound_min;
    uint64_t ask_ns;
    atomic_bool sharded;   /* there are shards; never false again */
    atomic_uint contended; /* so often the lock was found taken, while there are none */
    struct host_tokens tokens;
    /* Guards everything below but shards, and all families, segments and blocks. */
    _Alignas(HOST_LINES) struct lock lock;
    struct host_family *families, *spare_families;
    struct host_segment **table; /* all segments, by address */
    size_t table_count, table_room;
    unsigned int tick;    /* calls of host_pool_decay */
    uint64_t pending;     /* bytes of requests that wait for the driver or for room; natively they would be in use */
    uint64_t native_peak; /* the most of live and pending bytes so far */
    bool vain;            /* to ask for other threads' memory was in vain the last time */
    struct host_segment *leaving; /* detached, and about to go back to the driver */
    struct host_block *spare_blocks;
    struct host_segment *spare_segments;
    void *spare_starts;
    struct host_stats stats; /* without what shards have not added yet */
    struct host_shard shards[HOST_SHARDS];
};

/* --- host_descriptors.c: host memory for descriptors, and the table of segments. With the lock. --- */

void *host_pages(size_t size);
/* Its members have any values. NULL: no host memory. */
struct host_block *host_block_new(struct host_pool *pool);
void host_block_retire(struct host_pool *pool, struct host_block *block);
/* slab: with starts. */
struct host_segment *host_segment_new(struct host_pool *pool, bool slab);
void host_segment_retire(struct host_pool *pool, struct host_segment *segment);
static inline bool host_keys_equal(const struct host_key *a, const struct host_key *b)
{
    return a->owner == b->owner && a->numa == b->numa && a->flags == b->flags;
}

/* Find or make the family of a key. NULL: no host memory. Valid until the lock is released. */
struct host_family *host_family_get(struct host_pool *pool, const struct host_key *key);
/* The owner has no segments any more: recycle its families. */
void host_families_retire(struct host_pool *pool, uint64_t owner);
int host_table_add(struct host_pool *pool, struct host_segment *segment);
void host_table_remove(struct host_pool *pool, struct host_segment *segment);
/* The number of segments that begin at addr or before it. */
size_t host_table_index(const struct host_pool *pool, uint64_t addr);
/* The segment that contains addr, or NULL. */
struct host_segment *host_table_find(const struct host_pool *pool, uint64_t addr);

/* --- host_lists.c. With the lock. --- */

static inline void host_list_push(struct host_list *list, struct host_block *block, bool first)
{
    struct host_block *prev = first ? NULL : list->last, *next = first ? list->first : NULL;

    block->prev = prev;
    block->next = next;
    *(prev ? &prev->next : &list->first) = block;
    *(next ? &next->prev : &list->last) = block;
}

static inline void host_list_remove(struct host_list *list, struct host_block *block)
{
    *(block->prev ? &block->prev->next : &list->first) = block->next;
    *(block->next ? &block->next->prev : &list->last) = block->prev;
}

/* Put a freed block into the list for its stamp. */
void host_put(struct host_pool *pool, struct host_block *block);
/* Make a block that is in no list a range, in a bin. */
void host_bin_add(struct host_block *block);
/* Take a block out of the list or bin that its state names. */
void host_unlist(struct host_pool *pool, struct host_block *block);
/* A complete block of this class, or NULL. It stays in its list. */
struct host_block *host_class_take(struct host_pool *pool, struct host_family *family, unsigned int class);
/* As host_class_take, but for a shard: out of its list, and in use. NULL: none that may stay in a shard. */
struct host_block *host_ready_take(struct host_pool *pool, struct host_family *family, unsigned int class);
/* A block of the segment is in use, or not any more. */
void host_segment_enter(struct host_pool *pool, struct host_segment *segment);
void host_segment_leave(struct host_pool *pool, struct host_segment *segment);

/* --- host_blocks.c: blocks, slabs. With the lock. --- */

/* Hand out a complete block for the request, or NULL. any_larger: also one that is much too large. *ret_stamp: the
 * stamp of a block that would serve it if it were complete, or 0. */
struct host_block *host_take(struct host_pool *pool, struct host_family *family, size_t size, bool any_larger,
                             uint64_t *ret_stamp);
/* The least and the greatest stamp of blocks that host_coalesce would merge if they were complete, or 0. */
void host_coalesce_stamps(const struct host_family *family, uint64_t *ret_oldest, uint64_t *ret_newest);
/* Merge all complete small blocks of the family with their free neighbours. */
void host_coalesce(struct host_pool *pool, struct host_family *family);
/* Enter a segment into the table and its family, with free blocks. -ENOMEM: nothing is changed. */
int host_segment_attach(struct host_pool *pool, struct host_segment *segment);
/* Take a segment out of the table and all lists, and retire its blocks. */
void host_segment_detach(struct host_pool *pool, struct host_segment *segment);
/* Live or pending bytes have changed. patient: else the peaks stay if a shard's lock is not to be had. */
void host_native_peak_raise(struct host_pool *pool, bool patient);
/* Hand out a block that is in a list. */
void host_hand_out(struct host_pool *pool, struct host_block *block, size_t size);
/* Count a live block as freed and stamp it; it is in no list yet. */
void host_hand_back(struct host_pool *pool, struct host_block *block);

/* --- host_shards.c. All but flush, sync and lock only where the pool is sharded. --- */

static inline bool host_is_sharded(const struct host_pool *pool)
{
    return atomic_load_explicit(&pool->sharded, memory_order_relaxed);
}
/* The slow path of host_lock. */
void host_lock_wait(struct host_pool *pool);
/* Take the pool's lock; count how often that had to wait. */
static inline void host_lock(struct host_pool *pool)
{
    if (!lock_try(&pool->lock))
        host_lock_wait(pool);
}
/* Without the lock: serve the request from this thread's shard. */
bool host_shard_alloc(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr);
/* Without the lock: free a block that this thread's shard has handed out. False: it has not. *ret_rc: as
 * host_pool_free's. */
bool host_shard_free(struct host_pool *pool, uint64_t addr, int *ret_rc);
/* Without the lock: a block that this thread's shard has handed out; as host_pool_find. */
bool host_shard_find(struct host_pool *pool, uint64_t addr, size_t *ret_size, struct host_key *ret_key);
/* With the lock: lend this thread's shard a block that has just been handed out for a request of this size, and, unless
 * that is a large one, others of its class. */
void host_shard_fill(struct host_pool *pool, struct host_block *block, size_t size);
/* With the lock, a LENT block: take it back from its shard, as a live one or into a list. True: it is live. */
bool host_shard_recall(struct host_pool *pool, struct host_block *block);
/* With the lock: all shards give back what is not handed out. patient: else without those whose lock is not to be had.
 */
void host_shards_flush(struct host_pool *pool, bool patient);
/* With the lock: add up the shards' counters. False, if not patient: a shard's lock is not to be had, and nothing has
 * been added. */
bool host_shards_sync(struct host_pool *pool, bool patient);
/* As host_shards_sync, and keep the shards' threads out. */
bool host_shards_lock(struct host_pool *pool, bool patient);
void host_shards_unlock(struct host_pool *pool);

/* --- host_tokens.c: what is complete. Without the lock, but for host_is_done and host_stamp, which do not mind. --- */

void host_tokens_init(struct host_tokens *tokens);
/* Drop all tokens: no other thread is inside a call. */
void host_tokens_drop(struct host_pool *pool);
/* Is memory with this stamp complete? */
static inline bool host_is_done(const struct host_pool *pool, uint64_t stamp)
{
    return stamp <= atomic_load_explicit(&pool->tokens.done, memory_order_acquire);
}
/* The stamp of a free. The caller has taken a lock in this free: whatever the program launched before must be visible
 * to a thread that ends the epoch after this. */
static inline uint64_t host_stamp(const struct host_pool *pool)
{
#if !defined(__x86_64__) /* there the exchange in lock_try is this fence */
    atomic_thread_fence(memory_order_seq_cst);
#endif
    return atomic_load(&pool->tokens.epoch);
}
/* End the epoch; host_tokens_record must follow. */
uint64_t host_tokens_begin(struct host_pool *pool);
/* Record the token of an epoch that host_tokens_begin has ended. */
int host_tokens_record(struct host_pool *pool, uint64_t epoch);
/* Bytes have been freed, and stamped, that a later token will cover. */
static inline void host_tokens_deferred(struct host_pool *pool, size_t size)
{
    atomic_fetch_add(&pool->tokens.unrecorded, size);
}
/* Bytes have been freed and stamped: record a token if there are enough, unless a combiner is at work, which does. */
int host_tokens_freed(struct host_pool *pool, size_t size);
/* Find out whether memory with this stamp is complete, recording a token if none covers it. False: it is not, or cannot
 * be asked about. True: there is news, perhaps another combiner's; look again. */
bool host_tokens_news(struct host_pool *pool, uint64_t stamp);
/* Ask whether memory with this stamp is complete, recording a token if none covers it. */
bool host_tokens_ask(struct host_pool *pool, uint64_t stamp);
/* Wait for the token of this epoch, as ops->wait does. -ESRCH: there is none. */
int host_tokens_wait(struct host_pool *pool, uint64_t epoch, uint64_t owner);
/* The calling thread has recorded the token of this epoch in a free: no later work of this thread is covered by it. */
void host_last_free_set(const struct host_pool *pool, uint64_t epoch);
/* Wait for the work in this owner's context that the calling thread's last free would natively have waited for. False:
 * there is nothing to be waited for, any more. */
bool host_last_free_wait(struct host_pool *pool, uint64_t owner);
/* True if that work is not over, or later work that its token covers. */
bool host_last_free_unfinished(struct host_pool *pool);

/* --- host_bound.c: how much is held, and how it goes back. Without the lock, unless a function says otherwise. --- */

/* True if a block of this size may serve a request: it is large enough, and not much too large. */
static inline bool host_fits(size_t block, size_t request)
{
    return host_class_within(block) >= host_class_of(request) && block <= request + request / HOST_FIT_PART;
}
/* With the lock: the bytes by which the pool would exceed its bound if it held `more` bytes more. */
size_t host_excess(const struct host_pool *pool, size_t more);
/* With the lock: detach a segment; host_segment_give must follow. If its owner goes meanwhile, or the driver hands its
 * memory out, it is not kept. */
void host_segment_leaves(struct host_pool *pool, struct host_segment *segment);
/* Give back a segment that leaves, or was never attached; false: it is kept, and attached again. */
bool host_segment_give(struct host_pool *pool, struct host_segment *segment, bool may_wait);
/* True if the work of all idle memory is over. Idle memory that could not go back then is kept by later work on its
 * device. */
bool host_idle_is_complete(struct host_pool *pool);
/* The bytes of idle memory that is known to be complete. */
size_t host_idle_complete(struct host_pool *pool);
/* The request that memory goes back for. */
struct host_need {
    const struct host_key *key;
    size_t size;
};
/* Give back idle memory that has been idle for `age` ticks, the longest idle first, until `enough` bytes went back, but
 * none that would serve the request (NULL: for none). Returns the bytes. */
size_t host_release(struct host_pool *pool, size_t enough, unsigned int age, bool may_wait,
                    const struct host_need *need);

#endif
