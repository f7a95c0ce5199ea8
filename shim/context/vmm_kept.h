/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_kept.h - CUPOOL_VMM=1: the process's cache of virtual memory that the program takes and gives up by itself, its
 * calls of the driver, and when memory goes back.
 *
 * It is not the pool's own virtual memory (CUPOOL_BACKEND=vmm; vmm_memory.h). pool/vmm_cache.h has the cache;
 * exports/vmm.c calls it for the program's calls.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_VMM_KEPT_H
#define CUPOOL_SHIM_CONTEXT_VMM_KEPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "real/hooks.h"
#include "vmm_cache.h"
#include "vmm_trim.h"

/* The cache; NULL: CUPOOL_VMM is off, has no effect with other settings, or this thread is in a call of the library's
 * own. Made at the first call. */
struct vmm_cache *vmm_kept_cache(void);
/* The cache if there is one already, for calls that only concern memory that it knows; NULL also inside a host
 * function, where the driver refuses them. */
struct vmm_cache *vmm_kept_existing(void);
/* True if calls may be deferred, and memory be handed out: the driver answers this thread, and no stream captures. */
bool vmm_kept_serves(void);
/* This thread, for the cache. */
const void *vmm_kept_thread(void);

/* The properties as the cache compares them. False: such memory is not kept. to: where the handle goes. */
bool vmm_kept_key(const CUmemGenericAllocationHandle *to, const CUmemAllocationProp *properties,
                  unsigned long long flags, struct vmm_key *ret_key);
/* False: such a range is not kept. to: where the address goes; at: the address that the program wants. */
bool vmm_kept_range(const CUdeviceptr *to, size_t size, CUdeviceptr at, unsigned long long flags);
/* The locations as the cache compares them; false: there are too many of them. */
bool vmm_kept_access(const CUmemAccessDesc *access, size_t count, struct vmm_access ret_access[VMM_ACCESS_MAX]);

/* Give back what is kept of a device, or of all (CONTEXT_ALL), and wait for other threads that are doing so: what they
 * give back counts as an arrival (arrivals.h). Returns the bytes that this call has given back. */
uint64_t vmm_kept_trim(int device);
/* A context ends, perhaps with the mappings of its device: nothing of before is handed out again. */
void vmm_kept_context_ends(void);
/* Bytes that are kept of a device, or of all. */
uint64_t vmm_kept_bytes(int device);
/* Wait for threads that are giving kept memory back, some calls of the driver long. */
void vmm_kept_wait(void);
/* False: nothing has been kept. */
bool vmm_kept_stats(struct vmm_stats *ret_stats);

/* For the background thread: what has been kept for CUPOOL_DECAY goes back. */
uint64_t vmm_kept_due(uint64_t now);
void vmm_kept_tick(uint64_t now);

#endif
