/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host_populate.h - CUPOOL_HOST_POPULATE: large pinned memory that is mapped here, touched by several threads, and then
 * registered with the driver, which takes a fraction of the time of the driver's own allocation.
 *
 * It does not decide when memory goes back; host_memory.c does. Such memory is not inherited by a forked child.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. Errors: 0 or -errno.
 */
#ifndef CUPOOL_SHIM_CONTEXT_HOST_POPULATE_H
#define CUPOOL_SHIM_CONTEXT_HOST_POPULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "real/real.h"

/* The flags that cuMemHostAlloc and cuMemHostRegister have in common, with the same numbers: portable, device map. */
#define HOST_POPULATE_FLAGS 3u

/* Get size bytes, registered with these flags in the current context. owner: a number for that context, not 0. An
 * error: the driver's own allocation is to serve the request; -EINVAL: as the setting, the size or the flags want it.
 */
int host_populate(const struct real_driver *driver, uint64_t owner, unsigned int flags, size_t size,
                  uint64_t *ret_addr);

/* The memory that starts at addr is from host_populate. */
bool host_populated(uint64_t addr);

/* Unregister and unmap such memory, in the context that owns it, for whose work this waits, as cuMemFreeHost does. */
CUresult host_populated_free(const struct real_driver *driver, uint64_t addr);

/* Unmap all such memory of this owner, which has ended. */
void host_populated_owner_gone(uint64_t owner);

#endif
