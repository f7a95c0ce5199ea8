/* SPDX-License-Identifier: Apache-2.0 */
/* vmm_unit.h - buffers of a program in tests of the cache of virtual memory, and each test's cache. Included by one
 * source of a program, after cmocka.h. */
#ifndef CUPOOL_TESTS_UNIT_POOL_VMM_UNIT_H
#define CUPOOL_TESTS_UNIT_POOL_VMM_UNIT_H

#include "vmm_fake.h"

#define ALIGN UNIT

struct buffer {
    uint64_t addr, handle;
    size_t size;
};

#define OK(call) assert_int_equal(call, 0)

static inline struct buffer take(struct side *side, size_t size)
{
    struct buffer b = {.size = size};

    OK(side_reserve(side, size, ALIGN, &b.addr));
    OK(side_create(side, size, 1, &b.handle));
    OK(side_map(side, b.addr, size, 0, b.handle));
    OK(side_access(side, b.addr, size, 0, 3));
    return b;
}

static inline void give(struct side *side, const struct buffer *b)
{
    OK(side_unmap(side, b->addr, b->size));
    OK(side_release(side, b->handle));
    OK(side_unreserve(side, b->addr, b->size));
}

static inline unsigned int calls(const struct side *side)
{
    unsigned int sum = 0;

    for (unsigned int i = 0; i < CALLS; i++)
        sum += side->driver->calls[i];
    return sum;
}

static inline struct vmm_stats stats_of(const struct side *side)
{
    struct vmm_stats stats;

    vmm_cache_stats_get(side->cache, &stats);
    return stats;
}

static inline int setup(void **state)
{
    *state = side_new(/* cached: */ true, 64 * MIB);
    return 0;
}

static inline int teardown(void **state)
{
    struct side *side = *state;

    vmm_cache_trim(side->cache, VMM_ALL_DEVICES, UINT64_MAX);
    assert_int_equal(vmm_cache_kept(side->cache, VMM_ALL_DEVICES), 0);
    assert_true(side_free(side));
    return 0;
}

/* A test with a side of its own. */
#define CASE(name)                                                                                                     \
    static void name##_of(struct side *side);                                                                          \
    CASE_WITH(name, setup, teardown)                                                                                   \
    {                                                                                                                  \
        name##_of(*state);                                                                                             \
    }                                                                                                                  \
    static void name##_of(struct side *side)

#endif
