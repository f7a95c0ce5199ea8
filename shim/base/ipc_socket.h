/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_socket.h - the sockets between a process that exports blocks and those that import them: connections that keep
 * messages apart and carry descriptors.
 *
 * An exporter has one listening socket, a station, in the abstract namespace, as neighbour_socket.h and for its
 * reasons: nothing is left behind by a process that is killed, and there need be no folder that it may write to. A
 * folder of mode 0700 would keep other users out; here the kernel names the user of every peer (SO_PEERCRED), on both
 * sides, before a byte is read. Processes with a network namespace of their own (containers) do not find those outside.
 *
 * It does not read the messages; ipc_message.h does.
 *
 * Threads: every function may be called from any thread, but by one at a time for each connection. No locks, no state.
 * Nothing waits but ipc_connect, ipc_send_by and ipc_wait, until their limit in nanoseconds of the monotonic clock. No
 * cancellation point is left enabled by the callers. Errors: negative errno values.
 */
#ifndef CUPOOL_SHIM_BASE_IPC_SOCKET_H
#define CUPOOL_SHIM_BASE_IPC_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/ipc_message.h"

/* A descriptor of ours, and its fstat and mark, by which one that the program has closed is recognised. fd -1: none. */
struct ipc_descriptor {
    int fd;
    int mark;
    struct stat file;
};

/* Take over a descriptor. -EIO: it is not open; ret->fd is -1. */
int ipc_keep(int fd, struct ipc_descriptor *ret);

/* A random name. */
void ipc_name_make(struct ipc_name *ret_name);

/* Open a station, whose name is chosen. */
int ipc_listen(struct ipc_descriptor *ret_station, struct ipc_name *ret_name);
/* Take the next connection of a process of this user; *ret_pid: its number. -EAGAIN: none waits; -EPERM: another
 * user's, or of a process whose number this one cannot see, and it is closed. */
int ipc_accept(const struct ipc_descriptor *station, struct ipc_descriptor *ret_connection, int *ret_pid);
/* Connect to a station of this user. -ECONNREFUSED: there is none; -EPERM: it is another user's; -ETIMEDOUT. After an
 * error *ret_connection has no descriptor. */
int ipc_connect(const struct ipc_name *name, uint64_t limit, struct ipc_descriptor *ret_connection);

/* Whether it is open: one whose descriptor the program has closed is not, and the number is not touched. */
bool ipc_is_open(const struct ipc_descriptor *descriptor);
/* End a connection, also where a forked child has it, too. */
void ipc_end(struct ipc_descriptor *connection);
/* Close this process's descriptor alone. */
void ipc_leave(struct ipc_descriptor *descriptor);

/* Send a message whole, with a descriptor (-1: without). -EAGAIN: there is no room. */
int ipc_send(const struct ipc_descriptor *connection, const void *data, size_t len, int fd);
/* As ipc_send without one, waiting for room. -ETIMEDOUT. */
int ipc_send_by(const struct ipc_descriptor *connection, const void *data, size_t len, uint64_t limit);
/* Receive a message of at most len bytes; *ret_fd: the descriptor that came with it, or -1. The message's length, which
 * is more than len if the message was longer; 0: the peer has ended the connection; -EAGAIN: none is there;
 * -EMFILE: a descriptor came with it, and this process may have no more. */
ssize_t ipc_receive(const struct ipc_descriptor *connection, void *data, size_t len, int *ret_fd);
/* Wait for a message or the end. -ETIMEDOUT. */
int ipc_wait(const struct ipc_descriptor *connection, uint64_t limit);

#endif
