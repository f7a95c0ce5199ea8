/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - CUPOOL_FREE: does a free wait on the host?
 *
 * A free natively waits until the device is idle. `ordered` keeps the effects that work of the same context can
 * observe. `auto` also keeps the effects that host code and other devices can observe, by the calls that hooks report
 * here:
 * * Host work: work was launched that touches host memory or runs on the host (a copy to or from it, a host
 *   function). The context's next free waits on the host, once.
 * * A hazard: from now on the context's queue does not order all work that touches its memory. All frees of the
 *   device's contexts wait, as with `strict`; the trace and the log say why.
 *
 * If the user sets `ordered`, `relaxed` or `strict`, the reports have no effect.
 *
 * Not here: the wait itself, which is in order.c.
 *
 * Threads: every function may be called from any thread. A policy's lock is private to policy.c and never held over a
 * CUDA call.
 */
#ifndef CUPOOL_SHIM_POLICY_H
#define CUPOOL_SHIM_POLICY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "real/hooks.h"
#include "real/real.h"

/* The policy of one context. */
struct policy {
    bool strict;    /* every free waits on the host, whatever hooks report */
    bool automatic; /* CUPOOL_FREE=auto */
    int device;
    pthread_mutex_t lock; /* guards writes to the members below */
    /* The number of host work reports so far; never reset, so that a wait for an earlier context at this entry cannot
     * count. */
    _Atomic(uint64_t) debts;
    _Atomic(uint64_t) paid; /* this many of them, the oldest, are known to have completed */
    CUstream debtor;        /* the stream of all reports that have not completed, or STREAM_MIXED */
};

/* Initialise the policy of a new context, in zeroed memory or in the entry of a context that is gone. orders: the
 * driver can order on the device. *ret_why: the reason, for the trace; a string literal. */
void policy_init(struct policy *policy, int device, bool orders, const char **ret_why);
/* True if this driver can order on the device (12.5 and later). */
bool policy_driver_orders(const struct real_driver *driver);

/* True if every free waits on the host. */
bool policy_is_strict(const struct policy *policy);
/* Must this free wait on the host? *ret_debts: the value for policy_pay once the wait has succeeded. */
bool policy_waits(const struct policy *policy, uint64_t *ret_debts);
/* The host has waited for the context's work; debts as returned by policy_waits or policy_context_wait_begin before the
 * wait. */
void policy_pay(struct policy *policy, uint64_t debts);

/*
 * Reports of the hooks. Streams are handles, CU_STREAM_LEGACY or CU_STREAM_PER_THREAD. All of them may be called before
 * a driver is loaded.
 *
 * Asynchronous work was just launched that touches host memory or runs on the host.
 */
void policy_host_work(CUstream stream);
/* As policy_host_work, but only if one of the two addresses is host memory. */
void policy_copy(CUdeviceptr to, CUdeviceptr from, CUstream stream);
/* Three reports about graphs: a graph built by hand got a node that touches host memory or runs on the host; it got a
 * memset node for memory at `to`; a graph was launched on stream. */
void policy_graph_node(void);
void policy_graph_set(CUdeviceptr to);
void policy_graph_launch(CUstream stream);
/* Around a wait for a context on the host (NULL: the current one): begin before the wait, and end after it if it
 * succeeded, with begin's result. The context's host work up to begin then counts as completed. */
uint64_t policy_context_wait_begin(CUcontext handle);
void policy_context_wait_end(CUcontext handle, uint64_t debts);
/* As policy_context_wait_end, after a wait for one stream of the current context: completes that stream's work only. */
void policy_stream_wait_end(CUstream stream, uint64_t debts);
/* A stream is about to be destroyed; its handle may be reused for another stream. */
void policy_stream_gone(CUstream stream);

/* Work on stream is about to touch memory at addr. If the memory belongs to another context, both devices become
 * strict. */
void policy_reach(CUdeviceptr addr, CUstream stream);

/* As policy_reach, for many copies. */
void policy_reach_batch(const CUDA_MEMCPY3D_BATCH_OP *operations, size_t count, CUstream stream);
void policy_reach_many(const CUdeviceptr *to, const CUdeviceptr *from, size_t count, CUstream stream);

/* Memory mapped at addr, or a memory pool of the driver (addr 0), becomes accessible. If another device or the host
 * gets access, all devices become strict. A pool's own device has access without such a call. */
void policy_access(CUdeviceptr addr, const CUmemAccessDesc *access, size_t count);
/* The device that a location is on; -1: none. */
int policy_location_device(const CUmemLocation *location);
/* True if the processor can reach memory of this kind at this location. */
bool policy_is_host(const CUmemLocation *location, CUmemAllocationType type);

/* Make one device, or all of them (POLICY_ALL), strict from now on; waits once for the work before earlier frees. why:
 * a string literal. */
#define POLICY_ALL (-1)
void policy_strict(int device, const char *why);
/* As policy_strict, for the device that has the memory at addr, pooled or not; no effect if it is no device memory. */
void policy_strict_memory(CUdeviceptr addr, const char *why);

/* A context exists that was not made from a green context. A second context on a device makes the device strict. */
void policy_context_seen(CUcontext handle, int device);
/* The context has ended: a later context on its device does not count as a second one. */
void policy_context_gone(CUcontext handle);

#endif
