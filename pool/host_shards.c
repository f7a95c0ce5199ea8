/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_shards.c - small pinned blocks for threads that contend for the pool's lock; see struct host_shard.
 *
 * A small block that a shard has freed is stamped when the shard gives it back to the pool: later than its free, so no
 * token covers it too early. A large one is stamped at its free, and the shard itself looks whether it is complete.
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

/* With the shard's lock. */
static void kept_remove(struct host_shard *shard, struct host_block *block)
{
    host_list_remove(&shard->kept, block);
    shard->kept_count--;
}

/* With the shard's lock: the block of the kept ones that was freed last and is complete. NULL: none. *ret_stamp: of the
 * one that was freed first, or 0. */
static struct host_block *kept_find(const struct host_pool *pool, const struct host_shard *shard,
                                    const struct host_key *key, size_t size, uint64_t *ret_stamp)
{
    for (struct host_block *block = shard->kept.last; block; block = block->prev) {
        if (!host_fits(block->size, size) || !host_keys_equal(&block->segment->key, key))
            continue;
        if (host_is_done(pool, block->stamp))
            return block;
        *ret_stamp = block->stamp;
    }
    return NULL;
}

/* With the shard's lock: the block of the magazine that comes next. NULL: none. */
static struct host_block *ready_find(struct host_shard *shard, const struct host_key *key, size_t size)
{
    const unsigned int class = host_class_of(size);
    struct host_magazine *magazine = magazine_of(shard, class);

    return magazine->class == class && host_keys_equal(&magazine->key, key) ? magazine->list.first : NULL;
}

/* *ret_stamp: of a block that would serve the request if it were complete, or 0. */
static bool take(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr,
                 uint64_t *ret_stamp)
{
    const bool large = size > HOST_SHARD_SIZE;
    struct host_shard *shard = own_shard(pool);
    struct host_block *block;

    *ret_stamp = 0;
    lock_take(&shard->lock);
    block = large ? kept_find(pool, shard, key, size, ret_stamp) : ready_find(shard, key, size);
    if (!block || shard->out >= HOST_SHARD_OUT) {
        lock_give(&shard->lock);
        return false;
    }
    if (large)
        kept_remove(shard, block);
    else
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

bool host_shard_alloc(struct host_pool *pool, const struct host_key *key, size_t size, uint64_t *ret_addr)
{
    uint64_t stamp;

    return take(pool, key, size, ret_addr, &stamp) ||
           (stamp && host_tokens_ask(pool, stamp) && take(pool, key, size, ret_addr, &stamp));
}

/* With the shard's lock: a block that is in no list has been freed. True: it has a stamp. */
static bool freed_add(const struct host_pool *pool, struct host_shard *shard, struct host_block *block)
{
    if (block->requested > HOST_SHARD_SIZE) {
        block->lent = HOST_LENT_KEPT;
        block->stamp = host_stamp(pool);
        host_list_push(&shard->kept, block, false);
        shard->kept_count++;
        return true;
    }
    block->lent = HOST_LENT_FREED;
    host_list_push(&shard->freed, block, false);
    shard->freed_bytes += block->size;
    shard->freed_count++;
    return false;
}

/* *ret_stamped: so many bytes have a stamp now, and host_tokens_freed must follow. *ret_full: flush must follow. */
static bool put(struct host_pool *pool, uint64_t addr, size_t *ret_stamped, bool *ret_full)
{
    struct host_shard *shard;
    struct host_block *block;

    shard = own_shard(pool);
    lock_take(&shard->lock);
    block = out_find(shard, addr);
    if (block) {
        out_remove(shard, block);
        *ret_stamped = freed_add(pool, shard, block) ? block->size : 0;
        shard->live -= host_round(block->requested);
        shard->blocks -= block->size;
        shard->frees++;
        *ret_full = shard->freed_count >= HOST_SHARD_BLOCKS || shard->freed_bytes >= HOST_SHARD_BYTES ||
                    shard->kept_count > HOST_SHARD_KEPT;
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

/* A block that is in no list of the shard and not handed out goes into one of the pool. freed: it has no stamp yet. */
static void give_back(struct host_pool *pool, struct host_block *block, bool freed)
{
    block->state = HOST_NOWHERE;
    if (freed)
        block->stamp = host_stamp(pool);
    if (block->stamp > block->segment->stamp)
        block->segment->stamp = block->stamp;
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

/* Keep so many. */
static void kept_give_back(struct host_pool *pool, struct host_shard *shard, unsigned int keep)
{
    while (shard->kept_count > keep) {
        struct host_block *block = shard->kept.first;

        kept_remove(shard, block);
        give_back(pool, block, false);
    }
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

/* Without a lock: this thread's shard gives back its freed blocks, and the oldest large ones if it keeps too many. */
static int flush(struct host_pool *pool)
{
    struct host_shard *shard = own_shard(pool);
    size_t bytes;

    host_lock(pool);
    lock_take(&shard->lock);
    sync_one(pool, shard);
    bytes = freed_give_back(pool, shard);
    if (shard->kept_count > HOST_SHARD_KEPT)
        kept_give_back(pool, shard, HOST_SHARD_KEPT / 2);
    lock_give(&shard->lock);
    lock_give(&pool->lock);
    return host_tokens_freed(pool, bytes);
}

bool host_shard_free(struct host_pool *pool, uint64_t addr, int *ret_rc)
{
    size_t stamped;
    bool full;
    int rc;

    if (!put(pool, addr, &stamped, &full))
        return false;
    *ret_rc = stamped ? host_tokens_freed(pool, stamped) : 0;
    rc = full ? flush(pool) : 0;
    *ret_rc = *ret_rc ? *ret_rc : rc;
    return true;
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

    if (block->segment->passing)
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
    if (size <= HOST_SHARD_SIZE)
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
        give_back(pool, block, true);
        host_tokens_deferred(pool, block->size);
    } else if (block->lent == HOST_LENT_KEPT) {
        kept_remove(shard, block);
        give_back(pool, block, false);
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
        host_tokens_deferred(pool, freed_give_back(pool, shard));
        kept_give_back(pool, shard, 0);
        for (unsigned int k = 0; k < HOST_MAGAZINES; k++)
            ready_give_back(pool, &shard->magazines[k]);
        lock_give(&shard->lock);
    }
}

/* At one time: a block that one shard's threads free while another shard is added up must not be counted twice. */
bool host_shards_lock(struct host_pool *pool, bool patient)
{
    for (unsigned int i = 0; i < HOST_SHARDS; i++) {
        if (patient)
            lock_take(&pool->shards[i].lock);
        else if (!lock_take_within(&pool->shards[i].lock, PATIENCE_NS)) {
            while (i--)
                lock_give(&pool->shards[i].lock);
            return false;
        }
    }
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        sync_one(pool, &pool->shards[i]);
    return true;
}

void host_shards_unlock(struct host_pool *pool)
{
    for (unsigned int i = 0; i < HOST_SHARDS; i++)
        lock_give(&pool->shards[i].lock);
}

bool host_shards_sync(struct host_pool *pool, bool patient)
{
    if (!host_is_sharded(pool))
        return true;
    if (!host_shards_lock(pool, patient))
        return false;
    host_shards_unlock(pool);
    return true;
}
