/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.h - between the files that run operations: their shapes, batches, and values.
 *
 * Locking: ncclComm.turn is held while a batch runs.
 */
#ifndef SIMNCCL_RUN_H
#define SIMNCCL_RUN_H

#include "simnccl.h"

#define CHUNK ((size_t)256 << 10) /* how much of each rank is reduced at once */

/* The part of a buffer that is used: nothing, a piece of count elements, one for every rank, or these by the root
 * alone. */
enum part { PART_NONE, PART_ONE, PART_ALL, PART_ROOT_ONE, PART_ROOT_ALL };

struct shape {
    const char *name;
    enum part send, recv;
    bool p2p; /* how NCCL does it */
    bool reduces;
    bool recv_rules; /* recv is the larger buffer that every rank has */
};
extern const struct shape shapes[] HIDDEN; /* by enum kind */

struct batch { /* what one host function does */
    ncclComm_t comm;
    struct op *ops;
    bool captured;
    struct batch *next;
};

/* ---- values.c ---- */

HIDDEN size_t type_size(ncclDataType_t type); /* 0: no such type */
/* n pieces, step bytes apart, into one. */
HIDDEN void values_reduce(const struct op *op, char *to, const char *from, size_t step, int n, size_t bytes);
HIDDEN void values_scale(const struct op *op, double factor, char *to, const char *from, size_t bytes);

/* ---- op.c ---- */

HIDDEN bool is_root(const struct op *op);
HIDDEN size_t piece(const struct op *op);                      /* bytes that a rank gives to another */
HIDDEN size_t part_bytes(const struct op *op, enum part part); /* of one of its buffers, on this rank */
/* Finds the records that op uses, and does with them as NCCL does. */
HIDDEN void op_registered(struct op *op, bool captured);

/* ---- exchange.c: the host function of a batch ---- */

HIDDEN void batch_run(void *batch);
HIDDEN void batch_free(struct batch *b);

#endif
