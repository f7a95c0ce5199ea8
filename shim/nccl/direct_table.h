/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct_table.h - tables of allocations, sorted by address. Private to direct.c.
 *
 * It knows neither CUDA nor NCCL.
 *
 * Threads: the caller holds the lock that guards the table.
 */
#ifndef CUPOOL_SHIM_NCCL_DIRECT_TABLE_H
#define CUPOOL_SHIM_NCCL_DIRECT_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct context;

enum state {
    STATE_UNUSED,
    STATE_USED,     /* a segment of nccl_reg, as in the states below */
    STATE_DEFERRED, /* freed by the program at a time when the device could not be waited for */
    STATE_GOING     /* freed by the program; a thread is about to release the segment, or it is parked */
};

/* An allocation, or physical memory with its handle in addr. */
struct entry {
    uint64_t addr;
    size_t size;
    struct context *context; /* the context that it ends with; NULL: it is mapped and ends with no context */
    int device;              /* set when the entry becomes STATE_USED */
    enum state state;
};

/* Sorted by address, without overlap. */
struct table {
    struct entry *entries;
    size_t count, room;
    size_t deferred; /* number of entries in STATE_DEFERRED */
};

/* The index of the first entry that begins behind addr. */
size_t direct_after(const struct table *table, uint64_t addr);
/* The last entry that begins at addr or before, the one that begins at addr, and the first one that overlaps a range.
 * NULL: none. The pointers are valid until the table changes. */
struct entry *direct_before(const struct table *table, uint64_t addr);
struct entry *direct_at(const struct table *table, uint64_t addr);
struct entry *direct_overlapping(const struct table *table, uint64_t addr, size_t size);
/* Without host memory for its entry, the allocation is never registered. */
void direct_add(struct table *table, const struct entry *entry);
void direct_delete(struct table *table, const struct entry *entry);
/* Delete all entries that end with the context. */
void direct_delete_of(struct table *table, const struct context *context);
void direct_set(struct table *table, struct entry *entry, enum state state);

#endif
