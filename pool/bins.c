/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bins.c - see bins.h.
 *
 * Locking: the caller's lock, as bins.h says.
 */
#include "bins.h"

/* An idle segment is broken only for requests of at least a BREAK_RATIO-th of it: for a smaller one nearly all of it
 * would count as exposed, and leave no room for others. */
#define BREAK_RATIO 5u

/* The number of blocks of one bin that a search examines, unless it must miss none: of large ones more, because a
 * tighter fit is worth more. */
#define SCAN       8
#define SCAN_LARGE 16

/* The first bin that is not empty, from bin on; BINS_COUNT: none. */
static unsigned int bin_next(const struct bins *bins, unsigned int bin)
{
    unsigned int word = bin / 64;
    uint64_t bits;

    if (bin >= BINS_COUNT)
        return BINS_COUNT;
    bits = bins->used[word] & (~0ull << (bin % 64));
    while (!bits) {
        if (++word == BINS_WORDS)
            return BINS_COUNT;
        bits = bins->used[word];
    }
    return word * 64 + (unsigned int)__builtin_ctzll(bits);
}

static bool starts_segment(const struct block *block)
{
    return block->addr == block->segment->addr;
}

/* May size bytes of block be handed out? The block is large enough and not in a shared segment. */
static bool may_serve(const struct block *block, size_t size, const struct packing_room *room, bool all)
{
    const struct segment *segment = block->segment;

    if (!room)
        return true;
    if (segment->used)
        return all || segment_fits(segment, size, room);
    if (size < POOL_SEGMENT_UNIT)
        return false;
    return block->size - size < POOL_SEGMENT_UNIT ||
           (block->size / BREAK_RATIO <= size && segment_fits(segment, size, room));
}

/* The best block in a bin: first close fits that start their segment (they can be exported by IPC), then the
 * tightest. */
static struct block *bin_best(struct block *block, size_t size, const struct packing_room *room, bool all)
{
    const bool shared = block->segment->shared; /* all blocks of these bins are, and any of them may be handed out */
    const unsigned int most = shared ? SCAN : SCAN_LARGE;
    struct block *best = NULL;
    bool best_starts = false;

    for (unsigned int n = 0; block && (n < most || all); block = block->link, n++) {
        bool starts;

        if (block->size < size || (!shared && !may_serve(block, size, room, all)))
            continue;
        starts = block->size <= size + size / 8 && starts_segment(block);
        if (!best || (starts != best_starts ? starts : block->size < best->size)) {
            best = block;
            best_starts = starts;
        }
        if (block->size == size && (shared || starts))
            break;
    }
    return best;
}

struct block *bins_find(const struct bins *bins, size_t size, const struct packing_room *room, bool all)
{
    const unsigned int own = bin_of(size);

    for (unsigned int bin = bin_next(bins, own); bin < BINS_COUNT; bin = bin_next(bins, bin + 1)) {
        struct block *best = bins->head[bin];

        /* In the bins above, all blocks of shared segments are large enough, and those of one bin differ little:
         * examining several would fetch cache lines from other processors while the lock is held. */
        if (bin == own || !best->segment->shared)
            best = bin_best(best, size, room, all);
        if (best)
            return best;
    }
    return NULL;
}
