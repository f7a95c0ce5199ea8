/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - CUPOOL_DEBUG: finding the program's own memory errors.
 *
 * * own: every request is a driver allocation of its own, so that compute-sanitizer, cuda-gdb and the GPU itself
 *   detect overruns and uses after the free as they do natively. Set automatically under compute-sanitizer and
 *   cuda-gdb.
 * * guard: pooled, with guard bytes behind every block, which are checked when the block is freed and at exit.
 * * both: a report at exit of memory that was never freed, by caller.
 *
 * It is not fast: everything here waits for the device and takes one lock.
 *
 * Threads: every function may be called from any thread. The lock is private to guard.c and never held over a CUDA
 * call.
 */
#ifndef CUPOOL_SHIM_REPORT_GUARD_H
#define CUPOOL_SHIM_REPORT_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* An enum conf_debug; DEBUG_OFF, which is 0, until guard_start was called. Only guard.c writes it. */
extern atomic_int guard_mode;

/* False: none of the functions below has anything to do. */
static inline bool guard_on(void)
{
    return atomic_load_explicit(&guard_mode, memory_order_relaxed) != 0;
}

/* Read the setting and look for debuggers among the loaded objects; once, before the functions below. */
void guard_start(void);
/* True if requests must not be pooled. */
bool guard_own(void);

/* The bytes to request from the pool for a request of size bytes. */
size_t guard_padded(size_t size);
/* A block was handed out. context: its pool's; NULL if it is a driver allocation. caller: the return address. */
void guard_alloc(struct context *context, uint64_t addr, size_t size, const void *caller);
/* Set *size to the size that the program requested for the block at addr; unchanged if that is not known. */
void guard_block_size(uint64_t addr, size_t *size);
/* A block is about to be freed. may_wait: natively this free waits for the device. */
void guard_free(uint64_t addr, bool may_wait);
/* A context has gone, and the contents of its memory with it. */
void guard_context_gone(const struct context *context);

#endif
