/* SPDX-License-Identifier: Apache-2.0 */
/* oom.c - see oom.h. No locks of its own. */
#include "report/oom.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "base/conf.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/capture_gate.h"
#include "context/device.h"
#include "context/host_memory.h"
#include "context/lifetime.h"
#include "context/limits.h"
#include "context/pins.h"
#include "context/registry.h"
#include "pool.h"
#include "real/real.h"
#include "trace/digits.h"
#include "trace/trace.h"

/* A program that relies on refusals, and then requests less, gets a message each time their number has doubled this
 * often. */
#define DOUBLINGS 10
/* The least interval, in nanoseconds, between two walks over every block, except for messages on stderr. */
#define EVERY_NS 1000000000u

typedef unsigned long long ull;

/* By device: so many requests have got the out-of-memory error. */
static atomic_uint counts[DEVICES_MAX];

/* The reason why the request could not be served, most specific first. */
enum why { WHY_CAPTURE, WHY_SIZE, WHY_PIECES, WHY_DRIVER, WHY_LIMIT, WHY_OTHERS, WHY_LIVE, WHY_UNKNOWN };

static const struct {
    const char *name, *advice;
} reasons[] = {
    [WHY_SIZE] = {"size", "it is more than the device has in all"},
    [WHY_CAPTURE] = {"capture", "a stream captures: what is idle or kept back can go to the driver when it has ended"},
    [WHY_PIECES] = {"pieces", "what is free would suffice, but lies in pieces between blocks that are live; with "
                              "CUPOOL_ENABLE=0 the driver has it"},
    [WHY_DRIVER] = {"driver", "the driver says that it has as much, and refuses: it was taken or given back meanwhile, "
                              "or is the driver's reserve"},
    [WHY_LIMIT] = {"limit",
                   "CUPOOL_LIMIT is reached, so the request went to the driver; what it got so is counted with "
                   "others"},
    [WHY_OTHERS] = {"others", "others have most of it: other processes (see nvidia-smi), contexts, and memory of this "
                              "process that is not pooled"},
    [WHY_LIVE] = {"live", "the program itself has most of it, and no setting makes more"},
    [WHY_UNKNOWN] = {"unknown", "the driver does not say how much it has"},
};

/* The memory of the device at the moment of the refusal, in bytes. */
struct picture {
    int device;
    uint64_t asked, free, total, others; /* total 0: the driver cannot be asked */
    struct pool_survey pool;             /* the sum over all contexts of the device */
    uint64_t held_here;                  /* bytes held by the current context's pool */
    bool pins;                           /* there is a pool of pinned memory, and these are its counters */
    struct host_stats host;
};

static enum why why(const struct picture *p)
{
    const uint64_t unit = POOL_SEGMENT_UNIT, limit = conf_get()->limit.number;
    const uint64_t need = p->asked > UINT64_MAX - unit ? UINT64_MAX : (p->asked + unit - 1) / unit * unit;
    const uint64_t loose = p->free + p->pool.idle + p->pool.holes;

    if (capture_active() && loose + p->pool.pending >= need)
        return WHY_CAPTURE;
    if (!p->total)
        return WHY_UNKNOWN;
    if (p->asked > p->total)
        return WHY_SIZE;
    if (p->free >= need)
        return WHY_DRIVER;
    if (loose >= need)
        return WHY_PIECES;
    if (limit && p->held_here + need > limit)
        return WHY_LIMIT;
    return p->others > p->pool.live + p->pool.pending ? WHY_OTHERS : WHY_LIVE;
}

/* A number of bytes as text, also in a unit for people. */
struct text {
    char t[40];
};

static struct text text(uint64_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned int unit = 0;
    struct text out;
    uint64_t tenths;

    while ((tenths = digits_tenths(n, 1ull << 10 * unit)) >= 10240 && unit < 4)
        unit++;
    if (unit)
        snprintf(out.t, sizeof(out.t), "%llu (%llu.%llu %s)", (ull)n, (ull)(tenths / 10), (ull)(tenths % 10),
                 units[unit]);
    else
        snprintf(out.t, sizeof(out.t), "%llu", (ull)n);
    return out;
}

static void say(const struct picture *p, enum why reason, unsigned int times)
{
    char again[48] = "", device[200] = "", host[200] = "";
    const struct pool_survey *s = &p->pool;

    if (times > 1)
        snprintf(again, sizeof(again), ", for the %uth time", times);
    if (p->total)
        snprintf(device, sizeof(device), "device: %s free of %s; others hold %s\n", text(p->free).t, text(p->total).t,
                 text(p->others).t);
    if (p->pins)
        snprintf(host, sizeof(host),
                 "pinned host memory, of which nothing is the device's: %s held; %s live, %s idle\n",
                 text(p->host.held).t, text(p->host.live).t, text(p->host.idle).t);
    log_lines(
        LOG_WARN,
        "out of memory on device %d%s: a request of %s was refused\n"
        "pool: %s held; %s live, %s idle, %s kept back, %s in %llu holes of %llu segments, largest free range %s\n"
        "%s%s%s",
        p->device, again, text(p->asked).t, text(s->held).t, text(s->live).t, text(s->idle).t, text(s->pending).t,
        text(s->holes).t, (ull)s->ranges, (ull)s->segments, text(s->largest).t, device, host, reasons[reason].advice);
}

static bool is_said(unsigned int time)
{
    return time && !(time & (time - 1)) && __builtin_ctz(time) % DOUBLINGS == 0;
}

/*
 * True if every block should be walked now. Some programs rely on refusals, and other threads wait for the pool during
 * the walk.
 */
static bool is_due(int device, unsigned int time)
{
    static _Atomic(uint64_t) looked[DEVICES_MAX];
    _Atomic(uint64_t) *last = &looked[(unsigned int)device % DEVICES_MAX];
    uint64_t before = atomic_load(last);
    const uint64_t now = now_ns();

    if (!is_said(time) && now - before < EVERY_NS) /* the first time is said */
        return false;
    return atomic_compare_exchange_strong(last, &before, now) || is_said(time);
}

static void picture_take(struct picture *p, const struct real_driver *driver)
{
    struct pins *own;
    const struct context *context = context_begin(driver, /* by_runtime: */ false, &own);
    struct pool_stats stats;
    size_t free, total;

    /* The driver's function, because it sets no last error. Not during a capture, which the call could invalidate. */
    if (!capture_active() && driver->cuMemGetInfo_v2(&free, &total) == CUDA_SUCCESS) {
        p->free = free;
        p->total = total;
    }
    if (context) {
        pool_stats_get(context_pool(context), &stats);
        p->held_here = stats.held;
        pin_end(own);
    }
    context_survey(p->device, /* whole: */ true, &p->pool);
    p->pins = host_memory_stats(&p->host);
    if (p->total > p->free + p->pool.held)
        p->others = p->total - p->free - p->pool.held;
}

/* The members of the event about pinned memory; none without a pool of it. */
static const char *pinned_members(const struct picture *p, char *buf, size_t len)
{
    buf[0] = '\0';
    if (p->pins)
        snprintf(buf, len, ",\"host_held\":%llu,\"host_idle\":%llu", (ull)p->host.held, (ull)p->host.idle);
    return buf;
}

void oom_report(size_t size)
{
    char pinned[80];
    const struct real_driver *driver = process_is_passive() ? NULL : real_driver_get();
    struct picture p = {.asked = size};
    unsigned int time;
    CUdevice device;
    enum why reason;

    if (!driver || driver->cuCtxGetDevice(&device))
        return;
    p.device = device;
    time = atomic_fetch_add(&counts[(unsigned int)device % DEVICES_MAX], 1) + 1;
    if (!is_due(device, time)) {
        context_survey(device, /* whole: */ false, &p.pool);
        trace_event("oom", "\"d\":%d,\"n\":%zu,\"held\":%llu,\"live\":%llu", p.device, size, (ull)p.pool.held,
                    (ull)p.pool.live);
        return;
    }
    picture_take(&p, driver);
    reason = why(&p);
    trace_event("oom",
                "\"d\":%d,\"n\":%zu,\"held\":%llu,\"live\":%llu,\"idle\":%llu,\"pending\":%llu,\"holes\":%llu,"
                "\"ranges\":%llu,\"segments\":%llu,\"largest\":%llu,\"device_free\":%llu,\"device_total\":%llu,"
                "\"others\":%llu,\"why\":\"%s\"%s",
                p.device, size, (ull)p.pool.held, (ull)p.pool.live, (ull)p.pool.idle, (ull)p.pool.pending,
                (ull)p.pool.holes, (ull)p.pool.ranges, (ull)p.pool.segments, (ull)p.pool.largest, (ull)p.free,
                (ull)p.total, (ull)p.others, reasons[reason].name, pinned_members(&p, pinned, sizeof(pinned)));
    if (is_said(time))
        say(&p, reason, time);
}

void oom_report_host(size_t size)
{
    static atomic_uint count;
    struct host_stats s;
    unsigned int time;
    char again[48] = "";
    bool is_idle;

    if (process_is_passive() || !host_memory_stats(&s))
        return;
    time = atomic_fetch_add(&count, 1) + 1;
    is_idle = s.idle >= size;
    trace_event("host_oom",
                "\"b\":\"host\",\"n\":%zu,\"held\":%llu,\"live\":%llu,\"idle\":%llu,\"waiting\":%llu,\"why\":\"%s\"",
                size, (ull)s.held, (ull)s.live, (ull)s.idle, (ull)s.waiting, is_idle ? "busy" : "driver");
    if (!is_said(time))
        return;
    if (time > 1)
        snprintf(again, sizeof(again), ", for the %uth time", time);
    log_lines(LOG_WARN,
              "out of pinned host memory%s: a request of %s was refused\n"
              "pool of pinned memory: %s held in %llu allocations; %s live, %s idle, %s freed and perhaps in use\n"
              "%s",
              again, text(size).t, text(s.held).t, (ull)s.segments, text(s.live).t, text(s.idle).t, text(s.waiting).t,
              is_idle ? "what is idle would suffice, but work that is under way keeps it, or a capture"
                      : "the driver, the machine or its cgroup gives no more; what is idle has gone back before");
}

unsigned int oom_count(int device)
{
    return atomic_load(&counts[(unsigned int)device % DEVICES_MAX]);
}
