/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_served.h - steps that exported functions have in common for virtual memory that may be kept (CUPOOL_VMM=1).
 *
 * It decides nothing about such memory; pool/vmm_cache.h does.
 *
 * Threads: any thread. No locks.
 */
#ifndef CUPOOL_SHIM_EXPORTS_VMM_SERVED_H
#define CUPOOL_SHIM_EXPORTS_VMM_SERVED_H

#include "base/process.h"
#include "context/ipc_import.h"
#include "context/nccl_memory.h"
#include "context/registry.h"
#include "context/vmm_kept.h"
#include "pool.h"

/* The caller asks about this address: an address that the program has given up must be unknown to the driver. */
static inline void vmm_served_asked(CUdeviceptr ptr)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache)
        vmm_cache_settle_range(cache, ptr, 1);
}

/* Something beyond the program's calls gets hold of this range: it is not kept. */
static inline void vmm_served_shared(CUdeviceptr ptr, size_t size)
{
    struct vmm_cache *cache = vmm_kept_existing();

    if (cache)
        vmm_cache_forget_range(cache, ptr, size);
}

/* The address is in virtual memory of the pool (CUPOOL_BACKEND), which the program takes for cudaMalloc's, or in memory
 * of another process that it has from cuIpcOpenMemHandle. The driver would refuse to unmap these; here it would take
 * the memory away from all blocks in it. */
static inline bool vmm_served_refuses(CUdeviceptr ptr)
{
    CUcontext context;
    uint64_t base;
    size_t size;

    return !process_is_passive() && ((context_pool_at(ptr) && nccl_memory_is_shareable(ptr)) ||
                                     (ipc_import_any() && ipc_import_range(ptr, &base, &size, &context)));
}

/* The real function, or the cache in its place. */
CUresult vmm_served_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *access, size_t count);

#endif
