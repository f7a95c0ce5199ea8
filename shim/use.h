/* SPDX-License-Identifier: Apache-2.0 */
/*
 * use.h - CUPOOL_REGISTER=use: memory that the program has past the pool is registered once an NCCL operation uses it.
 *
 * What it is: which allocations past the pool are there, by the calls that got them, and which of them have become
 * segments of nccl_reg. Only memory whose end is certain to be seen: what cuMemAlloc gave (and so cudaMalloc), and what
 * cuMemCreate gave and cuMemMap mapped as a whole. What was not seen to begin this way is never registered: memory of
 * stream-ordered pools, managed, imported, of arrays or modules, of NCCL and other libraries.
 *
 * What it is not: it makes no NCCL call; nccl_reg does, at the operation and before memory goes.
 *
 * Threads: every function, from any thread. One lock, private to use.c and never held over a CUDA or NCCL call; the
 * lock of nccl_reg may be taken within it. Without CUPOOL_REGISTER=use each returns at once.
 */
#ifndef CUPOOL_SHIM_USE_H
#define CUPOOL_SHIM_USE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hooks.h"
#include "nccl_reg.h"

struct context;

/* The program has got memory past the pool: by cuMemAlloc, in the current context. */
void use_allocated(uint64_t addr, size_t size);
/* The same for physical memory; its handle is about to be released; it was mapped. */
void use_created(CUmemGenericAllocationHandle handle, size_t size);
void use_releases(CUmemGenericAllocationHandle handle);
void use_mapped(uint64_t addr, size_t size, size_t offset, CUmemGenericAllocationHandle handle);

/* An operation with a communicator of this device is about to be looked at: its buffers' allocations become segments.
 */
void use_prepare(const struct nccl_reg_op *op, int device);

/*
 * The program frees what lies at addr. True: that was done or put off, and *ret_result is what the program gets. False:
 * it is the driver's business alone. waits: as the call natively does.
 */
bool use_free(uint64_t addr, bool waits, CUresult *ret_result);
/* What is mapped in this range is about to go, or has gone unseen: something else is there now. */
void use_range_ends(uint64_t addr, size_t size);
/* A context has gone, and all memory with it. */
void use_context_gone(const struct context *context);
/* Let go what was freed when it could not be waited for, of one device or of all (-1). */
void use_settle(int device);

#endif
