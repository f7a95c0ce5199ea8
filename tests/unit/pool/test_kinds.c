/* SPDX-License-Identifier: Apache-2.0 */
/* test_kinds.c - memory of several kinds: after a change of the kind, segments of the old one serve no request any
 * more. */
#include "unit.h"

POOL_CASE(test_kind_of_old_segments_serves_no_more)
{
    const uint64_t small = alloc(env->pool, 512), large = alloc(env->pool, 8 * MIB), kept = alloc(env->pool, 4 * MIB);
    uint64_t addr;

    release(alloc(env->pool, 512)); /* in a magazine */
    release(alloc(env->pool, 16 * MIB));
    release_unordered(env, kept); /* kept back */
    assert_int_equal(pool_kind_get(env->pool), 0);
    pool_kind_set(env->pool, 7, SIZE_MAX / 2, SIZE_MAX / 2);
    assert_int_equal(pool_kind_get(env->pool), 7);
    assert_sound(env->pool, env->fake);
    fake_events_clear(env->fake);
    for (size_t size = 512; size <= 16 * MIB; size *= 2) {
        addr = alloc(env->pool, size);
        assert_int_equal(fake_segment_of(env->fake, addr)->kind, 7);
    }
    /* Idle segments of the old kind go with the next free, the others when none of their blocks is handed out. */
    release(large);
    assert_null(fake_segment_of(env->fake, large));
    assert_null(fake_segment_of(env->fake, kept));
    assert_int_equal(fake_segment_of(env->fake, small)->kind, 0);
    release(small);
    assert_null(fake_segment_of(env->fake, small));
}

POOL_CASE(test_kind_back_and_forth_leaves_each_segment_its_own)
{
    uint64_t addrs[6];

    for (unsigned int i = 0; i < 6; i++) {
        pool_kind_set(env->pool, i % 2, SIZE_MAX / 2, SIZE_MAX / 2);
        addrs[i] = alloc(env->pool, 2 * MIB);
        assert_int_equal(fake_segment_of(env->fake, addrs[i])->kind, i % 2);
    }
    /* The last switch left only one segment that serves. */
    release(addrs[5]);
    assert_int_equal(alloc(env->pool, 2 * MIB), addrs[5]);
    pool_kind_set(env->pool, 1, SIZE_MAX / 2, SIZE_MAX / 2); /* no change */
    release_all(addrs, 6);
    assert_int_equal(env->fake->in_use, 2 * MIB);
    assert_int_equal(pool_trim(env->pool, "test"), 2 * MIB);
}

struct growth {
    struct env *env;
    uint64_t addr;
};

static void *grow_thread(void *arg)
{
    struct growth *growth = arg;

    growth->addr = alloc(growth->env->pool, 512);
    return NULL;
}

POOL_CASE(test_kind_changes_while_the_backend_is_asked)
{
    struct growth growth = {.env = env};
    pthread_t thread;

    fake_stop(env->fake, FAKE_ALLOC);
    assert_int_equal(pthread_create(&thread, NULL, grow_thread, &growth), 0);
    fake_wait(env->fake, FAKE_ALLOC);
    pool_kind_set(env->pool, 1, SIZE_MAX / 2, SIZE_MAX / 2);
    fake_go(env->fake, FAKE_ALLOC);
    pthread_join(thread, NULL);
    /* That request began before; what its segment has left is not for those that begin now. */
    assert_int_equal(fake_segment_of(env->fake, growth.addr)->kind, 0);
    assert_int_equal(fake_segment_of(env->fake, alloc(env->pool, 512))->kind, 1);
    assert_sound(env->pool, env->fake);
    release(growth.addr);
    assert_null(fake_segment_of(env->fake, growth.addr));
}
