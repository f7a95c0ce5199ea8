/* SPDX-License-Identifier: Apache-2.0 */
/*
 * direct.h - CUPOOL_REGISTER=use: memory that the program takes past the pool is registered once an NCCL operation uses
 * it.
 *
 * It keeps a table of direct allocations, by the calls that made them, and makes those that an operation uses segments
 * of nccl_reg. Only memory whose end certainly passes our hooks is in the table: memory from cuMemAlloc (and so from
 * cudaMalloc), and memory from cuMemCreate that cuMemMap mapped as a whole. Other memory is never registered: memory of
 * stream-ordered pools, managed or imported memory, memory of arrays or modules, of NCCL and of other libraries.
 *
 * It makes no NCCL call; nccl_reg does, at the operation and before memory goes.
 *
 * Threads: every function may be called from any thread. One lock, private to direct.c, is never held over a CUDA or
 * NCCL call; the lock of nccl_reg may be taken within it. Without CUPOOL_REGISTER=use each function returns at once.
 */
#ifndef CUPOOL_SHIM_NCCL_DIRECT_H
#define CUPOOL_SHIM_NCCL_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"
#include "real/hooks.h"

struct context;

/* The program has got memory past the pool by cuMemAlloc, in the current context. */
void direct_allocated(uint64_t addr, size_t size);
/* created: the program has got physical memory. releases: its handle is about to be released. mapped: it was mapped,
 * from some offset on: where all of it is, the offset is 0. */
void direct_created(CUmemGenericAllocationHandle handle, size_t size);
void direct_releases(CUmemGenericAllocationHandle handle);
void direct_mapped(uint64_t addr, size_t size, CUmemGenericAllocationHandle handle);

/* Before an operation with a communicator of this device: the allocations of its buffers become segments. */
void direct_prepare(const struct nccl_reg_op *op, int device);

/*
 * The program frees the memory at addr. True: it has been freed, or its free is deferred, and *ret_result is the
 * program's result. False: not in the table; the driver frees it. waits: the call natively waits for the device.
 */
bool direct_free(uint64_t addr, bool waits, CUresult *ret_result);
/* Memory in this range has gone unseen, because other memory is there now. */
void direct_range_ends(uint64_t addr, size_t size);
/* Memory mapped in this range is about to be unmapped; and has been (done), or the driver has refused. */
void direct_unmaps(uint64_t addr, size_t size);
void direct_unmapped(uint64_t addr, size_t size, bool done);
/* After direct_free returned false: the driver has freed the allocation (done), or has refused. */
static inline void direct_freed(uint64_t addr, bool done)
{
    direct_unmapped(addr, 1, done);
}
/* A context has gone, and all its memory with it. */
void direct_context_gone(const struct context *context);
/* Free memory whose free was deferred because its work could not be waited for, and deregister and release parked
 * segments, of one device or of all (-1). Returns the bytes released. */
size_t nccl_retry_parked(int device);
/* As nccl_retry_parked, and waits for other threads inside nccl_retry_parked, a second at most. */
size_t nccl_retry_parked_wait(int device);

#endif
