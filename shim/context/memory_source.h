/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory_source.h - the functions of one backend: how segments of its kind come and go.
 *
 * It is a type alone; backend.h has the table of all backends. A source does not look for idle memory when it is
 * refused, does not wait for the device before memory goes unless it says so, and registers nothing; segment_driver.c
 * does.
 *
 * Ownership: memory belongs to the caller from get to put.
 *
 * Threads: every function may be called from any thread that has pinned the context or is in a call on it. The caller
 * holds no lock.
 */
#ifndef CUPOOL_SHIM_CONTEXT_MEMORY_SOURCE_H
#define CUPOOL_SHIM_CONTEXT_MEMORY_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "real/hooks.h"

struct context;

struct memory_source {
    /* Get size bytes in the context, which is current. An error other than CUDA_ERROR_OUT_OF_MEMORY: not now. */
    CUresult (*get)(struct context *context, CUdeviceptr *ret_addr, size_t size);
    /* Give memory back that is registered nowhere. True: it has arrived; false: it arrives later, see arrivals.h. */
    bool (*put)(struct context *context, uint64_t addr, size_t size);
    /* put does not know what work uses the memory: the device has to be waited for before. */
    bool put_needs_wait;
    /* NULL: it always can. The reason why this process cannot have such memory, or NULL; a context is current. */
    const char *(*lacks)(void);
    /* NULL: 0. As `lacks`, for a program that asks later: 0; -ENOTSUP, and the log says why; -EAGAIN: no context is
     * current, or a stream captures. */
    int (*find)(void);
};

#endif
