/* SPDX-License-Identifier: Apache-2.0 */
/* test_bins.c - the search for a free block. */
#include "unit.h"

#include "bins.h"
#include "pool_state.h"

#define G   ((size_t)POOL_GRANULE)
#define ANY SIZE_MAX /* no limit to what may be exposed */

static struct bins bins;
/* In use, so that nothing is spared; blocks with address 0 do not start it. */
static struct segment busy = {.addr = 1, .used = 512};

static int setup(void **state)
{
    memset(&bins, 0, sizeof(bins));
    return 0;
}

/* With as much room for the device as for the bound. */
static struct block *find(const struct bins *in, size_t size, size_t room, bool all)
{
    const struct packing_room both = {.bound = room, .device = room};

    return bins_find(in, size, &both, all);
}

static struct block block_of(size_t size)
{
    return (struct block){.size = size, .segment = &busy};
}

/* The blocks are on the stack of a test that ends. */
static void forget(void)
{
    memset(&bins, 0, sizeof(bins));
}

CASE_WITH(test_find_in_empty_bins_returns_null, setup, NULL)
{
    assert_null(find(&bins, G, ANY, true));
    assert_null(find(&bins, (size_t)1 << 47, ANY, false));
    assert_null(find(&bins, SIZE_MAX - G + 1, ANY, true)); /* of the last bin: there is no next one */
}

CASE_WITH(test_find_of_any_size_finds_block_of_that_size, setup, NULL)
{
    for (unsigned int bit = 9; bit < 48; bit++) {
        for (int i = -3; i <= 40; i++) {
            const size_t size =
                ((size_t)1 << bit) + (size_t)((ptrdiff_t)i * (ptrdiff_t)(bit < 14 ? G : G << (bit - 13)));
            struct block block = block_of(size);

            if ((ptrdiff_t)size <= 0)
                continue;
            bins_insert(&bins, &block);
            assert_ptr_equal(find(&bins, size, ANY, true), &block);
            assert_ptr_equal(find(&bins, G, ANY, true), &block);
            assert_null(find(&bins, size + G, ANY, true));
            bins_remove(&bins, &block);
            assert_null(find(&bins, G, ANY, true));
        }
    }
    forget();
}

CASE_WITH(test_find_among_sizes_returns_tightest, setup, NULL)
{
    struct block blocks[200];

    for (size_t i = 0; i < 200; i++) {
        blocks[i] = block_of((1 + (i * 37) % 200) * 16 * G);
        bins_insert(&bins, &blocks[i]);
    }
    for (size_t want = 1; want <= 200; want++)
        assert_int_equal(find(&bins, want * 16 * G, ANY, true)->size, want * 16 * G);
    assert_null(find(&bins, 201 * 16 * G, ANY, true));
    forget();
}

CASE_WITH(test_remove_of_head_middle_and_tail_leaves_others, setup, NULL)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

    for (int i = 0; i < 6; i++) {
        struct block blocks[3] = {block_of(4 * G), block_of(4 * G), block_of(4 * G)};

        for (int j = 0; j < 3; j++)
            bins_insert(&bins, &blocks[j]);
        for (int j = 0; j < 3; j++) {
            struct block *found = find(&bins, 4 * G, ANY, true);

            assert_non_null(found);
            for (int k = 0; k < j; k++)
                assert_ptr_not_equal(found, &blocks[orders[i][k]]);
            bins_remove(&bins, &blocks[orders[i][j]]);
        }
        assert_null(find(&bins, G, ANY, true));
    }
    forget();
}

CASE_WITH(test_find_breaks_idle_segment_for_a_fifth_of_it, setup, NULL)
{
    struct segment idle = {.addr = 0, .size = 40 * MIB};
    struct block block = {.size = 40 * MIB, .segment = &idle};

    bins_insert(&bins, &block);
    assert_null(find(&bins, 8 * MIB - G, ANY, false));
    assert_ptr_equal(find(&bins, 8 * MIB, ANY, false), &block);
    idle.used = G; /* something is handed out: no reason to spare it */
    assert_ptr_equal(find(&bins, 2 * MIB, ANY, false), &block);
    forget();
}

CASE_WITH(test_find_in_idle_segment_is_for_large_requests, setup, NULL)
{
    struct segment idle = {.addr = 0, .size = 2 * MIB};
    struct block block = {.size = 2 * MIB, .segment = &idle};

    bins_insert(&bins, &block);
    assert_ptr_equal(find(&bins, 2 * MIB, ANY, true), &block);
    assert_null(find(&bins, 2 * MIB - G, ANY, true)); /* it had better go back */
    forget();
}

CASE_WITH(test_find_in_idle_segment_respects_room, setup, NULL)
{
    struct segment idle = {.addr = 0, .size = 14 * MIB};
    struct block block = {.size = 14 * MIB, .segment = &idle};

    bins_insert(&bins, &block);
    assert_null(find(&bins, 8 * MIB, 0, false));
    assert_null(find(&bins, 8 * MIB, 6 * MIB - 1, false));
    assert_ptr_equal(find(&bins, 8 * MIB, 6 * MIB, false), &block);
    assert_null(find(&bins, 12 * MIB, 0, true));
    assert_null(find(&bins, 6 * MIB, 8 * MIB - 1, false));
    assert_ptr_equal(find(&bins, 6 * MIB, 8 * MIB, false), &block);
    forget();
}

/* A large one counts wholly on the device, but for the smallest large block, and exactly towards the bound. */
CASE_WITH(test_find_in_large_segment_respects_both_rooms, setup, NULL)
{
    struct segment large = {.addr = 0, .size = 36 * MIB};
    struct block block = {.size = 36 * MIB, .segment = &large};
    struct packing_room room = {.bound = 12 * MIB, .device = 34 * MIB};

    bins_insert(&bins, &block);
    assert_ptr_equal(bins_find(&bins, 24 * MIB, &room, false), &block);
    room.device--;
    assert_null(bins_find(&bins, 24 * MIB, &room, false));
    room = (struct packing_room){.bound = 12 * MIB - 1, .device = 34 * MIB};
    assert_null(bins_find(&bins, 24 * MIB, &room, false));
    large.used = 24 * MIB; /* packed: no more on the device, but towards the bound */
    large.exposed = 12 * MIB;
    room = (struct packing_room){.bound = 6 * MIB, .device = 0};
    assert_ptr_equal(bins_find(&bins, 18 * MIB, &room, false), &block);
    assert_null(bins_find(&bins, 16 * MIB, &room, false));
    room = (struct packing_room){.bound = 34 * MIB, .device = 0};
    assert_ptr_equal(bins_find(&bins, MIB, &room, false), NULL);
    forget();
}

CASE_WITH(test_find_in_packed_segment_respects_room, setup, NULL)
{
    struct segment packed = {.addr = 0, .size = 16 * MIB, .used = 8 * MIB, .exposed = 8 * MIB};
    struct block block = {.addr = 8 * MIB, .size = 8 * MIB, .segment = &packed};

    bins_insert(&bins, &block);
    assert_ptr_equal(find(&bins, 8 * MIB, 0, false), &block);
    assert_ptr_equal(find(&bins, 6 * MIB + G, 0, false), &block);
    assert_null(find(&bins, 6 * MIB, 2 * MIB - 1, false));
    assert_ptr_equal(find(&bins, 6 * MIB, 2 * MIB, false), &block);
    assert_ptr_equal(find(&bins, G, 0, true), &block); /* in need, whatever that exposes */
    forget();
}

CASE_WITH(test_find_less_than_unit_below_idle_segment_serves_whole, setup, NULL)
{
    struct segment idle = {.addr = 0, .size = 16 * MIB};
    struct block block = {.size = 16 * MIB, .segment = &idle};

    bins_insert(&bins, &block);
    assert_ptr_equal(find(&bins, 16 * MIB, 0, false), &block);
    assert_ptr_equal(find(&bins, 14 * MIB + G, 0, false), &block);
    assert_ptr_equal(find(&bins, 14 * MIB + G, 0, false), &block);
    assert_null(find(&bins, 14 * MIB, 0, false));
    assert_null(find(&bins, 16 * MIB + G, 0, true));
    forget();
}

/* Many in one bin, and only the one inserted first is large enough: the last of its list. */
CASE_WITH(test_find_of_all_looks_at_every_block, setup, NULL)
{
    static struct block blocks[1000];

    blocks[0] = block_of(103 * G);
    bins_insert(&bins, &blocks[0]);
    for (size_t i = 1; i < 1000; i++) {
        blocks[i] = block_of(100 * G);
        bins_insert(&bins, &blocks[i]);
    }
    assert_ptr_equal(find(&bins, 102 * G, ANY, true), &blocks[0]);
    assert_null(find(&bins, 102 * G, ANY, false)); /* a search that is to be quick */
}

CASE_WITH(test_find_prefers_segment_start_among_close_fits, setup, NULL)
{
    struct segment segment = {.addr = 64 * MIB, .used = G};
    struct block start = {.addr = 64 * MIB, .size = 33 * MIB, .segment = &segment};
    struct block inner = {.addr = 128 * MIB, .size = 32 * MIB, .segment = &segment};

    bins_insert(&bins, &start);
    bins_insert(&bins, &inner);
    assert_ptr_equal(find(&bins, 32 * MIB, ANY, true), &start);
    bins_remove(&bins, &start);
    assert_ptr_equal(find(&bins, 32 * MIB, ANY, true), &inner);
    forget();
}

/* A bin for each size of less than 32 granules, then 16 for each power of two; the last one holds all that is larger.
 */
CASE_WITH(test_bins_are_narrow, setup, NULL)
{
    static const size_t granules[][2] = {{1, 1},   {15, 15}, {16, 16}, {31, 31}, {32, 32}, {33, 32},
                                         {34, 33}, {63, 47}, {64, 48}, {67, 48}, {68, 49}, {(size_t)1 << 40, 592}};

    for (size_t i = 0; i < sizeof(granules) / sizeof(*granules); i++) {
        struct block block = block_of(granules[i][0] * G);

        bins_insert(&bins, &block);
        assert_ptr_equal(bins.head[granules[i][1]], &block);
        bins_remove(&bins, &block);
    }
    forget();
}

/* Without need a search looks at sixteen blocks of a bin, and of shared segments at eight. */
CASE_WITH(test_find_looks_at_some_blocks, setup, NULL)
{
    struct block fit, small[16];

    for (unsigned int most = 8; most <= 16; most += 8) {
        busy.shared = most == 8;
        fit = block_of(67 * G);
        bins_insert(&bins, &fit);
        for (unsigned int i = 0; i < most; i++) {
            assert_ptr_equal(find(&bins, 67 * G, ANY, false), &fit);
            small[i] = block_of(64 * G);
            bins_insert(&bins, &small[i]);
        }
        assert_null(find(&bins, 67 * G, ANY, false));
        assert_ptr_equal(find(&bins, 67 * G, ANY, true), &fit);
        forget();
    }
}

/* Up to an eighth larger is close; of what is not, the tightest is taken, wherever it lies. */
CASE_WITH(test_find_of_close_fits_ends_at_an_eighth, setup, NULL)
{
    struct segment segment = {.addr = 64 * MIB, .used = G};
    struct block start = {.addr = 64 * MIB, .size = 73 * G, .segment = &segment};
    struct block inner = {.addr = 128 * MIB, .size = 72 * G, .segment = &segment};

    bins_insert(&bins, &start);
    bins_insert(&bins, &inner);
    assert_ptr_equal(find(&bins, 64 * G, ANY, true), &inner);
    assert_ptr_equal(find(&bins, 65 * G, ANY, true), &start);
    forget();
}

/* Against a search of everything, with few enough blocks for each bin to be looked at in full. */
CASE_WITH(test_find_in_random_bins_finds_fit_iff_there_is_one, setup, NULL)
{
    struct block blocks[8];
    uint64_t rng = 9;

    for (int round = 0; round < 20000; round++) {
        const unsigned int bits = 1 + (unsigned int)rng_below(&rng, 30);
        const size_t size = (1 + rng_below(&rng, (size_t)1 << bits)) * G;
        struct block *found;
        bool fits = false;

        for (int i = 0; i < 8; i++) {
            blocks[i] = block_of((1 + rng_below(&rng, (size_t)1 << bits)) * G);
            bins_insert(&bins, &blocks[i]);
            fits |= blocks[i].size >= size;
        }
        found = find(&bins, size, ANY, true);
        assert_int_equal(found != NULL, fits);
        if (found) {
            assert_true(found->size >= size);
            for (int i = 0; i < 8; i++) /* nearly the best: never off by more than a bin's width */
                assert_false(blocks[i].size >= size && blocks[i].size + blocks[i].size / 8 < found->size);
        }
        for (int i = 0; i < 8; i++)
            bins_remove(&bins, &blocks[i]);
    }
    forget();
}

/* The choice depends on the order of calls alone. */
CASE_WITH(test_find_with_other_addresses_makes_same_choice, setup, NULL)
{
    static struct block left[64], right[64];
    static struct bins left_bins, right_bins;
    static struct segment left_segment = {.addr = 0, .used = G}, right_segment = {.addr = 1ull << 46, .used = G};
    bool in[64] = {false};
    uint64_t rng = 4;

    for (int i = 0; i < 64; i++) {
        const size_t size = (1 + rng_below(&rng, 300)) * G;

        left[i] = (struct block){.addr = (uint64_t)(i + 1) * UNIT, .size = size, .segment = &left_segment};
        right[i] = (struct block){.addr = (1ull << 45) - (uint64_t)i * UNIT, .size = size, .segment = &right_segment};
    }
    for (int i = 0; i < 20000; i++) {
        const size_t at = rng_below(&rng, 64), size = (1 + rng_below(&rng, 300)) * G;
        struct block *a, *b;

        (in[at] ? bins_remove : bins_insert)(&left_bins, &left[at]);
        (in[at] ? bins_remove : bins_insert)(&right_bins, &right[at]);
        in[at] = !in[at];
        a = find(&left_bins, size, ANY, false);
        b = find(&right_bins, size, ANY, false);
        assert_int_equal(a ? a - left : -1, b ? b - right : -1);
        assert_true(!a || in[a - left]);
    }
}
