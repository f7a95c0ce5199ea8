/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_trim.h - a cache of virtual memory (vmm_cache.h) as a whole: it begins, it gives memory back, and says what it
 * keeps.
 *
 * It does not decide when memory goes back, but for the bound; context/vmm_kept.h does.
 *
 * Threads: every function may be called from any thread, except vmm_cache_destroy; the caller holds no lock. No
 * function fails but vmm_cache_new.
 */
#ifndef CUPOOL_POOL_VMM_TRIM_H
#define CUPOOL_POOL_VMM_TRIM_H

#include <stdbool.h>

#include "vmm_types.h"

/* least: bytes by which the cache may exceed 1.10 times the most that the program had of a device. -ENOMEM. */
int vmm_cache_new(const struct vmm_ops *ops, void *arg, size_t least, struct vmm_cache **ret_cache);
/* Free the records; no call of the driver. For tests. */
void vmm_cache_destroy(struct vmm_cache *cache);

/* Before the driver makes new memory: give back what has been idle for longest, until the bound holds. */
void vmm_cache_make_room(struct vmm_cache *cache, unsigned int device, size_t size);
/* Give back what the program has given up until `before` (UINT64_MAX: all of it), of this device or of all. Returns the
 * bytes. */
uint64_t vmm_cache_trim(struct vmm_cache *cache, int device, uint64_t before);
/* Give all of it back, and keep nothing of what the program has now. */
void vmm_cache_forget_all(struct vmm_cache *cache);
/* Settle buffers that the program has given up in part, until `before`. */
void vmm_cache_settle_partial(struct vmm_cache *cache, uint64_t before);
/* Bytes that the program has given up and the driver has not got back, of one device or of all. */
uint64_t vmm_cache_kept(struct vmm_cache *cache, int device);
/* Wait for other threads that have begun to give memory back, not for those that begin meanwhile. False: there were
 * none. */
bool vmm_cache_wait(struct vmm_cache *cache);
/* Waits for a second at most: a signal handler may have interrupted the holder of the lock. The numbers may then be of
 * different moments. */
void vmm_cache_stats_get(struct vmm_cache *cache, struct vmm_stats *ret_stats);

#endif
