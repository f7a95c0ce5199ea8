/* SPDX-License-Identifier: Apache-2.0 */
/*
 * addresses.c - what cupool says of an address that the program, MPI or another library asks about or exports. See
 * serve.h.
 *
 * Locking: none.
 */
#include "base/process.h"
#include "context/ipc_import.h"
#include "context/ipc_table.h"
#include "context/registry.h"
#include "context/returning.h"
#include "context/strict.h"
#include "pool.h"
#include "real/caller.h"
#include "real/real.h"
#include "report/guard.h"
#include "serve/pinned_requests.h"
#include "serve/serve.h"

bool serve_watches(const void *caller)
{
    return !process_is_passive() && !caller_is_outside(caller_of(caller));
}

void serve_context(uint64_t addr, CUcontext *ret_handle)
{
    struct pool *pool = process_is_passive() ? NULL : context_pool_at(addr);
    CUcontext context;
    uint64_t base;
    size_t size;

    if (pool)
        *ret_handle = context_handle(context_of(pool));
    else if (ipc_import_any() && !process_is_passive() && ipc_import_range(addr, &base, &size, &context))
        *ret_handle = context;
}

bool serve_range(uint64_t addr, const void *caller, uint64_t *ret_base, size_t *ret_size)
{
    CUcontext context;
    uint64_t segment;

    if (!serve_watches(caller))
        return false;
    if (ipc_import_any() && ipc_import_range(addr, ret_base, ret_size, &context))
        return true;
    if (!context_pool_at(addr))
        return serve_host_range(addr, ret_base, ret_size);
    if (pool_block_find(addr, ret_base, ret_size, &segment) || (ipc_table_any() && ipc_table_parked(*ret_base)))
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

    if (pool_is_live(addr) && !(ipc_table_any() && ipc_table_parked(addr)))
        return false;
    return serve_range(addr, caller, &base, &size) ? !size
                                                   : serve_watches(caller) && returning_is(real_driver_get(), addr);
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
