/* SPDX-License-Identifier: Apache-2.0 */
/*
 * runtime.c - the exported functions of the runtime API, one for each row of hooks/runtime.def; those that begin or end
 * a capture are in capture_calls.c, the RUNTIME_WAITS rows in waits.c, cudaMallocHost and cudaHostAlloc in
 * pinned_calls.c. serve/ makes the decisions; this file translates them into the runtime's errors.
 *
 * The real functions make the errors, so that the code and the last error are theirs: freeing the address 1 fails
 * harmlessly, and asking for free memory returns an error only if the context has one.
 *
 * Locking: none.
 */
#include "context/capture_gate.h"
#include "context/context_end.h"
#include "context/driver_free.h"
#include "context/lifetime.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "exports/memory.h"
#include "pool.h"
#include "real/real.h"
#include "report/oom.h"
#include "serve/ipc_handles.h"
#include "serve/serve.h"

/* More bytes than any device has. */
#define TOO_MUCH ((size_t)1 << 60)

EXPORT cudaError_t cudaMalloc(void **ptr, size_t size)
{
    cudaError_t error;
    uint64_t addr;

    switch (ptr ? serve_alloc(size, CALLER, /* by_runtime: */ true, &addr) : SERVE_FORWARD) {
    case SERVE_DONE:
        *ptr = (void *)(uintptr_t)addr;
        return cudaSuccess;
    case SERVE_FORWARD:
        serve_call_from(CALLER);
        error = real_runtime(cudaMalloc, CALLER)(ptr, size);
        serve_call_from(NULL);
        return error;
    case SERVE_REFUSED:
        oom_report(size);
        return BYPASS(real_runtime(cudaMalloc, CALLER)(ptr, TOO_MUCH));
    default:
        error = BYPASS(real_runtime(cudaMalloc, CALLER)(ptr, size));
        if (!error)
            serve_bypassed((uintptr_t)*ptr, size, CALLER);
        else if (serve_bypass_failed(CALLER) && error == cudaErrorMemoryAllocation)
            oom_report(size);
        return error;
    }
}

/* For a call of the runtime that natively gives a thread without a context one. */
static __attribute__((noinline, cold)) void context_give_now(const void *caller)
{
    if (serve_lacks_context())
        BYPASS(real_runtime(cudaFree, caller)(NULL));
}

/* For a call of the runtime that natively takes a reference to the primary context that is current, as its first one
 * in a context does, but for cudaFreeAsync. */
static __attribute__((noinline, cold)) void context_meet_now(const void *caller)
{
    const struct real_driver *driver = real_driver_get();
    struct context *context = driver ? context_unmet_current(driver) : NULL;

    if (context && !BYPASS(real_runtime(cudaFree, caller)(NULL)))
        context_met_runtime(context);
}

static inline void context_give(const void *caller)
{
    if (!serve_had_context)
        context_give_now(caller);
}

static inline void context_meet(const void *caller)
{
    context_give(caller);
    if (atomic_load_explicit(&context_unmet, memory_order_relaxed))
        context_meet_now(caller);
}

static cudaError_t free_failed(const void *ptr, enum serve_verdict verdict, const void *caller)
{
    struct serve_failed failed;
    cudaError_t error;
    size_t free, total;

    if (verdict == SERVE_INVALID)
        return BYPASS(real_runtime(cudaFree, caller)((void *)NOWHERE));
    serve_failed_begin((uintptr_t)ptr, &failed);
    error = BYPASS(real_runtime(cudaMemGetInfo, caller)(&free, &total));
    serve_failed_end(&failed);
    if (!error && verdict == SERVE_UNFREED) /* as in driver.c */
        (void)serve_free((uintptr_t)ptr);
    return error;
}

/* A free in a context that has ended: natively the runtime begins it anew, as it does at each of its calls. */
static __attribute__((noinline, cold)) cudaError_t free_anew(void *ptr, const void *caller)
{
    cudaError_t error = BYPASS(real_runtime(cudaFree, caller)(NULL));
    enum serve_verdict verdict;

    if (error)
        return error;
    verdict = serve_free((uintptr_t)ptr);
    return verdict == SERVE_DONE ? cudaSuccess : free_failed(ptr, verdict, caller);
}

/* A free of memory that is not pooled. With CUPOOL_HOOK=runtime the driver's free passes no hook. */
static cudaError_t free_by_runtime(void *ptr, const void *caller)
{
    struct context *context;
    cudaError_t error;

    hazard_free((CUdeviceptr)ptr, caller);
    context = process_hooks_driver() ? NULL : driver_free_begin((CUdeviceptr)ptr);
    error = real_runtime(cudaFree, caller)(ptr);
    driver_free_end(context);
    return error;
}

EXPORT cudaError_t cudaFree(void *ptr)
{
    const enum serve_verdict verdict = ptr ? serve_free((uintptr_t)ptr) : SERVE_FORWARD;

    if (verdict == SERVE_DONE) {
        context_meet(CALLER);
        return cudaSuccess;
    }
    if (verdict == SERVE_OVER)
        return free_anew(ptr, CALLER);
    if (verdict != SERVE_FORWARD)
        return free_failed(ptr, verdict, CALLER);
    return free_by_runtime(ptr, CALLER);
}

/* on: the handle that stream stands for in this form of the function, symbol. */
static cudaError_t free_async(enum real_symbol symbol, void *ptr, cudaStream_t stream, CUstream on, const void *caller)
{
    const enum serve_verdict verdict =
        ptr ? memory_free_async((uintptr_t)ptr, on, /* to_driver: */ process_hooks_driver()) : SERVE_FORWARD;

    switch (verdict) {
    case SERVE_DONE:
        if (on == CU_STREAM_LEGACY || on == CU_STREAM_PER_THREAD) /* another stream has a context of its own */
            context_give(caller);
        return cudaSuccess;
    case SERVE_INVALID:
    case SERVE_NOWHERE: /* not by cudaFree, which would invalidate a capture */
        return BYPASS(((__typeof__(&cudaFreeAsync))real_find_for(symbol, caller))((void *)NOWHERE, stream));
    case SERVE_FORWARD:
        return ((__typeof__(&cudaFreeAsync))real_find_for(symbol, caller))(ptr, stream);
    default:
        return free_failed(ptr, verdict, caller);
    }
}

EXPORT cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    return free_async(REAL_cudaFreeAsync, ptr, stream, or_legacy(stream), CALLER);
}

EXPORT cudaError_t cudaFreeAsync_ptsz(void *ptr, cudaStream_t stream)
{
    return free_async(REAL_cudaFreeAsync_ptsz, ptr, stream, or_per_thread(stream), CALLER);
}

EXPORT cudaError_t cudaMemGetInfo(size_t *free, size_t *total)
{
    struct memory_query query = {0};
    cudaError_t error;

    do {
        memory_query_begin(&query);
        error = BYPASS(real_runtime(cudaMemGetInfo, CALLER)(free, total));
    } while (memory_query_again(&query));
    if (!error)
        memory_add_idle(free, total);
    return error;
}

EXPORT cudaError_t cudaDeviceReset(void)
{
    /* Only the runtime knows which device. Where the driver's reset below is hooked too, that hook does the work. */
    const bool alone = !process_is_passive() && !process_hooks_driver();
    struct context_sweep sweep;
    cudaError_t error;

    if (alone)
        context_sweep_begin(&sweep);
    error = real_runtime(cudaDeviceReset, CALLER)();
    if (alone)
        context_sweep_end(&sweep);
    return error;
}

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    serve_pointer_asked((uintptr_t)ptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CALLER);
    return real_runtime(cudaPointerGetAttributes, CALLER)(attributes, ptr);
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *ptr)
{
    enum serve_ipc is = SERVE_IPC_DRIVER;
    void *named_ptr;
    cudaError_t error;

    /* The driver makes no handle for a thread without a context. */
    if (handle && pool_of((uintptr_t)ptr))
        context_meet(CALLER);
    if (handle)
        is = serve_ipc_get((uintptr_t)ptr, CALLER, handle);
    named_ptr = is == SERVE_IPC_DRIVER ? ptr : (void *)NOWHERE;
    if (is == SERVE_IPC_TICKET)
        return cudaSuccess;
    error = BYPASS(real_runtime(cudaIpcGetMemHandle, CALLER)(handle, named_ptr));
    if (!error)
        serve_ipc_exported((uintptr_t)ptr, CALLER);
    else if (is == SERVE_IPC_DRIVER)
        serve_ipc_refused((uintptr_t)ptr);
    return error;
}
