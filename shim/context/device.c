/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - see device.h. No locks. */
#include "context/device.h"

#include "base/conf_types.h"
#include "clock.h"
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/capture_wait.h"
#include "context/context_state.h"
#include "context/cuda_memory.h"
#include "context/device_free.h"
#include "context/enter.h"
#include "context/events.h"
#include "context/ipc_server.h"
#include "context/nccl_memory.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/vmm_kept.h"
#include "context/wait_context.h"
#include "pool.h"
#include "real/real.h"

/* The bytes of a context's pool that natively would be free, and *ret_used: the rest. Without a call of the driver:
 * deferred blocks count by their size. */
static uint64_t natively_free(struct context *context, uint64_t *ret_used)
{
    struct pool_survey survey;

    pool_survey_get(context->pool, &survey);
    *ret_used = survey.held - survey.idle - survey.pending;
    return survey.idle + survey.pending + arrivals_outstanding(context);
}

/* The next context of a device that may give memory back, pinned. A call of another thread that may end one is waited
 * for only where that matters. */
static struct context *next_giving(unsigned int *i, int device)
{
    struct context *context;
    bool leaving, gives;
    uint64_t used;

    while ((context = context_next_pool(i, device, &leaving))) {
        if (!leaving)
            return context;
        gives = natively_free(context, &used) != 0;
        context_unpin(context);
        if (gives && context_pin_staying_once(context))
            return context;
    }
    return NULL;
}

/* How often a refused request asks for the order of deferred blocks, where free after free begins in the driver. */
#define GIVE_BACK_TRIES 8u

/* A free in the driver would hold up the order of deferred blocks, and with it this call, which natively may go on.
 * They are waited for if nothing else goes back, as for the work before their order. */
static size_t give_back(struct context *context)
{
    enum pool_deferred deferred;
    unsigned int tries = 0;
    size_t bytes;
    bool freeing;

    do {
        freeing = atomic_load(&context->freeing);
        pin_hurry_begin(); /* a free may begin meanwhile */
        bytes = (freeing ? pool_yield : pool_trim)(context->pool, "oom");
        freeing |= pin_hurry_end();
        deferred = bytes || !freeing ? POOL_DEFERRED_NONE : pool_deferred_by(context->pool);
    } while (deferred != POOL_DEFERRED_NONE && ++tries < GIVE_BACK_TRIES &&
             arrivals_wait_freeing(context, deferred == POOL_DEFERRED_OWN));
    return bytes;
}

/* The memory that capture_wait keeps. */
static size_t kept_bytes(const struct context *context)
{
    return atomic_load(&context->kept_byte) ? CAPTURE_KEPT_SIZE : 0;
}

/* Give it back, as segments go back. True: there was one; it may arrive later. */
static bool kept_byte_put(struct context *context)
{
    const CUdeviceptr byte = atomic_load(&context->kept_byte) ? atomic_exchange(&context->kept_byte, 0) : 0;

    if (byte && cuda_source.put(context, byte, CAPTURE_KEPT_SIZE))
        context_arrived();
    return byte != 0;
}

bool device_trim(int device, const struct context *except)
{
    struct context *other;
    bool any = vmm_kept_trim(device) != 0;
    bool put;

    for (unsigned int i = 0; (other = next_giving(&i, device)); context_unpin(other)) {
        put = kept_byte_put(other);
        if (other == except && !put)
            continue;
        any |= put | (other != except && give_back(other));
        any |= arrivals_collect_own(other, ARRIVALS_OTHERS_NS);
    }
    return any;
}

bool context_trim_on(int device, unsigned int before)
{
    /* Memory that could not be deregistered before may go now. */
    const size_t retried = context_events.retry_parked_wait(device);

    return device_trim(device, NULL) || retried || context_arrivals() != before;
}

bool context_trim(unsigned int before)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;

    return driver && driver->cuCtxGetDevice(&device) == CUDA_SUCCESS && context_trim_on(device, before);
}

uint64_t context_release(int device, const char *why)
{
    struct context *context;
    uint64_t released;

    if (capture_active_now())
        return 0;
    /* First, since it may arrive late: the loop waits for that. */
    released = context_events.retry_parked_wait(device) + vmm_kept_trim(device);
    for (unsigned int i = 0; (context = next_giving(&i, device)); context_unpin(context)) {
        released += pool_trim(context->pool, why);
        released += kept_byte_put(context) ? CAPTURE_KEPT_SIZE : 0;
        arrivals_collect_own(context, ARRIVALS_OTHERS_NS);
    }
    return released;
}

size_t device_capacity(int device)
{
    size_t capacity = SIZE_MAX;
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        capacity = context->capacity;
    return capacity;
}

bool device_may_fit(int device, size_t size)
{
    size_t capacity = SIZE_MAX, live = 0;
    struct pool_survey survey;
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        capacity = context->capacity;
        /* Its blocks that are handed out have no memory. */
        if (pool_is_suspended(context->pool))
            continue;
        pool_survey_get(context->pool, &survey);
        live += survey.live;
    }
    return size <= (live < capacity ? capacity - live : 0);
}

/* The bytes that the device's pools hold for nobody. False: there may be more. */
static bool unused_bytes(int device, uint64_t *ret_bytes)
{
    bool known = !context_events.registers(); /* memory that waits to be deregistered is in no books */
    struct pool_survey survey;
    struct context *context;
    bool leaving;

    *ret_bytes = vmm_kept_bytes(device);
    for (unsigned int i = 0; (context = context_next_pool(&i, device, &leaving)); context_unpin(context)) {
        known &= !leaving && !pool_is_suspended(context->pool);
        pool_survey_get(context->pool, &survey);
        *ret_bytes += survey.held - survey.live;
        *ret_bytes += arrivals_outstanding(context) + CAPTURE_KEPT_SIZE;
    }
    return known;
}

/* False: the driver does not say. */
static bool driver_free(int device, size_t *ret_free)
{
    struct context *context;
    struct visit visit;
    bool known = false;
    size_t total;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        if (known)
            continue;
        known = !context_enter(context, &visit) && !context->driver->cuMemGetInfo_v2(ret_free, &total);
        context_leave(context, &visit);
    }
    return known;
}

bool device_has(int device, size_t size)
{
    uint64_t unused;
    size_t free;

    /* In the order in which memory goes: what goes meanwhile counts twice. */
    return !unused_bytes(device, &unused) || !driver_free(device, &free) || size <= free + unused;
}

bool device_exists(int device)
{
    const struct real_driver *driver = real_driver_get();
    int count;

    return !driver || !driver->cuDeviceGetCount || driver->cuDeviceGetCount(&count) != CUDA_SUCCESS || device < count;
}

/* The bytes that have ever arrived at the driver. */
static uint64_t arrived_bytes(int device)
{
    struct context *context;
    uint64_t bytes = 0;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        bytes += atomic_load(&context->arrived) + atomic_load(&context->departures.gone);
    return bytes;
}

uint64_t device_yield(int device, uint64_t limit)
{
    const uint64_t before = arrived_bytes(device);
    const uint64_t kept = vmm_kept_trim(device);
    struct context *context;
    uint64_t after, now;

    /* All begin before the first is waited for. As in context_decay_all, never where cuMemFree would be called. */
    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        if (context_defers(context))
            pool_yield(context->pool, "neighbour");
    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        now = now_ns();
        arrivals_collect(context, now < limit ? limit - now : 0);
    }
    after = arrived_bytes(device);
    return kept + (after > before ? after - before : 0);
}

void device_collect(int device)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        arrivals_collect(context, 0);
}

void device_publish(int device)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context))
        pool_flush(context->pool);
}

uint64_t context_idle_bytes(int device, uint64_t *ret_used)
{
    struct pool_stats stats;
    struct context *context;
    uint64_t idle = 0, used = 0, rest;
    bool leaving;

    for (unsigned int i = 0; (context = context_next_pool(&i, device, &leaving)); context_unpin(context)) {
        if (leaving) {
            idle += natively_free(context, &rest);
            used += rest;
            continue;
        }
        pool_flush(context->pool);
        pool_stats_get(context->pool, &stats);
        idle += stats.idle + arrivals_outstanding(context) + kept_bytes(context);
        used += stats.held - stats.idle;
    }
    *ret_used = used;
    return idle + vmm_kept_bytes(device);
}

void context_survey(int device, bool whole, struct pool_survey *ret_sum)
{
    struct pool_survey sum = {0}, survey;
    struct context *context;
    struct pool_stats stats;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        if (!whole) {
            pool_stats_get(context->pool, &stats);
            sum.live += stats.live;
            sum.held += stats.held;
            continue;
        }
        pool_survey_get(context->pool, &survey);
        sum.live += survey.live;
        sum.pending += survey.pending;
        sum.idle += survey.idle;
        sum.holes += survey.holes;
        sum.withdrawn += survey.withdrawn;
        sum.skipped += survey.skipped;
        sum.leaving += survey.leaving;
        sum.held += survey.held;
        sum.ranges += survey.ranges;
        sum.segments += survey.segments;
        sum.largest = survey.largest > sum.largest ? survey.largest : sum.largest;
    }
    *ret_sum = sum;
}

/* Other processes and managed memory take memory unseen, and cudaFreeAsync and the end of a capture leave some idle,
 * unseen as well: look how much is left while it matters. */
static void decay(struct context *context, unsigned int age)
{
    struct pool_stats stats;

    pool_flush(context->pool);
    pool_stats_get(context->pool, &stats);
    if (stats.idle)
        device_free_look(context);
    pool_decay(context->pool, age);
}

void context_decay_all(unsigned int age)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, CONTEXT_ALL)); context_unpin(context)) {
        /* Never where cuMemFree would hold up the program's launches. */
        if (age && context_defers(context) && !nccl_ranks_agree())
            decay(context, age);
        /* To unmap many, and to close their descriptors, may take longer than an importer should wait for its answer.
         */
        while (arrivals_collect_one(context))
            ipc_server_tick(now_ns());
    }
}
