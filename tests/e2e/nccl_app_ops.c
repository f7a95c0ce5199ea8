/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app_ops.c - scenarios of nccl_app: operations of every kind, and communicators made and ended in several ways.
 *
 * Memory that goes is in nccl_app_goes.c. See nccl_app.h.
 */
#include "nccl_app.h"

/* Ranks that send nothing give no memory, the host's, or other memory. */
SCENARIO(broadcast_from_root)
{
    char *at = get(8 * MIB), *other = get(8 * MIB), host = 0;
    const void *const nothing[] = {NULL, &host, at, at + 4 * MIB, other};

    comm_make(r, 0);
    for (size_t i = 0; i < sizeof(nothing) / sizeof(*nothing); i++) {
        fill(at, r->rank, COUNT);
        NC(ncclBroadcast(r->rank == 1 ? at : nothing[i], at + 4 * MIB, COUNT, ncclFloat, 1, r->comm, r->stream));
        expect(r, at + 4 * MIB, 1, "broadcast from the root");
    }
    comm_end(r);
    CU(cudaFree(other));
    CU(cudaFree(at));
}

/* All ranks give memory of one kind to send, and of another kind to receive. */
SCENARIO(broadcast_outside)
{
    char *at = get(8 * MIB);
    void *from;

    comm_make(r, 0);
    CU(cudaMallocAsync(&from, BYTES, r->stream));
    fill(from, r->rank, COUNT);
    NC(ncclBroadcast(from, at, COUNT, ncclFloat, 1, r->comm, r->stream));
    expect(r, at, 1, "broadcast");
    CU(cudaFreeAsync(from, r->stream));
    comm_end(r);
    CU(cudaFree(at));
}

/* Memory before the communicator, and after it; every operation. */
SCENARIO(all)
{
    char *first = get(8 * MIB), *second;

    comm_make(r, 0);
    all_gather(r, first, first + MIB);
    second = get(6 * MIB);
    others(r, first, second);
    all_gather(r, second, first);
    broadcast(r, second);
    ring(r, first, second);
    others(r, second, first);
    comm_end(r);
    CU(cudaFree(first));
    CU(cudaFree(second));
}

/* Send and receive first, then collectives, on other blocks of the same memory. */
SCENARIO(kinds)
{
    char *at = get(8 * MIB), *fresh;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        ring(r, at, at + MIB);
        all_gather(r, at + 2 * MIB, at + 4 * MIB);
    }
    fresh = get(6 * MIB);
    all_gather(r, at, at + MIB);
    all_gather(r, fresh, at + MIB);
    ring(r, fresh, at);
    others(r, at, fresh);
    comm_end(r);
    CU(cudaFree(at));
    CU(cudaFree(fresh));
}

/* The first collective is one for which NCCL maps nothing of this memory; then send and receive, and one for which it
 * does. */
SCENARIO(maps_nothing)
{
    for (int i = 0; i < 4; i++) {
        char *at = get(8 * MIB), *to = get(16 * MIB);

        if (i == 0)
            comm_make(r, 0);
        fill(at, 3, COUNT);
        if (i == 0 && !ncclReduce(at, at + MIB, COUNT, ncclFloat, ncclSum, 99, r->comm, r->stream))
            FAIL("a reduction to a rank that there is not");
        if (i == 1)
            NC(ncclAllReduce(at, at, COUNT, ncclFloat, ncclMax, r->comm, r->stream));
        if (i == 2)
            all_gather(r, at, to);
        if (i == 3)
            NC(ncclReduceScatter(at, at + MIB, COUNT / (size_t)ranks, ncclFloat, ncclMin, r->comm, r->stream));
        CU(cudaStreamSynchronize(r->stream));
        ring(r, at, at + MIB);
        all_gather(r, to, at + 4 * MIB);
        CU(cudaFree(at));
        CU(cudaFree(to));
    }
    comm_end(r);
}

/* Send, receive and a collective in one group, in memory that send and receive have used before and have not. */
SCENARIO(mixed_group)
{
    const int next = (r->rank + 1) % ranks, last = (r->rank + ranks - 1) % ranks;
    char *at = get(8 * MIB);

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        fill(at, r->rank, COUNT);
        NC(ncclGroupStart());
        NC(ncclSend(at, COUNT, ncclFloat, next, r->comm, r->stream));
        NC(ncclRecv(at + MIB, COUNT, ncclFloat, last, r->comm, r->stream));
        NC(ncclAllGather(at, at + 2 * MIB, COUNT, ncclFloat, r->comm, r->stream));
        NC(ncclGroupEnd());
        expect(r, at + MIB, last, "recv");
        for (int j = 0; j < ranks; j++)
            expect(r, at + 2 * MIB + (size_t)j * BYTES, j, "all_gather");
    }
    comm_end(r);
    CU(cudaFree(at));
}

/* A receive is pending on another stream, and its sender waits until this rank has called a collective. */
SCENARIO(pending)
{
    static atomic_int called;
    char *at = get(8 * MIB);
    cudaStream_t other;
    ncclComm_t pipe;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    comm_make(r, 0);
    NC(ncclCommInitRank(&pipe, ranks, ids[1], r->rank));
    ring(r, at, at + MIB);
    fill(at, r->rank, COUNT);
    if (r->rank == 0)
        NC(ncclRecv(at + 2 * MIB, COUNT, ncclFloat, 1, pipe, other));
    NC(ncclAllGather(at, at + 4 * MIB, COUNT, ncclFloat, r->comm, r->stream));
    if (r->rank == 0)
        called = 1;
    while (!called)
        usleep(100);
    if (r->rank == 1)
        NC(ncclSend(at, COUNT, ncclFloat, 0, pipe, other));
    for (int i = 0; i < ranks; i++)
        expect(r, at + 4 * MIB + (size_t)i * BYTES, i, "all_gather");
    CU(cudaStreamSynchronize(other));
    if (r->rank == 0)
        expect(r, at + 2 * MIB, 1, "recv");
    NC(ncclCommDestroy(pipe));
    comm_end(r);
    CU(cudaFree(at));
}

/* The program itself takes memory from NCCL, registers it and gives it back. */
SCENARIO(own)
{
    void *from, *to, *handles[2];

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        NC(ncclMemAlloc(&from, 2 * MIB));
        NC(ncclMemAlloc(&to, 4 * MIB));
        all_gather(r, from, to);
        NC(ncclCommRegister(r->comm, from, 2 * MIB, &handles[0]));
        NC(ncclCommRegister(r->comm, to, 4 * MIB, &handles[1]));
        all_gather(r, from, to);
        ring(r, from, to);
        NC(ncclCommDeregister(r->comm, handles[0]));
        NC(ncclCommDeregister(r->comm, handles[1]));
        NC(ncclMemFree(from));
        NC(ncclMemFree(to));
    }
    comm_end(r);
}

/* Communicators made in other ways, and ended in others. */
SCENARIO(comms)
{
    char *at = get(8 * MIB);
    ncclComm_t first, second;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    NC(ncclGroupStart());
    NC(ncclCommInitRankConfig(&first, ranks, ids[0], r->rank, &config));
    NC(ncclGroupEnd());
    r->comm = first;
    all_gather(r, at, at + MIB);
    NC(ncclCommSplit(first, 0, r->rank, &second, NULL));
    r->comm = second;
    ring(r, at, at + MIB);
    all_gather(r, at, at + MIB);
    NC(ncclCommFinalize(second));
    NC(ncclCommDestroy(second));
    r->comm = first;
    all_gather(r, at, at + MIB);
    NC(ncclGroupStart());
    NC(ncclCommSplit(first, 0, r->rank, &second, NULL));
    NC(ncclGroupEnd());
    r->comm = second;
    all_gather(r, at, at + MIB);
    NC(ncclCommAbort(second));
    r->comm = first;
    comm_end(r);
    comm_make(r, 1);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* One that does not block, polled now and then. */
SCENARIO(nonblocking)
{
    char *at = get(8 * MIB);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result = ncclInProgress;

    config.blocking = 0;
    result = ncclCommInitRankConfig(&r->comm, ranks, ids[0], r->rank, &config);
    while (result == ncclInProgress)
        NC(ncclCommGetAsyncError(r->comm, &result));
    NC(result);
    for (int i = 0; i < 3; i++) {
        fill(at, r->rank, COUNT);
        result = ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream);
        while (result == ncclInProgress)
            NC(ncclCommGetAsyncError(r->comm, &result));
        NC(result);
        for (int j = 0; j < ranks; j++)
            expect(r, at + MIB + (size_t)j * BYTES, j, "all_gather");
    }
    result = ncclCommFinalize(r->comm);
    while (result == ncclInProgress)
        NC(ncclCommGetAsyncError(r->comm, &result));
    NC(result);
    NC(ncclCommDestroy(r->comm));
    CU(cudaFree(at));
}

/* A communicator of one process that is made, used and ended again and again. */
SCENARIO(again)
{
    char *at = get(8 * MIB);

    for (int i = 0; i < 4; i++) {
        comm_make(r, i);
        all_gather(r, at, at + MIB);
        ring(r, at, at + 4 * MIB);
        comm_end(r);
    }
    CU(cudaFree(at));
}

/* Memory that the program itself takes from NCCL: send and receive first, then collectives. */
SCENARIO(own_kinds)
{
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 2; i++) {
        NC(ncclMemAlloc((void **)&at, 8 * MIB));
        ring(r, at, at + MIB);
        all_gather(r, at, at + 2 * MIB);
        NC(ncclMemFree(at));
    }
    comm_end(r);
}
