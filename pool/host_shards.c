/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_shards.c - small pinned blocks for threads that contend for the pool's lock; see struct host_shard.
 *
 * A block that a shard has freed is stamped when the shard gives it back to the pool: later than its free, so no token
 * covers it too early.
 *
 * Locking: takes the shard's lock, within the pool's where host_internal.h says that the caller holds that.
 */
#include "host_internal.h"

/* How long statistics wait for a shard's lock, as for the pool's. */
#define PATIENCE_NS 1000000000u

/* This thread's shard, modulo HOST_SHARDS and counted from 1, in every pool; 0: none yet. */
static __thread unsigned int own_index __attribute__((tls_model("initial-exec")));

static struct host_shard *own_shard(struct host_pool *pool)
{
    static atomic_uint threads;

    if (!own_index)
        own_index = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) % HOST_SHARDS + 1;
    return &pool->shards[own_index - 1];
}

void host_lock_wait(struct host_pool *pool)
{
    if (!host_is_sharded(pool) &&
        atomic_fetch_add_explicit(&pool->contended, 1, memory_order_relaxed) + 1 >= HOST_CONTENDED)
        atomic_store_explicit(&pool->sharded, true, memory_order_relaxed);
    lock_take(&pool->lock);
}

static struct host_list *bucket_of(struct host_shard *shard, uint64_t addr)
{
    return &shard->buckets[(addr / HOST_GRANULE * 0x9e3779b97f4a7c15u) >> 56];
}

/* With the shard's lock: the block that starts at addr, if the shard has handed it out. */
static struct host_block *out_find(struct host_shard *shard, uint64_t addr)
{
    struct host_block *block = bucket_of(shard, addr)->first;

    while (block && block->addr != addr)
        block = block->next;
    return block;
}

/* With the shard's lock. */
static void out_push(struct host_shard *shard, struct host_block *block)
{
    block->lent = HOST_LENT_OUT;
    host_list_push(bucket_of(shard, block->addr), block, true);
    shard->out++;
}

/* With the shard's lock. */
static void out_remove(struct host_shard *shard, struct host_block *block)
{
    host_list_remove(bucket_of(shard, block->addr), block);
    shard->out--;
}

/* With the shard's lock. */
static void freed_remove(struct host_shard *shard, struct host_block *block)
{
    host_list_remove(&shard->freed, block);
    shard->freed_count--;
    shard->freed_bytes -= block->size;
}

static struct host_magazine *magazine_of(struct host_shard *shard, unsigned int class)
{
    return &shard->magazines[class % HOST_MAGAZINES];
}

/* With the shard's lock. */
static void ready_remove(struct host_shard *shard, struct host_block *block)
{
    struct host_magazine *magazine = magazine_of(shard, block->class);

    host_list_remove(&magazine->list, block);
    magazine->count--;
}

bool host_shard_take(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr)
{
    struct host_magazine *magazine;
    struct host_shard *shard;
    struct host_block *block;
    unsigned int class;

    if (size > HOST_SHARD_SIZE)
        return false;
    class = host_class_of(size);
    shard = own_shard(pool);
    magazine = magazine_of(shard, class);
    lock_take(&shard->lock);
    block = magazine->list.first;
    if (!block || magazine->class != class || !host_keys_equal(&magazine->key, key) || shard->out >= HOST_SHARD_OUT) {
        lock_give(&shard->lock);
        return false;
    }
    ready_remove(shard, block);
    out_push(shard, block);
    block->requested = size;
    shard->live += host_round(size);
    shard->blocks += block->size;
    shard->hits++;
    *ret_addr = block->addr;
    lock_give(&shard->lock);
    return true;
}

bool host_shard_put(struct host_pool *pool, uint64_t addr, bool *ret_full)
{
    struct host_shard *shard;
    struct host_block *block;

    shard = own_shard(pool);
    lock_take(&shard->lock);
    block = out_find(shard, addr);
    if (block) {
        out_remove(shard, block);
        block->lent = HOST_LENT_FREED;
        host_list_push(&shard->freed, block, false);
        shard->freed_bytes += block->size;
        shard->freed_count++;
        shard->live -= host_round(block->requested);
        shard->blocks -= block->size;
        shard->frees++;
        *ret_full = shard->freed_count >= HOST_SHARD_BLOCKS || shard->freed_bytes >= HOST_SHARD_BYTES;
    }
    lock_give(&shard->lock);
    return block;
}

bool host_shard_find(struct host_pool *pool, uint64_t addr, size_t *ret_size, struct host_key *ret_key)
{
    struct host_shard *shard;
    const struct host_block *block;

    shard = own_shard(pool);
    lock_take(&shard->lock);
    block = out_find(shard, addr);
    if (block) {
        *ret_size = block->requested;
        *ret_key = block->segment->key;
    }
    lock_give(&shard->lock);
    return block;
}

/* With both locks, as the rest unless a function says otherwise: add the shard's counters to the pool's. */
static void sync_one(struct host_pool *pool, struct host_shard *shard)
{
    pool->stats.live += shard->live;
    pool->stats.blocks += shard->blocks;
    pool->stats.hits += shard->hits;
    pool->stats.frees += shard->frees;
    shard->live = shard->blocks = shard->hits = shard->frees = 0;
}

/* A block that is in no list of the shard and not handed out goes into one of the pool. */
static void give_back(struct host_pool *pool, struct host_block *block, bool freed)
{
    block->state = HOST_NOWHERE;
    if (freed)
        block->stamp = block->segment->stamp = pool->epoch;
    host_segment_leave(pool, block->segment);
    host_put(pool, block);
}

static size_t freed_give_back(struct host_pool *pool, struct host_shard *shard)
{
    const size_t bytes = shard->freed_bytes;
    struct host_block *block;

    while ((block = shard->freed.first)) {
        freed_remove(shard, block);
        give_back(pool, block, true);
    }
    return bytes;
}

static void ready_give_back(struct host_pool *pool, struct host_magazine *magazine)
{
    struct host_block *block;

    while ((block = magazine->list.last)) {
        host_list_remove(&magazine->list, block);
        give_back(pool, block, false);
    }
    magazine->count = 0;
}

/* They are the pool's from now on. */
static void out_give_back(struct host_shard *shard)
{
    struct host_block *block;

    for (unsigned int i = 0; i < HOST_SHARD_BUCKETS; i++)
        while ((block = shard->buckets[i].first)) {
            out_remove(shard, block);
            block->state = HOST_LIVE;
        }
}

int host_shard_flush(struct host_pool *pool)
{
    struct host_shard *shard = own_shard(pool);
    uint64_t epoch;
    size_t bytes;
    bool combines;
    int rc;

    host_lock(pool);
    lock_take(&shard->lock);
    sync_one(pool, shard);
    bytes = freed_give_back(pool, shard);
    lock_give(&shard->lock);
    combines = host_tokens_freed(pool, bytes, &epoch);
    lock_give(&pool->lock);
    rc = combines ? host_tokens_combine(pool, epoch) : 0;
    return rc == -EBUSY ? 0 : rc;
}

/* Fill it from the pool's ready blocks if it is empty. */
static void magazine_fill(struct host_pool *pool, struct host_magazine *magazine, struct host_family *family,
                          unsigned int class, unsigned int shard)
{
    const unsigned int most = (unsigned int)(HOST_SHARD_BYTES / host_class_size(class));
    struct host_block *block;

    if (magazine->class != class || !host_keys_equal(&magazine->key, &family->key)) {
        ready_give_back(pool, magazine);
        magazine->class = class;
        magazine->key = family->key;
        magazine->batch = 0;
    }
    if (magazine->count)
        return;
    magazine->batch = magazine->batch ? 2 * magazine->batch : 1;
    if (magazine->batch > HOST_SHARD_BLOCKS)
        magazine->batch = HOST_SHARD_BLOCKS;
    if (magazine->batch > most)
        magazine->batch = most;
    while (magazine->count < magazine->batch && (block = host_ready_take(pool, family, class))) {
        block->state = HOST_LENT;
        block->lent = HOST_LENT_READY;
        block->shard = shard;
        host_list_push(&magazine->list, block, false);
        magazine->count++;
    }
}

void host_shard_fill(struct host_pool *pool, struct host_block *block, size_t size)
{
    struct host_shard *shard;
    unsigned int class;

    if (size > HOST_SHARD_SIZE || block->segment->passing)
        return;
    class = host_class_of(size);
    shard = own_shard(pool);
    lock_take(&shard->lock);
    sync_one(pool, shard);
    if (shard->out >= HOST_SHARD_OUT)
        out_give_back(shard);
    block->state = HOST_LENT;
    block->shard = own_index - 1;
    out_push(shard, block);
    magazine_fill(pool, magazine_of(shard, class), block->segment->family, class, own_index - 1);
    lock_give(&shard->lock);
}

bool host_shard_recall(struct host_pool *pool, struct host_block *block)
{
    struct host_shard *shard = &pool->shards[block->shard];
    bool live;

    lock_take(&shard->lock);
    live = block->lent == HOST_LENT_OUT;
    sync_one(pool, shard);
    if (live) {
        out_remove(shard, block);
        block->state = HOST_LIVE;
    } else if (block->lent == HOST_LENT_FREED) {
        freed_remove(shard, block);
        pool->unrecorded += block->size;
        give_back(pool, block, true);
    } else {
        ready_remove(shard, block);
        give_back(pool, block, false);
    }
    lock_give(&shard->lock);
    return live;
}

void host_shards_flush(struct host_pool *pool, bool patient)
{
    for (unsigned int i = 0; host_is_sharded(pool) && i < HOST_SHARDS; i++) {
        struct host_shard *shard = &pool->shards[i];

        if (patient)
            lock_take(&shard->lock);
        else if (!lock_take_within(&shard->lock, PATIENCE_NS))
            continue;
        sync_one(pool, shard);
        pool->unrecorded += freed_give_back(pool, shard);
        for (unsigned int k = 0; k < HOST_MAGAZINES; k++)
            ready_give_back(pool, &shard->magazines[k]);
        lock_give(&shard->lock);
    }
}

/* At one time: a block that one shard's threads free while another shard is added up must not be counted twice. */
void host_shards_lock(struct host_pool *pool)
{
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        lock_take(&pool->shards[i].lock);
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        sync_one(pool, &pool->shards[i]);
}

void host_shards_unlock(struct host_pool *pool)
{
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        lock_give(&pool->shards[i].lock);
}

void host_shards_sync(struct host_pool *pool)
{
    if (!host_is_sharded(pool))
        return;
    host_shards_lock(pool);
    host_shards_unlock(pool);
}
