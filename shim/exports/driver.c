/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the exported functions of the driver API for memory and for time, and those of all RETRY rows of
 * hooks/driver.def. serve/ makes the decisions; this file translates them into the driver's errors.
 *
 * Not here: watch.c, waits.c, capture_calls.c, context_calls.c, pointers.c, profiler.c, vmm.c and get_proc_address.c
 * have the others of the driver.
 *
 * Locking: none.
 */
#include "context/capture_gate.h"
#include "context/device_free.h"
#include "context/driver_free.h"
#include "context/limits.h"
#include "context/wait_context.h"
#include "exports/export.h"
#include "exports/hazards.h"
#include "exports/memory.h"
#include "exports/retry.h"
#include "nccl/direct.h"
#include "real/real.h"
#include "report/oom.h"
#include "report/unpooled.h"
#include "serve/serve.h"

static CUresult alloc_by_driver(CUdeviceptr *ptr, size_t size)
{
    struct retry retry = retry_begin();
    CUresult result;
    uint64_t addr;
    bool again;

    retry.wanted = retry.enough = size;
    do {
        result = real_next(cuMemAlloc_v2)(ptr, size);
        again = retry_by_own(&retry, result);
        if (!again && ptr && result == CUDA_ERROR_OUT_OF_MEMORY && serve_alloc_refused(size, &addr)) {
            *ptr = addr;
            return CUDA_SUCCESS;
        }
    } while (again || retry_by_others(&retry, result));
    if (!result)
        device_free_taken(size);
    return result;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
    CUresult result;
    uint64_t addr;

    switch (ptr && process_hooks_driver() ? serve_alloc(size, CALLER, false, &addr) : SERVE_FORWARD) {
    case SERVE_DONE:
        *ptr = addr;
        return CUDA_SUCCESS;
    case SERVE_FORWARD:
        return alloc_by_driver(ptr, size);
    case SERVE_REFUSED:
        oom_report(size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        result = alloc_by_driver(ptr, size);
        if (!result)
            serve_bypassed(*ptr, size, CALLER);
        else if (serve_bypass_failed(CALLER) && result == CUDA_ERROR_OUT_OF_MEMORY)
            oom_report(size);
        return result;
    }
}

/* Arrays and memory with a pitch are of the current device; streams, pools, graphs and libraries need not be. */
static inline struct retry begin(enum unpooled kind, size_t wanted)
{
    struct retry retry = kind == UNPOOLED_ARRAY || kind == UNPOOLED_PITCH ? retry_begin() : retry_begin_elsewhere();

    retry.wanted = wanted;
    return retry;
}

/* The bytes without those between the lines, which the driver chooses. */
static inline size_t lines(size_t width, size_t height)
{
    size_t size;

    return __builtin_mul_overflow(width, height, &size) ? SIZE_MAX : size;
}

#define RUNTIME(symbol, parameters)
#define DRIVER(symbol, parameters)
#define RETRY(symbol, parameters, arguments) RETRY_MEMORY(symbol, parameters, arguments, KINDS, 0, 0)
#define RETRY_MEMORY(symbol, parameters, arguments, kind, size, least)                                                 \
    EXPORT CUresult symbol parameters                                                                                  \
    {                                                                                                                  \
        struct retry retry = begin(UNPOOLED_##kind, least);                                                            \
        CUresult result;                                                                                               \
                                                                                                                       \
        do                                                                                                             \
            result = real_next(symbol) arguments; /* NOLINT(bugprone-macro-parentheses): a list */                     \
        while (retry_again(&retry, result));                                                                           \
        if (UNPOOLED_##kind != UNPOOLED_KINDS && !result)                                                              \
            device_free_taken(size);                                                                                   \
        if (UNPOOLED_##kind != UNPOOLED_KINDS && !result && serve_watches(CALLER))                                     \
            unpooled_took(UNPOOLED_##kind, size);                                                                      \
        return result;                                                                                                 \
    }
#include "hooks.def"

/* The error of the current context. */
static CUresult context_error(void)
{
    size_t free, total;

    return real_next(cuMemGetInfo_v2)(&free, &total);
}

static CUresult free_failed(CUdeviceptr ptr, enum serve_verdict verdict)
{
    struct serve_failed failed;
    CUresult result;

    switch (verdict) {
    case SERVE_INVALID:
        return CUDA_ERROR_INVALID_VALUE;
    case SERVE_NOWHERE:
        return CUDA_ERROR_INVALID_HANDLE;
    case SERVE_OVER:
        return context_error();
    default:
        serve_failed_begin(ptr, &failed);
        result = context_error();
        serve_failed_end(&failed);
        if (!result && verdict == SERVE_UNFREED) /* an error that did not last */
            (void)serve_free(ptr);
        return result;
    }
}

/* A free of memory that is not pooled. */
static CUresult free_by_driver(CUdeviceptr ptr, const void *caller)
{
    struct context *const context = driver_free_begin(ptr);
    CUresult result;

    if (!direct_free(ptr, /* waits: */ true, &result)) {
        hazard_free(ptr, caller);
        result = real_next(cuMemFree_v2)(ptr);
        direct_freed(ptr, result == CUDA_SUCCESS);
    }
    driver_free_end(context);
    return result;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr)
{
    const enum serve_verdict verdict = serve_free(ptr);

    if (verdict == SERVE_DONE)
        return CUDA_SUCCESS;
    return verdict == SERVE_FORWARD ? free_by_driver(ptr, CALLER) : free_failed(ptr, verdict);
}

/* While its stream captures, such a call fails; the driver returns the error. */
static bool use_free_async(CUdeviceptr ptr, CUstream stream, CUresult *ret_result)
{
    return !capture_active_on(stream) && direct_free(ptr, /* waits: */ false, ret_result);
}

/* on: the handle that stream stands for in this form of the function, symbol. */
static CUresult free_async(enum real_symbol symbol, CUdeviceptr ptr, CUstream stream, CUstream on)
{
    const enum serve_verdict verdict = memory_free_async(ptr, on, /* to_driver: */ true);
    CUresult result;

    if (verdict == SERVE_DONE)
        return CUDA_SUCCESS;
    if (verdict != SERVE_FORWARD)
        return free_failed(ptr, verdict);
    if (use_free_async(ptr, on, &result))
        return result;
    result = ((__typeof__(&cuMemFreeAsync))real_find(symbol))(ptr, stream);
    direct_freed(ptr, result == CUDA_SUCCESS);
    return result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
    return free_async(REAL_cuMemFreeAsync, ptr, stream, or_legacy(stream));
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
    return free_async(REAL_cuMemFreeAsync_ptsz, ptr, stream, or_per_thread(stream));
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
    struct memory_query query = {0};
    CUresult result;

    do {
        memory_query_begin(&query);
        result = real_next(cuMemGetInfo_v2)(free, total);
    } while (memory_query_again(&query));
    if (!result)
        memory_add_idle(free, total);
    return result;
}

/* Natively all work launched before a free has ended once the free returns, so its elapsed time is known. True, once:
 * the frees have been waited for, so ask again. */
static bool elapsed_again(bool *waited, CUresult result, const void *caller)
{
    if (*waited || result != CUDA_ERROR_NOT_READY || !serve_watches(caller))
        return false;
    context_wait_frees(CONTEXT_ALL, /* others: */ false);
    *waited = true;
    return true;
}

static CUresult elapsed(enum real_symbol symbol, float *ms, CUevent start, CUevent end, const void *caller)
{
    bool waited = false;
    CUresult result;

    do
        result = ((__typeof__(&cuEventElapsedTime))real_find(symbol))(ms, start, end);
    while (elapsed_again(&waited, result, caller));
    return result;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
    return elapsed(REAL_cuEventElapsedTime, ms, start, end, CALLER);
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end)
{
    return elapsed(REAL_cuEventElapsedTime_v2, ms, start, end, CALLER);
}
