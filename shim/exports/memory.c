/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - see memory.h. No locks.
 */
#include "exports/memory.h"

#include "base/process.h"
#include "context/capture_gate.h"
#include "context/registry.h"
#include "context/vmm_kept.h"
#include "pool.h"
#include "real/real.h"

/* So often is a query made at most: other threads may release memory all the time. */
#define QUERIES_MAX 8

void memory_add_idle(size_t *free, const size_t *total)
{
    uint64_t used;
    const uint64_t idle = serve_idle_bytes(&used), all = total ? *total : SIZE_MAX, most = all > used ? all - used : 0;

    /* Memory on its way back may have arrived in part, and is in the driver's figure then. */
    if (free && *free < most)
        *free = *free + idle > most ? most : *free + idle;
}

bool memory_has_context(void)
{
    const struct real_driver *driver = real_driver_get();
    CUresult result;
    CUdevice device;

    if (!driver)
        return true;
    result = driver->cuCtxGetDevice(&device);
    /* Another error is no reason to believe that there is none: the program has its block. */
    return result != CUDA_ERROR_INVALID_CONTEXT && result != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

enum serve_verdict memory_free_async(uint64_t addr, CUstream stream, bool to_driver)
{
    const bool ours = context_pool_at(addr) && !process_is_passive();

    if (ours && capture_active_on(stream))
        return SERVE_INVALID;
    if (ours && to_driver && (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) && !memory_has_context())
        return SERVE_FORWARD;
    return serve_free_later(addr, stream);
}

void memory_query_begin(struct memory_query *query)
{
    serve_collect();
    vmm_kept_wait();
    query->arrivals = serve_arrivals();
}

bool memory_query_again(struct memory_query *query)
{
    serve_collect();
    vmm_kept_wait(); /* then what has gone back meanwhile counts as an arrival */
    return query->arrivals != serve_arrivals() && ++query->tries < QUERIES_MAX;
}
