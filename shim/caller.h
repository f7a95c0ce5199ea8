/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.h - whose call a hook serves, told by the object that holds the return address.
 *
 * What it is not: a stack walk. What the program calls through a shared libcudart appears as the program's at the
 * runtime's hooks, and as libcudart's, which counts as the program, at the driver's.
 *
 * Threads: every function, from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_CALLER_H
#define CUPOOL_SHIM_CALLER_H

#include <stddef.h>

enum caller {
    CALLER_PROGRAM,  /* anybody who is not in the lists: pooled and watched */
    CALLER_MATH,     /* NVIDIA's math libraries: the same, but that they wait for what they map for themselves */
    CALLER_INSIDE,   /* NCCL and the like: what they take for themselves is the driver's; they order in the stream */
    CALLER_TRANSFER, /* MPI, UCX and the like: the driver's too; they move memory behind the context's back */
};

/* Of the code at this return address. */
enum caller caller_of(const void *address);

/* Of an object's file name; for tests. */
enum caller caller_of_name(const char *path);

/* Where an address is, for people: object and offset; before glibc 2.35 the function too, under the loader's lock. */
void caller_name(const void *address, char *buf, size_t len);

#endif
