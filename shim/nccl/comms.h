/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comms.h - which communicators there are, and the operations with them: what the hooks of NCCL's functions report.
 * exports/nccl.c has these hooks, window.c the windows that programs ask for.
 *
 * Ownership: communicators and handles belong to NCCL and the program; a struct nccl_reg_comm goes back with
 * nccl_after.
 *
 * Threads: every function may be called from any thread. No lock but nccl_reg's. Only after nccl_registers or
 * nccl_watches has returned true.
 */
#ifndef CUPOOL_SHIM_NCCL_COMMS_H
#define CUPOOL_SHIM_NCCL_COMMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"
#include "real/hooks.h"

/* The registry's facts about a communicator, which is added if it is ready. False: not known. */
bool nccl_comm_get(ncclComm_t comm, const void *caller, struct nccl_reg_comm_info *ret_info);
/* True if the communicator is known and not closed. */
bool nccl_comm_is_open(ncclComm_t comm);
/* The state of the work begun with a communicator. 0: it has ended; -EINPROGRESS; -EIO: an error; -EPIPE: the
 * communicator is closed. */
int nccl_comm_ask(ncclComm_t comm);
/* Around a question of the program's for the state of a communicator; end gets what begin has returned, and the
 * answer. */
unsigned int nccl_poll_begin(ncclComm_t comm);
void nccl_poll_end(ncclComm_t comm, unsigned int begun, ncclResult_t state);
/* A call that makes a communicator has returned result and written the communicator to *comm. comm NULL: it makes
 * none. */
void nccl_comm_made(const ncclComm_t *comm, ncclResult_t result, const void *caller);
/* A communicator is about to end; the kinds are those of hooks.def. */
enum nccl_end { NCCL_END_FINALIZE, NCCL_END_TALK, NCCL_END_SILENT, NCCL_END_CLOSE };
void nccl_comm_ends(ncclComm_t comm, enum nccl_end how);
/* After the call that ends a communicator: it has ended, unless result says otherwise. */
void nccl_comm_ended(ncclComm_t comm, enum nccl_end how, ncclResult_t result);

/*
 * The memory that NCCL looks up where a rank sends nothing, as in ncclBroadcast: `from`, if all of it lies in one live
 * allocation, or else `to`. A rank may give anything there, also nothing; but NCCL before 2.29.2 (since then with
 * several nodes) uses no registration on a rank where it finds one of the two unregistered, and ranks must not differ.
 */
const void *nccl_looked_up(const void *from, const void *to, size_t size);
/* Around an operation with a known communicator: registers its buffers. nccl_after gets the value returned. */
struct nccl_reg_comm *nccl_before(ncclComm_t comm, const struct nccl_reg_comm_info *info, struct nccl_reg_op *op,
                                  cudaStream_t stream);
/* As nccl_before, for a call that is no operation. NULL: the communicator is not known. */
struct nccl_reg_comm *nccl_use_begin(ncclComm_t comm, const void *caller);
void nccl_after(ncclComm_t comm, struct nccl_reg_comm *used, ncclResult_t result);

/* After ncclGroupStart has succeeded, and after ncclGroupEnd with its result. */
void nccl_group_started(void);
void nccl_group_ended(ncclResult_t result);

/* As nccl_reg_user_add(), nccl_reg_user_known() and nccl_reg_user_remove(). */
int nccl_user_registered(ncclComm_t comm, void *handle, uint64_t addr, size_t size);
bool nccl_user_known(ncclComm_t comm, void *handle);
int nccl_user_deregistered(ncclComm_t comm, void *handle);

#endif
