/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - stream capture: who captures, what that forbids to whom, and what ends it.
 *
 * Every call is held against the rules of cudaThreadExchangeStreamCaptureMode and of calls that no capture survives.
 * Graphs themselves are in graph.c.
 *
 * Locking: sim_lock() for the list of captures; the thread's own mode is thread-local.
 */
#include "sim.h"

#include <sys/syscall.h>

static struct sim_capture *captures;
static uint64_t ids;
static __thread CUstreamCaptureMode own_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static __thread uint64_t own_tid;

uint64_t sim_tid(void)
{
    if (!own_tid)
        own_tid = (uint64_t)syscall(SYS_gettid);
    return own_tid;
}

void sim_nodes_add(struct sim_nodes *set, CUgraphNode node)
{
    for (size_t i = 0; i < set->n; i++) {
        if (set->at[i] == node)
            return;
    }
    if (set->n == set->room) {
        set->room = set->room ? 2 * set->room : 4;
        set->at = realloc(set->at, set->room * sizeof(CUgraphNode));
    }
    set->at[set->n++] = node;
}

void sim_nodes_clear(struct sim_nodes *set)
{
    free(set->at);
    *set = (struct sim_nodes){0};
}

void sim_nodes_copy(struct sim_nodes *dst, const struct sim_nodes *src)
{
    dst->n = 0;
    for (size_t i = 0; i < src->n; i++)
        sim_nodes_add(dst, src->at[i]);
}

struct sim_capture *sim_capture_by_id(uint64_t id)
{
    struct sim_capture *c = captures;

    while (c && c->id != id)
        c = c->next;
    return c;
}

void sim_capture_lose(struct sim_capture *cap)
{
    cap->invalid = true;
}

CUresult sim_capture_unsafe(void)
{
    CUresult r = CUDA_SUCCESS;

    if (!captures || own_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct sim_capture *c = captures; c; c = c->next) {
        bool own = c->tid == sim_tid();
        if (own ? c->mode == CU_STREAM_CAPTURE_MODE_RELAXED
                : c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL || own_mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
            continue;
        c->invalid = true;
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return r;
}

CUresult sim_capture_sync(CUcontext ctx)
{
    CUresult r = CUDA_SUCCESS;

    for (struct sim_capture *c = captures; c; c = c->next) {
        if (c->ctx != ctx)
            continue;
        c->invalid = true;
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return r;
}

CUresult sim_capture_implicit(CUcontext ctx)
{
    CUresult r = CUDA_SUCCESS;

    if (!captures)
        return CUDA_SUCCESS;
    for (CUstream s = ctx->streams; s; s = s->next) {
        if (!s->cap || !s->blocking)
            continue;
        s->cap->invalid = true;
        r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return r;
}

CUresult sim_capture_add(CUstream s, struct sim_work *w)
{
    struct sim_capture *cap = s->cap;

    if (cap->invalid) {
        sim_work_drop(w);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (w->kind == SIM_CALLBACK || w->kind == SIM_FREE) {
        cap->invalid = true;
        sim_work_drop(w);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUgraphNode node = sim_graph_add(cap->graph, s->deps.at, s->deps.n, w);
    s->deps.n = 0;
    sim_nodes_add(&s->deps, node);
    return CUDA_SUCCESS;
}

/* The streams that may be part of a capture: those of its own context, and of each device's primary one. */
#define OWN (-1)
static CUstream streams_of(const struct sim_capture *cap, int dev)
{
    return dev == OWN ? cap->ctx->streams : sim_primary(dev)->streams;
}

/* Take the capture off all its streams. */
void sim_capture_end(struct sim_capture *cap)
{
    struct sim_capture **at = &captures;

    for (int dev = OWN; dev < sim_settings.devices; dev++) {
        for (CUstream s = streams_of(cap, dev); s; s = s->next) {
            if (s->cap == cap) {
                s->cap = NULL;
                sim_nodes_clear(&s->deps);
            }
        }
    }
    while (*at != cap)
        at = &(*at)->next;
    *at = cap->next;
    if (cap->graph && cap->own_graph)
        sim_graph_free(cap->graph);
    free(cap);
}

static CUresult begin(CUstream handle, bool pt, CUgraph graph, const CUgraphNode *deps, size_t n,
                      CUstreamCaptureMode mode)
{
    CUstream s;

    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED || (n && !deps))
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_stream_resolve(handle, pt, &s));
    if (s->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->cap)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct sim_capture *c = calloc(1, sizeof(*c));
    *c =
        (struct sim_capture){.origin = s, .ctx = s->ctx, .mode = mode, .tid = sim_tid(), .id = ++ids, .next = captures};
    c->own_graph = !graph;
    c->graph = graph ? graph : calloc(1, sizeof(*graph));
    c->graph->magic = SIM_MAGIC_GRAPH;
    captures = c;
    s->cap = c;
    for (size_t i = 0; i < n; i++)
        sim_nodes_add(&s->deps, deps[i]);
    return CUDA_SUCCESS;
}

static void mark(CUgraphNode node)
{
    if (node->mark)
        return;
    node->mark = true;
    for (size_t i = 0; i < node->deps.n; i++)
        mark(node->deps.at[i]);
}

/* Work on another stream that the origin has not been made to wait for. */
static bool unjoined(struct sim_capture *cap)
{
    bool found = false;

    for (size_t i = 0; i < cap->graph->nodes.n; i++)
        cap->graph->nodes.at[i]->mark = false;
    for (size_t i = 0; i < cap->origin->deps.n; i++)
        mark(cap->origin->deps.at[i]);
    for (int dev = OWN; dev < sim_settings.devices; dev++) {
        for (CUstream s = streams_of(cap, dev); s; s = s->next)
            for (size_t i = 0; s->cap == cap && i < s->deps.n; i++)
                found = found || !s->deps.at[i]->mark;
    }
    return found;
}

static CUresult end(CUstream handle, bool pt, CUgraph *ret)
{
    CUstream s;

    if (!ret)
        return CUDA_ERROR_INVALID_VALUE;
    *ret = NULL;
    SIM_LOCKED();
    CUresult r = sim_stream_resolve(handle, pt, &s);
    struct sim_capture *cap = r == CUDA_SUCCESS ? s->cap : NULL;
    if (r == CUDA_SUCCESS && !cap) {
        r = CUDA_ERROR_ILLEGAL_STATE;
    } else if (cap && cap->origin != s) {
        cap->invalid = true;
        r = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    } else if (cap && cap->mode != CU_STREAM_CAPTURE_MODE_RELAXED && cap->tid != sim_tid()) {
        r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else if (cap) {
        if (cap->invalid)
            r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        else if (unjoined(cap))
            r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        if (r == CUDA_SUCCESS) {
            *ret = cap->graph;
            cap->graph = NULL;
        }
        sim_capture_end(cap);
    }
    return r;
}

static CUresult info(CUstream handle, bool pt, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **deps, size_t *n)
{
    CUstream s;

    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    SIM_LOCKED();
    SIM_TRY(sim_stream_resolve(handle, pt, &s));
    if (s->legacy && sim_capture_peek(s->ctx))
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    struct sim_capture *cap = s->cap;
    *status = !cap           ? CU_STREAM_CAPTURE_STATUS_NONE
              : cap->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    bool on = *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (id && on)
        *id = cap->id;
    if (graph && on)
        *graph = cap->graph;
    if (deps && on)
        *deps = s->deps.at;
    if (n && on)
        *n = s->deps.n;
    return CUDA_SUCCESS;
}

/* Asking about the legacy stream while a blocking stream captures is refused, but harms nothing. */
bool sim_capture_peek(CUcontext ctx)
{
    for (CUstream s = captures ? ctx->streams : NULL; s; s = s->next) {
        if (s->cap && s->blocking)
            return true;
    }
    return false;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ENTER(cuThreadExchangeStreamCaptureMode);
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode old = own_mode;
    own_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

SIM_PAIR(cuStreamBeginCapture, cuStreamBeginCapture_ptsz, (CUstream s),
         begin(s, pt, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL))
SIM_PAIR(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz, (CUstream s, CUstreamCaptureMode mode),
         begin(s, pt, NULL, NULL, 0, mode))
SIM_PAIR(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz,
         (CUstream s, CUgraph graph, const CUgraphNode *deps, const CUgraphEdgeData *data, size_t n,
          CUstreamCaptureMode mode),
         graph ? begin(s, pt, graph, deps, n, mode) : CUDA_ERROR_INVALID_VALUE)
/* The captured nodes come behind those that are there; natively these have to be equal and are replaced. */
SIM_PAIR(cuStreamBeginRecaptureToGraph, cuStreamBeginRecaptureToGraph_ptsz,
         (CUstream s, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback fn, void *data),
         graph ? begin(s, pt, graph, NULL, 0, mode) : CUDA_ERROR_INVALID_VALUE)
SIM_PAIR(cuStreamEndCapture, cuStreamEndCapture_ptsz, (CUstream s, CUgraph *graph), end(s, pt, graph))
SIM_PAIR(cuStreamIsCapturing, cuStreamIsCapturing_ptsz, (CUstream s, CUstreamCaptureStatus *status),
         info(s, pt, status, NULL, NULL, NULL, NULL))
SIM_PAIR(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz,
         (CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id), info(s, pt, status, id, NULL, NULL, NULL))
SIM_PAIR(cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz,
         (CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps,
          size_t *n),
         info(s, pt, status, id, graph, deps, n))
SIM_PAIR(cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz,
         (CUstream s, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **deps,
          const CUgraphEdgeData **data, size_t *n),
         info(s, pt, status, id, graph, deps, n))
