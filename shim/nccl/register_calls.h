/* SPDX-License-Identifier: Apache-2.0 */
/*
 * register_calls.h - the one struct nccl_reg of the process (CUPOOL_REGISTER), what it calls NCCL for, and the segments
 * in it.
 *
 * It does not know which communicators there are (comms.h) or which memory becomes a segment (pool_segments.h,
 * direct.h). It makes no NCCL call for an allocation; registration waits for the next operation.
 *
 * Ownership: communicators and handles belong to NCCL and the program.
 *
 * Threads: every function may be called from any thread. No lock but nccl_reg's. Errors: those of nccl_reg.
 */
#ifndef CUPOOL_SHIM_NCCL_REGISTER_CALLS_H
#define CUPOOL_SHIM_NCCL_REGISTER_CALLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl_reg.h"
#include "real/hooks.h"
#include "real/real.h"

struct context;

/* Private to nccl_registry. */
extern _Atomic(struct nccl_reg *) nccl_registry_private __attribute__((visibility("hidden")));

/* True if registration is on. The first call decides this and creates the registry. */
bool nccl_registers(void);
/* True if a communicator is, or was, known. A program whose calls of NCCL pass by the hooks makes none known. */
bool nccl_sees_operations(void);

/* The registry; NULL: nothing is registered. Set once, by nccl_registers. */
static inline struct nccl_reg *nccl_registry(void)
{
    return nccl_registry_private;
}

/* True if a call from this address counts: NCCL's own calls do not. */
bool nccl_watches(const void *caller);

/* An unused segment of a context's pool is about to go; errors and release as in nccl_reg_segment_remove. */
int nccl_segment_remove(uint64_t addr, void (*release)(void *arg, uint64_t addr, size_t size), void *arg);
/* A segment has gone with its context. */
void nccl_segment_lost(const struct context *owner, uint64_t addr);

/* The context is about to end; the call that was to end it has not. */
void nccl_owner_ends(const struct context *owner);
void nccl_owner_stays(const struct context *owner);
/* The context has gone, with all memory registered for it. */
void nccl_owner_lost(const struct context *owner);
/* Memory of the program is used in an operation for the first time. 0, or it is not registered, see
 * nccl_reg_segment_add. Makes no NCCL call. owner: the context that the memory belongs to; NULL: it is mapped. */
int nccl_segment_use(struct context *owner, int device, uint64_t addr, size_t size);

/* Whether a communicator is at work: 0: no; -EINPROGRESS; -EIO: an error, or NCCL does not say. */
int nccl_comm_state(const struct real_nccl *nccl, void *comm);

/* The statistics of nccl_reg. False: nothing is registered. */
bool nccl_stats_get(struct nccl_reg_stats *ret_stats);

#endif
