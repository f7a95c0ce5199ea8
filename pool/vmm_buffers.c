/* SPDX-License-Identifier: Apache-2.0 */
/* vmm_buffers.c - see vmm_buffers.h. */
#include "vmm_buffers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"

size_t vmm_range_after(const struct vmm_cache *cache, uint64_t addr)
{
    size_t low = 0, high = cache->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (cache->ranges[middle]->addr + cache->ranges[middle]->size <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct vmm_buffer *vmm_range_in(const struct vmm_cache *cache, uint64_t addr, size_t size)
{
    const size_t i = vmm_range_after(cache, addr);
    struct vmm_buffer *b = i < cache->count ? cache->ranges[i] : NULL;

    return b && (b->addr <= addr || b->addr - addr < size) ? b : NULL;
}

struct vmm_buffer *vmm_range_at(const struct vmm_cache *cache, uint64_t addr)
{
    const size_t i = vmm_range_after(cache, addr);

    return i < cache->count && cache->ranges[i]->addr == addr ? cache->ranges[i] : NULL;
}

int vmm_range_add(struct vmm_cache *cache, struct vmm_buffer *b)
{
    const size_t i = vmm_range_after(cache, b->addr);
    struct vmm_buffer **grown;

    if (cache->count == cache->room) {
        grown = realloc(cache->ranges, (2 * cache->room + 64) * sizeof(struct vmm_buffer *));
        if (!grown)
            return -ENOMEM;
        cache->ranges = grown;
        cache->room = 2 * cache->room + 64;
    }
    memmove(cache->ranges + i + 1, cache->ranges + i, (cache->count - i) * sizeof(struct vmm_buffer *));
    cache->ranges[i] = b;
    cache->count++;
    return 0;
}

void vmm_range_remove(struct vmm_cache *cache, struct vmm_buffer *b)
{
    const size_t i = vmm_range_after(cache, b->addr);

    cache->count--;
    memmove(cache->ranges + i, cache->ranges + i + 1, (cache->count - i) * sizeof(struct vmm_buffer *));
}

static struct vmm_buffer **bucket_of(struct vmm_cache *cache, uint64_t handle)
{
    return &cache->handles[hash_of(handle) >> 52];
}

struct vmm_buffer *vmm_handle_at(const struct vmm_cache *cache, uint64_t handle)
{
    struct vmm_buffer *b = cache->handles[hash_of(handle) >> 52];

    while (b && b->handle != handle)
        b = b->next_handle;
    return b;
}

void vmm_handle_add(struct vmm_cache *cache, struct vmm_buffer *b)
{
    struct vmm_buffer **bucket = bucket_of(cache, b->handle);

    b->next_handle = *bucket;
    *bucket = b;
}

void vmm_handle_remove(struct vmm_cache *cache, struct vmm_buffer *b)
{
    struct vmm_buffer **at = bucket_of(cache, b->handle);

    while (*at != b)
        at = &(*at)->next_handle;
    *at = b->next_handle;
}

struct vmm_list *vmm_class_of(struct vmm_cache *cache, size_t size)
{
    return &cache->classes[hash_of(size) >> 58];
}

void vmm_change_begin(struct vmm_cache *cache, struct vmm_buffer *b)
{
    struct vmm_account *account = &cache->accounts[b->key.id % VMM_DEVICES];

    if (b->state == VMM_IDLE)
        TAILQ_REMOVE(vmm_class_of(cache, b->size), b, in_class);
    if (b->state != VMM_PLAIN)
        TAILQ_REMOVE(&cache->states[b->state], b, in_state);
    b->state = VMM_PLAIN;
    if (!b->has_memory)
        return;
    *(vmm_owns_memory(b) ? &account->live : &account->kept) -= b->size;
    *(vmm_owns_memory(b) ? &cache->stats.live : &cache->stats.kept) -= b->size;
}

static enum vmm_state state_of(const struct vmm_buffer *b)
{
    if (!vmm_is_deferred(b) || b->busy)
        return VMM_PLAIN;
    if (!b->own_range && !b->own_refs)
        return VMM_IDLE;
    return b->fresh ? VMM_FORMING : VMM_LEAVING;
}

void vmm_change_end(struct vmm_cache *cache, struct vmm_buffer *b)
{
    struct vmm_account *account = &cache->accounts[b->key.id % VMM_DEVICES];

    b->state = state_of(b);
    if (b->state == VMM_IDLE) {
        b->fresh = true;
        TAILQ_INSERT_HEAD(vmm_class_of(cache, b->size), b, in_class);
    }
    if (b->state != VMM_PLAIN)
        TAILQ_INSERT_TAIL(&cache->states[b->state], b, in_state);
    if (!b->has_memory)
        return;
    *(vmm_owns_memory(b) ? &account->live : &account->kept) += b->size;
    *(vmm_owns_memory(b) ? &cache->stats.live : &cache->stats.kept) += b->size;
    if (account->live > account->peak)
        account->peak = account->live;
    if (cache->stats.kept > cache->stats.peak_kept)
        cache->stats.peak_kept = cache->stats.kept;
}
