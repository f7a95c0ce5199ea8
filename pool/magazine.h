/* SPDX-License-Identifier: Apache-2.0 */
/*
 * magazine.h - see magazine.c: what a hit and a free do is here, so that they are one function with their callers.
 * Private to pool/.
 *
 * Locking: each function says which lock its caller has. pool_internal.h says what they guard.
 */
#ifndef CUPOOL_POOL_MAGAZINE_H
#define CUPOOL_POOL_MAGAZINE_H

#include "pool_internal.h"

/* For who has the lock; others read it without. */
static inline size_t size_value(const _Atomic size_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

static inline void size_set(_Atomic size_t *number, size_t to)
{
    atomic_store_explicit(number, to, memory_order_relaxed);
}

/* For who has the magazine's lock: a part of an atomic operation is enough. */
static inline void count_up(_Atomic size_t *number)
{
    atomic_store_explicit(number, atomic_load_explicit(number, memory_order_relaxed) + 1, memory_order_relaxed);
}

static inline ptrdiff_t balance(const _Atomic ptrdiff_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

/* Where this thread's magazine is, in every pool; for magazine_enter. */
extern __thread unsigned int magazine_place __attribute__((tls_model("initial-exec"), visibility("hidden")));
static inline struct magazine *magazine_own(struct pool *pool)
{
    return &pool->magazines[magazine_place % MAGAZINES];
}

struct magazine *magazine_enter_other(struct pool *pool);
/*
 * The magazine of this thread, with its lock, which the caller gives back. The pool's lock must not be
 * taken while it is held.
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

/* Take the lock of this one, whose own thread waits meanwhile, and give it back; lock: to put or keep something there.
 */
void magazine_visit(struct magazine *magazine);
void magazine_use(struct pool *pool, struct magazine *magazine);
void magazine_lock(struct pool *pool, struct magazine *magazine);
void magazine_unlock(struct magazine *magazine);

/* The lists that are not empty, by 64. */
static inline uint64_t recent_lists(const struct magazine *magazine, unsigned int set)
{
    return atomic_load_explicit(&magazine->recent_set[set], memory_order_relaxed);
}

static inline void recent_lists_mark(struct magazine *magazine, unsigned int set, uint64_t to)
{
    atomic_store_explicit(&magazine->recent_set[set], to, memory_order_relaxed);
}

/* With the magazine's lock. The program has got so many bytes. */
static inline void handed_add(struct magazine *magazine, size_t size)
{
    const ptrdiff_t handed = balance(&magazine->handed) + (ptrdiff_t)size;

    atomic_store_explicit(&magazine->handed, handed, memory_order_relaxed);
    if (handed > balance(&magazine->handed_most))
        atomic_store_explicit(&magazine->handed_most, handed, memory_order_relaxed);
}

/* Take the first block off a list that has one. */
static inline struct block *recent_pop(struct magazine *magazine, unsigned int i)
{
    struct block *block = magazine->recent[i];

    magazine->recent[i] = block->link;
    if (!block->link)
        recent_lists_mark(magazine, i / 64, recent_lists(magazine, i / 64) & ~((uint64_t)1 << i % 64));
    magazine->recent_count--;
    return block;
}

/* With the magazine's lock. Hand out a block of list i that was freed by a request of about the same size. False: there
 * is none. */
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

/* With no lock. The same from any other magazine. */
bool magazines_take(struct pool *pool, const struct magazine *own, size_t requested, uint64_t *ret_addr);

/* With the magazine's lock. A PENDING block has been ordered and may be handed out again. False: there is no place for
 * it. */
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

/* With no lock: the same, having made place; or the block joins its neighbours. */
void magazine_put_or_join(struct pool *pool, struct magazine *magazine, struct block *block);
/* With the magazine's lock. A PENDING block is to be ordered later. */
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

/* A magazine's share of the slack. */
static inline size_t slack_share(const struct pool *pool)
{
    const unsigned int sharers = atomic_load_explicit(&pool->shown.magazines_used, memory_order_relaxed);

    return size_value(&pool->shown.slack) / (sharers ? sharers : 1);
}

/* With the magazine's lock. May it keep size bytes more for company? */
static inline bool magazine_has_room(const struct pool *pool, const struct magazine *magazine, size_t size)
{
    const size_t room = slack_share(pool), takes = native_size(size);

    return magazine->kept_count < KEPT_MAX && (size < LARGE_MIN || magazine->kept_large < KEPT_LARGE_MAX) &&
           takes <= room / COMPANY_PART && size_value(&magazine->kept_bytes) + takes <= room;
}

/* With no lock. All blocks that this magazine keeps (NULL: that any does) and those of others that keep too much; now
 * the caller's. How many magazines that may be. */
unsigned int kept_take(struct pool *pool, const struct magazine *own, struct block *ret_kept[MAGAZINES]);
/* How much all magazines keep. With no lock, so it may be over when it is told. */
size_t kept_bytes(const struct pool *pool);
/* How much is in the program's hands, and the most that was at a time, as far as pool->stats.peak_live does not know.
 * With all locks; without them, about so much. */
ptrdiff_t handed_now(const struct pool *pool);
ptrdiff_t handed_most(const struct pool *pool);

/* With the magazine's lock. The program has freed so many bytes. */
static inline void handed_sub(struct magazine *magazine, size_t size)
{
    atomic_store_explicit(&magazine->handed, balance(&magazine->handed) - (ptrdiff_t)size, memory_order_relaxed);
}

/* With all locks. Magazines that are empty are not in use, until somebody comes: those who were driven from one
 * to the next, by the clock for one, shall not have a share of the slack in each. */
void magazines_leave(struct pool *pool);
/* With the pool's lock. Nothing is recent or kept. */
void magazines_reset(struct pool *pool);
/* With the magazine's lock: off its lists and strays all, or what is of segments of owner (NULL: the pool); of the
 * lists of these sets. The blocks returned are still RECENT. */
struct block *recent_grab(struct magazine *magazine, unsigned int first, unsigned int end, const struct magazine *owner,
                          bool all);
/* With both locks: the pool learns what the magazine has counted. */
void handed_settle(struct pool *pool, struct magazine *magazine);
/* With the pool's lock. So much is in the program's hands. */
void peak_reach(struct pool *pool, ptrdiff_t handed);
/* shards.c, with the magazine's lock. Hand out a block from what is free in its own segments. False: nothing fits. */
bool magazine_carve(struct pool *pool, struct magazine *magazine, size_t size, size_t requested, uint64_t *ret_addr);
/* With the pool's lock. Bytes in segments whose blocks are all recent, or free: idle, but for the books; how much was
 * handed out or kept just then, and the most that was handed out. Waits so long for the lock of a magazine. */
size_t recent_idle(struct pool *pool, uint64_t patience_ns, size_t *ret_live, ptrdiff_t *ret_most);

#endif
