/* SPDX-License-Identifier: Apache-2.0 */
/*
 * magazine.c - caches of blocks: blocks freed a short while ago, whole and not coalesced, and freed blocks that are not
 * ordered yet (deferred). Most programs request the same sizes again and again, so most requests and frees need nothing
 * else, and threads that run side by side do not contend.
 *
 * A thread uses the same magazine until it finds it locked, and then goes on to the next one. So threads that take
 * turns share a magazine, and one finds the blocks that another has freed, while threads that run side by side soon
 * have one each. A request looks into the other magazines before anything is coalesced. An ordered block goes back to
 * the list of its magazine, so a thread that frees as much as it requests does not run out. A thread that takes the
 * lock of another thread's magazine counts as a visitor there: the owner waits for it instead of going on to a magazine
 * where it would find nothing.
 *
 * Small blocks have one of a few sizes (rounded), so that most requests of any small size find a block. Large blocks
 * serve only requests of their own size; those for which there is no list are strays. Large blocks are coalesced when a
 * large request of the thread looks at the bins; all blocks are before the pool grows or idle memory is examined
 * (coalesce_all), so no free memory is overlooked, and the books are right.
 *
 * In the pool's books a cached block counts as used, so hits and frees change nothing outside their magazine. Each
 * magazine counts the bytes that it has handed out, and the pool adds them up now and then (handed_collect).
 *
 * It orders nothing and asks no one for memory.
 *
 * Locking: each function says which lock its caller holds. A magazine's lock may be taken inside the pool's, not the
 * other way round, and two of them only in the order of their indices.
 */
#include <stddef.h>
#include <string.h>

#include "magazine.h"

/* The number of polls for the end of a visit before a thread goes on to another magazine. */
#define PATIENCE 2048u

__thread unsigned int magazine_index __attribute__((tls_model("initial-exec")));

/* With the magazine's lock. */
void magazine_use(struct pool *pool, struct magazine *magazine)
{
    if (!atomic_exchange(&magazine->used, true))
        atomic_fetch_add(&pool->shown.magazines_used, 1);
}

/* While the pool's lock is held, no thread comes to magazines beyond pool->shown.magazine_count. */
static void magazine_count_raise(struct pool *pool, unsigned int past)
{
    lock_take(&pool->lock);
    if (magazine_count(pool) < past)
        atomic_store(&pool->shown.magazine_count, past);
    lock_give(&pool->lock);
}

static bool is_visited(const struct magazine *magazine)
{
    return atomic_load_explicit(&magazine->visitors, memory_order_relaxed) != 0;
}

struct magazine *magazine_enter_other(struct pool *pool)
{
    struct magazine *magazine;

    for (unsigned int i = 0;; i++) {
        const unsigned int index = magazine_index % MAGAZINES;

        magazine = &pool->magazines[index];
        if (index >= magazine_count(pool))
            magazine_count_raise(pool, index + 1);
        if (lock_try(&magazine->lock))
            break;
        /* A visitor is gone in a moment: a thread that left its magazine would find nothing in another one, and would
         * have a smaller share of the deferred-free budget. The visitor may have gone before this check: try again. */
        if (!is_visited(magazine)) {
            if (lock_try(&magazine->lock))
                break;
            magazine_index += !is_visited(magazine);
        } else if (i % PATIENCE == PATIENCE - 1) {
            magazine_index++;
        }
        lock_relax(i / MAGAZINES);
    }
    magazine_use(pool, magazine);
    return magazine;
}

void magazine_visit(struct magazine *magazine)
{
    atomic_fetch_add_explicit(&magazine->visitors, 1, memory_order_relaxed);
    lock_take(&magazine->lock);
}

void magazine_unlock(struct magazine *magazine)
{
    lock_give(&magazine->lock);
    atomic_fetch_sub_explicit(&magazine->visitors, 1, memory_order_relaxed);
}

void magazine_lock(struct pool *pool, struct magazine *magazine)
{
    magazine_visit(magazine);
    magazine_use(pool, magazine);
}

void locks_take(struct pool *pool)
{
    unsigned int count;

    lock_take(&pool->lock);
    count = magazine_count(pool);
    for (unsigned int i = 0; i < count; i++)
        magazine_visit(&pool->magazines[i]);
}

void locks_give(struct pool *pool)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++)
        magazine_unlock(&pool->magazines[i]);
    lock_give(&pool->lock);
}

bool magazines_take(struct pool *pool, const struct magazine *own, size_t requested, uint64_t *ret_addr)
{
    const unsigned int count = magazine_count(pool);
    unsigned int list;
    size_t size;
    bool found = false;

    if (count == 1 && own)
        return false;
    size = size_class(requested, &list);
    for (unsigned int i = 0; i < count && !found; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (magazine == own || !(cached_lists(magazine, list / 64) >> list % 64 & 1))
            continue;
        magazine_visit(magazine);
        found = magazine_take(magazine, list, size, requested, ret_addr);
        magazine_unlock(magazine);
    }
    return found;
}

/* Move the blocks of the owner's segments (all: every block) from a list to another one; decrements *count for each. */
static struct block *pick(struct block **link, const struct magazine *owner, bool all, struct block *to,
                          unsigned int *count)
{
    struct block *block;

    while ((block = *link)) {
        if (!all && block->segment->owner != owner) {
            link = &block->link;
            continue;
        }
        *link = block->link;
        block->link = to;
        to = block;
        --*count;
    }
    return to;
}

struct block *cached_grab(struct magazine *magazine, unsigned int first, unsigned int end, const struct magazine *owner,
                          bool all)
{
    const unsigned int strays = magazine->strays_count;
    struct block *blocks = NULL;

    if (magazine->strays)
        blocks = pick(&magazine->strays, owner, all, NULL, &magazine->strays_count);
    magazine->cached_count -= strays - magazine->strays_count;
    for (unsigned int set = first; set < end; set++) {
        uint64_t lists = cached_lists(magazine, set);

        for (uint64_t left = lists; left; left &= left - 1) {
            const unsigned int i = set * 64 + (unsigned int)__builtin_ctzll(left);

            blocks = pick(&magazine->cached[i], owner, all, blocks, &magazine->cached_count);
            if (!magazine->cached[i])
                lists &= ~((uint64_t)1 << i % 64);
        }
        cached_lists_mark(magazine, set, lists);
    }
    return blocks;
}

void magazines_mark_unused(struct pool *pool)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (atomic_load(&magazine->used) && !magazine->cached_count && !magazine->deferred_count) {
            atomic_store(&magazine->used, false);
            atomic_fetch_sub(&pool->shown.magazines_used, 1);
        }
    }
}

void magazines_reset(struct pool *pool)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        lock_take(&magazine->lock);
        memset((char *)magazine + offsetof(struct magazine, used), 0,
               sizeof(*magazine) - offsetof(struct magazine, used));
        lock_give(&magazine->lock);
    }
}
