/* SPDX-License-Identifier: Apache-2.0 */
/*
 * magazine.h - caches of blocks; see magazine.c. Private to pool/. The path of a hit is inline here, so that the
 * compiler merges it with its callers. It does not choose free memory in segments; split_merge.h and shards.h do.
 *
 * Ownership: a magazine owns no block; cached ones belong to their segments.
 *
 * Locking: each function says which lock its caller holds. pool_state.h says what the locks guard. No errors: false or
 * NULL means that there is none.
 */
#ifndef CUPOOL_POOL_MAGAZINE_H
#define CUPOOL_POOL_MAGAZINE_H
#include "accounting.h"
#include "pool_state.h"

/* The index of this thread's magazine, modulo MAGAZINES, in every pool; for magazine_enter. */
extern __thread unsigned int magazine_index __attribute__((tls_model("initial-exec"), visibility("hidden")));
static inline struct magazine *magazine_own(struct pool *pool)
{
    return &pool->magazines[magazine_index % MAGAZINES];
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

/* All locks of a pool: its own and those of the magazines, whose threads wait meanwhile. */
void locks_take(struct pool *pool);
void locks_give(struct pool *pool);

/* The most blocks in a magazine whose list holds blocks of another size: coalescing them takes the pool's lock. */
#define STRAY_MAX 32u
/* The most cached blocks in a magazine, because a thread may have to coalesce all of them at once. */
#define CACHED_MAX 512u

/* A bit for each list that is not empty, in words of 64. */
static inline uint64_t cached_lists(const struct magazine *magazine, unsigned int set)
{
    return atomic_load_explicit(&magazine->cached_set[set], memory_order_relaxed);
}

static inline void cached_lists_mark(struct magazine *magazine, unsigned int set, uint64_t to)
{
    atomic_store_explicit(&magazine->cached_set[set], to, memory_order_relaxed);
}

/* With the magazine's lock: take the first block off a list that is not empty. */
static inline struct block *cached_pop(struct magazine *magazine, unsigned int i)
{
    struct block *block = magazine->cached[i];

    magazine->cached[i] = block->link;
    if (!block->link)
        cached_lists_mark(magazine, i / 64, cached_lists(magazine, i / 64) & ~((uint64_t)1 << i % 64));
    magazine->cached_count--;
    return block;
}

/* With the magazine's lock: hand out a cached block of list i. False: none of this size. */
static inline bool magazine_take(struct magazine *magazine, unsigned int i, size_t size, size_t requested,
                                 uint64_t *ret_addr)
{
    struct block *block = magazine->cached[i];

    if (!block || block->size != size)
        return false;
    cached_pop(magazine, i);
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
    struct block **list = &magazine->cached[i];

    if (magazine->cached_count >= CACHED_MAX || block->segment->withdrawn)
        return false;
    if (!*list) {
        cached_lists_mark(magazine, i / 64, cached_lists(magazine, i / 64) | (uint64_t)1 << i % 64);
    } else if ((*list)->size != block->size) {
        if (magazine->strays_count >= STRAY_MAX)
            return false;
        list = &magazine->strays;
        magazine->strays_count++;
    }
    atomic_store_explicit(&block->state, BLOCK_CACHED, memory_order_relaxed);
    block->link = *list;
    *list = block;
    if (block->in_hole)
        magazine->has_holes = true;
    magazine->cached_count++;
    return true;
}

/* With the magazine's lock: take cached blocks off the lists of these sets and off the strays: all, or those in
 * segments of owner (NULL: the pool). The blocks returned are still CACHED. */
struct block *cached_grab(struct magazine *magazine, unsigned int first, unsigned int end, const struct magazine *owner,
                          bool all);
/* With all locks: mark empty magazines as unused until a thread comes. A thread that was driven from one to the next,
 * by the clock for example, must not have a share of the deferred-free budget in each. */
void magazines_mark_unused(struct pool *pool);
/* With the pool's lock: drop all cached and deferred blocks. */
void magazines_reset(struct pool *pool);

#endif
