/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - what we keep for each CUDA context: its pool, and how frees are ordered in it.
 *
 * A context is found by the handle that is current on the calling thread. Contexts made from green contexts have none:
 * what runs in the primary context is not ordered by theirs.
 *
 * Threads: every function, from any thread. Locks are private to context.c and never held over a CUDA call.
 */
#ifndef CUPOOL_SHIM_CONTEXT_H
#define CUPOOL_SHIM_CONTEXT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hooks.h"
#include "pool.h"
#include "real.h"

struct context;
struct policy;

/* The context that is current on this thread, made known on first sight; NULL: none, or one that is not pooled. */
struct context *context_current(const struct real_driver *driver);

/*
 * The same for a request: the context and its pool stay until call_end(*ret_own), though a call of another thread may
 * end the context meanwhile. NULL: as above, and there is nothing to end.
 */
struct calls;
struct context *context_begin(const struct real_driver *driver, struct calls **ret_own);

/* How long a request or free waits for another thread's call that may end its context, and mostly does not. */
#define CONTEXT_LEAVING_WAIT_NS 1000000000
/* Calls under way that may end contexts, and contexts that are gone and whose pools are still in use. */
extern atomic_uint contexts_closing;
/*
 * For a free while there are any, between call_begin and call_end: may the pool be told of it? Not while another
 * thread's call decides whether the memory's context stays: wait, out of the call, and ask again, until limit. Then,
 * and in a thread that makes that call itself: later, and no call of the driver. Never: the context is gone.
 */
enum context_free { FREE_NOW, FREE_WAIT, FREE_LATER, FREE_NEVER };
enum context_free context_may_free(uint64_t addr, uint64_t limit);

struct pool *context_pool(const struct context *context);
CUcontext context_handle(const struct context *context);
/* The context with this handle, if it is pooled. */
struct context *context_find(CUcontext handle);
/* The policy of the context with this handle; NULL: not one that is pooled. */
struct policy *context_policy(CUcontext handle);
void context_policy_each(void (*each)(struct policy *policy, const void *arg), const void *arg);
/* The handle of a stream's context. */
CUcontext context_stream(const struct real_driver *driver, CUstream stream);
/* If stream is another context's: wait for it on the host, a second at most. CUDA_ERROR_INVALID_HANDLE: it is no
 * stream; another error: it is not over. */
CUresult context_wait_foreign(const struct context *context, CUstream stream);
/* The driver's ordinal of a context's device. */
int context_device(const struct context *context);
/* Where segments come from: the kinds of the pools. */
enum memory_kind { MEMORY_CUDA, MEMORY_NCCL };
/* Do its new segments come from NCCL? */
bool context_backed_by_nccl(const struct context *context);
/* From now on all contexts' new segments come from NCCL, or from the driver, and requests are served from such alone.
 * NCCL: nccl_backing_find has succeeded. */
void context_back(enum memory_kind kind);
/* Has it met an error that it does not recover from? */
bool context_failed(const struct context *context);
/* The context of a pool's arg. */
struct context *context_of(const struct pool *pool);
/* Count a request that went to the driver unpooled. */
void context_bypassed(struct context *context);

/* Bytes in the device's pools of which nothing is handed out, and that are on their way back to the driver. */
uint64_t context_idle_bytes(int device);

/*
 * Where the bytes of all of the device's pools are; largest is the largest of any. Looks at every block, unless whole
 * is false: then held and live alone are set, and live includes what is kept back.
 */
void context_survey(int device, bool whole, struct pool_survey *ret_sum);

/* Make what was freed on a device available again, if that takes no waiting. */
void context_kept_ask(int device);
/* Before the driver is asked how much is free: let arrive what can without a wait. */
void context_settle_device(int device);

/* How often memory has gone back to a driver, and is there; now it has once more. */
unsigned int context_arrivals(void);
void context_arrived(void);

/* Give back what the pools of the current device hold without need. True if that was anything, or if other memory has
 * arrived since there were so many arrivals. */
bool context_trim(unsigned int before);

/* The same for a device (CONTEXT_ALL: all), because the program says so. The bytes; 0 while a stream captures. */
uint64_t context_release(int device, const char *why);

/* Never pool in the context of this handle (a green one). */
void context_exempt(CUcontext handle);

/*
 * Look at a context that is not the calling thread's own: it may be leaving. True if it is pooled and stays until
 * unpin; context_leaving waits for that.
 */
bool context_pin(struct context *context);
void context_unpin(struct context *context);

/*
 * A context is about to go: no new requests are served from its pool. context_gone(true) afterwards forgets its memory,
 * context_gone(false) takes the context back into use. NULL is allowed.
 */
struct context *context_leaving(CUcontext handle);
struct context *context_leaving_primary(CUdevice device);
void context_gone(struct context *context, bool gone);

/* After a call that may have ended the primary context that was leaving: forget it if it is no longer active. */
void context_primary_gone(struct context *context);
/* Around a call that may end primary contexts, of which it is not known which. */
#define CONTEXTS_MAX 256
struct context_sweep {
    uint64_t marked[CONTEXTS_MAX / 64]; /* entries that are leaving */
};
void context_sweep_begin(struct context_sweep *ret_sweep);
void context_sweep_end(const struct context_sweep *sweep);

/* A call of the program in the current context has returned this error. */
void context_saw(CUresult result);

/*
 * Wait on the host for what came before the frees in a device's contexts that did not wait themselves. This thread's
 * own for as long as it takes: natively they would have; where another thread ordered them and has ordered more
 * since, a second at most. Others' for a second at most, and only if asked: natively that
 * thread might still be waiting, for something that this one has yet to do. False: the device has no context.
 */
#define CONTEXT_ALL (-1)
bool context_wait_frees(int device, bool others);

/*
 * Wait on the host for all work of a device's contexts, or of the current one if none of them is pooled. False: that
 * cannot be: one has failed, or a stream captures and the driver has no way to wait beside it.
 */
bool context_wait_device(int device);
/* The same for so many milliseconds at most, because what is waited for may itself wait for this thread; false as well:
 * it is not over, a stream captures for more than a second of that, or the driver cannot be asked (before 12.5). */
bool context_wait_device_for(int device, unsigned int ms);

/* For CUPOOL_DEBUG: fill device memory of a context, or read it when all work is over; both wait, the latter until
 * limit, in nanoseconds of the monotonic clock; 0: as a free does. 0 or -EIO; not while a stream captures. */
int context_write(struct context *context, uint64_t addr, unsigned char byte, size_t size);
int context_read(struct context *context, uint64_t addr, void *buf, size_t size, uint64_t limit);

/* For a clock's tick: give back what has been idle for age ticks (0: nothing), and let arrive what is on its way. */
void context_decay_all(unsigned int age);

/* Wait until no call that orders frees is in flight in the context of this handle (NULL: in any). */
void context_settle(CUcontext handle);

/*
 * Statistics by device: the sums over its contexts, live or gone; of the peaks, the greatest sum over contexts that
 * were there at a time: contexts that come one after the other have the peak of one. ending: at exit, maybe below a
 * signal handler, where nothing waits for long; else contexts that are about to go are left out.
 */
void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg);

#endif
