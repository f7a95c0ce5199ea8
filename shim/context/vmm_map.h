/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_map.h - physical memory with addresses of its own, by the driver's virtual memory calls: a mapping is one
 * cuMemCreate, or memory of another process, mapped as a whole, and which devices reach it.
 *
 * It does not know whether work uses a mapping; vmm_memory.h does. It is no context's: memory that is mapped outlives
 * the context for which it was made.
 *
 * Ownership: a mapping belongs to this module from vmm_map to vmm_unmap; callers have pointers.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. One lock, private to vmm_map.c and a
 * leaf, guards the table. No call needs a current context. Errors: the driver's.
 */
#ifndef CUPOOL_SHIM_CONTEXT_VMM_MAP_H
#define CUPOOL_SHIM_CONTEXT_VMM_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ipc_socket.h"
#include "real/hooks.h"
#include "real/real.h"

struct context;

struct vmm_mapping {
    uint64_t addr;                /* for the pool, behind the front */
    size_t size, front;           /* front: bytes before addr that are mapped, too */
    const struct context *owner;  /* for which it was made; NULL: another process's memory */
    int device;                   /* that has the memory */
    unsigned int captures;        /* the time for capture_history.h when it was made */
    bool away;                    /* its addresses have no memory now (vmm_send_away) */
    uint64_t number;              /* of this memory: no other ever has it */
    struct ipc_descriptor kept;   /* of the memory, for processes that import it */
    CUevent event;                /* for vmm_memory.c: what has to be over before it goes */
    struct vmm_mapping *next;     /* in the table */
    struct vmm_mapping *next_put; /* in vmm_memory.c's list */
};

/* Make a mapping of front + size bytes of the device's memory, which the device and all those that reach its memory may
 * access. */
CUresult vmm_map(const struct context *owner, const struct real_driver *driver, int device, size_t front, size_t size,
                 struct vmm_mapping **ret_mapping);
/* Map memory of another process, of a device that is visible here, as vmm_map does. The handle stays the caller's. */
CUresult vmm_map_handle(const struct real_driver *driver, int device, CUmemGenericAllocationHandle handle, size_t size,
                        struct vmm_mapping **ret_mapping);
/* True if there is any mapping. */
bool vmm_any(void);
/* The mapping whose addr this is; NULL: none. The caller knows that nobody unmaps it, or only whether there is one. */
struct vmm_mapping *vmm_find(uint64_t addr);
/* The bytes in front of addr that belong to its mapping; 0: none, or no mapping starts at addr. */
size_t vmm_front(uint64_t addr);
/* Give a mapping that no work uses back to the driver. After an error its memory is lost; the mapping is gone. */
CUresult vmm_unmap(const struct real_driver *driver, struct vmm_mapping *mapping);
/* Take the memory of a mapping that no work uses away, and keep its addresses. An error: it is still there. */
CUresult vmm_send_away(const struct real_driver *driver, struct vmm_mapping *mapping);
/* Put new memory there, which all devices reach that did. An error: it is still away. Both for one thread at a time. */
CUresult vmm_bring_back(const struct real_driver *driver, struct vmm_mapping *mapping);
/* A mapping of this owner at *i, an index that begins with 0, or behind; it is found again until vmm_unmap. NULL: no
 * more. */
struct vmm_mapping *vmm_next(const struct context *owner, unsigned int *i);

/* A descriptor of the memory of the mapping at addr that the caller closes, if one is kept; else -1, and *ret_number
 * names the memory. To make one takes the driver some 600 us, and as long to close the last. */
int vmm_descriptor_get(uint64_t addr, uint64_t *ret_number);
/* Keep a descriptor of this memory, a copy of fd, until the memory goes: unless it has gone, or enough are kept. */
void vmm_descriptor_keep(uint64_t addr, uint64_t number, int fd);
/* In a forked child, which would hold the parent's memory. */
void vmm_descriptors_forget(void);

/* From now on device `from` reaches the memory that device has, which is mapped already or will be. */
void vmm_reach(const struct real_driver *driver, int device, int from);
/* So, also if it had no way before: the driver has just given it access by peers, of which it allows only so many. */
void vmm_reach_anew(const struct real_driver *driver, int device, int from);
/* After vmm_reach: true if new mappings are made for `from` as well; false if it has no way there. */
bool vmm_reaches(int device, int from);

#endif
