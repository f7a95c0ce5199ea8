/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl_socket.h - the socket by which cupool-ctl reaches this process (CUPOOL_CTL), and the messages: one request and
 * one reply a connection.
 *
 * The socket is a file, cupool-PID.sock, in a folder that has to be this user's alone (mode 0700). Each message is one
 * packet (SOCK_SEQPACKET) with a fixed head, so nothing has to be put together; one of another length, version or
 * first bytes ends its connection.
 *
 * It knows no memory and no command; report/ctl.h does.
 *
 * Trust: the folder keeps other users out, and the kernel says which user a peer is: this one, or root. A peer that
 * says nothing, or does not take its reply, is dropped and never waited for.
 *
 * Threads: ctl_socket_ring may be called from any thread and in a signal handler, ctl_socket_open once before the
 * thread that serves begins; every other function by that thread alone. No locks. It allocates no memory; errors are
 * negative errno values.
 */
#ifndef CUPOOL_SHIM_BASE_CTL_SOCKET_H
#define CUPOOL_SHIM_BASE_CTL_SOCKET_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CTL_VERSION 1
#define CTL_MAGIC   UINT32_C(0x74637063) /* "cpct" */
/* The number of connections at a time; the oldest one is dropped for one more. */
#define CTL_PEERS 8
/* A peer that has said nothing for so long is dropped, in nanoseconds. */
#define CTL_PATIENCE_NS 2000000000u
/* The most bytes of text in a reply. */
#define CTL_TEXT_MAX 32768u

/* As it is sent, in the order of bytes of the machine. */
struct ctl_request {
    uint32_t magic;
    uint16_t version, command; /* report/ctl.h */
    int32_t device;            /* -1: all */
    uint32_t flags;
    uint64_t value;
    uint32_t wait_ms; /* the longest wait for work that is under way */
    uint32_t unused;  /* 0 */
};

struct ctl_reply {
    uint32_t magic;
    uint16_t version, command;
    int32_t rc;    /* 0 or a negative errno value */
    uint32_t size; /* of the text that follows: JSON, or with an rc the reason */
};

/* Make the folder if it is missing, and the socket. *ret_why, after an error: NULL, or what is wrong there.
 */
int ctl_socket_open(const char *folder, const char **ret_why);
/* Wake a poll of the descriptors below. Async-signal-safe, no cancellation point, and keeps errno. */
void ctl_socket_ring(void);
/* Fill in the descriptors to be polled, and return their number: CTL_PEERS + 2 at most. */
unsigned int ctl_socket_listen(struct pollfd *fds, unsigned int max);
/* Accept connections and read one request. True: *ret_request is valid, and ctl_socket_reply must follow. */
bool ctl_socket_read(uint64_t now, struct ctl_request *ret_request);
/* False: the peer of the last request has gone. */
bool ctl_socket_is_awaited(void);
/* Answer the last request, and end its connection. False: the peer has gone, or has no room. Waits for nothing. */
bool ctl_socket_reply(int rc, const char *text, size_t size);
/* When the next silent peer has to be dropped, or a connection taken that could not be; UINT64_MAX: there is none. */
uint64_t ctl_socket_due(void);
/* Close everything, and remove the socket's file; in a forked child (forked) leave the file. */
void ctl_socket_close(bool forked);

#endif
