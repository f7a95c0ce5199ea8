/* SPDX-License-Identifier: Apache-2.0 */
/*
 * real_internal.h - what next.c, driver_calls.c and which_cudart.c share. Private to real/.
 *
 * Threads: any thread. No locks.
 */
#ifndef CUPOOL_SHIM_REAL_REAL_INTERNAL_H
#define CUPOOL_SHIM_REAL_REAL_INTERNAL_H

#include <stdbool.h>

#include "real/real.h"

/* The name of each hook, and whether it is a function of the driver. */
struct real_hook {
    const char *name;
    bool driver;
};
extern const struct real_hook real_hooks[REAL_COUNT];

/* Find the next definitions of all hooks. */
void next_fill(void);

/* The next definition of a hook; NULL: nothing that is loaded defines it. */
void *next_get(enum real_symbol symbol);

/* Find the next definitions of cudart's hooks that have not been found; what nothing else defines is the other
 * function, unless others is NULL. */
void next_fill_or(void *const *others);

#endif
