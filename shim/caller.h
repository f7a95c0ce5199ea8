/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.h - whose call is it? Communication libraries share memory with other processes and devices behind the
 * program's back; what they allocate for themselves is left to the driver.
 *
 * Threads: lock-free.
 */
#ifndef CUPOOL_SHIM_CALLER_H
#define CUPOOL_SHIM_CALLER_H

#include <stdbool.h>

/* True if the code at this return address belongs to a library whose own memory is not pooled. */
bool caller_is_exempt(const void *address);

/* The same question about an object's file name; for tests. */
bool caller_name_is_exempt(const char *path);

#endif
