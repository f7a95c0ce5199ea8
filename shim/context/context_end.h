/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context_end.h - how contexts end: which calls may end one, which threads are waited for, and what is destroyed then.
 *
 * It makes no call that ends a context itself; the exported functions do.
 *
 * A call of the program that may end a context has three steps. First the context is marked as leaving: no new request,
 * pin or free begins to use its pool. This thread then waits for all threads in a call on the context, because they
 * pass its handles to the driver, except those that wait for the device in the driver, as they natively do beside such
 * a call. Second the program's call is made. Third, if the context is gone, this thread waits for all threads and
 * destroys the pool. If a thread does not leave within a second, the pool lingers, and is destroyed when another
 * context comes or goes.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_CONTEXT_END_H
#define CUPOOL_SHIM_CONTEXT_CONTEXT_END_H

#include <stdbool.h>
#include <stdint.h>

#include "context/limits.h"
#include "real/hooks.h"
#include "real/real.h"

struct context;

/*
 * Around a call that may end a context. The captures of one without an entry are the caller's to forget
 * (capture_gate.h), before context_gone or context_primary_gone. context_leaving stops new requests from being served
 * from its pool. Afterwards context_gone(true) forgets its memory, and context_gone(false) takes the context back into
 * use; it accepts NULL.
 */
struct context *context_leaving(CUcontext handle);
struct context *context_leaving_primary(CUdevice device);
void context_gone(struct context *context, bool gone);

/* After a call that may have ended the primary context: forget the context if the driver says it is no longer
 * active. */
void context_primary_gone(struct context *context);
/* After such a call, for a primary context without an entry: true if the driver says that it is no longer active. */
bool context_primary_is_over(const struct real_driver *driver, CUdevice device);
/* After a call that gave up a reference to this context, which was current (context: its entry, as context_leaving has
 * returned it): was that its last reference? */
bool context_is_over(const struct context *context, CUcontext handle);
/* Around a call that may end primary contexts where we cannot know which ones. */

struct context_sweep {
    uint64_t marked[CONTEXTS_MAX / 64]; /* a bit for each entry that is marked as leaving */
};
void context_sweep_begin(struct context_sweep *ret_sweep);
void context_sweep_end(const struct context_sweep *sweep);

/* Destroy the pools in `lingering` that no thread uses any more. */
void context_lingering_end(void);

#endif
