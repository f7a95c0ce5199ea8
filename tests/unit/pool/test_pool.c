/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool.c - blocks: handing out, splitting, merging, freeing, finding. One thread, no refusals. */
#include "unit.h"

POOL_CASE(test_alloc_after_free_returns_same_block)
{
    static const size_t sizes[] = {1, 512, 100 * KIB, 2 * MIB, 3 * MIB + 17, 64 * MIB};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const uint64_t addr = alloc(env->pool, sizes[i]);
        const unsigned int asked = env->fake->calls[FAKE_ALLOC];

        release(addr);
        assert_int_equal(alloc(env->pool, sizes[i]), addr);
        assert_int_equal(env->fake->calls[FAKE_ALLOC], asked);
        assert_sound(env->pool, env->fake);
    }
    /* Three share a segment; each block came back once. */
    assert_int_equal(stats_of(env->pool).hits, 2 + 6);
}

/* The block freed last comes back first, and its neighbours only join when another size is requested. */
POOL_CASE(test_alloc_of_freed_sizes_takes_the_last_of_each)
{
    static const size_t sizes[] = {4 * KIB, 4 * KIB, 12 * KIB, 2 * MIB, 2 * MIB, 3 * MIB};
    uint64_t addr[6];
    unsigned int asked;

    for (int i = 0; i < 6; i++)
        addr[i] = alloc(env->pool, sizes[i]);
    asked = env->fake->calls[FAKE_ALLOC];
    release_all(addr, 6);
    assert_sound(env->pool, env->fake);
    assert_int_equal(pool_free(addr[1]), -EINVAL);
    assert_int_equal(pool_live_size(addr[1]), 0);
    assert_int_equal(alloc(env->pool, 4 * KIB), addr[1]);
    assert_int_equal(alloc(env->pool, 4 * KIB - 511), addr[0]); /* the same in granules */
    assert_int_equal(alloc(env->pool, 12 * KIB), addr[2]);
    assert_int_equal(alloc(env->pool, 2 * MIB), addr[4]);
    assert_sound(env->pool, env->fake);
    release_all(addr, 3);
    assert_int_equal(alloc(env->pool, UNIT - 512), addr[0] - 512); /* nothing less than all of them joined serves it */
    assert_int_equal(env->fake->calls[FAKE_ALLOC], asked);
}

POOL_CASE(test_alloc_any_size_is_aligned_and_live)
{
    uint64_t rng = 7;

    for (int i = 0; i < 2000; i++) {
        const size_t size = 1 + rng_below(&rng, (size_t)1 << rng_below(&rng, 23));
        const uint64_t addr = alloc(env->pool, size);

        assert_int_equal(addr % POOL_GRANULE, 0);
        assert_int_equal(pool_live_size(addr), size);
        assert_ptr_equal(pool_of(addr), env->pool);
        assert_ptr_equal(pool_of(addr + size - 1), env->pool);
        if (i % 3 == 0)
            release(addr);
    }
}

POOL_CASE(test_alloc_large_in_new_pool_starts_at_segment_base)
{
    static const size_t sizes[] = {2 * MIB, 2 * MIB + 1, 3 * MIB, 4 * MIB, 5 * MIB - 512, 33 * MIB, 1024 * MIB};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        assert_int_equal(offset_of(env->fake, alloc(env->pool, sizes[i])), 0);
        assert_sound(env->pool, env->fake);
    }
}

POOL_CASE(test_alloc_small_never_returns_segment_base)
{
    for (int i = 0; i < 3 * 4096; i++)
        assert_true(offset_of(env->fake, alloc(env->pool, 1 + (size_t)i % 512)) >= POOL_GRANULE);
}

POOL_CASE(test_alloc_small_fills_all_but_first_granule)
{
    for (size_t i = 0; i < UNIT / POOL_GRANULE - 1; i++)
        alloc(env->pool, POOL_GRANULE);
    assert_int_equal(env->fake->born, 1);
    alloc(env->pool, 1);
    assert_int_equal(env->fake->born, 2);
}

/* As many as the driver puts into one of its pages: skipping the first granule would cost every second block of 1 MiB.
 */
POOL_CASE(test_alloc_of_powers_of_two_wastes_none)
{
    unsigned int before = 0;

    for (size_t size = 128 * KIB; size <= MIB; size *= 2) {
        for (size_t i = 0; i < 8 * MIB / size; i++)
            alloc(env->pool, size);
        assert_int_equal(env->fake->born - before, 8 * MIB / UNIT);
        before = env->fake->born;
    }
}

/* Of a size, until the device is full; the number. */
static size_t fill_device(struct env *env, uint64_t *ret_addrs, size_t most, size_t size)
{
    size_t count = 0;

    while (count < most && pool_alloc(env->pool, size, &ret_addrs[count]) == 0)
        count++;
    assert_sound(env->pool, env->fake);
    return count;
}

/* As natively: the pages of one phase serve the next one as if they were new, whatever the sizes were. */
POOL_CASE(test_alloc_after_a_phase_of_other_sizes_fills_the_device)
{
    static const size_t sizes[] = {1, 600, 60000, 64 * KIB, 64 * KIB + 1, 128 * KIB, 256 * KIB, 512 * KIB, MIB};
    static uint64_t addrs[16 * MIB / POOL_GRANULE];
    const size_t count = sizeof(sizes) / sizeof(*sizes), most = sizeof(addrs) / sizeof(*addrs);

    env->fake->capacity = 16 * MIB;
    for (size_t i = 0; i < count * count; i++) {
        const size_t before = sizes[i / count], size = sizes[i % count];

        release_all(addrs, fill_device(env, addrs, most, before));
        for (size_t n = 0; n < 2; n++) {
            const size_t found = fill_device(env, addrs, most, size);

            /* One may lie beside small blocks that were cached. */
            if (size >= 128 * KIB)
                assert_true(found >= 16 * MIB / size - 1);
            release_all(addrs, found);
        }
    }
}

/* Those freed last are cached, here and there among what is free: only the first few blocks lie beside them. */
POOL_CASE(test_alloc_after_small_blocks_freed_in_any_order_fills_the_device)
{
    static uint64_t addrs[512 * MIB / (64 * KIB)];
    uint64_t seed = 1;
    size_t count;

    env->fake->capacity = 512 * MIB;
    count = fill_device(env, addrs, sizeof(addrs) / sizeof(*addrs), 64 * KIB);
    assert_true(count > 7900);
    for (size_t n = count; n; n--) {
        const size_t i = rng_below(&seed, n);

        release(addrs[i]);
        addrs[i] = addrs[n - 1];
    }
    assert_true(fill_device(env, addrs, count, MIB) >= 512 - 16);
}

/* A segment that is idle again is as new: a stray cuMemFree of its small blocks names no allocation of the driver. */
POOL_CASE(test_alloc_small_in_idle_segment_never_returns_segment_base)
{
    static const size_t sizes[] = {MIB, 700, MIB, 64 * KIB, 64 * KIB + 1, 1};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        const uint64_t addr = alloc(env->pool, sizes[i]);

        assert_int_equal(offset_of(env->fake, addr), sizes[i] <= 64 * KIB ? POOL_GRANULE : 0);
        release(addr);
        pool_decay(env->pool, /* age: */ 9); /* what is cached is coalesced */
    }
    assert_int_equal(env->fake->born, 1);
}

POOL_CASE(test_alloc_just_below_unit_fits_one_unit)
{
    for (size_t size = UNIT - 1024; size <= UNIT; size += 256) {
        const uint64_t addr = alloc(env->pool, size);

        assert_int_equal(fake_segment_of(env->fake, addr)->size, UNIT);
        assert_sound(env->pool, env->fake);
    }
}

/* However much the pool holds already. */
POOL_CASE(test_alloc_small_always_asks_for_one_unit)
{
    alloc(env->pool, 256 * MIB);
    while (env->fake->born < 200) {
        fake_events_clear(env->fake);
        alloc(env->pool, 300 * KIB);
        if (env->fake->events_count)
            assert_int_equal(fake_event_of(env->fake, FAKE_ALLOC, 0)->size, UNIT);
    }
}

POOL_CASE(test_free_in_any_order_merges_small)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (int i = 0; i < 6; i++) {
        uint64_t addrs[3], whole;

        for (int j = 0; j < 3; j++) {
            addrs[j] = alloc(env->pool, 512 * (size_t)(j + 1));
            assert_sound(env->pool, env->fake);
        }
        for (int j = 0; j < 3; j++) {
            release(addrs[orders[i][j]]);
            assert_sound(env->pool, env->fake);
        }
        whole = alloc(env->pool, UNIT - POOL_GRANULE);
        assert_int_equal(env->fake->born, 1);
        release(whole);
        assert_int_equal(stats_of(env->pool).idle, UNIT);
    }
    assert_int_equal(pool_trim(env->pool, "test"), UNIT);
    assert_int_equal(env->fake->in_use, 0);
}

POOL_CASE(test_free_in_any_order_merges_large)
{
    uint64_t addrs[7], rng = 3;

    release(alloc(env->pool, 16 * MIB));
    for (int i = 0; i < 50; i++) {
        for (size_t j = 0; j < 7; j++) {
            addrs[j] = alloc(env->pool, (j ? 2 : 4) * MIB);
            assert_sound(env->pool, env->fake);
        }
        for (size_t left = 7; left; left--) {
            const size_t at = rng_below(&rng, left);

            release(addrs[at]);
            addrs[at] = addrs[left - 1];
            assert_sound(env->pool, env->fake);
        }
        addrs[0] = alloc(env->pool, 16 * MIB);
        assert_int_equal(env->fake->born, 1);
        assert_int_equal(offset_of(env->fake, addrs[0]), 0);
        release(addrs[0]);
    }
    assert_int_equal(pool_trim(env->pool, "test"), 16 * MIB);
}

POOL_CASE(test_free_beside_other_segment_does_not_merge)
{
    const uint64_t first = alloc(env->pool, 2 * MIB), second = alloc(env->pool, 2 * MIB);

    assert_int_equal(second, first + 2 * MIB); /* the fake hands out touching segments */
    release(first);
    release(second);
    assert_sound(env->pool, env->fake);
    assert_int_equal(offset_of(env->fake, alloc(env->pool, 4 * MIB)), 0);
    assert_int_equal(env->fake->born, 3);
}

POOL_CASE(test_free_everything_leaves_all_segments_idle)
{
    uint64_t addrs[500], rng = 11;

    for (int i = 0; i < 500; i++)
        addrs[i] = alloc(env->pool, 1 + rng_below(&rng, i % 5 ? 200 * KIB : 9 * MIB));
    for (int i = 0; i < 500; i++)
        release(addrs[(i * 7) % 500]);
    assert_sound(env->pool, env->fake);
    assert_int_equal(stats_of(env->pool).live, 0);
    assert_int_equal(stats_of(env->pool).idle, env->fake->in_use);
    assert_int_equal(stats_of(env->pool).held, env->fake->in_use);
    pool_trim(env->pool, "test");
    assert_int_equal(env->fake->in_use, 0);
    assert_int_equal(stats_of(env->pool).held, 0);
    assert_int_equal(stats_of(env->pool).idle, 0);
    assert_null(pool_of(addrs[0]));
}

POOL_CASE(test_trim_with_live_block_keeps_its_segment)
{
    const uint64_t live = alloc(env->pool, 512), idle = alloc(env->pool, 4 * MIB);

    release(idle);
    assert_int_equal(pool_trim(env->pool, "test"), 4 * MIB);
    assert_int_equal(pool_live_size(live), 512);
    assert_int_equal(pool_free(idle), -ENOENT);
    assert_int_equal(pool_trim(env->pool, "test"), 0);
    assert_int_equal(env->fake->calls[FAKE_TRIM], 1); /* nothing given back, nothing to tell */
}

POOL_CASE(test_trim_after_trim_uses_returned_address_again)
{
    uint64_t addr = alloc(env->pool, 4 * MIB);

    for (int i = 0; i < 10; i++) {
        release(addr);
        assert_int_equal(pool_trim(env->pool, "test"), 4 * MIB);
        assert_null(pool_of(addr));
        assert_int_equal(pool_live_size(addr), 0);
        assert_int_equal(alloc(env->pool, 4 * MIB), addr); /* FAKE_UP */
    }
}

POOL_CASE(test_alloc_of_small_part_leaves_large_idle_segment_whole)
{
    const uint64_t large = alloc(env->pool, 64 * MIB);

    release(large);
    assert_true(alloc(env->pool, 12 * MIB) - large >= 64 * MIB);
    assert_int_equal(alloc(env->pool, 64 * MIB), large);
}

POOL_CASE(test_alloc_of_large_part_splits_idle_segment)
{
    const uint64_t large = alloc(env->pool, 64 * MIB);

    release(large);
    assert_int_equal(alloc(env->pool, 13 * MIB), large);           /* a fifth: just enough */
    assert_int_equal(alloc(env->pool, 2 * MIB), large + 62 * MIB); /* it is in use now, so anything goes, at its end */
    assert_int_equal(env->fake->born, 1);
}

/* With a small block there, nothing of the segment could go back. */
POOL_CASE(test_alloc_leaving_less_than_unit_of_segment_leaves_it_to_nobody)
{
    uint64_t large, small, addr;

    release(alloc(env->pool, 4 * MIB));
    large = alloc(env->pool, 3 * MIB);
    assert_int_equal(stats_of(env->pool).hits, 1);
    assert_int_equal(stats_of(env->pool).live, 3 * MIB);
    small = alloc(env->pool, MIB);
    assert_int_equal(env->fake->born, 2);
    env->fake->refuse = true;
    alloc(env->pool, MIB - 512); /* the rest of its segment */
    assert_int_equal(pool_alloc(env->pool, MIB, &addr), -ENOMEM);
    release(large);
    assert_int_equal(alloc(env->pool, 4 * MIB), large); /* whole again */
    release(small);
}

POOL_CASE(test_free_of_wild_address_returns_enoent)
{
    static const uint64_t wild[] = {
        0, 1, 512, 0x1000, 1ull << 47, (1ull << 48) - 1, 1ull << 48, (1ull << 48) + 512, 1ull << 63, UINT64_MAX,
    };
    const uint64_t addr = alloc(env->pool, 4 * MIB);
    uint64_t base, segment;
    size_t size;

    for (size_t i = 0; i < sizeof(wild) / sizeof(*wild); i++) {
        assert_int_equal(pool_free(wild[i]), -ENOENT);
        assert_null(pool_of(wild[i]));
        assert_int_equal(pool_live_size(wild[i]), 0);
        assert_int_equal(pool_block_find(wild[i], &base, &size, &segment), -ENOENT);
    }
    assert_int_equal(pool_free(addr + 4 * MIB), -ENOENT);
    assert_int_equal(pool_free(addr + (1ull << 48)), -ENOENT);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
}

POOL_CASE(test_free_of_interior_address_returns_einval)
{
    static const size_t offsets[] = {1, 8, 511, 512, 1024, 2 * MIB - 512, 2 * MIB, 4 * MIB - 1};
    const uint64_t addr = alloc(env->pool, 4 * MIB);

    for (size_t i = 0; i < sizeof(offsets) / sizeof(*offsets); i++) {
        assert_int_equal(pool_free(addr + offsets[i]), -EINVAL);
        assert_int_equal(pool_live_size(addr + offsets[i]), 0);
        assert_ptr_equal(pool_of(addr + offsets[i]), env->pool);
    }
    assert_int_equal(pool_live_size(addr), 4 * MIB);
    assert_int_equal(stats_of(env->pool).frees, 0);
    assert_int_equal(env->fake->calls[FAKE_ORDER], 0);
}

POOL_CASE(test_free_of_unused_part_of_segment_returns_einval)
{
    const uint64_t addr = alloc(env->pool, 512);

    assert_int_equal(pool_free(fake_segment_of(env->fake, addr)->addr), -EINVAL); /* nobody's granule */
    assert_int_equal(pool_free(addr + 512), -EINVAL);                             /* the free rest */
}

POOL_CASE(test_free_twice_returns_einval)
{
    static const size_t sizes[] = {512, 8 * MIB};

    for (size_t i = 0; i < 2; i++) {
        const uint64_t before = alloc(env->pool, sizes[i]), addr = alloc(env->pool, sizes[i]);

        release(addr);
        assert_int_equal(pool_free(addr), -EINVAL);
        assert_int_equal(pool_free(addr), -EINVAL);
        release(before); /* merges: addr's descriptor is gone */
        assert_int_equal(pool_free(addr), -EINVAL);
        assert_int_equal(stats_of(env->pool).live, 0);
    }
    assert_int_equal(stats_of(env->pool).frees, 4);
}

POOL_CASE(test_free_of_merged_and_resplit_address_returns_einval)
{
    const uint64_t first = alloc(env->pool, 512), second = alloc(env->pool, 512);
    uint64_t whole;

    release(first);
    release(second);
    whole = alloc(env->pool, UNIT - 512); /* now covers both */
    assert_int_equal(whole, first - 512);
    assert_int_equal(pool_free(first), -EINVAL);
    assert_int_equal(pool_free(second), -EINVAL);
    assert_int_equal(pool_live_size(second), 0);
    release(whole);
}

POOL_CASE(test_alloc_too_large_returns_enomem)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX / 2, (size_t)1 << 62, ((size_t)1 << 47) + 1};
    uint64_t addr = 42;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        assert_int_equal(pool_alloc(env->pool, sizes[i], &addr), -ENOMEM);
        assert_int_equal(addr, 42);
        assert_int_equal(stats_of(env->pool).held, 0);
        assert_int_equal(stats_of(env->pool).failed, i + 1);
        assert_int_equal(stats_of(env->pool).peak_held, 0);
        assert_int_equal(fake_event_of(env->fake, FAKE_ALLOC, 0)->size, (size_t)1 << 47); /* it had its say */
        assert_int_equal(stats_of(env->pool).oom, i + 1);
        fake_events_clear(env->fake);
    }
}

POOL_CASE(test_block_find_inside_live_block_returns_it)
{
    static const size_t sizes[] = {1, 700, 100 * KIB, 2 * MIB, 9 * MIB + 5};
    uint64_t addrs[5], base, segment;
    size_t size;

    for (size_t i = 0; i < 5; i++)
        addrs[i] = alloc(env->pool, sizes[i]);
    for (size_t i = 0; i < 5; i++) {
        const size_t offsets[] = {0, sizes[i] / 2, sizes[i] - 1};

        for (size_t j = 0; j < 3; j++) {
            assert_int_equal(pool_block_find(addrs[i] + offsets[j], &base, &size, &segment), 0);
            assert_int_equal(base, addrs[i]);
            assert_int_equal(size, sizes[i]);
            assert_int_equal(segment, fake_segment_of(env->fake, addrs[i])->addr);
        }
    }
}

POOL_CASE(test_block_find_outside_live_block_returns_enoent)
{
    const uint64_t addr = alloc(env->pool, 512), freed = alloc(env->pool, 512), kept = alloc(env->pool, 4 * MIB);
    uint64_t base = 1, segment = 2;
    size_t size = 3;

    release(freed);
    env->fake->order_rc = -EBUSY;
    release(kept);
    assert_int_equal(pool_block_find(addr - 1, &base, &size, &segment), -ENOENT); /* the first granule */
    assert_int_equal(pool_block_find(freed, &base, &size, &segment), -ENOENT);
    assert_int_equal(pool_block_find(kept, &base, &size, &segment), -ENOENT);
    assert_int_equal(pool_block_find(kept + 5, &base, &size, &segment), -ENOENT);
    assert_true(base == 1 && size == 3 && segment == 2);
}
