/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accounting.c - see accounting.h.
 *
 * Locking: each function's is in accounting.h.
 */
#include "accounting.h"

size_t live_bytes(const struct pool *pool)
{
    const unsigned int count = magazine_count(pool);
    size_t bytes = size_value(&pool->books.live);

    for (unsigned int i = 0; i < count; i++)
        bytes += size_value(&pool->magazines[i].books.live);
    return bytes;
}

size_t native_bytes(const struct pool *pool)
{
    const unsigned int count = magazine_count(pool);
    size_t bytes = size_value(&pool->native);

    /* All blocks of magazines' segments are small, so their native size is their size. */
    for (unsigned int i = 0; i < count; i++)
        bytes += size_value(&pool->magazines[i].books.live);
    return bytes;
}

size_t idle_bytes(const struct pool *pool)
{
    const unsigned int count = magazine_count(pool);
    size_t bytes = size_value(&pool->books.idle);

    for (unsigned int i = 0; i < count; i++)
        bytes += size_value(&pool->magazines[i].books.idle);
    return bytes;
}

/* With the pool's lock: raise the peak, and the deferred-free budget with it, to `handed` bytes handed out. */
static void peak_raise(struct pool *pool, ptrdiff_t handed)
{
    size_t budget;

    if (handed <= (ptrdiff_t)pool->stats.peak_live)
        return;
    pool->stats.peak_live = (size_t)handed;
    budget = (size_t)handed / 100 * pool->config.deferred_percent;
    budget = budget > pool->config.deferred_min ? budget : pool->config.deferred_min;
    size_set(&pool->shown.budget, size_value(&pool->shown.budget) + budget - size_value(&pool->shown.budget_max));
    size_set(&pool->shown.budget_max, budget);
}

/* Hits and frees do not change the pool's books and are counted in their magazine. Add the counts to the pool's; with
 * both locks. Exact with one thread; with several, each magazine had its maximum at another time. */
void handed_collect(struct pool *pool, struct magazine *magazine)
{
    peak_raise(pool, pool->handed + balance(&magazine->handed_most));
    pool->handed += balance(&magazine->handed);
    atomic_store_explicit(&magazine->handed, 0, memory_order_relaxed);
    atomic_store_explicit(&magazine->handed_most, 0, memory_order_relaxed);
}

ptrdiff_t handed_now(const struct pool *pool, ptrdiff_t handed)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++)
        handed += balance(&pool->magazines[i].handed);
    return handed;
}

ptrdiff_t handed_most(const struct pool *pool)
{
    const unsigned int count = magazine_count(pool);
    ptrdiff_t handed = pool->handed, most = handed;

    for (unsigned int i = 0; i < count; i++) {
        const ptrdiff_t here = handed + balance(&pool->magazines[i].handed_most);

        handed += balance(&pool->magazines[i].handed);
        most = here > most ? here : most;
    }
    return most;
}

/* A pool is nearly full when the device could give less than this part of its memory beyond what the pool holds. */
#define NEARLY_FULL_PART 8

void held_add(struct pool *pool, ptrdiff_t more)
{
    const size_t capacity = pool->config.capacity;

    pool->stats.held += (size_t)more;
    atomic_store_explicit(&pool->shown.nearly_full,
                          capacity && pool->stats.held > capacity - capacity / NEARLY_FULL_PART, memory_order_relaxed);
}

void used_add(struct pool *pool, struct segment *segment, size_t size)
{
    struct books *books = books_of(pool, segment);

    if (!segment->used)
        book(&books->idle, -segment->size);
    segment->used += size;
    book(&books->live, size);
    if (segment->owner) {
        handed_add(segment->owner, size);
        return;
    }
    book(&pool->native, native_size(size));
    pool->handed += (ptrdiff_t)size;
    peak_raise(pool, pool->handed);
}

void used_sub(struct pool *pool, struct segment *segment, size_t size)
{
    struct books *books = books_of(pool, segment);

    segment->used -= size;
    book(&books->live, -size);
    if (!segment->owner)
        book(&pool->native, -native_size(size));
    if (segment->used)
        return;
    segment->idle_since = pool->clock;
    book(&books->idle, segment->size);
    if (segment->withdrawn)
        atomic_fetch_add(&pool->shown.withdrawn, segment->size);
}
