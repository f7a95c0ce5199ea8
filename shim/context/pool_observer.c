/* SPDX-License-Identifier: Apache-2.0 */
/* pool_observer.c - see pool_observer.h. No locks of its own; decayed is atomic. */
#include "context/pool_observer.h"

#include <stdatomic.h>
#include <string.h>

#include "base/conf.h"
#include "context/backend.h"
#include "context/events.h"
#include "context/registry.h"
#include "trace/trace.h"

typedef unsigned long long ull;

static _Atomic(uint64_t) decayed; /* bytes */

static struct trace_segment segment_of(const void *arg, unsigned int kind, size_t size, bool got)
{
    return (struct trace_segment){
        .device = context_device(arg), .backend = backend_name(kind), .size = size, .got = got};
}

static void on_segment_alloc(void *arg, unsigned int kind, uint64_t addr, size_t size, uint64_t ns)
{
    const struct trace_segment segment = segment_of(arg, kind, size, /* got: */ true);

    trace_segment(&segment, "segment_alloc", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"%s\",\"us\":%llu.%llu",
                  segment.device, (ull)addr, size, segment.backend, TRACE_US(ns));
}

static void segment_goes(const void *arg, unsigned int kind, uint64_t addr, size_t size, const char *why)
{
    const struct trace_segment segment = segment_of(arg, kind, size, /* got: */ false);

    trace_segment(&segment, "segment_free", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"%s\"%s", segment.device,
                  (ull)addr, size, segment.backend, why);
}

static void on_segment_free(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    segment_goes(arg, kind, addr, size, "");
}

static void on_segment_lost(void *arg, unsigned int kind, uint64_t addr, size_t size)
{
    context_events.segment_lost(arg, addr);
    segment_goes(arg, kind, addr, size, ",\"why\":\"context\"");
}

static void on_trim(void *arg, size_t released, uint64_t ns, const char *why)
{
    /* With CUPOOL_DECAY=0 the free that leaves memory idle gives it back, as where the device is nearly full. */
    if (strcmp(why, "decay") == 0 || (strcmp(why, "reserve") == 0 && conf_get()->decay.number == 0))
        atomic_fetch_add_explicit(&decayed, released, memory_order_relaxed);
    trace_frequent("trim", "\"d\":%d,\"n\":%zu,\"us\":%llu.%llu,\"why\":\"%s\"", context_device(arg), released,
                   TRACE_US(ns), why);
}

uint64_t observe_decayed(void)
{
    return atomic_load(&decayed);
}

/* A program at its bound meets it at every request, so the first, second, fourth ... time is written. */
static void on_bound(void *arg, size_t held, size_t bound, uint64_t ns, uint64_t count)
{
    if (!(count & (count - 1)))
        trace_event("bound", "\"d\":%d,\"held\":%zu,\"bound\":%zu,\"us\":%llu.%llu,\"count\":%llu", context_device(arg),
                    held, bound, TRACE_US(ns), (ull)count);
}

const struct pool_observer_ops observe_ops = {.segment_alloc = on_segment_alloc,
                                              .segment_free = on_segment_free,
                                              .segment_lost = on_segment_lost,
                                              .trim = on_trim,
                                              .bound = on_bound};
