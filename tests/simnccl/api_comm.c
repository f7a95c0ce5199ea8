/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_comm.c - the exported functions that make, question and end communicators.
 *
 * Locking: see simnccl.h.
 */
#include "api.h"

API(ncclResult_t, GetVersion, (int *version))
{
    ENTER(ncclGetVersion);
    if (!version)
        return failed(ncclInvalidArgument);
    *version = settings.version;
    return ncclSuccess;
}

API(ncclResult_t, GetUniqueId, (ncclUniqueId * id))
{
    ENTER(ncclGetUniqueId);
    return failed(id ? room_id(id) : ncclInvalidArgument);
}

static ncclResult_t init(ncclComm_t *comm, int nranks, const ncclUniqueId *id, int rank, const ncclConfig_t *config,
                         CUcontext ctx)
{
    if (!comm || nranks < 1 || nranks > RANKS_MAX || rank < 0 || rank >= nranks)
        return failed(ncclInvalidArgument);
    if (!driver_find())
        return failed(ncclSystemError);
    if (!ctx)
        drv.cuCtxGetCurrent(&ctx);
    if (!ctx && drv.cuDevicePrimaryCtxRetain(&ctx, 0) != CUDA_SUCCESS)
        return failed(ncclUnhandledCudaError);
    ncclComm_t c = comm_new(ctx, nranks, rank, config, true);
    if (!c)
        return failed(ncclSystemError);
    snprintf(c->path, sizeof(c->path), "%.*s", (int)sizeof(id->internal), id->internal);
    *comm = c; /* a shell until it is ready */
    return job_start((struct job){.kind = JOB_JOIN, .comm = c});
}

API(ncclResult_t, CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))
{
    ENTER(ncclCommInitRank);
    return init(comm, nranks, &id, rank, NULL, NULL);
}

API(ncclResult_t, CommInitRankConfig, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config))
{
    ENTER(ncclCommInitRankConfig);
    return init(comm, nranks, &id, rank, config, NULL);
}

API(ncclResult_t, CommInitRankScalable,
    (ncclComm_t * comm, int nranks, int rank, int n, ncclUniqueId *ids, ncclConfig_t *config))
{
    ENTER(ncclCommInitRankScalable);
    if (n < 1 || !ids)
        return failed(ncclInvalidArgument);
    return init(comm, nranks, ids, rank, config, NULL);
}

API(ncclResult_t, CommInitAll, (ncclComm_t * comm, int n, const int *devices))
{
    ENTER(ncclCommInitAll);
    ncclUniqueId id;
    ncclResult_t result = comm && n > 0 && n <= RANKS_MAX ? room_id(&id) : ncclInvalidArgument;

    if (result == ncclSuccess && !driver_find())
        result = ncclSystemError;
    if (result != ncclSuccess)
        return failed(result);
    group_begin();
    for (int i = 0; i < n && result == ncclSuccess; i++) {
        CUdevice dev;
        CUcontext ctx;
        if (drv.cuDeviceGet(&dev, devices ? devices[i] : i) != CUDA_SUCCESS ||
            drv.cuDevicePrimaryCtxRetain(&ctx, dev) != CUDA_SUCCESS)
            result = failed(ncclUnhandledCudaError);
        else
            result = init(&comm[i], n, &id, i, NULL, ctx);
    }
    ncclResult_t ended = group_finish(true);
    return failed(result == ncclSuccess ? ended : result);
}

/* A child of comm: a shell that the program does not have yet. */
static ncclComm_t child_new(ncclComm_t comm, ncclComm_t *to, const ncclConfig_t *config)
{
    *to = NULL;
    return comm_new(comm->ctx, 0, 0, config, comm->blocking);
}

static enum need child_need(ncclComm_t comm)
{
    return comm && comm->state == COMM_REVOKED ? NEED_LIVE : NEED_READY;
}

API(ncclResult_t, CommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *to, ncclConfig_t *config))
{
    COMM_ENTER(ncclCommSplit, comm, child_need(comm));
    ncclComm_t child;

    if (!to || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
        return failed(ncclInvalidArgument);
    if (!(child = child_new(comm, to, config)))
        return failed(ncclSystemError);
    return job_start(
        (struct job){.kind = JOB_SPLIT, .comm = child, .parent = comm, .to = to, .color = color, .key = key});
}

API(ncclResult_t, CommShrink, (ncclComm_t comm, int *exclude, int n, ncclComm_t *to, ncclConfig_t *config, int flags))
{
    COMM_ENTER(ncclCommShrink, comm, flags & NCCL_SHRINK_ABORT ? NEED_LIVE : child_need(comm));
    uint32_t out = 0;
    ncclComm_t child;

    /* As in NCCL before anything else: what runs is given up, and the communicator goes on. */
    if (flags & NCCL_SHRINK_ABORT) {
        comm->abort = 1;
        while (!ops_idle(comm))
            nap();
        comm->abort = 0;
    }
    if (!to || !exclude || n < 1)
        return failed(ncclInvalidArgument);
    for (int i = 0; i < n; i++) {
        if (exclude[i] < 0 || exclude[i] >= comm->nranks || exclude[i] == comm->rank)
            return failed(ncclInvalidArgument);
        out |= 1u << exclude[i];
    }
    if (!(child = child_new(comm, to, config)))
        return failed(ncclSystemError);
    for (int i = 0; i < comm->nranks; i++) {
        child->nranks += !(out & 1u << i);
        child->rank += i < comm->rank && !(out & 1u << i);
    }
    if (!child_path(child, comm, 'x', out)) {
        comm_free(child);
        return failed(ncclInternalError);
    }
    return job_start((struct job){.kind = JOB_JOIN, .comm = child, .parent = comm, .to = to});
}

API(ncclResult_t, CommFinalize, (ncclComm_t comm))
{
    COMM_ENTER(ncclCommFinalize, comm, NEED_READY);
    return job_start((struct job){.kind = JOB_END, .comm = comm});
}

API(ncclResult_t, CommDestroy, (ncclComm_t comm))
{
    ENTER(ncclCommDestroy);
    if (!comm) /* as NCCL does */
        return ncclSuccess;
    ncclResult_t entered = comm_enter(&call, comm, NEED_LIVE);
    if (entered != ncclSuccess)
        return failed(entered);
    call.comm = NULL; /* it is gone afterwards */
    return job_start((struct job){.kind = JOB_END, .comm = comm, .destroy = true});
}

API(ncclResult_t, CommAbort, (ncclComm_t comm))
{
    COMM_ENTER(ncclCommAbort, comm, NEED_ANY);
    comm->abort = 1;
    comm_free(comm); /* waits */
    return ncclSuccess;
}

API(ncclResult_t, CommRevoke, (ncclComm_t comm, int flags))
{
    COMM_ENTER(ncclCommRevoke, comm, NEED_READY);
    if (flags != NCCL_REVOKE_DEFAULT)
        return failed(ncclInvalidArgument);
    comm->abort = 1;
    comm->state = COMM_REVOKED;
    return ncclSuccess;
}

API(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *error))
{
    COMM_ENTER(ncclCommGetAsyncError, comm, NEED_ANY);
    int nobody = 0;

    if (!error)
        return failed(ncclInvalidArgument);
    if (comm->pending && !call.outer &&
        atomic_compare_exchange_strong(&comm->user, &nobody, (int)syscall(SYS_gettid))) {
        call.comm = comm;
        if (comm->pending) /* still: another thread's poll may have ended it before this one had its turn */
            pending_step(comm, settings.slow);
    }
    *error = (ncclResult_t)comm->error;
    if (*error == ncclSuccess && (comm->pending || comm->state == COMM_STARTING))
        *error = ncclInProgress;
    return ncclSuccess;
}

#define QUESTION(fn, field)                                                                                            \
    API(ncclResult_t, fn, (const ncclComm_t comm, int *ret))                                                           \
    {                                                                                                                  \
        COMM_ENTER(nccl##fn, comm, NEED_ANY);                                                                          \
        if (comm->state == COMM_STARTING) {                                                                            \
            breach("%s on a communicator that is not ready", call.name);                                               \
            return failed(ncclInvalidArgument);                                                                        \
        }                                                                                                              \
        if (!ret)                                                                                                      \
            return failed(ncclInvalidArgument);                                                                        \
        *ret = comm->field;                                                                                            \
        return ncclSuccess;                                                                                            \
    }
QUESTION(CommCount, nranks)
QUESTION(CommCuDevice, dev)
QUESTION(CommUserRank, rank)
