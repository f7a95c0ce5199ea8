/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_trim.c - see vmm_trim.h.
 *
 * Locking: the cache's lock, dropped where a buffer is settled (vmm_settle.h).
 */
#include "vmm_trim.h"

#include <errno.h>
#include <stdlib.h>

#include "vmm_buffers.h"
#include "vmm_settle.h"

/* The longest wait, in nanoseconds, for a lock that the calling thread may hold itself, below a signal handler that
 * calls exit(). */
#define STATS_WAIT_NS 1000000000

int vmm_cache_new(const struct vmm_ops *ops, void *arg, size_t least, struct vmm_cache **ret_cache)
{
    struct vmm_cache *cache = calloc(1, sizeof(*cache));

    if (!cache)
        return -ENOMEM;
    cache->ops = ops;
    cache->arg = arg;
    cache->least = least;
    for (unsigned int i = 0; i < VMM_STATES; i++)
        TAILQ_INIT(&cache->states[i]);
    for (unsigned int i = 0; i < VMM_CLASSES; i++)
        TAILQ_INIT(&cache->classes[i]);
    TAILQ_INIT(&cache->busy);
    *ret_cache = cache;
    return 0;
}

void vmm_cache_destroy(struct vmm_cache *cache)
{
    while (cache->count)
        vmm_drop(cache, cache->ranges[0]);
    for (unsigned int i = 0; i < VMM_BUCKETS; i++)
        while (cache->handles[i])
            vmm_drop(cache, cache->handles[i]);
    free(cache->ranges);
    free(cache);
}

void vmm_cache_make_room(struct vmm_cache *cache, unsigned int device, size_t size)
{
    struct vmm_account *account = &cache->accounts[device % VMM_DEVICES];
    struct vmm_buffer *b;
    uint64_t wanted, peak;

    lock_take(&cache->lock);
    cache->stats.misses++;
    do {
        wanted = account->live + size;
        peak = wanted > account->peak ? wanted : account->peak;
        b = NULL;
        if (wanted + account->kept > peak + peak / 10 + cache->least)
            TAILQ_FOREACH (b, &cache->states[VMM_IDLE], in_state)
                if (b->key.id % VMM_DEVICES == device % VMM_DEVICES)
                    break;
        if (b)
            vmm_settle(cache, b);
    } while (b);
    lock_give(&cache->lock);
}

/* A buffer whose memory can go back; NULL: none. */
static struct vmm_buffer *trimmable(struct vmm_cache *cache, int device, uint64_t before)
{
    struct vmm_buffer *b;

    for (enum vmm_state state = VMM_IDLE; state < VMM_STATES; state++)
        TAILQ_FOREACH (b, &cache->states[state], in_state)
            if (!vmm_owns_memory(b) && b->since <= before && (device < 0 || b->key.id == (uint32_t)device))
                return b;
    return NULL;
}

uint64_t vmm_cache_trim(struct vmm_cache *cache, int device, uint64_t before)
{
    struct vmm_buffer *b;
    uint64_t bytes = 0;

    lock_take(&cache->lock);
    while ((b = trimmable(cache, device, before))) {
        bytes += b->size;
        vmm_settle(cache, b);
    }
    lock_give(&cache->lock);
    return bytes;
}

void vmm_cache_forget_all(struct vmm_cache *cache)
{
    struct vmm_buffer *b;

    vmm_cache_trim(cache, VMM_ALL_DEVICES, UINT64_MAX);
    lock_take(&cache->lock);
    while ((b = vmm_in_ready(cache, 0, SIZE_MAX)))
        vmm_forget(cache, b);
    lock_give(&cache->lock);
}

/* A buffer that was given up in part; NULL: none. */
static struct vmm_buffer *leaving(struct vmm_cache *cache, uint64_t before)
{
    struct vmm_buffer *b;

    TAILQ_FOREACH (b, &cache->states[VMM_LEAVING], in_state)
        if (b->since <= before)
            return b;
    return NULL;
}

void vmm_cache_settle_partial(struct vmm_cache *cache, uint64_t before)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    while ((b = leaving(cache, before)))
        vmm_settle(cache, b);
    lock_give(&cache->lock);
}

bool vmm_cache_wait(struct vmm_cache *cache)
{
    const struct vmm_buffer *first;
    bool any = false;
    uint64_t last;

    lock_take(&cache->lock);
    last = cache->turns;
    for (unsigned int i = 0; (first = TAILQ_FIRST(&cache->busy)) && first->turn <= last; i++) {
        any = true;
        lock_give(&cache->lock);
        lock_relax(i);
        lock_take(&cache->lock);
    }
    lock_give(&cache->lock);
    return any;
}

uint64_t vmm_cache_kept(struct vmm_cache *cache, int device)
{
    uint64_t bytes;

    lock_take(&cache->lock);
    bytes = device < 0 ? cache->stats.kept : cache->accounts[(unsigned int)device % VMM_DEVICES].kept;
    lock_give(&cache->lock);
    return bytes;
}

/* May run without the lock, after a wait in vain, as stats_copy of inspect.c. */
__attribute__((no_sanitize("thread"))) static void stats_copy(const struct vmm_cache *cache,
                                                              struct vmm_stats *ret_stats)
{
    *ret_stats = cache->stats;
}

void vmm_cache_stats_get(struct vmm_cache *cache, struct vmm_stats *ret_stats)
{
    const bool taken = lock_take_within(&cache->lock, STATS_WAIT_NS);

    stats_copy(cache, ret_stats);
    if (taken)
        lock_give(&cache->lock);
}
