/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.c - see publish.h.
 *
 * Locking: a magazine's lock at a time; none over a call of the tables.
 */
#include "publish.h"

#include <errno.h>

#include "accounting.h"
#include "deferred.h"
#include "magazine.h"
#include "shards.h"

atomic_uint pool_later_count;

/* Each order restores this part of the deferred-free budget, while the pool need not grow. */
#define BUDGET_WIDEN 1024

/* Fill the blocks of these lists and order the fills. pool_suspend withdraws segments and then waits for `filling`: a
 * fill that it does not wait for sees that the segment is withdrawn, whose memory may be away. */
static int fill(struct pool *pool, struct block *const *lists, unsigned int count)
{
    const struct pool_order_ops *order = pool->config.order;
    int rc = 0, filled = 0;

    atomic_fetch_add(&pool->shown.filling, 1);
    for (unsigned int i = 0; i < count; i++) {
        for (const struct block *block = lists[i]; !rc && block; block = block->link) {
            if (block->segment->withdrawn) /* it is never handed out again, and a peer may still read it */
                continue;
            rc = order->fill(pool->config.arg, block->addr, block->size, block->segment->shared, /* fresh: */ false);
            filled += rc == 1;
            rc = rc < 0 ? rc : 0;
        }
    }
    if (!rc && filled)
        rc = order->filled(pool->config.arg);
    atomic_fetch_sub(&pool->shown.filling, 1);
    return rc;
}

/* Order, and where contents matter, fill the blocks of these lists and order the fills. */
static int order_and_fill(struct pool *pool, struct block *const *lists, unsigned int count, enum pool_order_how how)
{
    const struct pool_order_ops *order = pool->config.order;
    const int rc = order->order(pool->config.arg, how);

    return rc || !order->fill ? rc : fill(pool, lists, count);
}

void block_publish(struct pool *pool, struct block *block, int rc)
{
    struct magazine *magazine;
    bool put = true;

    if (rc == -ENOTRECOVERABLE) {
        atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_relaxed);
        return;
    }
    magazine = magazine_enter(pool);
    count_up(&magazine->frees);
    if (rc == 0) {
        count_up(&magazine->order);
        put = magazine_put(magazine, block);
    } else {
        count_up(&magazine->deferrals);
        magazine_defer(pool, magazine, block, /* freed: */ 0);
    }
    if (put)
        handed_sub(magazine, block->size);
    lock_give(&magazine->lock);
    if (!put)
        magazine_put_or_coalesce(pool, magazine, block, block->size);
}

/* As block_publish, for the deferred blocks of a magazine. */
static void list_publish(struct pool *pool, struct magazine *magazine, struct block *block, int rc)
{
    struct block *next;

    while (block) {
        magazine_lock(pool, magazine);
        for (; block; block = next) {
            next = block->link;
            if (rc) {
                magazine_defer_again(pool, magazine, block);
            } else if (!magazine_put(magazine, block)) {
                break;
            }
        }
        magazine_unlock(magazine);
        if (!block)
            return;
        magazine_put_or_coalesce(pool, magazine, block, /* handed: */ 0);
        block = next;
    }
}

/* Deferred blocks have been ordered: restore a part of the deferred-free budget that growth or a refusal has taken.
 * Threads that call this at the same time may count as one. */
static void budget_widen(struct pool *pool)
{
    const size_t most = atomic_load_explicit(&pool->shown.budget_max, memory_order_relaxed);
    const size_t budget = atomic_load_explicit(&pool->shown.budget, memory_order_relaxed) + most / BUDGET_WIDEN;

    atomic_store_explicit(&pool->shown.budget, budget < most ? budget : most, memory_order_relaxed);
}

/* While order() would only fail, leave the deferred blocks alone: taking them and putting them back costs their length.
 * While it is frozen it fails, but for a free, which may wait on the host: then as the last free's did. */
static bool takes_deferred(struct pool *pool, bool is_free)
{
    return atomic_load_explicit(&pool->shown.deferring, memory_order_relaxed) &&
           (!pool->config.order->frozen(pool->config.arg) ||
            (is_free && !atomic_load_explicit(&pool->shown.frees_fail, memory_order_relaxed)));
}

/* As budget_widen, and what remains deferred is asked for from half of the budget on: see flush_if_due. */
static void budget_after(struct pool *pool)
{
    if (!pool->config.deferred_min)
        return;
    budget_widen(pool);
    atomic_store_explicit(&pool->shown.flush_from, atomic_load_explicit(&pool->shown.budget, memory_order_relaxed) / 2,
                          memory_order_relaxed);
}

/* Publish the blocks of pool_free_async whose work has ended. */
static void publish_async(struct pool *pool)
{
    const struct pool_order_ops *order = pool->config.order;
    struct block *lists[MAGAZINES] = {NULL};
    uint64_t ended[POOL_PLACES];
    unsigned int taken;
    int rc;

    if (!deferred_async_any(pool))
        return;
    atomic_fetch_add(&pool->shown.ordering, 1);
    atomic_fetch_add(&pool->shown.asking, 1);
    taken = order->freed_async_ended(pool->config.arg, ended) ? deferred_take_async(pool, ended, lists) : 0;
    rc = taken && order->fill ? fill(pool, lists, MAGAZINES) : 0;
    for (unsigned int i = 0; i < taken; i++)
        list_publish(pool, &pool->magazines[i], lists[i], rc);
    if (taken && !rc)
        budget_after(pool);
    atomic_fetch_sub(&pool->shown.asking, 1);
    atomic_fetch_sub(&pool->shown.ordering, 1);
}

/* Natively none of these blocks is there yet, unless a question has left some out: publish_async has asked. */
static bool all_marked(struct block *const lists[MAGAZINES])
{
    for (unsigned int i = 0; i < MAGAZINES; i++)
        for (const struct block *block = lists[i]; block; block = block->link)
            if (!freed_is_marked(block->freed))
                return false;
    return true;
}

/* Has the calling thread freed all of these blocks? */
static bool all_own(struct block *const lists[MAGAZINES])
{
    for (unsigned int i = 0; i < MAGAZINES; i++)
        for (const struct block *block = lists[i]; block; block = block->link)
            if (block->freed_by != &magazine_index)
                return false;
    return true;
}

/*
 * Order all work handed to the device so far before later work. Then block (NULL: none) and all blocks deferred before
 * the call can be handed out; with batched frees, mainly those in this thread's magazine, see deferred_take. An order()
 * that starts after a free covers all work that could use the block.
 */
int order_and_publish(struct pool *pool, struct block *block, enum pool_order_how how)
{
    struct block *lists[MAGAZINES + 1] = {NULL};
    _Static_assert(sizeof(lists) / sizeof(lists[0]) == MAGAZINES + 1, "a list for each magazine, and block");
    const struct magazine *own = NULL;
    unsigned int taken = 0;
    const bool taking = takes_deferred(pool, block != NULL);
    int rc;

    if (taking && !block) {
        publish_async(pool);
        if (!atomic_load(&pool->shown.deferring))
            return 0;
    }
    if (taking) {
        atomic_fetch_add(&pool->shown.ordering, 1);
        atomic_fetch_add(&pool->shown.asking, how == POOL_ORDER_ASK);
        if (block && pool->config.deferred_min)
            own = &pool->magazines[magazine_index % MAGAZINES];
        taken = deferred_take(pool, own, lists);
    }
    if (block)
        block->link = NULL;
    lists[MAGAZINES] = block;
    if (how == POOL_ORDER_DEVICE && all_own(lists))
        how = POOL_ORDER_OWN;
    /* Other threads may have taken all deferred blocks meanwhile: then there is nothing to order. Nor is there for a
     * request that natively is refused: even on the device its wait is not owed. */
    if ((block || taken) && (how == POOL_ORDER_FREE || how == POOL_ORDER_ASK || !all_marked(lists)))
        rc = order_and_fill(pool, lists, MAGAZINES + 1, how);
    else
        rc = -EBUSY;
    for (unsigned int i = 0; i < taken; i++)
        list_publish(pool, &pool->magazines[i], lists[i], rc);
    if (taking) {
        atomic_fetch_sub(&pool->shown.asking, how == POOL_ORDER_ASK);
        atomic_fetch_sub(&pool->shown.ordering, 1);
    }
    if (rc == 0)
        budget_after(pool);
    if (block && atomic_load_explicit(&pool->shown.frees_fail, memory_order_relaxed) != (rc != 0))
        atomic_store_explicit(&pool->shown.frees_fail, rc != 0, memory_order_relaxed);
    if (block)
        block_publish(pool, block, rc);
    else if (rc == 0)
        atomic_fetch_add(&pool->shown.order, 1);
    return rc;
}

void pool_flush(struct pool *pool)
{
    const struct pool_config *config = &pool->config;

    if (atomic_load(&pool->shown.deferring) && !config->order->frozen(config->arg))
        order_and_publish(pool, NULL, POOL_ORDER_ASK);
}

void later_set(struct pool *pool)
{
    if (!atomic_load_explicit(&pool->shown.later, memory_order_relaxed) && !atomic_exchange(&pool->shown.later, true))
        atomic_fetch_add(&pool_later_count, 1);
}

void later_clear(struct pool *pool)
{
    if (atomic_exchange(&pool->shown.later, false))
        atomic_fetch_sub(&pool_later_count, 1);
}

void pool_flush_later(struct pool *pool)
{
    const struct pool_config *config = &pool->config;

    if (!atomic_load_explicit(&pool->shown.later, memory_order_relaxed) || config->order->frozen(config->arg))
        return;
    publish_async(pool);
    /* Asked before the blocks are taken, too: an order that fails puts them back one by one, and they do not count as
     * their own thread's any more. */
    if (atomic_load(&pool->shown.deferring) && config->order->order(config->arg, POOL_ORDER_ASK))
        return;
    later_clear(pool); /* first: a thread that defers a block meanwhile sets it again */
    pool_flush(pool);
    if (atomic_load(&pool->shown.ordering) || atomic_load(&pool->shown.deferring))
        later_set(pool);
}
