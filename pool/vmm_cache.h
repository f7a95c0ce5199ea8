/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_cache.h - keeps buffers of virtual memory that a program has given up, for its next request of that kind: a range
 * of addresses with physical memory mapped at all of it (CUPOOL_VMM=1).
 *
 * A program takes such a buffer by four calls (reserve, create, map, set access) and gives it up by three (unmap,
 * release, free the addresses). The cache has two states of a buffer: the driver's, and the program's view of it. A
 * call that gives up a part changes the view alone, and is deferred. A buffer of which the program has nothing any more
 * is *idle*; a later request takes it over part by part, without a call of the driver. Whatever does not fit this
 * pattern *settles* the buffer first: the deferred calls are made, so that the driver's state is the program's view.
 *
 * It knows no CUDA, reads no setting and makes no call of the driver but those of struct vmm_ops. It does not wait for
 * work: natively unmapping does not wait either, so the program has done so. It decides nothing about whose calls are
 * served; context/vmm_kept.h does.
 *
 * Ownership: the cache owns its records; addresses and handles are the driver's own values.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. One lock for each cache, a leaf, is
 * never held over a call of struct vmm_ops. A thread that settles a buffer claims it, and others that need this buffer
 * wait for the end of those calls.
 *
 * Errors: no function fails. Without host memory for a record, a buffer is not known, and its calls are the driver's.
 */
#ifndef CUPOOL_POOL_VMM_CACHE_H
#define CUPOOL_POOL_VMM_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vmm_types.h"

/*
 * The program's calls. Those that return bool: true: served, without the driver; false: make the driver's call and, if
 * that succeeded, call the function for its success below. thread: tells threads apart. may_serve: false: defer nothing
 * and hand out nothing (a capture), but keep the books. now: nanoseconds of a clock.
 */
bool vmm_cache_reserve(struct vmm_cache *cache, const void *thread, size_t size, size_t align, uint64_t *ret_addr);
bool vmm_cache_create(struct vmm_cache *cache, const void *thread, size_t size, const struct vmm_key *key,
                      uint64_t *ret_handle);
bool vmm_cache_map(struct vmm_cache *cache, const void *thread, uint64_t addr, size_t size, uint64_t handle,
                   bool whole);
bool vmm_cache_set_access(struct vmm_cache *cache, uint64_t addr, size_t size, const struct vmm_access *access,
                          size_t count, bool may_serve);
bool vmm_cache_unmap(struct vmm_cache *cache, const void *thread, uint64_t addr, size_t size, bool may_serve,
                     uint64_t now);
bool vmm_cache_release(struct vmm_cache *cache, const void *thread, uint64_t handle, bool may_serve, uint64_t now);
bool vmm_cache_unreserve(struct vmm_cache *cache, const void *thread, uint64_t addr, size_t size, bool may_serve,
                         uint64_t now);

/* The driver's calls have succeeded. whole: from the beginning of the physical memory on, without flags; false for
 * vmm_cache_map also if nothing may be served. */
void vmm_cache_reserved(struct vmm_cache *cache, uint64_t addr, size_t size, size_t align);
void vmm_cache_created(struct vmm_cache *cache, uint64_t handle, size_t size, const struct vmm_key *key);
void vmm_cache_mapped(struct vmm_cache *cache, uint64_t addr, size_t size, uint64_t handle, bool whole);
void vmm_cache_unmapped(struct vmm_cache *cache, uint64_t addr, size_t size);
/* A reference to the memory at addr. */
void vmm_cache_retained(struct vmm_cache *cache, uint64_t addr, uint64_t handle);
/* ok: it has succeeded; otherwise the access is not known. */
void vmm_cache_access_set(struct vmm_cache *cache, uint64_t addr, size_t size, const struct vmm_access *access,
                          size_t count, bool ok);

/* Before a call that may tell the difference: settle buffers in this range of which the program has no mapping. */
void vmm_cache_settle_range(struct vmm_cache *cache, uint64_t addr, size_t size);
/* Before a call that takes a handle: settle its buffer if the program has released it. */
void vmm_cache_settle_handle(struct vmm_cache *cache, uint64_t handle);
/* Before a call by which others get hold of the memory (export, multicast, arrays): settle, and keep it no more. */
void vmm_cache_forget_range(struct vmm_cache *cache, uint64_t addr, size_t size);
void vmm_cache_forget_handle(struct vmm_cache *cache, uint64_t handle);
/* True if the program has not given this location access since it has mapped the buffer around addr, although the
 * driver has. */
bool vmm_cache_hides_access(struct vmm_cache *cache, uint64_t addr, uint32_t location, uint32_t id);

#endif
