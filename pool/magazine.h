/* SPDX-License-Identifier: Apache-2.0 */
/*
 * magazine.h - see magazine.c. The paths of a hit and a free are inline here, so that the compiler merges them with
 * their callers. Private to pool/. It does not choose free memory in segments; blocks.c and shards.c do.
 *
 * Locking: each function says which lock its caller holds. pool_internal.h says what the locks guard.
 */
#ifndef CUPOOL_POOL_MAGAZINE_H
#define CUPOOL_POOL_MAGAZINE_H

#include "pool_internal.h"

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

/* The index of this thread's magazine, modulo MAGAZINES, in every pool; for magazine_enter. */
extern __thread unsigned int magazine_place __attribute__((tls_model("initial-exec"), visibility("hidden")));
static inline struct magazine *magazine_own(struct pool *pool)
{
    return &pool->magazines[magazine_place % MAGAZINES];
}

/* The slow path of magazine_enter. */
struct magazine *magazine_enter_other(struct pool *pool);
/*
 * The magazine of this thread, locked; the caller releases the lock. The pool's lock must not be taken while it is
 * held.
 */
static inline struct magazine *magazine_enter(struct pool *pool)
{
    struct magazine *magazine = magazine_own(pool);

    if (!lock_try(&magazine->lock))
        return magazine_enter_other(pool);
    if (atomic_load_explicit(&magazine->used, memory_order_relaxed))
        return magazine;
    lock_give(&magazine->lock);
    return magazine_enter_other(pool);
}

/* visit: take the magazine's lock while its own threads wait; unlock releases it. lock: visit in order to put or defer
 * blocks there, which marks the magazine as used. */
void magazine_visit(struct magazine *magazine);
void magazine_use(struct pool *pool, struct magazine *magazine);
void magazine_lock(struct pool *pool, struct magazine *magazine);
void magazine_unlock(struct magazine *magazine);

/* A bit for each list that is not empty, in words of 64. */
static inline uint64_t recent_lists(const struct magazine *magazine, unsigned int set)
{
    return atomic_load_explicit(&magazine->recent_set[set], memory_order_relaxed);
}

static inline void recent_lists_mark(struct magazine *magazine, unsigned int set, uint64_t to)
{
    atomic_store_explicit(&magazine->recent_set[set], to, memory_order_relaxed);
}

/* With the magazine's lock: the program has got size bytes. */
static inline void handed_add(struct magazine *magazine, size_t size)
{
    const ptrdiff_t handed = balance(&magazine->handed) + (ptrdiff_t)size;

    atomic_store_explicit(&magazine->handed, handed, memory_order_relaxed);
    if (handed > balance(&magazine->handed_most))
        atomic_store_explicit(&magazine->handed_most, handed, memory_order_relaxed);
}

/* With the magazine's lock: take the first block off a list that is not empty. */
static inline struct block *recent_pop(struct magazine *magazine, unsigned int i)
{
    struct block *block = magazine->recent[i];

    magazine->recent[i] = block->link;
    if (!block->link)
        recent_lists_mark(magazine, i / 64, recent_lists(magazine, i / 64) & ~((uint64_t)1 << i % 64));
    magazine->recent_count--;
    return block;
}

/* With the magazine's lock: hand out a cached block of list i. False: none of this size. */
static inline bool magazine_take(struct magazine *magazine, unsigned int i, size_t size, size_t requested,
                                 uint64_t *ret_addr)
{
    struct block *block = magazine->recent[i];

    if (!block || block->size != size)
        return false;
    recent_pop(magazine, i);
    handed_add(magazine, size);
    count_up(&magazine->hits);
    block->requested = requested;
    *ret_addr = block->addr;
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return true;
}

/* With no lock: as magazine_take, from any magazine but own. */
bool magazines_take(struct pool *pool, const struct magazine *own, size_t requested, uint64_t *ret_addr);

/* With the magazine's lock: cache an ordered PENDING block, which may then be handed out. False: there is no room. */
static inline bool magazine_put(struct magazine *magazine, struct block *block)
{
    const unsigned int i = block->list;
    struct block **list = &magazine->recent[i];
    const bool stray = *list && (*list)->size != block->size;

    if (magazine->recent_count >= RECENT_MAX || block->segment->withdrawn ||
        (stray && magazine->strays_count >= STRAY_MAX))
        return false;
    if (stray) {
        list = &magazine->strays;
        magazine->strays_count++;
    } else if (!*list) {
        recent_lists_mark(magazine, i / 64, recent_lists(magazine, i / 64) | (uint64_t)1 << i % 64);
    }
    atomic_store_explicit(&block->state, BLOCK_RECENT, memory_order_relaxed);
    block->link = *list;
    *list = block;
    if (block->in_hole)
        magazine->has_holes = true;
    magazine->recent_count++;
    return true;
}

/* With no lock: as magazine_put, after making room; otherwise the block is coalesced. */
void magazine_put_or_join(struct pool *pool, struct magazine *magazine, struct block *block);
/* With the magazine's lock: defer a PENDING block. */
static inline void magazine_keep(struct pool *pool, struct magazine *magazine, struct block *block)
{
    if (!magazine->kept)
        atomic_fetch_add(&pool->shown.keepers, 1);
    block->link = magazine->kept;
    magazine->kept = block;
    magazine->kept_count++;
    magazine->kept_large += block->size >= LARGE_MIN;
    size_set(&magazine->kept_bytes, size_value(&magazine->kept_bytes) + native_size(block->size));
}

/* A magazine's share of the slack, in bytes. */
static inline size_t slack_share(const struct pool *pool)
{
    const unsigned int sharers = atomic_load_explicit(&pool->shown.magazines_used, memory_order_relaxed);

    return size_value(&pool->shown.slack) / (sharers ? sharers : 1);
}

/* With the magazine's lock: may it defer size bytes more? */
static inline bool magazine_has_room(const struct pool *pool, const struct magazine *magazine, size_t size)
{
    const size_t room = slack_share(pool), takes = native_size(size);

    return magazine->kept_count < KEPT_MAX && (size < LARGE_MIN || magazine->kept_large < KEPT_LARGE_MAX) &&
           takes <= room / COMPANY_PART && size_value(&magazine->kept_bytes) + takes <= room;
}

/* With no lock: take over all blocks that this magazine defers (NULL: that any does), and those of magazines that defer
 * too much. Returns the number of magazines to look at in ret_kept. */
unsigned int kept_take(struct pool *pool, const struct magazine *own, struct block *ret_kept[MAGAZINES]);
/* The bytes that all magazines defer. With no lock, so the value may be out of date. */
size_t kept_bytes(const struct pool *pool);
/* The bytes handed out, and their maximum where pool->stats.peak_live does not have it yet. Exact with all locks,
 * approximate without. */
ptrdiff_t handed_now(const struct pool *pool);
ptrdiff_t handed_most(const struct pool *pool);

/* With the magazine's lock: the program has freed size bytes. */
static inline void handed_sub(struct magazine *magazine, size_t size)
{
    atomic_store_explicit(&magazine->handed, balance(&magazine->handed) - (ptrdiff_t)size, memory_order_relaxed);
}

/* With all locks: mark empty magazines as unused until a thread comes. A thread that was driven from one to the next,
 * by the clock for example, must not have a share of the slack in each. */
void magazines_leave(struct pool *pool);
/* With the pool's lock: drop all cached and deferred blocks. */
void magazines_reset(struct pool *pool);
/* With the magazine's lock: take cached blocks off the lists of these sets and off the strays: all, or those in
 * segments of owner (NULL: the pool). The blocks returned are still RECENT. */
struct block *recent_grab(struct magazine *magazine, unsigned int first, unsigned int end, const struct magazine *owner,
                          bool all);
/* With both locks: add the magazine's counts to the pool's. */
void handed_settle(struct pool *pool, struct magazine *magazine);
/* With the pool's lock: raise the peak, and the slack with it, to `handed` bytes handed out. */
void peak_reach(struct pool *pool, ptrdiff_t handed);
/* shards.c, with the magazine's lock: hand out a block from free memory in its own segments. False: nothing fits. */
bool magazine_carve(struct pool *pool, struct magazine *magazine, size_t size, size_t requested, uint64_t *ret_addr);
/* With the pool's lock: the bytes in segments whose blocks are all cached or free, which are idle except in the books;
 * the bytes handed out or deferred at that moment; and the maximum handed out. Waits patience_ns for each magazine's
 * lock. */
size_t recent_idle(struct pool *pool, uint64_t patience_ns, size_t *ret_live, ptrdiff_t *ret_most);

#endif
