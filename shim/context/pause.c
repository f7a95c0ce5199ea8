/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pause.c - see pause.h.
 *
 * Locking: none. A device's state is atomic, and the thread that has set it to CHANGING has the device for itself.
 */
#include "context/pause.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/conf.h"
#include "base/conf_types.h"
#include "base/log.h"
#include "clock.h"
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/device.h"
#include "context/events.h"
#include "context/free_order.h"
#include "context/ipc_table.h"
#include "context/nccl_memory.h"
#include "context/neighbours.h"
#include "context/pause_copies.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/vmm_kept.h"
#include "context/vmm_map.h"
#include "context/wait_device.h"
#include "pool.h"
#include "trace/trace.h"

typedef unsigned long long ull;

enum state { RUNNING, CHANGING, PAUSED };
static atomic_int states[DEVICES_MAX];

static __thread const char *reason __attribute__((tls_model("initial-exec"))) = "";

const char *pause_reason(void)
{
    return reason;
}

static int refuse(int rc, const char *why)
{
    reason = why;
    return rc;
}

static atomic_int *state_of(int device)
{
    return &states[(unsigned int)device % DEVICES_MAX];
}

/* The next context of the device, whose pool is suspended, from *i on; pinned. None may be left out: each step relies
 * on the one before. */
static struct context *suspended_next(unsigned int *i, int device)
{
    struct context *context;

    while ((context = context_next_decided(i, device)) && !pool_is_suspended(context->pool))
        context_unpin(context);
    return context;
}

static bool any_suspended(int device)
{
    unsigned int i = 0;
    struct context *context = suspended_next(&i, device);

    if (context)
        context_unpin(context);
    return context;
}

bool device_is_paused(int device)
{
    return atomic_load(state_of(device)) == PAUSED && any_suspended(device);
}

/* A thread without a record of what it pins would find no context, and none that is suspended. */
static int find_possible(void)
{
    return pins_possible() ? 0 : refuse(-ENOMEM, "there is no host memory");
}

/* Claim the device. A device whose paused contexts have all ended is paused no more. */
static int claim(int device, enum state from)
{
    int now = atomic_load(state_of(device));

    if (find_possible())
        return -ENOMEM;
    if (now == PAUSED && from == RUNNING && !any_suspended(device))
        from = PAUSED;
    if (now == (int)from && atomic_compare_exchange_strong(state_of(device), &now, CHANGING))
        return 0;
    return now == CHANGING ? refuse(-EBUSY, "another thread pauses or resumes the device")
                           : refuse(-EALREADY, now == PAUSED ? "it is paused" : "it is not paused");
}

/* --- may it be paused? --- */

static int check_driver(const struct real_driver *driver, bool keep)
{
    return keep && (!driver->cuMemcpyDtoHAsync_v2 || !driver->cuMemcpyHtoDAsync_v2 || !driver->cuStreamCreate ||
                    !driver->cuStreamSynchronize || !driver->cuMemHostAlloc || !driver->cuMemFreeHost)
               ? refuse(-EOPNOTSUPP, "the driver lacks a function that copies")
               : 0;
}

static bool is_elsewhere(const struct context *owner, int device)
{
    return owner->device != device;
}

/* Whether another process could open memory of the device. */
static bool is_exported(int device)
{
    struct ipc_table_counts counts = {0};

    if (ipc_table_any())
        ipc_table_count(is_elsewhere, device, &counts);
    return counts.blocks;
}

static int check_context(struct context *context, bool keep)
{
    if (pool_kind_get(context->pool) != BACKEND_VMM)
        return refuse(-EOPNOTSUPP, "its memory does not come from virtual memory calls (CUPOOL_BACKEND=vmm)");
    if (context_failed(context))
        return refuse(-EIO, "a context has met an error that it does not recover from");
    if (pool_has_withdrawn(context->pool, BACKEND_VMM) || is_exported(context->device))
        return refuse(-EBUSY, "memory is exported to another process or library");
    return check_driver(context->driver, keep);
}

static int check(int device, bool keep)
{
    struct context *context;
    int rc = 0;

    reason = "";
    if (capture_active_now())
        return refuse(-EBUSY, "a stream captures");
    if (context_events.registers())
        return refuse(-EBUSY, "memory is registered with NCCL (CUPOOL_REGISTER)");
    if (conf_get()->debug.number == DEBUG_GUARD)
        return refuse(-EOPNOTSUPP, "CUPOOL_DEBUG=guard looks at all memory");
    for (unsigned int i = 0; !rc && (context = context_next_decided(&i, device)); context_unpin(context))
        rc = check_context(context, keep);
    return rc;
}

int pause_check(int device, bool keep)
{
    const int now = atomic_load(state_of(device));

    if (find_possible())
        return -ENOMEM;
    if (now == PAUSED && any_suspended(device))
        return refuse(-EALREADY, "it is paused");
    return check(device, keep);
}

/* --- the steps --- */

/* The results of the steps. */
struct change {
    int device;
    uint64_t limit;
    uint64_t bytes, copied; /* memory given back or brought back; contents copied */
    size_t segments;
};

static int trim_and_suspend(const struct change *change)
{
    struct context *context;
    int rc = 0;

    vmm_kept_trim(change->device);
    for (unsigned int i = 0; !rc && (context = context_next_decided(&i, change->device)); context_unpin(context)) {
        pool_trim(context->pool, "pause");
        arrivals_collect_own(context, ARRIVALS_OTHERS_NS);
        rc = pool_suspend(context->pool, BACKEND_VMM);
        if (!rc)
            rc = pause_segments_find(context);
    }
    /* Again: another thread may have exported some since, and from here on none can. */
    if (!rc && is_exported(change->device))
        rc = -EBUSY;
    return rc == -EBUSY       ? refuse(rc, "memory is exported to another process or library")
           : rc == -ETIMEDOUT ? refuse(-EBUSY, "a thread fills memory that it has freed (CUPOOL_FILL)")
           : rc               ? refuse(rc, "there is no host memory")
                              : 0;
}

/* Wait for the work of all contexts, those of other devices too, which reach the memory. Those in which nothing was
 * pooled cannot be waited for with a limit. */
static int wait_for_all(const struct change *change)
{
    bool late;
    CUresult result = context_wait_all(change->limit, &late);

    if (!result && change->limit == PAUSE_NO_LIMIT)
        result = context_wait_primaries();
    device_collect(change->device); /* idle segments whose work is over now */
    if (late)
        return refuse(-EBUSY, "work on the device has not ended in time");
    return !result                          ? 0
           : result == CUDA_ERROR_NOT_READY ? refuse(-EBUSY, "a stream captures")
                                            : refuse(-EIO, "the driver cannot wait for the device");
}

/* NCCL may have registered memory for a graph, of which nobody has told us. */
static int check_graphs(const struct change *change)
{
    const struct vmm_mapping *mapping;
    struct context *context;
    bool keeps = false;

    for (unsigned int i = 0; !keeps && (context = suspended_next(&i, change->device)); context_unpin(context))
        for (size_t k = 0; !keeps && k < context->paused.segment_count; k++)
            keeps = (mapping = vmm_find(context->paused.segments[k])) && nccl_graph_keeps(mapping->captures);
    return keeps ? refuse(-EBUSY, "NCCL may have registered memory for a graph") : 0;
}

static int save(struct change *change)
{
    struct context *context;
    uint64_t bytes;
    int rc = 0;

    for (unsigned int i = 0; !rc && (context = suspended_next(&i, change->device)); context_unpin(context)) {
        rc = pause_copies_save(context, &bytes);
        change->copied += bytes;
    }
    return rc == -ENOMEM ? refuse(rc, "there is no pinned host memory for the contents")
           : rc          ? refuse(rc, "the driver has not copied the contents")
                         : 0;
}

/* Take the memory of the context's segments away; whether all of it went. */
static bool context_send_away(struct context *context, struct change *change)
{
    struct vmm_mapping *mapping;
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; !result && i < context->paused.segment_count; i++) {
        mapping = vmm_find(context->paused.segments[i]);
        if (!mapping || mapping->away)
            continue;
        result = vmm_send_away(context->driver, mapping);
        change->bytes += result ? 0 : mapping->size + mapping->front;
        change->segments += !result;
    }
    return !result;
}

static bool send_away(struct change *change)
{
    struct context *context;
    bool done = true;

    for (unsigned int i = 0; done && (context = suspended_next(&i, change->device)); context_unpin(context))
        done = context_send_away(context, change);
    return done;
}

/* Bring the memory of all segments back that is still away. After an error some of it is back. */
static CUresult bring_back(struct change *change)
{
    CUresult result = CUDA_SUCCESS;
    struct vmm_mapping *mapping;
    struct context *context;

    for (unsigned int i = 0; !result && (context = suspended_next(&i, change->device)); context_unpin(context)) {
        for (size_t k = 0; !result && k < context->paused.segment_count; k++) {
            mapping = vmm_find(context->paused.segments[k]);
            if (!mapping || !mapping->away)
                continue;
            result = vmm_bring_back(context->driver, mapping);
            change->bytes += result ? 0 : mapping->size + mapping->front;
            change->segments += !result;
        }
    }
    return result;
}

/* The bytes that are away. */
static uint64_t missing(int device)
{
    struct vmm_mapping *mapping;
    struct context *context;
    uint64_t bytes = 0;

    for (unsigned int i = 0; (context = suspended_next(&i, device)); context_unpin(context))
        for (size_t k = 0; k < context->paused.segment_count; k++)
            if ((mapping = vmm_find(context->paused.segments[k])) && mapping->away)
                bytes += mapping->size + mapping->front;
    return bytes;
}

/* bring_back, and when the driver refuses, what a request does then: idle memory goes back, and other processes are
 * asked for theirs. */
static CUresult bring_back_all(struct change *change)
{
    CUresult result = bring_back(change);
    struct pool_asking asking = {0};

    if (result == CUDA_ERROR_OUT_OF_MEMORY && device_trim(change->device, NULL))
        result = bring_back(change);
    while (result == CUDA_ERROR_OUT_OF_MEMORY && neighbours_ask(change->device, missing(change->device), &asking))
        result = bring_back(change);
    return result;
}

static int copy_back(struct change *change)
{
    struct context *context;
    uint64_t bytes;
    int rc = 0;

    for (unsigned int i = 0; !rc && (context = suspended_next(&i, change->device)); context_unpin(context)) {
        rc = pause_copies_restore(context, &bytes);
        change->copied += bytes;
    }
    return rc;
}

static void suspended_end(int device)
{
    struct context *context;

    for (unsigned int i = 0; (context = suspended_next(&i, device)); context_unpin(context))
        pool_suspend_end(context->pool);
}

/* The pools serve requests from the segments again, or, if not resumed, leave them as they are. */
static void resumed_end(int device, bool resumed)
{
    struct context *context;

    for (unsigned int i = 0; (context = suspended_next(&i, device)); context_unpin(context)) {
        if (resumed)
            pause_copies_drop(context);
        pool_resume_end(context->pool, resumed);
    }
}

static void told(const struct change *change, const char *event, const char *mode, uint64_t since)
{
    const uint64_t ns = now_ns() - since;

    trace_event(event, "\"d\":%d%s,\"n\":%llu,\"copied\":%llu,\"segments\":%zu,\"us\":%llu.%llu", change->device, mode,
                (ull)change->bytes, (ull)change->copied, change->segments, TRACE_US(ns));
}

/* Some memory could not be taken away: bring the rest back. False: that is impossible now, and the pause stands. */
static bool undo(struct change *change)
{
    struct change back = {.device = change->device};

    if (bring_back_all(&back) || copy_back(&back)) {
        log_write(LOG_WARN, "device %d: the driver keeps memory of a pause, and has none to undo it: it is paused",
                  change->device);
        return false;
    }
    return true;
}

int pause_device(int device, bool keep, uint64_t limit, uint64_t *ret_bytes)
{
    struct change change = {.device = device, .limit = limit};
    const uint64_t since = now_ns();
    int rc = claim(device, RUNNING);

    if (rc)
        return rc;
    rc = check(device, keep);
    if (!rc)
        rc = trim_and_suspend(&change);
    if (!rc)
        rc = wait_for_all(&change);
    if (!rc)
        rc = check_graphs(&change);
    if (!rc && keep)
        rc = save(&change);
    if (!rc && !send_away(&change) && undo(&change))
        rc = refuse(-EIO, "the driver does not take memory back");
    if (rc)
        resumed_end(device, /* resumed: */ true);
    else
        suspended_end(device);
    atomic_store(state_of(device), rc ? RUNNING : PAUSED);
    if (rc)
        return rc;
    context_arrived();
    told(&change, "pause", keep ? ",\"mode\":\"keep\"" : ",\"mode\":\"discard\"", since);
    *ret_bytes = change.bytes;
    return 0;
}

/* Bring everything back, or nothing. */
static int resume(struct change *change)
{
    CUresult result = bring_back_all(change);
    struct change gone = {.device = change->device, .limit = PAUSE_NO_LIMIT};

    if (!result && !copy_back(change))
        return 0;
    /* Copies may be under way. Memory that cannot go stays, and the next resume finds it there. */
    if (wait_for_all(&gone) || !send_away(&gone))
        log_write(LOG_WARN, "device %d is paused, and the driver keeps some of its memory", change->device);
    context_arrived();
    return result == CUDA_ERROR_OUT_OF_MEMORY ? refuse(-ENOMEM, "the device has not so much memory left")
                                              : refuse(-EIO, "the driver does not give the memory back");
}

int resume_device(int device, uint64_t *ret_bytes)
{
    struct change change = {.device = device};
    const uint64_t since = now_ns();
    struct context *context;
    int rc;

    reason = "";
    if (capture_active_now())
        return refuse(-EBUSY, "a stream captures");
    rc = claim(device, PAUSED);
    if (rc)
        return rc;
    for (unsigned int i = 0; (context = suspended_next(&i, device)); context_unpin(context)) {
        pool_resume_begin(context->pool);
        if (!rc && pause_segments_find(context))
            rc = refuse(-ENOMEM, "there is no host memory");
    }
    if (!rc)
        rc = resume(&change);
    resumed_end(device, !rc);
    atomic_store(state_of(device), rc ? PAUSED : RUNNING);
    if (rc)
        return rc;
    told(&change, "resume", "", since);
    *ret_bytes = change.bytes;
    return 0;
}
