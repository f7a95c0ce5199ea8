/* SPDX-License-Identifier: Apache-2.0 */
/* observe.c - see observe.h. */
#include "observe.h"

#include <stdio.h>

#include "conf.h"
#include "context.h"
#include "log.h"
#include "trace.h"

typedef unsigned long long ull;

static void on_segment_alloc(void *arg, uint64_t addr, size_t size, uint64_t ns)
{
    trace_event("segment_alloc", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"cuda\",\"us\":%llu.%llu",
                context_device(arg), (ull)addr, size, (ull)(ns / 1000), (ull)(ns / 100 % 10));
}

static void on_segment_free(void *arg, uint64_t addr, size_t size)
{
    trace_event("segment_free", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"cuda\"", context_device(arg), (ull)addr,
                size);
}

static void on_segment_lost(void *arg, uint64_t addr, size_t size)
{
    trace_event("segment_free", "\"d\":%d,\"p\":\"0x%llx\",\"n\":%zu,\"b\":\"cuda\",\"why\":\"context\"",
                context_device(arg), (ull)addr, size);
}

static void on_trim(void *arg, size_t released, uint64_t ns, const char *why)
{
    trace_event("trim", "\"d\":%d,\"n\":%zu,\"us\":%llu.%llu,\"why\":\"%s\"", context_device(arg), released,
                (ull)(ns / 1000), (ull)(ns / 100 % 10), why);
}

const struct pool_observer_ops observe_ops = {.segment_alloc = on_segment_alloc,
                                              .segment_free = on_segment_free,
                                              .segment_lost = on_segment_lost,
                                              .trim = on_trim};

static void stats_trace(int device, const struct pool_stats *s, uint64_t bypassed)
{
    trace_event("stats",
                "\"d\":%d,\"allocs\":%llu,\"hits\":%llu,\"misses\":%llu,\"frees\":%llu,\"bypassed\":%llu,\"live\":%llu,"
                "\"held\":%llu,\"peak_live\":%llu,\"peak_held\":%llu,\"segments_alloc\":%llu,\"segments_free\":%llu,"
                "\"oom\":%llu,\"order\":%llu,\"kept\":%llu",
                device, (ull)s->allocs, (ull)s->hits, (ull)s->misses, (ull)s->frees, (ull)bypassed, (ull)s->live,
                (ull)s->held, (ull)s->peak_live, (ull)s->peak_held, (ull)s->segments_alloc, (ull)s->segments_free,
                (ull)s->oom, (ull)s->order, (ull)s->kept);
}

static void stats_print(int device, const struct pool_stats *s, uint64_t bypassed)
{
    const double mib = 1024.0 * 1024.0;

    dprintf(2, "cupool: %6d %11llu %6.2f%% %11llu %9llu %9llu %9llu %11.1f %11.1f\n", device, (ull)s->allocs,
            s->allocs ? 100.0 * (double)s->hits / (double)s->allocs : 0.0, (ull)s->frees, (ull)bypassed,
            (ull)s->segments_alloc + (ull)s->segments_free, (ull)s->oom, (double)s->peak_live / mib,
            (double)s->peak_held / mib);
}

void observe_finish(void)
{
    const char *path = trace_path();

    context_stats_each(stats_trace);
    if (conf_get()->stats.number == STATS_EXIT && log_is_open()) {
        dprintf(2, "cupool: %6s %11s %7s %11s %9s %9s %9s %11s %11s\n", "device", "allocs", "hits", "frees", "bypassed",
                "driver", "oom", "peak MiB", "held MiB");
        context_stats_each(stats_print);
        if (path)
            dprintf(2, "cupool: trace: %s\n", path);
    }
}
