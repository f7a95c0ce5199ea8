/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_import.h - blocks of other processes that this one has opened by a ticket (base/ipc_message.h), natively
 * cuIpcOpenMemHandle: it asks the exporter for the block, maps the block's segment once for each context, and lets the
 * exporter know when the block is closed.
 *
 * It does not look whether a handle is a ticket; serve/ipc_handles.h does.
 *
 * Ownership: a mapping belongs to this module until its last block is closed, or its context ends. An exporter that
 * ends or frees the block takes nothing away: the mapping keeps the memory.
 *
 * Threads: every function may be called from any thread that is in no call of the library's own. One thread maps or
 * unmaps at a time; the others wait, as in the driver. The lock is a leaf, and not held over a call. An open waits for
 * the exporter until CUPOOL_IPC milliseconds have passed, and nobody waits for an open that does but opens of blocks of
 * this exporter.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_IMPORT_H
#define CUPOOL_SHIM_CONTEXT_IPC_IMPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/ipc_message.h"
#include "real/hooks.h"

/* The blocks that are open. */
extern atomic_uint ipc_import_blocks;
static inline bool ipc_import_any(void)
{
    return __builtin_expect(atomic_load_explicit(&ipc_import_blocks, memory_order_relaxed) != 0, 0);
}

/* Open a block in the current context; a block that is open there is counted, and has one address. The driver's errors;
 * if the exporter does not answer or has no such block, the log says so, and it is CUDA_ERROR_MAP_FAILED. */
CUresult ipc_import_open(const struct ipc_ticket *ticket, CUdeviceptr *ret_addr);
/* Close it, after the work of its context. *ret_ours: false if no open block starts there; nothing has been done. */
CUresult ipc_import_close(CUdeviceptr addr, bool *ret_ours);

/* The open block around addr, or *ret_size 0 if addr is in a mapping but in no open block. False: in no mapping, or in
 * one that the program has opened by the driver's handle as well. */
bool ipc_import_range(uint64_t addr, uint64_t *ret_base, size_t *ret_size, CUcontext *ret_context);

/* The context with this handle has ended, and with it what was opened there. */
void ipc_import_context_gone(CUcontext handle);
/* A context may have ended: let go of what was open there, so that its exporters hear of it. Makes calls of the driver.
 */
void ipc_import_settle(void);
/* In a forked child. */
void ipc_import_forget(void);

#endif
