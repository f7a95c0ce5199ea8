/* SPDX-License-Identifier: Apache-2.0 */
/* observe.h - what happens in a pool, put into the trace. */
#ifndef CUPOOL_SHIM_OBSERVE_H
#define CUPOOL_SHIM_OBSERVE_H

#include "pool.h"

/* For pools whose arg is a struct context. */
extern const struct pool_observer_ops observe_ops;

#endif
