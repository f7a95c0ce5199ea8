/* SPDX-License-Identifier: Apache-2.0 */
/* host_env.h - a host pool over host_fake.h for each test case, and what a program does with it. Each
 * test_host_... that has it has one of its own. */
#ifndef CUPOOL_TESTS_UNIT_HOST_ENV_H
#define CUPOOL_TESTS_UNIT_HOST_ENV_H

#include "cases.h"

#include "host_fake.h"
#include "host_internal.h" /* bins, tokens, ask_ns */

#define ID           7u
#define BOUND        (64 * MIB)
#define DEADLOCK_S   280
#define PASSES(call) assert_int_equal(call, 0)

static const struct host_key plain = {.owner = 1};
static struct host_fake fake;

static int setup(void **state)
{
    alarm(DEADLOCK_S);
    host_fake_init(&fake, 0, BOUND);
    return 0;
}

static void assert_sound(void)
{
    char text[128] = "";

    if (host_pool_check(fake.pool, text, sizeof(text)))
        fail_msg("host_pool_check: %s", text);
    if (fake.fault)
        fail_msg("%s", (const char *)fake.fault);
}

static int teardown(void **state)
{
    assert_sound();
    host_fake_done(&fake);
    assert_sound();
    alarm(0);
    return 0;
}

static uint64_t get(size_t size)
{
    uint64_t addr = 0;

    PASSES(program_alloc(&fake, &plain, size, ID, &addr));
    return addr;
}

static void put(uint64_t addr, size_t size)
{
    PASSES(program_free(&fake, addr, size, ID));
}

static inline void get_all(uint64_t *ret_addrs, size_t count, size_t size)
{
    for (size_t i = 0; i < count; i++)
        ret_addrs[i] = get(size);
}

static inline void put_all(const uint64_t *addrs, size_t count, size_t size)
{
    for (size_t i = 0; i < count; i++)
        put(addrs[i], size);
}

static inline struct host_stats stats(void)
{
    struct host_stats s;

    host_pool_stats_get(fake.pool, &s);
    return s;
}

static inline unsigned int spare_blocks(void)
{
    unsigned int count = 0;

    for (const struct host_block *block = fake.pool->spare_blocks; block; block = block->next)
        count++;
    return count;
}

/* Of blocks, and spare ones. */
static inline unsigned int descriptors(void)
{
    unsigned int count = spare_blocks();

    for (size_t i = 0; i < fake.pool->table_count; i++)
        for (const struct host_block *block = fake.pool->table[i]->first; block; block = block->after)
            count++;
    return count;
}

#define CASE(name) CASE_WITH(name, setup, teardown)

/* Of a pool whose threads have shards, which the thread is not alone with. */
static inline int setup_sharded(void **state)
{
    host_fake_sharded = true;
    (void)setup(state);
    host_fake_sharded = false;
    fake.alone = false;
    return 0;
}

#define SHARDED_CASE(name) CASE_WITH(name, setup_sharded, teardown)

#endif
