/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_cache.c - see vmm_cache.h: the program's calls, and what they do to a buffer.
 *
 * A program that gives up a part of a buffer and goes on to something else keeps the rest on purpose (it wants the
 * addresses again, and gives the memory to others): its thread's next call settles the buffer.
 *
 * Locking: the cache's lock, dropped where a buffer is settled (vmm_settle.h).
 */
#include "vmm_cache.h"

#include <stdlib.h>
#include <string.h>

#include "vmm_buffers.h"
#include "vmm_settle.h"

/* A buffer that this thread has given up in part, but for one; NULL: none. */
static struct vmm_buffer *left_behind(struct vmm_cache *cache, const void *thread, uint64_t addr, uint64_t handle)
{
    struct vmm_buffer *b;

    TAILQ_FOREACH (b, &cache->states[VMM_LEAVING], in_state)
        if (b->thread == thread && b->addr != addr && b->handle != handle)
            return b;
    return NULL;
}

/* The thread goes on to this buffer: settle what it has left behind. */
static void goes_on(struct vmm_cache *cache, const void *thread, uint64_t addr, uint64_t handle)
{
    struct vmm_buffer *b;

    while ((b = left_behind(cache, thread, addr, handle)))
        vmm_settle(cache, b);
}

/* --- taking a buffer --- */

static bool key_equal(const struct vmm_key *a, const struct vmm_key *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* A buffer that this thread has begun to take: the one begun first that lacks its range, or its memory. key: NULL: the
 * range. */
static struct vmm_buffer *begun(struct vmm_cache *cache, const void *thread, size_t size, size_t align,
                                const struct vmm_key *key)
{
    struct vmm_buffer *b;

    TAILQ_FOREACH (b, &cache->states[VMM_FORMING], in_state)
        if (b->thread == thread && b->size == size &&
            (key ? !b->own_refs && key_equal(&b->key, key) : !b->own_range && b->align == align))
            break;
    return b;
}

static struct vmm_buffer *idle(struct vmm_cache *cache, size_t size, size_t align, const struct vmm_key *key)
{
    struct vmm_buffer *b;

    TAILQ_FOREACH (b, vmm_class_of(cache, size), in_class)
        if (b->size == size && (key ? key_equal(&b->key, key) : b->align == align))
            break;
    return b;
}

bool vmm_cache_reserve(struct vmm_cache *cache, const void *thread, size_t size, size_t align, uint64_t *ret_addr)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    goes_on(cache, thread, 0, 0);
    b = begun(cache, thread, size, align, NULL);
    if (!b)
        b = idle(cache, size, align, NULL);
    if (b) {
        vmm_change_begin(cache, b);
        b->own_range = true;
        b->thread = thread;
        *ret_addr = b->addr;
        vmm_change_end(cache, b);
    }
    lock_give(&cache->lock);
    return b;
}

bool vmm_cache_create(struct vmm_cache *cache, const void *thread, size_t size, const struct vmm_key *key,
                      uint64_t *ret_handle)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    goes_on(cache, thread, 0, 0);
    b = begun(cache, thread, size, 0, key);
    if (!b)
        b = idle(cache, size, 0, key);
    if (b) {
        vmm_change_begin(cache, b);
        b->own_refs = 1;
        b->thread = thread;
        *ret_handle = b->handle;
        cache->stats.hits++;
        vmm_change_end(cache, b);
    }
    lock_give(&cache->lock);
    return b;
}

static void settle_in(struct vmm_cache *cache, uint64_t addr, size_t size)
{
    struct vmm_buffer *b;

    while (size && (b = vmm_in_ready(cache, addr, size))) {
        const uint64_t end = b->addr + b->size;

        if (vmm_is_deferred(b))
            vmm_settle(cache, b);
        size = end - addr < size ? size - (size_t)(end - addr) : 0;
        addr = end;
    }
}

bool vmm_cache_map(struct vmm_cache *cache, const void *thread, uint64_t addr, size_t size, uint64_t handle, bool whole)
{
    struct vmm_buffer *b;
    bool served;

    lock_take(&cache->lock);
    goes_on(cache, thread, addr, handle);
    b = vmm_range_ready(cache, addr);
    served = b && whole && vmm_is_deferred(b) && b->own_range && b->own_refs && b->handle == handle && b->size == size;
    if (served) {
        vmm_change_begin(cache, b);
        b->own_map = true;
        b->fresh = false;
        b->given = 0;
        vmm_change_end(cache, b);
    } else {
        settle_in(cache, addr, size);
        b = vmm_handle_ready(cache, handle);
        if (b && (vmm_is_deferred(b) || !b->own_refs))
            vmm_settle(cache, b);
    }
    lock_give(&cache->lock);
    return served;
}

/* --- access --- */

static struct vmm_access *access_of(struct vmm_buffer *b, uint32_t location, uint32_t id)
{
    for (unsigned int i = 0; i < b->access_count; i++)
        if (b->access[i].location == location && b->access[i].id == id)
            return &b->access[i];
    return NULL;
}

bool vmm_cache_set_access(struct vmm_cache *cache, uint64_t addr, size_t size, const struct vmm_access *access,
                          size_t count, bool may_serve)
{
    struct vmm_buffer *b;
    uint32_t given = 0;
    bool served;

    lock_take(&cache->lock);
    b = vmm_range_ready(cache, addr);
    served = b && b->own_map && b->size == size && may_serve && count;
    for (size_t i = 0; served && i < count; i++) {
        const struct vmm_access *has = access_of(b, access[i].location, access[i].id);

        served = has && has->flags == access[i].flags;
        given |= has ? UINT32_C(1) << (has - b->access) : 0;
    }
    if (served)
        b->given |= given;
    else
        settle_in(cache, addr, size);
    lock_give(&cache->lock);
    return served;
}

/* False: there is no room for it. */
static bool access_put(struct vmm_buffer *b, const struct vmm_access *access)
{
    struct vmm_access *has = access_of(b, access->location, access->id);

    if (!has && b->access_count == VMM_ACCESS_MAX)
        return false;
    if (!has)
        has = &b->access[b->access_count++];
    *has = *access;
    b->given |= UINT32_C(1) << (has - b->access);
    return true;
}

void vmm_cache_access_set(struct vmm_cache *cache, uint64_t addr, size_t size, const struct vmm_access *access,
                          size_t count, bool ok)
{
    struct vmm_buffer *b;
    bool known;

    lock_take(&cache->lock);
    b = vmm_range_ready(cache, addr);
    known = b && b->own_map && b->size == size && ok;
    for (size_t i = 0; known && i < count; i++)
        known = access_put(b, &access[i]);
    while (!known && size && (b = vmm_in_ready(cache, addr, size)) && b->mapped)
        vmm_forget(cache, b);
    lock_give(&cache->lock);
}

bool vmm_cache_hides_access(struct vmm_cache *cache, uint64_t addr, uint32_t location, uint32_t id)
{
    struct vmm_access *has;
    struct vmm_buffer *b;
    bool hides;

    lock_take(&cache->lock);
    b = vmm_in_ready(cache, addr, 1);
    has = b && b->own_map ? access_of(b, location, id) : NULL;
    hides = has && !(b->given & UINT32_C(1) << (has - b->access));
    lock_give(&cache->lock);
    return hides;
}

/* --- giving a buffer up --- */

static void given_up(struct vmm_buffer *b, const void *thread, uint64_t now)
{
    b->thread = thread;
    b->since = now;
}

/* Drop the lock; the first deferred call for a buffer of a device is told of: from then on somebody has to see to it
 * that memory goes back in time. b: NULL, or not valid: nothing was deferred. */
static void end(struct vmm_cache *cache, const struct vmm_buffer *b)
{
    struct vmm_account *account = b && b->state != VMM_PLAIN ? &cache->accounts[b->key.id % VMM_DEVICES] : NULL;
    const unsigned int device = account ? b->key.id : 0;
    const bool first = account && !account->begun;

    if (first)
        account->begun = true;
    lock_give(&cache->lock);
    if (first)
        cache->ops->begins(cache->arg, device);
}

bool vmm_cache_unmap(struct vmm_cache *cache, const void *thread, uint64_t addr, size_t size, bool may_serve,
                     uint64_t now)
{
    struct vmm_buffer *b;
    bool exact, served;

    lock_take(&cache->lock);
    goes_on(cache, thread, addr, 0);
    b = vmm_range_ready(cache, addr);
    exact = b && b->own_map && b->size == size;
    served = exact && may_serve;
    if (served) {
        vmm_change_begin(cache, b);
        b->own_map = false;
        given_up(b, thread, now);
        vmm_change_end(cache, b);
    } else if (!exact) {
        /* Several mappings at once, or the driver refuses. */
        settle_in(cache, addr, size);
        while (size && (b = vmm_in_ready(cache, addr, size)) && b->mapped)
            vmm_forget(cache, b);
    }
    end(cache, served ? b : NULL);
    return served;
}

void vmm_cache_unmapped(struct vmm_cache *cache, uint64_t addr, size_t size)
{
    struct vmm_buffer *b, *memory;

    lock_take(&cache->lock);
    b = vmm_range_ready(cache, addr);
    if (b && b->own_map && b->size == size && b->refs > b->own_refs) {
        b->access_count = 0;  /* it went with the mapping */
        vmm_forget(cache, b); /* the handle's release was deferred, and with it goes the memory */
    } else if (b && b->own_map && b->size == size) {
        vmm_change_begin(cache, b);
        vmm_handle_remove(cache, b);
        b->own_map = b->mapped = b->has_memory = false;
        memory = malloc(sizeof(*memory));
        if (memory) {
            *memory = *b;
            memory->has_memory = true;
            memory->has_range = memory->own_range = false;
            vmm_handle_add(cache, memory);
            vmm_change_end(cache, memory);
        }
        vmm_change_end(cache, b);
    }
    lock_give(&cache->lock);
}

bool vmm_cache_release(struct vmm_cache *cache, const void *thread, uint64_t handle, bool may_serve, uint64_t now)
{
    struct vmm_buffer *b;
    bool served = false;

    lock_take(&cache->lock);
    goes_on(cache, thread, 0, handle);
    b = vmm_handle_ready(cache, handle);
    if (b && b->own_refs > 1) {
        b->refs--; /* by the driver */
        b->own_refs--;
    } else if (b && b->own_refs && b->mapped && may_serve) {
        vmm_change_begin(cache, b);
        b->own_refs = 0;
        given_up(b, thread, now);
        vmm_change_end(cache, b);
        served = true;
    } else if (b) {
        vmm_forget(cache, b);
    }
    end(cache, served ? b : NULL);
    return served;
}

bool vmm_cache_unreserve(struct vmm_cache *cache, const void *thread, uint64_t addr, size_t size, bool may_serve,
                         uint64_t now)
{
    struct vmm_buffer *b;
    bool served;

    lock_take(&cache->lock);
    goes_on(cache, thread, addr, 0);
    b = vmm_range_ready(cache, addr);
    served = b && vmm_is_deferred(b) && b->own_range && b->size == size && may_serve;
    if (served) {
        vmm_change_begin(cache, b);
        b->own_range = false;
        given_up(b, thread, now);
        vmm_change_end(cache, b);
    } else if (b && !b->own_map && (b->size == size || !b->own_range)) {
        vmm_forget(cache, b);
    }
    end(cache, served ? b : NULL);
    return served;
}

/* --- the driver's answers --- */

static struct vmm_buffer *buffer_new(size_t size)
{
    struct vmm_buffer *b = calloc(1, sizeof(*b));

    if (b)
        b->size = size;
    return b;
}

void vmm_cache_reserved(struct vmm_cache *cache, uint64_t addr, size_t size, size_t align)
{
    struct vmm_buffer *b, *old;

    lock_take(&cache->lock);
    while ((old = vmm_in_ready(cache, addr, size))) /* it went unseen */
        vmm_drop(cache, old);
    b = buffer_new(size);
    if (b) {
        b->addr = addr;
        b->align = align;
        b->has_range = b->own_range = true;
        if (vmm_range_add(cache, b))
            free(b);
    }
    lock_give(&cache->lock);
}

void vmm_cache_created(struct vmm_cache *cache, uint64_t handle, size_t size, const struct vmm_key *key)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    while ((b = vmm_handle_ready(cache, handle))) /* it went unseen */
        vmm_drop(cache, b);
    b = buffer_new(size);
    if (b) {
        b->handle = handle;
        b->key = *key;
        b->has_memory = true;
        b->refs = b->own_refs = 1;
        vmm_handle_add(cache, b);
        vmm_change_end(cache, b);
    }
    lock_give(&cache->lock);
}

void vmm_cache_mapped(struct vmm_cache *cache, uint64_t addr, size_t size, uint64_t handle, bool whole)
{
    struct vmm_buffer *range, *memory;

    lock_take(&cache->lock);
    vmm_both_ready(cache, addr, handle, &range, &memory);
    if (range && memory && whole && !range->mapped && !memory->mapped && range->size == size && memory->size == size) {
        vmm_change_begin(cache, memory);
        vmm_handle_remove(cache, memory);
        range->handle = handle;
        range->key = memory->key;
        range->refs = memory->refs;
        range->own_refs = memory->own_refs;
        range->has_memory = range->mapped = range->own_map = true;
        range->access_count = 0;
        range->given = 0;
        free(memory);
        vmm_handle_add(cache, range);
        vmm_change_end(cache, range);
    } else {
        if (memory)
            vmm_forget(cache, memory);
        while (size && (range = vmm_in_ready(cache, addr, size)))
            vmm_forget(cache, range);
    }
    lock_give(&cache->lock);
}

void vmm_cache_retained(struct vmm_cache *cache, uint64_t addr, uint64_t handle)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    b = vmm_in_ready(cache, addr, 1);
    if (b && b->own_map && b->handle == handle) {
        vmm_change_begin(cache, b);
        b->refs++;
        b->own_refs++;
        vmm_change_end(cache, b);
    } else if (b && b->mapped) {
        vmm_forget(cache, b);
    }
    lock_give(&cache->lock);
}

/* --- calls that may tell the difference --- */

void vmm_cache_settle_range(struct vmm_cache *cache, uint64_t addr, size_t size)
{
    lock_take(&cache->lock);
    settle_in(cache, addr, size);
    lock_give(&cache->lock);
}

void vmm_cache_settle_handle(struct vmm_cache *cache, uint64_t handle)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    b = vmm_handle_ready(cache, handle);
    if (b && !b->own_refs)
        vmm_settle(cache, b);
    lock_give(&cache->lock);
}

void vmm_cache_forget_range(struct vmm_cache *cache, uint64_t addr, size_t size)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    while (size && (b = vmm_in_ready(cache, addr, size)))
        vmm_forget(cache, b);
    lock_give(&cache->lock);
}

void vmm_cache_forget_handle(struct vmm_cache *cache, uint64_t handle)
{
    struct vmm_buffer *b;

    lock_take(&cache->lock);
    b = vmm_handle_ready(cache, handle);
    if (b)
        vmm_forget(cache, b);
    lock_give(&cache->lock);
}
