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
 * Small blocks have one of a few sizes (rounded), so that most requests of any small size find a block. Large ones are
 * found by requests of the same size alone; those for which there is no list wait as strays. What is large joins its
 * neighbours when a large request of the thread looks at bins; everything does before the pool grows, or anybody looks
 * at what is idle (recent_flush), so nothing free is overlooked, and the books are right.
 *
 * On the books of the pool a recent block is still used: hits and frees change nothing outside their magazine. What is
 * in the program's hands each magazine counts for itself, and the pool learns of it now and then (handed_settle).
 *
 * What it is not: it orders nothing and asks nobody for memory.
 *
 * Locking: each function says which lock its caller has. A magazine's lock may be taken inside the pool's, not the
 * other way round, and two of them only in the order of their places.
 */
#include <stddef.h>
#include <string.h>

#include "magazine.h"

/* So often a thread looks for the end of a visit before it goes on to another magazine after all. */
#define PATIENCE 2048u

__thread unsigned int magazine_place __attribute__((tls_model("initial-exec")));

/* With its lock. */
void magazine_use(struct pool *pool, struct magazine *magazine)
{
    if (!atomic_exchange(&magazine->used, true))
        atomic_fetch_add(&pool->shown.magazines_used, 1);
}

/* With the pool's lock held, no thread comes to the magazines beyond. */
static void places_reach(struct pool *pool, unsigned int past)
{
    lock_take(&pool->lock);
    if (places(pool) < past)
        atomic_store(&pool->shown.places, past);
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
        const unsigned int place = magazine_place % MAGAZINES;

        magazine = &pool->magazines[place];
        if (place >= places(pool))
            places_reach(pool, place + 1);
        if (lock_try(&magazine->lock))
            break;
        /* A visitor is gone in a moment: a thread that left the magazine to it would find nothing in another one, and
         * its share of the slack would be less. The one that was met may have gone before this looks: try again. */
        if (!is_visited(magazine)) {
            if (lock_try(&magazine->lock))
                break;
            magazine_place += !is_visited(magazine);
        } else if (i % PATIENCE == PATIENCE - 1) {
            magazine_place++;
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

/* --- recently freed --- */

bool magazines_take(struct pool *pool, const struct magazine *own, size_t requested, uint64_t *ret_addr)
{
    const unsigned int count = places(pool);
    unsigned int list;
    size_t size;
    bool found = false;

    if (count == 1 && own)
        return false;
    size = size_class(requested, &list);
    for (unsigned int i = 0; i < count && !found; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (magazine == own || !(recent_lists(magazine, list / 64) >> list % 64 & 1))
            continue;
        magazine_visit(magazine);
        found = magazine_take(magazine, list, size, requested, ret_addr);
        magazine_unlock(magazine);
    }
    return found;
}

/* Move what is of such segments from a list to another one; counts them down. */
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

struct block *recent_grab(struct magazine *magazine, unsigned int first, unsigned int end, const struct magazine *owner,
                          bool all)
{
    const unsigned int strays = magazine->strays_count;
    struct block *blocks = NULL;

    if (magazine->strays)
        blocks = pick(&magazine->strays, owner, all, NULL, &magazine->strays_count);
    magazine->recent_count -= strays - magazine->strays_count;
    for (unsigned int set = first; set < end; set++) {
        uint64_t lists = recent_lists(magazine, set);

        for (uint64_t left = lists; left; left &= left - 1) {
            const unsigned int i = set * 64 + (unsigned int)__builtin_ctzll(left);

            blocks = pick(&magazine->recent[i], owner, all, blocks, &magazine->recent_count);
            if (!magazine->recent[i])
                lists &= ~((uint64_t)1 << i % 64);
        }
        recent_lists_mark(magazine, set, lists);
    }
    return blocks;
}

void peak_reach(struct pool *pool, ptrdiff_t handed)
{
    size_t slack;

    if (handed <= (ptrdiff_t)pool->stats.peak_live)
        return;
    pool->stats.peak_live = (size_t)handed;
    slack = (size_t)handed / 100 * pool->config.slack_percent;
    slack = slack > pool->config.slack_min ? slack : pool->config.slack_min;
    size_set(&pool->shown.slack, size_value(&pool->shown.slack) + slack - size_value(&pool->shown.slack_most));
    size_set(&pool->shown.slack_most, slack);
}

/* Hits and frees change nothing on the books, but are counted in their magazine. Here the pool learns of them; with
 * both locks. Exact as long as one thread does it all; with several, each had its most at another time. */
void handed_settle(struct pool *pool, struct magazine *magazine)
{
    peak_reach(pool, pool->handed + balance(&magazine->handed_most));
    pool->handed += balance(&magazine->handed);
    atomic_store_explicit(&magazine->handed, 0, memory_order_relaxed);
    atomic_store_explicit(&magazine->handed_most, 0, memory_order_relaxed);
}

ptrdiff_t handed_now(const struct pool *pool)
{
    const unsigned int count = places(pool);
    ptrdiff_t handed = pool->handed;

    for (unsigned int i = 0; i < count; i++)
        handed += balance(&pool->magazines[i].handed);
    return handed;
}

ptrdiff_t handed_most(const struct pool *pool)
{
    const unsigned int count = places(pool);
    ptrdiff_t handed = pool->handed, most = handed;

    for (unsigned int i = 0; i < count; i++) {
        const ptrdiff_t here = handed + balance(&pool->magazines[i].handed_most);

        handed += balance(&pool->magazines[i].handed);
        most = here > most ? here : most;
    }
    return most;
}

static size_t add_up(const struct block *block)
{
    size_t bytes = 0;

    for (; block; block = block->link) {
        block->segment->recent += block->size;
        bytes += block->size;
    }
    return bytes;
}

static size_t recent_add_up(const struct magazine *magazine)
{
    size_t bytes = add_up(magazine->strays);

    for (unsigned int list = 0; list < RECENT; list++)
        bytes += add_up(magazine->recent[list]);
    return bytes;
}

size_t recent_idle(struct pool *pool, uint64_t patience_ns, size_t *ret_live, ptrdiff_t *ret_most)
{
    const unsigned int count = places(pool);
    size_t recent = 0, idle;
    bool taken[MAGAZINES], all = true;

    /* All locks, so that no block is seen twice or missed on its way from one magazine to another. */
    for (unsigned int i = 0; i < count; i++) {
        atomic_fetch_add_explicit(&pool->magazines[i].visitors, 1, memory_order_relaxed);
        taken[i] = lock_take_within(&pool->magazines[i].lock, patience_ns);
        all = all && taken[i];
    }
    idle = idle_bytes(pool);
    for (unsigned int i = 0; i < count && all; i++)
        recent += recent_add_up(&pool->magazines[i]);
    *ret_live = all ? live_bytes(pool) - recent : (size_t)handed_now(pool) + kept_bytes(pool);
    *ret_most = handed_most(pool); /* with the locks: threads that free now would make it less than live */
    for (struct segment *segment = all ? pool->segments : NULL; segment; segment = segment->next) {
        if (segment->recent && segment->recent == segment->used)
            idle += segment->size;
        segment->recent = 0;
    }
    for (unsigned int i = 0; i < count; i++) {
        if (taken[i])
            lock_give(&pool->magazines[i].lock);
        atomic_fetch_sub_explicit(&pool->magazines[i].visitors, 1, memory_order_relaxed);
    }
    return idle;
}

/* --- freed and not ordered --- */

/* Has nobody freed into it since somebody asked this? Then who did may not come again. */
static bool is_left(struct magazine *magazine)
{
    const size_t frees = size_value(&magazine->frees);
    const bool left = size_value(&magazine->frees_seen) == frees;

    if (!left)
        size_set(&magazine->frees_seen, frees);
    return left;
}

unsigned int kept_take(struct pool *pool, const struct magazine *own, struct block *ret_kept[MAGAZINES])
{
    /* One other along with its own, if it is left, so that nothing stays where no thread comes any more. */
    const unsigned int count = atomic_load(&pool->shown.places);
    const unsigned int turn = own ? (unsigned int)(size_value(&own->order) % count) : 0;

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (!atomic_load(&magazine->used))
            continue;
        /* Threads that order side by side leave each other alone, but for what nobody had been able to order. */
        if (own && magazine != own && size_value(&magazine->kept_bytes) <= slack_share(pool) &&
            (i != turn || !is_left(magazine)))
            continue;
        magazine_visit(magazine);
        ret_kept[i] = magazine->kept;
        if (magazine->kept)
            atomic_fetch_sub(&pool->shown.keepers, 1);
        magazine->kept = NULL;
        magazine->kept_count = magazine->kept_large = 0;
        size_set(&magazine->kept_bytes, 0);
        magazine_unlock(magazine);
    }
    return count;
}

size_t kept_bytes(const struct pool *pool)
{
    size_t bytes = 0;

    const unsigned int count = places(pool);

    for (unsigned int i = 0; i < count; i++)
        bytes += size_value(&pool->magazines[i].kept_bytes);
    return bytes;
}

void magazines_leave(struct pool *pool)
{
    const unsigned int count = places(pool);

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (atomic_load(&magazine->used) && !magazine->recent_count && !magazine->kept_count) {
            atomic_store(&magazine->used, false);
            atomic_fetch_sub(&pool->shown.magazines_used, 1);
        }
    }
}

void magazines_reset(struct pool *pool)
{
    const unsigned int count = places(pool);

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        lock_take(&magazine->lock);
        memset((char *)magazine + offsetof(struct magazine, used), 0,
               sizeof(*magazine) - offsetof(struct magazine, used));
        lock_give(&magazine->lock);
    }
}
