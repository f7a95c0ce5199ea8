/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool_segments.h - memory that is registered from the start: the pool's segments, and memory that the program takes
 * from ncclMemAlloc.
 *
 * Threads: every function may be called from any thread. No lock but nccl_reg's. Errors: NCCL's, where a function
 * returns them.
 */
#ifndef CUPOOL_SHIM_NCCL_POOL_SEGMENTS_H
#define CUPOOL_SHIM_NCCL_POOL_SEGMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "real/hooks.h"

struct context;

/* A context's pool has got a segment. */
void nccl_segment_add(struct context *owner, int device, uint64_t addr, size_t size);

/* The program has got memory from ncclMemAlloc; it becomes a segment. */
void nccl_user_memory(uint64_t addr, size_t size);
/* Deregister the memory and then free it with `next`, the real ncclMemFree of the caller's copy of NCCL. */
ncclResult_t nccl_user_memory_free(void *ptr, ncclResult_t (*next)(void *));

#endif
