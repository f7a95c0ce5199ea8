/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lookup.c - see lookup.h.
 *
 * Locking: the communicator's lock.
 */
#include "lookup.h"

#include <stdlib.h>
#include <string.h>

void lookup_clear(struct lookup *lookup)
{
    lookup_set *sets = lookup->count ? atomic_load(&lookup->sets) : NULL;

    for (unsigned int i = 0; sets && i < LOOKUP_SETS * LOOKUP_WAYS; i++)
        atomic_store_explicit(&sets[i / LOOKUP_WAYS][i % LOOKUP_WAYS], 0, memory_order_relaxed);
    lookup->count = 0;
}

void lookup_enter(struct lookup *lookup, uint64_t addr, size_t index, unsigned int prepared)
{
    const uint64_t range = addr >> RANGE_SHIFT;
    unsigned int way = (unsigned int)(lookup->count++ % LOOKUP_WAYS);
    _Atomic(uint64_t) *set;
    lookup_set *sets;

    if (!atomic_load_explicit(&lookup->sets, memory_order_relaxed)) {
        sets = aligned_alloc(sizeof(*sets), LOOKUP_SETS * sizeof(*sets));
        if (sets)
            memset(sets, 0, LOOKUP_SETS * sizeof(*sets));
        atomic_store_explicit(&lookup->sets, sets, memory_order_release);
    }
    set = lookup_set_of(lookup, addr);
    if (!set)
        return;
    for (unsigned int i = 0; i < LOOKUP_WAYS; i++)
        if (!set[i] || LOOKUP_RANGE(set[i]) == range) {
            way = i;
            break;
        }
    atomic_store_explicit(&set[way], LOOKUP_WORD(range, index, prepared), memory_order_relaxed);
}

void lookup_free(struct lookup *lookup)
{
    free(atomic_load(&lookup->sets));
}
