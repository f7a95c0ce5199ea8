/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.h - between the files that hold the exported functions: how a function is exported and opened, the jobs, the
 * groups.
 *
 * Each function is there as pncclX and, weak, as ncclX, as in the real library. Where the real one calls a function of
 * its own through the symbol table, so that a preload meets the call, this one does, too (nested). Everything that
 * needs other ranks is a job in steps, none of which waits: a group runs the jobs of several ranks in one thread, and a
 * nonblocking communicator runs a step at each poll.
 *
 * Locking: see simnccl.h. A group belongs to its thread.
 */
#ifndef SIMNCCL_API_H
#define SIMNCCL_API_H

#include "simnccl.h"

/* Declares, exports and opens a function; parameters in parentheses. */
#define API(type, name, params)                                                                                        \
    __attribute__((visibility("default"))) type pnccl##name params;                                                    \
    __attribute__((visibility("default"), weak, alias("pnccl" #name))) type nccl##name params;                         \
    type pnccl##name params

#define ENTER(function)                                                                                                \
    struct call call __attribute__((cleanup(call_leave))) = {.name = #function};                                       \
    if (!call_enter(&call))                                                                                            \
    return failed(call.result)

/* ---- comm.c ---- */

/* Notes an error for ncclGetLastError and the group, and returns it. */
HIDDEN ncclResult_t failed(ncclResult_t result);
/* A dead communicator comes back at the same address, as with NCCL's malloc. NULL: no memory. */
HIDDEN ncclComm_t comm_new(CUcontext ctx, int nranks, int rank, const ncclConfig_t *config, bool blocking);
/* Waits for its operations. */
HIDDEN void comm_free(ncclComm_t c);

/* The communicator's context for a while: cleaned up by itself. */
struct place {
    CUcontext before;
};

HIDDEN void place_leave(struct place *p);
HIDDEN struct place place_enter(ncclComm_t comm);
#define PLACE(comm) struct place place __attribute__((cleanup(place_leave), unused)) = place_enter(comm)

enum need { NEED_ANY, NEED_LIVE, NEED_READY };

/* Every function with a communicator. NEED_ANY: may be called beside others on it; NEED_LIVE: by one thread at a time;
 * NEED_READY: and only on one that is ready. */
HIDDEN ncclResult_t comm_enter(struct call *call, ncclComm_t comm, enum need need);

#define COMM_ENTER(function, comm, need)                                                                               \
    ENTER(function);                                                                                                   \
    do {                                                                                                               \
        ncclResult_t entered_ = comm_enter(&call, comm, need);                                                         \
        if (entered_ != ncclSuccess)                                                                                   \
            return failed(entered_);                                                                                   \
    } while (0)

/* ---- job.c ---- */

enum job_kind { JOB_JOIN, JOB_SPLIT, JOB_WINDOW, JOB_END };

struct job {
    enum job_kind kind;
    int step, polls;
    bool done;
    ncclComm_t comm;   /* is made, gets a window, or ends */
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

/* Runs or queues a job with these values: now, or at the end of the group. */
HIDDEN ncclResult_t job_start(struct job values);
/* Blocking ones to their end; the others get their first step here. */
HIDDEN ncclResult_t jobs_run(struct job *jobs);
/* One step of the first pending job, which ends if it has no step left and was polled this often. */
HIDDEN void pending_step(ncclComm_t owner, int polls);
/* The name of a child's room, on which its ranks agree: a name is free again once a room is full. False: too long. */
HIDDEN bool child_path(ncclComm_t comm, ncclComm_t parent, char what, unsigned number);

/* ---- group.c ---- */

HIDDEN void group_begin(void);
/* run: else the group is given up. */
HIDDEN ncclResult_t group_finish(bool run);
/* Keep for the end of the group. */
HIDDEN void group_add_op(struct op *op);
HIDDEN void group_add_job(struct job *job);
HIDDEN void group_fail(ncclResult_t result); /* the first error counts */

#endif
