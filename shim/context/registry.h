/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - the contexts that are known, found by handle, device or pool, and kept from being destroyed.
 *
 * It neither makes nor ends a context's entry; lifetime.h and context_end.h do. It makes no call of the driver except
 * those of context_pool_at, context_of_stream and context_stream.
 *
 * Ownership: the registry owns all contexts and pools; pointers returned here are never freed by the caller. They stay
 * valid between context_begin and pin_end, or between context_pin and context_unpin.
 *
 * Threads: every function may be called from any thread. The lock is private to the room and never held over a CUDA
 * call; readers take none. Errors: NULL where there is none, no other.
 */
#ifndef CUPOOL_SHIM_CONTEXT_REGISTRY_H
#define CUPOOL_SHIM_CONTEXT_REGISTRY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "context/limits.h"
#include "pool.h"
#include "real/hooks.h"
#include "real/real.h"

struct context;
struct policy;

/* The longest time that a request or free waits for another thread's call that may end its context, in nanoseconds.
 * Most such calls do not end it. */
#define CONTEXT_LEAVING_WAIT_NS 1000000000
/* The number of contexts that a call under way may end, plus ended contexts whose pools are still in use. */
extern atomic_uint contexts_closing;
/* The number of threads that wait for such a call to decide. The next call of that kind lets them go first. */
extern atomic_uint context_waiters;
/*
 * For a free while contexts_closing is not 0, between pin_begin and pin_end: may the pool free this address now?
 * FREE_WAIT: a call of another thread decides whether the context stays; end the call, wait, and ask again, until limit
 * (nanoseconds of the monotonic clock). FREE_LATER: that limit has passed, or this thread itself makes that call: use
 * pool_free_later and no call of the driver. FREE_NEVER: the context is gone.
 */
enum context_free { FREE_NOW, FREE_WAIT, FREE_LATER, FREE_NEVER };
enum context_free context_may_free(uint64_t addr, uint64_t limit);
/* For a question about an address: as pool_of, but NULL where the pool's context has ended, or another thread's call
 * ends it and the driver has given the address to somebody else. It does not wait. */
struct pool *context_pool_at(uint64_t addr);

/* The pool of a context, NULL if it has none, and its handle. */
struct pool *context_pool(const struct context *context);
CUcontext context_handle(const struct context *context);
/* The pooled context with this handle; NULL: none. */
struct context *context_find(CUcontext handle);
/* The policy of the context with this handle; NULL: it is not pooled. */
struct policy *context_policy(CUcontext handle);
/* A stream is about to be destroyed. */
void context_stream_gone(CUstream stream);
/* Call `each` with the policy of every pooled context, also of one that is about to end. */
void context_policy_each(void (*each)(struct policy *policy, const void *arg), const void *arg);
/* True if the process has had more than one context with a pool. */
bool context_several(void);
/* The driver's answer which context a stream is of; CUDA_ERROR_NOT_SUPPORTED if it cannot be asked. */
CUresult context_of_stream(const struct real_driver *driver, CUstream stream, CUcontext *ret_handle);
/* The handle of a stream's context; if that cannot be had, the current one. */
CUcontext context_stream(const struct real_driver *driver, CUstream stream);

/* The driver's ordinal of a context's device. */
int context_device(const struct context *context);

/* True if the context's new segments come from NCCL. */
bool context_backed_by_nccl(const struct context *context);

/* True if its segments go back behind the work that uses them, without a wait for the device. */
bool context_defers(const struct context *context);

/* True if the context has met an error that it does not recover from. */
bool context_failed(const struct context *context);
/* The context of a pool. */
struct context *context_of(const struct pool *pool);
/* Count a request that went to the driver unpooled. */
void context_bypassed(struct context *context);

/* Never pool in the context with this handle (a green context). */
void context_exempt(CUcontext handle);

/*
 * Keep a context that may not be current on this thread from being destroyed. True: it is pooled and stays until
 * context_unpin, because context_leaving waits for that. False: it is ending, or too many are pinned.
 */
bool context_pin(struct context *context);
/* As context_pin, but waits for a call of another thread that may be about to end the context, a second at most. Once a
 * thread has waited in vain for the calls under way, others do not. */
bool context_pin_staying_once(struct context *context);
void context_unpin(struct context *context);

/*
 * The next context of a device (CONTEXT_ALL: of any device) from index *i on, pinned; *i is advanced beyond it. NULL:
 * no more. The caller unpins each one.
 */
struct context *context_next(unsigned int *i, int device);
/* As context_next, also contexts that a call of another thread may be about to end. *ret_leaving: this is one. Its pool
 * stays until context_unpin, its handles may not: nothing may be done that calls the driver. A primary context, which
 * most of these calls do not end, is waited for as by context_pin_staying_once; others are not. */
struct context *context_next_pool(unsigned int *i, int device, bool *ret_leaving);
/* As context_next, but waits for contexts that a call of another thread may be about to end, as
 * context_pin_staying_once. */
struct context *context_next_staying(unsigned int *i, int device);
/* As context_next, but a context of which a call of another thread decides whether it stays is waited for, however long
 * that takes: for a caller that must leave none out. It has pinned none. Both leave all out if there is no host memory
 * for the thread's record. */
struct context *context_next_decided(unsigned int *i, int device);

/* An entry has changed its meaning: threads drop their cached entry. */
void context_changed(void);

/* The entry of the context with this handle, pooled or not; NULL: none. */
struct context *context_entry_find(CUcontext handle);

/* A new entry, or an unused one that no ending thread still uses. The caller holds contexts.lock. NULL: no room. */
struct context *context_entry_new(void);

/* The number of calls under way on this thread that may end a context. */
extern __thread unsigned int context_endings __attribute__((tls_model("initial-exec")));

/* Wait while a call of another thread may be about to end this context, for CONTEXT_LEAVING_WAIT_NS at most. True: it
 * still may, or this thread itself makes that call. */
bool context_is_leaving(const struct context *context);

/* For a thread that polls the driver while it holds a pin or is in a call. False: the context is gone or about to go,
 * and the thread has to give up. Waits while a call of another thread decides that. */
bool context_stays(const struct context *context);

#endif
