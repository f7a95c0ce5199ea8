/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - the state that we keep for each CUDA context: its pool, and the order of frees in it.
 *
 * A context is found by the handle that is current on the calling thread. Contexts made from green contexts have no
 * pool: their queue does not order work that runs in the primary context.
 *
 * Ownership: the registry owns all contexts and pools; pointers returned here are never freed by the caller. They stay
 * valid between context_begin and call_end, or between context_pin and context_unpin.
 *
 * Threads: every function may be called from any thread. Locks are private to lifetime.c and never held over a CUDA
 * call.
 */
#ifndef CUPOOL_SHIM_CONTEXT_H
#define CUPOOL_SHIM_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pool.h"
#include "real/hooks.h"
#include "real/real.h"

struct context;
struct policy;

/* The context that is current on this thread; registered if this is its first sight. NULL: no context is current, or it
 * is not pooled. */
struct context *context_current(const struct real_driver *driver);

/*
 * As context_current, for a request: the context and its pool stay valid until call_end(*ret_own), even if a call of
 * another thread ends the context meanwhile. NULL: as above; then call_end must not be called.
 */
struct calls;
struct context *context_begin(const struct real_driver *driver, struct calls **ret_own);

/* The longest time that a request or free waits for another thread's call that may end its context, in nanoseconds.
 * Most such calls do not end it. */
#define CONTEXT_LEAVING_WAIT_NS 1000000000
/* The number of contexts that a call under way may end, plus ended contexts whose pools are still in use. */
extern atomic_uint contexts_closing;
/* The number of threads that wait for such a call to decide. The next call of that kind lets them go first. */
extern atomic_uint context_waiters;
/*
 * For a free while contexts_closing is not 0, between call_begin and call_end: may the pool free this address now?
 * FREE_WAIT: a call of another thread decides whether the context stays; end the call, wait, and ask again, until limit
 * (nanoseconds of the monotonic clock). FREE_LATER: that limit has passed, or this thread itself makes that call: use
 * pool_free_later and no call of the driver. FREE_NEVER: the context is gone.
 */
enum context_free { FREE_NOW, FREE_WAIT, FREE_LATER, FREE_NEVER };
enum context_free context_may_free(uint64_t addr, uint64_t limit);

/* The pool of a context, NULL if it has none, and its handle. */
struct pool *context_pool(const struct context *context);
CUcontext context_handle(const struct context *context);
/* The pooled context with this handle; NULL: none. */
struct context *context_find(CUcontext handle);
/* The policy of the context with this handle; NULL: it is not pooled. */
struct policy *context_policy(CUcontext handle);
/* Call `each` with the policy of every pooled context that is not about to end. */
void context_policy_each(void (*each)(struct policy *policy, const void *arg), const void *arg);
/* The handle of a stream's context. */
CUcontext context_stream(const struct real_driver *driver, CUstream stream);
/* If the stream belongs to another context, wait for it on the host, for a second at most. CUDA_ERROR_INVALID_HANDLE:
 * it is no stream; another error: its work has not ended. */
CUresult context_wait_foreign(const struct context *context, CUstream stream);
/* The driver's ordinal of a context's device. */
int context_device(const struct context *context);
/* Where segments come from: the kinds of segments of the pools. */
enum memory_kind { MEMORY_CUDA, MEMORY_NCCL };
/* True if the context's new segments come from NCCL. */
bool context_backed_by_nccl(const struct context *context);
/* From now on new segments of all contexts are of this kind, and only such segments serve requests. MEMORY_NCCL
 * requires that nccl_backing_find has succeeded. */
void context_back(enum memory_kind kind);
/* True if the context has met an error that it does not recover from. */
bool context_failed(const struct context *context);
/* The context of a pool. */
struct context *context_of(const struct pool *pool);
/* Count a request that went to the driver unpooled. */
void context_bypassed(struct context *context);

/* The bytes of the device's pools that are idle or on their way back to the driver. */
uint64_t context_idle_bytes(int device);

/*
 * The sum of the surveys of all pools of the device; `largest` is the maximum. Walks every block, unless whole is
 * false: then only held and live are set, and live includes deferred blocks.
 */
void context_survey(int device, bool whole, struct pool_survey *ret_sum);

/* Publish the deferred blocks of a device's pools, where no wait is needed. */
void context_kept_ask(int device);
/* Before the driver is asked for its free memory: collect the released segments that have arrived, without a wait. */
void context_settle_device(int device);

/* A counter of arrivals: how often released memory has become available at the driver. context_arrived increments
 * it. */
unsigned int context_arrivals(void);
void context_arrived(void);

/* Give back the idle segments of the current device's pools. True if any bytes went back, or if memory has arrived
 * since context_arrivals() returned `before`. */
bool context_trim(unsigned int before);

/* As context_trim for a device (CONTEXT_ALL: all), at the program's request. Returns the bytes; 0 while a stream
 * captures. */
uint64_t context_release(int device, const char *why);

/* Never pool in the context with this handle (a green context). */
void context_exempt(CUcontext handle);

/*
 * Keep a context that may not be current on this thread from being destroyed. True: it is pooled and stays until
 * context_unpin, because context_leaving waits for that. False: it is ending, or too many are pinned.
 */
bool context_pin(struct context *context);
void context_unpin(struct context *context);

/*
 * Around a call that may end a context. context_leaving stops new requests from being served from its pool. Afterwards
 * context_gone(true) forgets its memory, and context_gone(false) takes the context back into use; it accepts NULL.
 */
struct context *context_leaving(CUcontext handle);
struct context *context_leaving_primary(CUdevice device);
void context_gone(struct context *context, bool gone);

/* After a call that may have ended the primary context: forget the context if the driver says it is no longer
 * active. */
void context_primary_gone(struct context *context);
/* Around a call that may end primary contexts where we cannot know which ones. */
#define CONTEXTS_MAX 256
struct context_sweep {
    uint64_t marked[CONTEXTS_MAX / 64]; /* a bit for each entry that is marked as leaving */
};
void context_sweep_begin(struct context_sweep *ret_sweep);
void context_sweep_end(const struct context_sweep *sweep);

/* A call of the program in the current context has returned this result; sticky errors mark the context as failed. */
void context_saw(CUresult result);

/*
 * Wait on the host for the work before those frees in a device's contexts that did not wait themselves. For this
 * thread's own frees without limit, because natively they would have waited; a second at most where another thread
 * ordered them and has ordered more since. For frees of other threads only if `others`, and a second at most: natively
 * such a thread might still be waiting for work that this thread has yet to launch. False: the device has no context.
 */
#define CONTEXT_ALL (-1)
bool context_wait_frees(int device, bool others);

/*
 * Wait on the host for all work of a device's contexts, or of the current context if none of them is pooled. False: a
 * context has failed, or a stream captures and the driver cannot wait beside a capture.
 */
bool context_wait_device(int device);
/* As context_wait_device, for ms milliseconds at most, because that work may itself wait for this thread. False also if
 * the work has not ended, if a stream captures for more than a second of that time, or if the driver cannot be asked
 * (before 12.5). */
bool context_wait_device_for(int device, unsigned int ms);

/* For CUPOOL_DEBUG: fill device memory of a context, or read it once all work has ended. Both wait on the host;
 * context_read until limit, in nanoseconds of the monotonic clock (0: as long as a free would). Return 0 or -EIO; -EIO
 * while a stream captures. */
int context_write(struct context *context, uint64_t addr, unsigned char byte, size_t size);
int context_read(struct context *context, uint64_t addr, void *buf, size_t size, uint64_t limit);

/* For the clock thread: give back segments that were idle for age ticks (0: none), and collect released segments that
 * have arrived. */
void context_decay_all(unsigned int age);

/* Wait until no call that orders frees is in flight in the context with this handle (NULL: in any context); a second at
 * most for calls that wait on the host, which disturb no capture. */
void context_settle(CUcontext handle);

/*
 * Call `each` with the statistics of each device: the sums over its contexts, live or gone. A peak is the greatest sum
 * over contexts that existed at the same time, so contexts that follow one another have the peak of one. ending: at
 * exit, perhaps below a signal handler, so that no lock is waited for; otherwise contexts that are about to end are
 * left out.
 */
void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg);

#endif
