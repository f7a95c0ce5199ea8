/* SPDX-License-Identifier: Apache-2.0 */
/* test_map.c - the table from addresses to segments and blocks. Each test uses a range of its own. */
#include "unit.h"

#include "map.h"
#include "pool_state.h"

#define BASE ((uint64_t)0x200000000000)
#define LEAF ((uint64_t)16 << 30) /* what one second-level table covers; for tests across its edge */

static struct segment one, two;
static struct block block_one, block_two;

UNIT_CASE(test_segment_add_covers_exactly_its_range)
{
    const uint64_t addr = BASE;

    assert_int_equal(map_segment_add(addr, 3 * UNIT, &one), 0);
    assert_null(map_segment_get(addr - 1));
    assert_ptr_equal(map_segment_get(addr), &one);
    assert_ptr_equal(map_segment_get(addr + 3 * UNIT - 1), &one);
    assert_null(map_segment_get(addr + 3 * UNIT));
    map_segment_remove(addr, 3 * UNIT);
    assert_null(map_segment_get(addr));
    assert_null(map_segment_get(addr + 3 * UNIT - 1));
}

UNIT_CASE(test_segment_add_across_leaves_covers_both)
{
    const uint64_t addr = BASE + LEAF - 2 * UNIT;

    assert_int_equal(map_segment_add(addr, 4 * UNIT, &one), 0);
    for (uint64_t at = addr; at < addr + 4 * UNIT; at += UNIT)
        assert_ptr_equal(map_segment_get(at), &one);
    map_segment_remove(addr, 4 * UNIT);
    for (uint64_t at = addr; at < addr + 4 * UNIT; at += UNIT)
        assert_null(map_segment_get(at));
}

UNIT_CASE(test_segment_add_of_taken_range_returns_eexist_and_undoes)
{
    const uint64_t addr = BASE + 2 * LEAF;

    assert_int_equal(map_segment_add(addr + 2 * UNIT, UNIT, &one), 0);
    assert_int_equal(map_segment_add(addr, 4 * UNIT, &two), -EEXIST);
    assert_int_equal(map_segment_add(addr + 2 * UNIT, UNIT, &two), -EEXIST);
    assert_null(map_segment_get(addr));
    assert_null(map_segment_get(addr + UNIT));
    assert_ptr_equal(map_segment_get(addr + 2 * UNIT), &one);
    assert_null(map_segment_get(addr + 3 * UNIT));
    map_segment_remove(addr + 2 * UNIT, UNIT);
    assert_int_equal(map_segment_add(addr, 4 * UNIT, &two), 0);
    map_segment_remove(addr, 4 * UNIT);
}

UNIT_CASE(test_segment_add_beyond_48_bits_returns_enomem_and_undoes)
{
    const uint64_t end = 1ull << 48;

    assert_int_equal(map_segment_add(end, UNIT, &one), -ENOMEM);
    assert_int_equal(map_segment_add(1ull << 63, UNIT, &one), -ENOMEM);
    assert_int_equal(map_segment_add(end - 2 * UNIT, 3 * UNIT, &one), -ENOMEM);
    assert_null(map_segment_get(end - UNIT));
    assert_null(map_segment_get(end - 2 * UNIT));
    assert_int_equal(map_segment_add(end - UNIT, UNIT, &one), 0);
    assert_ptr_equal(map_segment_get(end - 1), &one);
    assert_null(map_segment_get(end));
    map_segment_remove(end - UNIT, UNIT);
}

UNIT_CASE(test_segment_add_of_no_whole_units_returns_einval)
{
    const uint64_t addr = BASE + 7 * LEAF;

    for (uint64_t odd = 1; odd < UNIT; odd *= 2) {
        assert_int_equal(map_segment_add(addr + odd, UNIT, &one), -EINVAL);
        assert_int_equal(map_segment_add(addr, UNIT + odd, &one), -EINVAL);
        assert_null(map_segment_get(addr));
        assert_null(map_segment_get(addr + UNIT));
    }
}

UNIT_CASE(test_segment_get_of_any_unknown_address_returns_null)
{
    uint64_t rng = 5;

    for (int i = 0; i < 100000; i++) {
        const uint64_t addr = rng_next(&rng) >> rng_below(&rng, 64);

        assert_null(map_segment_get(addr));
        assert_null(map_block_get(addr));
    }
    assert_null(map_segment_get(UINT64_MAX));
    assert_null(map_block_get(UINT64_MAX));
}

UNIT_CASE(test_block_set_is_found_at_its_address_alone)
{
    const uint64_t addr = BASE + 4 * LEAF;
    const uint64_t places[] = {addr, addr + POOL_GRANULE, addr + UNIT - POOL_GRANULE, addr + UNIT,
                               addr + 2 * UNIT - POOL_GRANULE};

    assert_int_equal(map_segment_add(addr, 2 * UNIT, &one), 0);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(map_block_set(places[i], &block_one), 0);
        for (uint64_t at = addr; at < addr + 2 * UNIT; at += POOL_GRANULE)
            assert_ptr_equal(map_block_get(at), at == places[i] ? &block_one : NULL);
        assert_int_equal(map_block_set(places[i], NULL), 0);
        assert_null(map_block_get(places[i]));
    }
    map_segment_remove(addr, 2 * UNIT);
}

UNIT_CASE(test_block_get_of_unaligned_address_returns_null)
{
    const uint64_t addr = BASE + 5 * LEAF;

    assert_int_equal(map_segment_add(addr, UNIT, &one), 0);
    assert_int_equal(map_block_set(addr + 1024, &block_one), 0);
    for (uint64_t i = 1; i < POOL_GRANULE; i++)
        assert_null(map_block_get(addr + 1024 + i));
    assert_int_equal(map_block_set(addr + 1024, NULL), 0);
    map_segment_remove(addr, UNIT);
}

UNIT_CASE(test_block_set_twice_keeps_the_last)
{
    const uint64_t addr = BASE + 6 * LEAF;

    assert_int_equal(map_segment_add(addr, UNIT, &one), 0);
    assert_int_equal(map_block_set(addr, NULL), 0); /* nothing there yet, nothing to do */
    assert_int_equal(map_block_set(addr, &block_one), 0);
    assert_int_equal(map_block_set(addr, &block_two), 0);
    assert_ptr_equal(map_block_get(addr), &block_two);
    assert_int_equal(map_block_set(addr, NULL), 0);
    map_segment_remove(addr, UNIT);
}

/* Two threads that make the same leaf at the same time: both entries must survive. */
#define LEAVES 3000

static struct segment segments[2];
static struct meeting meeting;
static unsigned int faults[2];

static void *add_beside(void *arg)
{
    const size_t self = (size_t)arg;
    unsigned int round = 0;

    for (uint64_t leaf = 0; leaf < LEAVES; leaf++) {
        const uint64_t addr = BASE + (8 + leaf) * LEAF + self * UNIT;

        meet(&meeting, 2, &round);
        faults[self] += map_segment_add(addr, UNIT, &segments[self]) != 0;
        meet(&meeting, 2, &round);
        faults[self] += map_segment_get(addr) != &segments[self];
        map_segment_remove(addr, UNIT);
        faults[self] += map_segment_get(addr) != NULL;
    }
    return NULL;
}

UNIT_CASE(test_segment_add_by_two_threads_loses_none)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, add_beside, (void *)1), 0);
    add_beside((void *)0);
    pthread_join(thread, NULL);
    assert_int_equal(faults[0] + faults[1], 0);
}

UNIT_CASE(test_block_before_is_the_nearest_in_its_unit)
{
    const uint64_t addr = BASE + 40 * LEAF;

    assert_null(map_block_before(addr)); /* no unit was entered there */
    assert_int_equal(map_segment_add(addr, 2 * UNIT, &one), 0);
    assert_null(map_block_before(addr));
    assert_int_equal(map_block_set(addr + 512, &block_one), 0);
    assert_int_equal(map_block_set(addr + UNIT - 512, &block_two), 0);
    assert_null(map_block_before(addr + 511));
    assert_ptr_equal(map_block_before(addr + 512), &block_one);
    assert_ptr_equal(map_block_before(addr + UNIT - 513), &block_one);
    assert_ptr_equal(map_block_before(addr + UNIT - 1), &block_two);
    assert_null(map_block_before(addr + UNIT));
    assert_int_equal(map_block_set(addr + 512, NULL), 0);
    assert_int_equal(map_block_set(addr + UNIT - 512, NULL), 0);
    map_segment_remove(addr, 2 * UNIT);
}
