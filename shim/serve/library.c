/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library.c - the library's start, exit and fork, and the tables by which lower rooms call higher ones. It decides
 * nothing about a request, and no other file calls its functions by name.
 *
 * Locking: none.
 */
#include <pthread.h>

#include "base/log.h"
#include "base/process.h"
#include "context/events.h"
#include "context/host_memory.h"
#include "context/ipc_import.h"
#include "context/ipc_insert.h"
#include "context/ipc_native.h"
#include "context/ipc_peer.h"
#include "context/ipc_server.h"
#include "context/ipc_table.h"
#include "context/neighbours.h"
#include "context/registry.h"
#include "context/vmm_kept.h"
#include "context/vmm_map.h"
#include "nccl/direct.h"
#include "nccl/pool_segments.h"
#include "nccl/register_calls.h"
#include "real/copies.h"
#include "report/background_thread.h"
#include "report/ctl.h"
#include "report/guard.h"
#include "report/stats.h"
#include "report/stats_file.h"
#include "serve/pinned_requests.h"
#include "serve/serve.h"
#include "trace/trace.h"

static void started(void)
{
    if (copies_next())
        log_write(LOG_WARN, "%s is another copy of cupool in this process: it does nothing", copies_next());
    guard_start();
    stats_start();
}

static void forked(void)
{
    trace_forget();
    background_forget();
    neighbours_forget();
    ipc_server_forget();
    ipc_table_forget();
    vmm_descriptors_forget();
    ipc_import_forget();
    insert_forget();
    ipc_peer_forget();
    ipc_native_forget();
    ctl_forget();
    stats_forget();
    stats_page_forget();
}

const struct process_events process_events = {.started = started, .forked = forked, .is_first = copies_is_first};

/* From now on it goes back in time, and other processes may ask for it. */
static void kept(int device)
{
    if (background_start() && neighbours_begin(device))
        background_wake();
}

static void closes_left(void)
{
    if (background_start())
        background_wake();
}

static void segment_added(struct context *owner, int device, uint64_t addr, size_t size)
{
    nccl_segment_add(owner, device, addr, size);
    kept(device);
}

static void segment_lost(const struct context *owner, uint64_t addr)
{
    ipc_table_segment_gone(addr);
    nccl_segment_lost(owner, addr);
}

static void pool_ending(const struct context *context)
{
    ipc_table_context_gone(context);
    guard_context_gone(context);
}

static void context_ended(const struct context *context)
{
    ipc_import_context_gone(context_handle(context));
    ipc_table_context_gone(context);
    direct_context_gone(context);
    host_memory_context_ended(context);
}

static void ending_over(void)
{
    serve_context_ended();
    if (ipc_import_any())
        ipc_import_settle();
}

const struct context_events context_events = {.registers = nccl_registers,
                                              .sees_operations = nccl_sees_operations,
                                              .segment_added = segment_added,
                                              .segment_removing = nccl_segment_remove,
                                              .host_pool_wanted = serve_host_wanted,
                                              .kept = kept,
                                              .closes_left = closes_left,
                                              .segment_lost = segment_lost,
                                              .retry_parked = nccl_retry_parked,
                                              .retry_parked_wait = nccl_retry_parked_wait,
                                              .context_ends = nccl_owner_ends,
                                              .context_stays = nccl_owner_stays,
                                              .context_ended = context_ended,
                                              .ending_over = ending_over,
                                              .pool_ending = pool_ending,
                                              .pool_ended = nccl_owner_lost};

const struct background_job background_jobs[] = {
    /* First, because importers wait for its answers. */
    {.due = ipc_server_due,
     .tick = serve_ipc_tick,
     .listen = ipc_server_listen,
     .ring = ipc_server_ring,
     .end = ipc_server_end},
    {.due = ipc_peer_due, .tick = ipc_peer_tick},
    {.due = stats_due, .tick = stats_tick},
    {.start = stats_page_open, .due = stats_page_due, .tick = stats_page_tick},
    {.due = serve_host_due, .tick = serve_host_tick},
    {.start = ctl_start, .due = ctl_due, .tick = ctl_tick, .listen = ctl_listen, .ring = ctl_ring, .end = ctl_end},
    {.due = vmm_kept_due, .tick = vmm_kept_tick},
    {.due = neighbours_due,
     .tick = neighbours_tick,
     .listen = neighbours_listen,
     .ring = neighbours_ring,
     .end = neighbours_end},
    {0}};

/* At exit: no CUDA call, and no memory given back; the driver releases it. */
__attribute__((destructor)) static void finish(void)
{
    int cancel;

    if (!process_has_begun() || process_is_foreign())
        return;
    process_end();
    /* A thread cancelled in here would leave half a line or half an update. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    stats_finish();
    stats_page_finish();
    trace_close();
    pthread_setcancelstate(cancel, NULL);
}
