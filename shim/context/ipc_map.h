/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_map.h - how the memory of a segment gets from one process to another: the calls of the driver. It keeps no books;
 * ipc_table.h and ipc_import.h do.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. No locks. Errors: the driver's.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_MAP_H
#define CUPOOL_SHIM_CONTEXT_IPC_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "context/ipc_table.h"
#include "real/hooks.h"

struct context;

/* Describe a segment of a context's pool: a descriptor of virtual memory, otherwise the driver's own handle. */
CUresult ipc_map_describe(const struct context *owner, uint64_t segment, size_t size, struct ipc_segment *ret_segment);

/* The device with this UUID; -1: it is not visible to this process. */
int ipc_map_device(const unsigned char *card);

/* Take memory by its descriptor, mapped nowhere. It is there until cuMemRelease, and while it is mapped. */
CUresult ipc_map_take(int fd, CUmemGenericAllocationHandle *ret_handle);
/* Map all of such memory at reserved addresses, for one device. */
CUresult ipc_map_place(CUmemGenericAllocationHandle handle, uint64_t addr, size_t size, int device);

/* Map the memory of a grant in the current context, for its device, the one that has the memory, and those that reach
 * that one's memory (vmm_reach). */
CUresult ipc_map_open(const struct ipc_grant *grant, int fd, uint64_t *ret_addr);
/* No work uses it any more. */
CUresult ipc_map_close(enum ipc_how how, uint64_t addr);

#endif
