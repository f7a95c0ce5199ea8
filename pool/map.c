/* SPDX-License-Identifier: Apache-2.0 */
/*
 * map.c - see map.h.
 *
 * Locking: none of its own.
 */
#include "map.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "pool.h"

#define UNIT_SHIFT 21 /* log2 of POOL_SEGMENT_UNIT */
#define LEAF_BITS  13
#define ROOT_BITS  (48 - UNIT_SHIFT - LEAF_BITS)
#define SLOTS      (POOL_SEGMENT_UNIT / POOL_GRANULE)

typedef _Atomic(struct block *) slot;

struct unit {
    _Atomic(struct segment *) segment;
    _Atomic(slot *) slots; /* by (address - unit) / POOL_GRANULE; made when the first block starts in the unit */
};

static _Atomic(struct unit *) root[1 << ROOT_BITS];

/* Zeroed memory that takes physical pages only when touched. */
static void *map_pages(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

static struct unit *unit_get(uint64_t addr)
{
    struct unit *leaf;

    if (addr >> 48)
        return NULL;
    leaf = atomic_load_explicit(&root[addr >> (UNIT_SHIFT + LEAF_BITS)], memory_order_acquire);
    return leaf ? &leaf[(addr >> UNIT_SHIFT) & ((1 << LEAF_BITS) - 1)] : NULL;
}

/* Of an address in an entered segment. */
static struct unit *unit_entered(uint64_t addr)
{
    struct unit *leaf = atomic_load_explicit(&root[addr >> (UNIT_SHIFT + LEAF_BITS)], memory_order_acquire);

    return &leaf[(addr >> UNIT_SHIFT) & ((1 << LEAF_BITS) - 1)];
}

/* Out of line, so that map_block_set needs few registers. Only the owner of the segment comes here, under its lock, so
 * no other thread races with this store. NULL: no host memory. */
static __attribute__((noinline)) slot *slots_make(struct unit *unit)
{
    slot *slots = map_pages(SLOTS * sizeof(slot));

    atomic_store_explicit(&unit->slots, slots, memory_order_release);
    return slots;
}

static struct unit *unit_make(uint64_t addr)
{
    const size_t size = sizeof(struct unit) << LEAF_BITS;
    _Atomic(struct unit *) *entry;
    struct unit *leaf, *expected = NULL;

    if (addr >> 48)
        return NULL;
    entry = &root[addr >> (UNIT_SHIFT + LEAF_BITS)];
    if (!atomic_load_explicit(entry, memory_order_acquire)) {
        leaf = map_pages(size);
        if (!leaf)
            return NULL;
        if (!atomic_compare_exchange_strong(entry, &expected, leaf))
            munmap(leaf, size); /* another pool was faster */
    }
    return unit_get(addr);
}

int map_segment_add(uint64_t addr, size_t size, struct segment *segment)
{
    uint64_t at;
    int rc = 0;

    if ((addr | size) & (POOL_SEGMENT_UNIT - 1))
        return -EINVAL;
    for (at = addr; at < addr + size; at += POOL_SEGMENT_UNIT) {
        struct unit *unit = unit_make(at);
        struct segment *expected = NULL;

        if (!unit)
            rc = -ENOMEM;
        else if (!atomic_compare_exchange_strong(&unit->segment, &expected, segment))
            rc = -EEXIST;
        if (rc) {
            map_segment_remove(addr, at - addr);
            return rc;
        }
    }
    return 0;
}

void map_segment_remove(uint64_t addr, size_t size)
{
    for (uint64_t at = addr; at < addr + size; at += POOL_SEGMENT_UNIT)
        atomic_store_explicit(&unit_entered(at)->segment, NULL, memory_order_release);
}

struct segment *map_segment_get(uint64_t addr)
{
    struct unit *unit = unit_get(addr);

    return unit ? atomic_load_explicit(&unit->segment, memory_order_acquire) : NULL;
}

int map_block_set(uint64_t addr, struct block *block)
{
    struct unit *unit = unit_entered(addr);
    slot *slots = atomic_load_explicit(&unit->slots, memory_order_acquire);

    if (!slots) {
        slots = block ? slots_make(unit) : NULL;
        if (!slots)
            return block ? -ENOMEM : 0;
    }
    atomic_store_explicit(&slots[(addr / POOL_GRANULE) % SLOTS], block, memory_order_release);
    return 0;
}

struct segment *map_find(uint64_t addr, struct block **ret_block)
{
    struct unit *unit = unit_get(addr);
    struct segment *segment = unit ? atomic_load_explicit(&unit->segment, memory_order_acquire) : NULL;
    slot *slots = segment ? atomic_load_explicit(&unit->slots, memory_order_acquire) : NULL;

    *ret_block = slots && addr % POOL_GRANULE == 0
                     ? atomic_load_explicit(&slots[(addr / POOL_GRANULE) % SLOTS], memory_order_acquire)
                     : NULL;
    return segment;
}

struct block *map_block_get(uint64_t addr)
{
    struct block *block;

    map_find(addr, &block);
    return block;
}

struct block *map_block_before(uint64_t addr)
{
    struct unit *unit = unit_get(addr);
    slot *slots = unit ? atomic_load_explicit(&unit->slots, memory_order_acquire) : NULL;
    struct block *block = NULL;

    for (size_t i = (addr / POOL_GRANULE) % SLOTS + 1; slots && i > 0 && !block; i--)
        block = atomic_load_explicit(&slots[i - 1], memory_order_acquire);
    return block;
}
