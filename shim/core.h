/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - the decisions behind the exported functions: pooled or passed on, ours or not.
 *
 * What it is not: it does not speak cudaError_t; export.c does. It starts with the first call that could be pooled;
 * before that nothing is read, opened or started.
 *
 * Threads: every function, from any thread. A forked child of a process that has used the pool passes everything
 * through.
 */
#ifndef CUPOOL_SHIM_CORE_H
#define CUPOOL_SHIM_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hooks.h"

/* What an exported function should do. */
enum core_verdict {
    CORE_DONE,    /* served */
    CORE_FORWARD, /* call the next one, which may reach us again one layer further down */
    CORE_BYPASS, /* call the next one, with core_bypass_begin and _end around: further down it must not be served either
                  */
    CORE_REFUSED, /* there is no memory, and none of another kind may take its place */
    CORE_INVALID, /* free: the address is ours, but no live block starts there */
    CORE_NOWHERE, /* free: the address is ours, but the stream is none */
    CORE_FAILED,  /* free: ordering failed, most likely because of an earlier error of the context */
};

/* True if the driver API is pooled: allocations through it, and cuGetProcAddress answered with our functions. Lock-free
 * and without memory: asked from inside dlsym.
 */
bool core_hooks_driver(void);

/* True if the calling thread is inside one of our hooks, or the library is switched off: pass everything through. */
bool core_passive(void);

/* May what other calls of the driver do go into the trace? Not if some of them pass by our hooks. */
bool core_traces(void);

/* True if the calling thread is in a call that the library makes for itself. */
bool core_inside(void);

void core_bypass_begin(void);
void core_bypass_end(void);

/* Until it is called with NULL: what reaches the hooks on this thread was begun by this caller. */
void core_call_from(const void *caller);

/* Once started. True: this is a child by _Fork or the system call, which no handler of ours has heard of; nothing is to
 * be written there, for the files are the parent's. */
bool core_is_foreign(void);

/* Something is about to be done that the trace tells of, before anything was pooled. */
void core_begin(void);

/* For the program's own questions. Has a request been looked at? Are requests served, or will they be? False in a
 * forked child, and once our destructor has begun. */
bool core_has_begun(void);
bool core_serves(void);
/* Give back what the pools of a device (CONTEXT_ALL: of all) hold without need; the bytes. */
uint64_t core_release(int device, const char *why);

/* Serve a request. caller: the return address of the exported function. */
enum core_verdict core_alloc(size_t size, const void *caller, uint64_t *ret_addr);
/* A call that was bypassed was refused: true if it is one of those that the pool serves, and something was pooled or
 * tried before. Others' requests are the driver's business alone, and nothing is to be started for them. */
bool core_would_pool(const void *caller);
/* A call that was bypassed has got memory from the driver. */
void core_bypassed(uint64_t addr, size_t size, const void *caller);
enum core_verdict core_free(uint64_t addr);
/* A free that natively does not wait, but happens when stream comes there. */
enum core_verdict core_free_later(uint64_t addr, CUstream stream);

/*
 * A pooled call of the runtime is about to end that natively would have left the thread with a context: true if it has
 * none, and making one disturbs no capture. Answers from memory once the thread had one.
 */
bool core_lacks_context(void);

/* The driver refused memory to a call that is not pooled, which was made when core_arrivals() was before: true if
 * asking again may help. */
unsigned int core_arrivals(void);
bool core_give_back(unsigned int before);

/* Before a capture begins on the current device, which no order may disturb: what was freed and can be used again
 * without a wait. */
void core_kept_ask(void);
/* Before the driver is asked for the free memory of the current device. */
void core_idle_settle(void);
/* Bytes to add to the driver's idea of free memory on the device that is current. */
uint64_t core_idle_bytes(void);

/* Does what this caller does count for CUPOOL_FREE=auto? */
bool core_watches(const void *caller);
/*
 * What a program may know of the allocation around addr: the block. Libraries that hand memory to others are told of
 * the driver's allocation instead. True: *ret_base and *ret_size are the answer, size 0 that there is no live block;
 * false: ask the driver.
 */
bool core_range(uint64_t addr, const void *caller, uint64_t *ret_base, size_t *ret_size);

/* Is addr in memory of the pool, but in no live block? Natively the driver knows nothing of such an address. */
bool core_is_freed(uint64_t addr, const void *caller);

/* Somebody asks for an attribute of this address, or prepares it for access by a device that is no GPU. */
void core_pointer_asked(uint64_t addr, int attribute, const void *caller);
void core_rdma_prepared(uint64_t addr, const void *caller);

/* May an IPC handle of this address be made? False, with a log line, if the importer would get the wrong bytes. */
bool core_ipc_allowed(uint64_t addr);
/* It was made. */
void core_ipc_exported(uint64_t addr, const void *caller);

#endif
