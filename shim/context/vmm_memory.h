/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_memory.h - virtual memory as the pool's backend (CUPOOL_BACKEND=vmm): one cuMemCreate a segment, at addresses of
 * its own.
 *
 * The driver unmaps memory at once, whatever work uses it. So a segment that is given back is departing until the work
 * before it is over, which an event on the library's own stream says; vmm_memory_collect then unmaps it. It waits for
 * nothing; arrivals.h does.
 *
 * Ownership, errors: as memory_source.h.
 *
 * Threads: every function may be called from any thread that has pinned the context or is in a call on it, unless it
 * says more. One lock, private to vmm_memory.c and a leaf, guards the lists of departing segments.
 */
#ifndef CUPOOL_SHIM_CONTEXT_VMM_MEMORY_H
#define CUPOOL_SHIM_CONTEXT_VMM_MEMORY_H

#include "context/memory_source.h"

extern const struct memory_source vmm_source;

/* Unmap so many departing segments whose work is over, in a context that has been entered and in relaxed capture mode.
 * CUDA_SUCCESS: none is departing now; CUDA_ERROR_NOT_READY: some are; another error: the driver cannot say. */
CUresult vmm_memory_collect(struct context *context, unsigned int most);

/* The context is gone with its work, and no thread uses its pool: all its segments go. */
void vmm_memory_ended(struct context *context);

#endif
