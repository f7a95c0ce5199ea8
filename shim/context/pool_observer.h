/* SPDX-License-Identifier: Apache-2.0 */
/* pool_observer.h - writes the events of a pool to the trace. It decides nothing. Threads: as struct pool_observer_ops;
 * no locks of its own. */
#ifndef CUPOOL_SHIM_CONTEXT_POOL_OBSERVER_H
#define CUPOOL_SHIM_CONTEXT_POOL_OBSERVER_H

#include "pool.h"

/* For pools whose arg is a struct context. */
extern const struct pool_observer_ops observe_ops;

#endif
