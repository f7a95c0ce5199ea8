/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_settle.h - makes the deferred calls of buffers of virtual memory, and finds buffers for which no other thread
 * does so at this moment.
 *
 * It does not decide when; vmm_cache.c does. Private to these two.
 *
 * Threads: the caller holds the cache's lock in every function, which is dropped meanwhile, and by vmm_settle over
 * calls of struct vmm_ops. A record found before is valid afterwards only if the function says so. No errors.
 */
#ifndef CUPOOL_POOL_VMM_SETTLE_H
#define CUPOOL_POOL_VMM_SETTLE_H

#include "vmm_buffers.h"

/* As vmm_range_at, vmm_handle_at and vmm_range_in; they wait until no other thread has claimed the buffer. */
struct vmm_buffer *vmm_range_ready(struct vmm_cache *cache, uint64_t addr);
struct vmm_buffer *vmm_handle_ready(struct vmm_cache *cache, uint64_t handle);
struct vmm_buffer *vmm_in_ready(struct vmm_cache *cache, uint64_t addr, size_t size);
/* As vmm_range_ready and vmm_handle_ready, both at one moment. */
void vmm_both_ready(struct vmm_cache *cache, uint64_t addr, uint64_t handle, struct vmm_buffer **ret_range,
                    struct vmm_buffer **ret_memory);

/* Make the driver's state of a buffer the program's. The record is not valid afterwards, unless nothing was deferred.
 */
void vmm_settle(struct vmm_cache *cache, struct vmm_buffer *b);
/* Settle a buffer and know it no more. */
void vmm_forget(struct vmm_cache *cache, struct vmm_buffer *b);
/* Know a buffer no more, without a call of the driver. */
void vmm_drop(struct vmm_cache *cache, struct vmm_buffer *b);

#endif
