/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - see memory.h. No locks.
 */
#include "exports/memory.h"

#include "base/process.h"
#include "context/capture.h"
#include "pool.h"

void memory_add_idle(size_t *free, const size_t *total)
{
    const uint64_t idle = core_idle_bytes();

    if (free)
        *free = total && *free + idle > *total ? *total : *free + idle;
}

enum core_verdict memory_free_async(uint64_t addr, CUstream stream)
{
    if (pool_of(addr) && !process_is_passive() && capture_active_on(stream))
        return CORE_INVALID;
    return core_free_later(addr, stream);
}
