/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pins.h - which threads are in a call on which context, so that a pool is destroyed only when no thread uses it.
 *
 * Each thread has a record. pin_begin writes into it, pin_end clears it: two plain stores, no atomic operation. The
 * thread that ends a context first marks it as leaving (context->leaving, contexts.epoch), then makes every thread of
 * the process pass a memory barrier (membarrier(2)), and then reads all records. So either it finds a thread's mark, or
 * that thread finds the context leaving when it looks after pin_begin. Without membarrier, pin_begin has a fence.
 *
 * It is not a lock, and does not say what a thread does in its call.
 *
 * Threads: every function may be called from any thread; a record is written by its own thread alone. No locks.
 */
#ifndef CUPOOL_SHIM_CONTEXT_PINS_H
#define CUPOOL_SHIM_CONTEXT_PINS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;
struct pool;

/* The number of contexts that a thread can look at at the same time, the one of its request or free included. */
#define PINS_MAX 8

/* The record of a thread. */
struct pins {
    /* Contexts, or an address in one with the lowest bit set; 0: none. The first is the request's or free's own. */
    _Atomic(uintptr_t) on[PINS_MAX];
    atomic_bool sleeps;  /* in a call of the driver that waits for the device, or in none of the driver's calls */
    atomic_bool taken;   /* a thread uses this record */
    atomic_uint *count;  /* where pin_count has counted the thread; NULL: nowhere */
    atomic_uint *inside; /* where pin_inside has; NULL: nowhere */
    unsigned int hurry;  /* 0: pin_hurry_begin has not been called; 1; 2: it has, and an order was left out */
    struct pins *next;
} __attribute__((aligned(64)));

/* This thread's record; NULL: it has none yet, or its marks need a fence. */
extern __thread struct pins *pins_own __attribute__((tls_model("initial-exec"), visibility("hidden")));
/* pin_begin where pins_own is NULL. NULL: no host memory; no thread waits for this call. */
struct pins *pin_begin_slow(uintptr_t on);

/* The mark of a free, whose context is known only after the address has been looked up. */
#define PIN_ADDRESS(addr) ((uintptr_t)(addr) | 1)

/* This thread begins a call on a context or on PIN_ADDRESS; calls do not nest. The caller must then check whether the
 * context is leaving and, if it is, end the call. */
static inline struct pins *pin_begin(uintptr_t on)
{
    struct pins *own = pins_own;

    if (__builtin_expect(!own, 0))
        return pin_begin_slow(on);
    atomic_store_explicit(&own->on[0], on, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    return own;
}

/* End the call that pin_begin or pin_begin_slow has begun; own is its result. */
static inline void pin_end(struct pins *own)
{
    if (__builtin_expect(own != NULL, 1))
        atomic_store_explicit(&own->on[0], 0, memory_order_release);
}

/* If this thread is in a free, replace its address by the context: called before the memory goes back to the driver,
 * which may hand the address out for another context. */
void pin_resolve(const struct context *context);

/* Keep a context from being destroyed, beside this thread's own call. False: the thread has pinned too many, or there
 * is no host memory. */
bool pins_add(const struct context *context);
/* True if this thread could pin one more. False: there is no host memory for its record, or it has PINS_MAX of them. */
bool pins_possible(void);
void pins_remove(const struct context *context);
/* True if this thread has the context pinned, in a call on it or by pins_add. */
bool pins_has(const struct context *context);

/* Around a call of the driver that waits for the device, as the driver's own free does: the context may end beside it,
 * but its pool stays. */
void pin_sleep(const struct context *context);
void pin_wake(void);

/* Count this thread until pin_uncount, or until it ends: one that is cancelled in a call of the driver does not come
 * back. False: it is counted already, and nothing has changed. */
bool pin_count(atomic_uint *count);
void pin_uncount(atomic_uint *count);

/* The caller has counted itself there, until it takes that back (NULL), or until the thread ends. */
void pin_inside(atomic_uint *count);

/* Between begin and end this thread's orders must not be held up by a free in the driver: they are left out beside one
 * (order_device). pin_hurry_end: true if one was. */
void pin_hurry_begin(void);
bool pin_hurry_end(void);
bool pin_hurries(void);
void pin_left_out(void);

/* For the thread that ends a context, after it has marked the context: afterwards every other thread has seen that, or
 * its own mark is visible. */
void pins_fence(void);
/* True if a thread is in a call on this context, of which pool is or was the pool. Without sleepers, threads that
 * wait for the device do not count, nor does this thread, which may be below a signal handler that interrupted its
 * own call. */
bool pins_any(const struct context *context, const struct pool *pool, bool sleepers);

#endif
