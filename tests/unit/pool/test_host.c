/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_host.c - host memory for descriptors and for the map: none is lost however a call ends, and a pool that gets
 * none serves what it can and stays sound.
 *
 * The linker's --wrap sends mmap64, which is mmap's name in glibc, here, to be counted and refused. The pool calls
 * nothing else for host memory.
 */
#include "unit.h"

#include <sys/mman.h>

#include "descriptors.h"
#include "magazine.h"
#include "wrapped.h"

static unsigned int maps, refused_from, refused_to; /* calls from 1 on, without the last */

WRAPPED(void *, mmap64, (void *addr, size_t size, int prot, int flags, int fd, off_t offset))
{
    maps++;
    if (maps >= refused_from && maps < refused_to) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mmap64(addr, size, prot, flags, fd, offset);
}

/* --- what ends badly, and well, again and again */

static void refused(struct env *env)
{
    uint64_t addr;

    env->fake->refuse = true;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -ENOMEM);
    assert_int_equal(pool_alloc(env->pool, 512, &addr), -ENOMEM);
    env->fake->refuse = false;
}

static void failed(struct env *env)
{
    uint64_t addr;

    env->fake->fail_at = env->fake->calls[FAKE_ALLOC] + 1;
    env->fake->fail_rc = -EBUSY;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
}

static void out_of_reach(struct env *env)
{
    const uint64_t base = env->fake->base;
    uint64_t addr;

    env->fake->base = 1ull << 48;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
    env->fake->base = base;
}

static void unfilled(struct env *env)
{
    uint64_t addr;

    env->pool->config = fake_config_filling(env->fake);
    env->fake->fill_rc = -EIO;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
    env->fake->fill_rc = 0;
    env->pool->config = fake_config(env->fake);
}

static void over_the_limit(struct env *env)
{
    uint64_t addr;

    env->pool->config.limit = 4 * MIB;
    assert_int_equal(pool_alloc(env->pool, 8 * MIB, &addr), -EAGAIN);
    env->pool->config.limit = 0;
}

static void split(struct env *env, uint64_t addr[6])
{
    for (size_t i = 0; i < 5; i++)
        addr[i] = alloc(env->pool, (1 + i) * 16 * KIB);
    addr[5] = alloc(env->pool, 5 * MIB);
}

static void trimmed(struct env *env)
{
    uint64_t addr[6];

    split(env, addr);
    release_all(addr, 6);
    pool_trim(env->pool, "test");
}

static void withdrawn(struct env *env)
{
    uint64_t addr[6];

    split(env, addr);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(pool_withdraw(addr[i]), 0);
    release_all(addr, 6);
}

static void disowned(struct env *env)
{
    uint64_t addr[6];

    split(env, addr);
    release(addr[2]);
    pool_disown(addr[0] - POOL_GRANULE, UNIT);
    pool_disown(addr[5], 3 * UNIT);
}

static void destroyed(struct env *env)
{
    const struct pool_config config = fake_config(env->fake);
    uint64_t addr[6];

    split(env, addr);
    release(addr[1]);
    env_pool(env, &config);
}

POOL_CASE(test_descriptors_come_back)
{
    static void (*const ends[])(struct env * env) = {refused, failed,    out_of_reach, unfilled, over_the_limit,
                                                     trimmed, withdrawn, disowned,     destroyed};

    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
        ends[i](env);
        maps = 0;
        for (size_t n = 0; n < 600; n++) /* descriptors are made 256 at a time */
            ends[i](env);
        if (maps)
            fail_msg("end %zu takes host memory", i);
        assert_at_rest(env->pool, env->fake);
    }
}

/* Each descriptor that was made is one of a block or a spare one. */
POOL_CASE(test_descriptors_are_all_there)
{
    size_t count = env->pool->spares.count + env->pool->spares_common.count;

    for (size_t i = 0; i < 3 * SPARES_CHUNK; i++)
        alloc(env->pool, 1 + i % (4 * KIB));
    for (unsigned int i = 0; i < MAGAZINES; i++)
        count += env->pool->magazines[i].spares.count;
    for (const struct segment *segment = env->pool->segments; segment; segment = segment->next)
        for (const struct block *block = segment->first; block; block = block->next)
            count++;
    assert_int_equal(count % SPARES_CHUNK, 0);
}

/* --- no host memory */

/* No descriptor is left over of what went before. */
static void drain(void)
{
    const unsigned int before = maps;

    while (maps == before)
        assert_non_null(segment_new());
    for (unsigned int i = 1; i < 256; i++)
        assert_non_null(segment_new());
    assert_int_equal(maps, before + 1);
}

/* A pool is made and used. How many requests were served. */
static unsigned int use(struct fake *fake, struct pool *pool, uint64_t addr[6])
{
    static const size_t sizes[6] = {512, 40 * KIB, MIB, 8 * MIB, 5 * MIB, 1};
    unsigned int served = 0;

    for (unsigned int i = 0; i < 6; i++) {
        const int rc = pool_alloc(pool, sizes[i], &addr[i]);

        assert_true(rc == 0 || rc == -EAGAIN);
        addr[i] = rc ? 0 : addr[i];
        served += rc == 0;
        assert_at_rest(pool, fake);
    }
    return served;
}

/* From each call on host memory is refused, once or for ever. */
UNIT_CASE(test_host_memory_that_is_refused)
{
    for (unsigned int length = 1; length <= 1000; length += 999)
        for (unsigned int first = 1, last = 2; first < last; first++) {
            struct fake *fake = fake_new();
            const struct pool_config config = fake_config(fake);
            struct pool *pool = NULL;
            uint64_t addr[2][6];
            int rc;

            fake->base += (uint64_t)(first + length) << 35; /* where no pool was before */
            drain();
            for (maps = 0; !maps;) /* nor a pool's */
                assert_non_null(pool_descriptor_new());
            maps = 0;
            refused_from = first;
            refused_to = first + length;
            rc = pool_create(&config, &pool);
            assert_true(rc == 0 || rc == -ENOMEM);
            if (rc) {
                refused_to = 0;
                assert_int_equal(pool_create(&config, &pool), 0);
                refused_to = first + length;
            }
            use(fake, pool, addr[0]);
            last = maps < first ? first : first + 2; /* until all of it was there */
            refused_to = 0;
            assert_int_equal(use(fake, pool, addr[1]), 6);
            for (unsigned int i = 0; i < 12; i++)
                if (addr[i / 6][i % 6])
                    release(addr[i / 6][i % 6]);
            pool_trim(pool, "test");
            assert_int_equal(fake->in_use, 0);
            assert_at_rest(pool, fake);
            pool_destroy(pool);
            fake_delete(fake);
        }
}
