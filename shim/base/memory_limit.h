/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_limit.h - how much host memory this process may take of the machine: by what the machine has, and by the limit
 * of the process's cgroup.
 *
 * Threads: any thread. No state and no locks. Errors: where a file cannot be read, it counts as no limit.
 */
#ifndef CUPOOL_SHIM_BASE_MEMORY_LIMIT_H
#define CUPOOL_SHIM_BASE_MEMORY_LIMIT_H

#include <stdint.h>

/* The least of the machine's memory and the limits of the process's cgroup and of those above it, in bytes. */
uint64_t machine_memory(void);
/* So much of it nobody uses, and the kernel can give it; 0: unknown. */
uint64_t machine_memory_free(void);
/* The number of ranks on this host, as the launcher says; 1: unknown. */
unsigned int machine_ranks(void);

#endif
