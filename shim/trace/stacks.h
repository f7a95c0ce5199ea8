/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stacks.h - CUPOOL_TRACE_STACKS: the call stack of a request in its allocation event. Each address is written once
 * with its object (event `frame`) and then named by a number.
 *
 * It is no symboliser: frames appear as object and offset, and cupool-trace finds the functions and lines. It does not
 * suit threads with very small stacks: libc's unwinder needs some 20 KiB.
 *
 * Threads: every function may be called from any thread. No locks: two threads may need a number at once, and its event
 * may come after the first allocation that names it.
 */
#ifndef CUPOOL_SHIM_TRACE_STACKS_H
#define CUPOOL_SHIM_TRACE_STACKS_H

#include <stddef.h>
#include <stdint.h>

/* Record the event `alloc`, with the stack if the setting asks for it. caller: the return address of the exported
 * function. Only if trace_allocs(). */
void stacks_alloc(int device, uint64_t addr, size_t size, const void *caller);

#endif
