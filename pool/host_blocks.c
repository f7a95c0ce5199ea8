/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_blocks.c - the blocks of the host pool: handed out and back, and slabs that are cut and merged.
 *
 * A freed block stays as it is, in the list of its class. Blocks of slabs are merged with their neighbours only when a
 * request finds no other memory (host_coalesce).
 *
 * Locking: the caller holds the pool's lock.
 */
#include "host_internal.h"

/* Ranges of one bin that are looked at: in the request's own bin some may have the wrong alignment. */
#define LOOKS 8

static struct host_block **start_of(const struct host_block *block)
{
    return &block->segment->starts[(block->addr - block->segment->addr) / HOST_GRANULE];
}

/* Frees that shards have not counted yet must not raise a peak, nor the bound with it. */
void host_native_peak_raise(struct host_pool *pool, bool patient)
{
    if (pool->stats.live + pool->pending <= pool->native_peak && pool->stats.live <= pool->stats.peak_live)
        return;
    if (!host_shards_sync(pool, patient))
        return;
    if (pool->stats.live + pool->pending > pool->native_peak)
        pool->native_peak = pool->stats.live + pool->pending;
    if (pool->stats.live > pool->stats.peak_live)
        pool->stats.peak_live = pool->stats.live;
}

void host_hand_out(struct host_pool *pool, struct host_block *block, size_t size)
{
    host_unlist(pool, block);
    block->state = HOST_LIVE;
    block->requested = size;
    host_segment_enter(pool, block->segment);
    pool->stats.live += host_round(size);
    pool->stats.blocks += block->size;
    host_native_peak_raise(pool, /* patient: */ true);
}

void host_hand_back(struct host_pool *pool, struct host_block *block)
{
    struct host_segment *segment = block->segment;

    block->state = HOST_NOWHERE;
    block->stamp = segment->stamp = host_stamp(pool);
    pool->stats.live -= host_round(block->requested);
    pool->stats.blocks -= block->size;
    host_segment_leave(pool, segment);
}

/* Split `size` bytes off the start of a block that is in no list; rest, a new descriptor, becomes the remainder. */
static void split(struct host_block *block, size_t size, struct host_block *rest)
{
    rest->addr = block->addr + size;
    rest->size = block->size - size;
    rest->segment = block->segment;
    rest->before = block;
    rest->after = block->after;
    if (rest->after)
        rest->after->before = rest;
    block->after = rest;
    block->size = size;
    *start_of(rest) = rest;
}

/* Merge a block with the one after it; both are in no list. */
static void merge(struct host_pool *pool, struct host_block *block)
{
    struct host_block *after = block->after;

    *start_of(after) = NULL;
    block->size += after->size;
    block->after = after->after;
    if (block->after)
        block->after->before = block;
    host_block_retire(pool, after);
}

/* The bytes before the first multiple of unit in a range. */
static size_t pad_of(const struct host_block *range, size_t unit)
{
    return (size_t)(-range->addr & (unit - 1));
}

/* Cut a block out of a range; it is in no list. NULL: no host memory; the range stays. */
static struct host_block *cut_range(struct host_pool *pool, struct host_block *range, size_t size, size_t unit)
{
    const size_t pad = pad_of(range, unit), more = range->size - pad - size;
    struct host_block *block = pad ? host_block_new(pool) : range, *rest = more ? host_block_new(pool) : NULL;

    if (!block || (more && !rest)) {
        if (block && block != range)
            host_block_retire(pool, block);
        if (rest)
            host_block_retire(pool, rest);
        return NULL;
    }
    host_unlist(pool, range);
    if (pad) {
        split(range, pad, block);
        host_bin_add(range);
    }
    block->state = HOST_NOWHERE;
    if (more) {
        split(block, size, rest);
        host_bin_add(rest);
    }
    return block;
}

/* A block cut out of the family's slabs, or NULL. */
static struct host_block *slabs_take(struct host_pool *pool, struct host_family *family, size_t size)
{
    const unsigned int class = host_class_of(size);
    const size_t block_size = host_class_size(class), unit = host_unit(size);

    for (unsigned int set = class / 64; set < HOST_BIN_SETS; set++) {
        uint64_t bits = family->bin_set[set];

        if (set == class / 64)
            bits &= ~(uint64_t)0 << class % 64;
        for (; bits; bits &= bits - 1) {
            struct host_block *range = family->bins[set * 64 + (unsigned int)__builtin_ctzll(bits)].first;

            for (int i = 0; range && i < LOOKS; i++, range = range->next)
                if (range->size >= block_size + pad_of(range, unit))
                    return cut_range(pool, range, block_size, unit);
        }
    }
    return NULL;
}

struct host_block *host_take(struct host_pool *pool, struct host_family *family, size_t size, bool any_larger,
                             uint64_t *ret_stamp)
{
    const unsigned int class = host_class_of(size);
    struct host_block *block = NULL;

    *ret_stamp = 0;
    for (unsigned int i = class; !block && i < HOST_CLASSES; i++) {
        if (i != class && !any_larger && host_class_size(i) > size + size / HOST_FIT_PART)
            break;
        block = host_class_take(pool, family, i);
        if (!block && !*ret_stamp && family->waiting[i].first)
            *ret_stamp = family->waiting[i].first->stamp;
    }
    if (!block && size <= HOST_SMALL_MAX)
        block = slabs_take(pool, family, size);
    if (block)
        host_hand_out(pool, block, size);
    return block;
}

void host_coalesce_stamps(const struct host_family *family, uint64_t *ret_oldest, uint64_t *ret_newest)
{
    *ret_oldest = *ret_newest = 0;
    for (unsigned int class = 0; class <= host_class_of(HOST_SMALL_MAX); class ++) {
        const struct host_list *list = &family->waiting[class];

        if (!list->first)
            continue;
        if (!*ret_oldest || list->first->stamp < *ret_oldest)
            *ret_oldest = list->first->stamp;
        if (list->last->stamp > *ret_newest)
            *ret_newest = list->last->stamp;
    }
}

void host_coalesce(struct host_pool *pool, struct host_family *family)
{
    for (unsigned int class = 0; class <= host_class_of(HOST_SMALL_MAX); class ++) {
        struct host_list *const lists[] = {&family->ready[class], &family->waiting[class]};

        for (int i = 0; i < 2; i++)
            for (struct host_block *block = lists[i]->first, *next; block; block = next) {
                next = block->next;
                if (!block->segment->starts || !host_is_done(pool, block->stamp))
                    continue;
                host_unlist(pool, block);
                block->state = HOST_RANGE;
                if (block->after && block->after->state == HOST_RANGE) {
                    host_unlist(pool, block->after);
                    merge(pool, block);
                }
                if (block->before->state == HOST_RANGE) {
                    block = block->before;
                    host_unlist(pool, block);
                    merge(pool, block);
                }
                host_bin_add(block);
            }
    }
}

int host_segment_attach(struct host_pool *pool, struct host_segment *segment)
{
    const bool is_slab = segment->starts;
    struct host_block *block = host_block_new(pool), *rest = is_slab ? host_block_new(pool) : NULL;

    segment->family = host_family_get(pool, &segment->key);
    if (!block || (is_slab && !rest) || !segment->family || host_table_add(pool, segment)) {
        if (block)
            host_block_retire(pool, block);
        if (rest)
            host_block_retire(pool, rest);
        return -ENOMEM;
    }
    *block =
        (struct host_block){.addr = segment->addr, .size = segment->size, .stamp = segment->stamp, .segment = segment};
    segment->first = block;
    segment->live = 0;
    pool->stats.idle += segment->size;
    pool->stats.segments++;
    pool->stats.passing += segment->passing ? segment->size : 0;
    if (!is_slab) {
        host_put(pool, block);
        return 0;
    }
    *start_of(block) = block;
    block->state = HOST_FRONT;
    split(block, HOST_GRANULE, rest);
    host_bin_add(rest);
    return 0;
}

void host_segment_detach(struct host_pool *pool, struct host_segment *segment)
{
    for (struct host_block *block = segment->first, *after; block; block = after) {
        after = block->after;
        if (block->state == HOST_LENT)
            (void)host_shard_recall(pool, block);
        host_unlist(pool, block);
        if (block->state == HOST_LIVE) {
            pool->stats.live -= host_round(block->requested);
            pool->stats.blocks -= block->size;
        }
        if (segment->starts)
            *start_of(block) = NULL;
        host_block_retire(pool, block);
    }
    if (!segment->live)
        pool->stats.idle -= segment->size;
    segment->live = 0;
    segment->first = NULL;
    segment->family = NULL;
    pool->stats.segments--;
    pool->stats.passing -= segment->passing ? segment->size : 0;
    host_table_remove(pool, segment);
}
