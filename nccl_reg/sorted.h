/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sorted.h - arrays of structures that are sorted by their first member, an address of type uint64_t. For nccl_reg and
 * shim/nccl.
 *
 * It allocates nothing: the caller makes room. Not here: the search among the records of a communicator, which has to
 * avoid branches (comm_records.c).
 *
 * Locking: that of the array. No errors.
 */
#ifndef CUPOOL_NCCL_REG_SORTED_H
#define CUPOOL_NCCL_REG_SORTED_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The index of the first element that begins behind addr. size: of an element. */
static inline size_t sorted_after(const void *array, size_t count, size_t size, uint64_t addr)
{
    size_t low = 0, high = count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (*(const uint64_t *)((const char *)array + middle * size) <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Insert a copy of element at index; the array has room for it. */
static inline void sorted_insert(void *array, size_t *count, size_t size, size_t index, const void *element)
{
    char *at = (char *)array + index * size;

    memmove(at + size, at, (*count - index) * size);
    memcpy(at, element, size);
    ++*count;
}

static inline void sorted_delete(void *array, size_t *count, size_t size, size_t index)
{
    char *at = (char *)array + index * size;

    --*count;
    memmove(at, at + size, (*count - index) * size);
}

#endif
