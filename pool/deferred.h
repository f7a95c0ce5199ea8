/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.h - freed blocks that are not ordered yet: deferred in a magazine, so that one order() serves many frees.
 * Private to pool/. It orders nothing; publish.h does.
 *
 * Ownership: deferred blocks belong to their segments; the lists only name them.
 *
 * Locking: each function says which lock its caller holds. No errors.
 */
#ifndef CUPOOL_POOL_DEFERRED_H
#define CUPOOL_POOL_DEFERRED_H
#include "magazine.h"
#include "pool_state.h"

/* The most deferred blocks in a magazine: once ordered they must fit among the cached ones. */
#define DEFERRED_MAX (CACHED_MAX / 4)
/* The most large deferred blocks: ordering a little more often costs little, and other requests need their memory. */
#define DEFERRED_LARGE_MAX 32u
/* A block that takes more than this part of a magazine's share of the deferred-free budget is ordered at once: few
 * others would fit beside it. */
#define BATCH_PART 4u

/* block->freed of a block whose work pool_order_ops.freed_async_ended will know of. */
static inline bool freed_is_marked(uint64_t freed)
{
    return freed >= POOL_PLACES;
}

/* With the magazine's lock: it defers a block of pool_free_async with this number. Returns the places with its own. */
static inline size_t deferred_async_note(struct magazine *magazine, size_t places, uint64_t freed)
{
    const size_t place = (size_t)1 << freed % POOL_PLACES;
    uint64_t *first = &magazine->deferred_first[freed % POOL_PLACES];

    if (!(places & place) || freed < *first)
        *first = freed;
    return places | place;
}

/* With the magazine's lock: defer a PENDING block, whose freed and freed_by the thread that freed it has set. */
static inline void magazine_defer_again(struct pool *pool, struct magazine *magazine, struct block *block)
{
    const size_t size = block->size;

    if (freed_is_marked(block->freed))
        size_set(&magazine->deferred_async,
                 deferred_async_note(magazine, size_value(&magazine->deferred_async), block->freed));
    if (!magazine->deferred)
        atomic_fetch_add(&pool->shown.deferring, 1);
    block->link = magazine->deferred;
    magazine->deferred = block;
    magazine->deferred_count++;
    if (size >= LARGE_MIN)
        magazine->deferred_large++;
    book(&magazine->deferred_bytes, native_size(size));
}

/* As magazine_defer_again, for a block that the calling thread frees. freed: see struct block. */
static inline void magazine_defer(struct pool *pool, struct magazine *magazine, struct block *block, uint64_t freed)
{
    block->freed = freed;
    block->freed_by = &magazine_index;
    magazine_defer_again(pool, magazine, block);
}

/* A magazine's share of the deferred-free budget, in bytes. */
static inline size_t budget_share(const struct pool *pool)
{
    const unsigned int sharers = atomic_load_explicit(&pool->shown.magazines_used, memory_order_relaxed);

    return size_value(&pool->shown.budget) / (sharers ? sharers : 1);
}

/* With the magazine's lock: may it defer size bytes more? */
static inline bool magazine_has_room(const struct pool *pool, const struct magazine *magazine, size_t size)
{
    const size_t room = budget_share(pool), takes = native_size(size);

    return magazine->deferred_count < DEFERRED_MAX &&
           (size < LARGE_MIN || magazine->deferred_large < DEFERRED_LARGE_MAX) && takes <= room / BATCH_PART &&
           size_value(&magazine->deferred_bytes) + takes <= room;
}

/* With no lock: take over all blocks that this magazine defers (NULL: that any does), and those of magazines that defer
 * too much. Returns the number of magazines to look at in ret_deferred, 0 if none had any. */
unsigned int deferred_take(struct pool *pool, const struct magazine *own, struct block *ret_deferred[MAGAZINES]);
/* With no lock: is a block of pool_free_async deferred? */
bool deferred_async_any(const struct pool *pool);
/* As deferred_take, those of pool_free_async alone up to these numbers, one for each place. */
unsigned int deferred_take_async(struct pool *pool, const uint64_t ended[POOL_PLACES],
                                 struct block *ret_deferred[MAGAZINES]);
/* The bytes that all magazines defer. With no lock, so the value may be out of date. */
size_t deferred_bytes(const struct pool *pool);

#endif
