/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_sizes.h - the size classes of pinned memory: multiples of HOST_GRANULE to HOST_PAGE, multiples of HOST_PAGE to
 * 16 of them, and then 16 sizes for each power of two, so that a class wastes a sixteenth at most.
 *
 * Threads: any. No locks.
 */
#ifndef CUPOOL_POOL_HOST_SIZES_H
#define CUPOOL_POOL_HOST_SIZES_H

#include <stddef.h>

#include "host_pool.h"

#define HOST_FINE        (HOST_PAGE / HOST_GRANULE) /* classes up to a page */
#define HOST_STEPS       16u                        /* classes up to 16 pages, and for each power of two after that */
#define HOST_STEPS_SHIFT 16u                        /* log2 of HOST_STEPS pages */
#define HOST_CLASSES     (HOST_FINE + HOST_STEPS - 1 + HOST_STEPS * (47u - HOST_STEPS_SHIFT))
/* No machine has this much memory, and sums of sizes cannot overflow. */
#define HOST_SIZE_MAX ((size_t)1 << 47)

/* The unit that blocks of this size are multiples of. */
static inline size_t host_unit(size_t size)
{
    return size > HOST_PAGE - HOST_GRANULE ? HOST_PAGE : HOST_GRANULE;
}

/* size up to its unit. */
static inline size_t host_round(size_t size)
{
    const size_t unit = host_unit(size);

    return (size + unit - 1) / unit * unit;
}

/* The least class whose blocks have size bytes; 0 < size <= HOST_SIZE_MAX. */
unsigned int host_class_of(size_t size);
/* The greatest class whose blocks fit into size bytes, a multiple of HOST_GRANULE. */
unsigned int host_class_within(size_t size);
/* The size of a class's blocks. */
size_t host_class_size(unsigned int class);

#endif
