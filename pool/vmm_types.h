/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_types.h - the types of the cache of virtual memory (vmm_cache.h). It has no functions, and no state.
 */
#ifndef CUPOOL_POOL_VMM_TYPES_H
#define CUPOOL_POOL_VMM_TYPES_H

#include <stddef.h>
#include <stdint.h>

/* The properties of physical memory, all that can tell two of equal size apart. No padding: compared as bytes. */
struct vmm_key {
    uint32_t type, handle_types, location, id, flags;
};

/* Access of a location to a whole buffer; flags as the driver's, 0: none. */
struct vmm_access {
    uint32_t location, id, flags;
};

/* Calls of the driver, which the cache makes for calls that it has deferred. Results: 0, or an error of the driver. */
struct vmm_ops {
    int (*unmap)(void *arg, uint64_t addr, size_t size);
    int (*release)(void *arg, uint64_t handle);
    int (*unreserve)(void *arg, uint64_t addr, size_t size);
    /* A location that has access by an earlier user of the buffer alone has it no more. */
    int (*revoke)(void *arg, uint64_t addr, size_t size, const struct vmm_access *access);
    /* The program has given up a mapped buffer of a device, perhaps in part, for the first time. */
    void (*begins)(void *arg, unsigned int device);
    /* So many bytes of a device have gone back, which the program had given up. */
    void (*returned)(void *arg, unsigned int device, uint64_t addr, size_t size);
};

struct vmm_stats {
#define VMM_COUNTER(name) uint64_t name;
#include "vmm_counters.def"
#undef VMM_COUNTER
};

/* The number of devices that are told apart; a device's number modulo this is its index. */
#define VMM_DEVICES     64u
#define VMM_ALL_DEVICES (-1)
/* Locations with access to a buffer; a buffer with more is not kept. */
#define VMM_ACCESS_MAX 16u

struct vmm_cache;

#endif
