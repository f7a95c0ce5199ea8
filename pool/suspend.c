/* SPDX-License-Identifier: Apache-2.0 */
/*
 * suspend.c - segments whose memory goes away for a while, although blocks in them are handed out: pool_suspend and
 * pool_resume of pool.h. It neither takes nor gives back memory; the caller does, between the calls.
 *
 * A suspended segment is withdrawn, so that nothing is handed out from it, and serves requests again afterwards.
 *
 * Locking: all locks (locks_take).
 */
#include <errno.h>

#include "accounting.h"
#include "clock.h"
#include "magazine.h"
#include "pool.h"
#include "release_idle.h"
#include "split_merge.h"
#include "uncache.h"
#include "withdraw.h"

/* A segment of the kind that serves no requests although its blocks are handed out: another party has access to it. */
static bool is_shared_out(const struct pool *pool, unsigned int kind)
{
    for (const struct segment *segment = pool->segments; segment; segment = segment->next)
        if (segment->kind == kind && segment->withdrawn && segment->used)
            return true;
    return false;
}

bool pool_has_withdrawn(struct pool *pool, unsigned int kind)
{
    bool has;

    locks_take(pool);
    coalesce_all(pool);
    has = !pool->suspended && is_shared_out(pool, kind);
    locks_give(pool);
    return has;
}

/* Wait for threads that fill blocks of segments which they have seen in use. False: one still does. */
static bool fills_wait(const struct pool *pool)
{
    const uint64_t limit = now_ns() + OTHERS_WAIT_NS;

    atomic_thread_fence(memory_order_seq_cst);
    for (unsigned int i = 0; atomic_load(&pool->shown.filling); i++) {
        if (now_ns() >= limit)
            return false;
        lock_relax(i);
    }
    return true;
}

int pool_suspend(struct pool *pool, unsigned int kind)
{
    int rc = 0;

    locks_take(pool);
    coalesce_all(pool);
    if (pool->suspended)
        rc = -EALREADY;
    else if (is_shared_out(pool, kind))
        rc = -EBUSY;
    for (struct segment *segment = rc ? NULL : pool->segments; segment; segment = segment->next) {
        if (segment->kind != kind || segment->withdrawn)
            continue;
        segment->exposed_before = segment->exposed;
        segment_withdraw(pool, segment);
        segment->suspended = segment->serves_again = true;
        pool->stats.paused += segment->size;
    }
    if (!rc)
        pool->suspended = pool->changing = true;
    locks_give(pool);
    if (!rc && !fills_wait(pool)) {
        pool_resume_end(pool, /* resumed: */ true);
        rc = -ETIMEDOUT;
    }
    return rc;
}

void pool_suspend_end(struct pool *pool)
{
    lock_take(&pool->lock);
    pool->changing = false;
    lock_give(&pool->lock);
}

bool pool_is_suspended(struct pool *pool)
{
    bool is;

    lock_take(&pool->lock);
    is = pool->suspended;
    lock_give(&pool->lock);
    return is;
}

void pool_suspended_each(struct pool *pool, const struct pool_suspended_ops *ops, void *arg)
{
    locks_take(pool);
    for (const struct segment *segment = pool->segments; segment; segment = segment->next) {
        if (!segment->suspended)
            continue;
        ops->segment(arg, segment->addr, segment->size);
        for (const struct block *block = segment->first; ops->live && block; block = block->next)
            if (atomic_load(&block->state) == BLOCK_LIVE)
                ops->live(arg, segment->addr, block->addr, block->size);
    }
    locks_give(pool);
}

void pool_resume_begin(struct pool *pool)
{
    release_withdrawn(pool, "resume");
    lock_take(&pool->lock);
    pool->changing = true;
    lock_give(&pool->lock);
}

/* Let a segment serve requests again, unless something else has withdrawn it meanwhile. */
static void segment_restore(struct pool *pool, struct segment *segment)
{
    struct block *block;

    segment->suspended = false;
    pool->stats.paused -= segment->size;
    if (!segment->serves_again || (pool->packs_never && segment->exposed_before))
        return;
    if (!segment->used)
        pool->shown.withdrawn -= segment->size;
    segment->withdrawn = false;
    for (block = segment->first; block; block = block->next)
        while (is_free(block) && is_free(block->next))
            block_merge_unbinned(pool, block);
    if (segment->exposed_before && segment->first && segment->first->next)
        segment_expose(pool, segment, segment->exposed_before);
    for (block = segment->first; block; block = block->next)
        if (is_free(block))
            block_bin(pool, block);
}

void pool_resume_end(struct pool *pool, bool resumed)
{
    locks_take(pool);
    coalesce_all(pool);
    for (struct segment *segment = resumed ? pool->segments : NULL; segment; segment = segment->next)
        if (segment->suspended)
            segment_restore(pool, segment);
    pool->suspended = pool->suspended && !resumed;
    pool->changing = false;
    locks_give(pool);
}
