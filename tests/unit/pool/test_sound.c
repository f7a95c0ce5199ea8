/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sound.c - pool_check finds what is broken, on books that the test falsifies (falsify.h): each number of each
 * structure by itself, and more at once where one of them alone would be noticed by another part of the check. Every
 * other test of the pool relies on it. The rows are in sound.txt.
 *
 * The pool itself never breaks its books like this.
 */
#include "unit.h"

#include "falsify.h"
#include "magazine.h"
#include "map.h"
#include "record.h"

static struct fake *fake;
static struct pool *pool;
static struct falsify_places of_pool, of_segment, of_block, of_magazine;

static const char *check(void)
{
    static char text[128];

    int rc;

    text[0] = '\0';
    rc = pool_check(pool, text, sizeof(text));
    assert_int_equal(rc, text[0] ? -EINVAL : 0);
    return rc ? text : NULL;
}

/* Some of its blocks. */
static struct {
    struct block *live, *cached, *stray, *alone, *large; /* in magazines the first ones of their lists */
    struct block *cut;                                   /* large, with a tail */
} some;

static struct block *block_at(uint64_t addr)
{
    struct block *block;

    assert_non_null(map_find(addr, &block));
    assert_non_null(block);
    return block;
}

/* Two large blocks share a segment, and one of them is free. */
static void prepare_packed(size_t size, int free)
{
    uint64_t parts[2];

    release(alloc(pool, size));
    alloc_all(pool, parts, 2, size / 2);
    release(parts[free]);
}

/* The pool is suspended, and what it had is withdrawn: small blocks, a large one, one that shares its
 * segment, an idle segment. *ret_withdrawn: the
 * bytes of that one, which the pool does not know of for now, so that blocks that are freed are cached. */
static void prepare_suspended(size_t *ret_withdrawn)
{
    uint64_t gone, small[2];

    prepare_packed(16 * MIB, 1);
    gone = alloc(pool, 9 * UNIT);
    alloc_all(pool, small, 2, 64 * KIB);
    (void)alloc(pool, 2 * UNIT - 4 * KIB);
    release(gone);
    assert_int_equal(pool_suspend(pool, pool_kind_get(pool)), 0); /* and not its end: idle segments stay */
    *ret_withdrawn = pool->shown.withdrawn;
    pool->shown.withdrawn = 0;
}

/* Three magazines. The first one has small blocks, and large ones. The second one has a shared segment of its own, the
 * third one only large blocks. Each has cached blocks and deferred ones, the first one strays. */
static void prepare(void)
{
    uint64_t idle[3], small[8], close[4], other[7];
    size_t stray = 300 * KIB, withdrawn;
    unsigned int list, list_of_stray;

    prepare_suspended(&withdrawn);
    some.cut = block_at(alloc(pool, 3 * UNIT - 4 * KIB));
    prepare_packed(16 * MIB, 1);
    prepare_packed(64 * MIB, 0);
    size_class(stray, &list);
    do
        size_class(stray += POOL_GRANULE, &list_of_stray);
    while (list != list_of_stray);
    alloc_all(pool, small, 8, 64 * KIB);
    alloc_all(pool, close, 2, 300 * KIB);
    alloc_all(pool, close + 2, 2, stray);
    magazine_index = 1;
    alloc_all(pool, other, 3, 900 * KIB);
    other[6] = alloc(pool, 64 * KIB); /* and free memory behind it */
    magazine_index = 2;
    alloc_all(pool, other + 3, 3, 7 * UNIT);
    magazine_index = 0;
    prepare_packed(24 * MIB, 0);
    alloc_all(pool, idle, 3, 9 * UNIT);
    release_all(idle, 3);
    pool_decay(pool, 100); /* coalesces, and gives nothing back */
    for (int defer = 0; defer < 2; defer++)
        for (magazine_index = 0; magazine_index < 3; magazine_index++) {
            const uint64_t freed[2][3][6] = {
                {{small[1], small[3], close[0], close[2], close[3]}, {other[0], other[6]}, {other[3]}},
                {{small[5], small[6]}, {other[2]}, {other[5]}}};
            const uint64_t *addr = freed[defer][magazine_index];

            for (; *addr; addr++)
                assert_int_equal(defer ? pool_free_later(*addr) : pool_free(*addr), 0);
        }
    pool->shown.withdrawn = withdrawn;
    some.live = block_at(small[0]);
    some.cached = block_at(small[3]);
    some.stray = block_at(close[3]);
    some.alone = block_at(other[6]);
    some.large = block_at(other[3]);
    magazine_index = 0;
}

/* The places, and a row about each. */
static void describe(void)
{
    static const char *const states[] = {"free", "live", "deferred", "cached"};
    unsigned int n = 0, m;

    falsify_place(&of_pool, pool, "pool");
    for (unsigned int i = 0; i < MAGAZINES; i++) {
        struct magazine *magazine = &pool->magazines[i];

        falsify_place(&of_magazine, magazine, "m%u", i);
        if (magazine->used)
            record_add("m%u: %u cached, %u strays, %u deferred\n", i, magazine->cached_count, magazine->strays_count,
                       magazine->deferred_count);
    }
    for (struct segment *segment = pool->segments; segment; segment = segment->next, n++) {
        falsify_place(&of_segment, segment, "%u", n);
        record_add("%u: %zu KiB%s%s%s%s%s\n", n, segment->size / KIB, segment->shared ? ", shared" : "",
                   segment->owner ? ", of m" : "",
                   segment->owner ? of_magazine.at[segment->owner - pool->magazines].name + 1 : "",
                   segment->exposed ? ", packed" : "", segment->withdrawn ? ", withdrawn" : "");
        m = 0;
        for (struct block *block = segment->first; block; block = block->next, m++) {
            falsify_place(&of_block, block, "%u.%u", n, m);
            record_add("%u.%u: %s, %zu granules, list %u\n", n, m, states[block->state], block->size / POOL_GRANULE,
                       is_free(block) ? 0 : block->list);
        }
    }
}

/* clang-format off */
static const struct falsify_member members[] = {
    WRONG(pool, shown.withdrawn, "+1 -1"), WRONG(pool, shown.magazine_count, "+1 -1 0"),
    WRONG(pool, shown.deferring, "+1 -1"), WRONG(pool, shown.ordering, "1"), WRONG(pool, books.live, "+1 -1"),
    WRONG(pool, books.idle, "+1 -1"), WRONG(pool, exposed, "+1 -1"), WRONG(pool, exposed_wholly, "+1 -1"),
    WRONG(pool, handed, "+1 -1"), WRONG(pool, releasing, "1"), WRONG(pool, stats.held, "+1 -1"),
    WRONG(pool, idle_first, "0"), WRONG(pool, idle_last, "0"),
    WRONG(magazine, used, "0 1"), WRONG(magazine, cached_count, "+1 -1"), WRONG(magazine, strays_count, "+1 -1"),
    WRONG(magazine, strays, "0 ~"), WRONG(magazine, handed, "+1 -1"), WRONG(magazine, deferred, "0"),
    WRONG(magazine, books.live, "+1 -1"), WRONG(magazine, books.idle, "+1 -1"),
    WRONG(segment, addr, "+512 -512"), WRONG(segment, size, "+2097152 -2097152"), WRONG(segment, owner, "0 ~ +1 -1"),
    WRONG(segment, used, "+1 -1"), WRONG(segment, pool, "0"), WRONG(segment, first, "0"),
    WRONG(segment, skip, "512 1024 0"), WRONG(segment, shared, "0 1"), WRONG(segment, exposed, "+1 -1 0"),
    WRONG(segment, withdrawn, "0 1"), WRONG(segment, suspended, "0 1"), WRONG(segment, idle_prev, "0 ~"),
    WRONG(segment, idle_next, "0 ~"),
    WRONG(block, state, "0 1 2 3"), WRONG(block, list, "+1 -1"), WRONG(block, addr, "+512 -512 ~"),
    WRONG(block, size, "+512 -512 +1 0"), WRONG(block, segment, "0 ~"), WRONG(block, prev, "0 ~"),
    WRONG(block, next, "0"), WRONG(block, link, "0"),
};
/* clang-format on */

static void remap(void)
{
    for (size_t i = 0; i < of_block.count; i++) {
        struct block *block = of_block.at[i].at;

        map_block_set(block->addr, is_free(block) ? NULL : block);
    }
}

/* So many bytes of the segment count as used in addition. */
static void used_more(struct segment *segment, size_t more)
{
    FALSIFY(segment->used, segment->used + more);
    FALSIFY(books_of(pool, segment)->live, books_of(pool, segment)->live + more);
}

static void state_set(struct block *block, enum block_state to)
{
    if (is_free(block) != (to == BLOCK_FREE))
        used_more(block->segment, to == BLOCK_FREE ? -block->size : block->size);
    FALSIFY(block->state, to);
    map_block_set(block->addr, to == BLOCK_FREE ? NULL : block);
}

/* The block takes so many bytes of the free one behind it. */
static void end_move(struct block *block, size_t more)
{
    FALSIFY(block->size, block->size + more);
    FALSIFY(block->next->size, block->next->size - more);
    FALSIFY(block->next->addr, block->next->addr + more);
    used_more(block->segment, more);
}

static void falsify_tail(void)
{
    struct block *large = some.cut, *tail = large->next, third;

    state_set(tail, BLOCK_LIVE);
    falsify_row("a tail is live");
    state_set(tail, BLOCK_LIVE);
    state_set(large, BLOCK_FREE);
    falsify_row("a tail is live, and what is before it is not");
    end_move(large, tail->size - UNIT);
    falsify_row("a tail is a whole unit");
    end_move(large, tail->size - UNIT + POOL_GRANULE);
    FALSIFY(pool->handed, pool->handed - (ptrdiff_t)(tail->size - 4 * KIB));
    falsify_row("a tail is nearly a unit");
    third = (struct block){.state = BLOCK_LIVE,
                           .addr = tail->addr + KIB,
                           .size = tail->size - KIB,
                           .segment = tail->segment,
                           .prev = tail};
    FALSIFY(tail->size, KIB);
    FALSIFY(tail->next, &third);
    used_more(tail->segment, third.size);
    map_block_set(third.addr, &third);
    falsify_row("there is a block behind a tail");
}

static void falsify_lists(void)
{
    struct magazine *magazine = of_magazine.at[0].at, *last = of_magazine.at[2].at;
    struct block *small = some.cached, *end = small->link, *stray = some.stray, *large = some.large;

    for (unsigned int list = 0; list < LISTS; list += 32) {
        FALSIFY(magazine->cached_set[list / 64], magazine->cached_set[list / 64] ^ (uint64_t)1 << list % 64);
        falsify_row("list %u is marked wrongly", list);
    }
    FALSIFY(magazine->cached[small->list], NULL);
    FALSIFY(magazine->cached[small->list - 1], small);
    FALSIFY(magazine->cached_set[small->list / 64],
            magazine->cached_set[small->list / 64] ^ (uint64_t)3 << (small->list - 1) % 64);
    FALSIFY(end->list, small->list - 1);
    FALSIFY(small->list, small->list - 1);
    falsify_row("blocks are on the list of another size");
    end_move(some.alone, -(size_t)POOL_GRANULE);
    falsify_row("a block on a list is smaller than the list's size");
    FALSIFY(stray->link->link, small);
    FALSIFY(magazine->cached[small->list], NULL);
    FALSIFY(magazine->cached_set[small->list / 64],
            magazine->cached_set[small->list / 64] & ~((uint64_t)1 << small->list % 64));
    FALSIFY(magazine->strays_count, 4);
    falsify_row("strays have a list of their own");
    FALSIFY(large->link, large);
    falsify_row("a list ends nowhere");
    FALSIFY(stray->link->link, stray);
    falsify_row("the strays end nowhere");
    FALSIFY(magazine->cached[stray->list]->link, stray);
    FALSIFY(magazine->strays, NULL);
    FALSIFY(magazine->strays_count, 0);
    falsify_row("strays are on a list of another size");
    FALSIFY(last->cached[large->list], NULL);
    FALSIFY(last->cached_set[large->list / 64], 0);
    FALSIFY(last->cached_count, 0);
    falsify_row("a cached block is on no list");
    for (unsigned int list = HASH_LISTS - 1; list <= HASH_LISTS; list++) {
        FALSIFY(stray->list, list);
        falsify_row("a stray is of list %u", list);
    }
    FALSIFY(some.live->state, BLOCK_CACHED);
    FALSIFY(small->state, BLOCK_LIVE);
    falsify_row("a live block is on a list, and a cached one is not");
    FALSIFY(some.live->state, BLOCK_CACHED);
    FALSIFY(stray->state, BLOCK_LIVE);
    falsify_row("a live block is a stray, and a cached one is not");
}

/* Each segment in the place of the last idle one, and behind it. */
static void falsify_idle(void)
{
    struct segment *prev = pool->idle_last->idle_prev;

    for (size_t i = 0; i < of_segment.count; i++) {
        struct segment *segment = of_segment.at[i].at;

        for (int behind = 0; behind < 2; behind++) {
            struct segment *before = behind ? pool->idle_last : prev;

            FALSIFY(before->idle_next, segment);
            FALSIFY(segment->idle_prev, before);
            FALSIFY(segment->idle_next, NULL);
            if (!behind)
                FALSIFY(pool->idle_last, segment);
            falsify_row("%s is %s the last idle segment", of_segment.at[i].name, behind ? "behind" : "in place of");
        }
    }
}

static void falsify_sums(void)
{
    struct segment *segment = some.live->segment, *whole = pool->idle_last;
    struct magazine *other = of_magazine.at[1].at;

    FALSIFY(pool->stats.held, pool->stats.held + 1);
    FALSIFY(pool->releasing, 1);
    falsify_row("held bytes, while they change");
    FALSIFY(pool->handed, pool->handed + 1);
    FALSIFY(pool->shown.ordering, 1);
    falsify_row("bytes handed out, while they change");
    FALSIFY(pool->books.live, pool->books.live + 1);
    FALSIFY(other->books.live, other->books.live - 1);
    falsify_row("bytes in the books of another magazine");
    FALSIFY(segment->owner, other);
    falsify_row("a segment has another owner");
    FALSIFY(segment->owner, &pool->magazines[magazine_count(pool)]);
    falsify_row("a segment has an owner that was never used");
    FALSIFY(whole->size, whole->size + UNIT);
    FALSIFY(whole->first->size, whole->first->size + UNIT);
    falsify_row("a segment is larger than in the map");
    FALSIFY(some.cut->segment->exposed, 1);
    falsify_row("a segment with a tail is packed");
}

UNIT_CASE(test_each_number)
{
    struct pool_config config;

    (void)state;
    alarm(DEADLOCK_SECONDS);
    fake = fake_new();
    config = fake_config(fake);
    pool = pool_new(&config);
    prepare();
    record_begin("pool/sound");
    describe();
    falsify_begin(check, remap);
    FALSIFY_EACH(members);
    falsify_tail();
    falsify_lists();
    falsify_idle();
    falsify_sums();
    assert_true(record_end());
    pool_destroy(pool);
    fake_delete(fake);
    alarm(0);
}
