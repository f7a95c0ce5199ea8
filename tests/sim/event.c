/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c - events.
 *
 * An event holds the point in time of its latest record: an operation in a stream, a number of a context
 * (cuCtxRecordEvent), or a place in a capture. engine.c waits for it.
 *
 * Locking: each function takes sim_lock() itself. Event objects are recycled, never unmapped.
 */
#include "adversary.h"

static CUevent spare, every; /* every: events that programs forget are no leaks of ours */

static CUresult event_check(CUevent e)
{
    if (!e || e->magic != SIM_MAGIC_EVENT || e->gen != e->ctx->gen)
        return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *ret, unsigned int flags)
{
    SIM_ENTER(cuEventCreate);
    CUcontext ctx;

    if (!ret || flags > 7 || ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_current(&ctx));
    SIM_TRY(sim_ctx_stalled(ctx));
    CUevent e = spare;
    if (e) {
        spare = e->next;
    } else {
        e = malloc(sizeof(*e));
        e->next_all = every;
        every = e;
    }
    *e = (struct CUevent_st){
        .magic = SIM_MAGIC_EVENT, .gen = ctx->gen, .ctx = ctx, .flags = flags, .next_all = e->next_all};
    *ret = e;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUevent e)
{
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    SIM_LOCKED();
    if (e->magic == SIM_MAGIC_EVENT)
        sim_ctx_stalled(e->ctx);
    CUresult r = e->magic == SIM_MAGIC_EVENT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        sim_point_drop(&e->point);
        sim_nodes_clear(&e->deps);
        e->magic = 0;
        e->next = spare;
        spare = e;
    }
    return r;
}

SIM_CALL(cuEventDestroy, (CUevent e), destroy(e))
SIM_CALL(cuEventDestroy_v2, (CUevent e), destroy(e))

static CUresult record(CUevent e, CUstream handle, bool pt, unsigned flags)
{
    CUstream s;

    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS)
        r = event_check(e);
    if (r == CUDA_SUCCESS && e->ctx != s->ctx)
        r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS && flags)
        r = CUDA_ERROR_NOT_SUPPORTED; /* external nodes in captures */
    if (r == CUDA_SUCCESS && s->cap) {
        if (s->cap->invalid) {
            r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        } else {
            sim_point_drop(&e->point);
            e->recorded = true;
            e->cap_id = s->cap->id;
            sim_nodes_copy(&e->deps, &s->deps);
        }
    } else if (r == CUDA_SUCCESS) {
        struct sim_rec *rec = calloc(1, sizeof(*rec));
        struct sim_work w = {.kind = SIM_RECORD, .rec = rec};
        rec->refs = 2; /* the operation's and the event's */
        r = sim_submit(s, &w, false);
        struct sim_point p = {.rec = rec};
        if (r == CUDA_SUCCESS && event_check(e) == CUDA_SUCCESS) {
            sim_point_drop(&e->point);
            e->recorded = true;
            e->cap_id = 0;
            e->point = p;
        } else {
            sim_point_drop(&p);
        }
    }
    return r;
}

/* A wait for an event that a capture recorded draws the stream into the capture. */
static CUresult wait_captured(CUstream s, CUevent e)
{
    struct sim_capture *cap = sim_capture_by_id(e->cap_id);

    if (!cap)
        return CUDA_ERROR_CAPTURED_EVENT;
    /* A stream of another device can join. */
    if (s->legacy || (s->ctx != cap->ctx && !(s->ctx->primary && cap->ctx->primary))) {
        sim_capture_lose(cap);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (cap->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (s->cap && s->cap != cap) {
        sim_capture_lose(s->cap);
        sim_capture_lose(cap);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    s->cap = cap;
    for (size_t i = 0; i < e->deps.n; i++)
        sim_nodes_add(&s->deps, e->deps.at[i]);
    return CUDA_SUCCESS;
}

static CUresult wait(CUstream handle, CUevent e, bool pt, unsigned flags)
{
    CUstream s;

    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    if (r == CUDA_SUCCESS)
        r = event_check(e);
    if (r == CUDA_SUCCESS && flags)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r == CUDA_SUCCESS && e->cap_id) {
        r = wait_captured(s, e);
    } else if (r == CUDA_SUCCESS && s->cap) {
        bool lost = s->cap->invalid;
        sim_capture_lose(s->cap);
        r = lost ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    } else if (r == CUDA_SUCCESS && e->recorded) {
        struct sim_work w = {.kind = SIM_WAIT, .wait = e->point};
        sim_point_take(&w.wait);
        r = sim_submit(s, &w, false);
    }
    return r;
}

/* For query and synchronise: captures forbid both, and an event inside a capture has no state. */
static CUresult look_check(CUevent e)
{
    CUresult r = event_check(e);

    if (r == CUDA_SUCCESS && e->cap_id) {
        struct sim_capture *cap = sim_capture_by_id(e->cap_id);
        if (cap)
            sim_capture_lose(cap);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (r == CUDA_SUCCESS)
        r = sim_ctx_check(e->ctx);
    return r == CUDA_SUCCESS ? sim_capture_unsafe() : r;
}

CUresult cuEventQuery(CUevent e)
{
    SIM_ENTER_(cuEventQuery, sim_in_hostfn); /* allowed there */
    SIM_LOCKED();
    SIM_TRY(look_check(e));
    if (!sim_point_done(&e->point) || adversary_hides_point(&e->point))
        return CUDA_ERROR_NOT_READY;
    return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent e)
{
    SIM_ENTER(cuEventSynchronize);
    SIM_LOCKED();
    SIM_TRY(look_check(e));
    CUcontext ctx = e->ctx;
    sim_point_wait(&e->point, ctx);
    return ctx->error;
}

/* A context-wide record has no operation that could note the time: it is the time at which it is first seen
 * complete. */
static uint64_t time_of(CUevent e)
{
    if (e->point.rec)
        return e->point.rec->time;
    if (!e->time)
        e->time = sim_now();
    return e->time;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
    if (!ms)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    CUresult r = event_check(start);
    if (r == CUDA_SUCCESS)
        r = event_check(end);
    if (r == CUDA_SUCCESS &&
        (!start->recorded || !end->recorded || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)))
        r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS &&
        (!sim_point_done(&start->point) || !sim_point_done(&end->point) || adversary_hides_point(&end->point)))
        r = CUDA_ERROR_NOT_READY;
    if (r == CUDA_SUCCESS)
        *ms = (float)((double)(int64_t)(time_of(end) - time_of(start)) / 1e6);
    return r;
}

SIM_CALL(cuEventElapsedTime, (float *ms, CUevent start, CUevent end), elapsed(ms, start, end))
SIM_CALL(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end), elapsed(ms, start, end))
SIM_PAIR(cuEventRecord, cuEventRecord_ptsz, (CUevent e, CUstream s), record(e, s, pt, 0))
SIM_PAIR(cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz, (CUevent e, CUstream s, unsigned int flags),
         record(e, s, pt, flags))
SIM_PAIR(cuStreamWaitEvent, cuStreamWaitEvent_ptsz, (CUstream s, CUevent e, unsigned int flags), wait(s, e, pt, flags))
