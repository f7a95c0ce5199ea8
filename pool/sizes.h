/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sizes.h - sizes in bytes: rounded to a block, to what the driver would take, and the list of a magazine for blocks of
 * a size. Private to pool/. It knows no block and no segment.
 *
 * Threads: pure functions, no locks. No errors.
 */
#ifndef CUPOOL_POOL_SIZES_H
#define CUPOOL_POOL_SIZES_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hash.h"
#include "pool.h"

/*
 * Requests under this share segments of one unit, as the driver's own small requests share pages, so that no small
 * block keeps more memory from going back than natively.
 */
#define LARGE_MIN ((size_t)POOL_SEGMENT_UNIT)
/* No device has this much memory; the backend refuses it, and sums of sizes cannot overflow. */
#define SIZE_LARGEST ((size_t)1 << 47)
/* Up to CLOSE_MAX, blocks have one of a few sizes: FINE_GRANULES multiples of a granule, and then OCTAVE_CLASSES sizes
 * for each power of two. So a freed block serves requests of about its size, and is at most a sixteenth too large. */
#define FINE_GRANULES  32u
#define OCTAVE_CLASSES 16u
#define CLOSE_MAX      ((size_t)256 << 10)
/* The lists of a magazine: for sizes from LARGE_MIN on by a hash, for the sizes between by a hash, and then one list
 * for each of the few sizes. */
#define LARGE_LISTS  64u
#define MIDDLE_LISTS 64u
#define HASH_LISTS   (LARGE_LISTS + MIDDLE_LISTS)
#define CLOSE_LISTS  96u
#define LISTS        (HASH_LISTS + CLOSE_LISTS)
#define LIST_SETS    ((LISTS + 63) / 64)
#define LARGE_SETS   (LARGE_LISTS / 64)
#define HASH_SETS    (HASH_LISTS / 64)

static inline size_t round_up(size_t size, size_t unit)
{
    return (size + unit - 1) / unit * unit;
}

static inline unsigned int log2_of(size_t number)
{
    return 63u - (unsigned int)__builtin_clzll(number);
}

/* The size of the block for a request, and the list of a magazine for blocks of that size. */
static inline size_t size_class(size_t requested, unsigned int *ret_list)
{
    const size_t last = ((requested < SIZE_LARGEST ? requested : SIZE_LARGEST) - 1) / POOL_GRANULE;
    unsigned int shift;

    if (last < FINE_GRANULES) {
        *ret_list = HASH_LISTS + (unsigned int)last;
        return (last + 1) * POOL_GRANULE;
    }
    if (last >= CLOSE_MAX / POOL_GRANULE) {
        *ret_list = (unsigned int)(hash_of(last + 1) >> 58) + (last < (LARGE_MIN - 1) / POOL_GRANULE ? LARGE_LISTS : 0);
        return (last + 1) * POOL_GRANULE;
    }
    shift = log2_of(last) - 4;
    *ret_list = HASH_LISTS + OCTAVE_CLASSES * shift + (unsigned int)(last >> shift);
    return (((last >> shift) + 1) << shift) * POOL_GRANULE;
}

static inline size_t rounded(size_t requested)
{
    unsigned int list;

    return size_class(requested, &list);
}

/* The bytes that the driver would use for a block of this size: from 2 MiB on, whole units. */
static inline size_t native_size(size_t size)
{
    return size < LARGE_MIN ? size : round_up(size, POOL_SEGMENT_UNIT);
}

/* Segments for two are for blocks that leave PACK_LEAVES of their last 2 MiB. */
#define PACK_LEAVES (POOL_SEGMENT_UNIT / 2)

/* True for a large block that leaves much of its last 2 MiB. */
static inline bool leaves_much(size_t size)
{
    return size >= LARGE_MIN && native_size(size) - size >= PACK_LEAVES;
}

/* The size in bytes of a segment for two blocks of about size bytes: one unit less than two segments. */
static inline size_t segment_size_for_two(size_t size)
{
    return 2 * round_up(size, POOL_SEGMENT_UNIT) - POOL_SEGMENT_UNIT;
}

#endif
