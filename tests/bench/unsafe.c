/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unsafe.c - an allocator for tests/bench/bench.c: what a pool would cost that orders nothing.
 *
 * Each thread keeps the blocks that it has freed, a list for each size, and hands out the last one at once, while the
 * device may still be at work on it. This is wrong for real programs; it is the bound against which a right allocator
 * is measured. It knows one device a thread, and gives nothing back.
 *
 * Locking: none; what a thread has freed stays with it.
 */
#include "allocator.h"

#include <cuda_runtime_api.h>

#define SIZES 64

/* In front of the block would be device memory, so the list is the host's. */
struct entry {
    size_t size;
    int count;
    void *blocks[64];
};
static __thread struct entry entries[SIZES];

static struct entry *entry_of(size_t size)
{
    for (int i = 0; i < SIZES; i++) {
        if (entries[i].size == size)
            return &entries[i];
        if (!entries[i].size) {
            entries[i].size = size;
            return &entries[i];
        }
    }
    return NULL;
}

int bench_open(int device, void *stream)
{
    return 0;
}

int bench_take(size_t size, void **ret_block)
{
    struct entry *entry = entry_of(size);

    if (!entry || !entry->count)
        return (int)cudaMalloc(ret_block, size);
    *ret_block = entry->blocks[--entry->count];
    return 0;
}

int bench_give(size_t size, void *block)
{
    struct entry *entry = entry_of(size);

    if (!entry || entry->count == (int)(sizeof(entry->blocks) / sizeof(entry->blocks[0])))
        return (int)cudaFree(block);
    entry->blocks[entry->count++] = block;
    return 0;
}
