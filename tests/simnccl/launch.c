/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - operations get into a stream: a group's operations of one communicator are a batch, a host function of the
 * simulated GPU, so streams and captures order them.
 *
 * Locking: see simnccl.h.
 */
#include "run.h"

#define STREAMS_MAX 64

bool ops_idle(ncclComm_t comm)
{
    if (comm->inside == 0 && comm->running == 0)
        return true;
    /* A context that has faulted runs nothing more: work that has not started never will. */
    CUresult r = comm->last_event ? drv.cuEventQuery(comm->last_event) : CUDA_SUCCESS;
    return r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY && comm->inside == 0;
}

/* Later work of one waits for the work that is in the other now. */
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

/* The other streams of a group, which its first stream has to wait for, and which have to wait for it. */
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
