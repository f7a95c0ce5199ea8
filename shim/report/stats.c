/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - see stats.h.
 *
 * Locking: stats.lock guards the text of a table, and who it says it is of.
 */
#include "report/stats.h"

#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/launch.h"
#include "base/log.h"
#include "base/process.h"
#include "clock.h"
#include "context/counters.h"
#include "context/host_memory.h"
#include "context/vmm_kept.h"
#include "nccl/register_calls.h"
#include "report/advice.h"
#include "report/background_thread.h"
#include "report/guard.h"
#include "report/job.h"
#include "report/oom.h"
#include "report/unpooled.h"
#include "trace/digits.h"
#include "trace/trace.h"

typedef unsigned long long ull;

static struct {
    pthread_mutex_t lock; /* guards out, used and name */
    char out[4096];       /* static because a stack may be small */
    size_t used;
    char name[48];         /* in front of every line: many ranks write to one terminal */
    int rank;              /* -1: unknown; written before any thread of ours starts */
    atomic_bool asked;     /* a signal has come since the last table */
    uint64_t next, period; /* of the timer, in nanoseconds; used by the background thread alone */
    uint64_t start;        /* in nanoseconds; written before any thread of ours starts */
    pid_t process;         /* the process that loaded the library */
    bool launched;         /* cupool-run became that process */
} stats = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Of a row of counters.def: the text and the value, for counters that are in the trace. */
#define TEXT_0(name)
#define TEXT_1(name) ",\"" #name "\":%llu"
#define VALUE_0(name)
#define VALUE_1(name) (ull) s->name,

/* clang-format off */
static void write_trace(void *arg, int device, const struct pool_stats *s, uint64_t bypassed)
{
    const char *why = arg;

    trace_event("stats", "\"d\":%d"
#define COUNTER(name, traced) TEXT_##traced(name)
#include "counters.def"
#undef COUNTER
                ",\"bypassed\":%llu%s%s%s", device,
#define COUNTER(name, traced) VALUE_##traced(name)
#include "counters.def"
#undef COUNTER
                (ull)bypassed, why ? ",\"why\":\"" : "", why ? why : "", why ? "\"" : "");
}
/* clang-format on */

/* Write the sums over all devices. */
static void write_trace_nccl(const char *why)
{
    struct nccl_reg_stats s;

    if (nccl_stats_get(&s))
        trace_event("nccl",
                    "\"ops\":%llu,\"mixed\":%llu,\"outside\":%llu,\"unsafe\":%llu,\"registered\":%llu,"
                    "\"deregistered\":%llu,\"renewed\":%llu,\"failed\":%llu,\"comms\":%llu,\"segments\":%llu,"
                    "\"parked\":%llu,\"quarantined\":%llu%s%s%s",
                    (ull)s.ops, (ull)s.mixed, (ull)s.outside, (ull)s.unsafe, (ull)s.attached, (ull)s.detached,
                    (ull)s.renewed, (ull)s.failed, (ull)s.comms, (ull)s.segments, (ull)s.parked, (ull)s.quarantined,
                    why ? ",\"why\":\"" : "", why ? why : "", why ? "\"" : "");
}

/* Write the counters of the pool of pinned memory. */
/* clang-format off */
static void write_trace_host(const char *why)
{
    struct host_stats s;

    if (!host_memory_stats(&s))
        return;
    trace_event("host_stats", "\"b\":\"host\""
#define HOST_COUNTER(name) ",\"" #name "\":%llu"
#define HOST_OWN(name)     ",\"" #name "\":%llu"
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
                "%s%s%s",
#define HOST_COUNTER(name) (ull)s.name,
#define HOST_OWN(name)     (ull)s.name,
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
                why ? ",\"why\":\"" : "", why ? why : "", why ? "\"" : "");
}

/* Write the counters of virtual memory that is kept. */
static void write_trace_vmm(const char *why)
{
    struct vmm_stats s;

    if (!vmm_kept_stats(&s))
        return;
    trace_event("vmm_stats", "\"by\":\"program\""
#define VMM_COUNTER(name) ",\"" #name "\":%llu"
#include "vmm_counters.def"
#undef VMM_COUNTER
                "%s%s%s",
#define VMM_COUNTER(name) (ull)s.name,
#include "vmm_counters.def"
#undef VMM_COUNTER
                why ? ",\"why\":\"" : "", why ? why : "", why ? "\"" : "");
}
/* clang-format on */

static void out_flush(void)
{
    if (stats.used)
        log_put(stats.out, stats.used);
    stats.used = 0;
}

__attribute__((format(printf, 1, 2))) static void out_line(const char *format, ...)
{
    va_list args;
    int n;

    if (stats.used + sizeof(stats.name) + 512 > sizeof(stats.out))
        out_flush();
    stats.used += (size_t)snprintf(stats.out + stats.used, sizeof(stats.name), "%s", stats.name);
    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 misses the va_start above. */
    n = vsnprintf(stats.out + stats.used, 512, format, args);
    va_end(args);
    stats.used += n < 512 ? (size_t)n : 511;
}

static int rank_detect(void)
{
    struct launch launch;

    launch_detect(&launch);
    return launch.rank;
}

/* False: another table is being written, or nobody can read this one. */
static bool out_begin(void)
{
    if (!log_is_open() || pthread_mutex_trylock(&stats.lock))
        return false;
    if (stats.rank < 0)
        snprintf(stats.name, sizeof(stats.name), "cupool: ");
    else
        snprintf(stats.name, sizeof(stats.name), "cupool[rank %d, %d]: ", stats.rank, (int)getpid());
    return true;
}

static void out_end(void)
{
    out_flush();
    pthread_mutex_unlock(&stats.lock);
}

/* A row of the table, of a device or of the host. */
struct row {
    uint64_t allocs, hits, frees, bypassed, driver, oom, peak_live, peak_held;
};

/* Bytes in MiB, for a format of %llu.%llu. */
#define MIB_TENTHS(bytes) (ull) digits_tenths(bytes, 1 << 20) / 10, (ull)digits_tenths(bytes, 1 << 20) % 10

/* The part of the requests that were hits, in hundredths of a percent. */
static ull hits_of(uint64_t hits, uint64_t allocs)
{
    return allocs ? digits_tenths(hits * 1000, allocs) : 0;
}

static void row_print(const char *name, const struct row *row)
{
    const ull hits = hits_of(row->hits, row->allocs);

    out_line("%6s %11llu %3llu.%02llu%% %11llu %9llu %9llu %9llu %9llu.%llu %9llu.%llu\n", name, (ull)row->allocs,
             hits / 100, hits % 100, (ull)row->frees, (ull)row->bypassed, (ull)row->driver, (ull)row->oom,
             MIB_TENTHS(row->peak_live), MIB_TENTHS(row->peak_held));
}

static void print_device(void *arg, int device, const struct pool_stats *s, uint64_t bypassed)
{
    const struct row row = {
        s->allocs,         s->hits,      s->frees,    bypassed, s->segments_alloc + s->segments_free,
        oom_count(device), s->peak_live, s->peak_held};
    char name[12];

    (void)arg;
    snprintf(name, sizeof(name), "%d", device);
    row_print(name, &row);
}

static void print_host_row(const struct host_stats *s)
{
    const struct row row = {s->allocs,  s->hits,      s->frees,    s->failed, s->segments_alloc + s->segments_free,
                            s->refused, s->peak_live, s->peak_held};

    row_print("host", &row);
}

static void print_host_now(const struct host_stats *s)
{
    out_line(
        "pinned host memory, MiB: %llu.%llu held in %llu allocations, %llu.%llu live, %llu.%llu idle, %llu.%llu freed "
        "and perhaps in use; %llu requests at the bound\n",
        MIB_TENTHS(s->held), (ull)s->segments, MIB_TENTHS(s->live), MIB_TENTHS(s->idle), MIB_TENTHS(s->waiting),
        (ull)s->bound);
}

static void print_vmm(void)
{
    struct vmm_stats s;

    if (vmm_kept_stats(&s))
        out_line(
            "virtual memory of the program's own: %llu requests, %llu of them with kept memory; MiB: %llu.%llu kept "
            "(most %llu.%llu), %llu.%llu given back\n",
            (ull)s.hits + s.misses, (ull)s.hits, MIB_TENTHS(s.kept), MIB_TENTHS(s.peak_kept), MIB_TENTHS(s.returned));
}

static void print_unpooled(void)
{
    char text[400];

    if (unpooled_text(text, sizeof(text)))
        out_line("not pooled: %s\n", text);
}

/* At exit, once. */
static void print_advice(void)
{
    struct advice_facts facts;
    char text[400];

    advice_facts_get(&facts);
    if (advice_text(&facts, text, sizeof(text)))
        out_line("advice: %s\n", text);
}

/* host: NULL: pinned memory is not pooled. */
static void print_table(bool ending, const struct host_stats *host)
{
    out_line("%6s %11s %7s %11s %9s %9s %9s %11s %11s\n", "device", "allocs", "hits", "frees", "bypassed", "driver",
             "oom", "peak MiB", "held MiB");
    context_stats_each(ending, print_device, NULL);
    if (host)
        print_host_row(host);
}

/* Print the table, or why there is none. why: NULL at exit. */
static void print(const char *why)
{
    const ull tenths = digits_tenths(now_ns() - stats.start, 1000000000);
    const char *path = why ? NULL : trace_path();
    struct nccl_reg_stats nccl;
    struct host_stats host;
    bool pinned;

    if (!out_begin())
        return;
    if (why)
        out_line("process %d after %llu.%llu s (%s):\n", (int)getpid(), tenths / 10, tenths % 10, why);
    pinned = host_memory_stats(&host);
    if (guard_on() && guard_own())
        out_line("nothing was pooled: %s makes every request a driver allocation of its own\n",
                 conf_get()->debug.number == DEBUG_OWN ? "CUPOOL_DEBUG=1" : "compute-sanitizer or cuda-gdb");
    else
        print_table(/* ending: */ !why, pinned ? &host : NULL);
    if (nccl_stats_get(&nccl))
        out_line("NCCL: %llu operations, %llu registrations (%llu undone, %llu made anew, %llu failed), %llu "
                 "operations partly and %llu wholly outside of registered memory, %llu at risk\n",
                 (ull)nccl.ops, (ull)nccl.attached, (ull)nccl.detached, (ull)nccl.renewed, (ull)nccl.failed,
                 (ull)nccl.mixed, (ull)nccl.outside, (ull)nccl.unsafe);
    if (pinned)
        print_host_now(&host);
    print_vmm();
    print_unpooled();
    if (path)
        out_line("trace: %.480s\n", path);
    if (!why)
        print_advice();
    out_end();
}

static void on_signal(int signal)
{
    (void)signal;
    atomic_store(&stats.asked, true);
    background_wake();
}

static bool is_default(const struct sigaction *action)
{
    return !(action->sa_flags & SA_SIGINFO) && action->sa_handler == SIG_DFL;
}

void stats_start(void)
{
    const uint64_t wanted = conf_get()->stats.number;
    struct sigaction ours = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK}, now;
    const int sig = STATS_SIGNAL(wanted);

    stats.start = now_ns();
    stats.rank = rank_detect();
    stats.period = STATS_TIMER_S(wanted) * 1000000000u;
    if (!sig)
        return;
    sigemptyset(&ours.sa_mask);
    if (sigaction(sig, NULL, &now) == 0 && is_default(&now) && sigaction(sig, &ours, &now) == 0 && is_default(&now))
        return;
    /* A handler of the program was installed between the two calls. */
    if (!is_default(&now))
        sigaction(sig, &now, NULL);
    log_write(LOG_WARN, "signal %d is handled or ignored by the program and stays so: no statistics at it", sig);
}

uint64_t stats_due(uint64_t now)
{
    if (!stats.period)
        return UINT64_MAX;
    if (!stats.next)
        stats.next = now + stats.period;
    return stats.next;
}

void stats_tick(uint64_t now)
{
    const bool asked = atomic_load(&stats.asked), due = now >= stats_due(now);
    char *why = asked ? "signal" : "timer";

    if (!asked && !due)
        return;
    atomic_store(&stats.asked, false);
    if (due)
        stats.next += stats.period * ((now - stats.next) / stats.period + 1);
    context_stats_each(/* ending: */ false, write_trace, why);
    write_trace_nccl(why);
    write_trace_host(why);
    write_trace_vmm(why);
    print(why);
}

void stats_finish(void)
{
    context_stats_each(/* ending: */ true, write_trace, NULL);
    write_trace_nccl(NULL);
    write_trace_host(NULL);
    write_trace_vmm(NULL);
    if (conf_get()->stats.number & STATS_EXIT)
        print(NULL);
}

/* The table of the job that this process, a launcher, has run. False: there is none. */
static bool print_job(void)
{
    struct job_row *rows;
    size_t count;

    if (!job_take(&rows, &count))
        return false;
    out_line("job:\n");
    out_line("%-20s %5s %6s %11s %11s %11s %7s %11s\n", "host", "rank", "device", "peak MiB", "held MiB", "allocs",
             "hits", "driver ms");
    for (size_t i = 0; i < count; i++) {
        const struct job_row *row = &rows[i];
        const ull hits = hits_of(row->hits, row->allocs);
        const ull ms = digits_tenths(row->driver_ns, 1000000);
        char rank[12] = "-", device[12] = "-";

        if (row->rank >= 0)
            snprintf(rank, sizeof(rank), "%d", row->rank);
        if (row->device >= 0)
            snprintf(device, sizeof(device), "%d", row->device);
        out_line("%-20.63s %5s %6s %9llu.%llu %9llu.%llu %11llu %3llu.%02llu%% %9llu.%llu%s\n", row->host, rank, device,
                 MIB_TENTHS(row->peak_live), MIB_TENTHS(row->peak_held), (ull)row->allocs, hits / 100, hits % 100,
                 ms / 10, ms % 10, row->ended ? "" : " (killed)");
    }
    free(rows);
    return true;
}

static int is_driver(struct dl_phdr_info *info, size_t size, void *arg)
{
    const char *slash = strrchr(info->dlpi_name, '/');

    (void)size;
    (void)arg;
    return strncmp(slash ? slash + 1 : info->dlpi_name, "libcuda.so", 10) == 0;
}

__attribute__((constructor)) static void started(void)
{
    const char *launched = getenv("_CUPOOL_RUN");

    stats.process = getpid();
    stats.launched = launched && strtol(launched, NULL, 10) == stats.process;
}

/* At the exit of a program that has pooled nothing: if a table was requested, say that the library was there, and why
 * nothing was pooled. A cudart that finds no driver answers without it. Of programs without a driver only the one that
 * cupool-run itself became says so: a script starts many. */
__attribute__((destructor)) static void finish_without(void)
{
    const bool off = !conf_get()->enable.number;
    int driver;

    if (process_has_begun() || (process_is_passive() && !off) || getpid() != stats.process ||
        !(conf_get()->stats.number & STATS_EXIT))
        return;
    driver = dl_iterate_phdr(is_driver, NULL);
    if (!driver && !stats.launched)
        return;
    stats.rank = rank_detect();
    if (!out_begin())
        return;
    if (print_job()) {
        out_end();
        return;
    }
    if (off)
        out_line("nothing was pooled: CUPOOL_ENABLE=0 switches cupool off in process %d\n", (int)getpid());
    else if (driver)
        out_line("nothing was pooled: no cudaMalloc or cuMemAlloc of the program's own came by in process %d\n",
                 (int)getpid());
    else
        out_line(
            "nothing was pooled: process %d loaded no CUDA driver (libcuda.so); programs that it has started speak "
            "for themselves\n",
            (int)getpid());
    print_unpooled();
    print_advice();
    out_end();
}

void stats_forget(void)
{
    const int sig = STATS_SIGNAL(conf_get()->stats.number);
    struct sigaction now, none = {.sa_handler = SIG_DFL};

    if (sig && sigaction(sig, NULL, &now) == 0 && now.sa_handler == on_signal)
        sigaction(sig, &none, NULL);
}
