/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_check.c - the check of every invariant of the host pool, for tests.
 *
 * Locking: takes the pool's lock and the shards'; calls no function of struct host_ops.
 */
#include <stdio.h>

#include "host_internal.h"

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return #condition;                                                                                         \
    } while (0)

/* A fault that another check finds is one of this check. */
#define SOUND(check)                                                                                                   \
    do {                                                                                                               \
        const char *fault_ = (check);                                                                                  \
                                                                                                                       \
        if (fault_)                                                                                                    \
            return fault_;                                                                                             \
    } while (0)

struct sums {
    uint64_t live, blocks, waiting, held, idle, passing, listed, lent;
};

static const char *block_check(const struct host_pool *pool, const struct host_block *block, struct sums *sums)
{
    const struct host_segment *segment = block->segment;

    REQUIRE(block->state != HOST_NOWHERE);
    REQUIRE((block->state == HOST_FRONT) == (segment->starts && block == segment->first));
    REQUIRE(!segment->starts || segment->starts[(block->addr - segment->addr) / HOST_GRANULE] == block);
    REQUIRE(block->state != HOST_RANGE || !block->after || block->after->state != HOST_RANGE);
    sums->listed += block->state == HOST_RANGE || block->state == HOST_WAITING || block->state == HOST_READY;
    sums->lent += block->state == HOST_LENT;
    if (block->state == HOST_LIVE || (block->state == HOST_LENT && block->lent == HOST_LENT_OUT)) {
        REQUIRE(block->requested && block->requested <= block->size);
        REQUIRE(block->addr % host_unit(block->requested) == 0);
        sums->live += host_round(block->requested);
        sums->blocks += block->size;
    }
    if (block->state == HOST_WAITING || block->state == HOST_READY) {
        REQUIRE(block->stamp <= pool->tokens.epoch && block->stamp <= segment->stamp);
        REQUIRE(block->state == HOST_WAITING || host_is_done(pool, block->stamp));
    }
    sums->waiting += block->state == HOST_WAITING ? block->size : 0;
    return NULL;
}

static const char *segment_check(const struct host_pool *pool, const struct host_segment *segment, struct sums *sums)
{
    const struct host_block *before = NULL;
    uint64_t at = segment->addr;
    unsigned int live = 0, starts = 0;

    for (const struct host_block *block = segment->first; block; before = block, block = block->after) {
        REQUIRE(block->addr == at && block->segment == segment && block->before == before);
        at += block->size;
        live += block->state == HOST_LIVE || block->state == HOST_LENT;
        starts++;
        SOUND(block_check(pool, block, sums));
    }
    REQUIRE(at == segment->addr + segment->size);
    REQUIRE(live == segment->live);
    REQUIRE(!segment->starts || segment->size == HOST_SLAB);
    for (size_t i = 0; segment->starts && i < HOST_SLAB / HOST_GRANULE; i++)
        starts -= segment->starts[i] != NULL;
    REQUIRE(!segment->starts || starts == 0);
    sums->held += segment->size;
    sums->passing += segment->passing ? segment->size : 0;
    sums->idle += live ? 0 : segment->size;
    return NULL;
}

static const char *list_check(const struct host_list *list, enum host_state state, unsigned int class,
                              uint64_t *ret_listed)
{
    const struct host_block *last = NULL;

    for (const struct host_block *block = list->first; block; last = block, block = block->next) {
        REQUIRE(block->prev == last && block->state == state && block->class == class);
        REQUIRE(state != HOST_WAITING || !last || last->stamp <= block->stamp);
        (*ret_listed)++;
    }
    REQUIRE(list->last == last);
    return NULL;
}

static const char *family_check(const struct host_family *family, uint64_t *ret_listed)
{
    for (unsigned int i = 0; i < HOST_CLASSES; i++) {
        SOUND(list_check(&family->waiting[i], HOST_WAITING, i, ret_listed));
        SOUND(list_check(&family->ready[i], HOST_READY, i, ret_listed));
    }
    for (unsigned int i = 0; i < HOST_BINS; i++) {
        REQUIRE(!family->bins[i].first == !(family->bin_set[i / 64] >> i % 64 & 1));
        SOUND(list_check(&family->bins[i], HOST_RANGE, i, ret_listed));
    }
    return NULL;
}

/* Adds the number of blocks to *ret_count. */
static const char *lent_check(const struct host_list *list, enum host_lent lent, unsigned int shard,
                              unsigned int *ret_count)
{
    const struct host_block *last = NULL;

    for (const struct host_block *block = list->first; block; last = block, block = block->next) {
        REQUIRE(block->prev == last && block->state == HOST_LENT && block->lent == lent && block->shard == shard);
        (*ret_count)++;
    }
    REQUIRE(list->last == last);
    return NULL;
}

static const char *shard_check(const struct host_pool *pool, unsigned int index, uint64_t *ret_lent)
{
    const struct host_shard *shard = &pool->shards[index];
    unsigned int freed = 0, kept = 0, out = 0;

    SOUND(lent_check(&shard->freed, HOST_LENT_FREED, index, &freed));
    SOUND(lent_check(&shard->kept, HOST_LENT_KEPT, index, &kept));
    REQUIRE(freed == shard->freed_count && kept == shard->kept_count);
    for (const struct host_block *block = shard->kept.first; block; block = block->next)
        REQUIRE(block->stamp <= pool->tokens.epoch && (!block->next || block->stamp <= block->next->stamp));
    for (unsigned int i = 0; i < HOST_SHARD_BUCKETS; i++)
        SOUND(lent_check(&shard->buckets[i], HOST_LENT_OUT, index, &out));
    REQUIRE(out == shard->out);
    *ret_lent += freed + kept + out;
    for (unsigned int i = 0; i < HOST_MAGAZINES; i++) {
        unsigned int ready = 0;

        SOUND(lent_check(&shard->magazines[i].list, HOST_LENT_READY, index, &ready));
        REQUIRE(ready == shard->magazines[i].count);
        *ret_lent += ready;
    }
    return NULL;
}

/* With their lock. */
static const char *tokens_check(const struct host_tokens *tokens)
{
    uint64_t epoch = 0;

    for (const struct host_token *token = tokens->first; token; epoch = token->epoch, token = token->next)
        REQUIRE(token->epoch > epoch && token->epoch < tokens->epoch && !token->gone);
    REQUIRE(epoch <= tokens->recorded);
    REQUIRE(epoch == tokens->recorded || tokens->recorded <= tokens->done);
    REQUIRE(tokens->done < tokens->epoch);
    return NULL;
}

static const char *pool_fault(const struct host_pool *pool)
{
    struct sums sums = {0};
    uint64_t listed = 0, lent = 0;

    for (size_t i = 0; i < pool->table_count; i++) {
        REQUIRE(!i || pool->table[i - 1]->addr + pool->table[i - 1]->size <= pool->table[i]->addr);
        SOUND(segment_check(pool, pool->table[i], &sums));
    }
    for (const struct host_family *family = pool->families; family; family = family->next)
        SOUND(family_check(family, &listed));
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        SOUND(shard_check(pool, i, &lent));
    SOUND(tokens_check(&pool->tokens));
    REQUIRE(listed == sums.listed && lent == sums.lent);
    REQUIRE(sums.live == pool->stats.live && sums.blocks == pool->stats.blocks);
    REQUIRE(sums.waiting == pool->stats.waiting && sums.passing == pool->stats.passing);
    REQUIRE(sums.held <= pool->stats.held && sums.idle == pool->stats.idle);
    REQUIRE(pool->stats.segments == pool->table_count);
    return NULL;
}

int host_pool_check(struct host_pool *pool, char *buf, size_t len)
{
    const char *fault;

    lock_take(&pool->lock);
    host_shards_lock(pool, /* patient: */ true);
    lock_take(&pool->tokens.lock);
    fault = pool_fault(pool);
    lock_give(&pool->tokens.lock);
    host_shards_unlock(pool);
    lock_give(&pool->lock);
    if (fault)
        snprintf(buf, len, "%s", fault);
    return fault ? -EINVAL : 0;
}
