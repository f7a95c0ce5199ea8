/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver_free.h - calls of the program that take memory from the device's work and wait in the driver for that work:
 * frees of memory that is not pooled, the ends of arrays. Meanwhile the driver holds up what other threads record or
 * launch in the context.
 *
 * So no thread asks by an event of the context whether work has ended (POOL_ORDER_ASK) while such a call is under way,
 * and the answer is "not yet": these calls close the gate of free_gate.h. Calls by a library that are not seen are left
 * out, and so are calls that wait and hold nothing up (cuCtxSynchronize, cuModuleUnload).
 *
 * Threads: every function may be called from any thread. A thread that ends in such a call, because it is cancelled,
 * counts no more. No lock. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_DRIVER_FREE_H
#define CUPOOL_SHIM_CONTEXT_DRIVER_FREE_H

#include "real/hooks.h"

struct context;

/* Around a call of the driver's that frees memory, of the device or of the host, which need not be there; or, current,
 * that waits for the current context. begin waits for threads inside the gate, some microseconds. Returns the context
 * for end; NULL: no pooled one, or this thread is in such a call already. */
struct context *driver_free_begin(CUdeviceptr addr);
struct context *driver_free_begin_current(void);
void driver_free_end(struct context *context);

#endif
