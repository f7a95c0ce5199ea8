/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_sound.c - host_pool_check: each thing that is wrong is noticed. Other tests rely on it. */
#include "host_env.h"

static bool is_sound(void)
{
    char text[128] = "";
    const bool sound = host_pool_check(fake.pool, text, sizeof(text)) == 0;

    assert_true(sound == !text[0]);
    return sound;
}

/* One number is not what it was; then it is again. */
#define NOTICED(lvalue, wrong)                                                                                         \
    do {                                                                                                               \
        __typeof__((lvalue) + 0) was_ = (lvalue);                                                                      \
        (lvalue) = (wrong);                                                                                            \
        if (is_sound())                                                                                                \
            fail_msg("not noticed: %s", #lvalue);                                                                      \
        (lvalue) = was_;                                                                                               \
        assert_true(is_sound());                                                                                       \
    } while (0)

static struct host_block *block_in(enum host_state state)
{
    for (size_t i = 0; i < fake.pool->table_count; i++)
        for (struct host_block *block = fake.pool->table[i]->first; block; block = block->after)
            if (block->state == state)
                return block;
    fail_msg("no block in state %d", (int)state);
    return NULL;
}

/* Blocks in every state but those of shards. */
static void some_blocks(uint64_t addr[8])
{
    get_all(addr, 8, 4 * KIB);
    put_all(addr, 4, 4 * KIB);
    assert_true(host_tokens_ask(fake.pool, 1));
    addr[0] = get(4 * KIB); /* the others are ready */
    host_fake_launch(&fake);
    put_all(addr + 4, 3, 4 * KIB);
}

CASE(test_counters)
{
    struct host_stats *s = &fake.pool->stats;
    uint64_t addr[8];

    some_blocks(addr);
    (void)get(4 * MIB);
    assert_int_equal(stats().segments, 2);
    NOTICED(s->live, s->live + 1);
    NOTICED(s->blocks, s->blocks + 1);
    NOTICED(s->waiting, s->waiting + 1);
    NOTICED(s->idle, s->idle + 1);
    NOTICED(s->passing, s->passing + 1);
    NOTICED(s->segments, s->segments + 1);
    NOTICED(s->held, s->held - 1);
    NOTICED(fake.pool->table_count, fake.pool->table_count - 1);
}

CASE(test_blocks)
{
    struct host_block *live, *ready, *waiting, *range;
    struct host_segment *segment;
    uint64_t addr[8];

    some_blocks(addr);
    live = block_in(HOST_LIVE);
    ready = live->segment->family->ready[block_in(HOST_READY)->class].first;
    waiting = live->segment->family->waiting[block_in(HOST_WAITING)->class].first;
    assert_true(ready->next && waiting->next);
    range = block_in(HOST_RANGE);
    segment = live->segment;
    NOTICED(live->state, HOST_NOWHERE);
    NOTICED(live->state, HOST_FRONT);
    NOTICED(live->state, HOST_RANGE);
    NOTICED(segment->first->state, HOST_LIVE);
    NOTICED(live->requested, 0);
    NOTICED(live->requested, live->size + 1);
    NOTICED(live->requested, live->requested - 1000);
    NOTICED(live->addr, live->addr + HOST_GRANULE);
    NOTICED(live->size, live->size + HOST_GRANULE);
    NOTICED(live->segment, NULL);
    NOTICED(live->after->before, NULL);
    NOTICED(ready->stamp, fake.pool->tokens.done + 1);
    NOTICED(ready->state, HOST_WAITING);
    NOTICED(ready->state, HOST_RANGE);
    NOTICED(ready->class, ready->class + 1);
    NOTICED(ready->next->prev, NULL);
    NOTICED(waiting->stamp, segment->stamp + 1);
    NOTICED(segment->family->waiting[waiting->class].last->stamp, segment->stamp + 1);
    NOTICED(segment->stamp, 0);
    NOTICED(waiting->state, HOST_READY);
    NOTICED(waiting->class, waiting->class + 1);
    NOTICED(waiting->next->stamp, waiting->stamp - 1);
    NOTICED(range->class, range->class - 1);
    NOTICED(segment->live, segment->live + 1);
    NOTICED(segment->size, segment->size + HOST_GRANULE);
    NOTICED(segment->starts[1], NULL);
    NOTICED(segment->starts[HOST_SLAB / HOST_GRANULE - 1], live);
    NOTICED(segment->family->bin_set[0], segment->family->bin_set[0] ^ 1);
    NOTICED(segment->family->bin_set[HOST_BIN_SETS - 1], 0);
    NOTICED(segment->family->waiting[waiting->class].last, waiting);
    NOTICED(segment->family->ready[ready->class].first, NULL);
}

CASE(test_tokens)
{
    struct host_tokens *tokens = &fake.pool->tokens;
    uint64_t addr[2];

    get_all(addr, 2, MIB);
    for (int i = 0; i < 2; i++) {
        host_fake_launch(&fake);
        put(addr[i], MIB);
    }
    NOTICED(tokens->first->epoch, 0);
    NOTICED(tokens->first->epoch, tokens->first->next->epoch);
    NOTICED(tokens->first->next->epoch, tokens->epoch);
    NOTICED(tokens->first->gone, true);
    NOTICED(tokens->recorded, tokens->recorded - 1);
    NOTICED(tokens->recorded, tokens->epoch);
    NOTICED(tokens->done, tokens->epoch);
    NOTICED(tokens->first->next, NULL);
}

SHARDED_CASE(test_shards)
{
    struct host_shard *shard = NULL;
    struct host_block *out = NULL;
    uint64_t addr[64], large[3];

    for (int round = 0; round < 2; round++) {
        get_all(addr, 64, 4 * KIB);
        get_all(large, 3, MIB);
        put_all(addr, 40, 4 * KIB);
        put_all(large, 2, MIB);
        if (!round) {
            put_all(addr + 40, 24, 4 * KIB);
            put(large[2], MIB);
        }
    }
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        shard = fake.pool->shards[i].out ? &fake.pool->shards[i] : shard;
    assert_non_null(shard);
    assert_int_equal(shard->kept_count, 2);
    assert_in_range(shard->freed_count, 1, HOST_SHARD_BLOCKS);
    for (unsigned int i = 0; i < HOST_SHARD_BUCKETS; i++)
        out = shard->buckets[i].first ? shard->buckets[i].first : out;
    NOTICED(shard->out, shard->out + 1);
    NOTICED(shard->kept_count, 1);
    NOTICED(shard->kept_count, 3);
    NOTICED(shard->freed_count, shard->freed_count + 1);
    NOTICED(shard->freed_count, shard->freed_count - 1);
    NOTICED(out->lent, HOST_LENT_FREED);
    NOTICED(out->state, HOST_LIVE);
    NOTICED(out->shard, out->shard + 1);
    NOTICED(out->requested, 0);
    NOTICED(shard->kept.first->stamp, shard->kept.last->stamp + 1);
    NOTICED(shard->kept.last->stamp, fake.pool->tokens.epoch + 1);
    NOTICED(shard->kept.first->lent, HOST_LENT_FREED);
    NOTICED(shard->freed.first->lent, HOST_LENT_KEPT);
    NOTICED(shard->freed.first->shard, HOST_SHARDS);
    for (unsigned int i = 0; i < HOST_MAGAZINES; i++)
        NOTICED(shard->magazines[i].count, shard->magazines[i].count + 1);
}
