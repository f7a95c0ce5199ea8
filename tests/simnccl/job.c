/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.c - what takes other ranks, in steps that do not wait: joining, splitting, windows, the end.
 *
 * Locking: see simnccl.h.
 */
#include "api.h"

#define SCRATCH_BYTES ((size_t)2 << 20)

/* A call that NCCL makes on a thread of its own. */
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

/* All ranks have given their color and key: the size of the new communicator and this rank in it. False: not in it. */
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

bool child_path(ncclComm_t comm, ncclComm_t parent, char what, unsigned number)
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

/* The communicator whose polls bring it on. */
static ncclComm_t job_owner(const struct job *job)
{
    return job->parent ? job->parent : job->comm;
}

void pending_step(ncclComm_t owner, int polls)
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

ncclResult_t jobs_run(struct job *jobs)
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

ncclResult_t job_start(struct job values)
{
    struct job *job = malloc(sizeof(*job));

    if (!job)
        return failed(ncclSystemError);
    *job = values;
    if (group_depth == 0)
        return failed(jobs_run(job));
    group_add_job(job);
    return ncclSuccess;
}
