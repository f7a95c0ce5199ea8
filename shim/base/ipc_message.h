/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_message.h - the ticket that takes the place of CUDA's IPC handle of a pooled block, and the messages by which an
 * importing process redeems it at the exporter: their layout, and the checks of what came from another process.
 *
 * A ticket carries no address and no size: it names the exporter's socket and one exported block, both by random
 * numbers, and the exporter answers with everything else. So a ticket that is old, forged or damaged opens nothing.
 *
 * It reads and writes no socket (ipc_socket.h), and knows neither memory nor CUDA.
 *
 * Threads: every function may be called from any thread. No locks, no state. No function fails but by its result.
 */
#ifndef CUPOOL_SHIM_BASE_IPC_MESSAGE_H
#define CUPOOL_SHIM_BASE_IPC_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The version of ticket and messages. It is part of the sockets' names, so processes of different versions do not
 * meet. */
#define IPC_VERSION 1
/* Bytes of a random number that names a socket or a block. */
#define IPC_NAME_BYTES 16
/* Bytes of CUDA's handle (CUipcMemHandle). */
#define IPC_HANDLE_BYTES 64

struct ipc_name {
    unsigned char bytes[IPC_NAME_BYTES];
};

/* In place of CUDA's handle. */
struct ipc_ticket {
    unsigned char magic[8];
    uint32_t version;
    int32_t pid; /* of the exporter, for messages to people alone */
    struct ipc_name station, block;
    uint64_t zero;  /* for later versions */
    uint64_t check; /* of everything above */
};
_Static_assert(sizeof(struct ipc_ticket) == IPC_HANDLE_BYTES, "it travels in CUDA's handle");

enum ipc_kind {
    IPC_OPEN = 1,  /* the importer wants the block; answered by a grant */
    IPC_CLOSE = 2, /* the importer does not use the block any more; not answered */
    IPC_GRANT = 3, /* of the exporter */
};

struct ipc_request {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t number; /* chosen by the importer; the grant repeats it */
    struct ipc_name block;
};

enum ipc_status {
    IPC_GRANTED,
    IPC_GONE, /* there is no such block, or it has been freed */
    IPC_FULL, /* the exporter has no room in its books */
};

enum ipc_how {
    IPC_NATIVE = 1,     /* the driver's own handle of the segment is in the message */
    IPC_DESCRIPTOR = 2, /* a descriptor of the segment's memory comes with the message */
};

/* A segment is one allocation of the exporter's; the block is size bytes of it, from offset on. */
struct ipc_grant {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t number;
    uint32_t status, how; /* how and the rest: only if granted */
    struct ipc_name segment;
    uint64_t segment_size, offset, size;
    unsigned char card[16]; /* the UUID of the device that has the memory */
    unsigned char handle[IPC_HANDLE_BYTES];
};

/* The largest segment that is believed, in bytes. */
#define IPC_SEGMENT_MAX ((uint64_t)1 << 50)

bool ipc_name_equal(const struct ipc_name *a, const struct ipc_name *b);
/* A number for tables: names are random. */
uint64_t ipc_name_hash(const struct ipc_name *name);

void ipc_ticket_make(struct ipc_ticket *ret_ticket, int pid, const struct ipc_name *station,
                     const struct ipc_name *block);
/* True if the bytes of a CUDA handle are a ticket; false: they are the driver's, or damaged. */
bool ipc_ticket_read(const void *handle, struct ipc_ticket *ret_ticket);

void ipc_request_make(struct ipc_request *ret_request, enum ipc_kind kind, uint64_t number,
                      const struct ipc_name *block);
/* True if these bytes, which came from another process, are a request; *ret_request: a copy. */
bool ipc_request_read(const void *data, size_t len, struct ipc_request *ret_request);

/* Fill in the head of a grant. */
void ipc_grant_begin(struct ipc_grant *ret_grant, uint64_t number, enum ipc_status status);
/* True if these bytes, with a descriptor or without, are a grant whose numbers fit together; *ret_grant: a copy. */
bool ipc_grant_read(const void *data, size_t len, bool with_descriptor, struct ipc_grant *ret_grant);

#endif
