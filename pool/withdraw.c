/* SPDX-License-Identifier: Apache-2.0 */
/*
 * withdraw.c - see withdraw.h and pool.h.
 *
 * Locking: all locks (locks_take).
 */
#include "withdraw.h"

#include <errno.h>

#include "magazine.h"
#include "map.h"
#include "split_merge.h"
#include "uncache.h"

void segment_withdraw(struct pool *pool, struct segment *segment)
{
    segment->serves_again = false;
    if (segment->withdrawn)
        return;
    for (struct block *block = segment->first; block; block = block->next)
        if (is_free(block))
            block_unbin(pool, block);
    pool->exposed -= segment->exposed;
    pool->exposed_wholly -= segment_wholly(segment, segment->exposed);
    segment->exposed = 0;
    if (!segment->used)
        pool->shown.withdrawn += segment->size;
    segment->withdrawn = true;
}

int pool_withdraw(uint64_t addr)
{
    struct segment *segment = map_segment_get(addr);
    struct pool *pool = segment ? segment->pool : NULL;
    int rc = -ENOENT;

    if (!pool)
        return rc;
    locks_take(pool);
    if (map_segment_get(addr) == segment && segment->pool == pool)
        rc = 0;
    if (!rc && (!segment->withdrawn || segment->serves_again)) {
        coalesce_all(pool);
        segment_withdraw(pool, segment);
    }
    locks_give(pool);
    return rc;
}

void pool_pack_never(struct pool *pool)
{
    locks_take(pool);
    if (!pool->packs_never) {
        pool->packs_never = true;
        coalesce_all(pool);
        for (struct segment *segment = pool->segments; segment; segment = segment->next)
            if (segment->exposed)
                segment_withdraw(pool, segment);
    }
    locks_give(pool);
}

void pool_kind_set(struct pool *pool, unsigned int kind, size_t excess_min, size_t bound_min)
{
    locks_take(pool);
    atomic_store(&pool->shown.kind, kind);
    pool->config.excess_min = excess_min;
    pool->config.bound_min = bound_min;
    coalesce_all(pool);
    for (struct segment *segment = pool->segments; segment; segment = segment->next)
        if (segment->kind != kind)
            segment_withdraw(pool, segment);
    locks_give(pool);
}

void pool_limit_set(struct pool *pool, size_t limit)
{
    locks_take(pool);
    pool->config.limit = limit;
    locks_give(pool);
}

unsigned int pool_kind_get(const struct pool *pool)
{
    return atomic_load_explicit(&pool->shown.kind, memory_order_relaxed);
}
