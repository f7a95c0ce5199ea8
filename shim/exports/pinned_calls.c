/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exports/pinned_calls.c - the exported functions for pinned host memory. serve/ makes the decisions; this file
 * translates them into the driver's results.
 *
 * The runtime's functions pass their calls on to those of the driver, which serve them; they only say whose call it is.
 * With CUPOOL_HOOK=runtime nothing is pooled.
 *
 * Locking: none.
 */
#include "context/driver_free.h"
#include "context/host_memory.h"
#include "context/strict.h"
#include "exports/export.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/oom.h"
#include "serve/pinned_requests.h"
#include "serve/serve.h"

EXPORT cudaError_t cudaMallocHost(void **ptr, size_t size)
{
    cudaError_t error;

    serve_call_from(CALLER);
    error = real_runtime(cudaMallocHost, CALLER)(ptr, size);
    serve_call_from(NULL);
    return error;
}

EXPORT cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    cudaError_t error;

    serve_call_from(CALLER);
    error = real_runtime(cudaHostAlloc, CALLER)(ptr, size, flags);
    serve_call_from(NULL);
    return error;
}

/* The driver has answered a request for size bytes. Returns its result. */
static CUresult passed(CUresult result, void *const *ptr, size_t size)
{
    if (!result && ptr)
        serve_host_passed((uintptr_t)*ptr, size);
    else if (result == CUDA_ERROR_OUT_OF_MEMORY)
        oom_report_host(size);
    return result;
}

EXPORT CUresult cuMemAllocHost_v2(void **ptr, size_t size)
{
    uint64_t addr;

    if (ptr && process_hooks_driver() && serve_host_alloc(HOST_MEMORY_PLAIN, size, CALLER, &addr) == SERVE_DONE) {
        *ptr = (void *)(uintptr_t)addr;
        return CUDA_SUCCESS;
    }
    return passed(real_next(cuMemAllocHost_v2)(ptr, size), ptr, size);
}

/* Host memory that the device writes to is read without a call that could be seen. */
static void mapped(unsigned int flags, const void *caller)
{
    if (flags & CU_MEMHOSTALLOC_DEVICEMAP && serve_watches(caller) && caller_of(caller) == CALLER_PROGRAM)
        policy_strict(POLICY_ALL, "mapped host memory");
}

EXPORT CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned int flags)
{
    uint64_t addr;

    mapped(flags, CALLER);
    if (ptr && flags < HOST_MEMORY_PLAIN && process_hooks_driver() &&
        serve_host_alloc(flags, size, CALLER, &addr) == SERVE_DONE) {
        *ptr = (void *)(uintptr_t)addr;
        return CUDA_SUCCESS;
    }
    return passed(real_next(cuMemHostAlloc)(ptr, size, flags), ptr, size);
}

/* The error of the current context. */
static CUresult context_error(void)
{
    size_t free = 0, total = 0;

    return real_next(cuMemGetInfo_v2)(&free, &total);
}

/* The error of the memory's context, whichever is current, or of the thread. */
static CUresult free_failed(uint64_t addr)
{
    struct serve_failed failed;
    CUresult result;

    serve_host_failed_begin(addr, &failed);
    result = context_error();
    serve_host_failed_end(&failed);
    return result;
}

/* A free of memory that is not pooled. */
static CUresult free_by_driver(void *ptr)
{
    struct context *const context = driver_free_begin((uintptr_t)ptr);
    const CUresult result = real_next(cuMemFreeHost)(ptr);

    driver_free_end(context);
    return result;
}

EXPORT CUresult cuMemFreeHost(void *ptr)
{

    switch (serve_host_free((uintptr_t)ptr)) {
    case SERVE_DONE:
        return CUDA_SUCCESS;
    case SERVE_FORWARD:
        return free_by_driver(ptr);
    case SERVE_INVALID: /* the error is the driver's: a context that has failed has another one */
        return real_next(cuMemFreeHost)((void *)NOWHERE);
    case SERVE_OVER:
        return context_error();
    default:
        return free_failed((uintptr_t)ptr);
    }
}
