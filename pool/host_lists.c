/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_lists.c - the lists that free blocks of the host pool are in: what is waiting and what is ready by size class,
 * ranges of slabs by size. It cuts and merges nothing; host_blocks.c does.
 *
 * Locking: the caller holds the pool's lock.
 */
#include "host_internal.h"

void host_bin_add(struct host_block *block)
{
    struct host_family *family = block->segment->family;

    block->state = HOST_RANGE;
    block->class = host_class_within(block->size);
    host_list_push(&family->bins[block->class], block, true);
    family->bin_set[block->class / 64] |= (uint64_t)1 << block->class % 64;
}

void host_unlist(struct host_pool *pool, struct host_block *block)
{
    struct host_family *family = block->segment->family;

    switch (block->state) {
    case HOST_RANGE:
        host_list_remove(&family->bins[block->class], block);
        if (!family->bins[block->class].first)
            family->bin_set[block->class / 64] &= ~((uint64_t)1 << block->class % 64);
        break;
    case HOST_WAITING:
        host_list_remove(&family->waiting[block->class], block);
        pool->stats.waiting -= block->size;
        break;
    case HOST_READY:
        host_list_remove(&family->ready[block->class], block);
        break;
    default:
        break;
    }
}

void host_segment_enter(struct host_pool *pool, struct host_segment *segment)
{
    if (segment->live++ == 0)
        pool->stats.idle -= segment->size;
}

void host_segment_leave(struct host_pool *pool, struct host_segment *segment)
{
    if (--segment->live == 0) {
        segment->idle_tick = pool->tick;
        pool->stats.idle += segment->size;
    }
}

/* By stamp: a block that a shard has kept was freed earlier than the last ones, but not much. */
static void waiting_insert(struct host_list *list, struct host_block *block)
{
    struct host_block *next = list->last;

    while (next->prev && next->prev->stamp > block->stamp)
        next = next->prev;
    block->prev = next->prev;
    block->next = next;
    *(next->prev ? &next->prev->next : &list->first) = block;
    next->prev = block;
}

void host_put(struct host_pool *pool, struct host_block *block)
{
    struct host_family *family = block->segment->family;

    block->class = host_class_within(block->size);
    if (host_is_done(pool, block->stamp)) {
        block->state = HOST_READY;
        host_list_push(&family->ready[block->class], block, true);
    } else {
        struct host_list *list = &family->waiting[block->class];

        block->state = HOST_WAITING;
        if (list->last && list->last->stamp > block->stamp)
            waiting_insert(list, block);
        else
            host_list_push(list, block, false);
        pool->stats.waiting += block->size;
    }
}

struct host_block *host_class_take(struct host_pool *pool, struct host_family *family, unsigned int class)
{
    struct host_block *block;

    /* Of blocks that are ready, the one that was freed last comes first: those that are not needed then get old. */
    while (!family->ready[class].first && (block = family->waiting[class].first) && host_is_done(pool, block->stamp))
        do {
            host_unlist(pool, block);
            host_put(pool, block);
        } while ((block = family->waiting[class].first) && host_is_done(pool, block->stamp));
    return family->ready[class].first;
}

struct host_block *host_ready_take(struct host_pool *pool, struct host_family *family, unsigned int class)
{
    struct host_block *block = host_class_take(pool, family, class);

    if (!block || block->segment->passing)
        return NULL;
    host_unlist(pool, block);
    host_segment_enter(pool, block->segment);
    return block;
}
