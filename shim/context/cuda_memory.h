/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_memory.h - the driver's own memory as the pool's backend (CUPOOL_BACKEND=cuda): cuMemAlloc and cuMemFreeAsync.
 *
 * It does not wait for memory to arrive at the driver; arrivals.h does.
 *
 * Ownership, threads, errors: as memory_source.h. No locks.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CUDA_MEMORY_H
#define CUPOOL_SHIM_CONTEXT_CUDA_MEMORY_H

#include <stdbool.h>

#include "context/memory_source.h"
#include "real/real.h"

extern const struct memory_source cuda_source;

/* True if the driver can free through a stream on this device, and has the calls that this takes. */
bool cuda_memory_defers(const struct real_driver *driver, int device);

#endif
