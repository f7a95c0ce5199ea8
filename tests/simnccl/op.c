/* SPDX-License-Identifier: Apache-2.0 */
/*
 * op.c - operations: their shapes, the bytes and the registered memory that they use.
 *
 * Locking: see simnccl.h.
 */
#include "run.h"

const struct shape shapes[] = {
    [OP_SEND] = {"ncclSend", PART_ONE, PART_NONE, true, false, false},
    [OP_RECV] = {"ncclRecv", PART_NONE, PART_ONE, true, false, true},
    [OP_ALL_REDUCE] = {"ncclAllReduce", PART_ONE, PART_ONE, false, true, true},
    [OP_BROADCAST] = {"ncclBroadcast", PART_ROOT_ONE, PART_ONE, false, false, true},
    [OP_REDUCE] = {"ncclReduce", PART_ONE, PART_ROOT_ONE, false, true, false},
    [OP_ALL_GATHER] = {"ncclAllGather", PART_ONE, PART_ALL, false, false, true},
    [OP_REDUCE_SCATTER] = {"ncclReduceScatter", PART_ALL, PART_ONE, false, true, false},
    [OP_ALL_TO_ALL] = {"ncclAlltoAll", PART_ALL, PART_ALL, true, false, true},
    [OP_GATHER] = {"ncclGather", PART_ONE, PART_ROOT_ALL, true, false, false},
    [OP_SCATTER] = {"ncclScatter", PART_ROOT_ALL, PART_ONE, true, false, true},
};

bool is_root(const struct op *op)
{
    return (int)op->head.root == op->comm->rank;
}

size_t piece(const struct op *op)
{
    return op->head.count * type_size((ncclDataType_t)op->head.type);
}

size_t part_bytes(const struct op *op, enum part part)
{
    if (part == PART_NONE || (part >= PART_ROOT_ONE && !is_root(op)))
        return 0;
    return piece(op) * (part == PART_ALL || part == PART_ROOT_ALL ? (size_t)op->comm->nranks : 1);
}

ncclResult_t op_check(const struct op *op)
{
    const struct shape *shape = &shapes[op->head.kind];

    if (type_size((ncclDataType_t)op->head.type) == 0 || (int)op->head.root < 0 ||
        (int)op->head.root >= op->comm->nranks || (shape->reduces && op->head.type > ncclBfloat16))
        return ncclInvalidArgument;
    if ((part_bytes(op, shape->send) && !op->send) || (part_bytes(op, shape->recv) && !op->recv))
        return ncclInvalidArgument;
    return ncclSuccess;
}

void op_registered(struct op *op, bool captured)
{
    const struct shape *shape = &shapes[op->head.kind];
    ncclComm_t comm = op->comm;
    const void *at[2] = {op->send, op->recv};
    size_t size[2] = {part_bytes(op, shape->send), part_bytes(op, shape->recv)};
    int buffers = 0, inside = 0;

    /* It looks what a broadcast sends up on every rank, although the root alone sends (in 2.29.2 no more on one
     * machine). */
    if (op->head.kind == OP_BROADCAST && !captured && settings.version < 22902)
        size[0] = piece(op);

    if (comm->nranks == 1)
        return;
    for (int i = 0; i < 2; i++) {
        if (size[i] == 0)
            continue;
        buffers++;
        op->used[i] = captured ? record_captured(comm, at[i], size[i]) : record_find(comm, at[i], size[i]);
        inside += op->used[i] != NULL;
    }
    if (buffers == 0)
        return;
    op->head.level = inside == 0 ? REGISTERED_NONE : inside < buffers ? REGISTERED_SOME : REGISTERED_ALL;
    counts.ops[op->head.level]++;
    struct record *rule = op->used[shape->recv_rules];
    if (rule && !shape->p2p) {
        op->head.window = rule->window && rule->flags & NCCL_WIN_COLL_SYMMETRIC;
        op->head.offset = (uintptr_t)at[shape->recv_rules] - rule->base;
    }
    for (int i = 0; i < 2; i++) {
        struct record *r = op->used[i];
        if (!r)
            continue;
        r->busy++;
        if (op->head.level != REGISTERED_ALL || !r->maps || settings.version < 22300)
            continue;
        /* Of a collective the receive buffer alone is mapped, and of these nothing is; nor where it is small, and so
         * on. */
        if (!shape->p2p && (i == 0 || op->head.kind == OP_REDUCE || op->head.kind == OP_REDUCE_SCATTER ||
                            (op->head.kind == OP_ALL_REDUCE && op->send == op->recv)))
            continue;
        if (shape->p2p)
            r->used_p2p = true;
        else if (r->used_p2p && !r->used_collective && !r->window && settings.version < 22902)
            breach("%s on a record that point-to-point operations have used first: NCCL before 2.29.2 dies here",
                   shape->name);
        if (!shape->p2p)
            r->used_collective = true;
    }
}

void ops_free(struct op *ops)
{
    for (struct op *next; ops; ops = next) {
        next = ops->next;
        free(ops);
    }
}
