/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_peer.h - the importing process's side of the sockets: a connection to each process whose blocks this one holds,
 * over which it asks for blocks (base/ipc_message.h) and says that it does not use them any more.
 *
 * It maps no memory; ipc_import.h and ipc_insert.h do. An exporter counts a block as held for each grant of it.
 *
 * Ownership: a connection belongs to this module, from the first grant on until the last block is closed.
 *
 * Threads: every function may be called from any thread. One lock, private to ipc_peer.c and a leaf. ipc_peer_ask waits
 * for the exporter, and for other threads that ask that exporter, until its limit in nanoseconds of the monotonic
 * clock; nothing else waits. Callers have disabled cancellation. errno stays. Errors: negative errno values.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_PEER_H
#define CUPOOL_SHIM_CONTEXT_IPC_PEER_H

#include <stdint.h>

#include "base/ipc_message.h"

struct ipc_peer;

/* The limit of a wait that begins now: CUPOOL_IPC milliseconds. */
uint64_t ipc_peer_limit(void);

/*
 * Ask the exporter for the block of a ticket. 0: it is granted, and ipc_peer_close follows; *ret_fd: a descriptor that
 * the caller closes, or -1, as after an error. -ECONNREFUSED: the process has ended; -ECONNRESET, -EPIPE: it has ended
 * the connection; -EPERM: it is another user's; -ETIMEDOUT; -ENOENT: the block has been freed; -ENOSPC: no room in its
 * books; -EPROTO: it has answered something else. After an error it does not count the block as held, or will not once
 * it gets on.
 */
int ipc_peer_ask(const struct ipc_ticket *ticket, uint64_t limit, struct ipc_peer **ret_peer,
                 struct ipc_grant *ret_grant, int *ret_fd);

/* Let the exporter know that one grant of the block is not used any more. The connection ends with its last one. Where
 * the exporter has no room to hear it, it hears of it later: context_events.closes_left has been called. */
void ipc_peer_close(struct ipc_peer *peer, const struct ipc_name *block);

/* Rows of background_jobs: say what exporters have had no room to hear. */
uint64_t ipc_peer_due(uint64_t now);
void ipc_peer_tick(uint64_t now);

/* An error of ipc_peer_ask, in words. */
const char *ipc_peer_reason(int rc);

/* In a forked child. */
void ipc_peer_forget(void);

#endif
