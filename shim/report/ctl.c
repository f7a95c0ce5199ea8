/* SPDX-License-Identifier: Apache-2.0 */
/* ctl.c - see ctl.h. No locks. */
#include "report/ctl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/ctl_socket.h"
#include "base/launch.h"
#include "base/log.h"
#include "clock.h"
#include "context/counters.h"
#include "context/device.h"
#include "context/lifetime.h"
#include "context/limits.h"
#include "context/pause.h"
#include "trace/json.h"
#include "trace/trace.h"

typedef unsigned long long ull;

/* The longest time, in nanoseconds, for which `trim` looks whether memory has arrived at the driver. */
#define TRIM_NS 100000000u
/* The longest wait of `pause` for work, whatever the request says. */
#define WAIT_MS_MAX 600000u

/* Used by the background thread alone. */
static struct {
    char text[CTL_TEXT_MAX];
    size_t used;
    bool cut;
    uint64_t known;  /* a bit for each device with a pool now or before */
    uint64_t paused; /* and for each that the last request has paused */
} ctl;

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    const size_t room = sizeof(ctl.text) - ctl.used;
    va_list args;
    int len;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 misses the va_start above. */
    len = vsnprintf(ctl.text + ctl.used, room, format, args);
    va_end(args);
    ctl.cut |= len < 0 || (size_t)len >= room;
    ctl.used += ctl.cut ? 0 : (size_t)len;
}

static void know(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    (void)arg;
    (void)stats;
    (void)bypassed;
    ctl.known |= UINT64_C(1) << (unsigned int)device % DEVICES_MAX;
}

/* The next device from *i on that the request concerns and this process knows; -1: no more. */
static int device_next(const struct ctl_request *request, int *i)
{
    for (; *i < DEVICES_MAX; ++*i)
        if ((ctl.known >> *i & 1) && (request->device < 0 || request->device == *i))
            return (*i)++;
    return -1;
}

/* --- the commands: 0 and JSON, or a negative errno value and a reason --- */

static void say_short(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    const struct ctl_request *request = arg;

    (void)bypassed;
    if (request->device < 0 || request->device == device)
        say("%s{\"device\":%d,\"live\":%llu,\"held\":%llu,\"idle\":%llu,\"paused\":%llu,\"is_paused\":%s}",
            ctl.text[ctl.used - 1] == '[' ? "" : ",", device, (ull)stats->live, (ull)stats->held, (ull)stats->idle,
            (ull)stats->paused, device_is_paused(device) ? "true" : "false");
}

static void say_all(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    const struct ctl_request *request = arg;

    if (request->device >= 0 && request->device != device)
        return;
    say("%s{\"device\":%d,\"bypassed\":%llu", ctl.text[ctl.used - 1] == '[' ? "" : ",", device, (ull)bypassed);
#define COUNTER(name, traced) say(",\"" #name "\":%llu", (ull)stats->name);
#include "counters.def"
#undef COUNTER
    say("}");
}

static int list(struct ctl_request *request, bool whole)
{
    char exe[600], host[600];
    struct launch launch;

    launch_detect(&launch);
    json_text(exe, sizeof(exe), launch.exe);
    json_text(host, sizeof(host), launch.host);
    say("{\"pid\":%d,\"rank\":%d,\"host\":\"%s\",\"exe\":\"%s\",\"version\":\"%s\",\"devices\":[", (int)getpid(),
        launch.rank, host, exe, CUPOOL_VERSION);
    context_stats_each(/* ending: */ false, whole ? say_all : say_short, request);
    say("]}");
    return 0;
}

static int trim(const struct ctl_request *request)
{
    uint64_t bytes = 0;

    for (int i = 0, device; (device = device_next(request, &i)) >= 0;)
        bytes += device_yield(device, now_ns() + TRIM_NS);
    say("{\"bytes\":%llu}", (ull)bytes);
    return 0;
}

static int limit(const struct ctl_request *request)
{
    context_limit_set(request->device < 0 ? CONTEXT_ALL : request->device, request->value);
    if (request->device < 0)
        trace_event("limit", "\"n\":%llu", (ull)request->value);
    else
        trace_event("limit", "\"d\":%d,\"n\":%llu", request->device, (ull)request->value);
    return trim(request);
}

static int refused(int rc, int device)
{
    ctl.used = 0;
    say("device %d: %s", device, pause_reason());
    return rc;
}

/* -EALREADY: all of them are paused. */
static int check(const struct ctl_request *request)
{
    const bool keep = request->flags == CTL_KEEP;
    bool any = false, paused = false;
    int rc;

    if (!keep && request->flags != CTL_DISCARD)
        return -EINVAL;
    for (int i = 0, device; (device = device_next(request, &i)) >= 0;) {
        rc = pause_check(device, keep);
        if (rc && rc != -EALREADY)
            return refused(rc, device);
        any |= !rc;
        paused |= rc != 0;
    }
    say(paused && !any ? "it is paused" : "{}");
    return paused && !any ? -EALREADY : 0;
}

/* The devices that the last request has paused are not paused after all. */
static void take_back(void)
{
    uint64_t bytes;

    for (int device = 0; device < DEVICES_MAX; device++)
        if (ctl.paused >> device & 1 && resume_device(device, &bytes))
            log_write(LOG_WARN, "device %d stays paused: %s", device, pause_reason());
    ctl.paused = 0;
}

static int pause_all(const struct ctl_request *request)
{
    const uint32_t wait_ms = request->wait_ms < WAIT_MS_MAX ? request->wait_ms : WAIT_MS_MAX;
    const uint64_t until = now_ns() + (uint64_t)wait_ms * 1000000u;
    uint64_t bytes, sum = 0;
    int rc = check(request);

    for (int i = 0, device; !rc && (device = device_next(request, &i)) >= 0;) {
        rc = pause_device(device, request->flags == CTL_KEEP, until, &bytes);
        if (!rc) {
            ctl.paused |= UINT64_C(1) << device;
            sum += bytes;
        } else if (rc == -EALREADY) {
            rc = 0;
        } else {
            refused(rc, device);
            take_back();
        }
    }
    if (rc)
        return rc;
    ctl.used = 0;
    say("{\"bytes\":%llu}", (ull)sum);
    return 0;
}

/* Each device for itself, since those that find their memory can run. The last error. */
static int resume_all(const struct ctl_request *request)
{
    uint64_t bytes, sum = 0;
    bool any = false;
    int rc = 0, one;

    for (int i = 0, device; (device = device_next(request, &i)) >= 0;) {
        one = resume_device(device, &bytes);
        if (one == -EALREADY)
            continue;
        any = true;
        if (one)
            rc = refused(one, device);
        else
            sum += bytes;
    }
    if (rc)
        return rc;
    if (!any) {
        say("it is not paused");
        return -EALREADY;
    }
    say("{\"bytes\":%llu}", (ull)sum);
    return 0;
}

static int serve(struct ctl_request *request)
{
    switch (request->command) {
    case CTL_LIST:
        return list(request, /* whole: */ false);
    case CTL_STATS:
        return list(request, /* whole: */ true);
    case CTL_TRIM:
        return trim(request);
    case CTL_LIMIT:
        return limit(request);
    case CTL_CHECK:
        return check(request);
    case CTL_PAUSE:
        return pause_all(request);
    case CTL_RESUME:
        return resume_all(request);
    default:
        say("no such command");
        return -EINVAL;
    }
}

static void answer(struct ctl_request *request)
{
    const bool pauses = request->command == CTL_PAUSE;
    int rc;

    ctl.used = 0;
    ctl.cut = false;
    ctl.paused = 0;
    context_stats_each(/* ending: */ false, know, NULL);
    if (request->device >= 0 && (request->device >= DEVICES_MAX || !(ctl.known >> request->device & 1))) {
        say("it does not use this device");
        rc = -ENODEV;
    } else if (pauses && !ctl_socket_is_awaited()) {
        rc = -EPIPE; /* this process was stopped, say, and those that paused with it have been resumed */
    } else {
        rc = serve(request);
    }
    if (ctl.cut) {
        rc = -EMSGSIZE;
        ctl.used = 0;
    }
    log_write(LOG_DEBUG, "cupool-ctl: command %u, result %d", request->command, rc);
    if (!ctl_socket_reply(rc, ctl.text, ctl.used) && pauses && !rc) {
        log_write(LOG_INFO, "cupool-ctl has gone before it heard of the pause, which ends");
        take_back();
    }
}

/* --- rows of background_jobs --- */

void ctl_start(void)
{
    const char *folder = conf_get()->ctl.text, *why;
    int rc;

    if (!*folder || strcmp(folder, "off") == 0)
        return;
    rc = ctl_socket_open(folder, &why);
    if (rc)
        log_write(LOG_WARN, "cupool-ctl cannot reach this process at CUPOOL_CTL=%.300s: %s", folder,
                  why ? why : strerror(-rc));
}

uint64_t ctl_due(uint64_t now)
{
    (void)now;
    return ctl_socket_due();
}

void ctl_tick(uint64_t now)
{
    struct ctl_request request;

    while (ctl_socket_read(now, &request))
        answer(&request);
}

unsigned int ctl_listen(struct pollfd *fds, unsigned int max)
{
    return ctl_socket_listen(fds, max);
}

void ctl_ring(void)
{
    ctl_socket_ring();
}

void ctl_end(void)
{
    ctl_socket_close(/* forked: */ false);
}

void ctl_forget(void)
{
    ctl_socket_close(/* forked: */ true);
}
