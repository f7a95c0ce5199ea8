/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym_next.h - the real dlsym, behind the one that exports/dlsym.c exports.
 *
 * Threads: any thread, with no lock. Safe before the constructors run. No function fails: if there is no real dlsym,
 * one stands in that finds nothing.
 */
#ifndef CUPOOL_SHIM_REAL_DLSYM_NEXT_H
#define CUPOOL_SHIM_REAL_DLSYM_NEXT_H

#include <stdatomic.h>

typedef void *dlsym_fn(void *, const char *);

/* The real dlsym; never our own. */
void *dlsym_real(void *handle, const char *name);

/* Find it, if that has not been done; afterwards cupool_dlsym_next is not NULL. */
dlsym_fn *dlsym_next_get(void);

/* Read by the assembly of exports/. */
extern _Atomic(dlsym_fn *) cupool_dlsym_next __attribute__((visibility("hidden")));

#endif
