/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app.c - a program that has never heard of registration: nccl_app SCENARIO RANKS [RANK FILE].
 *
 * With RANK it is one of so many processes, which meet by FILE; without, all ranks are threads, each with a device of
 * its own. Every operation's data is checked. Exit status 0: all was right; 1: not, with a line that says what.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#ifndef COUNT
#define COUNT 20000 /* elements of one rank in one operation; 1 MiB at most */
#endif
#define BYTES     (COUNT * sizeof(float))
#define RANKS_MAX 8
#define FAIL(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), _exit(1))
#define CU(call)                                                                                                       \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_)                                                                                                    \
            FAIL("line %d: %s: %d", __LINE__, #call, (int)error_);                                                     \
    } while (0)
#define NC(call)                                                                                                       \
    do {                                                                                                               \
        ncclResult_t error_ = (call);                                                                                  \
        if (error_)                                                                                                    \
            FAIL("line %d: %s: %d", __LINE__, #call, (int)error_);                                                     \
    } while (0)

static int ranks;
static ncclUniqueId ids[4];

struct rank {
    int rank;
    cudaStream_t stream;
    ncclComm_t comm;
};

static void *get(size_t size)
{
    void *ptr;

    CU(cudaMalloc(&ptr, size));
    return ptr;
}

/* There is not so much now, and that is all that comes of it. */
static void get_refused(size_t size)
{
    void *ptr;

    if (cudaMalloc(&ptr, size) != cudaErrorMemoryAllocation || cudaGetLastError() != cudaErrorMemoryAllocation)
        FAIL("%zu bytes were not refused", size);
}

static float value(int rank, int i)
{
    return (float)(rank * 7 + i % 1000);
}

static void fill(void *to, int rank, int count)
{
    float *host = malloc((size_t)count * sizeof(float));

    for (int i = 0; host && i < count; i++)
        host[i] = value(rank, i);
    CU(cudaMemcpy(to, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice));
    free(host);
}

static void expect(const struct rank *r, const void *at, int rank, const char *what)
{
    float *host = malloc(BYTES);

    CU(cudaStreamSynchronize(r->stream));
    CU(cudaMemcpy(host, at, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        if (!host || host[i] != value(rank, i))
            FAIL("rank %d: %s: element %d from rank %d is %g", r->rank, what, i, rank, host ? (double)host[i] : 0);
    free(host);
}

static void all_gather(const struct rank *r, void *from, char *to)
{
    fill(from, r->rank, COUNT);
    NC(ncclAllGather(from, to, COUNT, ncclFloat, r->comm, r->stream));
    for (int i = 0; i < ranks; i++)
        expect(r, to + (size_t)i * BYTES, i, "all_gather");
}

static void ring(const struct rank *r, void *from, void *to)
{
    fill(from, r->rank, COUNT);
    NC(ncclGroupStart());
    NC(ncclSend(from, COUNT, ncclFloat, (r->rank + 1) % ranks, r->comm, r->stream));
    NC(ncclRecv(to, COUNT, ncclFloat, (r->rank + ranks - 1) % ranks, r->comm, r->stream));
    NC(ncclGroupEnd());
    expect(r, to, (r->rank + ranks - 1) % ranks, "send/recv");
}

static void broadcast(const struct rank *r, void *at)
{
    fill(at, r->rank, COUNT);
    NC(ncclBcast(at, COUNT, ncclFloat, 1, r->comm, r->stream));
    expect(r, at, 1, "bcast");
}

/* Of equal values, so that each rank's part is known. */
static void others(const struct rank *r, char *from, char *to)
{
    fill(from, r->rank, COUNT);
    NC(ncclBroadcast(from, to, COUNT, ncclFloat, 0, r->comm, r->stream));
    expect(r, to, 0, "broadcast");
    fill(from, 3, COUNT);
    NC(ncclAllReduce(from, to, COUNT, ncclFloat, ncclMax, r->comm, r->stream));
    expect(r, to, 3, "all_reduce");
    NC(ncclReduce(from, to, COUNT, ncclFloat, ncclMax, 1, r->comm, r->stream));
    if (r->rank == 1)
        expect(r, to, 3, "reduce");
    for (int i = 0; i < ranks; i++)
        fill(from + (size_t)i * BYTES, i, COUNT);
    NC(ncclReduceScatter(from, to, COUNT, ncclFloat, ncclMin, r->comm, r->stream));
    expect(r, to, r->rank, "reduce_scatter");
    for (int i = 0; i < ranks; i++)
        fill(from + (size_t)i * BYTES, r->rank, COUNT);
    NC(ncclAlltoAll(from, to, COUNT, ncclFloat, r->comm, r->stream));
    for (int i = 0; i < ranks; i++)
        expect(r, to + (size_t)i * BYTES, i, "alltoall");
    NC(ncclGather(from, to, COUNT, ncclFloat, 0, r->comm, r->stream));
    for (int i = 0; r->rank == 0 && i < ranks; i++)
        expect(r, to + (size_t)i * BYTES, i, "gather");
    for (int i = 0; r->rank == 0 && i < ranks; i++)
        fill(from + (size_t)i * BYTES, i, COUNT);
    NC(ncclScatter(from, to, COUNT, ncclFloat, 0, r->comm, r->stream));
    expect(r, to, r->rank, "scatter");
}

static void comm_make(struct rank *r, int id)
{
    NC(ncclCommInitRank(&r->comm, ranks, ids[id], r->rank));
}

static void comm_end(struct rank *r)
{
    CU(cudaStreamSynchronize(r->stream));
    NC(ncclCommDestroy(r->comm));
}

/* --- operations, and what NCCL makes of their kinds --- */

/* Memory before the communicator, and after it; every operation. */
static void all(struct rank *r)
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
static void kinds(struct rank *r)
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
static void maps_nothing(struct rank *r)
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
static void mixed_group(struct rank *r)
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
static void pending(struct rank *r)
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

/* What the program takes from NCCL itself, registers itself, gives back. */
static void own(struct rank *r)
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
static void comms(struct rank *r)
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
static void nonblocking(struct rank *r)
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

/* --- pool memory that goes --- */

/* Memory goes back while a communicator lives, because something larger needs it; the device holds 64 MiB. */
static void trim(struct rank *r)
{
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 4; i++) {
        at = get(20 * MIB);
        all_gather(r, at, at + MIB);
        ring(r, at, at + MIB);
        CU(cudaFree(at));
        at = get(44 * MIB);
        all_gather(r, at + 40 * MIB, at + MIB);
        CU(cudaFree(at));
    }
    /* More than there is: the native error, and life goes on. */
    get_refused(100 * MIB);
    at = get(20 * MIB);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* Freed while the GPU is still at work with it, and then needed for something larger. */
static void busy(struct rank *r)
{
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 4; i++) {
        at = get(20 * MIB);
        fill(at, r->rank, COUNT);
        for (int j = 0; j < 8; j++)
            NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
        CU(cudaFree(at));
        at = get(48 * MIB);
        CU(cudaFree(at));
    }
    comm_end(r);
}

static void *comm_destroy(void *arg)
{
    const struct rank *r = arg;

    CU(cudaSetDevice(r->rank));
    NC(ncclCommDestroy(r->comm));
    return NULL;
}

/* What could not go when it was freed goes in another thread, behind work, when something larger is needed. */
static void going(struct rank *r)
{
    pthread_t other;
    char *at, *more = get(MIB);
    struct rank second;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        second = *r;
        comm_make(&second, i + 1);
        at = get(20 * MIB);
        all_gather(r, at, at + MIB);
        NC(ncclGroupStart());
        CU(cudaFree(at));
        NC(ncclGroupEnd());
        for (int j = 0; j < 20; j++)
            CU(cudaMemsetAsync(more, j, MIB, r->stream));
        pthread_create(&other, NULL, comm_destroy, &second);
        usleep(10000);
        at = get(48 * MIB);
        pthread_join(other, NULL);
        CU(cudaFree(at));
    }
    comm_end(r);
    CU(cudaFree(more));
}

/* The same with 96 MiB, of which some may not come back. */
static void lose(struct rank *r)
{
    static const size_t sizes[] = {20, 22, 60};
    char *at;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        at = get(sizes[i] * MIB);
        all_gather(r, at, at + MIB);
        CU(cudaFree(at));
    }
    comm_end(r);
}

/* --- graphs --- */

/* A graph that is launched again and again, and memory that has to stay for it although the program has freed it. */
static void graph(struct rank *r)
{
    char *at = get(8 * MIB), *large;
    cudaGraphExec_t exec;
    cudaGraph_t made;

    comm_make(r, 0);
    all_gather(r, at, at + MIB); /* connects */
    CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    CU(cudaStreamEndCapture(r->stream, &made));
    CU(cudaGraphInstantiate(&exec, made, 0));
    for (int i = 0; i < 3; i++) {
        fill(at, r->rank, COUNT);
        CU(cudaGraphLaunch(exec, r->stream));
        for (int j = 0; j < ranks; j++)
            expect(r, at + MIB + (size_t)j * BYTES, j, "all_gather of a graph");
    }
    CU(cudaFree(at));
    large = get(60 * MIB); /* asks for all that can go back; the device has 72 MiB */
    all_gather(r, large, large + MIB);
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(made));
    comm_end(r);
    CU(cudaFree(large));
    large = get(64 * MIB);
    CU(cudaFree(large));
}

/* The same, but that more is needed than is left while the graph is there. The device has 96 MiB. */
static void graph_trim(struct rank *r)
{
    char *at = get(8 * MIB);
    cudaGraphExec_t exec;
    cudaGraph_t made;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    CU(cudaStreamEndCapture(r->stream, &made));
    CU(cudaGraphInstantiate(&exec, made, 0));
    CU(cudaGraphLaunch(exec, r->stream));
    CU(cudaStreamSynchronize(r->stream));
    CU(cudaFree(at));
    for (int i = 0; i < 3; i++) {
        at = get((60 + (size_t)i * 10) * MIB);
        all_gather(r, at, at + MIB);
        CU(cudaFree(at));
    }
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(made));
    comm_end(r);
}

/* --- ends of communicators, and calls that are no operations --- */

/* Revoked, and destroyed later; memory that it has used goes back in between. The device has 64 MiB. */
static void revoked(struct rank *r)
{
    char *at = get(20 * MIB), *other = get(20 * MIB);

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    NC(ncclCommRevoke(r->comm, NCCL_REVOKE_DEFAULT));
    CU(cudaFree(at));
    CU(cudaFree(other));
    at = get(30 * MIB); /* takes the place of what no communicator has used */
    CU(cudaFree(at));
    NC(ncclCommDestroy(r->comm));
    comm_make(r, 1);
    at = get(58 * MIB);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* What is done with a communicator between its two ends makes it no other one. */
static void finalized(struct rank *r)
{
    char *at = get(8 * MIB);
    float factor = 2;
    ncclRedOp_t op;

    comm_make(r, 0);
    NC(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, r->comm));
    all_gather(r, at, at + MIB);
    NC(ncclCommFinalize(r->comm));
    NC(ncclRedOpDestroy(op, r->comm));
    NC(ncclCommDestroy(r->comm));
    CU(cudaFree(at));
}

/* What is refused has ended nothing: rank 0 alone asks for it. */
static void not_revoked(struct rank *r)
{
    char *at = get(8 * MIB), *more;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    if (r->rank == 0 && !ncclCommRevoke(r->comm, 12345))
        FAIL("what makes no sense was accepted");
    more = get(20 * MIB);
    all_gather(r, more, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
    CU(cudaFree(more));
}

static void on_flag(void *flag)
{
    while (!atomic_load((atomic_int *)flag))
        usleep(100);
}

struct request {
    int device;
    void *ptr;
    cudaError_t error;
};

static void *ask(void *arg)
{
    struct request *request = arg;

    request->error = cudaSetDevice(request->device);
    if (!request->error)
        request->error = cudaMalloc(&request->ptr, 50 * MIB);
    return NULL;
}

/* A communicator's work is given up, and then it does not shrink: its peers may hang, so it is not talked to. */
static void not_shrunk(struct rank *r)
{
    ncclComm_t none = NULL;
    int nobody = RANKS_MAX;
    char *at = get(30 * MIB);

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaFree(at));
    if (!ncclCommShrink(r->comm, &nobody, 1, &none, NULL, NCCL_SHRINK_ABORT))
        FAIL("what makes no sense was accepted");
    get_refused(50 * MIB);
    NC(ncclCommAbort(r->comm));
    CU(cudaFree(get(50 * MIB)));
}

/* In a group a communicator ends with that: what is registered with it stays until then, whoever needs it. */
static void aborted_in_a_group(struct rank *r)
{
    struct request request = {.device = r->rank};
    char *at = get(30 * MIB);
    pthread_t thread;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaFree(at));
    NC(ncclGroupStart());
    NC(ncclCommAbort(r->comm));
    for (int i = 0; i < 2; i++) {
        CU(pthread_create(&thread, NULL, ask, &request));
        CU(pthread_join(thread, NULL));
        if (request.error != (i ? cudaSuccess : cudaErrorMemoryAllocation))
            FAIL("rank %d: error %d", r->rank, (int)request.error);
        if (i == 0)
            NC(ncclGroupEnd());
    }
    CU(cudaFree(request.ptr));
}

static void *split(void *arg)
{
    const struct rank *r = arg;
    struct rank part = *r;

    CU(cudaSetDevice(r->rank));
    NC(ncclCommSplit(r->comm, 0, r->rank, &part.comm, NULL));
    comm_end(&part);
    return NULL;
}

/* One thread is inside a call that is no operation, and waits there for its peers, while another needs the memory that
 * is registered with that communicator. */
static void split_beside(struct rank *r)
{
    static atomic_int refused;
    char *at = get(30 * MIB);
    pthread_t thread;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaFree(at));
    if (r->rank == 0) {
        CU(pthread_create(&thread, NULL, split, r));
        usleep(50000);
        /* Refused, unless the machine is so busy that the thread has not come to its call yet. */
        if (cudaMalloc((void **)&at, 50 * MIB) == cudaSuccess)
            CU(cudaFree(at));
        else if (cudaGetLastError() != cudaErrorMemoryAllocation)
            FAIL("it was refused with another error");
        refused = 1;
        CU(pthread_join(thread, NULL));
    } else {
        while (!refused)
            usleep(1000);
        split(r);
    }
    at = get(50 * MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* It ends beside work that waits for what the host does after that. */
static void ends_beside_work(struct rank *r)
{
    static atomic_int flag[RANKS_MAX];
    char *at = get(8 * MIB);
    cudaStream_t other;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaLaunchHostFunc(other, on_flag, &flag[r->rank]));
    NC(ncclCommFinalize(r->comm));
    atomic_store(&flag[r->rank], 1);
    CU(cudaStreamSynchronize(other));
    NC(ncclCommDestroy(r->comm));
    comm_make(r, 1);
    all_gather(r, at, at + MIB);
    comm_end(r);
    CU(cudaFree(at));
}

/* Memory that waits to go is freed once more. */
static void freed_twice(struct rank *r)
{
    char *at = get(8 * MIB);
    void *p, *q;

    comm_make(r, 0);
    NC(ncclMemAlloc(&p, 4 * MIB));
    all_gather(r, p, at);
    NC(ncclGroupStart());
    NC(ncclMemFree(p));
    if (ncclMemFree(p) != ncclUnhandledCudaError)
        FAIL("it could be freed twice");
    NC(ncclMemAlloc(&q, 4 * MIB));
    NC(ncclGroupEnd());
    fill(q, r->rank, COUNT);
    NC(ncclMemFree(q));
    comm_end(r);
    CU(cudaFree(at));
}

/* --- beside captures --- */

/* A communicator ends under its last operation, while this thread captures something else, and beside work that waits
 * for what the host does after that. */
static void beside_capture(struct rank *r)
{
    static atomic_int flag[RANKS_MAX];
    char *at = get(8 * MIB);
    cudaStream_t other, third;
    cudaGraph_t graph;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaLaunchHostFunc(third, on_flag, &flag[r->rank]));
    CU(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    if (r->rank == 0)
        usleep(50000);
    NC(ncclAllGather(at, at + 4 * MIB, COUNT, ncclFloat, r->comm, r->stream));
    NC(ncclCommFinalize(r->comm));
    CU(cudaStreamEndCapture(other, &graph));
    atomic_store(&flag[r->rank], 1);
    CU(cudaStreamSynchronize(third));
    NC(ncclCommDestroy(r->comm));
    CU(cudaGraphDestroy(graph));
    for (int i = 0; i < ranks; i++)
        expect(r, at + 4 * MIB + (size_t)i * BYTES, i, "all_gather");
    CU(cudaFree(at));
}

struct capture {
    int device;
    atomic_int begun;
};

static void *capture(void *arg)
{
    struct capture *c = arg;
    cudaStream_t stream;
    cudaGraph_t graph;

    CU(cudaSetDevice(c->device));
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    atomic_store(&c->begun, 1);
    usleep(30000);
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphDestroy(graph));
    return NULL;
}

/* A communicator ends while another thread captures. */
static void beside_others_capture(struct rank *r)
{
    struct capture c = {.device = r->rank};
    char *at = get(8 * MIB);
    pthread_t thread;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(pthread_create(&thread, NULL, capture, &c));
    while (!atomic_load(&c.begun))
        usleep(100);
    comm_end(r);
    CU(pthread_join(thread, NULL));
    CU(cudaFree(at));
}

/* Registered memory is freed under the work that uses it, while this thread captures, and something larger needs it. */
static void freed_beside_capture(struct rank *r)
{
    char *at = get(20 * MIB);
    cudaStream_t other;
    cudaGraph_t graph;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    if (r->rank == 0)
        usleep(50000);
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    CU(cudaFree(at));
    at = get(48 * MIB);
    CU(cudaStreamEndCapture(other, &graph));
    CU(cudaGraphDestroy(graph));
    CU(cudaFree(at));
    comm_end(r);
}

/* --- others --- */

/* One buffer is memory that nobody registers. */
static void outside(struct rank *r)
{
    char *at = get(8 * MIB), *other;

    comm_make(r, 0);
    CU(cudaMallocAsync((void **)&other, 4 * MIB, r->stream));
    CU(cudaStreamSynchronize(r->stream));
    for (int i = 0; i < 3; i++)
        all_gather(r, at, other);
    CU(cudaFreeAsync(other, r->stream));
    comm_end(r);
    CU(cudaFree(at));
}

/* A communicator of one process that is made, used and ended again and again. */
static void again(struct rank *r)
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

/* --- memory past the pool --- */

/* Physical memory that is mapped, as expandable segments are: addresses that stay, what is there comes and goes. */
struct mapped {
    CUdeviceptr at;
    size_t size;
};

#define DR(call)                                                                                                       \
    do {                                                                                                               \
        CUresult error_ = (call);                                                                                      \
        if (error_)                                                                                                    \
            FAIL("line %d: %s: %d", __LINE__, #call, (int)error_);                                                     \
    } while (0)

static struct mapped reserve(size_t size)
{
    struct mapped m = {.size = size};

    DR(cuMemAddressReserve(&m.at, size, 0, 0, 0));
    return m;
}

static CUmemGenericAllocationHandle create(const struct rank *r, size_t size, CUmemAllocationHandleType types)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = types,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = r->rank}};
    CUmemGenericAllocationHandle handle;

    DR(cuMemCreate(&handle, size, &properties, 0));
    return handle;
}

/* The handle is given up: what is mapped stays. */
static char *map_at(const struct rank *r, const struct mapped *m, CUmemGenericAllocationHandle handle, size_t offset)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = r->rank},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    DR(cuMemMap(m->at, m->size, offset, handle, 0));
    DR(cuMemSetAccess(m->at, m->size, &access, 1));
    DR(cuMemRelease(handle));
    return (char *)(uintptr_t)m->at; /* NOLINT(performance-no-int-to-ptr) */
}

static char *map(const struct rank *r, const struct mapped *m, CUmemGenericAllocationHandle handle)
{
    return map_at(r, m, handle, 0);
}

static char *map_new(const struct rank *r, const struct mapped *m)
{
    return map(r, m, create(r, m->size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static void unmap(const struct mapped *m)
{
    DR(cuMemUnmap(m->at, m->size));
}

static void give_up(const struct mapped *m)
{
    unmap(m);
    DR(cuMemAddressFree(m->at, m->size));
}

/* Other memory at the same addresses, with two communicators; one has gone when the last of it does. */
static void mapped(struct rank *r)
{
    const struct mapped m = reserve(4 * MIB), n = reserve(8 * MIB);
    ncclComm_t first, second;
    char *from, *to;

    comm_make(r, 0);
    first = r->comm;
    comm_make(r, 1);
    second = r->comm;
    to = map_new(r, &n);
    for (int i = 0; i < 3; i++) {
        from = map_new(r, &m);
        r->comm = i % 2 ? second : first;
        all_gather(r, from, to);
        ring(r, from + MIB, from);
        r->comm = second;
        all_gather(r, from, to);
        unmap(&m);
    }
    from = map_new(r, &m);
    all_gather(r, from, to);
    r->comm = first;
    all_gather(r, from, to);
    comm_end(r);
    give_up(&m);
    r->comm = second;
    comm_end(r);
    give_up(&n);
}

/* The same with what cudaMalloc gives past the pool; of a second communicator, too, which goes first. */
static void reused(struct rank *r)
{
    char *from, *to = get(8 * MIB), *was = NULL;
    ncclComm_t first, second;

    comm_make(r, 0);
    first = r->comm;
    comm_make(r, 1);
    second = r->comm;
    for (int i = 0; i < 4; i++) {
        from = get(4 * MIB);
        if (was && from != was)
            FAIL("another address");
        was = from;
        for (int j = 0; j < 2; j++) {
            r->comm = j ? second : first;
            if (i == 3 && j)
                comm_end(r);
            else
                all_gather(r, from, to);
        }
        if (cudaFree(from + 4096) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
            FAIL("it is freed from inside");
        CU(cudaFree(from));
        if (cudaFree(from) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
            FAIL("it is freed twice");
    }
    r->comm = first;
    comm_end(r);
    CU(cudaFree(to));
}

static size_t left(void)
{
    size_t bytes, total;

    CU(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

/* Freed within a group, by a stream under work that waits for what the host does next, and in a capture: it goes later,
 * and is not freed again. */
static void later(struct rank *r)
{
    static atomic_int called;
    char *at = get(8 * MIB), *other;
    cudaGraph_t graph;
    size_t before;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    before = left();
    for (int i = 0; i < 3; i++) {
        other = get(4 * MIB);
        all_gather(r, other, at);
        fill(other, r->rank, COUNT);
        if (i == 0) {
            NC(ncclGroupStart());
            NC(ncclAllGather(other, at, COUNT, ncclFloat, r->comm, r->stream));
            CU(cudaFree(other));
        } else if (i == 1) {
            while (r->rank != 0 && !called)
                usleep(100);
            NC(ncclAllGather(other, at, COUNT, ncclFloat, r->comm, r->stream));
            CU(cudaFreeAsync(other, r->stream));
            if (r->rank == 0)
                called = 1;
        } else {
            CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
            CU(cudaFree(other));
        }
        if (cudaFree(other) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
            FAIL("it is freed twice");
        if (i == 0)
            NC(ncclGroupEnd());
        if (i == 2) {
            CU(cudaStreamEndCapture(r->stream, &graph));
            CU(cudaGraphDestroy(graph));
        } else {
            for (int j = 0; j < ranks; j++)
                expect(r, at + (size_t)j * BYTES, j, "all_gather");
        }
        /* The next to be used takes it along. */
        all_gather(r, at, at + MIB);
        other = get(4 * MIB);
        all_gather(r, other, at);
        CU(cudaFree(other));
        if (left() != before)
            FAIL("%zu bytes are not free again", before - left());
    }
    comm_end(r);
    CU(cudaFree(at));
}

/* Unmapped within a group, and something else there afterwards. */
static void unmapped(struct rank *r)
{
    const struct mapped m = reserve(4 * MIB);
    char *at = get(8 * MIB), *from = map_new(r, &m);

    comm_make(r, 0);
    all_gather(r, from, at);
    NC(ncclGroupStart());
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    unmap(&m);
    NC(ncclGroupEnd());
    from = map_new(r, &m);
    all_gather(r, from, at);
    comm_end(r);
    give_up(&m);
    CU(cudaFree(at));
}

/* Unmapped while another thread calls NCCL for the same device. */
static void *others_ops(void *arg)
{
    struct rank *r = arg;
    char *at;

    CU(cudaSetDevice(r->rank));
    CU(cudaStreamCreate(&r->stream));
    at = get(8 * MIB);
    comm_make(r, 1);
    for (int i = 0; i < 1000; i++) {
        NC(ncclAllGather(at, at + MIB, 1000, ncclFloat, r->comm, r->stream));
        if (i % 10 == 0)
            CU(cudaStreamSynchronize(r->stream));
    }
    comm_end(r);
    CU(cudaFree(at));
    return NULL;
}

static void beside(struct rank *r)
{
    const struct mapped m = reserve(4 * MIB);
    char *at = get(8 * MIB);
    struct rank others = *r;
    pthread_t other;

    pthread_create(&other, NULL, others_ops, &others);
    comm_make(r, 0);
    for (int i = 0; i < 50; i++) {
        all_gather(r, map_new(r, &m), at);
        unmap(&m);
    }
    pthread_join(other, NULL);
    comm_end(r);
    DR(cuMemAddressFree(m.at, m.size));
    CU(cudaFree(at));
}

/* Freed by somebody whom no preload sees, and something else there afterwards. */
static void unseen(struct rank *r)
{
    char *at = get(8 * MIB), *from = get(4 * MIB), *was = from;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const __typeof__(&cuMemFree_v2) free_past =
        driver ? (__typeof__(&cuMemFree_v2))dlsym(driver, "cuMemFree_v2") : NULL;

    if (!free_past || free_past == cuMemFree_v2)
        FAIL("no other cuMemFree_v2");
    comm_make(r, 0);
    all_gather(r, from, at);
    DR(free_past((uintptr_t)from));
    from = get(4 * MIB);
    if (from != was)
        FAIL("another address");
    all_gather(r, from, at);
    comm_end(r);
    CU(cudaFree(from));
    CU(cudaFree(at));
}

/* The context goes with what was used in it, and what was freed in a capture and is still kept; other memory is there
 * next. */
static void reset(struct rank *r)
{
    char *at, *other, *was = NULL;
    cudaStream_t stream;
    cudaGraph_t graph;

    for (int i = 0; i < 3; i++) {
        at = get(8 * MIB);
        if (i == 1)
            CU(cudaMallocAsync((void **)&other, 4 * MIB, r->stream));
        else
            other = get(4 * MIB);
        if (was && other != was)
            FAIL("another address");
        was = other;
        fill(other, r->rank, COUNT);
        comm_make(r, i);
        all_gather(r, at, at + MIB);
        expect(r, other, r->rank, "memory that nobody freed");
        if (i != 1)
            all_gather(r, other, at);
        comm_end(r);
        if (i != 1) {
            CU(cudaStreamCreate(&stream));
            CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
            CU(cudaFreeAsync(other, stream)); /* nothing is waited for beside a capture */
            CU(cudaStreamEndCapture(r->stream, &graph));
            CU(cudaGraphDestroy(graph));
        }
        CU(cudaDeviceReset());
        CU(cudaStreamCreate(&r->stream));
    }
}

/* Send and receive first, then collectives, in memory that nothing lies in front of. */
static void past_kinds(struct rank *r)
{
    const struct mapped m = reserve(8 * MIB);
    char *at = map_new(r, &m);

    comm_make(r, 0);
    ring(r, at, at + MIB);
    all_gather(r, at + 2 * MIB, at + 4 * MIB);
    ring(r, at, at + MIB);
    comm_end(r);
    give_up(&m);
}

/* Memory whose end is not certain to be seen, that others cannot map, or that shares its pages: all but the last time
 * with a buffer in registered memory. */
static void never(struct rank *r)
{
    const struct mapped m[2] = {reserve(4 * MIB), reserve(4 * MIB)};
    CUmemGenericAllocationHandle handle, imported;
    char *at = get(8 * MIB), *other;
    int fd;

    comm_make(r, 0);
    CU(cudaMallocAsync((void **)&other, 4 * MIB, r->stream));
    all_gather(r, at, other);
    CU(cudaFreeAsync(other, r->stream));
    CU(cudaMallocManaged((void **)&other, 4 * MIB, cudaMemAttachGlobal));
    all_gather(r, at, other);
    CU(cudaFree(other));
    other = get(MIB);
    all_gather(r, at, other);
    CU(cudaFree(other));
    all_gather(r, at, map(r, &m[0], create(r, m[0].size, CU_MEM_HANDLE_TYPE_NONE)));
    handle = create(r, m[1].size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    DR(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    DR(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    DR(cuMemRelease(handle));
    all_gather(r, at, map(r, &m[1], imported));
    comm_end(r);
    for (int i = 0; i < 2; i++)
        give_up(&m[i]);
    CU(cudaFree(at));
}

/* Parts of physical memory: the rest may be mapped elsewhere. And memory of another device. */
static void parts(struct rank *r)
{
    static const size_t offsets[] = {0, 2 * MIB, 4 * MIB};
    char *at = get(8 * MIB), *far;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        const struct mapped m = reserve(4 * MIB);

        all_gather(r, map_at(r, &m, create(r, 8 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), offsets[i]), at);
        give_up(&m);
    }
    CU(cudaSetDevice((r->rank + 1) % ranks));
    far = get(4 * MIB);
    CU(cudaSetDevice(r->rank));
    all_gather(r, far, at);
    comm_end(r);
    CU(cudaFree(at));
    CU(cudaFree(far));
}

/* Memory is freed past the library, and what comes to its address, by a call that is not watched, is smaller. */
static void unseen_smaller(struct rank *r)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const __typeof__(&cuMemFree_v2) free_past =
        driver ? (__typeof__(&cuMemFree_v2))dlsym(driver, "cuMemFree_v2") : NULL;
    char *at = get(8 * MIB), *was, *now;
    size_t pitch;

    if (!free_past || free_past == cuMemFree_v2)
        FAIL("no other cuMemFree_v2");
    comm_make(r, 0);
    was = get(8 * MIB);
    DR(free_past((uintptr_t)was));
    for (int i = 0; !i || (now != was && i < 16); i++) /* others lie where there was room before */
        CU(cudaMallocPitch((void **)&now, &pitch, 4096, 1024));
    if (now != was)
        FAIL("another address");
    all_gather(r, now, at);
    CU(cudaFree(now));
    comm_end(r);
    CU(cudaFree(at));
}

/* Two allocations that were used are freed past the library, and one comes to the addresses of both. */
static void unseen_larger(struct rank *r)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const __typeof__(&cuMemFree_v2) free_past =
        driver ? (__typeof__(&cuMemFree_v2))dlsym(driver, "cuMemFree_v2") : NULL;
    char *at = get(8 * MIB), *first, *second, *both;

    comm_make(r, 0);
    first = get(64 * MIB); /* where there was no room before */
    second = get(64 * MIB);
    if (!free_past || free_past == cuMemFree_v2 || second != first + 64 * MIB)
        FAIL("nothing to see");
    all_gather(r, first, at);
    all_gather(r, second, at);
    DR(free_past((uintptr_t)first));
    DR(free_past((uintptr_t)second));
    both = get(128 * MIB);
    if (both != first)
        FAIL("another address");
    all_gather(r, both + 64 * MIB, at);
    all_gather(r, both, at);
    comm_end(r);
    CU(cudaFree(both));
    CU(cudaFree(at));
}

/* What the program itself takes from NCCL: send and receive first, then collectives. */
static void own_kinds(struct rank *r)
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

static const struct {
    const char *name;
    void (*run)(struct rank *r);
} scenarios[] = {{"all", all},
                 {"kinds", kinds},
                 {"own", own},
                 {"comms", comms},
                 {"nonblocking", nonblocking},
                 {"trim", trim},
                 {"lose", lose},
                 {"busy", busy},
                 {"going", going},
                 {"graph", graph},
                 {"outside", outside},
                 {"again", again},
                 {"revoked", revoked},
                 {"maps_nothing", maps_nothing},
                 {"mixed_group", mixed_group},
                 {"not_revoked", not_revoked},
                 {"finalized", finalized},
                 {"ends_beside_work", ends_beside_work},
                 {"freed_twice", freed_twice},
                 {"aborted_in_a_group", aborted_in_a_group},
                 {"split_beside", split_beside},
                 {"not_shrunk", not_shrunk},
                 {"pending", pending},
                 {"beside_capture", beside_capture},
                 {"graph_trim", graph_trim},
                 {"beside_others_capture", beside_others_capture},
                 {"freed_beside_capture", freed_beside_capture},
                 {"mapped", mapped},
                 {"reused", reused},
                 {"later", later},
                 {"unmapped", unmapped},
                 {"unseen", unseen},
                 {"beside", beside},
                 {"reset", reset},
                 {"past_kinds", past_kinds},
                 {"never", never},
                 {"parts", parts},
                 {"unseen_smaller", unseen_smaller},
                 {"unseen_larger", unseen_larger},
                 {"own_kinds", own_kinds}};

/* --- which of them, and on how many ranks --- */

static void (*scenario)(struct rank *r);

static void *run(void *arg)
{
    struct rank r = {.rank = (int)(size_t)arg};

    CU(cudaSetDevice(r.rank));
    CU(cudaStreamCreate(&r.stream));
    scenario(&r);
    return NULL;
}

/* The ids reach the other processes by a file, whole or not at all. */
static void meet(int rank, const char *file)
{
    char name[4096];
    FILE *f;

    snprintf(name, sizeof(name), "%s.new", file);
    if (rank == 0) {
        f = fopen(name, "w");
        if (!f || fwrite(ids, sizeof(ids), 1, f) != 1 || fclose(f) || rename(name, file))
            FAIL("cannot write %s", file);
        return;
    }
    while (!(f = fopen(file, "r")))
        usleep(1000);
    if (fread(ids, sizeof(ids), 1, f) != 1)
        FAIL("cannot read %s", file);
    fclose(f);
}

#ifdef PLUGIN
#define main plugin_run
int plugin_run(int argc, char **argv);
#endif

int main(int argc, char **argv)
{
    pthread_t threads[RANKS_MAX];
    const int rank = argc > 4 ? atoi(argv[3]) : 0;

    for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (strcmp(scenarios[i].name, argv[1]) == 0)
            scenario = scenarios[i].run;
    ranks = argc > 2 ? atoi(argv[2]) : 0;
    if (!scenario || ranks < 2 || ranks > RANKS_MAX)
        FAIL("usage: nccl_app SCENARIO RANKS [RANK FILE]");
    for (int i = 0; rank == 0 && i < 4; i++)
        NC(ncclGetUniqueId(&ids[i]));
    if (argc > 4) {
        meet(rank, argv[4]);
        run((void *)(size_t)rank);
        return 0;
    }
    for (int i = 0; i < ranks; i++)
        pthread_create(&threads[i], NULL, run, (void *)(size_t)i);
    for (int i = 0; i < ranks; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
