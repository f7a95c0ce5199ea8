/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - what a call does while a stream captures: its code, the last error, and what became of the capture.
 *
 * There is one case for each mode and thread (the capturing one, another one), and one fact for each call. The answer
 * is "CODE last LAST end END": the result of the call, of cudaGetLastError in the same thread after it, and of ending
 * the capture (0: it survived).
 */

#include "probe.h"

#define BYTES (64 * KIB)

static struct {
    CUcontext context;
    cudaStream_t stream, other;
    cudaEvent_t event, idle;
    CUevent context_event;
    void *a, *b, *p, *host, *pageable, *page;
    cudaStream_t made_stream;
    cudaEvent_t made_event;
} s;

#define CALLS(CALL)                                                                                                    \
    CALL(malloc_small, cudaMalloc(&s.p, 1000))                                                                         \
    CALL(malloc_large, cudaMalloc(&s.p, 4 * MIB))                                                                      \
    CALL(malloc_none, cudaMalloc(&s.p, 0))                                                                             \
    CALL(malloc_pitch, cudaMallocPitch(&s.p, &(size_t){0}, 1000, 10))                                                  \
    CALL(malloc_managed, cudaMallocManaged(&s.p, BYTES, cudaMemAttachGlobal))                                          \
    CALL(malloc_async, cudaMallocAsync(&s.p, 1000, s.other))                                                           \
    CALL(malloc_async_captured, cudaMallocAsync(&s.p, 1000, s.stream))                                                 \
    CALL(driver_alloc, cuMemAlloc((CUdeviceptr *)&s.p, 1000))                                                          \
    CALL(free, cudaFree(s.b))                                                                                          \
    CALL(free_null, cudaFree(NULL))                                                                                    \
    CALL(free_wild, cudaFree((void *)0x1234))                                                                          \
    CALL(free_async, cudaFreeAsync(s.b, s.other))                                                                      \
    CALL(free_async_captured, cudaFreeAsync(s.b, s.stream))                                                            \
    CALL(driver_free, cuMemFree(addr_of(s.b)))                                                                         \
    CALL(mem_get_info, cudaMemGetInfo(&(size_t){0}, &(size_t){0}))                                                     \
    CALL(driver_mem_get_info, cuMemGetInfo(&(size_t){0}, &(size_t){0}))                                                \
    CALL(address_range, range_code(s.a))                                                                               \
    CALL(pointer_attribute, cuPointerGetAttribute(&(int){0}, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr_of(s.a)))          \
    CALL(sync_memops, cuPointerSetAttribute(&(int){1}, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(s.b)))                \
    CALL(ipc_handle, cudaIpcGetMemHandle(&(cudaIpcMemHandle_t){{0}}, s.a))                                             \
    CALL(event_query, cudaEventQuery(s.event))                                                                         \
    CALL(event_query_unrecorded, cudaEventQuery(s.idle))                                                               \
    CALL(event_record, cudaEventRecord(s.idle, s.other))                                                               \
    CALL(event_synchronize, cudaEventSynchronize(s.event))                                                             \
    CALL(event_create, cudaEventCreate(&s.made_event))                                                                 \
    CALL(event_destroy, cudaEventDestroy(s.made_event))                                                                \
    CALL(stream_query, cudaStreamQuery(s.other))                                                                       \
    CALL(stream_query_captured, cudaStreamQuery(s.stream))                                                             \
    CALL(stream_synchronize, cudaStreamSynchronize(s.other))                                                           \
    CALL(stream_create, cudaStreamCreateWithFlags(&s.made_stream, cudaStreamNonBlocking))                              \
    CALL(stream_destroy, cudaStreamDestroy(s.made_stream))                                                             \
    CALL(device_synchronize, cudaDeviceSynchronize())                                                                  \
    CALL(context_synchronize, cuCtxSynchronize())                                                                      \
    CALL(context_record, cuCtxRecordEvent(s.context, s.context_event))                                                 \
    CALL(context_wait, cuCtxWaitEvent(s.context, s.event))                                                             \
    CALL(memcpy_to_device, cudaMemcpy(s.b, s.pageable, BYTES, cudaMemcpyHostToDevice))                                 \
    CALL(memcpy_to_host, cudaMemcpy(s.pageable, s.b, BYTES, cudaMemcpyDeviceToHost))                                   \
    CALL(memcpy_device, cudaMemcpy(s.b, (char *)s.b + BYTES / 2, BYTES / 2, cudaMemcpyDeviceToDevice))                 \
    CALL(memset, cudaMemset(s.b, 0, BYTES))                                                                            \
    CALL(memset_async, cudaMemsetAsync(s.b, 0, BYTES, s.other))                                                        \
    CALL(memset_legacy, cudaMemsetAsync(s.b, 0, BYTES, cudaStreamLegacy))                                              \
    CALL(memset_per_thread, cudaMemsetAsync(s.b, 0, BYTES, cudaStreamPerThread))                                       \
    CALL(malloc_host, cudaMallocHost(&s.p, BYTES))                                                                     \
    CALL(host_alloc, cudaHostAlloc(&s.p, BYTES, cudaHostAllocMapped))                                                  \
    CALL(free_host, cudaFreeHost(s.host))                                                                              \
    CALL(host_register, cudaHostRegister(s.page, BYTES, cudaHostRegisterDefault))                                      \
    CALL(device_attribute, cudaDeviceGetAttribute(&(int){0}, cudaDevAttrWarpSize, 0))                                  \
    CALL(get_device, cudaGetDevice(&(int){0}))                                                                         \
    CALL(set_device, cudaSetDevice(0))

CALLS(PROBE_CALL)
static const struct probe_call calls[] = {CALLS(PROBE_ROW)};

struct answer {
    int (*fn)(void);
    int result, last;
};

static int call_here(void *arg)
{
    struct answer *a = arg;

    (void)cudaGetLastError();
    a->result = a->fn();
    a->last = (int)cudaGetLastError();
    return 0;
}

/* New things for each call, so that none finds what an earlier one has left; given up afterwards, not back. */
static void things_new(const char *name)
{
    NEED(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&s.other, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&s.made_stream, cudaStreamNonBlocking));
    NEED(cudaEventCreateWithFlags(&s.event, cudaEventDisableTiming));
    NEED(cudaEventCreateWithFlags(&s.idle, cudaEventDisableTiming));
    NEED(cudaEventCreateWithFlags(&s.made_event, cudaEventDisableTiming));
    NEED(cuEventCreate(&s.context_event, CU_EVENT_DISABLE_TIMING));
    NEED(cudaMalloc(&s.a, BYTES));
    NEED(cudaMalloc(&s.b, BYTES));
    NEED(cudaMallocHost(&s.host, BYTES));
    s.pageable = calloc(1, BYTES);
    s.page = aligned_alloc(4096, BYTES);
    NEED(s.pageable && s.page ? 0 : 2);
    NEED(cudaEventRecord(s.event, s.other));
    NEED(cudaDeviceSynchronize());
}

static void run(const char *name, int arg)
{
    const enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)(arg % 10);
    const bool elsewhere = arg >= 10;

    s.context = probe_primary(name);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        struct answer a = {calls[i].fn, 0, 0};
        cudaGraph_t graph = NULL;
        int ended, ignored;

        things_new(name);
        NEED(cudaStreamBeginCapture(s.stream, mode));
        NEED(cudaMemsetAsync(s.a, 1, BYTES, s.stream));
        ask(name, calls[i].name);
        if (elsewhere)
            (void)call_waits(name, s.context, call_here, &a, NULL, &ignored);
        else
            (void)call_here(&a);
        ended = (int)cudaStreamEndCapture(s.stream, &graph);
        (void)cudaGetLastError();
        fact(name, calls[i].name, "%d last %d end %d%s", a.result, a.last, ended,
             !ended == !graph ? " inconsistent" : "");
        NEED(cudaDeviceSynchronize());
    }
}

const struct probe_case capture_cases[] = {
    {"capture.global", run, cudaStreamCaptureModeGlobal},
    {"capture.thread_local", run, cudaStreamCaptureModeThreadLocal},
    {"capture.relaxed", run, cudaStreamCaptureModeRelaxed},
    {"capture.global_elsewhere", run, 10 + cudaStreamCaptureModeGlobal},
    {"capture.thread_local_elsewhere", run, 10 + cudaStreamCaptureModeThreadLocal},
    {"capture.relaxed_elsewhere", run, 10 + cudaStreamCaptureModeRelaxed},
    {NULL, NULL, 0},
};
