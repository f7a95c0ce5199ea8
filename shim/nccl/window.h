/* SPDX-License-Identifier: Apache-2.0 */
/*
 * window.h - symmetric windows of NCCL for programs that ask for them (cupool.h), on memory from NCCL.
 *
 * Windows are never automatic. Making one is a collective call, and no library can know that all ranks are at the same
 * point; and if the ranks' memory is not laid out alike, NCCL does not notice and computes wrong results. So the
 * program asks, and the ranks compare their buffers before a window is made.
 *
 * Threads: both functions may be called from any thread that may use the communicator; they block until all ranks have
 * called them. Only with CUPOOL_REGISTER, whose bookkeeping keeps the memory of a window from going. No lock but
 * nccl_reg's.
 */
#ifndef CUPOOL_SHIM_NCCL_WINDOW_H
#define CUPOOL_SHIM_NCCL_WINDOW_H

#include <stddef.h>
#include <stdint.h>

#include "real/hooks.h"

/* See cupool_window_register() and cupool_window_deregister() in cupool.h; ret_window must not be NULL. */
int window_register(ncclComm_t comm, uint64_t addr, size_t size, ncclWindow_t *ret_window);
int window_deregister(ncclComm_t comm, ncclWindow_t window);

#endif
