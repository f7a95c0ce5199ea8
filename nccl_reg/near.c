/* SPDX-License-Identifier: Apache-2.0 */
/*
 * near.c - see near.h.
 *
 * Locking: the communicator's turn.
 */
#include "near.h"

#include <stdlib.h>
#include <string.h>

void near_forget(struct near *near)
{
    near_set *sets = near->count ? atomic_load(&near->sets) : NULL;

    for (unsigned int i = 0; sets && i < NEAR_SETS * NEAR_WAYS; i++)
        atomic_store_explicit(&sets[i / NEAR_WAYS][i % NEAR_WAYS], 0, memory_order_relaxed);
    near->count = 0;
}

void near_remember(struct near *near, uint64_t addr, size_t index, unsigned int settled)
{
    const uint64_t place = addr >> PLACE_SHIFT;
    unsigned int way = (unsigned int)(near->count++ % NEAR_WAYS);
    _Atomic(uint64_t) *set;
    near_set *sets;

    if (!atomic_load_explicit(&near->sets, memory_order_relaxed)) {
        sets = aligned_alloc(sizeof(*sets), NEAR_SETS * sizeof(*sets));
        if (sets)
            memset(sets, 0, NEAR_SETS * sizeof(*sets));
        atomic_store_explicit(&near->sets, sets, memory_order_release);
    }
    set = near_of(near, addr);
    if (!set)
        return;
    for (unsigned int i = 0; i < NEAR_WAYS; i++)
        if (!set[i] || NEAR_PLACE(set[i]) == place) {
            way = i;
            break;
        }
    atomic_store_explicit(&set[way], NEAR(place, index, settled), memory_order_relaxed);
}

void near_free(struct near *near)
{
    free(atomic_load(&near->sets));
}
