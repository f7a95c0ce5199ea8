/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.c - the exported functions: communicators, groups, and what hands the rest on.
 *
 * What it is: each function is there as pncclX and, weak, as ncclX, as in the real library. Where the real one calls a
 * function of its own through the symbol table, so that a preload meets the call, this one does, too (nested).
 * Everything that needs other ranks is a job in steps, none of which waits: a group runs the jobs of several ranks in
 * one thread, and a nonblocking communicator runs a step at each poll.
 *
 * What it is not: complete. What is missing is in the README.
 *
 * Locking: see simnccl.h. A group belongs to its thread.
 */
#include "simnccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REDOPS_MAX    ((int)(sizeof(comms->redops) / sizeof(comms->redops[0])))
#define SCRATCH_BYTES ((size_t)2 << 20)

/* Declares, exports and opens a function; parameters in parentheses. */
#define API(type, name, params)                                                                                        \
    __attribute__((visibility("default"))) type pnccl##name params;                                                    \
    __attribute__((visibility("default"), weak, alias("pnccl" #name))) type nccl##name params;                         \
    type pnccl##name params

#define ENTER(function)                                                                                                \
    struct call call __attribute__((cleanup(call_leave))) = {.name = #function};                                       \
    if (!call_enter(&call))                                                                                            \
    return failed(call.result)

enum job_kind { JOB_JOIN, JOB_SPLIT, JOB_WINDOW, JOB_END };

struct job {
    enum job_kind kind;
    int step, polls;
    bool done;
    ncclComm_t comm;   /* what is made, gets a window, or ends */
    ncclComm_t parent; /* of a split or shrink */
    ncclComm_t *to;    /* where to write comm when it is ready; NULL: nowhere */
    int color, key;
    void *buffer; /* window */
    size_t size;
    int flags;
    ncclWindow_t *window;
    bool destroy;
    ncclResult_t result;
    struct job *next;
};

pthread_mutex_t comms_lock = PTHREAD_MUTEX_INITIALIZER;
ncclComm_t comms;
__thread int group_depth;
static __thread struct op *group_ops, **group_ops_end;
static __thread struct job *group_jobs, **group_jobs_end;
static __thread ncclResult_t group_error;
static __thread char last_error[64];

bool group_holds(ncclComm_t comm)
{
    for (struct op *op = group_depth ? group_ops : NULL; op; op = op->next) {
        if (op->comm == comm)
            return true;
    }
    return false;
}

/* Of these a group knows nothing. */
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

static ncclResult_t failed(ncclResult_t result)
{
    if (result != ncclSuccess && result != ncclInProgress) {
        snprintf(last_error, sizeof(last_error), "%s: result %d", call_now ? call_now->name : "?", (int)result);
        if (group_depth && group_error == ncclSuccess && !is_outside_of_groups(call_now))
            group_error = result;
    }
    return result;
}

/* ---- communicators ---- */

/* A dead one comes back at the same address, as with NCCL's malloc. */
static ncclComm_t comm_new(CUcontext ctx, int nranks, int rank, const ncclConfig_t *config, bool blocking)
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
    drv.cuCtxSetCurrent(before);
    return c;
}

/* The communicator's context for a while: cleaned up by itself. */
struct place {
    CUcontext before;
};

static void place_leave(struct place *p)
{
    drv.cuCtxSetCurrent(p->before);
}

static struct place place_enter(ncclComm_t comm)
{
    struct place p = {NULL};

    drv.cuCtxGetCurrent(&p.before);
    drv.cuCtxSetCurrent(comm->ctx);
    return p;
}
#define PLACE(comm) struct place place __attribute__((cleanup(place_leave), unused)) = place_enter(comm)

static void comm_free(ncclComm_t c)
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

enum need { NEED_ANY, NEED_LIVE, NEED_READY };

/*
 * Every function with a communicator. NEED_ANY: may be called beside others on it; NEED_LIVE: by one thread at a time;
 * NEED_READY: and only on one that is ready.
 */
static ncclResult_t comm_enter(struct call *call, ncclComm_t comm, enum need need)
{
    static const char *const states[] = {"destroyed", "not ready", "", "finalized", "revoked"};
    int nobody = 0, self = gettid();

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
    /* What NCCL calls itself is part of what is pending. */
    const bool pending = comm->pending && !call->outer;
    if (need == NEED_READY && (comm->state != COMM_READY || pending)) {
        breach("%s on a communicator that is %s", call->name, pending ? "not ready" : states[comm->state]);
        return ncclInvalidArgument;
    }
    return ncclSuccess;
}

#define COMM_ENTER(function, comm, need)                                                                               \
    ENTER(function);                                                                                                   \
    do {                                                                                                               \
        ncclResult_t entered_ = comm_enter(&call, comm, need);                                                         \
        if (entered_ != ncclSuccess)                                                                                   \
            return failed(entered_);                                                                                   \
    } while (0)

/* ---- jobs ---- */

/* What a call looks like that NCCL makes on a thread of its own. */
struct inner {
    struct call *call;
    ncclComm_t comm;
    struct job *job;
    void *handle;
    ncclResult_t result;
};

static void *window_thread(void *arg)
{
    struct inner *in = arg;
    ncclComm_t comm = in->comm;

    call_now = in->call;
    drv.cuCtxSetCurrent(comm->ctx);
    if (!comm->scratch) {
        call_now->may = "ncclMemAlloc";
        in->result = ncclMemAlloc(&comm->scratch, SCRATCH_BYTES);
    }
    if (in->result == ncclSuccess) {
        call_now->may = "ncclCommRegister";
        in->result = ncclCommRegister(comm, in->job->buffer, in->job->size, &in->handle);
    }
    call_now->may = NULL;
    return NULL;
}

static ncclResult_t window_make(struct job *job)
{
    struct inner in = {.call = call_now, .comm = job->comm, .job = job};
    pthread_t thread;
    ncclResult_t result;
    PLACE(job->comm);
    struct record *r = record_window(job->comm, job->buffer, job->size, job->flags, &result);

    if (!r)
        return result;
    if (pthread_create(&thread, NULL, window_thread, &in) != 0)
        in.result = ncclSystemError;
    else
        pthread_join(thread, NULL);
    if (in.result != ncclSuccess) {
        r->dead = true;
        return in.result;
    }
    r->inner = in.handle;
    *job->window = (ncclWindow_t)(void *)r;
    counts.windows++;
    return ncclSuccess;
}

static bool window_step(struct job *job)
{
    ncclComm_t comm = job->comm;

    if (job->step == 0) {
        room_put(comm, (struct slot){{(int64_t)job->size, job->flags}});
        job->step = 1;
    }
    const struct slot *all = room_values(comm);
    if (!all)
        return false;
    if (all[0].v[0] != (int64_t)job->size || all[0].v[1] != job->flags)
        breach("ncclCommWindowRegister: rank 0 has %lld bytes, flags %lld, rank %d %zu bytes, flags %d",
               (long long)all[0].v[0], (long long)all[0].v[1], comm->rank, job->size, job->flags);
    job->result = window_make(job);
    return true;
}

/* Everybody has said its color and key: who am I in the new one? */
static bool split_members(struct job *job, const struct slot *all)
{
    ncclComm_t comm = job->comm, parent = job->parent;

    if (job->color == NCCL_SPLIT_NOCOLOR)
        return false;
    for (int i = 0; i < parent->nranks; i++) {
        if (all[i].v[0] != job->color)
            continue;
        comm->nranks++;
        comm->rank += i < parent->rank ? all[i].v[1] <= job->key : all[i].v[1] < job->key;
    }
    return true;
}

/* Its ranks work out the same name: a name is free again once a room is full. */
static bool child_path(ncclComm_t comm, ncclComm_t parent, char what, unsigned number)
{
    return snprintf(comm->path, sizeof(comm->path), "%s.%c%x", parent->path, what, number) < (int)sizeof(comm->path);
}

static bool join_step(struct job *job)
{
    if (job->step < 2) {
        job->step = 2;
        if (!room_join(job->comm)) {
            job->result = ncclSystemError;
            return true;
        }
    }
    return room_full(job->comm);
}

static bool split_step(struct job *job)
{
    if (job->step == 0) {
        room_put(job->parent, (struct slot){{job->color, job->key}});
        job->step = 1;
    }
    if (job->step == 1) {
        const struct slot *all = room_values(job->parent);
        if (!all)
            return false;
        bool member = split_members(job, all);
        if (!child_path(job->comm, job->parent, 's', (unsigned)job->color))
            job->result = ncclInternalError;
        if (!member || job->result != ncclSuccess) {
            comm_free(job->comm);
            job->comm = NULL;
            return true;
        }
    }
    return join_step(job);
}

static bool end_step(struct job *job)
{
    ncclComm_t comm = job->comm;
    PLACE(comm);

    if (!ops_idle(comm))
        return false;
    if (comm->state == COMM_READY) {
        if (comm->scratch) {
            call_now->may = "ncclMemFree";
            ncclMemFree(comm->scratch);
            call_now->may = NULL;
            comm->scratch = NULL;
        }
        records_check_end(comm);
    }
    comm->state = COMM_FINALIZED;
    return true;
}

/* One step; true when there are none left. */
static bool job_step(struct job *job)
{
    if (!job->done) {
        switch (job->kind) {
        case JOB_JOIN:
            job->done = join_step(job);
            break;
        case JOB_SPLIT:
            job->done = split_step(job);
            break;
        case JOB_WINDOW:
            job->done = window_step(job);
            break;
        case JOB_END:
            job->done = end_step(job);
            break;
        }
    }
    return job->done;
}

/* The job's effect on its communicator; the job goes. */
static ncclResult_t job_finish(struct job *job)
{
    ncclResult_t result = job->result;

    if (job->kind <= JOB_SPLIT && job->comm) {
        if (result == ncclSuccess)
            job->comm->state = COMM_READY;
        if (job->to)
            *job->to = job->comm;
    }
    if (job->kind == JOB_END && job->destroy)
        comm_free(job->comm);
    free(job);
    return result;
}

/* Whose polls bring it on. */
static ncclComm_t job_owner(const struct job *job)
{
    return job->parent ? job->parent : job->comm;
}

/* The first of what is pending, if it has no step left and has been asked for often enough. */
static void pending_step(ncclComm_t owner, int polls)
{
    struct job *job = owner->pending;

    if (!job_step(job) || job->polls < polls) {
        job->polls++;
        return;
    }
    owner->pending = job->next;
    ncclResult_t result = job_finish(job);
    if (result != ncclSuccess)
        owner->error = (int)result;
}

/* Blocking ones to their end; the others get their first step here. */
static ncclResult_t jobs_run(struct job *jobs)
{
    ncclResult_t result = ncclSuccess;
    bool waiting = false;

    while (jobs) {
        bool moved = false;
        for (struct job **p = &jobs; *p;) {
            struct job *job = *p;
            ncclComm_t owner = job_owner(job);
            bool behind = false; /* rounds of one communicator do not overlap */
            for (struct job *q = jobs; q != job; q = q->next)
                behind |= job_owner(q) == owner;
            if (!owner->blocking && job->kind != JOB_END) {
                struct job **end = &owner->pending;
                *p = job->next;
                job->next = NULL;
                while (*end)
                    end = &(*end)->next;
                *end = job;
                job_step(owner->pending);
                waiting = moved = true;
            } else if (job->kind == JOB_END && owner->pending) {
                pending_step(owner, 0);
                p = &job->next;
            } else if (behind || !job_step(job)) {
                p = &job->next;
            } else {
                *p = job->next;
                moved = true;
                ncclResult_t r = job_finish(job);
                result = result == ncclSuccess ? r : result;
            }
        }
        if (!moved && jobs)
            nap();
    }
    return result == ncclSuccess && waiting ? ncclInProgress : result;
}

/* Now, or at the end of the group. */
static ncclResult_t job_start(struct job values)
{
    struct job *job = malloc(sizeof(*job));

    if (!job)
        return failed(ncclSystemError);
    *job = values;
    if (group_depth == 0)
        return failed(jobs_run(job));
    *group_jobs_end = job;
    group_jobs_end = &job->next;
    return ncclSuccess;
}

/* ---- groups ---- */

static void group_begin(void)
{
    if (group_depth++ == 0) {
        group_ops_end = &group_ops;
        group_jobs_end = &group_jobs;
        group_error = ncclSuccess;
    }
}

static ncclResult_t group_finish(bool run)
{
    if (group_depth == 0) {
        breach("%s without ncclGroupStart", call_now->name);
        return ncclInvalidUsage;
    }
    if (--group_depth)
        return ncclSuccess;
    struct op *ops = group_ops;
    struct job *jobs = group_jobs;
    ncclResult_t result = group_error;
    group_ops = NULL;
    group_jobs = NULL;
    if (result != ncclSuccess || !run) {
        ops_free(ops);
        for (struct job *next; jobs; jobs = next) {
            next = jobs->next;
            if (jobs->kind <= JOB_SPLIT)
                comm_free(jobs->comm);
            free(jobs);
        }
        return result;
    }
    /* What starts comes before operations, what ends after them. */
    struct job *ends = NULL, **ends_end = &ends;
    for (struct job **p = &jobs; *p;) {
        struct job *job = *p;
        if (job->kind != JOB_END) {
            p = &job->next;
            continue;
        }
        *p = job->next;
        job->next = NULL;
        *ends_end = job;
        ends_end = &job->next;
    }
    result = jobs_run(jobs);
    ncclResult_t started = ops_start(ops), ended = jobs_run(ends);
    if (result == ncclSuccess)
        result = started == ncclSuccess ? ended : started;
    return result;
}

API(ncclResult_t, GroupStart, (void))
{
    ENTER(ncclGroupStart);
    group_begin();
    return ncclSuccess;
}

API(ncclResult_t, GroupEnd, (void))
{
    struct call call __attribute__((cleanup(call_leave))) = {.name = "ncclGroupEnd"};
    bool run = call_enter(&call);
    ncclResult_t result = group_finish(run);

    return failed(run ? result : call.result);
}

API(ncclResult_t, GroupSimulateEnd, (ncclSimInfo_t * info))
{
    ENTER(ncclGroupSimulateEnd);
    if (info)
        info->estimatedTime = 0;
    return failed(group_finish(false));
}

/* ---- making and ending communicators ---- */

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

/* A child of comm, which is a shell that nobody has seen yet. */
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

/* ---- questions ---- */

API(ncclResult_t, CommGetAsyncError, (ncclComm_t comm, ncclResult_t *error))
{
    COMM_ENTER(ncclCommGetAsyncError, comm, NEED_ANY);
    int nobody = 0;

    if (!error)
        return failed(ncclInvalidArgument);
    if (comm->pending && !call.outer && atomic_compare_exchange_strong(&comm->user, &nobody, gettid())) {
        call.comm = comm;
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

/* ---- memory ---- */

API(ncclResult_t, MemAlloc, (void **ret, size_t size))
{
    ENTER(ncclMemAlloc);
    if (!ret || size == 0)
        return failed(ncclInvalidArgument);
    *ret = NULL;
    if (!driver_find())
        return failed(ncclSystemError);
    ncclResult_t result = memory_alloc(ret, size);
    if (result == ncclSuccess && !call.outer)
        counts.mem_allocs++;
    return failed(result);
}

API(ncclResult_t, MemFree, (void *at))
{
    ENTER(ncclMemFree);
    ncclResult_t result = at ? memory_free(at) : ncclSuccess;

    if (result == ncclSuccess && at && !call.outer)
        counts.mem_frees++;
    return failed(result);
}

API(ncclResult_t, CommRegister, (const ncclComm_t comm, void *at, size_t size, void **handle))
{
    COMM_ENTER(ncclCommRegister, comm, NEED_READY);
    if (!handle)
        return failed(ncclInvalidArgument);
    *handle = NULL;
    if (!settings.local_register)
        return ncclSuccess;
    PLACE(comm);
    ncclResult_t result = record_add(comm, at, size, handle);
    if (result == ncclSuccess && !call.outer)
        counts.registrations++;
    return failed(result);
}

/* Back to the caller's device by hand: a real one forgets to in some cases. */
API(ncclResult_t, CommDeregister, (const ncclComm_t comm, void *handle))
{
    COMM_ENTER(ncclCommDeregister, comm, NEED_READY);
    bool stay = false;
    ncclResult_t result = ncclSuccess;

    if (handle) {
        PLACE(comm);
        result = record_drop(comm, handle, false, &stay);
    }
    if (stay)
        device_leak(comm->ctx);
    if (result == ncclSuccess && handle && !call.outer)
        counts.deregistrations++;
    return failed(result);
}

API(ncclResult_t, CommWindowRegister, (ncclComm_t comm, void *at, size_t size, ncclWindow_t *window, int flags))
{
    COMM_ENTER(ncclCommWindowRegister, comm, NEED_READY);
    if (!window)
        return failed(ncclInvalidArgument);
    *window = NULL;
    return job_start(
        (struct job){.kind = JOB_WINDOW, .comm = comm, .buffer = at, .size = size, .window = window, .flags = flags});
}

API(ncclResult_t, CommWindowDeregister, (ncclComm_t comm, ncclWindow_t window))
{
    COMM_ENTER(ncclCommWindowDeregister, comm, NEED_READY);
    bool stay;

    if (!window)
        return ncclSuccess;
    PLACE(comm);
    ncclResult_t result = record_drop(comm, window, true, &stay);
    if (result != ncclSuccess)
        return failed(result);
    call.may = "ncclCommDeregister";
    result = ncclCommDeregister(comm, ((struct record *)(void *)window)->inner);
    call.may = NULL;
    return failed(result);
}

/* ---- operations ---- */

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
    *group_ops_end = op;
    group_ops_end = &op->next;
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
