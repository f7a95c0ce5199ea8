/* SPDX-License-Identifier: Apache-2.0 */
/* direct_table.c - see direct_table.h. No locks. */
#include "nccl/direct_table.h"

#include <stdlib.h>
#include <string.h>

/* The index of the first entry that begins behind addr. */
size_t direct_after(const struct table *table, uint64_t addr)
{
    size_t low = 0, high = table->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (table->entries[middle].addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The last entry that begins at addr or before; NULL: none. */
struct entry *direct_before(const struct table *table, uint64_t addr)
{
    const size_t i = direct_after(table, addr);

    return i ? &table->entries[i - 1] : NULL;
}

struct entry *direct_at(const struct table *table, uint64_t addr)
{
    struct entry *entry = direct_before(table, addr);

    return entry && entry->addr == addr ? entry : NULL;
}

/* The first entry that overlaps the range; NULL: none. */
struct entry *direct_overlapping(const struct table *table, uint64_t addr, size_t size)
{
    const size_t i = direct_after(table, addr);

    if (i && addr - table->entries[i - 1].addr < table->entries[i - 1].size)
        return &table->entries[i - 1];
    return i < table->count && table->entries[i].addr - addr < size ? &table->entries[i] : NULL;
}

/* Without host memory for its entry, the allocation is never registered. */
void direct_add(struct table *table, const struct entry *entry)
{
    const size_t at = direct_after(table, entry->addr);
    struct entry *grown;

    if (table->count == table->room) {
        grown = realloc(table->entries, (2 * table->room + 64) * sizeof(*grown));
        if (!grown)
            return;
        table->entries = grown;
        table->room = 2 * table->room + 64;
    }
    memmove(&table->entries[at + 1], &table->entries[at], (table->count - at) * sizeof(*entry));
    table->entries[at] = *entry;
    table->count++;
}

void direct_delete(struct table *table, const struct entry *entry)
{
    const size_t i = (size_t)(entry - table->entries);

    table->deferred -= entry->state == STATE_DEFERRED;
    table->count--;
    memmove(&table->entries[i], &table->entries[i + 1], (table->count - i) * sizeof(*entry));
}

void direct_set(struct table *table, struct entry *entry, enum state state)
{
    table->deferred += (state == STATE_DEFERRED) - (entry->state == STATE_DEFERRED);
    entry->state = state;
}
