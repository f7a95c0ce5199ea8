/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - operations: how they get into a stream, and what they do there.
 *
 * What it is: all operations of one communicator and group become one host function of the simulated GPU, so streams
 * and captures order them. It exchanges bytes with the other ranks: first a head that says what is coming, so that
 * ranks who disagree are found out, then the data. Point-to-point operations of a group run at the same time.
 *
 * What it is not: NCCL's algorithms. Each rank sends what another needs straight to it.
 *
 * Locking: ncclComm.turn is held while a batch runs.
 */
#include "simnccl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 64
#define CHUNK       ((size_t)256 << 10) /* how much of each rank is reduced at once */

/* What of a buffer is used: nothing, a piece of count elements, one for every rank, or these by the root alone. */
enum part { PART_NONE, PART_ONE, PART_ALL, PART_ROOT_ONE, PART_ROOT_ALL };

static const struct shape {
    const char *name;
    enum part send, recv;
    bool p2p, reduces,
        recv_rules; /* p2p: how NCCL does it; recv_rules: recv is the larger buffer that every rank has */
} shapes[] = {
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

static const char *const levels[] = {"outside registered memory", "partly in registered memory",
                                     "in registered memory"};

struct batch { /* what one host function does */
    ncclComm_t comm;
    struct op *ops;
    bool captured;
    struct batch *next;
};

/* ---- values ---- */

static size_t type_size(ncclDataType_t type)
{
    static const unsigned char sizes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

static double half_load(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent == 0    ? ldexp(mantissa, -24)
               : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                : ldexp(1024 + mantissa, exponent - 25);

    return h & 0x8000 ? -v : v;
}

static uint16_t half_store(double v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    int exponent;

    if (isnan(v))
        return 0x7e00;
    v = fabs(v);
    if (v >= 65520)
        return sign | 0x7c00;
    frexp(v, &exponent);
    if (exponent < -13) /* subnormal */
        exponent = -13;
    /* A mantissa that rounds up to 2048 carries into the exponent by itself. */
    unsigned mantissa = (unsigned)nearbyint(ldexp(v, 11 - exponent));
    return (uint16_t)(sign | (mantissa < 1024 ? mantissa : ((unsigned)(exponent + 13) << 10) + mantissa));
}

static uint16_t bfloat_store(double v)
{
    float f = (float)v;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if (!isnan(v))
        bits += 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

static bool is_float(ncclDataType_t type)
{
    return type >= ncclFloat16 && type <= ncclBfloat16;
}

/* Integers as 64 bits; unsigned arithmetic is right for signed ones, too, but where they are compared or divided. */
static uint64_t integer_load(ncclDataType_t type, const void *at)
{
    uint64_t v = 0;

    memcpy(&v, at, type_size(type));
    if (type == ncclInt8)
        return (uint64_t)(int64_t)(int8_t)v;
    return type == ncclInt32 ? (uint64_t)(int64_t)(int32_t)v : v;
}

double value_load(ncclDataType_t type, const void *at)
{
    uint32_t bits;
    uint16_t h;
    double d;
    float f;

    switch (type) {
    case ncclFloat64:
        memcpy(&d, at, sizeof(d));
        return d;
    case ncclFloat32:
        memcpy(&f, at, sizeof(f));
        return f;
    case ncclBfloat16:
        memcpy(&h, at, sizeof(h));
        bits = (uint32_t)h << 16;
        memcpy(&f, &bits, sizeof(f));
        return f;
    case ncclFloat16:
        memcpy(&h, at, sizeof(h));
        return half_load(h);
    default:
        return (double)(int64_t)integer_load(type, at);
    }
}

static void value_store(ncclDataType_t type, void *at, double v)
{
    float f = (float)v;
    uint16_t h = type == ncclBfloat16 ? bfloat_store(v) : half_store(v);

    if (type == ncclFloat64)
        memcpy(at, &v, sizeof(v));
    else if (type == ncclFloat32)
        memcpy(at, &f, sizeof(f));
    else
        memcpy(at, &h, sizeof(h));
}

static bool integer_less(ncclDataType_t type, uint64_t a, uint64_t b)
{
    bool is_signed = type == ncclInt8 || type == ncclInt32 || type == ncclInt64;

    return is_signed ? (int64_t)a < (int64_t)b : a < b;
}

static void integer_reduce(const struct op *op, char *to, const char *from, size_t step, int n)
{
    ncclDataType_t type = (ncclDataType_t)op->head.type;
    uint64_t v = integer_load(type, from);

    for (int i = 1; i < n; i++) {
        uint64_t w = integer_load(type, from + (size_t)i * step);
        if (op->head.op == ncclProd)
            v *= w;
        else if (op->head.op == ncclMax)
            v = integer_less(type, v, w) ? w : v;
        else if (op->head.op == ncclMin)
            v = integer_less(type, w, v) ? w : v;
        else
            v += w;
    }
    if (op->head.op == ncclAvg)
        v = integer_less(type, v, 0) ? (uint64_t)((int64_t)v / n) : v / (uint64_t)n;
    memcpy(to, &v, type_size(type));
}

static void float_reduce(const struct op *op, char *to, const char *from, size_t step, int n)
{
    ncclDataType_t type = (ncclDataType_t)op->head.type;
    double v = value_load(type, from);

    for (int i = 1; i < n; i++) {
        double w = value_load(type, from + (size_t)i * step);
        if (op->head.op == ncclProd)
            v *= w;
        else if (op->head.op == ncclMax)
            v = fmax(v, w);
        else if (op->head.op == ncclMin)
            v = fmin(v, w);
        else
            v += w;
    }
    value_store(type, to, op->head.op == ncclAvg ? v / n : v);
}

/* n pieces, step bytes apart, into one. */
static void reduce(const struct op *op, char *to, const char *from, size_t step, int n, size_t bytes)
{
    size_t size = type_size((ncclDataType_t)op->head.type);

    for (size_t i = 0; i < bytes; i += size) {
        if (is_float((ncclDataType_t)op->head.type))
            float_reduce(op, to + i, from + i, step, n);
        else
            integer_reduce(op, to + i, from + i, step, n);
    }
}

static void scale(const struct op *op, double factor, char *to, const char *from, size_t bytes)
{
    ncclDataType_t type = (ncclDataType_t)op->head.type;
    size_t size = type_size(type);

    for (size_t i = 0; i < bytes; i += size) {
        if (is_float(type)) {
            value_store(type, to + i, value_load(type, from + i) * factor);
        } else {
            uint64_t v = integer_load(type, from + i) * (uint64_t)(int64_t)factor;
            memcpy(to + i, &v, size);
        }
    }
}

/* ---- buffers ---- */

static bool is_root(const struct op *op)
{
    return (int)op->head.root == op->comm->rank;
}

static size_t piece(const struct op *op)
{
    return op->head.count * type_size((ncclDataType_t)op->head.type);
}

static size_t part_bytes(const struct op *op, enum part part)
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

/* Which records it uses, and what NCCL makes of that. */
static void op_registered(struct op *op, bool captured)
{
    const struct shape *shape = &shapes[op->head.kind];
    ncclComm_t comm = op->comm;
    const void *at[2] = {op->send, op->recv};
    size_t size[2] = {part_bytes(op, shape->send), part_bytes(op, shape->recv)};
    int buffers = 0, inside = 0;

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

/* ---- in the stream ---- */

static char *resolve(const struct op *op, const void *at, size_t n)
{
    static char nothing;
    char *host = n ? drv.simgpu_host((uintptr_t)at, n) : &nothing;

    if (!host)
        breach("%s: %p and %zu bytes from there are no live memory", shapes[op->head.kind].name, at, n);
    return host;
}

/* Do two ranks mean the same? What they differ in and can live with, one of them says: who is told to complain. */
static bool heads_agree(ncclComm_t comm, int peer, const struct head *mine, const struct head *theirs, bool complain)
{
    const char *a = shapes[mine->kind].name;

    if (mine->kind != theirs->kind || mine->type != theirs->type || mine->op != theirs->op ||
        mine->root != theirs->root || mine->count != theirs->count) {
        if (room_break(comm, ncclInvalidUsage)) /* who finds out first says so */
            breach("rank %d does %s (%llu elements), rank %d %s (%llu elements), or types or roots differ", comm->rank,
                   a, (unsigned long long)mine->count, peer,
                   theirs->kind <= OP_SCATTER ? shapes[theirs->kind].name : "?", (unsigned long long)theirs->count);
        return false;
    }
    if (!complain)
        return true;
    if (mine->level != theirs->level)
        breach("%s: the buffers of rank %d are %s, those of rank %d %s", a, comm->rank, levels[mine->level], peer,
               levels[theirs->level]);
    else if (mine->window != theirs->window)
        breach("%s: ranks %d and %d do not both use a symmetric window", a, comm->rank, peer);
    else if (mine->window && mine->offset != theirs->offset)
        breach("%s: offset %#llx in the symmetric window of rank %d, %#llx in that of rank %d", a,
               (unsigned long long)mine->offset, comm->rank, (unsigned long long)theirs->offset, peer);
    else if (mine->offset != theirs->offset)
        counts.offsets_differ++;
    return true;
}

/* The head of a send has arrived at the receive that it meets. */
static bool send_arrived(ncclComm_t comm, struct xfer *x)
{
    const struct op *op = x->arg;
    struct head theirs, mine = op->head;

    memcpy(&theirs, x->at - sizeof(theirs), sizeof(theirs));
    if (theirs.kind == OP_SEND && (int)theirs.root == comm->rank) {
        theirs.kind = mine.kind;
        theirs.root = mine.root;
    }
    return heads_agree(comm, x->peer, &mine, &theirs, true);
}

static bool run_p2p(struct batch *b, size_t n)
{
    struct xfer *x = calloc(2 * n, sizeof(*x));
    struct head *heads = calloc(n, sizeof(*heads));
    bool ok = x && heads;
    size_t i = 0;

    for (struct op *op = b->ops; op && ok; op = op->next) {
        if (op->head.kind > OP_RECV)
            continue;
        bool out = op->head.kind == OP_SEND;
        char *at = resolve(op, out ? op->send : op->recv, piece(op));
        ok = at != NULL;
        heads[i] = op->head;
        x[2 * i] = (struct xfer){out, (int)op->head.root, (char *)&heads[i], sizeof(*heads), NULL, op};
        if (!out)
            x[2 * i].arrived = send_arrived;
        x[2 * i + 1] = (struct xfer){out, (int)op->head.root, at, piece(op), NULL, NULL};
        i++;
    }
    if (!ok)
        room_break(b->comm, ncclUnhandledCudaError);
    ok = ok && room_exchange(b->comm, x, 2 * n);
    free(heads);
    free(x);
    return ok;
}

static bool heads_exchange(const struct op *op)
{
    ncclComm_t comm = op->comm;
    struct head heads[RANKS_MAX] = {0}, mine = op->head;
    struct xfer x[2 * RANKS_MAX];
    bool ok = true;

    for (int p = 0; p < comm->nranks; p++) {
        x[2 * p] = (struct xfer){true, p, (char *)&mine, sizeof(mine), NULL, NULL};
        x[2 * p + 1] = (struct xfer){false, p, (char *)&heads[p], sizeof(mine), NULL, NULL};
    }
    if (!room_exchange(comm, x, 2 * (size_t)comm->nranks))
        return false;
    for (int p = 0; p < comm->nranks; p++)
        ok = heads_agree(comm, p, &mine, &heads[p], p == 0) && ok;
    return ok;
}

/* Send and receive bytes [from, from + n) of every piece. To send scaled, to reduce, they go through scratch memory. */
static bool pieces_exchange(const struct op *op, char *send, char *recv, char *scratch, double factor, size_t from,
                            size_t n)
{
    const struct shape *shape = &shapes[op->head.kind];
    const int ranks = op->comm->nranks, root = (int)op->head.root;
    struct xfer x[2 * RANKS_MAX];
    size_t used = 0;
    bool i_send = shape->send < PART_ROOT_ONE || is_root(op), i_recv = shape->recv < PART_ROOT_ONE || is_root(op);

    for (int p = 0; p < ranks; p++) {
        size_t at = (size_t)p * piece(op) + from;
        if (i_send && (shape->recv < PART_ROOT_ONE || p == root)) {
            char *out = send + (shape->send == PART_ALL || shape->send == PART_ROOT_ALL ? at : from);
            if (op->redop.live) {
                scale(op, factor, scratch + (size_t)(ranks + p) * CHUNK, out, n);
                out = scratch + (size_t)(ranks + p) * CHUNK;
            }
            x[used++] = (struct xfer){true, p, out, n, NULL, NULL};
        }
        if (i_recv && (shape->send < PART_ROOT_ONE || p == root)) {
            char *in = recv + (shape->recv == PART_ALL || shape->recv == PART_ROOT_ALL ? at : from);
            x[used++] = (struct xfer){false, p, shape->reduces ? scratch + (size_t)p * CHUNK : in, n, NULL, NULL};
        }
    }
    if (!room_exchange(op->comm, x, used))
        return false;
    if (shape->reduces && i_recv)
        reduce(op, recv + from, scratch, CHUNK, ranks, n);
    return true;
}

static bool run_collective(const struct op *op)
{
    const struct shape *shape = &shapes[op->head.kind];
    char *send = resolve(op, op->send, part_bytes(op, shape->send));
    char *recv = send ? resolve(op, op->recv, part_bytes(op, shape->recv)) : NULL;
    const void *at = op->redop.live ? op->redop.at : NULL;
    char *scalar = at ? resolve(op, at, type_size((ncclDataType_t)op->head.type)) : NULL;
    size_t chunk = shape->reduces ? CHUNK : piece(op);
    char *scratch = shape->reduces ? malloc(2 * RANKS_MAX * CHUNK) : NULL;
    bool ok = send && recv && (scalar || !at) && (scratch || !shape->reduces);
    double factor = op->redop.scalar;

    if (!ok)
        room_break(op->comm, ncclUnhandledCudaError);
    if (ok && scalar)
        factor = value_load((ncclDataType_t)op->head.type, scalar);
    ok = ok && heads_exchange(op);
    for (size_t from = 0; ok && from < piece(op); from += chunk)
        ok =
            pieces_exchange(op, send, recv, scratch, factor, from, chunk < piece(op) - from ? chunk : piece(op) - from);
    free(scratch);
    return ok;
}

void ops_free(struct op *ops)
{
    for (struct op *next; ops; ops = next) {
        next = ops->next;
        free(ops);
    }
}

static void batch_free(struct batch *b)
{
    for (struct op *op = b->ops; op; op = op->next) {
        for (int i = 0; i < 2; i++) {
            if (op->used[i])
                op->used[i]->busy--;
        }
    }
    ops_free(b->ops);
    free(b);
}

static void batch_run(void *arg)
{
    struct batch *b = arg;
    ncclComm_t comm = b->comm;
    size_t p2p = 0;
    bool ok = true;

    comm->inside++;
    pthread_mutex_lock(&comm->turn);
    for (const struct op *op = b->ops; op; op = op->next)
        p2p += op->head.kind <= OP_RECV;
    if (p2p)
        ok = run_p2p(b, p2p);
    for (const struct op *op = b->ops; op && ok; op = op->next)
        ok = op->head.kind <= OP_RECV || op->head.count == 0 || run_collective(op);
    pthread_mutex_unlock(&comm->turn);
    if (!b->captured) {
        batch_free(b);
        comm->running--;
    }
    comm->inside--; /* last: the communicator may go now */
}

bool ops_idle(ncclComm_t comm)
{
    if (comm->inside == 0 && comm->running == 0)
        return true;
    /* A context that has faulted runs nothing more: what has not started never will. */
    CUresult r = comm->last_event ? drv.cuEventQuery(comm->last_event) : CUDA_SUCCESS;
    return r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY && comm->inside == 0;
}

/* ---- into the stream ---- */

/* Later work of one waits for what is in the other now. */
static CUresult stream_follow(CUstream one, CUstream other)
{
    CUevent event;
    CUresult r = drv.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);

    if (r != CUDA_SUCCESS)
        return r;
    if ((r = drv.cuEventRecord(event, other)) == CUDA_SUCCESS)
        r = drv.cuStreamWaitEvent(one, event, 0);
    drv.cuEventDestroy(event);
    return r;
}

/* What a group's first stream has to wait for, and what has to wait for it. */
static int batch_streams(const struct batch *b, CUstream *others)
{
    int n = 0;

    for (const struct op *op = b->ops; op; op = op->next) {
        bool seen = op->stream == b->ops->stream;
        for (int i = 0; i < n; i++)
            seen |= others[i] == op->stream;
        if (!seen && n < STREAMS_MAX)
            others[n++] = op->stream;
    }
    return n;
}

/* A graph may run it as long as the communicator is there. */
static void batch_keep(struct batch *b)
{
    for (struct op *op = b->ops; op; op = op->next) {
        for (int i = 0; i < 2; i++) {
            if (op->used[i])
                op->used[i]->captured = true;
        }
    }
    b->next = b->comm->captured;
    b->comm->captured = b;
}

/* In the first stream of the group, behind all of them and in front of all. */
static CUresult batch_launch(struct batch *b)
{
    ncclComm_t comm = b->comm;
    CUstream first = b->ops->stream, others[STREAMS_MAX];
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = drv.cuStreamIsCapturing(first, &status);
    const bool captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
    const int n = batch_streams(b, others);

    b->captured = captured;
    for (int i = 0; i < n && r == CUDA_SUCCESS; i++)
        r = stream_follow(first, others[i]);
    /* Operations of a communicator run in the order of the calls, whatever their streams. */
    if (r == CUDA_SUCCESS && !captured && comm->last_event && comm->last_stream != first)
        r = drv.cuStreamWaitEvent(first, comm->last_event, 0);
    /* The collectives of a group come first. */
    for (int p2p = 0; p2p < 2; p2p++)
        for (struct op *op = b->ops; op && r == CUDA_SUCCESS; op = op->next)
            if (shapes[op->head.kind].p2p == (p2p != 0))
                op_registered(op, captured);
    comm->running += !captured;
    if (r == CUDA_SUCCESS)
        r = drv.cuLaunchHostFunc(first, batch_run, b);
    if (r != CUDA_SUCCESS) {
        comm->running -= !captured;
        batch_free(b);
        return r;
    }
    if (captured)
        batch_keep(b);
    for (int i = 0; i < n && r == CUDA_SUCCESS; i++)
        r = stream_follow(others[i], first);
    if (captured || r != CUDA_SUCCESS)
        return r;
    comm->last_stream = first;
    if (!comm->last_event)
        r = drv.cuEventCreate(&comm->last_event, CU_EVENT_DISABLE_TIMING);
    return r == CUDA_SUCCESS ? drv.cuEventRecord(comm->last_event, first) : r;
}

/* Take the operations of the first one's communicator out of the list. */
static struct batch *batch_take(struct op **ops)
{
    struct batch *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    struct op **end = &b->ops;
    b->comm = (*ops)->comm;
    for (struct op **p = ops; *p;) {
        struct op *op = *p;
        if (op->comm != b->comm) {
            p = &op->next;
            continue;
        }
        *p = op->next;
        op->next = NULL;
        *end = op;
        end = &op->next;
    }
    return b;
}

ncclResult_t ops_start(struct op *ops)
{
    ncclResult_t ret = ncclSuccess;
    CUcontext before = NULL;

    if (!ops) /* maybe before there was any communicator, and the driver */
        return ncclSuccess;
    drv.cuCtxGetCurrent(&before);
    while (ops) {
        struct batch *b = batch_take(&ops);
        if (!b) {
            ops_free(ops);
            ret = ncclSystemError;
            break;
        }
        drv.cuCtxSetCurrent(b->comm->ctx);
        if (batch_launch(b) != CUDA_SUCCESS)
            ret = ncclUnhandledCudaError;
    }
    drv.cuCtxSetCurrent(before);
    return ret;
}

void ops_captured_free(ncclComm_t comm)
{
    for (struct batch *b = comm->captured, *next; b; b = next) {
        next = b->next;
        ops_free(b->ops);
        free(b);
    }
    comm->captured = NULL;
}
