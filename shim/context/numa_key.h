/* SPDX-License-Identifier: Apache-2.0 */
/*
 * numa_key.h - where the pages of a thread's new host memory would lie, as a number: memory that one thread has
 * pinned serves another one only if the numbers are equal.
 *
 * It sets no policy and asks for no pages.
 *
 * Threads: any thread. No locks. Errors: none; where the kernel does not say, the number is 0.
 */
#ifndef CUPOOL_SHIM_CONTEXT_NUMA_KEY_H
#define CUPOOL_SHIM_CONTEXT_NUMA_KEY_H

#include <stddef.h>
#include <stdint.h>

/* 0: the machine has one NUMA node. Otherwise the node that the thread runs on, or its memory policy if it has set one
 * (numactl, set_mempolicy). */
uint64_t numa_key(void);

/* Pages of p that are touched from now on, by any thread, are to lie where this thread's own would: on its node. With a
 * memory policy, which threads inherit, nothing is done. */
void numa_prefer(void *p, size_t size);

#endif
