/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.c - groups: the operations and jobs that wait for ncclGroupEnd, and their order then.
 *
 * Locking: none, a group belongs to its thread.
 */
#include "api.h"

__thread int group_depth;
static __thread struct op *group_ops, **group_ops_end;
static __thread struct job *group_jobs, **group_jobs_end;
static __thread ncclResult_t group_error;

bool group_holds(ncclComm_t comm)
{
    for (struct op *op = group_depth ? group_ops : NULL; op; op = op->next) {
        if (op->comm == comm)
            return true;
    }
    return false;
}

void group_add_op(struct op *op)
{
    *group_ops_end = op;
    group_ops_end = &op->next;
}

void group_add_job(struct job *job)
{
    *group_jobs_end = job;
    group_jobs_end = &job->next;
}

void group_fail(ncclResult_t result)
{
    if (group_depth && group_error == ncclSuccess)
        group_error = result;
}

void group_begin(void)
{
    if (group_depth++ == 0) {
        group_ops_end = &group_ops;
        group_jobs_end = &group_jobs;
        group_error = ncclSuccess;
    }
}

ncclResult_t group_finish(bool run)
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
    /* Jobs that start something come before operations, those that end it after them. */
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
