/* SPDX-License-Identifier: Apache-2.0 */
/*
 * free_order.h - puts the frees of a context in order: every free waits for earlier work, on the device or on the host.
 *
 * It does not decide whether a free waits on the host (free_policy.h), and has no waits without a free
 * (wait_context.h).
 *
 * Threads: every function may be called from any thread that has pinned the context or is in a call on it; the caller
 * holds no lock. Slots are held over the CUDA calls of one free; a thread never waits for a slot that it holds itself.
 * Errors: the driver's.
 */
#ifndef CUPOOL_SHIM_CONTEXT_FREE_ORDER_H
#define CUPOOL_SHIM_CONTEXT_FREE_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"
#include "real/hooks.h"

struct context;
struct slot;

/* The order of a context's pool, and its functions for tables of other files. */
bool order_freed_async_ended(void *arg, uint64_t ret_ended[POOL_PLACES]);
extern const struct pool_order_ops order_ops;
int order_pool(void *arg, enum pool_order_how how);
bool order_frozen(void *arg);

/* Wait on the host for all work of the context without disturbing a capture. CUDA_ERROR_NOT_READY: a stream captures,
 * and the driver cannot wait beside a capture. */
CUresult order_wait(struct context *context);

/* True for errors that a context never recovers from: natively every later call returns them. */
bool order_is_sticky(CUresult result);
/* A call in the context has returned this result. After a sticky error, requests go to the driver, which returns its
 * error. */
void order_failed(struct context *context, CUresult result);

/* The longest wait for the frees of other threads, in nanoseconds; see context_wait_frees. */
#define ORDER_OTHERS_WAIT_NS 1000000000

/*
 * For wait_context.c and own_stream.c. A slot is taken and given back by one thread, which makes an event for it and
 * records it behind all work launched in the context so far. order_thread: this thread's number, 0 if it has freed
 * nothing yet. order_thread_get: as order_thread, never 0; no later thread has it. order_batch_own: the combiner's
 * batch that ordered this thread's last free, 0 if there is nothing to wait for.
 */
struct slot *order_slot_take(struct context *context);
void order_slot_give(struct slot *slot, CUresult result);
CUresult order_event_make(struct context *context, _Atomic(CUevent) *ret_event);
CUresult order_record(struct context *context, struct slot *slot, CUevent *ret_event);
unsigned int order_thread(void);
unsigned int order_thread_get(void);
uint64_t order_batch_own(const struct context *context);
void order_batch_own_set(struct context *context, uint64_t seq);

#endif
