/* SPDX-License-Identifier: Apache-2.0 */
/*
 * caller.h - classifies the caller of a hook by the object that holds its return address.
 *
 * It does not walk the stack. A call through a shared libcudart counts as the program's at the runtime's hooks, and as
 * libcudart's, which counts as the program, at the driver's hooks.
 *
 * Threads: every function may be called from any thread. No locks.
 */
#ifndef CUPOOL_SHIM_REAL_CALLER_H
#define CUPOOL_SHIM_REAL_CALLER_H

#include <stdbool.h>
#include <stddef.h>

enum caller {
    CALLER_PROGRAM,  /* any caller that is not in the lists: pooled and watched */
    CALLER_MATH,     /* NVIDIA's math libraries: as the program, but they wait for host memory that they map */
    CALLER_INSIDE,   /* NCCL and the like: their own memory is the driver's, and they order work in streams */
    CALLER_TRANSFER, /* MPI, UCX and the like: so is theirs, and they move memory outside the context's order */
};

/* The class of the code at this return address. */
enum caller caller_of(const void *address);

/* True for libraries whose own memory comes from the driver, not from a pool. */
static inline bool caller_is_outside(enum caller caller)
{
    return caller == CALLER_INSIDE || caller == CALLER_TRANSFER;
}
/* Around a dlclose: another object may be loaded where the one that goes was, so no class may be cached meanwhile, and
 * none that was is valid afterwards. Calls may overlap. */
void caller_unload_begin(void);
void caller_unload_end(void);
/* True in a dlclose of this thread, whose destructors may call our functions: what is found may be gone after it. */
bool caller_unloads(void);

/* Write an address for people: object, and the address in its file, as addr2line takes it; before glibc 2.35 also the
 * function, under the loader's lock. */
void caller_name(const void *address, char *buf, size_t len);

#endif
