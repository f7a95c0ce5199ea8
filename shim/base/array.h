/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.h - arrays that grow. Pure functions over the caller's data.
 *
 * Threads: the caller guards the array.
 */
#ifndef CUPOOL_SHIM_BASE_ARRAY_H
#define CUPOOL_SHIM_BASE_ARRAY_H

#include <stdlib.h>

/* The array, with room for one element more than count; it may have moved, and *room is then larger. NULL: there is no
 * host memory, and the old array is as it was. size: bytes of an element. */
static inline void *array_grown(void *array, size_t count, size_t *room, size_t size)
{
    void *grown = array;

    if (count == *room) {
        grown = realloc(array, (2 * *room + 64) * size);
        *room = grown ? 2 * *room + 64 : *room;
    }
    return grown;
}

#endif
