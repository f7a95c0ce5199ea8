/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_insert.h - memory of other processes at addresses that the program has reserved (cupool_insert): which ranges are
 * reserved, which blocks of other processes are imported, and where they are inserted.
 *
 * It serves no request, and the pool knows nothing of such memory. CUDA IPC's handles, where the importer gets an
 * address of the driver's choice, are ipc_import.h's.
 *
 * Ownership: ranges and imports belong to this module until they are given up; the program has addresses and numbers.
 * Neither ends with a context. The exporter counts a block as held while it is imported; an exporter that ends takes
 * nothing away.
 *
 * Threads: every function may be called from any thread that is in no call of the library's own. One lock, private to
 * ipc_insert.c and a leaf, held over no call of the driver and no wait. A call on an import that another thread's call
 * is working on gets -EBUSY. Callers have disabled cancellation: an import that a cancelled thread worked on would be
 * nobody's.
 *
 * Errors: negative errno values; the log has what the driver said.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_INSERT_H
#define CUPOOL_SHIM_CONTEXT_IPC_INSERT_H

#include <stddef.h>
#include <stdint.h>

#include "base/ipc_message.h"

/* Reserve addresses, size bytes rounded up to whole units of POOL_SEGMENT_UNIT. -EAGAIN: CUDA is not initialised;
 * -ENOTSUP: the driver lacks the calls; -ENOMEM; -EINVAL: a size of 0, or beyond any device's. */
int insert_reserve(size_t size, uint64_t *ret_range);
/* Give a range up. -EINVAL: there is none; -EBUSY: something is inserted. After an error it is still the program's. */
int insert_unreserve(uint64_t range);

/*
 * Take the block of a ticket, and do not map it: a number that no other import of this process has or had, and
 * *ret_size, the bytes that it needs in a range. Waits for the exporter as ipc_peer_ask. -EHOSTDOWN: the exporter has
 * ended; -ENODEV: its card is not visible to this process; -ENOTSUP: it cannot be mapped at an address of choice.
 */
int64_t insert_import(const struct ipc_ticket *ticket, size_t *ret_size);
/* Give it up. -EINVAL: there is none; -EBUSY: it is inserted. */
int insert_close(int64_t import);

/* Map it. -EINVAL: there is no such import, or it does not lie in a range, at a multiple of POOL_SEGMENT_UNIT; -EBUSY:
 * it is inserted already, or another one is there. Waits for nothing. */
int insert_map(uint64_t at, int64_t import);
/* Unmap it, after the work of all contexts. -EINVAL: none begins here; -EBUSY: a stream captures. */
int insert_unmap(uint64_t at);

/* In a forked child. */
void insert_forget(void);

#endif
