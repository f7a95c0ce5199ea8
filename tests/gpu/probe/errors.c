/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errors.c - calls from host functions, and calls after an error that stays with the context ("sticky").
 *
 * A sticky error is made without kernels: a captured fill of memory whose pages are unmapped before the graph is
 * launched (700). sticky.seen gives the answers of the calls when an earlier call has returned the error already,
 * sticky.first.* the answer of the first call after the error, when none has. sticky.make.* are other ways, as far as
 * they are ones.
 */

#include "probe.h"

#define BYTES (64 * KIB)

/* --- host functions --- */

static struct {
    void *p, *q;
    cudaEvent_t event;
    cudaStream_t other;
    CUcontext context;
    CUevent context_event;
    _Atomic(int) result, done;
} h;

#define IN_HOSTFN(CALL)                                                                                                \
    CALL(malloc, cudaMalloc(&h.q, 1000))                                                                               \
    CALL(malloc_large, cudaMalloc(&h.q, 4 * MIB))                                                                      \
    CALL(free, cudaFree(h.p))                                                                                          \
    CALL(free_null, cudaFree(NULL))                                                                                    \
    CALL(driver_alloc, cuMemAlloc((CUdeviceptr *)&h.q, 1000))                                                          \
    CALL(driver_free, cuMemFree(addr_of(h.p)))                                                                         \
    CALL(mem_get_info, cudaMemGetInfo(&(size_t){0}, &(size_t){0}))                                                     \
    CALL(event_query, cudaEventQuery(h.event))                                                                         \
    CALL(event_record, cudaEventRecord(h.event, h.other))                                                              \
    CALL(stream_query, cudaStreamQuery(h.other))                                                                       \
    CALL(memset_async, cudaMemsetAsync(h.p, 0, 1000, h.other))                                                         \
    CALL(context_record, cuCtxRecordEvent(h.context, h.context_event))                                                 \
    CALL(get_current, cuCtxGetCurrent(&(CUcontext){0}))                                                                \
    CALL(get_device, cudaGetDevice(&(int){0}))                                                                         \
    CALL(address_range, range_code(h.p))                                                                               \
    CALL(device_synchronize, cudaDeviceSynchronize())                                                                  \
    CALL(last_error, cudaGetLastError())

#define IN_CALL(name_, code_)   PROBE_CALL(in_##name_, code_)
#define IN_ROW(name_, code_)    call_in_##name_,
#define IN_NUMBER(name_, code_) NUMBER_IN_##name_,
IN_HOSTFN(IN_CALL)
static int (*const in_calls[])(void) = {IN_HOSTFN(IN_ROW)};
enum { IN_HOSTFN(IN_NUMBER) };

static void CUDART_CB in_fn(void *call)
{
    atomic_store(&h.result, in_calls[(size_t)(uintptr_t)call]());
    atomic_store(&h.done, 1);
}

static void run_hostfn(const char *name, int arg)
{
    cudaStream_t stream;

    h.context = probe_primary(name);
    NEED(cudaMalloc(&h.p, 1000));
    NEED(cudaEventCreateWithFlags(&h.event, cudaEventDisableTiming));
    NEED(cuEventCreate(&h.context_event, CU_EVENT_DISABLE_TIMING));
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&h.other, cudaStreamNonBlocking));
    NEED(cudaEventRecord(h.event, h.other));
    NEED(cudaDeviceSynchronize());
    NEED(cudaLaunchHostFunc(stream, in_fn, (void *)(uintptr_t)arg));
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&h.done); i++)
        nap_ms(1);
    if (!atomic_load(&h.done)) {
        fact(name, "result", "hangs");
        return;
    }
    fact(name, "result", "%d", atomic_load(&h.result));
    ask(name, "sync");
    fact(name, "sync", "%d", (int)cudaStreamSynchronize(stream));
}

#define HOSTFN_CASE(name_, code_) {"hostfn." #name_, run_hostfn, NUMBER_IN_##name_},
const struct probe_case hostfn_cases[] = {IN_HOSTFN(HOSTFN_CASE){NULL, NULL, 0}};

/* --- sticky errors --- */

static struct {
    CUcontext context;
    cudaStream_t stream;
    cudaEvent_t event;
    CUevent context_event;
    void *live, *other, *fresh, *cached;
    char bytes[BYTES];
} e;

struct range {
    CUdeviceptr p;
    CUmemGenericAllocationHandle handle;
};

static struct range range_new(const char *name)
{
    const CUmemAllocationProp what = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    const CUmemAccessDesc access = {.location = what.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    struct range r;

    NEED(cuMemCreate(&r.handle, 2 * MIB, &what, 0));
    NEED(cuMemAddressReserve(&r.p, 2 * MIB, 0, 0, 0));
    NEED(cuMemMap(r.p, 2 * MIB, 0, r.handle, 0));
    NEED(cuMemSetAccess(r.p, 2 * MIB, &access, 1));
    return r;
}

static void prepare(const char *name)
{
    e.context = probe_primary(name);
    NEED(cudaStreamCreateWithFlags(&e.stream, cudaStreamNonBlocking));
    NEED(cudaEventCreateWithFlags(&e.event, cudaEventDisableTiming));
    NEED(cuEventCreate(&e.context_event, CU_EVENT_DISABLE_TIMING));
    NEED(cudaMalloc(&e.live, BYTES));
    NEED(cudaMalloc(&e.other, BYTES));
    NEED(cudaMalloc(&e.cached, 5 * MIB));
    NEED(cudaFree(e.cached)); /* so that a pool has it */
    NEED(cudaEventRecord(e.event, e.stream));
    NEED(cudaDeviceSynchronize());
}

/* The error is on its way when this returns, and nobody has been told. */
static void fault(const char *name)
{
    struct range r = range_new(name);
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    NEED(cudaStreamBeginCapture(e.stream, cudaStreamCaptureModeRelaxed));
    NEED(cudaMemsetAsync((void *)(uintptr_t)r.p, 1, BYTES, e.stream));
    NEED(cudaStreamEndCapture(e.stream, &graph));
    NEED(cudaGraphInstantiate(&exec, graph, 0));
    NEED(cudaGraphUpload(exec, e.stream));
    NEED(cudaDeviceSynchronize());
    NEED(cuMemUnmap(r.p, 2 * MIB));
    NEED(cudaGraphLaunch(exec, e.stream));
    nap_ms(6 * SETTLE_MS); /* with other processes on the GPU it takes its time */
}

/* FIRST: also as the first call after the error. */
#define LIST(CALL, FIRST)                                                                                              \
    FIRST(malloc_small, cudaMalloc(&e.fresh, 1000))                                                                    \
    FIRST(malloc_cached, cudaMalloc(&e.fresh, 5 * MIB))                                                                \
    FIRST(malloc_large, cudaMalloc(&e.fresh, 64 * MIB))                                                                \
    FIRST(malloc_none, cudaMalloc(&e.fresh, 0))                                                                        \
    FIRST(malloc_too_much, cudaMalloc(&e.fresh, (size_t)1 << 60))                                                      \
    FIRST(free, cudaFree(e.other))                                                                                     \
    FIRST(free_null, cudaFree(NULL))                                                                                   \
    FIRST(free_wild, cudaFree((void *)0x1234))                                                                         \
    FIRST(driver_alloc, cuMemAlloc((CUdeviceptr *)&e.fresh, 1000))                                                     \
    FIRST(driver_free, cuMemFree(addr_of(e.other)))                                                                    \
    CALL(driver_free_wild, cuMemFree(0x1234))                                                                          \
    FIRST(mem_get_info, cudaMemGetInfo(&(size_t){0}, &(size_t){0}))                                                    \
    CALL(driver_mem_get_info, cuMemGetInfo(&(size_t){0}, &(size_t){0}))                                                \
    FIRST(last_error, cudaGetLastError())                                                                              \
    FIRST(peek, cudaPeekAtLastError())                                                                                 \
    FIRST(memcpy, cudaMemcpy(e.bytes, e.live, BYTES, cudaMemcpyDeviceToHost))                                          \
    FIRST(memset_async, cudaMemsetAsync(e.live, 0, BYTES, e.stream))                                                   \
    FIRST(device_synchronize, cudaDeviceSynchronize())                                                                 \
    FIRST(stream_query, cudaStreamQuery(e.stream))                                                                     \
    FIRST(event_query, cudaEventQuery(e.event))                                                                        \
    CALL(event_record, cudaEventRecord(e.event, e.stream))                                                             \
    FIRST(context_record, cuCtxRecordEvent(e.context, e.context_event))                                                \
    CALL(context_wait, cuCtxWaitEvent(e.context, e.context_event))                                                     \
    CALL(context_synchronize, cuCtxSynchronize())                                                                      \
    FIRST(address_range, range_code(e.live))                                                                           \
    CALL(get_device, cudaGetDevice(&(int){0}))                                                                         \
    CALL(malloc_host, cudaMallocHost(&e.fresh, BYTES))                                                                 \
    CALL(malloc_async, cudaMallocAsync(&e.fresh, 1000, e.stream))                                                      \
    FIRST(free_async, cudaFreeAsync(e.other, e.stream))                                                                \
    CALL(stream_create, cudaStreamCreate(&(cudaStream_t){0}))

LIST(PROBE_CALL, PROBE_CALL)
static const struct probe_call after[] = {LIST(PROBE_ROW, PROBE_ROW)};
#define NUMBER(name_, code_) NUMBER_##name_,
enum { LIST(NUMBER, NUMBER) };
#define AFTER (sizeof(after) / sizeof(after[0]))

/* CODE last LAST: what a call answered, and what the last error was afterwards. */
static void tell(const char *name, size_t i)
{
    int result, peek, last;

    ask(name, after[i].name);
    result = after[i].fn();
    peek = (int)cudaPeekAtLastError();
    last = (int)cudaGetLastError();
    fact(name, after[i].name, "%d peek %d last %d", result, peek, last);
}

static void run_first(const char *name, int i)
{
    prepare(name);
    fault(name);
    tell(name, (size_t)i);
    fact(name, "then_sync", "%d", (int)cudaDeviceSynchronize());
    fact(name, "then_malloc", "%d", (int)cudaMalloc(&e.fresh, 1000));
}

static void run_seen(const char *name, int arg)
{
    prepare(name);
    fault(name);
    fact(name, "sync", "%d", (int)cudaDeviceSynchronize());
    fact(name, "last", "%d", (int)cudaGetLastError());
    fact(name, "last_again", "%d", (int)cudaGetLastError());
    for (size_t i = 0; i < AFTER; i++)
        tell(name, i);
    ask(name, "reset");
    fact(name, "reset", "%d", (int)cudaDeviceReset());
    ask(name, "malloc_after_reset");
    fact(name, "malloc_after_reset", "%d", (int)cudaMalloc(&e.fresh, 1000));
    fact(name, "memset_after_reset", "%d", (int)cudaMemset(e.fresh, 0, 1000));
    fact(name, "sync_after_reset", "%d", (int)cudaDeviceSynchronize());
}

/* Another thread, which has not been told: does it see the error, and in its own last error? */
static int elsewhere_call(void *arg)
{
    int *r = arg;

    r[0] = (int)cudaPeekAtLastError();
    r[1] = (int)cudaMalloc(&e.fresh, 1000);
    r[2] = (int)cudaGetLastError();
    r[3] = (int)cudaFree(e.other);
    r[4] = (int)cudaGetLastError();
    return 0;
}

static void run_elsewhere(const char *name, int arg)
{
    int r[5], ignored;

    prepare(name);
    fault(name);
    fact(name, "sync", "%d", (int)cudaDeviceSynchronize());
    (void)call_waits(name, e.context, elsewhere_call, r, NULL, &ignored);
    fact(name, "thread", "peek %d malloc %d last %d free %d last %d", r[0], r[1], r[2], r[3], r[4]);
    fact(name, "last", "%d", (int)cudaGetLastError());
}

enum {
    UNMAPPED,
    NO_ADDRESS,
    WAIT_NO_ADDRESS,
    WRITE_NO_ADDRESS,
    WAIT_PAGEABLE,
    WRITE_PAGEABLE,
    UNMAP_BUSY,
    FREED_IN_GRAPH
};

/* CODE sync SYNC malloc MALLOC: what the call, a synchronisation and a cudaMalloc answered. */
static void run_make(const char *name, int how)
{
    struct block b;
    struct range r;
    void *page = aligned_alloc(4096, 4096);
    int result = 0, synced;

    prepare(name);
    b = block_new(name, BLOCK_VALUE);
    r = range_new(name);
    memset(page, 0, 4096);
    ask(name, "result");
    switch (how) {
    case UNMAPPED:
        NEED(cuMemUnmap(r.p, 2 * MIB));
        result = (int)cuMemsetD8Async(r.p, 1, BYTES, e.stream);
        break;
    case NO_ADDRESS:
        result = (int)cuMemsetD8Async(0x1234000, 1, BYTES, e.stream);
        break;
    case WAIT_NO_ADDRESS:
        result = (int)cuStreamWaitValue32(e.stream, 0x1234000, 0, CU_STREAM_WAIT_VALUE_GEQ);
        break;
    case WRITE_NO_ADDRESS:
        result = (int)cuStreamWriteValue32(e.stream, 0x1234000, 1, 0);
        break;
    case WAIT_PAGEABLE:
        result = (int)cuStreamWaitValue32(e.stream, addr_of(page), 0, CU_STREAM_WAIT_VALUE_GEQ);
        break;
    case WRITE_PAGEABLE:
        result = (int)cuStreamWriteValue32(e.stream, addr_of(page), 1, 0);
        break;
    case UNMAP_BUSY:
        NEED(block_start(&b, e.stream));
        NEED(cuMemsetD8Async(r.p, 1, BYTES, e.stream));
        block_end_later(name, &b, 2 * SETTLE_MS);
        result = (int)cuMemUnmap(r.p, 2 * MIB);
        nap_ms(4 * SETTLE_MS);
        break;
    default: { /* the graph fills what cudaFree has given back */
        cudaGraph_t graph;
        cudaGraphExec_t exec;

        NEED(cudaMalloc(&e.fresh, 4 * MIB)); /* pages of its own */
        NEED(cudaStreamBeginCapture(e.stream, cudaStreamCaptureModeRelaxed));
        NEED(cudaMemsetAsync(e.fresh, 1, BYTES, e.stream));
        NEED(cudaStreamEndCapture(e.stream, &graph));
        NEED(cudaGraphInstantiate(&exec, graph, 0));
        NEED(cudaFree(e.fresh));
        result = (int)cudaGraphLaunch(exec, e.stream);
    }
    }
    nap_ms(SETTLE_MS);
    synced = (int)cudaStreamSynchronize(e.stream);
    fact(name, "result", "%d sync %d malloc %d", result, synced, (int)cudaMalloc(&e.fresh, 1000));
}

#define NO_CASE(name_, code_)
#define FIRST_CASE(name_, code_) {"sticky.first." #name_, run_first, NUMBER_##name_},
const struct probe_case sticky_cases[] = {
    {"sticky.make.unmapped", run_make, UNMAPPED},
    {"sticky.make.no_address", run_make, NO_ADDRESS},
    {"sticky.make.wait_no_address", run_make, WAIT_NO_ADDRESS},
    {"sticky.make.write_no_address", run_make, WRITE_NO_ADDRESS},
    {"sticky.make.wait_pageable", run_make, WAIT_PAGEABLE},
    {"sticky.make.write_pageable", run_make, WRITE_PAGEABLE},
    {"sticky.make.unmap_busy", run_make, UNMAP_BUSY},
    {"sticky.make.freed_in_graph", run_make, FREED_IN_GRAPH},
    {"sticky.seen", run_seen, 0},
    {"sticky.elsewhere", run_elsewhere, 0},
    LIST(NO_CASE, FIRST_CASE){NULL, NULL, 0},
};
