/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookup.h - the lookup cache: maps the 2 MiB ranges in which operations' buffers lie to records, so that most
 * operations need no search. Private to nccl_reg. It owns no record.
 *
 * A table of words, in sets that each fill a cache line. A range is as large as the smallest segment. Ranges are
 * evicted when others come.
 *
 * Locking: lookup_get without any; the other functions with the communicator's lock.
 */
#ifndef CUPOOL_NCCL_REG_LOOKUP_H
#define CUPOOL_NCCL_REG_LOOKUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"

#define LOOKUP_BITS 9
#define LOOKUP_SETS (1u << LOOKUP_BITS)
#define LOOKUP_WAYS 8u
#define RANGE_SHIFT 21
#define RANGE_SIZE  ((uint64_t)1 << RANGE_SHIFT)

/*
 * A word of the cache: the number of the range, the index of the last record that held a buffer there (valid if no
 * record has been inserted before it since), and the kinds of operation that need nothing for a buffer within this
 * range.
 */
#define LOOKUP_RANGE(word)                  ((word) >> 32)
#define LOOKUP_INDEX(word)                  ((word) >> 2 & (((uint64_t)1 << 30) - 1))
#define LOOKUP_PREPARED(word, kind)         (((word) >> (kind)) & 1)
#define LOOKUP_WORD(range, index, prepared) ((range) << 32 | (uint64_t)(index) << 2 | (prepared))
typedef _Atomic(uint64_t) lookup_set[LOOKUP_WAYS];

struct lookup {
    _Atomic(lookup_set *) sets; /* LOOKUP_SETS; NULL: nothing has been entered yet */
    uint64_t count;             /* entries made since the last lookup_clear; with the communicator's lock */
};

/* Enter a buffer at addr, which lies in the record of this index. prepared: a bit for each kind of operation that needs
 * nothing in all of the range. */
void lookup_enter(struct lookup *lookup, uint64_t addr, size_t index, unsigned int prepared);
/* Clear the cache, because records or their users have changed. */
void lookup_clear(struct lookup *lookup);
void lookup_free(struct lookup *lookup);

/* A multiplicative hash, whose upper bits depend on all bits of the key. */
static inline uint64_t reg_hash(uint64_t key)
{
    return key * 0x9e3779b97f4a7c15u; /* 2^64 by the golden ratio */
}

/* The set for the range of addr; NULL: none. */
static inline _Atomic(uint64_t) *lookup_set_of(const struct lookup *lookup, uint64_t addr)
{
    lookup_set *sets = atomic_load_explicit(&lookup->sets, memory_order_acquire);
    const uint64_t range = addr >> RANGE_SHIFT;

    return sets && range && range <= UINT32_MAX ? sets[reg_hash(range) >> (64 - LOOKUP_BITS)] : NULL;
}

/* The word for the range of addr; 0: none. */
static inline uint64_t lookup_get(const struct lookup *lookup, uint64_t addr)
{
    const _Atomic(uint64_t) *set = lookup_set_of(lookup, addr);

    for (unsigned int i = 0; set && i < LOOKUP_WAYS; i++) {
        const uint64_t word = atomic_load_explicit(&set[i], memory_order_relaxed);

        if (LOOKUP_RANGE(word) == addr >> RANGE_SHIFT)
            return word;
    }
    return 0;
}

/* True if an operation of this kind needs nothing for this buffer. */
static inline bool is_prepared(uint64_t word, enum nccl_reg_kind kind, uint64_t addr, size_t size)
{
    return LOOKUP_PREPARED(word, kind) && size <= RANGE_SIZE - addr % RANGE_SIZE;
}

#endif
