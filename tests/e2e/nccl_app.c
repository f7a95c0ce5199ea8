/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app.c - a program that has never heard of registration: nccl_app SCENARIO RANKS [RANK FILE].
 *
 * With RANK it is one of so many processes, which meet by FILE; without, all ranks are threads, each with a device of
 * its own. Every operation's data is checked. Exit status 0: all was right; 1: not, with a line that says what.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB       ((size_t)1 << 20)
#define COUNT     20000 /* elements of one rank in one operation */
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

static float value(int rank, int i)
{
    return (float)(rank * 7 + i % 1000);
}

static void fill(void *to, int rank, int count)
{
    static __thread float host[COUNT * RANKS_MAX];

    for (int i = 0; i < count; i++)
        host[i] = value(rank, i);
    CU(cudaMemcpy(to, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice));
}

static void expect(const struct rank *r, const void *at, int rank, const char *what)
{
    static __thread float host[COUNT];

    CU(cudaStreamSynchronize(r->stream));
    CU(cudaMemcpy(host, at, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        if (host[i] != value(rank, i))
            FAIL("rank %d: %s: element %d from rank %d is %g", r->rank, what, i, rank, (double)host[i]);
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
    if (cudaMalloc((void **)&at, 100 * MIB) != cudaErrorMemoryAllocation ||
        cudaGetLastError() != cudaErrorMemoryAllocation)
        FAIL("100 MiB were not refused");
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
                 {"graph", graph},
                 {"outside", outside},
                 {"again", again},
                 {"revoked", revoked},
                 {"pending", pending},
                 {"graph_trim", graph_trim}};

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
