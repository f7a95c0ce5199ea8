/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_create.h - physical memory by cuMemCreate, with as many abilities (handle types, RDMA) as the device and the
 * machine have.
 *
 * It maps nothing; vmm_map.h does.
 *
 * Threads: every function may be called from any thread. No locks. Errors: the driver's.
 */
#ifndef CUPOOL_SHIM_CONTEXT_VMM_CREATE_H
#define CUPOOL_SHIM_CONTEXT_VMM_CREATE_H

#include <stdbool.h>
#include <stddef.h>

#include "real/hooks.h"
#include "real/real.h"

/* True if the driver has the calls, and the device the memory. */
bool vmm_supported(const struct real_driver *driver, int device);
/* Make memory of this device. The handle is the caller's. */
CUresult vmm_create(const struct real_driver *driver, int device, size_t size,
                    CUmemGenericAllocationHandle *ret_handle);

#endif
