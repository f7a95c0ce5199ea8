/* SPDX-License-Identifier: Apache-2.0 */
/* device.c - see device.h. No locks. */
#include "context/device.h"

#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/context_state.h"
#include "context/events.h"
#include "context/nccl_memory.h"
#include "context/registry.h"
#include "context/wait_context.h"
#include "pool.h"
#include "real/real.h"

bool device_trim(int device, const struct context *except)
{
    struct context *other;
    bool any = false;

    for (unsigned int i = 0; (other = context_next(&i, device)); context_unpin(other)) {
        if (other == except)
            continue;
        any |= pool_trim(other->pool, "oom") != 0;
        any |= arrivals_collect_own(other, ARRIVALS_OTHERS_NS);
    }
    return any;
}

bool context_trim(unsigned int before)
{
    const struct real_driver *driver = real_driver_get();
    CUdevice device;
    size_t retried;

    if (!driver || driver->cuCtxGetDevice(&device))
        return false;
    /* Memory that could not be deregistered before may go now. */
    retried = context_events.retry_parked_refused(device);
    return device_trim(device, NULL) || retried || context_arrivals() != before;
}

uint64_t context_release(int device, const char *why)
{
    struct context *context;
    uint64_t released = 0;

    if (capture_active_now())
        return 0;
    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        released += pool_trim(context->pool, why);
        arrivals_collect_own(context, ARRIVALS_OTHERS_NS);
    }
    /* Also memory that could not be released before. */
    return released + context_events.retry_parked(device);
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

uint64_t context_idle_bytes(int device)
{
    struct pool_stats stats;
    struct context *context;
    uint64_t idle = 0;

    for (unsigned int i = 0; (context = context_next(&i, device)); context_unpin(context)) {
        pool_flush(context->pool);
        pool_stats_get(context->pool, &stats);
        idle += stats.idle + arrivals_outstanding(context);
    }
    return idle;
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

void context_decay_all(unsigned int age)
{
    struct context *context;

    for (unsigned int i = 0; (context = context_next(&i, CONTEXT_ALL)); context_unpin(context)) {
        /* Never where cuMemFree would hold up the program's launches. */
        if (age && context_defers(context) && !nccl_ranks_agree()) {
            pool_flush(context->pool);
            pool_decay(context->pool, age);
        }
        arrivals_collect(context, 0);
    }
}
