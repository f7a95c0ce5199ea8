/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlsym_next.h - our dlsym and the way to the real one.
 *
 * A statically linked cudart, and every shared one since 11.3, gets at the driver through dlsym(libcuda,
 * "cuGetProcAddress"). The exported dlsym (exports/dlsym_ARCH.S) answers that call and those for the GUARD rows of hooks.def,
 * and jumps to the real dlsym for all others: it must not call, because glibc reads the return address to find the
 * object that RTLD_NEXT refers to.
 *
 * Threads: any thread, with no lock. Safe before the constructors run.
 */
#ifndef CUPOOL_SHIM_DLSYM_NEXT_H
#define CUPOOL_SHIM_DLSYM_NEXT_H

/* The real dlsym; never our own. */
void *dlsym_real(void *handle, const char *name);

#endif
