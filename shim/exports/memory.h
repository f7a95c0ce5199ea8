/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - steps that the exported functions of the runtime and of the driver have in common.
 *
 * What it is not: a decision; serve/ makes these.
 *
 * Threads: any thread. No locks.
 */
#ifndef CUPOOL_SHIM_EXPORTS_MEMORY_H
#define CUPOOL_SHIM_EXPORTS_MEMORY_H

#include "serve/core.h"

/* Free the memory at addr when stream gets there. While its stream captures, cudaFreeAsync natively accepts only memory
 * of the graph and fails for any other address. */
enum core_verdict memory_free_async(uint64_t addr, CUstream stream);

/* A query for free memory, repeated if released memory has arrived meanwhile: that memory would count twice, as free
 * and as on its way. */
#define SETTLED(call)                                                                                                  \
    __extension__({                                                                                                    \
        __typeof__(call) answer_;                                                                                      \
        unsigned int arrivals_, tries_ = 0;                                                                            \
        do {                                                                                                           \
            core_idle_settle();                                                                                        \
            arrivals_ = core_arrivals();                                                                               \
            answer_ = (call);                                                                                          \
            core_idle_settle();                                                                                        \
        } while (arrivals_ != core_arrivals() && ++tries_ < 8);                                                        \
        answer_;                                                                                                       \
    })

/* Add the pool's idle bytes to the driver's answer. */
void memory_add_idle(size_t *free, const size_t *total);

#endif
