/* SPDX-License-Identifier: Apache-2.0 */
/*
 * large.c - see large.h. split_merge.c says which segments are packed, and why their exposure is limited.
 *
 * Locking: the pool's lock.
 */
#include "large.h"

#include "accounting.h"
#include "bins.h"
#include "ghosts.h"
#include "split_merge.h"
#include "uncache.h"

/* Segments for two are for blocks up to the size PACK_MAX: such a segment always saves 2 MiB, but exposes more the
 * larger it is. */
#define PACK_MAX ((size_t)16 << 20)
/* For the same reason a quarter of the room is reserved for blocks up to this size. */
#define PACK_SMALLEST (2 * POOL_SEGMENT_UNIT)
/* A program that has not freed this many bytes of such blocks may never free them: it may export them by IPC, for
 * example. */
#define PACK_FREED ((size_t)256 << 20)

static const struct packing_room no_room;

/*
 * The room of packing for a block of size bytes. With the driver's own use, what is exposed must stay below the bound
 * of held memory (pool_config.bound_min). The room on the device shrinks with the square of the memory not handed out,
 * because on a full device others need the memory.
 *
 * A program that repeats its steps may use all of the bound's room: packing is then what saves it from giving segments
 * back in every step, and from waiting for that at the bound. Other sizes do not fit into the holes so often, and for
 * them the bound counts large segments as the device does: what a refusal puts into their holes may be all that stays.
 */
static struct packing_room room_for(const struct pool *pool, size_t size)
{
    const struct pool_config *config = &pool->config;
    const size_t native = native_bytes(pool), live = config->capacity ? live_bytes(pool) : 0;
    const size_t left = live < config->capacity ? config->capacity - live : 0;
    const bool is_small = size <= PACK_SMALLEST, repeats = ghosts_repeat(&pool->ghosts);
    size_t bound = bound_beyond(pool, native > pool->native_peak ? native : pool->native_peak), max = config->break_max;

    if (pool->packs_never)
        return (struct packing_room){0, 0};
    /* In integers: a program may enable the trap for inexact results. */
    for (int i = 0; config->capacity && i < 2; i++)
        max = (size_t)((unsigned __int128)max * left / config->capacity);
    max -= is_small ? 0 : max / 4;
    bound -= is_small || repeats ? 0 : bound / 4;
    max = repeats || max < bound ? max : bound;
    return (struct packing_room){.bound = pool->exposed < bound ? bound - pool->exposed : 0,
                                 .device = pool->exposed_wholly < max ? max - pool->exposed_wholly : 0};
}

size_t block_segment_size(const struct pool *pool, size_t size, bool alone)
{
    const size_t native = round_up(size, POOL_SEGMENT_UNIT), both = segment_size_for_two(size);
    const size_t limit = pool->config.limit;
    struct packing_room room;

    if (alone || size > PACK_MAX || !leaves_much(size) || pool->freed < PACK_FREED)
        return native;
    room = room_for(pool, size);
    if (room.bound < both - native || room.device < both - native ||
        (limit && pool->stats.held + pool->growing + both > limit))
        return native;
    return both;
}

int block_take(struct pool *pool, size_t size, size_t requested, bool refused, uint64_t *ret_addr)
{
    struct packing_room room = no_room;
    struct block *block = NULL;

    coalesce_own_large(pool);
    if (!refused) {
        room = room_for(pool, size);
        block = bins_find(&pool->large, size, &room, /* all: */ false);
    }
    if (!block) {
        coalesce_large(pool);
        room = refused ? no_room : room_for(pool, size);
        block = bins_find(&pool->large, size, &room, refused);
    }
    return block_take_found(pool, block, size, requested, ret_addr);
}

int block_take_hole(struct pool *pool, size_t size, size_t requested, uint64_t *ret_addr)
{
    coalesce_own_large(pool);
    coalesce_large(pool);
    return block_take_found(pool, bins_find(&pool->large, size, NULL, /* all: */ true), size, requested, ret_addr);
}
