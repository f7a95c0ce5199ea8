/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - CUPOOL_FREE: does a free wait on the host?
 *
 * A free natively waits until the device is idle. `ordered` keeps what work of the same context can see of that; `auto`
 * is `ordered` plus what others can see of it, from the calls that hooks report here:
 *  - A debt: work was launched that touches host memory or runs on the host (a copy to or from it, a host function).
 * The context's next free waits, once.
 *  - Something from which on the context's own queue does not order all that touches memory. From then on all frees of
 *    the device's contexts wait, as with `strict`; the reason goes to the trace and the log.
 * With `ordered` and `strict` set by the user nothing of this has an effect.
 *
 * Threads: every function, from any thread. A policy's lock is private to policy.c and never held over a CUDA call.
 */
#ifndef CUPOOL_SHIM_POLICY_H
#define CUPOOL_SHIM_POLICY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"
#include "real.h"

/* Of one context. */
struct policy {
    bool strict;    /* every free waits, whatever is seen */
    bool automatic; /* CUPOOL_FREE=auto */
    int device;
    pthread_mutex_t lock;    /* guards changes of the rest */
    _Atomic(uint64_t) debts; /* so far; never set back, so that nobody pays another context's */
    _Atomic(uint64_t) paid;  /* of these, the first so many are known to be over */
    CUstream debtor;         /* the stream of all that are not paid, or STREAM_MIXED */
};

/* For a new context of a device, in zeroed memory or in place of a context that is gone; ret_why: for the trace. */
void policy_init(struct policy *policy, int device, bool orders, const char **ret_why);
/* Does this driver have the calls that order on the device? */
bool policy_driver_orders(const struct real_driver *driver);

/* Does every free wait? */
bool policy_is_strict(const struct policy *policy);
/* Must this free wait? ret_debts: what to hand to policy_pay when it has. */
bool policy_waits(const struct policy *policy, uint64_t *ret_debts);
/* The context's work was waited for; debts as policy_waits, or policy_debts before the wait. */
void policy_pay(struct policy *policy, uint64_t debts);

/* What hooks report. Streams are handles, CU_STREAM_LEGACY or CU_STREAM_PER_THREAD. All may be called with no driver.
 *
 * Asynchronous work that was just launched touches host memory or runs on the host. */
void policy_host_work(CUstream stream);
/* The same for memory of any kind: only if one of the two addresses is the host's. */
void policy_copy(CUdeviceptr to, CUdeviceptr from, CUstream stream);
/* A graph that somebody builds by hand gets a node that may do so, and a graph was launched. */
void policy_graph_node(void);
void policy_graph_set(CUdeviceptr to);
void policy_graph_launch(CUstream stream);
/* The debts of a context that has been waited for are paid: begin before the wait, end after it, if it succeeded. NULL:
 * the current context. */
uint64_t policy_context_wait_begin(CUcontext handle);
void policy_context_wait_end(CUcontext handle, uint64_t debts);
/* The same where one of the current context's streams was waited for: what it owes alone. */
void policy_stream_wait_end(CUstream stream, uint64_t debts);
/* A stream is about to be destroyed; its handle may come back for another. */
void policy_stream_gone(CUstream stream);

/* Work on stream is about to touch memory at addr. If that is another context's, both devices are strict. */
void policy_reach(CUdeviceptr addr, CUstream stream);

/* The same for many copies. */
void policy_reach_batch(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream stream);
void policy_reach_many(const CUdeviceptr *to, const CUdeviceptr *from, size_t count, CUstream stream);

/* Memory that was mapped at addr, or a pool of the driver's (0), becomes accessible: if to another device than it is
 * on, or to the host, all are strict. A pool's own device needs nobody to say so. */
void policy_access(CUdeviceptr addr, const CUmemAccessDesc *access, size_t count);
/* The device that a place is, or is a part of; -1: none. */
int policy_location_device(const CUmemLocation *location);
/* Can the processor reach memory of this kind, at this place? */
bool policy_is_host(const CUmemLocation *location, CUmemAllocationType type);

/* Strict from now on, for one device or for all of them (POLICY_ALL): waits once for what came before earlier frees. */
#define POLICY_ALL (-1)
void policy_strict(int device, const char *why);
/* The same for the device that has the memory at addr, ours or not; nothing if it is no device memory. */
void policy_strict_memory(CUdeviceptr addr, const char *why);

/* A context that is none of a green context exists. With a second one on a device it is strict. */
void policy_context_seen(CUcontext handle, int device);
void policy_context_gone(CUcontext handle);

#endif
