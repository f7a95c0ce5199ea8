/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registrations.h - the calls of the table that change what a communicator has registered, and the registrations that
 * an operation needs. Private to nccl_reg. It releases no segment; segment_release.c does.
 *
 * Ownership: see nccl_reg_state.h.
 *
 * Locking: every function needs the communicator's lock. Errors: each function says which.
 */
#ifndef CUPOOL_NCCL_REG_REGISTRATIONS_H
#define CUPOOL_NCCL_REG_REGISTRATIONS_H
#include <stdbool.h>

#include "nccl_reg_state.h"

/* See nccl_reg_comm_ask. On a thread that the program uses the communicator on, as reg_is_ready: NCCL ends work in the
 * answer, which only one thread at a time may ask for. */
int reg_ask(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key);
/* True if calls can be made on the communicator now. */
bool reg_is_ready(const struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key);
/* Deregister. After an error the registration is unchanged. -EIO: the memory may still be in use, and its segment is
 * never released. -EPIPE: the communicator was closed. */
int reg_detach(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, struct record *record);
/* Prepare the buffers of an operation; returns a sum of NCCL_REG_... */
int reg_prepare(struct nccl_reg *reg, struct nccl_reg_comm *comm, void *key, const struct nccl_reg_op *op);

#endif
