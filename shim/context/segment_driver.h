/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_driver.h - where the segments of a context's pool come from and how they go back: the pool's backend.
 *
 * Ownership: a segment belongs to the pool from alloc to free, see struct pool_backend_ops.
 *
 * Threads: as struct pool_backend_ops. No locks. Errors: -ENOMEM and -EIO, as there.
 */
#ifndef CUPOOL_SHIM_CONTEXT_SEGMENT_DRIVER_H
#define CUPOOL_SHIM_CONTEXT_SEGMENT_DRIVER_H

#include "pool.h"

/* The backend of every context's pool, whose arg is the context. */
extern const struct pool_backend_ops segment_ops;

#endif
