/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_edges.c - the host pool at its edges: the largest request, no host memory, numbers of blocks and tokens,
 * calls that fail. The contract is test_host_pool.c's, threads are test_host_shards.c's and test_host_random.c's. */
#include "host_env.h"

static struct host_shard *own(void)
{
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        if (fake.pool->shards[i].out || fake.pool->shards[i].kept_count || fake.pool->shards[i].freed_count)
            return &fake.pool->shards[i];
    fail_msg("no shard has anything");
    return NULL;
}

/* There is no class after that of the largest request. */
CASE(test_largest_request)
{
    uint64_t addr, small[3];

    assert_int_equal(host_pool_alloc(fake.pool, &plain, 0, &addr), -EINVAL);
    assert_int_equal(host_pool_alloc(fake.pool, &plain, HOST_SIZE_MAX + 1, &addr), -ENOMEM);
    assert_int_equal(fake.calls[HOST_CALL_ALLOC], 0);
    fake.capacity = 64 * MIB;
    get_all(small, 3, 512);
    put_all(small, 3, 512);
    assert_true(host_tokens_ask(fake.pool, 1));
    small[0] = get(512);
    assert_non_null(fake.pool->families->ready[0].first); /* the list after the last one of those that wait */
    assert_int_equal(host_pool_alloc(fake.pool, &plain, HOST_SIZE_MAX, &addr), -ENOMEM);
    assert_true(fake.calls[HOST_CALL_ALLOC] > 1);
    put(small[0], 512);
}

/* Memory that this thread's last free has left incomplete serves after a wait, although none can go back. */
CASE(test_own_last_free_serves)
{
    uint64_t addr[2];

    fake.pool->limit = HOST_SLAB;
    get_all(addr, 2, HOST_SMALL_MAX);
    host_fake_launch(&fake);
    put(addr[1], HOST_SMALL_MAX);
    assert_int_equal(get(HOST_SMALL_MAX), addr[1]);
    assert_int_equal(fake.calls[HOST_CALL_WAIT], 1);
    assert_int_equal(fake.waited_for, plain.owner);
    put_all(addr, 2, HOST_SMALL_MAX);
}

/* After the wait other contexts' work may still use that memory. */
CASE(test_own_last_free_does_not_serve)
{
    uint64_t addr[2], other;

    fake.pool->limit = HOST_SLAB;
    get_all(addr, 2, HOST_SMALL_MAX);
    host_fake_launch(&fake);
    put(addr[1], HOST_SMALL_MAX);
    fake.elsewhere = true;
    other = get(HOST_SMALL_MAX);
    assert_int_not_equal(other, addr[1]);
    assert_int_equal(fake.calls[HOST_CALL_WAIT], 1);
    host_fake_complete(&fake);
    put(addr[0], HOST_SMALL_MAX);
    put(other, HOST_SMALL_MAX);
}

/* One vain wait is enough for each free. */
CASE(test_own_last_free_takes_too_long)
{
    uint64_t addr[2], other[3];

    fake.pool->limit = HOST_SLAB;
    get_all(addr, 2, HOST_SMALL_MAX);
    host_fake_launch(&fake);
    put(addr[1], HOST_SMALL_MAX);
    fake.fail_call = HOST_CALL_WAIT;
    fake.fail_rc = -ETIMEDOUT;
    fake.fail_at = 1;
    get_all(other, 3, HOST_SMALL_MAX);
    assert_int_equal(fake.calls[HOST_CALL_WAIT], 1);
    host_fake_complete(&fake);
    put(addr[0], HOST_SMALL_MAX);
    put_all(other, 3, HOST_SMALL_MAX);
}

CASE(test_no_host_memory)
{
    uint64_t addr;

    host_fake_no_pages = true;
    assert_int_equal(host_pool_alloc(fake.pool, &plain, 4 * KIB, &addr), -ENOMEM);
    assert_int_equal(host_pool_alloc(fake.pool, &plain, 4 * MIB, &addr), -ENOMEM);
    host_fake_no_pages = false;
    assert_int_equal(fake.calls[HOST_CALL_ALLOC], 0);
    assert_int_equal(stats().failed, 2);
}

/* However often the work of what would serve is asked about before it is over, it serves, and none of it goes back. */
UNIT_CASE(test_work_that_is_over_late)
{
    static const size_t sizes[] = {HOST_SMALL_MAX, 40 * MIB};

    for (unsigned int late = 0; late < 16; late++)
        for (int refused = 0; refused < 2; refused++) {
            const size_t size = sizes[late % 2];
            uint64_t addr[2];

            (void)setup(state);
            get_all(addr, 2, size);
            put_all(addr, 2, size);
            fake.pool->limit = refused ? 0 : fake.held;
            fake.capacity = refused ? fake.held : 0;
            fake.pool->ask_ns = 3600000000000u;
            fake.late = late / 2;
            get_all(addr, 2, size);
            assert_int_equal(fake.calls[HOST_CALL_FREE], 0);
            assert_int_equal(stats().passing, 0);
            put_all(addr, 2, size);
            (void)teardown(state);
        }
}

/* Memory whose work is over goes back, but not behind later work, for which the driver's free would wait. */
CASE(test_decay_never_waits)
{
    put(get(4 * MIB), 4 * MIB);
    host_fake_complete(&fake);
    assert_int_equal(get(4 * MIB) != 0, true); /* it is known to be complete */
    host_fake_launch(&fake);
    host_pool_owner_gone(fake.pool, plain.owner);
    put(get(4 * MIB), 4 * MIB);
    host_fake_complete(&fake);
    assert_int_equal(host_pool_decay(fake.pool, 100), 0);
    (void)host_tokens_ask(fake.pool, 1);
    (void)host_tokens_ask(fake.pool, 2);
    host_fake_launch(&fake);
    fake.blocked = true;
    assert_int_equal(host_pool_decay(fake.pool, 0), 0);
    fake.blocked = false;
}

/* --- tokens --- */

/* The combiner asks for those that wait, but not if its own token failed; and a request says that it waits. */
CASE(test_combiner_asks_for_others)
{
    uint64_t addr = get(MIB);

    fake.pool->tokens.awaited = true;
    put(addr, MIB);
    assert_int_equal(fake.calls[HOST_CALL_QUERY], 1);
    assert_false(fake.pool->tokens.awaited);
    addr = get(MIB);
    fake.pool->tokens.awaited = true;
    fake.fail_call = HOST_CALL_RECORD;
    fake.fail_at = fake.calls[HOST_CALL_RECORD] + 1;
    fake.fail_rc = -EIO;
    fake.calls[HOST_CALL_QUERY] = 0;
    assert_int_equal(host_pool_free(fake.pool, addr), -EIO);
    assert_int_equal(fake.calls[HOST_CALL_QUERY], 0);
    fake.pool->tokens.awaited = false;
    fake.pool->tokens.combining = true; /* another thread */
    memset((void *)(uintptr_t)addr, 0, MIB);
    addr = get(MIB);
    assert_true(fake.pool->tokens.awaited);
    fake.pool->tokens.combining = false;
    put(addr, MIB);
}

/* A question in vain ends the luck: then the first token that would do is asked about. */
CASE(test_luck_ends)
{
    const uint64_t addr = get(MIB);

    host_fake_launch(&fake);
    put(addr, MIB);
    fake.pool->tokens.luck = HOST_LUCK;
    assert_int_not_equal(get(MIB), addr);
    assert_int_equal(fake.pool->tokens.luck, 0);
}

static unsigned int tokens_unused(void)
{
    unsigned int count = 0;

    for (const struct host_token *token = fake.pool->tokens.unused; token; token = token->next)
        count++;
    for (const struct host_token *token = fake.pool->tokens.first; token; token = token->next)
        count++;
    return count;
}

static uint64_t many[3 * HOST_TOKENS];

static void free_many(void)
{
    fake.pool->tokens.combining = false; /* each of them records a token, beside the request that asks */
    for (unsigned int i = 0; i < 3 * HOST_TOKENS; i++) {
        host_fake_launch(&fake);
        put(many[i], MIB);
    }
}

/* A token that is given up while a thread asks about it is used again when that thread has its answer. */
CASE(test_token_given_up_meanwhile)
{
    uint64_t first = get(MIB), second = get(MIB);

    get_all(many, 3 * HOST_TOKENS, MIB);
    put(first, MIB);
    host_fake_launch(&fake);
    put(second, MIB); /* the first one is not the last */
    fake.asked_meanwhile = free_many;
    assert_int_equal(get(MIB), first);
    assert_null(fake.asked_meanwhile);
    assert_int_equal(tokens_unused(), HOST_TOKENS);
    put(first, MIB);
    host_fake_complete(&fake);
}

/* --- shards --- */

/* A magazine gets twice as many each time, up to 32 blocks or 256 KiB. */
SHARDED_CASE(test_magazines_grow)
{
    static const struct {
        size_t size;
        unsigned int most;
    } rows[] = {{4 * KIB, 32}, {64 * KIB, 4}, {128 * KIB, 2}};

    for (size_t r = 0; r < sizeof(rows) / sizeof(*rows); r++) {
        const unsigned int class = host_class_of(rows[r].size);
        struct host_magazine *magazine;
        uint64_t addr[128];
        unsigned int batch = 0;

        get_all(addr, 128, rows[r].size);
        magazine = &own()->magazines[class % HOST_MAGAZINES];
        put_all(addr, 128, rows[r].size);
        (void)stats(); /* all of them are the pool's again */
        magazine->batch = 0;
        for (int i = 0; i < 128; i++) {
            addr[i] = get(rows[r].size);
            if (magazine->class != class || magazine->batch == batch)
                continue;
            assert_int_equal(magazine->batch, !batch ? 1 : 2 * batch < rows[r].most ? 2 * batch : rows[r].most);
            batch = magazine->batch;
        }
        assert_int_equal(batch, rows[r].most);
        put_all(addr, 128, rows[r].size);
    }
}

/* Small blocks that are given back leave the shard the large ones that it may keep. */
SHARDED_CASE(test_small_frees_keep_large_blocks)
{
    uint64_t large[HOST_SHARD_KEPT], small[HOST_SHARD_BLOCKS];
    const struct host_shard *shard = NULL;

    for (int round = 0; round < 2; round++) { /* the driver's are the pool's, and the shard's when they serve again */
        get_all(large, HOST_SHARD_KEPT, 200 * KIB);
        get_all(small, HOST_SHARD_BLOCKS, 512);
        put_all(large, HOST_SHARD_KEPT, 200 * KIB);
        if (round) {
            shard = own();
            assert_int_equal(shard->kept_count, HOST_SHARD_KEPT);
        }
        put_all(small, HOST_SHARD_BLOCKS, 512);
    }
    assert_int_equal(shard->kept_count, HOST_SHARD_KEPT);
    assert_true(shard->freed_count < HOST_SHARD_BLOCKS);
}

/* A free that fails to record its token says so, although it has given other blocks back. */
SHARDED_CASE(test_failed_free_of_a_full_shard)
{
    uint64_t addr[HOST_SHARD_KEPT + 1];

    get_all(addr, HOST_SHARD_KEPT + 1, 2 * MIB);
    put_all(addr, HOST_SHARD_KEPT + 1, 2 * MIB);
    host_fake_complete(&fake);
    get_all(addr, HOST_SHARD_KEPT + 1, 2 * MIB);
    put_all(addr, HOST_SHARD_KEPT, 2 * MIB);
    assert_int_equal(own()->kept_count, HOST_SHARD_KEPT);
    fake.fail_call = HOST_CALL_RECORD;
    fake.fail_at = fake.calls[HOST_CALL_RECORD] + 1;
    fake.fail_rc = -EIO;
    assert_int_equal(program_free(&fake, addr[HOST_SHARD_KEPT], 2 * MIB, ID), -EIO);
    assert_true(own()->kept_count < HOST_SHARD_KEPT);
}

/* A small block that is asked about after its free is the pool's, which hands it out no earlier. A small free alone
 * has no part in the next token. */
SHARDED_CASE(test_freed_block_is_recalled)
{
    uint64_t addr[2 * HOST_SHARD_BLOCKS], base;
    size_t size;

    get_all(addr, 2 * HOST_SHARD_BLOCKS, 4 * KIB);
    put_all(addr, 2 * HOST_SHARD_BLOCKS, 4 * KIB);
    host_fake_complete(&fake);
    (void)stats(); /* the shard has freed ones no more */
    get_all(addr, 2 * HOST_SHARD_BLOCKS, 4 * KIB);
    host_fake_launch(&fake);
    fake.pool->tokens.unrecorded = 0;
    for (unsigned int i = 0; i < 4; i++) {
        put(addr[i], 4 * KIB);
        assert_int_equal(fake.pool->tokens.unrecorded, i * 4 * KIB);
        assert_int_equal(host_pool_block(fake.pool, addr[i], &base, &size), -EINVAL);
    }
    get_all(addr, 4, 4 * KIB); /* host_fake.h sees whether one is too early */
    assert_null(fake.fault);
    put_all(addr, 2 * HOST_SHARD_BLOCKS, 4 * KIB);
}

extern _Thread_local void (*lock_hook)(struct lock *lock); /* of checked_lock.h */
static unsigned int locks;

static void count_lock(struct lock *lock)
{
    locks++;
}

/* Nothing that there is would serve once it is complete: the shards are looked through once or twice, not again and
 * again for news. */
SHARDED_CASE(test_no_news_are_awaited)
{
    uint64_t addr;

    locks = 0;
    lock_hook = count_lock;
    addr = get(4 * MIB);
    lock_hook = NULL;
    assert_in_range(locks, HOST_SHARDS, 8 * HOST_SHARDS);
    put(addr, 4 * MIB);
}

/* A shard that has handed out too many gives up all. */
SHARDED_CASE(test_many_out)
{
    enum { MANY = 4000 };
    static uint64_t addr[MANY];
    unsigned int before = 0, fewer = 0;

    get_all(addr, 2, 512);
    for (int i = 2; i < MANY; i++) {
        const struct host_shard *shard = own();

        before = shard->out;
        addr[i] = get(512);
        if (shard->out < before) {
            assert_int_equal(shard->out, 1);
            fewer++;
        }
    }
    assert_in_range(fewer, MANY / (2 * HOST_SHARD_OUT), MANY / HOST_SHARD_OUT);
    assert_sound();
    put_all(addr, MANY, 512);
}
