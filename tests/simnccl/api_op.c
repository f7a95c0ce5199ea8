/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_op.c - the exported functions that start operations, and the program's own reductions.
 *
 * Locking: see simnccl.h.
 */
#include "api.h"

#define REDOPS_MAX ((int)(sizeof(comms->redops) / sizeof(comms->redops[0])))

API(ncclResult_t, RedOpCreatePreMulSum,
    (ncclRedOp_t * op, void *scalar, ncclDataType_t type, ncclScalarResidence_t residence, ncclComm_t comm))
{
    COMM_ENTER(ncclRedOpCreatePreMulSum, comm, NEED_READY);
    int i = 0;

    if (!op || !scalar || (unsigned)type > ncclBfloat16)
        return failed(ncclInvalidArgument);
    while (i < REDOPS_MAX && comm->redops[i].live)
        i++;
    if (i == REDOPS_MAX)
        return failed(ncclInternalError);
    comm->redops[i] = (struct redop){.type = type, .live = true};
    if (residence == ncclScalarDevice)
        comm->redops[i].at = scalar;
    else
        comm->redops[i].scalar = value_load(type, scalar);
    *op = (ncclRedOp_t)(ncclNumOps + i);
    return ncclSuccess;
}

API(ncclResult_t, RedOpDestroy, (ncclRedOp_t op, ncclComm_t comm))
{
    COMM_ENTER(ncclRedOpDestroy, comm, NEED_LIVE);
    int i = (int)op - ncclNumOps;

    if (i < 0 || i >= REDOPS_MAX || !comm->redops[i].live)
        return failed(ncclInvalidArgument);
    comm->redops[i].live = false;
    return ncclSuccess;
}

static ncclResult_t enqueue(struct op values)
{
    int i = (int)values.head.op - ncclNumOps;
    ncclComm_t comm = values.comm;

    if (i >= REDOPS_MAX || (i >= 0 && (!comm->redops[i].live || comm->redops[i].type != values.head.type)))
        return failed(ncclInvalidArgument);
    if (i >= 0)
        values.redop = comm->redops[i];
    ncclResult_t result = op_check(&values);
    if (result != ncclSuccess)
        return failed(result);
    struct op *op = malloc(sizeof(*op));
    if (!op)
        return failed(ncclSystemError);
    *op = values;
    if (group_depth == 0)
        return failed(ops_start(op));
    group_add_op(op);
    return ncclSuccess;
}

#define OPERATION(name, which, params, what, to_send, to_receive, with, peer)                                          \
    API(ncclResult_t, name, params)                                                                                    \
    {                                                                                                                  \
        COMM_ENTER(nccl##name, comm, NEED_READY);                                                                      \
        return enqueue((struct op){.head = {.kind = (which),                                                           \
                                            .type = (uint32_t)type,                                                    \
                                            .op = (uint32_t)(with),                                                    \
                                            .root = (uint32_t)(peer),                                                  \
                                            .count = (what)},                                                          \
                                   .send = (to_send),                                                                  \
                                   .recv = (to_receive),                                                               \
                                   .comm = comm,                                                                       \
                                   .stream = stream});                                                                 \
    }

#define TAIL ncclComm_t comm, cudaStream_t stream
OPERATION(AllReduce, OP_ALL_REDUCE, (const void *send, void *recv, size_t n, ncclDataType_t type, ncclRedOp_t op, TAIL),
          n, send, recv, op, 0)
OPERATION(Reduce, OP_REDUCE,
          (const void *send, void *recv, size_t n, ncclDataType_t type, ncclRedOp_t op, int root, TAIL), n, send, recv,
          op, root)
OPERATION(ReduceScatter, OP_REDUCE_SCATTER,
          (const void *send, void *recv, size_t n, ncclDataType_t type, ncclRedOp_t op, TAIL), n, send, recv, op, 0)
OPERATION(Broadcast, OP_BROADCAST, (const void *send, void *recv, size_t n, ncclDataType_t type, int root, TAIL), n,
          send, recv, 0, root)
OPERATION(AllGather, OP_ALL_GATHER, (const void *send, void *recv, size_t n, ncclDataType_t type, TAIL), n, send, recv,
          0, 0)
OPERATION(AlltoAll, OP_ALL_TO_ALL, (const void *send, void *recv, size_t n, ncclDataType_t type, TAIL), n, send, recv,
          0, 0)
OPERATION(Gather, OP_GATHER, (const void *send, void *recv, size_t n, ncclDataType_t type, int root, TAIL), n, send,
          recv, 0, root)
OPERATION(Scatter, OP_SCATTER, (const void *send, void *recv, size_t n, ncclDataType_t type, int root, TAIL), n, send,
          recv, 0, root)
OPERATION(Send, OP_SEND, (const void *send, size_t n, ncclDataType_t type, int peer, TAIL), n, send, NULL, 0, peer)
OPERATION(Recv, OP_RECV, (void *recv, size_t n, ncclDataType_t type, int peer, TAIL), n, NULL, recv, 0, peer)

API(ncclResult_t, Bcast, (void *at, size_t n, ncclDataType_t type, int root, TAIL))
{
    ENTER(ncclBcast);
    call.may = "ncclBroadcast";
    return ncclBroadcast(at, at, n, type, root, comm, stream);
}
