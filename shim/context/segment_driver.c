/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment_driver.c - see segment_driver.h.
 *
 * Locking: none; counters are atomic.
 */
#include "context/segment_driver.h"

#include <errno.h>

#include "base/conf.h"
#include "base/log.h"
#include "context/arrivals.h"
#include "context/backend.h"
#include "context/context_state.h"
#include "context/device.h"
#include "context/device_free.h"
#include "context/events.h"
#include "context/free_order.h"
#include "context/nccl_memory.h"
#include "context/neighbours.h"
#include "context/pins.h"
#include "context/registry.h"
#include "context/wait_context.h"
#include "trace/trace.h"
#include "trace/writer.h"

static CUresult segment_alloc(struct context *context, unsigned int kind, CUdeviceptr *ptr, size_t size)
{
    unsigned int before;
    CUresult result;

    /* Memory that arrived for another thread during the driver's call may be enough for this one. */
    do {
        before = context_arrivals();
        result = backend_source(kind)->get(context, ptr, size);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY &&
             (context_events.retry_parked_wait(context->device) || device_trim(context->device, context) ||
              arrivals_collect_own(context, ARRIVALS_OTHERS_NS) || context_arrivals() != before));
    return result;
}

static int backend_alloc(void *arg, unsigned int kind, size_t size, uint64_t *ret_addr)
{
    struct context *context = arg;
    CUdeviceptr ptr;
    CUresult result = segment_alloc(context, kind, &ptr, size);

    if (result)
        return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
    if (ptr % POOL_SEGMENT_UNIT) {
        log_once(LOG_WARN, "the driver's memory is not aligned to 2 MiB; requests of %zu bytes are not pooled", size);
        backend_source(kind)->put(context, ptr, size);
        return -EIO;
    }
    context_events.segment_added(context, context->device, ptr, size);
    device_free_ask(context);
    trace_write_behind();
    *ret_addr = ptr;
    return 0;
}

/* Give memory back that is registered nowhere. */
static void memory_put(struct context *context, enum backend backend, uint64_t addr, size_t size)
{
    if (backend_source(backend)->put(context, addr, size))
        context_arrived();
    device_free_more(context, size);
}

/* memory_put for each backend, since memory may be released long after backend_free, by its address alone. */
#define PUT(symbol, name)                                                                                              \
    static void memory_put_##name(void *arg, uint64_t addr, size_t size)                                               \
    {                                                                                                                  \
        memory_put(arg, BACKEND_##symbol, addr, size);                                                                 \
    }
BACKENDS(PUT)

#define PUT_OF(symbol, name) [BACKEND_##symbol] = memory_put_##name,
static void (*const puts_of[])(void *arg, uint64_t addr, size_t size) = {BACKENDS(PUT_OF)};

static void backend_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    struct context *context = arg;

    pin_resolve(context);
    /* Writes by peers into registered memory must have ended as well. */
    if ((backend_source(kind)->put_needs_wait || context_events.registers()) && order_wait(context)) {
        log_once(LOG_WARN, "%zu bytes at %#llx cannot be waited for, and are not given back", size,
                 (unsigned long long)addr);
        return;
    }
    if (context_events.segment_removing(addr, puts_of[kind], context))
        puts_of[kind](context, addr, size);
}

static void backend_collect(void *arg)
{
    struct context *context = arg;

    context_events.retry_parked(context->device);
    arrivals_collect_own(context, ARRIVALS_OTHERS_NS);
}

static bool backend_collected(void *arg, size_t *ret_arriving)
{
    struct context *context = arg;

    arrivals_collect(context, 0);
    *ret_arriving = arrivals_outstanding(context);
    /* False where the driver does not free through a stream: a request would then wait for the device. */
    return context_defers(context) && !*ret_arriving;
}

static void backend_reclaim(void *arg)
{
    struct context *context = arg;

    arrivals_collect_own(context, 0);
}

/* During a capture, memory may go back through our own stream, which does not capture. NCCL's memory does not go back
 * this way, and registered memory may be part of a graph. */
static bool backend_gives_frozen(void *arg)
{
    const struct context *context = arg;

    return context_defers(context) && !context_events.registers() && !context_backed_by_nccl(context);
}

static bool backend_scarce(void *arg)
{
    struct context *context = arg;

    /* The free memory of the device differs from rank to rank, which matters to NCCL. */
    return (conf_get()->decay.number == 0 || device_free_is_scarce(context)) && !nccl_ranks_agree();
}

static bool backend_ask(void *arg, size_t size, struct pool_asking *asking)
{
    const struct context *context = arg;

    return neighbours_ask(context->device, size, asking);
}

const struct pool_backend_ops segment_ops = {.alloc = backend_alloc,
                                             .free = backend_free,
                                             .collect = backend_collect,
                                             .collected = backend_collected,
                                             .reclaim = backend_reclaim,
                                             .gives_frozen = backend_gives_frozen,
                                             .ask = backend_ask,
                                             .scarce = backend_scarce};
