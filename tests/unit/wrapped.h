/* SPDX-License-Identifier: Apache-2.0 */
/* wrapped.h - functions that the linker calls in the place of others, of libc or of the library: a program that has
 * WRAPPED(int, close, (int fd)) {...} is linked with --wrap=close, and has the other one as __real_close. */
#ifndef CUPOOL_TESTS_WRAPPED_H
#define CUPOOL_TESTS_WRAPPED_H

#include <stdlib.h>

#define WRAPPED(type, name, parameters)                                                                                \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters

/* Allocations of the host's memory, which fail where refused, an expression, is true. */
#define WRAPPED_ALLOCATIONS(refused)                                                                                   \
    WRAPPED(void *, malloc, (size_t size))                                                                             \
    {                                                                                                                  \
        return (refused) ? NULL : __real_malloc(size);                                                                 \
    }                                                                                                                  \
    WRAPPED(void *, calloc, (size_t count, size_t size))                                                               \
    {                                                                                                                  \
        return (refused) ? NULL : __real_calloc(count, size);                                                          \
    }                                                                                                                  \
    WRAPPED(void *, realloc, (void *old, size_t size))                                                                 \
    {                                                                                                                  \
        return (refused) ? NULL : __real_realloc(old, size);                                                           \
    }                                                                                                                  \
    WRAPPED(void *, aligned_alloc, (size_t alignment, size_t size))                                                    \
    {                                                                                                                  \
        return (refused) ? NULL : __real_aligned_alloc(alignment, size);                                               \
    }

#endif
