/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_native.h - the memory that the program has opened by handles of the driver's own. A block that begins a driver
 * allocation has such a handle, and another block of that allocation has a ticket: the driver maps both at one address,
 * and ipc_import.h must not answer for the first one.
 *
 * It opens and closes nothing. Entries of a context that has ended stay; they only let the driver answer.
 *
 * Threads: every function may be called from any thread. One lock, private to ipc_native.c and a leaf.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_NATIVE_H
#define CUPOOL_SHIM_CONTEXT_IPC_NATIVE_H

#include <stdbool.h>
#include <stdint.h>

/* The driver has opened a handle, with this address, or has closed it. */
void ipc_native_opened(uint64_t addr);
void ipc_native_closed(uint64_t addr);
/* True if it is open at this address. */
bool ipc_native_is_open(uint64_t addr);
/* In a forked child. */
void ipc_native_forget(void);

#endif
