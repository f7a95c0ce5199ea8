/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - the decisions behind the exported functions: is a request pooled or passed on, does a free belong to a
 * pool.
 *
 * It does not return cudaError_t; exports/ does. The library starts with the first call that could be pooled; before
 * that it reads, opens and starts nothing.
 *
 * Threads: every function may be called from any thread. A forked child of a process that has used the pool passes
 * every call through.
 */
#ifndef CUPOOL_SHIM_SERVE_SERVE_H
#define CUPOOL_SHIM_SERVE_SERVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/enter.h"
#include "real/hooks.h"

struct context;
struct pins;
struct pool_asking;

/* The action that an exported function has to take. */
enum serve_verdict {
    SERVE_DONE,    /* served */
    SERVE_FORWARD, /* call the next function, which may reach our hooks again one layer further down */
    SERVE_BYPASS,  /* as FORWARD, between process_bypass_begin and _end: hooks further down must not serve it */
    SERVE_REFUSED, /* there is no memory, and the driver's may not take its place (NCCL backs the pool) */
    SERVE_INVALID, /* free: the address is in a pool, but no live block starts there */
    SERVE_NOWHERE, /* free: the address is in a pool, but the stream is invalid */
    SERVE_FAILED,  /* free: it could not be ordered, most likely because of an earlier error of the context. The memory
                    * is freed all the same, so nobody may free it again: it may be another thread's already */
    SERVE_OVER,    /* free: the thread's current context has ended */
    SERVE_UNFREED, /* free: as FAILED, but nothing has been freed */
};

/* Until the next call with NULL, requests that reach the driver's hooks on this thread count as made by this caller. */
void serve_call_from(const void *caller);
/* That caller, or the one given. */
const void *serve_caller(const void *caller);

/* The trace is about to tell of something before any request was pooled: start the library. */
void serve_begin(void);

/* Give back the idle segments of a device (CONTEXT_ALL: of all); returns the bytes. */
uint64_t serve_release(int device, const char *why);

/* Serve a request of size bytes. caller: the return address of the exported function. by_runtime: it is the runtime's
 * function, whose first request in a context goes on to the runtime (context_begin). */
enum serve_verdict serve_alloc(size_t size, const void *caller, bool by_runtime, uint64_t *ret_addr);
/* The driver has no memory for this thread's request. True if serve_alloc has bypassed it without a look at all free
 * memory of the pool (a stream captures, or the limit is reached) and some of that serves it now: *ret_addr. The call
 * that was bypassed then returns this memory as if it were the driver's. */
bool serve_alloc_refused(size_t size, uint64_t *ret_addr);
/* One of these follows each bypassed call of a request. The call has got memory, from the driver or by
 * serve_alloc_refused. */
void serve_bypassed(uint64_t addr, size_t size, const void *caller);
/* It has failed. True if the pool serves such callers, and so has begun: a lack of memory is worth a report. */
bool serve_bypass_failed(const void *caller);
/* Free the memory at addr; see enum serve_verdict. */
enum serve_verdict serve_free(uint64_t addr);
/* For cudaFreeAsync, which natively does not wait: the memory becomes free when stream gets there. */
enum serve_verdict serve_free_later(uint64_t addr, CUstream stream);
/* False: the driver answers no call of this thread, which runs a host function. *ret_over: the thread's current context
 * has ended, and natively each free fails. */
bool serve_is_answered(bool *ret_over);
/* After SERVE_FAILED and SERVE_UNFREED: make the context of the block at addr current for a call that returns this
 * context's error. serve_failed_end must follow, with the same record. */
struct serve_failed {
    struct context *context; /* NULL: none was made current */
    struct visit visit;
};
void serve_failed_begin(uint64_t addr, struct serve_failed *ret_failed);
void serve_failed_end(struct serve_failed *failed);
/* For the background thread: answer other processes that import blocks, and free those that the program has freed and
 * that nobody holds any more. */
void serve_ipc_tick(uint64_t now);

/*
 * For a pooled call of the runtime that natively would have given the thread a context: true if the thread has none,
 * and making one disturbs no capture. Once the thread has been seen to have one, serve_had_context says so.
 */
bool serve_lacks_context(void);
extern __thread bool serve_had_context __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* A call of this thread has ended a context, perhaps the current one. */
void serve_context_ended(void);

/* For a call that is not pooled and that the driver refused for lack of memory; `before` is serve_arrivals() before the
 * call, which was for so many bytes or more (0: not known). often: it has been refused several times. True if the call
 * may succeed now. Nothing goes back for a call that would not succeed with all idle memory. */
unsigned int serve_arrivals(void);
bool serve_give_back(unsigned int before, size_t wanted, bool often);
/* As serve_give_back, which is for the current device; for this device, or for every one and since now. They need no
 * current context. */
bool serve_give_back_on(int device, unsigned int before, size_t wanted, bool often);
bool serve_give_back_anywhere(size_t wanted);
/* As serve_give_back, of other processes on the current device, until they have given `enough` bytes back (0: all are
 * asked); or of all processes on this device. For how often, see neighbours_ask. */
bool serve_ask(size_t wanted, size_t enough, struct pool_asking *asking);
bool serve_ask_on(int device, size_t wanted, struct pool_asking *asking);
/* True if they have been asked for this thread's last request of the pool, in vain. The next call says false. */
bool serve_has_asked(void);

/* Before a capture begins on the current device: publish the deferred blocks that need no wait, because no order is
 * possible during the capture. */
void serve_publish(void);
/* Before the driver is asked for the free memory of the current device: collect memory that has arrived. */
void serve_collect(void);
/* The bytes to add to the driver's figure of free memory on the current device. *ret_used: the bytes of it that the
 * pools hold and do not count among these. */
uint64_t serve_idle_bytes(uint64_t *ret_used);

/* True if CUPOOL_FREE=auto takes this caller's calls into account. */
bool serve_watches(const void *caller);
/*
 * The range that a program gets for the allocation around addr: the block. Libraries that pass memory on to others get
 * the driver's allocation instead. True: *ret_base and *ret_size are the answer, with size 0 if there is no live block.
 * False: ask the driver.
 */
bool serve_range(uint64_t addr, const void *caller, uint64_t *ret_base, size_t *ret_size);
/* *ret_handle: the context of the pool that has this address. Left as it is if no pool has it. */
void serve_context(uint64_t addr, CUcontext *ret_handle);

/* True if addr is in the memory of a pool but in no live block, or begins a segment on its way back. Natively the
 * driver does not know such an address. */
bool serve_is_freed(uint64_t addr, const void *caller);

/* A caller asks for an attribute of this address, or prepares it for access by a device that is no GPU. */
void serve_pointer_asked(uint64_t addr, int attribute, const void *caller);
void serve_rdma_prepared(uint64_t addr, const void *caller);

#endif
