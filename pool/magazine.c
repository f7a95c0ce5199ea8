/* SPDX-License-Identifier: Apache-2.0 */
/*
 * magazine.c - blocks close at hand: what was freed a short while ago, whole and not merged, and what was freed and not
 * yet ordered. Most programs ask for the same sizes again and again, so most requests and frees come no further, and
 * threads that run side by side do not meet.
 *
 * A thread uses the same magazine until it finds it taken, and then goes on to the next one: threads that take turns
 * share a magazine, so that one finds what another has freed, and those that do not come to have one each.
 * What is not in a thread's own is looked for in the others before anything is joined. A block goes back to the list of
 * its magazine once it is ordered, so a thread that frees as much as it asks for does not run out. Who takes the lock
 * of a magazine that is not his own counts as a visitor there: its own thread waits for him in place of going on, and
 * finding nothing where it comes to.
 *
 * On the books of the pool a recent block is still handed out: hits and frees change nothing outside their magazine.
 * When the pool looks at bins, or at what is idle, the recent blocks join them first (recent_flush), so nothing free is
 * overlooked, and the books are right.
 *
 * What it is not: it orders nothing and asks nobody for memory.
 *
 * Locking: each function says which lock its caller has. A magazine's lock may be taken inside the pool's, not the
 * other way round, and two of them only in the order of their places.
 */
#include <stddef.h>
#include <string.h>

#include "pool_internal.h"

/* So often a thread looks for the end of a visit before it goes on to another magazine after all. */
#define PATIENCE 2048u

__thread unsigned int magazine_place __attribute__((tls_model("initial-exec")));

/* With its lock, and before a segment is looked at; recent_flush looks the other way round. */
static void magazine_use(struct pool *pool, struct magazine *magazine)
{
    if (!atomic_exchange(&magazine->used, true))
        atomic_fetch_add(&pool->shown.magazines_used, 1);
}

struct magazine *magazine_enter_other(struct pool *pool)
{
    struct magazine *magazine;

    for (unsigned int i = 0;; i++) {
        magazine = &pool->magazines[magazine_place % MAGAZINES];
        if (lock_try(&magazine->lock))
            break;
        /* A visitor is gone in a moment: who left the magazine to him would find nothing in another one. */
        if (!atomic_load_explicit(&magazine->visitors, memory_order_relaxed) || i % PATIENCE == PATIENCE - 1)
            magazine_place++;
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

/* --- recently freed --- */

static unsigned int list_of(size_t size)
{
    return (unsigned int)((uint64_t)(size / POOL_GRANULE) * 0x9e3779b97f4a7c15u >> 58);
}

static size_t value(const _Atomic size_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

/* For who has the lock; others read it without. */
static void change(_Atomic size_t *number, size_t to)
{
    atomic_store_explicit(number, to, memory_order_relaxed);
}

static uint64_t lists(const struct magazine *magazine)
{
    return atomic_load_explicit(&magazine->recent_set, memory_order_relaxed);
}

static void lists_mark(struct magazine *magazine, uint64_t to)
{
    atomic_store_explicit(&magazine->recent_set, to, memory_order_relaxed);
}

bool magazine_take(struct magazine *magazine, size_t requested, uint64_t *ret_addr)
{
    const size_t size = rounded(requested);
    const unsigned int i = list_of(size);
    struct block *block = magazine->recent[i];
    size_t left;

    if (!block || rounded(block->requested) != size)
        return false;
    magazine->recent[i] = block->link;
    if (!block->link)
        lists_mark(magazine, lists(magazine) & ~((uint64_t)1 << i));
    magazine->recent_count--;
    left = value(&magazine->recent_bytes) - block->size;
    change(&magazine->recent_bytes, left);
    if (left < value(&magazine->recent_least))
        change(&magazine->recent_least, left);
    count_up(&magazine->hits);
    block->requested = requested;
    *ret_addr = block->addr;
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    return true;
}

bool magazines_take(struct pool *pool, const struct magazine *own, size_t requested, uint64_t *ret_addr)
{
    const uint64_t list = (uint64_t)1 << list_of(rounded(requested));
    bool found = false;

    for (unsigned int i = 0; i < MAGAZINES && !found; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (magazine == own || !(lists(magazine) & list))
            continue;
        magazine_visit(magazine);
        found = magazine_take(magazine, requested, ret_addr);
        magazine_unlock(magazine);
    }
    return found;
}

bool magazine_put(struct magazine *magazine, struct block *block)
{
    const size_t size = rounded(block->requested);
    const unsigned int i = list_of(size);
    struct block **list = &magazine->recent[i];

    if (magazine->recent_count >= RECENT_MAX || block->segment->withdrawn ||
        (*list && rounded((*list)->requested) != size))
        return false;
    atomic_store_explicit(&block->state, BLOCK_RECENT, memory_order_relaxed);
    block->link = *list;
    *list = block;
    lists_mark(magazine, lists(magazine) | (uint64_t)1 << i);
    magazine->recent_count++;
    change(&magazine->recent_bytes, value(&magazine->recent_bytes) + block->size);
    return true;
}

size_t live_now(const struct pool *pool)
{
    size_t recent = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        recent += value(&pool->magazines[i].recent_bytes);
    /* A block that went from one magazine to another meanwhile may have been counted twice. */
    return recent < pool->stats.live ? pool->stats.live - recent : 0;
}

/* All recent blocks of the lists in mask, with the magazine's lock. They still count as handed out. */
static struct block *grab(struct magazine *magazine, uint64_t mask)
{
    size_t left = value(&magazine->recent_bytes);
    struct block *all = NULL, *block, *next;

    for (uint64_t set = lists(magazine) & mask; set; set &= set - 1) {
        const unsigned int i = (unsigned int)__builtin_ctzll(set);

        for (block = magazine->recent[i]; block; block = next) {
            next = block->link;
            block->link = all;
            all = block;
            left -= block->size;
            magazine->recent_count--;
        }
        magazine->recent[i] = NULL;
    }
    lists_mark(magazine, lists(magazine) & ~mask);
    change(&magazine->recent_bytes, left);
    change(&magazine->recent_least, left);
    return all;
}

/* What was grabbed joins its neighbours; with the pool's lock. */
static void join(struct pool *pool, struct block *block)
{
    struct block *next;

    for (; block; block = next) {
        next = block->link;
        used_sub(pool, block->segment, block->size);
        block_free(pool, block);
    }
}

static void peak_reach(struct pool *pool, size_t live)
{
    const unsigned int percent = pool->config.slack_percent;
    size_t slack;

    if (live <= pool->stats.peak_live)
        return;
    pool->stats.peak_live = live;
    /* What is kept is part of the peak, and not of what the percentage is of. */
    slack = live / (100 + percent) * percent;
    change(&pool->shown.slack, slack > pool->config.slack_min ? slack : pool->config.slack_min);
}

/*
 * Hits change nothing on the books: between two changes of these, live was the most when the least was recent. Exact as
 * long as one thread does it all; with several, each magazine may have had its least at another time.
 */
size_t live_most(const struct pool *pool)
{
    size_t least = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        least += value(&pool->magazines[i].recent_least);
    return least < pool->stats.live ? pool->stats.live - least : 0;
}

/* With the pool's lock. peak_live knows of the hits so far. */
static void peak_settle(struct pool *pool)
{
    peak_reach(pool, live_most(pool));
}

void recent_flush(struct pool *pool)
{
    peak_settle(pool);
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        struct magazine *magazine = &pool->magazines[i];
        struct block *blocks;

        if (!atomic_load(&magazine->used))
            continue;
        magazine_visit(magazine);
        blocks = grab(magazine, UINT64_MAX);
        magazine_unlock(magazine);
        join(pool, blocks);
    }
}

static void recent_add_up(const struct magazine *magazine)
{
    for (uint64_t set = lists(magazine); set; set &= set - 1)
        for (const struct block *block = magazine->recent[__builtin_ctzll(set)]; block; block = block->link)
            block->segment->recent += block->size;
}

size_t recent_idle(struct pool *pool, uint64_t patience_ns, size_t *ret_live)
{
    size_t recent = 0, idle = 0;
    bool taken[MAGAZINES];

    /* All locks, so that no block is seen twice or missed on its way from one magazine to another. */
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        const struct magazine *magazine = &pool->magazines[i];

        atomic_fetch_add_explicit(&pool->magazines[i].visitors, 1, memory_order_relaxed);
        taken[i] = lock_take_within(&pool->magazines[i].lock, patience_ns);
        if (taken[i])
            recent_add_up(magazine);
        recent += value(&magazine->recent_bytes);
    }
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        if (taken[i])
            lock_give(&pool->magazines[i].lock);
        atomic_fetch_sub_explicit(&pool->magazines[i].visitors, 1, memory_order_relaxed);
    }
    for (struct segment *segment = pool->segments; segment; segment = segment->next) {
        if (segment->recent && segment->recent == segment->used)
            idle += segment->size;
        segment->recent = 0;
    }
    *ret_live = recent < pool->stats.live ? pool->stats.live - recent : 0;
    return idle;
}

void used_sub(struct pool *pool, struct segment *segment, size_t size)
{
    segment->used -= size;
    pool->native -= native_size(size);
    pool->stats.live -= size;
    if (segment->used)
        return;
    segment->idle_since = pool->clock;
    pool->stats.idle += segment->size;
    if (segment->withdrawn)
        pool->shown.withdrawn += segment->size;
}

void used_add(struct pool *pool, struct segment *segment, size_t size)
{
    if (!segment->used)
        pool->stats.idle -= segment->size;
    segment->used += size;
    pool->native += native_size(size);
    peak_settle(pool);
    pool->stats.live += size;
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (value(&magazine->recent_least) != value(&magazine->recent_bytes))
            change(&magazine->recent_least, value(&magazine->recent_bytes));
    }
    peak_settle(pool);
}

void magazine_put_or_join(struct pool *pool, struct magazine *magazine, struct block *block)
{
    struct block *joining;
    bool put;

    lock_take(&pool->lock);
    peak_settle(pool);
    magazine_lock(pool, magazine);
    joining = grab(magazine, magazine->recent_count < RECENT_MAX ? (uint64_t)1 << list_of(rounded(block->requested))
                                                                 : UINT64_MAX);
    put = magazine_put(magazine, block);
    magazine_unlock(magazine);
    if (!put) {
        block->link = joining;
        joining = block;
    }
    join(pool, joining);
    lock_give(&pool->lock);
}

/* --- freed and not ordered --- */

void magazine_keep(struct pool *pool, struct magazine *magazine, struct block *block)
{
    if (!magazine->kept)
        atomic_fetch_add(&pool->shown.keepers, 1);
    block->link = magazine->kept;
    magazine->kept = block;
    magazine->kept_count++;
    change(&magazine->kept_bytes, value(&magazine->kept_bytes) + native_size(block->size));
}

/* A magazine's share of the slack. */
static size_t share(const struct pool *pool)
{
    const unsigned int sharers = atomic_load_explicit(&pool->shown.magazines_used, memory_order_relaxed);

    return value(&pool->shown.slack) / (sharers ? sharers : 1);
}

bool magazine_has_room(const struct pool *pool, const struct magazine *magazine, size_t size)
{
    const size_t room = share(pool), takes = native_size(size);

    return magazine->kept_count < KEPT_MAX && takes <= room / COMPANY_PART &&
           value(&magazine->kept_bytes) + takes <= room;
}

/* Has nobody freed into it since somebody asked this? Then who did may not come again. */
static bool is_left(struct magazine *magazine)
{
    const size_t frees = value(&magazine->frees);
    const bool left = value(&magazine->frees_seen) == frees;

    if (!left)
        change(&magazine->frees_seen, frees);
    return left;
}

void kept_take(struct pool *pool, const struct magazine *own, struct block *ret_kept[MAGAZINES])
{
    /* One other along with its own, if it is left, so that nothing stays where no thread comes any more. */
    const unsigned int turn = own ? (unsigned int)(value(&own->order) % MAGAZINES) : 0;

    for (unsigned int i = 0; i < MAGAZINES; i++) {
        struct magazine *magazine = &pool->magazines[i];

        ret_kept[i] = NULL;
        if (!atomic_load(&magazine->used))
            continue;
        /* Threads that order side by side leave each other alone, but for what nobody had been able to order. */
        if (own && magazine != own && value(&magazine->kept_bytes) <= share(pool) && (i != turn || !is_left(magazine)))
            continue;
        magazine_visit(magazine);
        ret_kept[i] = magazine->kept;
        if (magazine->kept)
            atomic_fetch_sub(&pool->shown.keepers, 1);
        magazine->kept = NULL;
        magazine->kept_count = 0;
        change(&magazine->kept_bytes, 0);
        magazine_unlock(magazine);
    }
}

size_t kept_bytes(const struct pool *pool)
{
    size_t bytes = 0;

    for (unsigned int i = 0; i < MAGAZINES; i++)
        bytes += value(&pool->magazines[i].kept_bytes);
    return bytes;
}

void magazines_leave(struct pool *pool)
{
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (!atomic_load(&magazine->used))
            continue;
        magazine_visit(magazine);
        if (!magazine->recent_count && !magazine->kept_count) {
            atomic_store(&magazine->used, false);
            atomic_fetch_sub(&pool->shown.magazines_used, 1);
        }
        magazine_unlock(magazine);
    }
}

void magazines_reset(struct pool *pool)
{
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        struct magazine *magazine = &pool->magazines[i];

        lock_take(&magazine->lock);
        memset((char *)magazine + offsetof(struct magazine, used), 0,
               sizeof(*magazine) - offsetof(struct magazine, used));
        lock_give(&magazine->lock);
    }
}
