/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.c - is work of every kind held back by a context's wait, and what of streams that come after the record?
 *
 * Each kind of work is launched on a stream of its own after a cuCtxWaitEvent for an event that is not ready. The
 * answer is the launch's code and whether the work was held, or that the launch itself waited.
 */

#include "probe.h"

#define FILL (64 * KIB)

static CUevent event_new(const char *name)
{
    CUevent event;

    NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    return event;
}

struct work {
    CUstream stream;
    CUdeviceptr a, b;
    char *pinned, *pageable;
    int kind;
    atomic_int launched; /* 1 + the call's result */
    atomic_int queried;
};

static const char *const work_names[] = {
    "memset",      "copy_device", "copy_from_pinned", "copy_to_pinned", "copy_from_pageable", "hostfn",
    "write_value", "event",       "malloc_async"};

static void CUDART_CB nothing_fn(void *arg)
{
}

static int work_call(void *arg)
{
    struct work *w = arg;
    CUevent event = NULL;
    CUresult r;

    switch (w->kind) {
    case 0:
        r = cuMemsetD8Async(w->a, 1, FILL, w->stream);
        break;
    case 1:
        r = cuMemcpyDtoDAsync(w->b, w->a, FILL, w->stream);
        break;
    case 2:
        r = cuMemcpyHtoDAsync(w->a, w->pinned, FILL, w->stream);
        break;
    case 3:
        r = cuMemcpyDtoHAsync(w->pinned, w->a, FILL, w->stream);
        break;
    case 4:
        r = cuMemcpyHtoDAsync(w->a, w->pageable, FILL, w->stream);
        break;
    case 5:
        r = cuLaunchHostFunc(w->stream, nothing_fn, NULL);
        break;
    case 6:
        r = cuStreamWriteValue32(w->stream, w->a, 1, 0);
        break;
    case 7: /* on an idle stream: nothing comes before it but the wait */
        r = cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
        if (!r)
            r = cuEventRecord(event, w->stream);
        break;
    default:
        r = cuMemAllocAsync(&w->b, FILL, w->stream);
        if (!r)
            r = cuMemFreeAsync(w->b, w->stream);
    }
    atomic_store(&w->launched, 1 + (int)r);
    nap_ms(SETTLE_MS / 2);
    /* An event's own state, not the stream's, but for the first they are the same. */
    atomic_store(&w->queried, 1 + (int)(w->kind == 7 && !r ? cuEventQuery(event) : cuStreamQuery(w->stream)));
    return 0;
}

static void run_work(const char *name, int kind)
{
    CUcontext primary = probe_primary(name);
    struct block b = block_new(name, BLOCK_VALUE);
    CUevent event = event_new(name);
    CUstream beside;
    void *p;

    NEED(cuStreamCreate(&beside, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof(work_names) / sizeof(work_names[0]); i++) {
        struct work w = {.kind = (int)i};
        int result;

        NEED(cuStreamCreate(&w.stream, CU_STREAM_NON_BLOCKING));
        NEED(cuMemAlloc(&w.a, FILL));
        NEED(cuMemAlloc(&w.b, FILL));
        NEED(cuMemHostAlloc(&p, FILL, 0));
        w.pinned = p;
        w.pageable = calloc(1, FILL);
        (void)work_call(&w); /* loads what it needs */
        NEED(cuCtxSynchronize());
        atomic_store(&w.launched, 0);
        atomic_store(&w.queried, 0);
        NEED(block_start(&b, beside));
        NEED(cuEventRecord(event, beside));
        NEED(cuCtxWaitEvent(primary, event));
        ask(name, work_names[i]);
        if (call_waits(name, primary, work_call, &w, &b, &result))
            fact(name, work_names[i], "the host waits");
        else
            fact(name, work_names[i], "%d, %s", atomic_load(&w.launched) - 1,
                 atomic_load(&w.queried) - 1 == CUDA_ERROR_NOT_READY ? "held" : "runs");
        NEED(cuCtxSynchronize());
    }
}

/* A stream that is created after the record: is its work covered? It should not be. */
static void run_created(const char *name, int kind)
{
    CUcontext primary = probe_primary(name);
    CUevent event = event_new(name);

    for (enum block_kind k = BLOCK_HOSTFN; k <= BLOCK_VALUE; k++) {
        struct block b = block_new(name, k);
        CUstream stream;
        CUresult busy;

        NEED(cuCtxRecordEvent(primary, event));
        NEED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        NEED(block_start(&b, stream));
        nap_ms(SETTLE_MS / 2);
        busy = cuEventQuery(event);
        block_end(&b);
        NEED(cuCtxSynchronize());
        fact(name, block_names[k], "%s", busy == CUDA_ERROR_NOT_READY ? "covered" : "not covered");
    }
}

const struct probe_case work_cases[] = {
    {"cover.created_after_record", run_created, 0},
    {"cover.work", run_work, 0},
    {NULL, NULL, 0},
};
