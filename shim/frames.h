/* SPDX-License-Identifier: Apache-2.0 */
/*
 * frames.h - CUPOOL_TRACE_STACKS: who asked for a block, in its allocation event: the addresses that the call came
 * through, each written once with its object and symbol (event `frame`) and then named by a number.
 *
 * What it is not: a symboliser; static functions show as object and offset, for addr2line. Not for threads with very
 * small stacks: libc's unwinder needs some 20 KiB, and with the first request that it serves loads libgcc_s.
 *
 * Threads: every function, from any thread. No locks: two threads may need a number at once, and its event may come
 * after the first allocation that names it.
 */
#ifndef CUPOOL_SHIM_FRAMES_H
#define CUPOOL_SHIM_FRAMES_H

#include <stddef.h>
#include <stdint.h>

/* The event `alloc`, with the stack if that is asked for. caller: the return address of the exported function. Only if
 * trace_allocs(). */
void frames_alloc(int device, uint64_t addr, size_t size, const void *caller);

#endif
