/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_double.h - a NCCL made from the rows of hooks/nccl.def, which writes down every call and does nothing.
 *
 * nccl_rows.c and nccl_lives.c call every row and look at every argument and order. Unlike tests/simnccl it moves no
 * data between ranks and does not know NCCL's contract. Memory is made-up addresses.
 *
 * Threads: calls may come from several; the log has a lock. The rest is set while no call is under way.
 */
#ifndef NCCL_DOUBLE_H
#define NCCL_DOUBLE_H

#include "real/hooks.h"

#define DOUBLE_CALLS 256
#define DOUBLE_BYTES 256
#define DOUBLE_COMMS 1024

struct ncclComm {
    int rank, ranks, device;
    ncclResult_t state; /* the answer to ncclCommGetAsyncError */
};

struct double_call {
    const char *name;
    const void *subject; /* the communicator, handle or memory that it is about; NULL: none */
    size_t used;         /* of bytes: the arguments one after the other */
    unsigned char bytes[DOUBLE_BYTES];
};

struct double_state {
    int version;
    int rank, ranks;       /* of communicators that are made next */
    struct ncclComm *next; /* where the next one is made */
    const char *row;       /* the two below are for calls of this one */
    ncclResult_t result;
    void (*inside)(void); /* in the middle of the next one; NULL: nothing */
    unsigned int count;   /* of log */
    struct double_call log[DOUBLE_CALLS];
};

/* One for the process; not a function of NCCL, and so the same one for all. */
struct double_state *double_get(void);
/* Calls of its own functions through the symbol table, as NCCL makes them. */
struct double_nested {
    ncclResult_t (*op)(ncclComm_t comm);
    ncclResult_t (*group_start)(void);
    ncclResult_t (*group_end)(void);
    ncclResult_t (*group_simulate_end)(void);
    ncclResult_t (*memory_alloc)(void **ptr, size_t size);
};
const struct double_nested *double_nested_get(void);

#endif
