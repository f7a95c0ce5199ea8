/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_sound.c - pool_check finds what is broken: each of its verdicts, on books that the test has falsified. Every
 * other test of the pool relies on it.
 *
 * The pool itself never breaks its books like this.
 */
#include "unit.h"

#include "magazine.h"
#include "map.h"

#define TILE  "blocks do not tile their segment"
#define LINK  "broken links"
#define OWNER "a segment's owner is wrong"
#define MAP   "the map disagrees with a segment"
#define PACK  "a segment is packed and says that it is not, or the other way round"
#define BOOK  "withdrawn or exposed bytes are wrong"
#define HAVE  "what the magazines have is wrong"
#define IDLE  "the list of idle segments is wrong"

/* The pool's books: a shared segment with two live blocks of 64 KiB and, between them, one that was freed and is
 * cached; a large live block, with a tail; two idle segments; and a magazine more, with a segment of its own. */
static struct segment *shared, *large, *idle;
static struct block *first, *recent;
static struct magazine *magazine;

static struct segment *segment_at(struct pool *pool, uint64_t addr)
{
    struct segment *segment = pool->segments;

    while (segment && (addr < segment->addr || addr >= segment->addr + segment->size))
        segment = segment->next;
    assert_non_null(segment);
    return segment;
}

static void prepare(struct pool *pool)
{
    uint64_t a = alloc(pool, 64 * KIB), b = alloc(pool, 64 * KIB), gone, other;

    (void)alloc(pool, 64 * KIB);
    large = segment_at(pool, alloc(pool, 3 * UNIT - 4 * KIB));
    gone = alloc(pool, 5 * UNIT);
    other = alloc(pool, 6 * UNIT);
    release(gone);
    release(other);
    magazine_index = 1;
    (void)alloc(pool, UNIT - 8 * KIB);
    magazine_index = 0;
    pool_decay(pool, 100); /* joins it, and gives nothing back */
    release(b);
    shared = segment_at(pool, a);
    idle = segment_at(pool, gone);
    assert_true(map_find(a, &first));
    assert_true(map_find(b, &recent));
    assert_int_equal(atomic_load(&recent->state), BLOCK_CACHED);
    for (magazine = pool->magazines; !magazine->cached_count;)
        magazine++;
}

/* clang-format off */
static void no_blocks(struct pool *pool) { (void)pool; large->first = NULL; }
static void shifted(struct pool *pool) { (void)pool; first->addr += POOL_GRANULE; }
static void empty(struct pool *pool) { (void)pool; recent->size = 0; }
static void odd(struct pool *pool) { (void)pool; first->size++; }
static void foreign(struct pool *pool) { (void)pool; first->segment = large; }
static void unlinked(struct pool *pool) { (void)pool; recent->prev = NULL; }
static void unmapped(struct pool *pool) { (void)pool; map_block_set(first->addr, NULL); }
static void short_of(struct pool *pool) { (void)pool; large->size += UNIT; }
static void used(struct pool *pool) { (void)pool; shared->used += POOL_GRANULE; }
static void packed(struct pool *pool) { (void)pool; shared->exposed = 1; }
static void packed_alone(struct pool *pool) { (void)pool; idle->exposed = 1; }
static void packed_withdrawn(struct pool *pool) { (void)pool; large->exposed = 1, large->withdrawn = true; }
static void another(struct pool *pool) { (void)pool; large->pool = NULL; }
static void live(struct pool *pool) { pool->books.live++; }
static void no_bit(struct pool *pool) { (void)pool; magazine->cached_set[recent->list / 64] = 0; }
static void in_two(struct pool *pool) { (void)pool; magazine->cached_count++; }
static void strays(struct pool *pool) { (void)pool; magazine->strays_count++; }
static void stray(struct pool *pool) { (void)pool; magazine->strays = first; }
static void place(struct pool *pool) { (void)pool; recent->list++; }
static void deferring(struct pool *pool) { pool->shown.deferring++; }
static void unused(struct pool *pool) { (void)pool; magazine->used = false; }
static void handed(struct pool *pool) { pool->handed++; }
static void unlisted(struct pool *pool) { pool->idle_first = pool->idle_last = NULL; }
static void last(struct pool *pool) { pool->idle_last = large; }
static void not_first(struct pool *pool) { pool->idle_first->idle_prev = large; }
static void other_books(struct pool *pool) { pool->magazines[0].books.live++; pool->magazines[1].books.live--; }
static void held(struct pool *pool) { pool->stats.held++; }
static void idle_more(struct pool *pool) { pool->books.idle++; }
static void owned(struct pool *pool) { large->owner = pool->magazines; }
static void not_owned(struct pool *pool) { (void)pool; shared->owner = NULL; }
static void owned_beyond(struct pool *pool) { shared->owner = &pool->magazines[MAGAZINES - 1]; }
static void withdrawn(struct pool *pool) { pool->shown.withdrawn++; }
static void exposed(struct pool *pool) { pool->exposed++; }
/* clang-format on */

/* On the list of no size, though it has a list of its own. */
static void stray_of_close_size(struct pool *pool)
{
    magazine->cached[recent->list] = NULL;
    magazine->cached_set[recent->list / 64] = 0;
    magazine->strays = recent;
    magazine->strays_count = 1;
}

static void unmerged(struct pool *pool)
{
    struct block *rest = recent->next->next; /* what is free behind the last live block */

    assert_true(is_free(rest));
    atomic_store(&recent->next->state, BLOCK_FREE);
    map_block_set(recent->next->addr, NULL);
}

/* The tail of the large segment becomes a live block of its own. */
static void two(struct pool *pool)
{
    struct block *tail = large->first->next;

    atomic_store(&tail->state, BLOCK_LIVE);
    map_block_set(tail->addr, tail);
    large->used += tail->size;
}

/* And what is before it becomes free. */
static void second_alone(struct pool *pool)
{
    two(pool);
    atomic_store(&large->first->state, BLOCK_FREE);
    map_block_set(large->first->addr, NULL);
    large->used -= large->first->size;
}

/* Behind the tail comes a third block. */
static void third(struct pool *pool)
{
    static struct block block;
    struct block *tail = large->first->next;

    tail->size -= POOL_GRANULE;
    tail->next = &block;
    block = (struct block){.addr = tail->addr + tail->size, .size = POOL_GRANULE, .segment = large, .prev = tail};
    atomic_store(&block.state, BLOCK_LIVE);
    map_block_set(block.addr, &block);
    large->used += POOL_GRANULE;
}

static void wide_tail(struct pool *pool)
{
    struct block *tail = large->first->next;

    large->first->size -= UNIT - tail->size;
    large->used -= UNIT - tail->size;
    tail->addr -= UNIT - tail->size;
    tail->size = UNIT;
}

static const struct {
    void (*falsify)(struct pool *pool);
    const char *verdict;
} cases[] = {{no_blocks, "a segment has no blocks"},
             {shifted, TILE},
             {empty, TILE},
             {odd, TILE},
             {foreign, LINK},
             {unlinked, LINK},
             {unmerged, "free neighbours were not merged"},
             {unmapped, "the map disagrees with a block's state"},
             {short_of, "blocks do not fill their segment"},
             {used, "a segment's used bytes are wrong"},
             {packed, PACK},
             {packed_alone, PACK},
             {packed_withdrawn, PACK},
             {two, PACK},
             {second_alone, PACK},
             {third, PACK},
             {wide_tail, PACK},
             {owned, OWNER},
             {not_owned, OWNER},
             {owned_beyond, OWNER},
             {another, MAP},
             {live, "live bytes are wrong"},
             {no_bit, HAVE},
             {in_two, HAVE},
             {strays, HAVE},
             {stray, HAVE},
             {stray_of_close_size, HAVE},
             {place, HAVE},
             {deferring, HAVE},
             {unused, HAVE},
             {handed, "bytes in the program's hands are wrong"},
             {unlisted, IDLE},
             {last, IDLE},
             {not_first, IDLE},
             {other_books, "the books of a magazine are wrong"},
             {held, "held bytes are wrong"},
             {idle_more, "the books of a magazine are wrong"},
             {withdrawn, BOOK},
             {exposed, BOOK}};

/* Each on a pool of its own, which is left behind: nobody could destroy it. */
UNIT_CASE(test_each_verdict)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fake *fake = fake_new();
        const struct pool_config config = fake_config(fake);
        struct pool *pool = pool_new(&config);
        char text[128] = "";

        prepare(pool);
        assert_int_equal(pool_check(pool, text, sizeof(text)), 0);
        cases[i].falsify(pool);
        if (pool_check(pool, text, sizeof(text)) != -EINVAL || strcmp(text, cases[i].verdict) != 0)
            fail_msg("case %zu: \"%s\" in place of \"%s\"", i, text, cases[i].verdict);
    }
    assert_non_null(idle);
}
