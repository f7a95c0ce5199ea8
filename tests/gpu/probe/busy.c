/* SPDX-License-Identifier: Apache-2.0 */
/*
 * busy.c - which calls wait for work in flight, and which are stalled while another thread is inside a cudaFree.
 *
 * Each call gives one fact. busy.hostfn, busy.waitvalue: a non-blocking stream does not get on while the call is made.
 * busy.stalled: a stream does not get on, another thread frees something, and then the call is made. Everything that
 * the call needs was made before.
 */

#include "probe.h"

#define BYTES (64 * KIB)

static struct {
    CUcontext context, second;
    cudaStream_t other, fresh;
    cudaEvent_t done, event;
    CUevent context_event;
    void *small, *large, *used, *unrelated, *async, *managed, *pinned, *pageable, *page, *registered, *p;
    CUdeviceptr reserved, mapped;
    CUmemGenericAllocationHandle handle, free_handle;
    CUdeviceptr second_memory;
    CUstream second_stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
} s;

static const CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};

/* Work of the second context, while the thread's current one is that. */
static int second_set(void)
{
    CUresult r = cuCtxSetCurrent(s.second);

    if (!r)
        r = cuMemsetD8Async(s.second_memory, 0, BYTES, s.second_stream);
    return (int)r;
}

#define CALLS(CALL)                                                                                                    \
    CALL(malloc_small, cudaMalloc(&s.p, 1000))                                                                         \
    CALL(malloc_large, cudaMalloc(&s.p, 8 * MIB))                                                                      \
    CALL(malloc_too_much, cudaMalloc(&s.p, (size_t)1 << 60))                                                           \
    CALL(malloc_pitch, cudaMallocPitch(&s.p, &(size_t){0}, 1000, 10))                                                  \
    CALL(malloc_managed, cudaMallocManaged(&s.p, BYTES, cudaMemAttachGlobal))                                          \
    CALL(malloc_async, cudaMallocAsync(&s.p, 1000, s.other))                                                           \
    CALL(malloc_host, cudaMallocHost(&s.p, BYTES))                                                                     \
    CALL(free_small, cudaFree(s.small))                                                                                \
    CALL(free_large, cudaFree(s.large))                                                                                \
    CALL(free_null, cudaFree(NULL))                                                                                    \
    CALL(free_wild, cudaFree((void *)0x1234))                                                                          \
    CALL(free_managed, cudaFree(s.managed))                                                                            \
    CALL(free_async, cudaFreeAsync(s.small, s.other))                                                                  \
    CALL(free_async_own, cudaFreeAsync(s.async, s.other))                                                              \
    CALL(free_of_async, cudaFree(s.async))                                                                             \
    CALL(free_host, cudaFreeHost(s.pinned))                                                                            \
    CALL(host_register, cudaHostRegister(s.page, BYTES, cudaHostRegisterDefault))                                      \
    CALL(host_unregister, cudaHostUnregister(s.registered))                                                            \
    CALL(mem_get_info, cudaMemGetInfo(&(size_t){0}, &(size_t){0}))                                                     \
    CALL(address_range, range_code(s.used))                                                                            \
    CALL(pointer_attribute, cuPointerGetAttribute(&(int){0}, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, addr_of(s.used)))       \
    CALL(sync_memops, cuPointerSetAttribute(&(int){1}, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addr_of(s.used)))             \
    CALL(ipc_handle, cudaIpcGetMemHandle(&(cudaIpcMemHandle_t){{0}}, s.unrelated))                                     \
    CALL(memset_, cudaMemset(s.used, 0, BYTES))                                                                        \
    CALL(memset_async, cudaMemsetAsync(s.used, 0, BYTES, s.other))                                                     \
    CALL(memset_legacy, cudaMemsetAsync(s.used, 0, BYTES, cudaStreamLegacy))                                           \
    CALL(copy_to_device, cudaMemcpy(s.used, s.pageable, BYTES, cudaMemcpyHostToDevice))                                \
    CALL(copy_to_host, cudaMemcpy(s.pageable, s.used, BYTES, cudaMemcpyDeviceToHost))                                  \
    CALL(copy_device, cudaMemcpy(s.used, (char *)s.used + BYTES / 2, BYTES / 2, cudaMemcpyDeviceToDevice))             \
    CALL(copy_async, cudaMemcpyAsync(s.used, s.pinned, BYTES, cudaMemcpyHostToDevice, s.other))                        \
    CALL(stream_create, cudaStreamCreateWithFlags(&s.fresh, cudaStreamNonBlocking))                                    \
    CALL(stream_destroy, cudaStreamDestroy(s.fresh))                                                                   \
    CALL(stream_query, cudaStreamQuery(s.other))                                                                       \
    CALL(stream_synchronize, cudaStreamSynchronize(s.other))                                                           \
    CALL(event_create, cudaEventCreateWithFlags(&s.event, cudaEventDisableTiming))                                     \
    CALL(event_destroy, cudaEventDestroy(s.event))                                                                     \
    CALL(event_query, cudaEventQuery(s.done))                                                                          \
    CALL(event_record, cudaEventRecord(s.event, s.other))                                                              \
    CALL(context_record, cuCtxRecordEvent(s.context, s.context_event))                                                 \
    CALL(context_wait, cuCtxWaitEvent(s.context, s.done))                                                              \
    CALL(memset_second, second_set())                                                                                  \
    CALL(get_current, cuCtxGetCurrent(&(CUcontext){0}))                                                                \
    CALL(get_device, cudaGetDevice(&(int){0}))                                                                         \
    CALL(vmm_create, cuMemCreate(&(CUmemGenericAllocationHandle){0}, 2 * MIB, &physical, 0))                           \
    CALL(vmm_map, cuMemMap(s.reserved, 2 * MIB, 0, s.free_handle, 0))                                                  \
    CALL(vmm_unmap, cuMemUnmap(s.mapped, 2 * MIB))                                                                     \
    CALL(vmm_release, cuMemRelease(s.free_handle))                                                                     \
    CALL(graph_instantiate, cudaGraphInstantiate(&(cudaGraphExec_t){0}, s.graph, 0))                                   \
    CALL(graph_launch, cudaGraphLaunch(s.exec, s.other))                                                               \
    CALL(graph_exec_destroy, cudaGraphExecDestroy(s.exec))

CALLS(PROBE_CALL)
static const struct probe_call calls[] = {CALLS(PROBE_ROW)};

static void things_new(const char *name)
{
    const CUmemAccessDesc access = {.location = physical.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    NEED(cudaStreamCreateWithFlags(&s.other, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&s.fresh, cudaStreamNonBlocking));
    NEED(cudaEventCreateWithFlags(&s.done, cudaEventDisableTiming));
    NEED(cudaEventCreateWithFlags(&s.event, cudaEventDisableTiming));
    NEED(cuEventCreate(&s.context_event, CU_EVENT_DISABLE_TIMING));
    NEED(cudaMalloc(&s.small, 1000));
    NEED(cudaMalloc(&s.large, 4 * MIB));
    NEED(cudaMalloc(&s.used, BYTES));
    NEED(cudaMalloc(&s.unrelated, 4 * MIB));
    NEED(cudaMallocAsync(&s.async, 1000, s.other));
    NEED(cudaMallocManaged(&s.managed, BYTES, cudaMemAttachGlobal));
    NEED(cudaMallocHost(&s.pinned, BYTES));
    s.pageable = calloc(1, BYTES);
    s.page = aligned_alloc(4096, BYTES);
    s.registered = aligned_alloc(4096, BYTES);
    NEED(s.pageable && s.page && s.registered ? 0 : 2);
    NEED(cudaHostRegister(s.registered, BYTES, cudaHostRegisterDefault));
    NEED(cuMemAddressReserve(&s.reserved, 2 * MIB, 0, 0, 0));
    NEED(cuMemAddressReserve(&s.mapped, 2 * MIB, 0, 0, 0));
    NEED(cuMemCreate(&s.handle, 2 * MIB, &physical, 0));
    NEED(cuMemCreate(&s.free_handle, 2 * MIB, &physical, 0));
    NEED(cuMemMap(s.mapped, 2 * MIB, 0, s.handle, 0));
    NEED(cuMemSetAccess(s.mapped, 2 * MIB, &access, 1));
    NEED(cudaStreamBeginCapture(s.other, cudaStreamCaptureModeRelaxed));
    NEED(cudaMemsetAsync(s.used, 1, BYTES, s.other));
    NEED(cudaStreamEndCapture(s.other, &s.graph));
    NEED(cudaGraphInstantiate(&s.exec, s.graph, 0));
    NEED(cudaGraphLaunch(s.exec, s.other));
    NEED(cudaEventRecord(s.done, s.other));
    NEED(cudaDeviceSynchronize());
}

static int call_now(void *arg)
{
    const size_t i = *(const size_t *)arg;

    return calls[i].fn();
}

static void *freeing_main(void *context)
{
    (void)cuCtxSetCurrent(context);
    (void)cudaFree(s.unrelated);
    return NULL;
}

enum { STALLED = 2 };

static void run(const char *name, int arg)
{
    s.context = probe_primary(name);
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        const bool stalled = arg == STALLED;
        struct block b = block_new(name, stalled ? BLOCK_VALUE : (enum block_kind)arg);
        cudaStream_t blocked;
        pthread_t freeing;
        int result = 0;
        bool waits;

        things_new(name);
        NEED(cudaStreamCreateWithFlags(&blocked, cudaStreamNonBlocking));
        if (calls[i].fn == call_memset_second) {
            NEED(cuCtxCreate(&s.second, NULL, 0, 0));
            NEED(cuStreamCreate(&s.second_stream, CU_STREAM_NON_BLOCKING));
            NEED(cuMemAlloc(&s.second_memory, BYTES));
            NEED(cuMemsetD8Async(s.second_memory, 0, BYTES, s.second_stream));
            NEED(cuCtxSynchronize());
            NEED(cuCtxSetCurrent(s.context));
        }
        NEED(block_start(&b, blocked));
        nap_ms(SETTLE_MS / 4);
        ask(name, calls[i].name);
        if (stalled) {
            NEED(pthread_create(&freeing, NULL, freeing_main, s.context));
            nap_ms(SETTLE_MS); /* it is inside by then */
        }
        waits = call_waits(name, s.context, call_now, &i, &b, &result);
        if (stalled)
            NEED(pthread_join(freeing, NULL));
        fact(name, calls[i].name, "%s, %d", waits ? "waits" : "does not wait", result);
        NEED(cudaDeviceSynchronize());
        (void)cudaGetLastError();
    }
}

const struct probe_case busy_cases[] = {
    {"busy.hostfn", run, BLOCK_HOSTFN},
    {"busy.waitvalue", run, BLOCK_VALUE},
    {"busy.stalled", run, STALLED},
    {NULL, NULL, 0},
};
