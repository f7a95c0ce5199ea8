/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_policy.h - CUPOOL_FREE: does a free wait on the host?
 *
 * A free natively waits until the device is idle. `ordered` keeps the effects that work of the same context can
 * observe. `auto` also keeps the effects that host code and other devices can observe, by the calls that hooks
 * report:
 * * Host work: work was launched that touches host memory or runs on the host (a copy to or from it, a host
 *   function). The context's next free waits on the host, once.
 * * A hazard: from now on the context's queue does not order all work that touches its memory. All frees of the
 *   device's contexts wait, as with `strict`; the trace and the log say why.
 *
 * If the user sets `ordered`, `relaxed` or `strict`, the reports have no effect.
 *
 * Here is the state alone. exports/hazards.h has the reports of the hooks, strict.h what a strict device waits for, and
 * free_order.h the wait of a free.
 *
 * Threads: every function may be called from any thread. A policy's lock is private to free_policy.c and never held
 * over a CUDA call.
 */
#ifndef CUPOOL_SHIM_CONTEXT_FREE_POLICY_H
#define CUPOOL_SHIM_CONTEXT_FREE_POLICY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "real/hooks.h"
#include "real/real.h"

#include "context/limits.h"

/* The policy of one context. */
struct policy {
    bool strict;    /* every free waits on the host, whatever hooks report */
    bool automatic; /* CUPOOL_FREE=auto */
    int device;
    pthread_mutex_t lock; /* guards writes to the members below */
    /* The number of host work reports so far; never reset, so that a wait for an earlier context at this entry cannot
     * count. */
    _Atomic(uint64_t) host_work_seq;
    _Atomic(uint64_t) synced_seq; /* this many of them, the oldest, are known to have completed */
    CUstream host_work_stream;    /* the stream of all reports that have not completed, or STREAM_MIXED */
    atomic_uint streams_gone;     /* streams that the program has destroyed so far, of any context */
};

/* Initialise the policy of a new context, in zeroed memory or in the entry of a context that is gone. orders: the
 * driver can order on the device. *ret_why: the reason, for the trace; a string literal. */
void policy_init(struct policy *policy, int device, bool orders, const char **ret_why);
/* True if this driver can order on the device (12.5 and later). */
bool policy_driver_orders(const struct real_driver *driver);

/* For reports, not by context. The reason why a device is strict with CUPOOL_FREE=auto; NULL: it is not. */
const char *policy_strict_why(int device);
/* False: the driver of a context on this device could not order on the device. */
bool policy_device_orders(int device);
/* Frees of the device that waited on the host so far. */
uint64_t policy_waited(int device);

/* A free has waited on the host. */
void policy_waited_add(const struct policy *policy);

/* True if every free waits on the host. */
bool policy_is_strict(const struct policy *policy);
/* Must this free wait on the host? *ret_seq: the value for policy_synced once the wait has succeeded. */
bool policy_waits(const struct policy *policy, uint64_t *ret_seq);
/* The host has waited for the context's work; seq as returned by policy_waits or hazard_context_wait_begin before the
 * wait. */
void policy_synced(struct policy *policy, uint64_t seq);

/* Host work on several streams, or on the per-thread stream. */
#define POLICY_STREAM_MIXED ((CUstream)-1)
/* Host work that was launched on a stream. streams_gone: policy_streams_gone before the launch. If a stream has gone
 * since, the handle may be another stream's by now. */
struct policy_host_work {
    CUstream stream;
    unsigned int streams_gone;
};
unsigned int policy_streams_gone(const struct policy *policy);
/* Host work (a struct policy_host_work) was launched. The second parameter is as context_policy_each passes it. */
void policy_host_work_add(struct policy *policy, const void *host_work);
/* The number of host work reports so far; 0: policy is NULL. */
uint64_t policy_host_work_seq(const struct policy *policy);
/* As policy_synced, after a wait for one stream: has an effect only if all uncompleted host work is on that stream. */
void policy_stream_synced(struct policy *policy, CUstream stream, uint64_t seq);
/* The handle of this stream may be reused for another stream. */
void policy_host_work_stream_gone(struct policy *policy, const void *stream);

/* The device is strict from now on. False: it was already. why: a string literal. */
bool policy_strict_set(int device, const char *why);

#endif
