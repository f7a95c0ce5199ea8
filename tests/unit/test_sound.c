/* SPDX-License-Identifier: Apache-2.0 */
/* test_sound.c - pool_check, on which the other tests rely: each thing that may be wrong with a pool is planted, and
 * named. */
#include "unit.h"

#include "magazine.h"
#include "map.h"
#include "pool_internal.h"

#define TILES    "blocks do not tile their segment"
#define LINKS    "broken links"
#define STATE    "the map disagrees with a block's state"
#define PACKED   "a segment is packed and says that it is not, or the other way round"
#define MAGAZINE "what the magazines have is wrong"
#define HANDED   "bytes in the program's hands are wrong"
#define IDLE     "the list of idle segments is wrong"
#define BYTES    "withdrawn or exposed bytes are wrong"

/* What pool_check says while a field has another value; NULL: nothing is wrong. */
static void says(struct pool *pool, void *field, size_t size, uint64_t value, const char *fault)
{
    char text[128] = "";
    uint64_t before = 0;
    int rc;

    memcpy(&before, field, size);
    memcpy(field, &value, size);
    rc = pool_check(pool, text, sizeof(text));
    memcpy(field, &before, size);
    assert_string_equal(text, fault ? fault : "");
    assert_int_equal(rc, fault ? -EINVAL : 0);
}

#define SAYS(field, value, fault) says(pool, (void *)&(field), sizeof(__typeof__(field)), (uint64_t)(value), fault)

/* A shared segment: live, freed last, live, free; one with a tail; one of a single block; one idle. */
struct scene {
    struct block *first, *recent, *last, *rest, *large, *single;
    struct segment *shared, *idle;
    struct magazine *magazine;
};

static struct scene scene_new(struct pool *pool)
{
    struct scene scene;
    const uint64_t idle = alloc(pool, 10 * MIB), recent = (alloc(pool, 4 * KIB), alloc(pool, 4 * KIB));

    scene.last = map_block_get(alloc(pool, 4 * KIB));
    scene.large = map_block_get(alloc(pool, 3 * MIB));
    scene.single = map_block_get(alloc(pool, 64 * MIB));
    scene.idle = map_segment_get(idle);
    release(idle);
    lock_take(&pool->lock);
    recent_flush(pool);
    lock_give(&pool->lock);
    release(recent);
    scene.recent = map_block_get(recent);
    scene.first = scene.recent->prev;
    scene.rest = scene.last->next;
    scene.shared = scene.recent->segment;
    for (scene.magazine = pool->magazines; !scene.magazine->recent_count; scene.magazine++)
        ;
    assert_ptr_equal(scene.shared->first, scene.first);
    assert_ptr_equal(pool->idle_first, scene.idle);
    assert_null(scene.single->next);
    return scene;
}

static void test_check_of_a_segment_names_what_is_wrong(void **state)
{
    const struct env *env = *state;
    struct pool *pool = env->pool;
    const struct scene s = scene_new(pool);

    SAYS(s.shared->first, NULL, "a segment has no blocks");
    SAYS(s.recent->addr, s.recent->addr + POOL_GRANULE, TILES);
    SAYS(s.recent->size, 0, TILES);
    SAYS(s.recent->size, s.recent->size + POOL_GRANULE, TILES);
    SAYS(s.rest->size, s.rest->size + 1, TILES);
    SAYS(s.shared->skip, s.shared->skip + POOL_GRANULE, TILES);
    SAYS(s.recent->segment, s.idle, LINKS);
    SAYS(s.last->prev, s.first, LINKS);
    SAYS(s.last->state, BLOCK_FREE, "free neighbours were not merged");
    SAYS(s.recent->state, BLOCK_FREE, STATE);
    SAYS(s.rest->state, BLOCK_LIVE, STATE);
    SAYS(s.rest->size, s.rest->size - POOL_GRANULE, "blocks do not fill their segment");
    SAYS(s.shared->used, s.shared->used + POOL_GRANULE, "a segment's used bytes are wrong");
    SAYS(s.shared->exposed, POOL_GRANULE, PACKED);
    SAYS(s.single->segment->exposed, POOL_GRANULE, PACKED);
    SAYS(s.shared->shared, false, PACKED);
    SAYS(s.large->segment->pool, NULL, "the map disagrees with a segment");
    SAYS(s.large->segment->exposed, POOL_GRANULE, BYTES);
}

static void test_check_of_the_books_names_what_is_wrong(void **state)
{
    const struct env *env = *state;
    struct pool *pool = env->pool;
    const struct scene s = scene_new(pool);
    struct magazine *magazine = s.magazine;

    SAYS(pool->stats.live, pool->stats.live + 1, "live bytes are wrong");
    SAYS(pool->handed, pool->handed + 1, HANDED);
    SAYS(pool->stats.held, pool->stats.held + 1, "held bytes are wrong");
    SAYS(pool->stats.idle, pool->stats.idle + 1, "idle bytes are wrong");
    SAYS(pool->shown.withdrawn, 1, BYTES);
    SAYS(pool->exposed, 1, BYTES);
    SAYS(pool->idle_first, NULL, IDLE);
    SAYS(pool->idle_last, NULL, IDLE);
    SAYS(pool->idle_first, s.shared, IDLE);
    SAYS(s.idle->idle_prev, s.shared, IDLE);
    SAYS(s.idle->withdrawn, true, IDLE);
    SAYS(magazine->recent_count, magazine->recent_count + 1, MAGAZINE);
    SAYS(magazine->recent_count, magazine->recent_count - 1, MAGAZINE);
    SAYS(magazine->strays_count, 1, MAGAZINE);
    SAYS(magazine->strays, s.recent, MAGAZINE);
    SAYS(magazine->used, false, MAGAZINE);
    SAYS(magazine->recent[s.recent->list], NULL, MAGAZINE);
    SAYS(magazine->recent[0], s.recent, MAGAZINE);
    for (unsigned int i = 0; i < RECENT_SETS; i++)
        SAYS(magazine->recent_set[i], ~magazine->recent_set[i], MAGAZINE);
    SAYS(magazine->kept, s.first, MAGAZINE);
    SAYS(s.recent->list, s.recent->list + 1, MAGAZINE);
    SAYS(s.recent->state, BLOCK_PENDING, MAGAZINE);
    SAYS(s.first->state, BLOCK_RECENT, MAGAZINE);
    SAYS(pool->shown.places, magazine - pool->magazines, MAGAZINE);
    SAYS(pool->shown.keepers, 1, MAGAZINE);
}

/* While threads order or give back, some books are behind. */
static void test_check_forgives_what_is_under_way(void **state)
{
    const struct env *env = *state;
    struct pool *pool = env->pool;

    scene_new(pool);
    pool->shown.ordering = 1;
    SAYS(pool->handed, pool->handed + 1, NULL);
    SAYS(pool->stats.held, pool->stats.held + 1, "held bytes are wrong");
    pool->shown.ordering = 0;
    pool->releasing = 1;
    SAYS(pool->stats.held, pool->stats.held + 1, NULL);
    SAYS(pool->handed, pool->handed + 1, HANDED);
    pool->releasing = 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        POOL_TEST(test_check_of_a_segment_names_what_is_wrong),
        POOL_TEST(test_check_of_the_books_names_what_is_wrong),
        POOL_TEST(test_check_forgives_what_is_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
