/* SPDX-License-Identifier: Apache-2.0 */
/*
 * comm.c - communicators: made, entered by a call, and ended; the errors of calls.
 *
 * Locking: see simnccl.h.
 */
#include "api.h"

pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER;
ncclComm_t comms;
static __thread char last_error[64];

/* A group has no part in these calls, nor in their errors. */
static bool is_outside_of_groups(const struct call *call)
{
    static const char *const names[] = {"ncclCommRegister", "ncclCommDeregister", "ncclCommGetAsyncError",
                                        "ncclCommCount",    "ncclCommCuDevice",   "ncclCommUserRank",
                                        "ncclGetVersion",   "ncclMemAlloc",       "ncclMemFree"};

    for (size_t i = 0; call && i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(call->name, names[i]) == 0)
            return true;
    return false;
}

ncclResult_t failed(ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress) {
        snprintf(last_error, sizeof(last_error), "%s: result %d", call_now ? call_now->name : "?", (int)result);
        if (!is_outside_of_groups(call_now))
            group_fail(result);
    }
    return result;
}

ncclComm_t comm_new(CUcontext ctx, int nranks, int rank, const ncclConfig_t *config, bool blocking)
{
    CUcontext before = NULL;

    pthread_mutex_lock(&comms_lock);
    ncclComm_t c = comms;
    while (c && c->state != COMM_DEAD)
        c = c->next;
    if (!c && (c = calloc(1, sizeof(*c)))) {
        c->next = comms;
        comms = c;
    }
    if (c) {
        ncclComm_t next = c->next;
        memset(c, 0, sizeof(*c));
        c->next = next;
        c->state = COMM_STARTING;
    }
    pthread_mutex_unlock(&comms_lock);
    if (!c)
        return NULL;
    c->ctx = ctx;
    c->nranks = nranks;
    c->rank = rank;
    c->room_fd = -1;
    c->blocking = config && config->blocking != NCCL_CONFIG_UNDEF_INT ? config->blocking != 0 : blocking;
    pthread_mutex_init(&c->turn, NULL);
    drv.cuCtxGetCurrent(&before);
    drv.cuCtxSetCurrent(ctx);
    drv.cuCtxGetDevice(&c->dev);
    memory_touch(c->dev);
    drv.cuCtxSetCurrent(before);
    return c;
}

void place_leave(struct place *p)
{
    drv.cuCtxSetCurrent(p->before);
}

struct place place_enter(ncclComm_t comm)
{
    struct place p = {NULL};

    drv.cuCtxGetCurrent(&p.before);
    drv.cuCtxSetCurrent(comm->ctx);
    return p;
}
void comm_free(ncclComm_t c)
{
    PLACE(c);

    while (!ops_idle(c))
        nap();
    room_leave(c);
    records_free(c);
    ops_captured_free(c);
    if (c->last_event)
        drv.cuEventDestroy(c->last_event);
    for (struct job *job = c->pending, *next; job; job = next) {
        next = job->next;
        if (job->kind <= JOB_SPLIT && job->comm && job->comm != c)
            comm_free(job->comm);
        free(job);
    }
    pthread_mutex_destroy(&c->turn);
    pthread_mutex_lock(&comms_lock);
    c->state = COMM_DEAD;
    pthread_mutex_unlock(&comms_lock);
}

ncclResult_t comm_enter(struct call *call, ncclComm_t comm, enum need need)
{
    static const char *const states[] = {"destroyed", "not ready", "", "finalized", "revoked"};
    int nobody = 0, self = (int)syscall(SYS_gettid);

    if (!comm)
        return ncclInvalidArgument;
    if (comm->state == COMM_DEAD) {
        breach("%s on a communicator that is destroyed", call->name);
        return ncclInvalidArgument;
    }
    if (need == NEED_ANY)
        return ncclSuccess;
    if (!call->outer) {
        if (atomic_compare_exchange_strong(&comm->user, &nobody, self))
            call->comm = comm;
        else
            breach("%s on a communicator that another thread is using", call->name);
    }
    if (need == NEED_READY && !comm->blocking && !call->outer) {
        ncclResult_t state;
        call->may = "ncclCommGetAsyncError";
        ncclCommGetAsyncError(comm, &state);
        call->may = NULL;
    }
    /* A call that NCCL makes itself is part of the pending call. */
    const bool pending = comm->pending && !call->outer;
    if (need == NEED_READY && (comm->state != COMM_READY || pending)) {
        breach("%s on a communicator that is %s", call->name, pending ? "not ready" : states[comm->state]);
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

API(const char *, GetErrorString, (ncclResult_t result))
{
    static const char *const names[ncclNumResults] = {"no error",
                                                      "unhandled cuda error",
                                                      "unhandled system error",
                                                      "internal error",
                                                      "invalid argument",
                                                      "invalid usage",
                                                      "remote process exited or there was a network error",
                                                      "operation in progress"};

    return (unsigned)result < ncclNumResults ? names[result] : "unknown result code";
}

API(const char *, GetLastError, (ncclComm_t comm))
{
    return last_error;
}
