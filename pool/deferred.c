/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deferred.c - see deferred.h.
 *
 * Locking: each function takes the locks of magazines that it needs, one at a time.
 */
#include "deferred.h"

/* True if no thread has freed into the magazine since the last check: its thread may have ended. */
static bool is_abandoned(struct magazine *magazine)
{
    const size_t frees = size_value(&magazine->frees);
    const bool abandoned = size_value(&magazine->frees_seen) == frees;

    if (!abandoned)
        size_set(&magazine->frees_seen, frees);
    return abandoned;
}

unsigned int deferred_take(struct pool *pool, const struct magazine *own, struct block *ret_deferred[MAGAZINES])
{
    /* Also one other magazine in turn if it is abandoned, so that no block stays deferred in a magazine without
     * threads. */
    const unsigned int count = atomic_load(&pool->shown.magazine_count);
    const unsigned int probe = own ? (unsigned int)(size_value(&own->order) % count) : 0;
    bool any = false;

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (!atomic_load(&magazine->used))
            continue;
        /* Threads that order side by side leave each other's magazines alone, unless one has deferred more than its
         * share, which could not be ordered. */
        if (own && magazine != own && size_value(&magazine->deferred_bytes) <= budget_share(pool) &&
            (i != probe || !is_abandoned(magazine)))
            continue;
        magazine_visit(magazine);
        ret_deferred[i] = magazine->deferred;
        if (magazine->deferred) {
            any = true;
            atomic_fetch_sub(&pool->shown.deferring, 1);
        }
        magazine->deferred = NULL;
        magazine->deferred_count = magazine->deferred_large = 0;
        size_set(&magazine->deferred_async, 0);
        size_set(&magazine->deferred_bytes, 0);
        magazine_unlock(magazine);
    }
    return any ? count : 0;
}

bool deferred_async_any(const struct pool *pool)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++)
        if (size_value(&pool->magazines[i].deferred_async))
            return true;
    return false;
}

/* With the magazine's lock: may it have blocks up to these numbers? A walk over many blocks in vain takes long. */
static bool has_ended(const struct magazine *magazine, const uint64_t ended[POOL_PLACES])
{
    const size_t places = size_value(&magazine->deferred_async);

    for (unsigned int i = 0; i < POOL_PLACES; i++)
        if (places >> i & 1 && magazine->deferred_first[i] <= ended[i])
            return true;
    return false;
}

/* With the magazine's lock. */
static struct block *take_async(struct pool *pool, struct magazine *magazine, const uint64_t ended[POOL_PLACES])
{
    struct block **link = &magazine->deferred, *block, *taken = NULL;
    size_t places = 0;

    if (!has_ended(magazine, ended))
        return NULL;
    while ((block = *link)) {
        if (freed_is_marked(block->freed) && block->freed <= ended[block->freed % POOL_PLACES]) {
            *link = block->link;
            block->link = taken;
            taken = block;
            magazine->deferred_count--;
            magazine->deferred_large -= block->size >= LARGE_MIN;
            book(&magazine->deferred_bytes, -native_size(block->size));
        } else {
            if (freed_is_marked(block->freed))
                places = deferred_async_note(magazine, places, block->freed);
            link = &block->link;
        }
    }
    size_set(&magazine->deferred_async, places);
    if (taken && !magazine->deferred)
        atomic_fetch_sub(&pool->shown.deferring, 1);
    return taken;
}

unsigned int deferred_take_async(struct pool *pool, const uint64_t ended[POOL_PLACES],
                                 struct block *ret_deferred[MAGAZINES])
{
    const unsigned int count = magazine_count(pool);
    bool any = false;

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (!size_value(&magazine->deferred_async))
            continue;
        magazine_visit(magazine);
        ret_deferred[i] = take_async(pool, magazine, ended);
        any |= ret_deferred[i] != NULL;
        magazine_unlock(magazine);
    }
    return any ? count : 0;
}

size_t deferred_bytes(const struct pool *pool)
{
    size_t bytes = 0;

    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++)
        bytes += size_value(&pool->magazines[i].deferred_bytes);
    return bytes;
}

/* With the magazine's lock: whose blocks it defers. */
static enum pool_deferred deferred_by(const struct magazine *magazine)
{
    enum pool_deferred by = POOL_DEFERRED_NONE;

    for (const struct block *block = magazine->deferred; block; block = block->link) {
        if (!block->freed && block->freed_by == &magazine_index)
            return POOL_DEFERRED_OWN;
        if (!block->freed)
            by = POOL_DEFERRED_OTHERS;
        else if (!freed_is_marked(block->freed) && by == POOL_DEFERRED_NONE)
            by = POOL_DEFERRED_UNKNOWN;
    }
    return by;
}

enum pool_deferred pool_deferred_by(struct pool *pool)
{
    const unsigned int count = magazine_count(pool);
    enum pool_deferred most = POOL_DEFERRED_NONE, by;

    for (unsigned int i = 0; i < count && most != POOL_DEFERRED_OWN; i++) {
        struct magazine *magazine = &pool->magazines[i];

        if (!size_value(&magazine->deferred_bytes))
            continue;
        magazine_visit(magazine);
        by = deferred_by(magazine);
        magazine_unlock(magazine);
        most = by > most ? by : most;
    }
    return most;
}
