/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simgpu.h - the few functions of the simulated libcuda that a real one does not have.
 *
 * Tests and the NCCL stand-in find these extras with dlsym, so that one program runs on the simulated and on a real
 * GPU.
 *
 * Threads: callable from any thread, also from host functions of a stream.
 */
#ifndef SIMGPU_H
#define SIMGPU_H

#include <stddef.h>

/* How often the exported symbol (cuMemAlloc_v2) or all versions of a base name (cuMemAlloc) were called from
 * outside. */
unsigned long simgpu_count(const char *name);

/* The next call of this symbol returns code and does nothing; also if cupool makes it. The name has to stay. */
void simgpu_refuse(const char *symbol, int code);

/* From now on each call of this symbol begins so much later; also if cupool makes it. The name has to stay. */
void simgpu_slow(const char *symbol, unsigned int ms);

/* From now on each call of this symbol calls a function first, as if a library had patched it. The name has to stay. */
void simgpu_before(const char *symbol, void (*call)(void));

/* Where a host function may read and write n bytes of device memory; NULL if they do not lie in one live allocation.
 * The address that the program holds is not accessible, as on a GPU. Only work that a stream orders may use it: it is
 * valid until the allocation is freed. */
void *simgpu_host(unsigned long long addr, size_t n);

/* Write n bytes to device memory at once, as a network card does with RDMA: no stream knows of it. 0, or -1 if they do
 * not lie in one live allocation. */
int simgpu_poke(unsigned long long addr, const void *from, size_t n);

/* Device work that touches no memory and needs no host function, as a kernel that computes: it ends when *until (NULL:
 * nothing) is not zero, or after max_us at the latest. stream: a CUstream or cudaStream_t. Returns a CUresult. */
int simgpu_kernel(void *stream, const int *until, unsigned int max_us);

/* A kernel that reads the first n bytes of a texture object and writes them to device memory. It looks up what the
 * object is when it runs: another one, if it was destroyed and its number given out again; an illegal address (700), if
 * there is none. stream and result as simgpu_kernel's. */
int simgpu_fetch(void *stream, unsigned long long texture, unsigned long long to, size_t n);

#endif
