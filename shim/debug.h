/* SPDX-License-Identifier: Apache-2.0 */
/*
 * debug.h - CUPOOL_DEBUG: finding the program's own memory errors.
 *
 *  - own: every request is a driver allocation of its own, so that compute-sanitizer, cuda-gdb and the GPU itself see
 *    overruns and uses after the free as they do natively. On by itself under compute-sanitizer and cuda-gdb.
 *  - guard: pooled, with guard bytes behind every block, which are looked at when it is freed and at exit.
 *  - both: at exit, what was never freed, by caller.
 *
 * What it is not: fast. Everything here waits for the device and takes one lock.
 *
 * Threads: every function, from any thread. The lock is private to debug.c and never held over a CUDA call.
 */
#ifndef CUPOOL_SHIM_DEBUG_H
#define CUPOOL_SHIM_DEBUG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* enum conf_debug; known once debug_start was called, and DEBUG_OFF, which is 0, before. Only debug.c writes it. */
extern atomic_int debug_mode;

/* False: none of the functions below has anything to do. */
static inline bool debug_on(void)
{
    return atomic_load_explicit(&debug_mode, memory_order_relaxed) != 0;
}

/* Look at the setting and at what is loaded; once, before the rest. */
void debug_start(void);
/* True if requests are not to be pooled. */
bool debug_own(void);

/* How much to ask of the pool for a request of size bytes. */
size_t debug_padded(size_t size);
/* A block was handed out; context: of its pool, NULL if it is the driver's own. */
void debug_alloc(struct context *context, uint64_t addr, size_t size, const void *caller);
/* The size that the program asked for of the block at addr; *size stays where that is not known. */
void debug_size(uint64_t addr, size_t *size);
/* A block is about to be freed; may_wait: natively that waits for the device. */
void debug_free(uint64_t addr, bool may_wait);
/* A context has gone, and the contents of its memory with it. */
void debug_context_gone(const struct context *context);

#endif
