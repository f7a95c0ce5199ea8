/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver_free.h - frees of memory that is not pooled, which wait in the driver. Meanwhile the driver holds up what
 * other threads record or launch in the context.
 *
 * So no thread asks by an event of the context whether work has ended (POOL_ORDER_ASK) while such a free is under way,
 * and the answer is "not yet". Frees by a library that are not seen, and other calls that wait in the driver, are left
 * out.
 *
 * Threads: every function may be called from any thread. No lock. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_DRIVER_FREE_H
#define CUPOOL_SHIM_CONTEXT_DRIVER_FREE_H

#include "real/hooks.h"

struct context;

/* Around a free of the driver's of memory, of the device or pinned, which need not be there. begin waits for a question
 * under way, some microseconds. Returns the context for end; NULL: no pooled one. */
struct context *driver_free_begin(CUdeviceptr addr);
void driver_free_end(struct context *context);

#endif
