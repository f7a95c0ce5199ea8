/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_server.h - the exporting process's side of the sockets: the background thread takes connections, answers the
 * requests of importing processes from the books (ipc_table.h), and notices when such a process has ended.
 *
 * An importer that ends its connection without having closed its blocks may be about to end, while its device still
 * writes. So its blocks count as held until the process is gone (peer_process.h), which is looked at every LOOK_NS.
 *
 * It makes no call of the driver, so a request is answered however busy the device is.
 *
 * Threads: ipc_server_begin may be called from any thread, ipc_server_ring also in a signal handler; every other
 * function by the background thread alone, or in a forked child. No locks but those of ipc_table.h; no function waits.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_SERVER_H
#define CUPOOL_SHIM_CONTEXT_IPC_SERVER_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/ipc_message.h"

/* The connections that are served at a time. */
#define IPC_CONNECTIONS_MAX 254
/* Of ipc_server_listen: the connections, the station, and a socket to ring at. */
#define IPC_POLLED_MAX (IPC_CONNECTIONS_MAX + 2)

/* Open the station of this process, unless it is open, and name it. *ret_new: it was opened now, and the background
 * thread has to be woken. 0; a negative errno value: there is none, and a later call tries again. */
int ipc_server_begin(struct ipc_name *ret_station, bool *ret_new);
/* True if this is the station of this process. */
bool ipc_server_is(const struct ipc_name *station);

/* As struct background_job. */
uint64_t ipc_server_due(uint64_t now);
void ipc_server_tick(uint64_t now);
unsigned int ipc_server_listen(struct pollfd *fds, unsigned int max);
void ipc_server_ring(void);
void ipc_server_end(void);

/* In a forked child, which answers nobody. */
void ipc_server_forget(void);

#endif
