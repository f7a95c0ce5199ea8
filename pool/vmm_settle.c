/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_settle.c - see vmm_settle.h.
 *
 * Locking: the cache's lock, which is dropped while the calls of a buffer are made. Its record is marked as busy
 * meanwhile, and what the program does not have of it is in no table, since the driver may hand out that address or
 * handle again.
 */
#include "vmm_settle.h"

#include <stdlib.h>

struct vmm_buffer *vmm_range_ready(struct vmm_cache *cache, uint64_t addr)
{
    struct vmm_buffer *b;

    for (unsigned int i = 0; (b = vmm_range_at(cache, addr)) && b->busy; i++) {
        lock_give(&cache->lock);
        lock_relax(i);
        lock_take(&cache->lock);
    }
    return b;
}

struct vmm_buffer *vmm_handle_ready(struct vmm_cache *cache, uint64_t handle)
{
    struct vmm_buffer *b;

    for (unsigned int i = 0; (b = vmm_handle_at(cache, handle)) && b->busy; i++) {
        lock_give(&cache->lock);
        lock_relax(i);
        lock_take(&cache->lock);
    }
    return b;
}

struct vmm_buffer *vmm_in_ready(struct vmm_cache *cache, uint64_t addr, size_t size)
{
    struct vmm_buffer *b;

    for (unsigned int i = 0; (b = vmm_range_in(cache, addr, size)) && b->busy; i++) {
        lock_give(&cache->lock);
        lock_relax(i);
        lock_take(&cache->lock);
    }
    return b;
}

void vmm_both_ready(struct vmm_cache *cache, uint64_t addr, uint64_t handle, struct vmm_buffer **ret_range,
                    struct vmm_buffer **ret_memory)
{
    do { /* again, if the one has gone while the other was waited for */
        *ret_memory = vmm_handle_ready(cache, handle);
        *ret_range = vmm_range_ready(cache, addr);
    } while (*ret_memory != vmm_handle_at(cache, handle) || (*ret_memory && (*ret_memory)->busy));
}

void vmm_drop(struct vmm_cache *cache, struct vmm_buffer *b)
{
    vmm_change_begin(cache, b);
    if (b->has_range)
        vmm_range_remove(cache, b);
    if (b->has_memory)
        vmm_handle_remove(cache, b);
    free(b);
}

/* A buffer is not mapped any more: what the program has of it becomes a range and memory of their own. The parts that
 * it has not are in no table. */
static void split(struct vmm_cache *cache, struct vmm_buffer *b)
{
    struct vmm_buffer *memory = NULL;

    b->mapped = b->fresh = false;
    b->has_range = b->own_range;
    b->has_memory = b->own_refs != 0;
    if (b->has_range && b->has_memory) {
        vmm_handle_remove(cache, b);
        memory = malloc(sizeof(*memory));
        b->has_memory = false;
    }
    if (memory) {
        *memory = *b;
        memory->has_memory = true;
        memory->has_range = memory->own_range = false;
        vmm_handle_add(cache, memory);
        vmm_change_end(cache, memory);
    }
    if (b->has_range || b->has_memory)
        vmm_change_end(cache, b);
    else
        free(b);
}

/* True if the program has the mapping, and the driver lets more locations reach it than the program does. */
static bool reaches_too_far(const struct vmm_buffer *b)
{
    return b->own_map && b->given != (UINT32_C(1) << b->access_count) - 1;
}

/* Without the lock: the calls that the program has made and the driver has not seen, in an order that is always right.
 * There are some only for a buffer that is mapped, or was until then; so it has a range. */
static void make_calls(const struct vmm_cache *cache, const struct vmm_buffer *b, unsigned int drops)
{
    bool kept = false;

    if (vmm_is_deferred(b))
        kept = cache->ops->unmap(cache->arg, b->addr, b->size) != 0;
    for (unsigned int i = 0; reaches_too_far(b) && i < b->access_count; i++)
        if (!(b->given >> i & 1))
            cache->ops->revoke(cache->arg, b->addr, b->size, &b->access[i]);
    for (unsigned int i = 0; i < drops; i++)
        kept |= cache->ops->release(cache->arg, b->handle) != 0;
    if (!b->own_range && !kept)
        cache->ops->unreserve(cache->arg, b->addr, b->size);
    if (b->has_memory && !vmm_owns_memory(b) && !kept)
        cache->ops->returned(cache->arg, b->key.id, b->addr, b->size);
}

void vmm_settle(struct vmm_cache *cache, struct vmm_buffer *b)
{
    const unsigned int drops = b->refs - b->own_refs;
    const bool gives = b->has_memory && !vmm_owns_memory(b);

    if (!vmm_is_deferred(b) && !drops && !reaches_too_far(b))
        return;
    if (vmm_is_deferred(b) && (b->own_range || b->own_refs))
        cache->stats.settled++;
    vmm_change_begin(cache, b);
    b->busy = true;
    if (!b->own_range)
        vmm_range_remove(cache, b);
    if (b->has_memory && !b->own_refs)
        vmm_handle_remove(cache, b);
    b->turn = ++cache->turns;
    TAILQ_INSERT_TAIL(&cache->busy, b, in_state);
    lock_give(&cache->lock);
    make_calls(cache, b, drops);
    lock_take(&cache->lock);
    TAILQ_REMOVE(&cache->busy, b, in_state);
    if (gives)
        cache->stats.returned += b->size;
    b->busy = false;
    b->refs = b->own_refs;
    if (!b->own_map) {
        split(cache, b);
        return;
    }
    /* Mapped, and perhaps without a handle: its memory is not handed out again. */
    vmm_range_remove(cache, b);
    if (b->own_refs)
        vmm_handle_remove(cache, b);
    free(b);
}

void vmm_forget(struct vmm_cache *cache, struct vmm_buffer *b)
{
    const uint64_t addr = b->addr, handle = b->handle;
    const bool range = b->has_range && b->own_range, memory = b->has_memory && b->own_refs;

    if (!vmm_is_deferred(b) && b->refs == b->own_refs && !reaches_too_far(b)) {
        vmm_drop(cache, b);
        return;
    }
    vmm_settle(cache, b);
    b = range ? vmm_range_ready(cache, addr) : NULL;
    if (b)
        vmm_drop(cache, b);
    b = memory ? vmm_handle_ready(cache, handle) : NULL;
    if (b)
        vmm_drop(cache, b);
}
