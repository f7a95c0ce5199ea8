/* SPDX-License-Identifier: Apache-2.0 */
/* host_observer.c - see host_observer.h. No locks of its own. */
#include "context/host_observer.h"

#include "clock.h"
#include "context/registry.h"
#include "trace/trace.h"

typedef unsigned long long ull;

static struct trace_segment segment_of(const struct host_key *key, size_t size, bool got)
{
    return (struct trace_segment){.device = context_device((const struct context *)(uintptr_t)key->owner),
                                  .backend = TRACE_HOST,
                                  .size = size,
                                  .got = got};
}

void host_observe_got(void *arg, const struct host_key *key, uint64_t addr, size_t size, uint64_t ns)
{
    const struct trace_segment segment = segment_of(key, size, /* got: */ true);

    (void)arg;
    trace_segment(&segment, "host_alloc",
                  "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"" TRACE_HOST "\",\"us\":%llu.%llu", segment.device,
                  (ull)addr, size, TRACE_US(ns));
}

void host_observe_freed(const struct host_key *key, uint64_t addr, size_t size, uint64_t since, bool ok)
{
    const struct trace_segment segment = segment_of(key, size, /* got: */ false);
    const uint64_t ns = now_ns() - since;

    /* Once the call has begun, another thread may get the address: the event's time is the beginning. */
    trace_segment_at(since, &segment, "host_free",
                     "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"" TRACE_HOST "\",\"us\":%llu.%llu%s", segment.device,
                     (ull)addr, size, TRACE_US(ns), ok ? "" : ",\"why\":\"error\"");
}

void host_observe_lost(void *arg, const struct host_key *key, uint64_t addr, size_t size)
{
    const struct trace_segment segment = segment_of(key, size, /* got: */ false);

    (void)arg;
    trace_segment(&segment, "host_free",
                  "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"" TRACE_HOST "\",\"us\":0,\"why\":\"lost\"",
                  segment.device, (ull)addr, size);
}
