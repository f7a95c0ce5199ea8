/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc_exporter.h - the connections of an importing process to those whose blocks it opens.
 *
 * It knows no block that is open; ipc_import.h does, and calls it.
 *
 * Ownership: a connection belongs to this module, and is valid while it has uses, or until ipc_exporter_drop.
 *
 * Threads: one at a time, the one that has ipc_import.c's claim. No locks. Errors: negative errno values.
 */
#ifndef CUPOOL_SHIM_CONTEXT_IPC_EXPORTER_H
#define CUPOOL_SHIM_CONTEXT_IPC_EXPORTER_H

#include <stdint.h>

#include "base/ipc_message.h"
#include "base/ipc_socket.h"

struct ipc_exporter {
    struct ipc_name station;
    struct ipc_descriptor socket;
    uint64_t number;   /* of the last request */
    unsigned int uses; /* open blocks, counted by the caller */
    struct ipc_exporter *next;
};

/* The connection to the exporter with this station, made if it is missing, until limit. NULL: *ret_rc says why. */
struct ipc_exporter *ipc_exporter_get(const struct ipc_name *station, uint64_t limit, int *ret_rc);
/* There may be one use less. A connection without any ends. */
void ipc_exporter_drop(struct ipc_exporter *exporter);

/* Ask for a block. After an error the exporter does not count it as held, or will not once it gets on. *ret_fd: a
 * descriptor that the caller closes, or -1. */
int ipc_exporter_ask(struct ipc_exporter *exporter, const struct ipc_name *block, uint64_t limit,
                     struct ipc_grant *ret_grant, int *ret_fd);
/* Give one grant of a block back. */
void ipc_exporter_close(struct ipc_exporter *exporter, const struct ipc_name *block, uint64_t limit);

/* In a forked child. */
void ipc_exporters_forget(void);

#endif
