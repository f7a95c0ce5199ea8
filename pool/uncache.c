/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uncache.c - see uncache.h.
 *
 * Locking: each function's is in uncache.h; the locks of magazines are taken inside the pool's.
 */
#include "uncache.h"

#include "accounting.h"
#include "magazine.h"
#include "split_merge.h"

/* The cache lines of all are prefetched. */
void coalesce(struct pool *pool, struct block *block)
{
    struct block *next;

    for (next = block; next; next = next->link) {
        __builtin_prefetch(next->segment);
        __builtin_prefetch(next->prev);
        __builtin_prefetch(next->next);
    }
    for (; block; block = next) {
        next = block->link;
        used_sub(pool, block->segment, block->size);
        block_free(pool, block);
    }
}

void coalesce_all(struct pool *pool)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++) {
        struct magazine *magazine = &pool->magazines[i];

        handed_collect(pool, magazine);
        magazine->has_holes = false;
        coalesce(pool, cached_grab(magazine, 0, LIST_SETS, NULL, /* all: */ true));
    }
}

/* With the pool's lock: coalesce the magazine's large blocks, and with them small blocks in packed segments. Otherwise
 * a large request would find only the rest of such a segment, without the memory of its cached small blocks. */
static void magazine_coalesce_large(struct pool *pool, struct magazine *magazine)
{
    struct block *blocks;

    magazine_visit(magazine);
    handed_collect(pool, magazine);
    blocks = cached_grab(magazine, 0, magazine->has_holes ? LIST_SETS : LARGE_SETS, /* owner: */ NULL,
                         /* all: */ false);
    magazine->has_holes = false;
    magazine_unlock(magazine);
    coalesce(pool, blocks);
}

void coalesce_own_large(struct pool *pool)
{
    struct magazine *magazine = magazine_own(pool);

    if (atomic_load(&magazine->used))
        magazine_coalesce_large(pool, magazine);
}

void coalesce_large(struct pool *pool)
{
    const unsigned int count = magazine_count(pool);

    for (unsigned int i = 0; i < count; i++)
        magazine_coalesce_large(pool, &pool->magazines[i]);
}
