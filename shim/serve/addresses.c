/* SPDX-License-Identifier: Apache-2.0 */
/*
 * addresses.c - what cupool says of an address that the program, MPI or another library asks about or exports. See
 * serve.h.
 *
 * Locking: none.
 */
#include "base/log.h"
#include "base/process.h"
#include "context/backend.h"
#include "context/registry.h"
#include "context/strict.h"
#include "pool.h"
#include "real/caller.h"
#include "report/guard.h"
#include "serve/pinned_requests.h"
#include "serve/serve.h"
#include "trace/trace.h"

bool serve_watches(const void *caller)
{
    return !process_is_passive() && !caller_is_outside(caller_of(caller));
}

bool serve_ipc_allowed(uint64_t addr)
{
    uint64_t base, segment;
    struct pool *pool;
    bool allowed;
    size_t size;

    pool = process_is_passive() ? NULL : pool_of(addr);
    if (!pool)
        return true;
    /* A caller that passes the start of a driver allocation has asked the driver for it, and computes offsets from
     * there. */
    allowed = pool_segment_find(addr, &segment, &size) == 0 &&
              (addr == segment || (pool_block_find(addr, &base, &size, &segment) == 0 && base == segment));
    trace_event("ipc", "\"d\":%d,\"p\":\"0x%llx\",\"ok\":%d", context_device(context_of(pool)),
                (unsigned long long)addr, allowed);
    if (!allowed) {
        pool_pack_never(pool); /* so that its later segments are driver allocations of their own */
        log_write(
            LOG_WARN,
            "no IPC handle for %#llx: it shares a driver allocation with other blocks, and the importer would get "
            "the wrong bytes (CUPOOL_ENABLE=0 gives every block its own)",
            (unsigned long long)addr);
    }
    return allowed;
}

void serve_ipc_refused(uint64_t addr)
{
    struct pool *pool = process_is_passive() ? NULL : pool_of(addr);

    if (pool && pool_kind_get(pool) != BACKEND_CUDA)
        log_once(LOG_WARN, "no IPC handle for %#llx: memory of CUPOOL_BACKEND=%s has none", (unsigned long long)addr,
                 backend_name(pool_kind_get(pool)));
}

void serve_context(uint64_t addr, CUcontext *ret_handle)
{
    struct pool *pool = process_is_passive() ? NULL : pool_of(addr);

    if (pool)
        *ret_handle = context_handle(context_of(pool));
}

void serve_ipc_exported(uint64_t addr, const void *caller)
{
    struct pool *pool;

    if (process_is_passive())
        return;
    pool = pool_of(addr);
    /* UCX and MPI tell the exporter when they have finished with a buffer, so it can be reused after its free; other
     * callers do not. */
    if (caller_of(caller) == CALLER_PROGRAM && pool) {
        pool_withdraw(addr);
        pool_pack_never(pool);
    }
    if (caller_of(caller) != CALLER_INSIDE)
        policy_strict_memory(addr, "memory exported to other processes");
}

bool serve_range(uint64_t addr, const void *caller, uint64_t *ret_base, size_t *ret_size)
{
    uint64_t segment;

    if (!serve_watches(caller))
        return false;
    if (!pool_of(addr))
        return serve_host_range(addr, ret_base, ret_size);
    if (pool_block_find(addr, ret_base, ret_size, &segment))
        *ret_size = 0;
    else if (guard_on())
        guard_block_size(*ret_base, ret_size);
    if (*ret_size && addr - *ret_base >= *ret_size)
        *ret_size = 0;
    return true;
}

bool serve_is_freed(uint64_t addr, const void *caller)
{
    uint64_t base;
    size_t size;

    return !pool_live_size(addr) && serve_range(addr, caller, &base, &size) && !size;
}

void serve_rdma_prepared(uint64_t addr, const void *caller)
{
    if (!process_is_passive() && caller_of(caller) != CALLER_INSIDE)
        policy_strict_memory(addr, "a device other than the GPU gets access to its memory");
}

void serve_pointer_asked(uint64_t addr, int attribute, const void *caller)
{
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
        serve_rdma_prepared(addr, caller);
    if (!process_is_passive() && caller_of(caller) == CALLER_TRANSFER)
        policy_strict_memory(addr, "MPI or UCX moves its memory");
}
