/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h - memory from NCCL (CUPOOL_BACKEND) and its registration with communicators (CUPOOL_REGISTER).
 *
 * It connects nccl_reg with NCCL's functions and backs the pool with ncclMemAlloc. exports/nccl.c has the hooks,
 * window.c the windows that programs ask for.
 *
 * It makes no NCCL call for an allocation except ncclMemAlloc; registration waits for the next operation.
 *
 * Threads: every function may be called from any thread. It has no lock but nccl_reg's.
 *
 * Ownership: communicators and handles belong to NCCL and the program; a struct nccl_reg_comm goes back with
 * nccl_after.
 */
#ifndef CUPOOL_SHIM_NCCL_H
#define CUPOOL_SHIM_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/conf.h"
#include "nccl_reg.h"
#include "real/hooks.h"

struct context;

/* True if registration is on. The first call decides this and creates the registry. */
bool nccl_registers(void);
/* True if all ranks must hold the same memory at the same time. Then no decision may depend on time or on the free
 * memory. */
bool nccl_ranks_agree(void);

/* --- the pool's memory --- */

/*
 * True if the pool's memory comes from NCCL. The first call decides this and needs a current context. False if no NCCL
 * is loaded, or if NCCL cannot give memory that it can share.
 */
bool nccl_backs(void);
/* For a program that asks later whether NCCL can back the pool. 0: yes; -ENOTSUP: no, and the log says why; -EAGAIN: no
 * context is current, or a stream captures. */
int nccl_backing_find(void);
/* Sets the answer of nccl_backs; for context.c, which tells the pools. */
void nccl_backing_set(bool nccl);
/* Allocate size bytes on the current device. -ENOMEM: NCCL refused, for whatever reason. nccl_memory_free takes the
 * memory back, or keeps it for ever where NCCL may have registered it for a graph. */
int nccl_memory_alloc(size_t size, uint64_t *ret_addr);
void nccl_memory_free(uint64_t addr, size_t size);

/* Segments of a context's pool. add: the pool has got one. remove: an unused one is about to go; errors and release as
 * in nccl_reg_segment_remove. lost: it has gone with its context. */
void nccl_segment_add(struct context *owner, int device, uint64_t addr, size_t size);
int nccl_segment_remove(uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size), void *arg);
void nccl_segment_lost(const struct context *owner, uint64_t addr);
/* The context has gone, with all memory registered for it. */
void nccl_owner_lost(const struct context *owner);
/* Memory of the program is used in an operation for the first time. 0, or it is not registered, see
 * nccl_reg_segment_add. Makes no NCCL call. owner: the context that the memory belongs to; NULL: it is mapped. */
int nccl_segment_use(struct context *owner, int device, uint64_t addr, size_t size);
/* Deregister and release parked memory of one device, or of all (-1). Returns the bytes released. */
size_t nccl_settle(int device);
/* As nccl_settle, for a request that the driver has refused: waits also for other threads inside nccl_settle, a second
 * at most. */
size_t nccl_settle_refused(int device);

/* Around our own calls of NCCL: the CUDA calls inside are not pooled, disturb no capture of another thread, and may
 * change the current context, which nccl_visit_end restores. */
struct nccl_visit {
    const struct real_driver *driver;
    CUcontext current;
    CUstreamCaptureMode mode;
    bool relaxed;
};
void nccl_visit_begin(struct nccl_visit *visit);
void nccl_visit_end(struct nccl_visit *visit);

/* --- for the hooks --- */

/* True if a call from this address counts: NCCL's own calls do not. */
bool nccl_watches(const void *caller);

/* The registry's facts about a communicator, which is added if it is ready. False: not known. */
bool nccl_comm_get(ncclComm_t comm, const void *caller, struct nccl_reg_comm_info *ret_info);
/* True if the communicator is known and not closed. */
bool nccl_comm_is_open(ncclComm_t comm);
/* The state of the work begun with a communicator. 0: it has ended; -EINPROGRESS; -EIO: an error; -EPIPE: the
 * communicator is closed. */
int nccl_comm_ask(ncclComm_t comm);
/* A call that makes a communicator has returned result and written the communicator to *comm. comm NULL: it makes
 * none. */
void nccl_comm_made(const ncclComm_t *comm, ncclResult_t result, const void *caller);
/* A communicator is about to end; the kinds are those of hooks.def. */
enum nccl_end { NCCL_END_FINALIZE, NCCL_END_TALK, NCCL_END_SILENT, NCCL_END_CLOSE };
void nccl_comm_ends(ncclComm_t comm, enum nccl_end how);
/* After the call that ends a communicator: it has ended, unless result says otherwise. */
void nccl_comm_ended(ncclComm_t comm, enum nccl_end how, ncclResult_t result);

/* Around an operation with a known communicator: registers its buffers. nccl_after gets the value returned. */
struct nccl_reg_comm *nccl_before(ncclComm_t comm, const struct nccl_reg_comm_info *info, struct nccl_reg_op *op,
                                  cudaStream_t stream);
/* As nccl_before, for a call that is no operation. NULL: the communicator is not known. */
struct nccl_reg_comm *nccl_use_begin(ncclComm_t comm, const void *caller);
void nccl_after(ncclComm_t comm, struct nccl_reg_comm *used, ncclResult_t result);

/* After ncclGroupStart has succeeded, and after ncclGroupEnd with its result. */
void nccl_group_started(void);
void nccl_group_ended(ncclResult_t result);

/* The program has got memory from ncclMemAlloc; it becomes a segment. */
void nccl_user_memory(uint64_t addr, size_t size);
/* Deregister the memory and then free it with `next`, the real ncclMemFree of the caller's copy of NCCL. */
ncclResult_t nccl_user_memory_free(void *ptr, ncclResult_t (*next)(void *));
/* As nccl_reg_user_add() and nccl_reg_user_remove(). */
int nccl_user_registered(ncclComm_t comm, void *handle, uint64_t addr, size_t size);
int nccl_user_deregistered(ncclComm_t comm, void *handle);

/* The statistics of nccl_reg. False: nothing is registered. */
bool nccl_stats_get(struct nccl_reg_stats *ret_stats);

#endif
