/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_descriptors.c - memory for the host pool's own descriptors, and the table that finds the segment of an address.
 *
 * Descriptors come from the system's pages, not from malloc: the program's malloc may be the caller. They are recycled
 * and never unmapped.
 *
 * Locking: the caller holds the pool's lock. A system call happens under it only when the pool grows.
 */
#include <string.h>
#include <sys/mman.h>

#include "host_internal.h"

#define CHUNK  ((size_t)64 << 10) /* of descriptors */
#define ENTRY  sizeof(uintptr_t)  /* of the table */
#define STARTS (HOST_SLAB / HOST_GRANULE * sizeof(struct host_block *))

void *host_pages(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

struct host_block *host_block_new(struct host_pool *pool)
{
    struct host_block *block = pool->spare_blocks;

    if (!block) {
        struct host_block *chunk = host_pages(CHUNK);

        for (size_t i = 0; chunk && i < CHUNK / sizeof(*chunk); i++)
            host_block_retire(pool, &chunk[i]);
        block = pool->spare_blocks;
    }
    if (block)
        pool->spare_blocks = block->next;
    return block;
}

void host_block_retire(struct host_pool *pool, struct host_block *block)
{
    block->next = pool->spare_blocks;
    pool->spare_blocks = block;
}

/* Tables of starts are chained by their first entry. */
static struct host_block **starts_new(struct host_pool *pool)
{
    void **starts = pool->spare_starts;

    if (!starts)
        return host_pages(STARTS);
    pool->spare_starts = starts[0];
    memset(starts, 0, STARTS);
    return (struct host_block **)starts;
}

struct host_segment *host_segment_new(struct host_pool *pool, bool slab)
{
    struct host_segment *segment = pool->spare_segments;

    if (!segment) {
        struct host_segment *chunk = host_pages(CHUNK);

        for (size_t i = 0; chunk && i < CHUNK / sizeof(*chunk); i++)
            host_segment_retire(pool, &chunk[i]);
        segment = pool->spare_segments;
    }
    if (!segment)
        return NULL;
    pool->spare_segments = segment->next;
    memset(segment, 0, sizeof(*segment));
    if (slab) {
        segment->starts = starts_new(pool);
        if (!segment->starts) {
            host_segment_retire(pool, segment);
            return NULL;
        }
    }
    return segment;
}

void host_segment_retire(struct host_pool *pool, struct host_segment *segment)
{
    if (segment->starts) {
        void **starts = (void **)segment->starts;

        starts[0] = pool->spare_starts;
        pool->spare_starts = starts;
        segment->starts = NULL;
    }
    segment->next = pool->spare_segments;
    pool->spare_segments = segment;
}

struct host_family *host_family_get(struct host_pool *pool, const struct host_key *key)
{
    struct host_family *family;

    for (struct host_family **link = &pool->families; (family = *link); link = &family->next) {
        if (!host_keys_equal(&family->key, key))
            continue;
        *link = family->next; /* to the front: a program uses one or two */
        family->next = pool->families;
        pool->families = family;
        return family;
    }
    family = pool->spare_families;
    if (family)
        pool->spare_families = family->next;
    else
        family = host_pages(sizeof(*family));
    if (family) {
        family->key = *key;
        family->next = pool->families;
        pool->families = family;
    }
    return family;
}

/* All of their lists are empty, as in a new one. */
void host_families_retire(struct host_pool *pool, uint64_t owner)
{
    struct host_family **link = &pool->families, *family;

    while ((family = *link)) {
        if (family->key.owner != owner) {
            link = &family->next;
            continue;
        }
        *link = family->next;
        family->next = pool->spare_families;
        pool->spare_families = family;
    }
}

size_t host_table_index(const struct host_pool *pool, uint64_t addr)
{
    size_t low = 0, high = pool->table_count;

    while (low < high) {
        const size_t middle = (low + high) / 2;

        if (pool->table[middle]->addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct host_segment *host_table_find(const struct host_pool *pool, uint64_t addr)
{
    const size_t index = host_table_index(pool, addr);
    struct host_segment *segment = index ? pool->table[index - 1] : NULL;

    return segment && addr - segment->addr < segment->size ? segment : NULL;
}

int host_table_add(struct host_pool *pool, struct host_segment *segment)
{
    const size_t index = host_table_index(pool, segment->addr);

    if (pool->table_count == pool->table_room) {
        const size_t room = pool->table_room ? 2 * pool->table_room : CHUNK / ENTRY;
        struct host_segment **table = host_pages(room * ENTRY);

        if (!table)
            return -ENOMEM;
        if (pool->table) {
            memcpy(table, pool->table, pool->table_count * ENTRY);
            munmap(pool->table, pool->table_room * ENTRY);
        }
        pool->table = table;
        pool->table_room = room;
    }
    memmove(&pool->table[index + 1], &pool->table[index], (pool->table_count - index) * ENTRY);
    pool->table[index] = segment;
    pool->table_count++;
    return 0;
}

void host_table_remove(struct host_pool *pool, struct host_segment *segment)
{
    const size_t index = host_table_index(pool, segment->addr);

    memmove(&pool->table[index - 1], &pool->table[index], (pool->table_count - index) * ENTRY);
    pool->table_count--;
}
