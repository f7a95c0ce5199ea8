/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl.h - memory from NCCL (CUPOOL_BACKEND) and its registration with communicators (CUPOOL_REGISTER).
 *
 * What it is: nccl_reg, given NCCL's functions, and ncclMemAlloc for the pool. export_nccl.c has the hooks,
 * window.c what programs ask for beyond them.
 *
 * What it is not: it never makes a NCCL call for an allocation, but ncclMemAlloc itself; registration waits for the
 * next operation.
 *
 * Threads: every function, from any thread. No lock but nccl_reg's.
 */
#ifndef CUPOOL_SHIM_NCCL_H
#define CUPOOL_SHIM_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "conf.h"
#include "hooks.h"
#include "nccl_reg.h"

struct context;

/* Is anything registered? Decided by the first call; begins what that takes. */
bool nccl_registers(void);
/* Must all ranks have the same memory at the same time? Then nothing depends on time or on what is left. */
bool nccl_ranks_agree(void);

/* --- the pool's memory --- */

/*
 * Does the pool's memory come from NCCL? Decided once, by the first call, which has a context current: not if there is
 * no NCCL, or if that cannot give memory that it can share.
 */
bool nccl_backs(void);
/* For a program that asks for it later: can it? 0; -ENOTSUP: no, and why is said; -EAGAIN: no context is current. */
int nccl_backing_find(void);
/* Now it does, or does not: for context.c, which tells the pools. */
void nccl_backing_set(bool nccl);
/* size bytes on the current device. -ENOMEM: refused, for whatever reason. */
int nccl_memory_alloc(size_t size, uint64_t *ret_addr);
void nccl_memory_free(uint64_t addr, size_t size);

/* The pool of a context has got a segment; it is about to go, and unused; it has gone with its context. See nccl_reg.h.
 */
void nccl_segment_add(struct context *owner, int device, uint64_t addr, size_t size);
int nccl_segment_remove(uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size), void *arg);
void nccl_segment_lost(const struct context *owner, uint64_t addr);
/* A context has gone, with all that is registered and was its. */
void nccl_owner_lost(const struct context *owner);
/* Memory of the program's own is used for the first time; 0, or it is not registered: see nccl_reg_segment_add. Makes
 * no call. owner: whose it is; NULL: it is mapped. */
int nccl_segment_use(struct context *owner, int device, uint64_t addr, size_t size);
/* Let what could not go before go now, of one device or of all (-1). The bytes that went. */
size_t nccl_settle(int device);
/* The same for a request that the driver has refused: what other threads are about to let go is waited for, too, a
 * second at most. */
size_t nccl_settle_refused(int device);

/* Around calls of our own: what they do in CUDA is not pooled, disturbs no capture of another thread, and may leave
 * another context current. */
struct nccl_visit {
    const struct real_driver *driver;
    CUcontext current;
    CUstreamCaptureMode mode;
    bool relaxed;
};
void nccl_visit_begin(struct nccl_visit *visit);
void nccl_visit_end(struct nccl_visit *visit);

/* --- for the hooks --- */

/* Does a call from this address count? Not what NCCL does for itself. */
bool nccl_watches(const void *caller);

/* What is known of a communicator, which is made known if it is ready. False: nothing. */
bool nccl_comm_get(ncclComm_t comm, const void *caller, struct nccl_reg_comm_info *ret_info);
/* Is it known, and has nobody given it up? */
bool nccl_comm_is_open(ncclComm_t comm);
/* What has become of what was begun with it? 0: it is over; -EINPROGRESS; -EIO: an error; -EPIPE: it was given up. */
int nccl_comm_ask(ncclComm_t comm);
/* A call that makes a communicator has returned result, and written it there; NULL: it makes none. */
void nccl_comm_made(const ncclComm_t *comm, ncclResult_t result, const void *caller);
/* It is about to end; see hooks.def. */
enum nccl_end { NCCL_END_FINALIZE, NCCL_END_TALK, NCCL_END_SILENT, NCCL_END_CLOSE };
void nccl_comm_ends(ncclComm_t comm, enum nccl_end how);
/* And has, if result says so. */
void nccl_comm_ended(ncclComm_t comm, enum nccl_end how, ncclResult_t result);

/* Around a call that uses a communicator that is known. */
struct nccl_reg_comm *nccl_before(ncclComm_t comm, const struct nccl_reg_comm_info *info, struct nccl_reg_op *op,
                                  cudaStream_t stream);
/* The same for one that is no operation. NULL: the communicator is not known. */
struct nccl_reg_comm *nccl_use_begin(ncclComm_t comm, const void *caller);
void nccl_after(ncclComm_t comm, struct nccl_reg_comm *used, ncclResult_t result);

void nccl_group_started(void);
void nccl_group_ended(ncclResult_t result);

/* The program's own memory and registrations. */
void nccl_user_memory(uint64_t addr, size_t size);
/* ncclMemFree of this copy of NCCL; nothing of it is registered when it is called. */
ncclResult_t nccl_user_memory_free(void *ptr, ncclResult_t (*next)(void *));
/* As nccl_reg_user_add() and nccl_reg_user_remove(). */
int nccl_user_registered(ncclComm_t comm, void *handle, uint64_t addr, size_t size);
int nccl_user_deregistered(ncclComm_t comm, void *handle);

/* For statistics. False: nothing is registered. */
bool nccl_stats_get(struct nccl_reg_stats *ret_stats);

#endif
