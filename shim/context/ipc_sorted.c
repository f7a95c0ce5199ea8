/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_sorted.c - see ipc_sorted.h. No locks. */
#include "context/ipc_sorted.h"

#include <string.h>

#include "base/array.h"

bool sorted_reserve(struct sorted_mappings *sorted, size_t count)
{
    struct mapping **grown = array_grown(sorted->at, count, &sorted->room, sizeof(struct mapping *));

    sorted->at = grown ? grown : sorted->at;
    return grown != NULL;
}

size_t sorted_until(const struct sorted_mappings *sorted, uint64_t addr)
{
    size_t from = 0, count = sorted->count;

    while (count) {
        const size_t half = count / 2;

        if (sorted->at[from + half]->addr <= addr)
            from += count - half;
        count = half;
    }
    return from;
}

void sorted_add(struct sorted_mappings *sorted, struct mapping *mapping)
{
    const size_t at = sorted_until(sorted, mapping->addr);

    memmove(sorted->at + at + 1, sorted->at + at, (sorted->count++ - at) * sizeof(struct mapping *));
    sorted->at[at] = mapping;
}

void sorted_remove(struct sorted_mappings *sorted, const struct mapping *mapping)
{
    size_t i = sorted_until(sorted, mapping->addr);

    while (i && sorted->at[i - 1] != mapping && sorted->at[i - 1]->addr == mapping->addr)
        i--; /* it is open in two contexts */
    if (i && sorted->at[i - 1] == mapping)
        memmove(sorted->at + i - 1, sorted->at + i, (sorted->count-- - i) * sizeof(struct mapping *));
}
