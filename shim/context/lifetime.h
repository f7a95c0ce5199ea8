/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lifetime.h - how contexts become known: an entry with a pool is made at the first sight of a context.
 *
 * It ends no context; context_end.h does. Contexts made from green contexts have no pool: their queue does not order
 * work that runs in the primary context.
 *
 * Threads: every function may be called from any thread; the caller holds no lock. Errors: NULL, as each function says.
 */
#ifndef CUPOOL_SHIM_CONTEXT_LIFETIME_H
#define CUPOOL_SHIM_CONTEXT_LIFETIME_H

#include <stdatomic.h>

#include "base/conf_types.h"
#include "context/pins.h"
#include "real/hooks.h"
#include "real/real.h"

struct context;

/* The context that is current on this thread; registered if this is its first sight. NULL: no context is current, or it
 * is not pooled. */
struct context *context_current(const struct real_driver *driver);

/*
 * As context_current, for a request: the context and its pool stay valid until pin_end(*ret_own), even if a call of
 * another thread ends the context meanwhile. NULL: as above; then pin_end must not be called.
 *
 * by_runtime: the request has come to the runtime's function. NULL also for the first one in a primary context, which
 * the caller passes on to the runtime: natively that takes a reference of its own, with which the context outlives the
 * program's. The runtime comes back through the driver's hook.
 */
struct context *context_begin(const struct real_driver *driver, bool by_runtime, struct pins **ret_own);

/* A request that the runtime has passed on to the driver is in this context: the runtime knows it. */
void context_met_runtime(struct context *context);

/* There may be a primary context that the runtime does not know. */
extern atomic_bool context_unmet;
/* The current context, if it is one. NULL: it is not, or a stream captures. */
struct context *context_unmet_current(const struct real_driver *driver);

/* From now on new segments of all contexts come from this backend, and only such segments serve requests. Requires that
 * backend_find has succeeded. */
void context_back(enum backend backend);

/* The most bytes that the pool of each context of a device (CONTEXT_ALL: of all) holds from now on; 0: no limit.
 * Memory beyond that stays until it is idle. */
void context_limit_set(int device, uint64_t limit);

/* A call of the program has returned this result. If it is sticky, and the current context's, that is marked as
 * failed. */
void context_saw(CUresult result);

#endif
