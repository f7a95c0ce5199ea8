/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - steps that the exported functions of the runtime and of the driver have in common.
 *
 * It decides nothing; serve/ does.
 *
 * Threads: any thread. No locks.
 */
#ifndef CUPOOL_SHIM_EXPORTS_MEMORY_H
#define CUPOOL_SHIM_EXPORTS_MEMORY_H

#include <stdbool.h>

#include "serve/serve.h"

/* True if a context that lives is current, without which the driver refuses most calls, whatever the address. */
bool memory_has_context(void);

/* Free the memory at addr when stream gets there. While its stream captures, cudaFreeAsync natively accepts only memory
 * of the graph and fails for any other address. A default stream is none without a context: the driver then refuses the
 * call, and the runtime first makes a context current and calls the driver's function. to_driver: the caller passes a
 * call on to the driver's function, or to the runtime's whose call of it is hooked. */
enum serve_verdict memory_free_async(uint64_t addr, CUstream stream, bool to_driver);

/*
 * A query for free memory. It is made again if released memory has arrived meanwhile, which would count twice, as free
 * and as on its way:
 *
 *     struct memory_query query = {0};
 *
 *     do {
 *         memory_query_begin(&query);
 *         result = ...;
 *     } while (memory_query_again(&query));
 */
struct memory_query {
    unsigned int arrivals, tries;
};
void memory_query_begin(struct memory_query *query);
bool memory_query_again(struct memory_query *query);

/* Add the pool's idle bytes to the driver's answer. */
void memory_add_idle(size_t *free, const size_t *total);

#endif
