/* SPDX-License-Identifier: Apache-2.0 */
/*
 * counters.h - the statistics of each device: the sums over its contexts, live or gone.
 *
 * It counts nothing; the pools do.
 *
 * Threads: every function may be called from any thread. The lock is that of the registry.
 */
#ifndef CUPOOL_SHIM_CONTEXT_COUNTERS_H
#define CUPOOL_SHIM_CONTEXT_COUNTERS_H

#include <stdbool.h>
#include <stdint.h>

#include "pool.h"

struct context;

/*
 * Call `each` with the statistics of each device: the sums over its contexts, live or gone. A peak is the greatest sum
 * over contexts that existed at the same time, so contexts that follow one another have the peak of one. ending: at
 * exit, perhaps below a signal handler, so that no lock is waited for; otherwise contexts that are about to end are
 * left out.
 */
void context_stats_each(bool ending,
                        void (*each)(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed),
                        void *arg);

/* Keep the counters of an ending context, whose pool has these. */
void counters_keep(struct context *context, const struct pool_stats *stats);

#endif
