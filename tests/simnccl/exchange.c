/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.c - the host function that a group's operations of one communicator become, and what it does in the stream.
 *
 * It exchanges bytes with the other ranks: first a head that describes the bytes, so that ranks that disagree are found
 * out, then the data. Point-to-point operations of a group run at the same time. These are not NCCL's algorithms: each
 * rank sends what another needs straight to it.
 *
 * Locking: ncclComm.turn is held while a batch runs.
 */
#include "run.h"

static const char *const levels[] = {"outside registered memory", "partly in registered memory",
                                     "in registered memory"};

static char *resolve(const struct op *op, const void *at, size_t n)
{
    static char nothing;
    char *host = n ? drv.simgpu_host((uintptr_t)at, n) : &nothing;

    if (!host)
        breach("%s: %p and %zu bytes from there are no live memory", shapes[op->head.kind].name, at, n);
    return host;
}

/* Do two ranks mean the same operation? A difference that both can live with is reported by the one with complain. */
static bool heads_agree(ncclComm_t comm, int peer, const struct head *mine, const struct head *theirs, bool complain)
{
    const char *a = shapes[mine->kind].name;

    if (mine->kind != theirs->kind || mine->type != theirs->type || mine->op != theirs->op ||
        mine->root != theirs->root || mine->count != theirs->count) {
        if (room_break(comm, ncclInvalidUsage)) /* the first rank that finds out reports it */
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
                values_scale(op, factor, scratch + (size_t)(ranks + p) * CHUNK, out, n);
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
        values_reduce(op, recv + from, scratch, CHUNK, ranks, n);
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

void batch_free(struct batch *b)
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

void batch_run(void *arg)
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
