/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_memory.h - memory from NCCL as the pool's backend (CUPOOL_BACKEND=nccl).
 *
 * It registers nothing with a communicator; nccl/ does. It makes no call of NCCL but ncclMemAlloc, ncclMemFree and
 * ncclGetVersion.
 *
 * Ownership, errors: of memory, as memory_source.h.
 *
 * Threads: every function may be called from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_CONTEXT_NCCL_MEMORY_H
#define CUPOOL_SHIM_CONTEXT_NCCL_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/memory_source.h"
#include "real/hooks.h"
#include "real/real.h"

/* True if all ranks must hold the same memory at the same time. Then no decision may depend on time or on the free
 * memory. */
bool nccl_ranks_agree(void);

/* Memory of the NCCL that is loaded. It lacks it if there is none, or one that gives no memory that it can share. */
extern const struct memory_source nccl_source;

/* True if memory at this address can be shared between processes and GPUs, as far as the driver says. */
bool nccl_memory_is_shareable(uint64_t addr);
/* NCCL has taken memory of the driver. */
void nccl_works(void);
/* True if NCCL may have registered memory, which was requested at this time (capture_history.h), for a graph: it must
 * not go then, and the log says so. */
bool nccl_graph_keeps(unsigned int time);
/* The bytes that a segment of shareable memory needs in front of it, so that each kind of operation can have a
 * registration of its own; 0: none. */
size_t nccl_front_needed(void);
/* The bytes that nccl_source has put in front of addr; 0 if the memory does not come from there. */
size_t nccl_memory_front(uint64_t addr);

/* The version of a copy of NCCL. */
int nccl_version_of(const struct real_nccl *nccl);
/* True if a collective must not use a registration that send or receive has used first. */
bool nccl_kinds_matter(const struct real_nccl *nccl);

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

#endif
