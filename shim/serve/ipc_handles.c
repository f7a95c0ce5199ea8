/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_handles.c - see ipc_handles.h. No locks. */
#include "serve/ipc_handles.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/ipc_message.h"
#include "base/log.h"
#include "base/process.h"
#include "context/backend.h"
#include "context/ipc_import.h"
#include "context/ipc_insert.h"
#include "context/ipc_map.h"
#include "context/ipc_native.h"
#include "context/ipc_server.h"
#include "context/ipc_table.h"
#include "context/nccl_memory.h"
#include "context/registry.h"
#include "context/strict.h"
#include "context/vmm_map.h"
#include "pool.h"
#include "real/caller.h"
#include "report/background_thread.h"
#include "report/guard.h"
#include "serve/serve.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* Where ranks have to lay memory out alike, a block that is held by chance must not change that. */
static bool tickets_are_made(void)
{
    return conf_get()->ipc.number && process_hooks_driver() && !nccl_ranks_agree();
}

/* Libraries that pass memory on (NCCL, MPI, UCX) ask for driver allocations and keep them open, so a ticket would hold
 * memory for ever. */
static bool tickets_for(const void *caller)
{
    return !caller_is_outside(caller_of(caller)) && tickets_are_made();
}

/* Enter the block in the books. -EAGAIN: the segment's last block has left them meanwhile. -EBUSY: the memory is
 * paused, or about to be: the importer would have memory that does not come back. */
static int block_export(struct pool *pool, uint64_t base, size_t size, uint64_t segment, struct ipc_name *ret_block)
{
    const struct context *context = context_of(pool);
    struct ipc_segment as = {.addr = segment, .fd = -1};
    uint64_t start;
    size_t length;
    int rc;

    if (pool_is_suspended(pool)) /* the driver knows of no memory there */
        return -EBUSY;
    if (!ipc_table_has_segment(segment)) {
        if (pool_segment_find(base, &start, &length) || ipc_map_describe(context, start, length, &as))
            return -EIO;
    }
    rc = ipc_table_add(context, base, size, &as, ret_block);
    /* Another thread frees the block at this moment: the next one here is not this one. */
    if (!rc && !pool_is_live(base)) {
        ipc_table_free(base);
        rc = -ENOENT;
    }
    /* In this order: a pause suspends the pool, and looks into the books then. */
    if (!rc && pool_is_suspended(pool)) {
        ipc_table_free(base);
        rc = -EBUSY;
    }
    return rc;
}

/* Make a ticket for a block, by a thread that is not cancelled meanwhile. */
static int block_ticket(struct pool *pool, uint64_t base, size_t size, uint64_t segment, void *ret_handle)
{
    struct ipc_name station, block;
    bool is_new;
    int rc = ipc_server_begin(&station, &is_new);

    if (rc)
        return rc;
    if (is_new)
        background_wake();
    if (!ipc_table_name(base, &block))
        while ((rc = block_export(pool, base, size, segment, &block)) == -EAGAIN)
            ;
    if (!rc)
        ipc_ticket_make(ret_handle, (int)getpid(), &station, &block);
    return rc;
}

/* Make a ticket for the block around addr. A thread of the program that is to be cancelled returns first: it would take
 * the server's lock, or the books', with it. */
static int ticket_make(struct pool *pool, uint64_t addr, void *ret_handle)
{
    uint64_t base, segment;
    size_t size;
    int rc, cancel;

    if (pool_block_find(addr, &base, &size, &segment))
        return -ENOENT;
    if (guard_on())
        guard_block_size(base, &size);
    if (!background_start())
        return -ENOTSUP;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    rc = block_ticket(pool, base, size, segment, ret_handle);
    pthread_setcancelstate(cancel, NULL);
    return rc;
}

/* An error of ticket_make, in words. */
static const char *ticket_reason(int rc)
{
    switch (rc) {
    case -EBUSY:
        return "its device is paused, or the block has been freed";
    case -ENOENT:
        return "no block is there";
    case -ENOMEM:
        return "too many blocks are exported, or there is no host memory";
    case -ENOTSUP:
        return "there is no thread that could answer importers";
    case -EIO:
        return "the driver has refused, or this process has no descriptor left";
    default:
        return strerror(-rc);
    }
}

/* rc: of ticket_make; 0: no ticket was to be made. Once each: UCX may ask for each message. */
static void refuse(struct pool *pool, uint64_t addr, int rc)
{
    pool_pack_never(pool); /* so that its later segments are driver allocations of their own */
    if (rc)
        log_once(LOG_WARN, "no IPC handle for %#llx: %s", (ull)addr, ticket_reason(rc));
    else
        log_once(LOG_WARN,
                 "no IPC handle for %#llx: it shares a driver allocation with other blocks, and the importer would get "
                 "the wrong bytes (CUPOOL_ENABLE=0 gives every block its own)",
                 (ull)addr);
}

/* True if the driver's handle is one of memory that begins at addr. */
static bool begins_allocation(uint64_t addr)
{
    uint64_t base, segment;
    size_t size;

    /* A caller that passes the start of a driver allocation has asked the driver for it, and computes offsets from
     * there. */
    return pool_segment_find(addr, &segment, &size) == 0 &&
           (addr == segment || (pool_block_find(addr, &base, &size, &segment) == 0 && base == segment));
}

/* True if the memory at addr is the driver's own, so that there is a handle of it. */
static bool is_drivers(uint64_t addr)
{
    uint64_t segment;
    size_t size;

    return pool_segment_find(addr, &segment, &size) == 0 && !vmm_find(segment);
}

enum serve_ipc serve_ipc_get(uint64_t addr, const void *caller, void *ret_handle)
{
    struct pool *pool = process_is_passive() ? NULL : context_pool_at(addr);
    uint64_t imported;
    CUcontext context;
    enum serve_ipc is;
    size_t size;
    int rc = 0;

    if (serve_is_freed(addr, caller))
        return SERVE_IPC_REFUSED;
    /* Natively an importer cannot pass memory on; here it would be the whole segment. */
    if (!pool)
        return !process_is_passive() && ipc_import_any() && ipc_import_range(addr, &imported, &size, &context)
                   ? SERVE_IPC_REFUSED
                   : SERVE_IPC_DRIVER;
    if (begins_allocation(addr) && is_drivers(addr))
        is = SERVE_IPC_DRIVER;
    else if (tickets_for(caller))
        is = (rc = ticket_make(pool, addr, ret_handle)) ? SERVE_IPC_REFUSED : SERVE_IPC_TICKET;
    else
        is = begins_allocation(addr) ? SERVE_IPC_DRIVER : SERVE_IPC_REFUSED;
    trace_event("ipc", "\"d\":%d,\"p\":\"0x%llx\",\"ok\":%d", context_device(context_of(pool)), (ull)addr,
                is != SERVE_IPC_REFUSED);
    if (is == SERVE_IPC_REFUSED)
        refuse(pool, addr, rc);
    if (is == SERVE_IPC_TICKET) {
        /* Processes without cupool can open driver allocations alone: let later blocks be such. */
        if (is_drivers(addr))
            pool_pack_never(pool);
        policy_strict_memory(addr, "memory exported to other processes");
    }
    return is;
}

void serve_ipc_refused(uint64_t addr)
{
    struct pool *pool = process_is_passive() ? NULL : context_pool_at(addr);

    if (pool && pool_kind_get(pool) != BACKEND_CUDA)
        log_once(LOG_WARN, "no IPC handle for %#llx: memory of CUPOOL_BACKEND=%s has none", (ull)addr,
                 backend_name(pool_kind_get(pool)));
}

void serve_ipc_exported(uint64_t addr, const void *caller)
{
    struct pool *pool;

    if (process_is_passive())
        return;
    pool = context_pool_at(addr);
    /* UCX and MPI tell the exporter when they have finished with a buffer, so it can be reused after its free; other
     * callers do not. */
    if (caller_of(caller) == CALLER_PROGRAM && pool) {
        pool_withdraw(addr);
        pool_pack_never(pool);
    }
    if (caller_of(caller) != CALLER_INSIDE)
        policy_strict_memory(addr, "memory exported to other processes");
}

bool serve_ipc_open(const void *handle, unsigned int flags, CUdeviceptr *ptr, CUresult *ret_result)
{
    struct ipc_ticket ticket;

    if (process_is_passive() || !ptr || !ipc_ticket_read(handle, &ticket))
        return false;
    if (process_state_get() == PROCESS_NEW)
        process_start();
    if (!conf_get()->ipc.number || process_is_passive())
        return false;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        *ret_result = CUDA_ERROR_INVALID_VALUE;
    else if (ipc_server_is(&ticket.station))
        *ret_result = CUDA_ERROR_INVALID_CONTEXT; /* as natively: it is this process's own */
    else
        *ret_result = ipc_import_open(&ticket, ptr);
    return true;
}

bool serve_ipc_close(CUdeviceptr ptr, CUresult *ret_result)
{
    bool ours = false;

    if (ipc_import_any() && !process_is_passive())
        *ret_result = ipc_import_close(ptr, &ours);
    return ours;
}

/* True if a block has a segment for itself, with less than a unit behind it: an importer gets no other block, and knows
 * from the block's size how much it gets. */
static bool has_own_segment(uint64_t block, size_t size)
{
    uint64_t segment;
    size_t length;

    return pool_segment_find(block, &segment, &length) == 0 && block == segment && size >= POOL_SEGMENT_UNIT &&
           length - size < POOL_SEGMENT_UNIT;
}

int serve_ipc_export(uint64_t addr, void *ret_ticket)
{
    struct pool *pool = context_pool_at(addr); /* the caller has looked at process_serves */
    uint64_t base, segment;
    size_t size;
    int rc;

    if (!pool || pool_block_find(addr, &base, &size, &segment) || base != addr)
        return -EINVAL;
    if (!tickets_are_made() || !vmm_find(segment))
        return -ENOTSUP;
    pool_pack_never(pool); /* so that later blocks have their own */
    if (!has_own_segment(base, size))
        return -ENOTSUP;
    rc = ticket_make(pool, addr, ret_ticket);
    trace_event("ipc", "\"d\":%d,\"p\":\"0x%llx\",\"ok\":%d", context_device(context_of(pool)), (ull)addr, rc == 0);
    return rc;
}

int64_t serve_ipc_import(const void *bytes, size_t *ret_size)
{
    struct ipc_ticket ticket;

    if (!ipc_ticket_read(bytes, &ticket) || ipc_server_is(&ticket.station))
        return -EINVAL;
    if (process_state_get() == PROCESS_NEW)
        process_start();
    return conf_get()->ipc.number ? insert_import(&ticket, ret_size) : -ENOTSUP;
}

void serve_ipc_opened(CUdeviceptr ptr)
{
    if (conf_get()->ipc.number && !process_is_passive())
        ipc_native_opened(ptr);
}

void serve_ipc_closed(CUdeviceptr ptr)
{
    if (!process_is_passive())
        ipc_native_closed(ptr);
}
