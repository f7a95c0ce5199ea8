/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h - the bytes that malloc has handed out, for tests of code that runs for long: they must not grow. Under a
 * sanitizer they are 0.
 *
 * Threads: any.
 */
#ifndef CUPOOL_TESTS_HEAP_H
#define CUPOOL_TESTS_HEAP_H

#include <malloc.h>
#include <stddef.h>

static inline size_t heap_bytes(void)
{
#if __GLIBC_PREREQ(2, 33)
    return mallinfo2().uordblks;
#else
    return (size_t)mallinfo().uordblks;
#endif
}

#endif
