/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near.h - the lookup cache: maps the 2 MiB ranges in which operations' buffers lie to records, so that most operations
 * need no search. Private to nccl_reg. It owns no record.
 *
 * A table of words, in sets that each fill a cache line. A range is as large as the smallest segment. Ranges are
 * evicted when others come.
 *
 * Locking: near_get without any; the other functions with the communicator's turn.
 */
#ifndef CUPOOL_NCCL_REG_NEAR_H
#define CUPOOL_NCCL_REG_NEAR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"

#define NEAR_BITS   9
#define NEAR_SETS   (1u << NEAR_BITS)
#define NEAR_WAYS   8u
#define PLACE_SHIFT 21
#define PLACE_SIZE  ((uint64_t)1 << PLACE_SHIFT)

/*
 * A word of the cache: the number of the range, the index of the last record that held a buffer there (valid if no
 * record has been inserted before it since), and the kinds of operation that need nothing for a buffer within this
 * range.
 */
#define NEAR_PLACE(word)            ((word) >> 32)
#define NEAR_INDEX(word)            ((word) >> 2 & (((uint64_t)1 << 30) - 1))
#define NEAR_SETTLED(word, kind)    (((word) >> (kind)) & 1)
#define NEAR(place, index, settled) ((place) << 32 | (uint64_t)(index) << 2 | (settled))
typedef _Atomic(uint64_t) near_set[NEAR_WAYS];

struct near {
    _Atomic(near_set *) sets; /* NEAR_SETS; NULL: nothing has been entered yet */
    uint64_t count;           /* entries made since the last near_forget; with the turn */
};

/* Enter a buffer at addr, which lies in the record of this index. settled: a bit for each kind of operation that needs
 * nothing in all of the range. */
void near_remember(struct near *near, uint64_t addr, size_t index, unsigned int settled);
/* Clear the cache, because records or their users have changed. */
void near_forget(struct near *near);
void near_free(struct near *near);

/* The set for the range of addr; NULL: none. */
static inline _Atomic(uint64_t) *near_of(const struct near *near, uint64_t addr)
{
    near_set *sets = atomic_load_explicit(&near->sets, memory_order_acquire);
    const uint64_t place = addr >> PLACE_SHIFT;

    return sets && place && place <= UINT32_MAX ? sets[place * 0x9e3779b97f4a7c15u >> (64 - NEAR_BITS)] : NULL;
}

/* The word for the range of addr; 0: none. */
static inline uint64_t near_get(const struct near *near, uint64_t addr)
{
    const _Atomic(uint64_t) *set = near_of(near, addr);

    for (unsigned int i = 0; set && i < NEAR_WAYS; i++) {
        const uint64_t word = atomic_load_explicit(&set[i], memory_order_relaxed);

        if (NEAR_PLACE(word) == addr >> PLACE_SHIFT)
            return word;
    }
    return 0;
}

/* True if an operation of this kind needs nothing for this buffer. */
static inline bool is_settled(uint64_t word, enum nccl_reg_kind kind, uint64_t addr, size_t size)
{
    return NEAR_SETTLED(word, kind) && size <= PLACE_SIZE - addr % PLACE_SIZE;
}

#endif
