/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_free.h - how much memory a device has left, as far as the library knows: each context has a figure for its
 * device. A free asks for it, so the driver is asked only where the figure could be wrong and matters.
 *
 * The figure knows of the pools' segments and of calls of the program that take memory past the pools. It does not know
 * of other processes, nor of managed memory, until the next segment comes: then the driver has been asked.
 *
 * Threads: every function may be called from any thread. No locks. No function fails.
 */
#ifndef CUPOOL_SHIM_CONTEXT_DEVICE_FREE_H
#define CUPOOL_SHIM_CONTEXT_DEVICE_FREE_H

#include <stdbool.h>
#include <stddef.h>

struct context;

/* Ask the driver, on a thread on which the context is current; or enter it first, but not while a stream captures. */
void device_free_ask(const struct context *context);
void device_free_look(struct context *context);

/* A segment goes back to the driver, or, less, turns out to have been there. */
void device_free_more(const struct context *context, size_t size);
void device_free_less(const struct context *context, size_t size);

/* A call of the program has taken memory past the pools; 0: of unknown size. The device is not known, so every device
 * may have so much less. */
void device_free_taken(size_t size);

/* Is less than 1/RESERVE_PART of the context's device left? */
bool device_free_is_scarce(struct context *context);

#endif
