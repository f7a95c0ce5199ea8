/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near.h - what is known of the places that operations' buffers lie in, so that nobody has to search. Private to
 * nccl_reg.
 *
 * What it is: a table of words in sets of as many as a line of the cache holds. A place is as large as the smallest
 * segment. Places drop out as others come.
 *
 * Locking: near_get without any; the others with the communicator's turn.
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
 * What is known of a place: its number, the record that last held a buffer there (if no other has come before it
 * since), and the kinds of operation for which nothing is left to be done with a buffer that lies in this place alone.
 */
#define NEAR_PLACE(word)            ((word) >> 32)
#define NEAR_INDEX(word)            ((word) >> 2 & (((uint64_t)1 << 30) - 1))
#define NEAR_SETTLED(word, kind)    (((word) >> (kind)) & 1)
#define NEAR(place, index, settled) ((place) << 32 | (uint64_t)(index) << 2 | (settled))
typedef _Atomic(uint64_t) near_set[NEAR_WAYS];

struct near {
    _Atomic(near_set *) sets; /* NEAR_SETS; NULL: nothing has been remembered yet */
    uint64_t count;           /* how often something was remembered since all was forgotten; with the turn */
};

/* A buffer at addr lies in the record of this index; settled: a bit for each kind of operation for which nothing is
 * left to be done in all of the place. */
void near_remember(struct near *near, uint64_t addr, size_t index, unsigned int settled);
/* The records, or what has used them, have changed. */
void near_forget(struct near *near);
void near_free(struct near *near);

/* Where the place of addr is remembered; NULL: nowhere. */
static inline _Atomic(uint64_t) *near_of(const struct near *near, uint64_t addr)
{
    near_set *sets = atomic_load_explicit(&near->sets, memory_order_acquire);
    const uint64_t place = addr >> PLACE_SHIFT;

    return sets && place && place <= UINT32_MAX ? sets[place * 0x9e3779b97f4a7c15u >> (64 - NEAR_BITS)] : NULL;
}

/* What is known of the place where addr is; 0: nothing. */
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

/* Is nothing left to be done with a buffer? */
static inline bool is_settled(uint64_t word, enum nccl_reg_kind kind, uint64_t addr, size_t size)
{
    return NEAR_SETTLED(word, kind) && size <= PLACE_SIZE - addr % PLACE_SIZE;
}

#endif
