/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_handles.h - the decisions behind CUDA's IPC handles: whether the driver's own handle stands for a block, a ticket
 * does (base/ipc_message.h), or none may.
 *
 * The driver's handle is one of the whole driver allocation, and the importer gets its beginning. So it stands for a
 * block that begins one; any process can open it, and the block's segment never serves another request. A ticket stands
 * for any other block of the program's, and only processes under cupool can open it.
 *
 * It frees nothing; serve.h does, and keeps blocks that another process holds.
 *
 * Threads: every function may be called from any thread. No locks but those of the modules below. Errors: the driver's.
 */
#ifndef CUPOOL_SHIM_SERVE_IPC_HANDLES_H
#define CUPOOL_SHIM_SERVE_IPC_HANDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "real/hooks.h"

enum serve_ipc {
    SERVE_IPC_DRIVER,  /* ask the driver; then call serve_ipc_exported or serve_ipc_refused */
    SERVE_IPC_TICKET,  /* the handle has been filled in */
    SERVE_IPC_REFUSED, /* the importer would get wrong bytes, and the log says so */
};

/* A caller wants a handle for the memory at addr. */
enum serve_ipc serve_ipc_get(uint64_t addr, const void *caller, void *ret_handle);
void serve_ipc_exported(uint64_t addr, const void *caller);
void serve_ipc_refused(uint64_t addr);

/* A handle is to be opened. False: it is the driver's. */
bool serve_ipc_open(const void *handle, unsigned int flags, CUdeviceptr *ptr, CUresult *ret_result);
/* As serve_ipc_open, of an address that is to be closed. */
bool serve_ipc_close(CUdeviceptr ptr, CUresult *ret_result);

/*
 * For cupool_export: make a ticket for the block that starts at addr, of memory that can be mapped at an address of the
 * importer's choice. 0, or a negative errno value: -EINVAL: no block of the program's starts there; -ENOTSUP: it has no
 * such memory, or there are no tickets here; -EBUSY: the program has freed it, or its device pauses; -ENOMEM, -EIO.
 */
int serve_ipc_export(uint64_t addr, void *ret_ticket);
/* For cupool_import: take what a ticket stands for. A number and the bytes that it needs; -EINVAL: it is no ticket, or
 * this process's own; else an error of insert_import. */
int64_t serve_ipc_import(const void *ticket, size_t *ret_size);

/* The driver has opened a handle of its own, or closed it. */
void serve_ipc_opened(CUdeviceptr ptr);
void serve_ipc_closed(CUdeviceptr ptr);

#endif
