/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - what the host sees after a cudaFree while work is in flight: events, streams, memory.
 *
 * A case blocks a stream, puts work behind, frees an unrelated block, and then looks from the host, without
 * synchronising. Another thread lets the stream go soon after the free has begun. "done": the host saw the work done,
 * as it does when cudaFree waits.
 */

#include "probe.h"

#define BYTES (64 * KIB)

static struct {
    cudaStream_t stream;
    cudaEvent_t before, after;
    char *victim, *device, *host; /* host: pinned, registered, mapped or managed */
    _Atomic(int) flag;
} w;

enum { EVENT, ELAPSED, STREAM, TO_PINNED, TO_REGISTERED, FROM_PINNED, HOSTFN, MANAGED, MAPPED, CALLBACK, TO_PINNED_2D };

static void CUDART_CB flag_fn(void *arg)
{
    atomic_store(&w.flag, 1);
}

static void CUDART_CB flag_callback(cudaStream_t stream, cudaError_t error, void *arg)
{
    atomic_store(&w.flag, 1);
}

static void prepare(const char *name, int what)
{
    void *p;

    (void)probe_primary(name);
    NEED(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
    NEED(cudaEventCreate(&w.before));
    NEED(cudaEventCreate(&w.after));
    NEED(cudaMalloc((void **)&w.victim, 4 * MIB));
    NEED(cudaMalloc((void **)&w.device, BYTES));
    NEED(cudaMemset(w.device, 2, BYTES));
    w.host = NULL;
    switch (what) { /* nothing that the case does without: it might matter */
    case TO_PINNED:
    case TO_PINNED_2D:
    case FROM_PINNED:
        NEED(cudaMallocHost((void **)&w.host, BYTES));
        break;
    case TO_REGISTERED:
        p = aligned_alloc(4096, BYTES);
        NEED(p ? 0 : 2);
        NEED(cudaHostRegister(p, BYTES, cudaHostRegisterDefault));
        w.host = p;
        break;
    case MAPPED:
        NEED(cudaHostAlloc((void **)&w.host, BYTES, cudaHostAllocMapped));
        break;
    case MANAGED:
        NEED(cudaMallocManaged((void **)&w.host, BYTES, cudaMemAttachGlobal));
        NEED(cudaMemset(w.host, 3, BYTES)); /* the GPU has it before anything is in flight */
        break;
    default:
        break;
    }
    if (w.host && what != MANAGED)
        memset(w.host, 1, BYTES);
    NEED(cudaDeviceSynchronize());
}

static int launch(int what)
{
    void *p;

    switch (what) {
    case TO_PINNED:
    case TO_REGISTERED:
        return (int)cudaMemcpyAsync(w.host, w.device, BYTES, cudaMemcpyDeviceToHost, w.stream);
    case TO_PINNED_2D:
        return (int)cudaMemcpy2DAsync(w.host, 256, w.device, 256, 256, BYTES / 256, cudaMemcpyDeviceToHost, w.stream);
    case FROM_PINNED:
        return (int)cudaMemcpyAsync(w.device, w.host, BYTES, cudaMemcpyHostToDevice, w.stream);
    case HOSTFN:
        return (int)cudaLaunchHostFunc(w.stream, flag_fn, NULL);
    case CALLBACK:
        return (int)cudaStreamAddCallback(w.stream, flag_callback, NULL, 0);
    case MANAGED:
        return (int)cudaMemsetAsync(w.host, 2, BYTES, w.stream);
    case MAPPED: {
        const int r = (int)cudaHostGetDevicePointer(&p, w.host, 0);

        return r ? r : (int)cudaMemsetAsync(p, 2, BYTES, w.stream);
    }
    default:
        return (int)cudaMemsetAsync(w.device, 2, BYTES, w.stream);
    }
}

/* The answer to a query of progress, and whether it counts as an error. */
static const char *progress(cudaError_t answer)
{
    const cudaError_t last = cudaGetLastError();

    if (answer != cudaSuccess && answer != cudaErrorNotReady)
        return "error";
    return last ? "the last error is set" : answer ? "not ready" : "done";
}

/* Looks at the last byte: that is what comes last, if anything does. */
static const char *look(const char *name, int what)
{
    volatile char *const place = w.host;
    char bytes[16];
    float ms;

    switch (what) {
    case EVENT:
        return progress(cudaEventQuery(w.after));
    case ELAPSED:
        return progress(cudaEventElapsedTime(&ms, w.before, w.after));
    case STREAM:
        return progress(cudaStreamQuery(w.stream));
    case HOSTFN:
    case CALLBACK:
        return atomic_load(&w.flag) ? "done" : "not ready";
    case FROM_PINNED: /* natively the copy has happened: what is written now does not reach the device */
        memset(w.host, 7, BYTES);
        NEED(cudaStreamSynchronize(w.stream));
        NEED(cudaMemcpy(bytes, w.device + BYTES - sizeof(bytes), sizeof(bytes), cudaMemcpyDeviceToHost));
        return bytes[sizeof(bytes) - 1] == 1 ? "done" : bytes[sizeof(bytes) - 1] == 7 ? "overwritten" : "neither";
    default:
        return place[BYTES - 1] == 2 ? "done" : "not ready";
    }
}

/* how: 0 cudaFree, 1 cuMemFree, 2 cudaFree of what the work uses, 3 cudaFree(NULL), 4 cudaFreeAsync on another stream.
 */
static int give_back(int how)
{
    switch (how) {
    case 0:
        return (int)cudaFree(w.victim);
    case 1:
        return (int)cuMemFree(addr_of(w.victim));
    case 2:
        return (int)cudaFree(w.device);
    case 3:
        return (int)cudaFree(NULL);
    default:
        return (int)cudaFreeAsync(w.victim, cudaStreamPerThread);
    }
}

static void run(const char *name, int arg)
{
    static const char *const ways[] = {"cudaFree", "cuMemFree", "cudaFree_used", "cudaFree_null", "cudaFreeAsync"};
    const int what = arg;

    for (int how = 0; how < 5; how++) {
        struct block b;
        const char *seen;
        int freed;

        if (how == 2 && what == FROM_PINNED)
            continue; /* the device's copy is looked at */
        prepare(name, what);
        b = block_new(name, BLOCK_VALUE);
        atomic_store(&w.flag, 0);
        NEED(cudaEventRecord(w.before, w.stream));
        NEED(block_start(&b, w.stream));
        NEED(launch(what));
        NEED(cudaEventRecord(w.after, w.stream));
        ask(name, ways[how]);
        block_end_later(name, &b, SETTLE_MS);
        freed = give_back(how);
        seen = look(name, what);
        fact(name, ways[how], "%d, %s", freed, seen);
        NEED(cudaStreamSynchronize(w.stream));
        NEED(cudaDeviceSynchronize());
    }
}

const struct probe_case host_cases[] = {
    {"host.event", run, EVENT},
    {"host.elapsed", run, ELAPSED},
    {"host.stream", run, STREAM},
    {"host.copy_to_pinned", run, TO_PINNED},
    {"host.copy_to_registered", run, TO_REGISTERED},
    {"host.copy_2d_to_pinned", run, TO_PINNED_2D},
    {"host.copy_from_pinned", run, FROM_PINNED},
    {"host.hostfn", run, HOSTFN},
    {"host.callback", run, CALLBACK},
    {"host.managed", run, MANAGED},
    {"host.mapped", run, MAPPED},
    {NULL, NULL, 0},
};
