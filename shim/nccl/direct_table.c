/* SPDX-License-Identifier: Apache-2.0 */
/* direct_table.c - see direct_table.h. No locks. */
#include "nccl/direct_table.h"

#include "base/array.h"
#include "sorted.h"

/* The index of the first entry that begins behind addr. */
size_t direct_after(const struct table *table, uint64_t addr)
{
    return sorted_after(table->entries, table->count, sizeof(*table->entries), addr);
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
    struct entry *grown = array_grown(table->entries, table->count, &table->room, sizeof(*grown));

    if (!grown)
        return;
    table->entries = grown;
    sorted_insert(table->entries, &table->count, sizeof(*entry), at, entry);
}

void direct_delete(struct table *table, const struct entry *entry)
{
    table->deferred -= entry->state == STATE_DEFERRED;
    sorted_delete(table->entries, &table->count, sizeof(*entry), (size_t)(entry - table->entries));
}

void direct_delete_of(struct table *table, const struct context *context)
{
    for (size_t i = table->count; i-- > 0;)
        if (table->entries[i].context == context)
            direct_delete(table, &table->entries[i]);
}

void direct_set(struct table *table, struct entry *entry, enum state state)
{
    table->deferred += (state == STATE_DEFERRED) - (entry->state == STATE_DEFERRED);
    entry->state = state;
}
