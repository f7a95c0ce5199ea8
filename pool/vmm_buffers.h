/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_buffers.h - the records of vmm_cache.c: buffers by address and by handle, in lists by state, with the accounts of
 * the devices.
 *
 * It makes no call of the driver and decides nothing. Private to vmm_cache.c, vmm_settle.c and vmm_buffers.c.
 *
 * Threads: the caller holds the cache's lock in every function. Errors: -ENOMEM, as said.
 */
#ifndef CUPOOL_POOL_VMM_BUFFERS_H
#define CUPOOL_POOL_VMM_BUFFERS_H

#include <stdbool.h>
#include <sys/queue.h>

#include "lock.h"
#include "vmm_types.h"

#define VMM_BUCKETS 4096u /* of handles; a power of two */
#define VMM_CLASSES 64u   /* of idle sizes; a power of two */

/* A list holds the buffers that the driver has mapped and the program has not. */
enum vmm_state {
    VMM_PLAIN,   /* in no list: nothing is deferred but perhaps a release */
    VMM_IDLE,    /* the program has nothing of it */
    VMM_FORMING, /* taken over in part */
    VMM_LEAVING, /* given up in part */
    VMM_STATES
};

/* A range of addresses, physical memory, or both, mapped. */
struct vmm_buffer {
    uint64_t addr;
    size_t align;
    uint64_t handle;
    size_t size;
    struct vmm_key key;
    /* As the driver has it. */
    bool has_range, has_memory, mapped;
    unsigned int refs; /* to the handle; without memory it is as own_refs, and neither means anything */
    /* As the program has it. */
    bool own_range, own_map;
    unsigned int own_refs;
    struct vmm_access access[VMM_ACCESS_MAX]; /* the driver's; read only where own_map, as the two members below are */
    unsigned int access_count;
    uint32_t given; /* a bit for each that the program has given since it has mapped the buffer */
    bool busy;      /* a thread makes deferred calls for it; nobody else uses the record */
    uint64_t turn;  /* the number of that, among all */
    bool fresh;     /* not mapped by the program since it was idle */
    enum vmm_state state;
    const void *thread; /* that has changed its state */
    uint64_t since;
    TAILQ_ENTRY(vmm_buffer) in_state; /* or among those that are busy */
    TAILQ_ENTRY(vmm_buffer) in_class; /* VMM_IDLE */
    struct vmm_buffer *next_handle;
};
TAILQ_HEAD(vmm_list, vmm_buffer);

struct vmm_account {
    uint64_t live, kept, peak;
    bool begun;
};

struct vmm_cache {
    struct lock lock; /* guards everything below */
    const struct vmm_ops *ops;
    void *arg;
    size_t least;
    struct vmm_buffer **ranges; /* by address */
    size_t count, room;
    struct vmm_buffer *handles[VMM_BUCKETS];
    struct vmm_list states[VMM_STATES];   /* the longest there first */
    struct vmm_list classes[VMM_CLASSES]; /* the latest first */
    struct vmm_account accounts[VMM_DEVICES];
    struct vmm_stats stats;
    struct vmm_list busy; /* for which threads make deferred calls; by turn */
    uint64_t turns;
};

/* True if the program has the buffer's memory, by handle or mapping. */
static inline bool vmm_owns_memory(const struct vmm_buffer *b)
{
    return b->own_refs || b->own_map;
}

/* True if calls are deferred: the driver has a mapping that the program has not. */
static inline bool vmm_is_deferred(const struct vmm_buffer *b)
{
    return b->mapped && !b->own_map;
}

/* The index of the first range that ends behind addr. */
size_t vmm_range_after(const struct vmm_cache *cache, uint64_t addr);
/* The range, or memory, of exactly this address or handle; NULL: none. */
struct vmm_buffer *vmm_range_at(const struct vmm_cache *cache, uint64_t addr);
struct vmm_buffer *vmm_handle_at(const struct vmm_cache *cache, uint64_t handle);
/* The first range that has bytes of these; NULL: none. */
struct vmm_buffer *vmm_range_in(const struct vmm_cache *cache, uint64_t addr, size_t size);

/* Enter a range or memory; -ENOMEM. */
int vmm_range_add(struct vmm_cache *cache, struct vmm_buffer *b);
void vmm_range_remove(struct vmm_cache *cache, struct vmm_buffer *b);
void vmm_handle_add(struct vmm_cache *cache, struct vmm_buffer *b);
void vmm_handle_remove(struct vmm_cache *cache, struct vmm_buffer *b);

/* The idle buffers of this size, among some of others. */
struct vmm_list *vmm_class_of(struct vmm_cache *cache, size_t size);

/* Around a change of a buffer: take it out of its list and its device's account, and put it where it belongs then. */
void vmm_change_begin(struct vmm_cache *cache, struct vmm_buffer *b);
void vmm_change_end(struct vmm_cache *cache, struct vmm_buffer *b);

#endif
