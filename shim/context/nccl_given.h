/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_given.h - the list of the pool's memory from NCCL. Virtual memory outlives its context (a reset, a destruction),
 * and the pool forgets it then; the list finds it again.
 *
 * It calls neither NCCL nor the driver: ncclMemFree makes a reset device's context anew, so nccl_memory.c gives such
 * memory back only when a context of that device asks for memory again. For nccl_memory.c and context_end.c.
 *
 * Ownership: the memory belongs to the pool, and after its context's end to the caller of nccl_given_left.
 *
 * Threads: every function may be called from any thread. Locking: one lock for the list, never held over a call. No
 * errors: memory without room on the list is not found again.
 */
#ifndef CUPOOL_SHIM_CONTEXT_NCCL_GIVEN_H
#define CUPOOL_SHIM_CONTEXT_NCCL_GIVEN_H

#include <stdint.h>

struct context;

/* NCCL has given the memory at addr for this context, which is on this device. */
void nccl_given_add(const struct context *context, int device, uint64_t addr);
/* The memory at addr is about to go back. */
void nccl_given_remove(uint64_t addr);
/* The context has ended. */
void nccl_given_ended(const struct context *context);
/* Take memory of this device whose context has ended off the list; 0: there is none. */
uint64_t nccl_given_left(int device);

#endif
