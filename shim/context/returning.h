/* SPDX-License-Identifier: Apache-2.0 */
/*
 * returning.h - the addresses of segments that cuMemFreeAsync has given back and that the driver may still know. A
 * program that frees a block twice gets an error natively. Here the block's segment may be on its way back: the driver
 * would accept its address once more, and crash later.
 *
 * It is not the count of bytes that arrive; arrivals.h is.
 *
 * Threads: every function may be called from any thread. Internally locked.
 */
#ifndef CUPOOL_SHIM_CONTEXT_RETURNING_H
#define CUPOOL_SHIM_CONTEXT_RETURNING_H

#include <stdbool.h>
#include <stdint.h>

struct real_driver;

/* Before cuMemFreeAsync of a segment. Of some thousand segments at a time few are forgotten, of more the oldest. False:
 * the driver cannot tell the segment from later memory, so it has to go back by cuMemFree, after which the driver does
 * not know it. */
bool returning_add(const struct real_driver *driver, uint64_t addr);
/* Is this the address of such a segment, and not of later memory? The driver (NULL: there is none) is asked only if it
 * was one. */
bool returning_is(const struct real_driver *driver, uint64_t addr);

#endif
