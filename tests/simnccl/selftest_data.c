/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selftest_data.c - do operations of the NCCL stand-in bring the right bytes, in the order of streams?
 *
 * The test runs every operation on small and large buffers, in and out of place, in groups, captures and several
 * streams, and on communicators made of others. Several ranks in one thread are in selftest_groups.c, contracts in
 * selftest_contract.c.
 *
 * Locking: none; a rank is one thread.
 */
#include "selftest.h"

#include <limits.h>

/* The largest count takes several rounds of the rings and of the part that is reduced at once. */
static const size_t counts[] = {1, 1000, 150001};
#define COUNT_MAX ((size_t)150001)

struct buffers {
    int rank, n;
    ncclComm_t comm;
    cudaStream_t s;
    int *send, *recv, *host; /* RANKS * COUNT_MAX elements each */
};

/* Element i of piece p of a rank's send buffer. */
static int pattern(int rank, int p, size_t i)
{
    return rank * 1000003 + p * 10007 + (int)i;
}

/* A small copy may still be on its way when cudaMemcpy returns, and the streams here do not wait for it. */
void upload(void *to, const void *from, size_t size)
{
    OK(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice));
    OK(cudaStreamSynchronize(NULL));
}

static void fill(struct buffers *b, int *to, int pieces, size_t count)
{
    OK(cudaStreamSynchronize(b->s)); /* an operation whose result this rank has not looked at may still read it */
    for (int p = 0; p < pieces; p++) {
        for (size_t i = 0; i < count; i++)
            b->host[(size_t)p * count + i] = pattern(b->rank, p, i);
    }
    upload(to, b->host, (size_t)pieces * count * sizeof(int));
}

static void zero(int *at, size_t count)
{
    OK(cudaMemset(at, 0, count * sizeof(int)));
    OK(cudaStreamSynchronize(NULL));
}

/* The right value of an element of the result. */
typedef int (*expected)(const struct buffers *b, int p, size_t i, int root);

static void compare(struct buffers *b, const char *what, const int *from, int pieces, size_t count, expected want,
                    int root)
{
    size_t wrong = 0;

    OK(cudaStreamSynchronize(b->s));
    OK(cudaMemcpy(b->host, from, (size_t)pieces * count * sizeof(int), cudaMemcpyDeviceToHost));
    for (int p = 0; p < pieces; p++) {
        for (size_t i = 0; i < count; i++)
            wrong += b->host[(size_t)p * count + i] != want(b, p, i, root);
    }
    if (wrong) {
        failures++;
        fprintf(stderr, "rank %d: %s of %zu: %zu elements are wrong\n", b->rank, what, count, wrong);
    }
}

static int want_sum(const struct buffers *b, int p, size_t i, int root)
{
    int v = 0;

    for (int r = 0; r < b->n; r++)
        v += pattern(r, root, i);
    return v;
}

static int want_root(const struct buffers *b, int p, size_t i, int root)
{
    return pattern(root, 0, i);
}

static int want_gathered(const struct buffers *b, int p, size_t i, int root)
{
    return pattern(p, 0, i);
}

static int want_exchanged(const struct buffers *b, int p, size_t i, int root)
{
    return pattern(p, b->rank, i);
}

static int want_scattered(const struct buffers *b, int p, size_t i, int root)
{
    return pattern(root, b->rank, i);
}

static int want_left(const struct buffers *b, int p, size_t i, int root)
{
    return pattern((b->rank + b->n - 1) % b->n, 0, i);
}

static void collectives(struct buffers *b, size_t n)
{
    int root = b->n - 1, me = b->rank;

    fill(b, b->send, 1, n);
    OK(ncclAllReduce(b->send, b->recv, n, ncclInt32, ncclSum, b->comm, b->s));
    compare(b, "all_reduce", b->recv, 1, n, want_sum, 0);
    OK(ncclAllReduce(b->send, b->send, n, ncclInt32, ncclSum, b->comm, b->s));
    compare(b, "all_reduce in place", b->send, 1, n, want_sum, 0);

    fill(b, b->send, 1, n);
    OK(ncclReduce(b->send, b->recv, n, ncclInt32, ncclSum, root, b->comm, b->s));
    if (me == root)
        compare(b, "reduce", b->recv, 1, n, want_sum, 0);
    OK(ncclBroadcast(b->send, b->recv, n, ncclInt32, root, b->comm, b->s));
    compare(b, "broadcast", b->recv, 1, n, want_root, root);
    OK(ncclBcast(b->send, n, ncclInt32, root, b->comm, b->s));
    compare(b, "bcast", b->send, 1, n, want_root, root);

    fill(b, b->send, 1, n);
    OK(ncclAllGather(b->send, b->recv, n, ncclInt32, b->comm, b->s));
    compare(b, "all_gather", b->recv, b->n, n, want_gathered, 0);
    fill(b, b->recv + (size_t)me * n, 1, n);
    OK(ncclAllGather(b->recv + (size_t)me * n, b->recv, n, ncclInt32, b->comm, b->s));
    compare(b, "all_gather in place", b->recv, b->n, n, want_gathered, 0);
    OK(ncclGather(b->send, b->recv, n, ncclInt32, root, b->comm, b->s));
    if (me == root)
        compare(b, "gather", b->recv, b->n, n, want_gathered, 0);

    fill(b, b->send, b->n, n);
    OK(ncclReduceScatter(b->send, b->recv, n, ncclInt32, ncclSum, b->comm, b->s));
    compare(b, "reduce_scatter", b->recv, 1, n, want_sum, me);
    OK(ncclAlltoAll(b->send, b->recv, n, ncclInt32, b->comm, b->s));
    compare(b, "alltoall", b->recv, b->n, n, want_exchanged, 0);
    OK(ncclScatter(b->send, b->recv, n, ncclInt32, root, b->comm, b->s));
    compare(b, "scatter", b->recv, 1, n, want_scattered, root);
    OK(ncclReduceScatter(b->send, b->send + (size_t)me * n, n, ncclInt32, ncclSum, b->comm, b->s));
    compare(b, "reduce_scatter in place", b->send + (size_t)me * n, 1, n, want_sum, me);
}

static void send_recv(struct buffers *b, size_t n)
{
    int right = (b->rank + 1) % b->n, left = (b->rank + b->n - 1) % b->n;

    fill(b, b->send, b->n, n);
    OK(ncclGroupStart());
    OK(ncclSend(b->send, n, ncclInt32, right, b->comm, b->s));
    OK(ncclRecv(b->recv, n, ncclInt32, left, b->comm, b->s));
    OK(ncclGroupEnd());
    compare(b, "ring", b->recv, 1, n, want_left, 0);

    /* Everybody with everybody, oneself included, and a collective in the same group. */
    OK(ncclGroupStart());
    for (int p = 0; p < b->n; p++) {
        OK(ncclSend(b->send + (size_t)p * n, n, ncclInt32, p, b->comm, b->s));
        OK(ncclRecv(b->recv + (size_t)p * n, n, ncclInt32, p, b->comm, b->s));
    }
    OK(ncclBroadcast(b->send, b->send, n, ncclInt32, 1, b->comm, b->s));
    OK(ncclGroupEnd());
    compare(b, "alltoall by hand", b->recv, b->n, n, want_exchanged, 0);
    compare(b, "broadcast behind it", b->send, 1, n, want_root, 1);

    /* One direction, without a group. */
    fill(b, b->send, 1, n);
    if (b->rank == 0) {
        OK(ncclSend(b->send, n, ncclInt32, 1, b->comm, b->s));
        OK(cudaStreamSynchronize(b->s));
    } else if (b->rank == 1) {
        OK(ncclRecv(b->recv, n, ncclInt32, 0, b->comm, b->s));
        compare(b, "receive", b->recv, 1, n, want_root, 0);
    }
}

/* ---- types and reductions ---- */

/* The value v as a type; enough for small whole numbers. */
static size_t put(ncclDataType_t type, void *at, int v)
{
    static const uint16_t halves[25] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, [10] = 0x4900, [20] = 0x4d00, [24] = 0x4e00};
    float f = (float)v;
    double d = v;
    int64_t i = v;
    uint32_t bits;

    switch (type) {
    case ncclFloat64:
        memcpy(at, &d, sizeof(d));
        return sizeof(d);
    case ncclFloat32:
        memcpy(at, &f, sizeof(f));
        return sizeof(f);
    case ncclBfloat16:
        memcpy(&bits, &f, sizeof(bits));
        memcpy(at, (char *)&bits + 2, 2);
        return 2;
    case ncclFloat16:
        memcpy(at, &halves[v], 2);
        return 2;
    default:
        memcpy(at, &i, type <= ncclUint8 ? 1 : type <= ncclUint32 ? 4 : 8);
        return type <= ncclUint8 ? 1 : type <= ncclUint32 ? 4 : 8;
    }
}

static void reduction(struct buffers *b, ncclDataType_t type, ncclRedOp_t op, int mine, int want)
{
    char in[8] = {0}, out[8] = {0}, wanted[8] = {0};
    size_t size = put(type, in, mine);

    put(type, wanted, want);
    upload(b->send, in, size);
    OK(ncclAllReduce(b->send, b->recv, 1, type, op, b->comm, b->s));
    OK(cudaStreamSynchronize(b->s));
    OK(cudaMemcpy(out, b->recv, size, cudaMemcpyDeviceToHost));
    if (memcmp(out, wanted, size) != 0) {
        failures++;
        fprintf(stderr, "rank %d: type %d, reduction %d: wrong\n", b->rank, (int)type, (int)op);
    }
}

static void reductions(struct buffers *b)
{
    const int v = b->rank + 1; /* 1 2 3 4 */
    ncclRedOp_t twice = ncclSum, twice_there = ncclSum;
    char two[8] = {0};
    void *there;

    OK(cudaMalloc(&there, sizeof(two)));
    for (int t = ncclInt8; t <= ncclBfloat16; t++) {
        ncclDataType_t type = (ncclDataType_t)t;
        reduction(b, type, ncclSum, v, 10);
        reduction(b, type, ncclProd, v, 24);
        reduction(b, type, ncclMax, v, 4);
        reduction(b, type, ncclMin, v, 1);
        reduction(b, type, ncclAvg, b->rank ? v : 3, 3);
        put(type, two, 2);
        upload(there, two, sizeof(two));
        OK(ncclRedOpCreatePreMulSum(&twice, two, type, ncclScalarHostImmediate, b->comm));
        OK(ncclRedOpCreatePreMulSum(&twice_there, there, type, ncclScalarDevice, b->comm));
        reduction(b, type, twice, v, 20);
        reduction(b, type, twice_there, v, 20);
        OK(ncclRedOpDestroy(twice, b->comm));
        OK(ncclRedOpDestroy(twice_there, b->comm));
    }
    OK(cudaFree(there));
    CHECK_EQ(ncclAllReduce(b->send, b->recv, 1, ncclFloat8e4m3, ncclSum, b->comm, b->s), ncclInvalidArgument);
    CHECK_EQ(ncclAllReduce(b->send, b->recv, 1, ncclInt8, twice, b->comm, b->s), ncclInvalidArgument);
}

/* ---- order ---- */

static void streams(struct buffers *b)
{
    const size_t n = 1000;
    struct gate g = {0};
    cudaStream_t other;

    /* Behind earlier work in the stream, and in front of later work. */
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    zero(b->send, n);
    fill(b, b->recv, 1, n);
    if (b->rank == 0)
        OK(cudaLaunchHostFunc(b->s, gate_hold, &g));
    OK(cudaMemcpyAsync(b->send, b->recv, n * sizeof(int), cudaMemcpyDeviceToDevice, b->s));
    OK(ncclAllReduce(b->send, b->recv, n, ncclInt32, ncclSum, b->comm, b->s));
    /* The next one is in another stream and has to come after it. */
    OK(ncclAllReduce(b->recv, b->send, n, ncclInt32, ncclMax, b->comm, other));
    if (b->rank == 0)
        CHECK_EQ(cudaStreamQuery(other), cudaErrorNotReady);
    g.open = 1;
    OK(cudaStreamSynchronize(other));
    compare(b, "operations in two streams", b->send, 1, n, want_sum, 0);

    /* A group over two streams comes behind both. */
    fill(b, b->send, 1, n);
    zero(b->recv, n);
    g.open = 0;
    OK(cudaLaunchHostFunc(other, gate_hold, &g));
    OK(cudaMemcpyAsync(b->recv, b->send, n * sizeof(int), cudaMemcpyDeviceToDevice, other));
    OK(ncclGroupStart());
    OK(ncclAllReduce(b->recv, b->recv, n, ncclInt32, ncclSum, b->comm, b->s));
    OK(ncclAllReduce(b->send, b->send, n, ncclInt32, ncclSum, b->comm, other));
    OK(ncclGroupEnd());
    CHECK_EQ(cudaStreamQuery(b->s), cudaErrorNotReady);
    g.open = 1;
    compare(b, "first of a group over two streams", b->recv, 1, n, want_sum, 0);
    OK(cudaStreamSynchronize(other));
    compare(b, "second of a group over two streams", b->send, 1, n, want_sum, 0);
    OK(cudaStreamDestroy(other));
}

static void captures(struct buffers *b)
{
    const size_t n = 5000;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    fill(b, b->send, 1, n);
    zero(b->recv, n);
    OK(cudaStreamBeginCapture(b->s, cudaStreamCaptureModeThreadLocal));
    OK(ncclAllReduce(b->send, b->recv, n, ncclInt32, ncclSum, b->comm, b->s));
    OK(cudaStreamEndCapture(b->s, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaMemcpy(b->host, b->recv, n * sizeof(int), cudaMemcpyDeviceToHost));
    CHECK(b->host[n - 1] == 0); /* recorded, not run */
    for (int i = 0; i < 3; i++) {
        zero(b->recv, n);
        OK(cudaGraphLaunch(exec, b->s));
        compare(b, "graph", b->recv, 1, n, want_sum, 0);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
}

/* ---- communicators of communicators ---- */

static void wait_ready(ncclComm_t polled, ncclResult_t first)
{
    ncclResult_t state = first;
    int polls = 0;

    for (; state == ncclInProgress; polls++) {
        nap();
        OK(ncclCommGetAsyncError(polled, &state));
    }
    OK(state);
    CHECK(first == ncclSuccess || polls > 3); /* SIMNCCL_SLOW's default */
}

static void small_sum(struct buffers *b, ncclComm_t comm, int rank, int want)
{
    int v = rank + 1;

    upload(b->send, &v, sizeof(v));
    OK(ncclAllReduce(b->send, b->recv, 1, ncclInt32, ncclSum, comm, b->s));
    OK(cudaStreamSynchronize(b->s));
    OK(cudaMemcpy(&v, b->recv, sizeof(v), cudaMemcpyDeviceToHost));
    CHECK_EQ(v, want);
}

static void children(struct buffers *b)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t half, most = NULL, late, none = b->comm;
    int last = b->n - 1, count, rank;

    /* Even and odd ranks, the highest first. */
    OK(ncclCommSplit(b->comm, b->rank % 2, -b->rank, &half, NULL));
    OK(ncclCommCount(half, &count));
    OK(ncclCommUserRank(half, &rank));
    CHECK_EQ(count, b->n / 2);
    CHECK_EQ(rank, (b->n - 1 - b->rank) / 2);
    small_sum(b, half, rank, 3);
    OK(ncclCommDestroy(half));

    OK(ncclCommSplit(b->comm, b->rank == last ? NCCL_SPLIT_NOCOLOR : 7, 0, &none, NULL));
    CHECK((none == NULL) == (b->rank == last));
    if (none)
        OK(ncclCommDestroy(none));

    if (b->rank != last) {
        OK(ncclCommShrink(b->comm, &last, 1, &most, NULL, NCCL_SHRINK_DEFAULT));
        OK(ncclCommCount(most, &count));
        CHECK_EQ(count, last);
        small_sum(b, most, b->rank, 6);
        OK(ncclCommFinalize(most));
        OK(ncclCommDestroy(most));
    }

    /* In a group the new one comes at the end of it. */
    OK(ncclGroupStart());
    OK(ncclCommSplit(b->comm, 0, 0, &late, NULL));
    CHECK(late == NULL);
    OK(ncclGroupEnd());
    CHECK(late != NULL);
    config.blocking = 0;
    ncclResult_t result = ncclCommSplit(late, 0, 0, &half, &config);
    OK(result); /* its parent is blocking */
    result = ncclCommSplit(half, 0, 0, &most, NULL);
    CHECK_EQ(result, ncclInProgress);
    CHECK(most == NULL);
    wait_ready(half, result);
    small_sum(b, most, b->rank, 10);
    OK(ncclCommDestroy(most));
    OK(ncclCommDestroy(half));
    OK(ncclCommDestroy(late));
}

/* ---- registered memory ---- */

static void windows(struct buffers *b)
{
    const size_t n = 1000;
    ncclWindow_t window;
    void *handle, *again;
    int *at;

    OK(ncclMemAlloc((void **)&at, (size_t)1 << 20));
    OK(ncclCommRegister(b->comm, at, (size_t)2 << 20, &handle));
    OK(ncclCommRegister(b->comm, at + 100, 400, &again));
    CHECK(handle == again);
    fill(b, at, 1, n);
    OK(ncclAllReduce(at, at + n, n, ncclInt32, ncclSum, b->comm, b->s));
    compare(b, "all_reduce in registered memory", at + n, 1, n, want_sum, 0);
    OK(ncclCommDeregister(b->comm, again));
    OK(cudaSetDevice(b->rank)); /* the stand-in, like NCCL, has not put it back */
    OK(ncclCommDeregister(b->comm, handle));
    int allocs = hooks.mem_allocs, registers = hooks.registers;
    OK(ncclCommWindowRegister(b->comm, at, (size_t)2 << 20, &window, NCCL_WIN_COLL_SYMMETRIC));
    CHECK(window != NULL);
    CHECK(hooks.mem_allocs > allocs && hooks.registers > registers); /* a preload meets what NCCL calls itself */
    OK(ncclAllReduce(at, at + n, n, ncclInt32, ncclSum, b->comm, b->s));
    compare(b, "all_reduce in a window", at + n, 1, n, want_sum, 0);
    OK(ncclCommWindowDeregister(b->comm, window));
    CHECK_EQ(ncclCommWindowRegister(b->comm, b->send, 4096, &window, 0), ncclUnhandledCudaError);
    CHECK(window == NULL);
    OK(ncclMemFree(at));
}

void data_rank(ncclComm_t comm)
{
    struct buffers b = {.comm = comm};
    const size_t bytes = RANKS * COUNT_MAX * sizeof(int);
    int dev, broadcasts = hooks.broadcasts;

    OK(ncclCommUserRank(comm, &b.rank));
    OK(ncclCommCount(comm, &b.n));
    OK(ncclCommCuDevice(comm, &dev));
    CHECK_EQ(dev, b.rank);
    OK(cudaStreamCreateWithFlags(&b.s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&b.send, bytes));
    OK(cudaMalloc((void **)&b.recv, bytes));
    b.host = malloc(bytes);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        collectives(&b, counts[i]);
        send_recv(&b, counts[i]);
    }
    CHECK(hooks.broadcasts > broadcasts); /* ncclBcast calls it */
    reductions(&b);
    streams(&b);
    captures(&b);
    children(&b);
    windows(&b);
    free(b.host);
    OK(cudaFree(b.send));
    OK(cudaFree(b.recv));
    OK(cudaStreamDestroy(b.s));
}
