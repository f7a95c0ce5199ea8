/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cover.c - which work a context's event covers, which work its wait holds back, and for which work cuCtxSynchronize,
 * cudaFree and cuMemFree wait.
 *
 * There is one case for each kind of stream ("target"), always asked of device 0's primary context: record (the event
 * of cuCtxRecordEvent: its state while the target is busy, and afterwards), hold (is work that is launched after
 * cuCtxWaitEvent held back while the event is not ready?), sync, free_runtime, free_driver (does the call wait for the
 * target?). For targets of other contexts the questions are asked the other way round, too: back_*. The kinds of work
 * are in work.c.
 */

#include "probe.h"

#define FILL (64 * KIB)

enum kind {
    LEGACY,
    PER_THREAD,
    BLOCKING,
    NON_BLOCKING,
    PRIORITY,
    GRAPH,
    DESTROYED,
    OTHER_THREAD,
    SECOND_CONTEXT,
    GREEN,
    OTHER_DEVICE,
    PEER_COPY,    /* a stream of another device that copies from this one */
    PEER_ACCESS,  /* the same, with access enabled both ways */
    PEER_UNIFIED, /* a plain copy by such a stream, from this device */
    PEER_FILL,    /* such a stream fills memory of this device */
};

struct target {
    const char *name;
    enum kind kind;
    CUcontext primary, context; /* context is the target's own, often the primary one */
    CUstream stream, beside;    /* beside: an independent stream of the primary context */
    CUdeviceptr memory, source; /* source: of the primary context, and what the target's work touches as well; else 0 */
    CUdeviceptr own;            /* of the primary context, for work beside the target's */
};

/* --- another thread with a per-thread stream of its own --- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t change;
    CUresult (*fn)(void *arg);
    void *arg;
    CUresult result;
    bool busy;
} worker = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, NULL, 0, false};

static void *worker_main(void *context)
{
    (void)cuCtxSetCurrent(context);
    pthread_mutex_lock(&worker.lock);
    for (;;) {
        while (!worker.busy)
            pthread_cond_wait(&worker.change, &worker.lock);
        worker.result = worker.fn(worker.arg);
        worker.busy = false;
        pthread_cond_broadcast(&worker.change);
    }
    return NULL;
}

static CUresult worker_do(CUresult (*fn)(void *arg), void *arg)
{
    CUresult result;

    pthread_mutex_lock(&worker.lock);
    worker.fn = fn;
    worker.arg = arg;
    worker.busy = true;
    pthread_cond_broadcast(&worker.change);
    while (worker.busy)
        pthread_cond_wait(&worker.change, &worker.lock);
    result = worker.result;
    pthread_mutex_unlock(&worker.lock);
    return result;
}

/* --- what is done on a target --- */

struct step {
    struct target *target;
    struct block *block;
};

static CUresult fill_here(void *arg)
{
    struct step *s = arg;

    const struct target *t = s->target;

    if (t->kind == PEER_UNIFIED)
        return cuMemcpyDtoDAsync(t->memory, t->source, FILL, t->stream);
    if (t->kind == PEER_FILL)
        return cuMemsetD8Async(t->source, 1, FILL, t->stream);
    if (t->source)
        return cuMemcpyPeerAsync(t->memory, t->context, t->source, t->primary, FILL, t->stream);
    return cuMemsetD8Async(t->memory, 1, FILL, t->stream);
}

static CUresult begin_here(void *arg)
{
    struct step *s = arg;

    const CUresult result = block_start(s->block, s->target->stream);

    return result || !s->target->source ? result : fill_here(arg);
}

static CUresult query_here(void *arg)
{
    struct step *s = arg;

    return cuStreamQuery(s->target->stream);
}

static CUresult sync_here(void *arg)
{
    struct step *s = arg;

    return cuStreamSynchronize(s->target->stream);
}

static CUresult launch_graph(struct step *s, CUresult (*fn)(void *arg))
{
    CUgraph graph;
    CUgraphExec exec;
    CUresult result = cuStreamBeginCapture(s->target->stream, CU_STREAM_CAPTURE_MODE_RELAXED), ended;

    if (result)
        return result;
    result = fn(s);
    ended = cuStreamEndCapture(s->target->stream, &graph);
    if (!result)
        result = ended;
    if (!result)
        result = cuGraphInstantiate(&exec, graph, 0);
    return result ? result : cuGraphLaunch(exec, s->target->stream);
}

static CUresult step(struct target *t, CUresult (*fn)(void *arg), struct block *b)
{
    struct step s = {t, b};
    CUresult result;

    if (t->kind == OTHER_THREAD)
        return worker_do(fn, &s);
    (void)cuCtxSetCurrent(t->context);
    result = t->kind == GRAPH && (fn == begin_here || fn == fill_here) ? launch_graph(&s, fn) : fn(&s);
    (void)cuCtxSetCurrent(t->primary);
    return result;
}

static CUresult begin(struct target *t, struct block *b)
{
    CUresult result = CUDA_SUCCESS;

    if (t->kind == DESTROYED)
        result = cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING);
    if (!result)
        result = step(t, begin_here, b);
    if (!result && t->kind == DESTROYED)
        result = cuStreamDestroy(t->stream);
    return result;
}

/* Let the target's work go and wait for it. */
static void end(struct target *t, struct block *b)
{
    block_end(b);
    if (t->kind != DESTROYED)
        (void)step(t, sync_here, b);
    (void)cuCtxSynchronize();
}

/* An event belongs to the context that is current when it is made, and can be recorded in no other. */
static CUevent event_new(const char *name, CUcontext context)
{
    CUcontext before;
    CUevent event;

    NEED(cuCtxGetCurrent(&before));
    NEED(cuCtxSetCurrent(context));
    NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    NEED(cuCtxSetCurrent(before));
    return event;
}

static CUresult event_settle(CUevent event)
{
    CUresult result = cuEventQuery(event);

    for (int i = 0; i < PATIENCE_MS && result == CUDA_ERROR_NOT_READY; i++) {
        nap_ms(1);
        result = cuEventQuery(event);
    }
    return result;
}

/* --- the questions --- */

static void ask_record(struct target *t, CUcontext context, const char *item, struct block *b)
{
    const char *name = t->name;
    CUevent event = event_new(name, context);
    const CUresult begun = begin(t, b);
    CUresult recorded, busy;

    if (begun) {
        fact(name, item, "error %d at the launch", begun);
        return;
    }
    nap_ms(SETTLE_MS / 4);
    recorded = cuCtxRecordEvent(context, event);
    nap_ms(SETTLE_MS / 4);
    busy = cuEventQuery(event);
    end(t, b);
    if (recorded)
        fact(name, item, "error %d", recorded);
    else
        fact(name, item, "%s, afterwards %d", busy == CUDA_ERROR_NOT_READY ? "covered" : "not covered",
             event_settle(event));
}

/* Work that is launched on `on` after a wait of `context` for an event that covers what `after` does. */
static void ask_hold(struct target *t, CUcontext context, const char *item, bool back, bool wait)
{
    const char *name = t->name;
    struct block b = block_new(name, BLOCK_VALUE);
    struct target beside = *t;
    CUresult result, held;
    CUevent event;

    beside.kind = NON_BLOCKING;
    beside.source = 0;
    beside.memory = t->own;
    beside.context = t->primary;
    beside.stream = t->beside;
    struct target *after = back ? t : &beside, *on = back ? &beside : t;
    event = event_new(name, after->context);
    result = step(after, begin_here, &b);
    if (!result && wait) {
        nap_ms(SETTLE_MS / 4);
        result = cuEventRecord(event, after->stream);
    }
    if (!result && wait)
        result = cuCtxWaitEvent(context, event);
    if (!result && on->kind == DESTROYED)
        result = cuStreamCreate(&on->stream, CU_STREAM_NON_BLOCKING); /* after the wait */
    if (!result)
        result = step(on, fill_here, &b);
    nap_ms(SETTLE_MS);
    held = step(on, query_here, &b);
    end(after, &b);
    (void)step(on, sync_here, &b);
    if (result)
        fact(name, item, "error %d", result);
    else
        fact(name, item, "%s", held == CUDA_ERROR_NOT_READY ? "held" : held ? "error" : "runs");
}

static int sync_call(void *arg)
{
    return (int)cuCtxSynchronize();
}

static int free_runtime_call(void *p)
{
    return (int)cudaFree(p);
}

static int free_driver_call(void *p)
{
    return (int)cuMemFree(addr_of(p));
}

/* Does the call, made in `context`, wait for the target? The argument is memory of `owner`, for a free. */
static void ask_call(struct target *t, CUcontext context, CUcontext owner, const char *item, int (*call)(void *),
                     struct block *b)
{
    const char *name = t->name;
    CUdeviceptr p = 0;
    int result = 0;
    bool waits;

    (void)cuCtxSetCurrent(owner);
    NEED(cuMemAlloc(&p, MIB));
    (void)cuCtxSetCurrent(t->primary);
    result = (int)begin(t, b);
    if (result) {
        fact(name, item, "error %d at the launch", result);
        return;
    }
    nap_ms(SETTLE_MS / 4);
    ask(name, item);
    waits = call_waits(name, context, call, (void *)(uintptr_t)p, b, &result);
    end(t, b);
    fact(name, item, "%s, %d", waits ? "waits" : "does not wait", result);
    if (call == sync_call)
        (void)cuMemFree(p);
}

static void questions(struct target *t)
{
    char item[64];

    if (t->kind != DESTROYED)
        ask_hold(t, t->primary, "hold.control", false, false);
    ask_hold(t, t->primary, "hold", false, true);
    for (enum block_kind k = BLOCK_HOSTFN; k <= BLOCK_VALUE; k++) {
        struct block b = block_new(t->name, k);

#define ITEM(text) (snprintf(item, sizeof(item), "%s.%s", text, block_names[k]), item)
        ask_record(t, t->primary, ITEM("record"), &b);
        ask_call(t, t->primary, t->primary, ITEM("sync"), sync_call, &b);
        ask_call(t, t->primary, t->primary, ITEM("free_runtime"), free_runtime_call, &b);
        ask_call(t, t->primary, t->primary, ITEM("free_driver"), free_driver_call, &b);
        if (t->context == t->primary)
            continue;
        ask_call(t, t->context, t->primary, ITEM("free_driver_from_there"), free_driver_call, &b);
        ask_call(t, t->primary, t->context, ITEM("free_theirs"), free_driver_call, &b);
    }
}

/* The other way round: the target is a stream of the primary context, the calls are made for the other one. */
static void questions_back(struct target *t)
{
    struct target primary = *t;
    char item[64];

    ask_hold(t, t->context, "back_hold", true, true);
    primary.kind = NON_BLOCKING;
    primary.source = 0;
    primary.memory = t->own;
    primary.context = t->primary;
    primary.stream = t->beside;
    for (enum block_kind k = BLOCK_HOSTFN; k <= BLOCK_VALUE; k++) {
        struct block b = block_new(t->name, k);

        ask_record(&primary, t->context, ITEM("back_record"), &b);
        ask_record(t, t->context, ITEM("own_record"), &b);
        ask_call(&primary, t->context, t->primary, ITEM("back_sync"), sync_call, &b);
        ask_call(t, t->context, t->primary, ITEM("own_sync"), sync_call, &b);
        ask_call(&primary, t->primary, t->context, ITEM("back_free"), free_driver_call, &b);
        ask_call(&primary, t->context, t->context, ITEM("back_free_from_there"), free_driver_call, &b);
    }
#undef ITEM
}

/* --- the targets --- */

static CUresult green_new(CUcontext *context, CUstream *stream)
{
    CUdevResource all, part, rest;
    CUdevResourceDesc description;
    unsigned int n = 1;
    CUgreenCtx green;
    CUresult result = cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);

    if (!result && cuDevSmResourceSplitByCount)
        result = cuDevSmResourceSplitByCount(&part, &n, &all, &rest, 0, 16);
    else
        part = all;
    if (!result)
        result = cuDevResourceGenerateDesc(&description, &part, 1);
    if (!result)
        result = cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM);
    if (!result)
        result = cuCtxFromGreenCtx(context, green);
    return result ? result : cuGreenCtxStreamCreate(stream, green, CU_STREAM_NON_BLOCKING, 0);
}

static void target_new(struct target *t)
{
    const char *name = t->name;
    int least, greatest;
    pthread_t thread;

    switch (t->kind) {
    case LEGACY:
        t->stream = CU_STREAM_LEGACY;
        break;
    case PER_THREAD:
        t->stream = CU_STREAM_PER_THREAD;
        break;
    case BLOCKING:
        NEED(cuStreamCreate(&t->stream, CU_STREAM_DEFAULT));
        break;
    case NON_BLOCKING:
    case GRAPH:
    case DESTROYED:
        NEED(cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING));
        break;
    case PRIORITY:
        NEED(cuCtxGetStreamPriorityRange(&least, &greatest));
        NEED(cuStreamCreateWithPriority(&t->stream, CU_STREAM_NON_BLOCKING, greatest));
        break;
    case OTHER_THREAD:
        t->stream = CU_STREAM_PER_THREAD;
        NEED(pthread_create(&thread, NULL, worker_main, t->primary));
        break;
    case SECOND_CONTEXT:
        NEED(cuCtxCreate(&t->context, NULL, 0, 0));
        NEED(cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING));
        break;
    case GREEN:
        NEED(green_new(&t->context, &t->stream));
        break;
    case OTHER_DEVICE:
    case PEER_COPY:
    case PEER_ACCESS:
    case PEER_UNIFIED:
    case PEER_FILL:
        NEED(cuDevicePrimaryCtxRetain(&t->context, 1));
        NEED(cuCtxSetCurrent(t->context));
        NEED(cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING));
        break;
    }
    NEED(cuCtxSetCurrent(t->primary));
    NEED(cuMemAlloc(&t->own, FILL));
    if (t->kind >= PEER_COPY)
        NEED(cuMemAlloc(&t->source, FILL));
    if (t->kind >= PEER_ACCESS) {
        NEED(cuCtxEnablePeerAccess(t->context, 0));
        NEED(cuCtxSetCurrent(t->context));
        NEED(cuCtxEnablePeerAccess(t->primary, 0));
    }
    NEED(cuCtxSetCurrent(t->context));
    NEED(cuMemAlloc(&t->memory, FILL));
    if (t->context != t->primary) { /* the primary one was warmed up already */
        NEED(cuMemsetD8(t->memory, 0, FILL));
        NEED(step(t, fill_here, NULL));
        NEED(cuCtxSetCurrent(t->context));
        NEED(cuCtxSynchronize());
    }
    NEED(cuCtxSetCurrent(t->primary));
    if (t->kind == GRAPH) { /* loads what graphs need */
        NEED(step(t, fill_here, NULL));
        NEED(cuCtxSynchronize());
    }
}

static void run(const char *name, int kind)
{
    struct target t = {.name = name, .kind = (enum kind)kind};
    int devices = 0;

    NEED(cudaGetDeviceCount(&devices));
    if (kind >= OTHER_DEVICE && devices < 2) {
        fact(name, "all", ONE_DEVICE);
        return;
    }
    if (kind == GREEN && !cuGreenCtxCreate) {
        fact(name, "all", NOT_SIMULATED);
        return;
    }
    t.primary = t.context = probe_primary(name);
    NEED(cuStreamCreate(&t.beside, CU_STREAM_NON_BLOCKING));
    target_new(&t);
    questions(&t);
    if (t.context != t.primary)
        questions_back(&t);
}

const struct probe_case cover_cases[] = {
    {"cover.legacy", run, LEGACY},
    {"cover.per_thread", run, PER_THREAD},
    {"cover.blocking", run, BLOCKING},
    {"cover.non_blocking", run, NON_BLOCKING},
    {"cover.priority", run, PRIORITY},
    {"cover.graph", run, GRAPH},
    {"cover.destroyed", run, DESTROYED},
    {"cover.other_thread", run, OTHER_THREAD},
    {"cover.second_context", run, SECOND_CONTEXT},
    {"cover.green", run, GREEN},
    {"cover.other_device", run, OTHER_DEVICE},
    {"cover.peer_copy", run, PEER_COPY},
    {"cover.peer_access", run, PEER_ACCESS},
    {"cover.peer_unified", run, PEER_UNIFIED},
    {"cover.peer_fill", run, PEER_FILL},
    {NULL, NULL, 0},
};
