/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm_kept.h - buffers of virtual memory, for vmm_kept.c and vmm_kept_random.c. A call that must succeed and fails ends
 * the program.
 *
 * Threads: any. No locks.
 */
#ifndef CUPOOL_TESTS_E2E_VMM_KEPT_H
#define CUPOOL_TESTS_E2E_VMM_KEPT_H

#include <cuda.h>

#include "../program.h"

#define UNIT ((size_t)2 << 20)
#define PART ((size_t)4096) /* of a buffer's beginning and end that is written: its first and last byte are read */
/* Physical memory has its contents without a mapping, as on a GPU; not simulated. */
extern bool contents_stay;

struct buffer {
    CUdeviceptr at;
    size_t size;
    CUmemGenericAllocationHandle handle;
};

CUmemAllocationProp properties(void);
/* The calls of a buffer; those that return a result may fail. */
CUresult create(struct buffer *b);
CUresult let(const struct buffer *b); /* access */
struct buffer take(size_t size);
void give(const struct buffer *b);
void fill(const struct buffer *b, unsigned char byte);
void check(const struct buffer *b, unsigned char byte);
/* Print how much less is free than in the beginning. */
void info(void);

void random_program(uint64_t seed);
void threads(void);
/* A library asks about an address that the driver is about to unmap. */
void asked_from_within(void);
/* vmm_retains.c: a handle of what is exported; 0: a call has failed. */
CUmemGenericAllocationHandle nccl_shares(CUdeviceptr at);
/* NCCL exports a buffer, which the program then gives up. */
void exported_by_nccl(void);
/* vmm_retains.c: NCCL's handle of what is mapped there, 0: the call has failed; and back. */
CUmemGenericAllocationHandle nccl_retains(CUdeviceptr at);
CUresult nccl_releases(CUmemGenericAllocationHandle own);
/* The program gives a buffer up while NCCL has a handle of its memory. */
void held_by_nccl(void);
/* The program asks for a second reference, and gives it back before the memory. */
void retained(void);
/* New addresses where those are that the program has given up. */
void at_its_addresses(void);
/* A host function, where the driver refuses every call, asks about and frees what is kept. */
void called_back(void);

#endif
