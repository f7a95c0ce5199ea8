/* SPDX-License-Identifier: Apache-2.0 */
/* pool_observer.h - writes the events of a pool to the trace. It decides nothing. Threads: as struct pool_observer_ops;
 * no locks of its own. */
#ifndef CUPOOL_SHIM_CONTEXT_POOL_OBSERVER_H
#define CUPOOL_SHIM_CONTEXT_POOL_OBSERVER_H

#include <stdint.h>

#include "pool.h"

/* For pools whose arg is a struct context. */
extern const struct pool_observer_ops observe_ops;

/* The bytes that were given back because they had been idle for CUPOOL_DECAY, of all devices. */
uint64_t observe_decayed(void);

#endif
