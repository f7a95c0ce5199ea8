/* SPDX-License-Identifier: Apache-2.0 */
/* test_tables.c - the tables of counters, the report when memory runs out, advice and what was not pooled, as whole
 * texts. The figures are the test's own. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

#include "golden.h"
#include "stubs.h"
#include "system.h"

#include "base/conf.h"
#include "context/capture_gate.h"
#include "report/guard.h"
#include "report/oom.h"
#include "report/stats.h"
#include "report/unpooled.h"

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* --- when memory runs out --- */

struct oom {
    const char *name, *environment;
    size_t asked;
    struct stub stub;
    unsigned int captures;
};

/* A device of 80 GiB. pool: live, pending, idle, holes; held: the sum. */
#define DEVICE(free_, live_, pending_, idle_, holes_)                                                                  \
    .free = (size_t)(free_), .total = 80 * GIB,                                                                        \
    .survey = {.live = (live_),                                                                                        \
               .pending = (pending_),                                                                                  \
               .idle = (idle_),                                                                                        \
               .holes = (holes_),                                                                                      \
               .held = (live_) + (pending_) + (idle_) + (holes_),                                                      \
               .ranges = 3,                                                                                            \
               .segments = 2,                                                                                          \
               .largest = 5 * KIB}

static const struct oom ooms[] = {
    {"others have most", NULL, 8 * GIB, {DEVICE(GIB, 10 * GIB, GIB, GIB, GIB)}, 0},
    {"the program has most", NULL, 8 * GIB, {DEVICE(GIB, 60 * GIB, GIB, GIB, GIB)}, 0},
    {"others have as much", NULL, 8 * GIB, {DEVICE(0, 39 * GIB, GIB, 0, 0)}, 0},
    {"others have a byte more", NULL, 8 * GIB, {DEVICE(0, 39 * GIB, GIB - 1, 0, 0)}, 0},
    {"more than the device has", NULL, 80 * GIB + 1, {DEVICE(GIB, 0, 0, 0, 0)}, 0},
    {"all that the device has", NULL, 80 * GIB, {DEVICE(GIB, 0, 0, 0, 0)}, 0},
    {"the driver has as much", NULL, 2 * MIB, {DEVICE(2 * MIB, 70 * GIB, 0, 0, 0)}, 0},
    {"the driver has as much, but rounded", NULL, 2 * MIB + 1, {DEVICE(4 * MIB - 1, 70 * GIB, 0, 0, 0)}, 0},
    {"in pieces", NULL, 8 * MIB, {DEVICE(2 * MIB, 70 * GIB, 0, 2 * MIB, 4 * MIB)}, 0},
    {"nearly in pieces", NULL, 8 * MIB, {DEVICE(2 * MIB, 70 * GIB, 0, 2 * MIB, 4 * MIB - 1)}, 0},
    {"a capture", NULL, 8 * MIB, {DEVICE(2 * MIB, 70 * GIB, 6 * MIB, 0, 0)}, 1},
    {"a capture that has more", NULL, 8 * MIB, {DEVICE(2 * MIB, 70 * GIB, 8 * MIB, 0, 0)}, 1},
    {"a capture that has less", NULL, 8 * MIB, {DEVICE(2 * MIB, 70 * GIB, 8 * MIB - 1, 0, 0)}, 1},
    {"no capture", NULL, 8 * MIB, {DEVICE(2 * MIB, 70 * GIB, 8 * MIB, 0, 0)}, 0},
    {"the limit", "CUPOOL_LIMIT=10M", 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .stats = {.held = 4 * MIB}}, 0},
    {"the limit exactly", "CUPOOL_LIMIT=12M", 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .stats = {.held = 4 * MIB}}, 0},
    {"the limit, and no context",
     "CUPOOL_LIMIT=10M",
     8 * MIB,
     {DEVICE(MIB, 70 * GIB, 0, 0, 0), .stats = {.held = 4 * MIB}, .no_context = true},
     0},
    {"the driver says nothing", NULL, 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .no_info = true}, 0},
    {"the pool has more than all", NULL, 8 * MIB, {DEVICE(MIB, 80 * GIB, 0, 0, 0)}, 0},
    {"no number at all", NULL, SIZE_MAX, {DEVICE(MIB, 70 * GIB, 0, 0, 0)}, 0},
    {"pinned memory",
     NULL,
     8 * MIB,
     {DEVICE(MIB, 70 * GIB, 0, 0, 0), .has_host = true, .host = {.held = 3 * MIB, .live = MIB, .idle = 512}},
     0},
    {"units",
     NULL,
     1023,
     {.free = 1024,
      .total = 1048524,
      .survey = {.live = 1048525,
                 .pending = 1 << 20,
                 .idle = 10 * GIB,
                 .holes = 1024 * GIB,
                 .held = UINT64_MAX,
                 .largest = 1023}},
     0},
    {"another device", NULL, 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .device = 7}, 0},
    {"no device", NULL, 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .no_device = true}, 0},
    {"no driver", NULL, 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .no_driver = true}, 0},
    {"a passive process", NULL, 8 * MIB, {DEVICE(MIB, 70 * GIB, 0, 0, 0), .passive = true}, 0},
};

static int oom(const void *arg)
{
    const struct oom *oom = arg;

    stub = oom->stub;
    stub.begun = true;
    system_ns = 1;
    atomic_store(&capture_count, oom->captures);
    oom_report(oom->asked);
    if (!oom->stub.no_context && atomic_load(&stub_pins.on[0]))
        printf("the context is pinned\n");
    printf("%u of device %d\n", oom_count(oom->stub.device), oom->stub.device);
    return 0;
}

/* Again and again: what is said, and how often all blocks are looked at. */
static int oom_again(const void *arg)
{
    (void)arg;
    stub = ooms[0].stub;
    stub.begun = true;
    system_ns = 1000;
    for (unsigned int i = 1; i <= 1100; i++) {
        stub.quiet = i > 6 && (i < 1022 || i > 1026);
        system_ns += i == 3 ? 999999999 : i == 4 ? 1 : i == 5 ? 1000000000 : 0;
        oom_report(i);
    }
    printf("%u\n", oom_count(0));
    return 0;
}

/* Each device is looked at by itself. */
static int oom_devices(const void *arg)
{
    (void)arg;
    stub = ooms[0].stub;
    stub.begun = true;
    system_ns = 1000;
    for (unsigned int i = 0; i < 6; i++) {
        stub.device = (int)(i % 3) * 9;
        oom_report(i);
        system_ns += 400000000;
    }
    printf("%u %u %u\n", oom_count(0), oom_count(9), oom_count(18));
    return 0;
}

static int oom_host(const void *arg)
{
    (void)arg;
    stub = (struct stub){.begun = true,
                         .host = {.held = 10 * MIB, .live = MIB, .idle = 512, .waiting = 3 * MIB, .segments = 4}};
    oom_report_host(100);
    stub.has_host = true;
    oom_report_host(512);
    oom_report_host(513);
    stub.passive = true;
    oom_report_host(5);
    stub.passive = false;
    for (unsigned int i = 3; i <= 1100; i++) {
        stub.quiet = i > 4 && i < 1023;
        oom_report_host(i);
        stub.quiet = true;
    }
    return 0;
}

/* --- tables --- */

static const struct pool_stats counters = {.allocs = 4584,
                                           .hits = 4567,
                                           .misses = 17,
                                           .frees = 4580,
                                           .failed = 1,
                                           .live = 5 * MIB,
                                           .held = 42 * MIB,
                                           .peak_live = 36 * MIB + 52428,
                                           .peak_held = 42 * MIB + 104858,
                                           .idle = 3,
                                           .segments_alloc = 12,
                                           .segments_free = 5,
                                           .oom = 2,
                                           .order = 9,
                                           .kept = 8,
                                           .bound = 7,
                                           .helped = 6,
                                           .driver_ns = 5,
                                           .paused = 4};
static const struct host_stats pinned = {.allocs = 100,
                                         .hits = 33,
                                         .frees = 90,
                                         .failed = 3,
                                         .segments_alloc = 7,
                                         .segments_free = 2,
                                         .refused = 1,
                                         .live = MIB,
                                         .held = 4 * MIB,
                                         .peak_live = 2 * MIB,
                                         .peak_held = 5 * MIB,
                                         .idle = MIB / 2,
                                         .waiting = MIB / 10,
                                         .segments = 5,
                                         .bound = 6};

struct table {
    const char *name, *environment;
    bool host, nccl, vmm, guard, own, unpooled, path, job, begun, closed, again;
    const char *driver_path;
    int devices, rank;
    int signal;               /* the program has a handler of this one */
    bool info, ignored, late; /* with more arguments; it ignores it; it comes after a first look */
    bool passive;
};

#define STATS "CUPOOL_STATS=exit,timer:2s,signal:USR2"

static const struct table tables[] = {
    {.name = "a table", .environment = STATS, .devices = 1, .rank = -1, .begun = true},
    {.name = "a table of two devices", .environment = STATS, .devices = 2, .rank = 3, .begun = true},
    {.name = "a table of all",
     .environment = STATS,
     .devices = 1,
     .rank = 12,
     .begun = true,
     .host = true,
     .nccl = true,
     .vmm = true,
     .unpooled = true,
     .path = true},
    {.name = "a table of many devices", .environment = STATS, .devices = 40, .rank = 1, .begun = true},
    {.name = "no table at exit",
     .environment = "CUPOOL_STATS=timer:2s",
     .devices = 1,
     .rank = 0,
     .begun = true,
     .host = true},
    {.name = "no table", .environment = "", .devices = 1, .begun = true, .nccl = true},
    {.name = "no stderr", .environment = STATS, .devices = 1, .begun = true, .closed = true},
    {.name = "CUPOOL_DEBUG",
     .environment = STATS " CUPOOL_DEBUG=1",
     .devices = 1,
     .begun = true,
     .guard = true,
     .own = true},
    {.name = "a debugger", .environment = STATS, .devices = 1, .begun = true, .guard = true, .own = true},
    {.name = "guards", .environment = STATS, .devices = 1, .begun = true, .guard = true},
    {.name = "the program's own signal", .environment = STATS, .devices = 1, .begun = true, .signal = SIGUSR2},
    {.name = "the program's own signal with arguments",
     .environment = STATS,
     .devices = 1,
     .begun = true,
     .signal = SIGUSR2,
     .info = true},
    {.name = "a signal that the program ignores",
     .environment = STATS,
     .devices = 1,
     .begun = true,
     .signal = SIGUSR2,
     .ignored = true},
    {.name = "a handler that comes meanwhile", .environment = STATS, .devices = 1, .begun = true, .late = true},
    {.name = "nothing pooled, no driver", .environment = STATS, .rank = -1},
    {.name = "nothing pooled, a driver", .environment = STATS, .rank = 2, .driver_path = "/usr/lib/libcuda.so.1"},
    {.name = "nothing pooled, a driver without a folder",
     .environment = STATS,
     .rank = 2,
     .driver_path = "libcuda.so.1"},
    {.name = "nothing pooled, a library like the driver",
     .environment = STATS,
     .rank = 2,
     .driver_path = "/usr/libcuda.so/libcuda.s"},
    {.name = "nothing pooled, switched off",
     .environment = STATS " CUPOOL_ENABLE=0",
     .rank = 2,
     .passive = true,
     .unpooled = true},
    {.name = "nothing pooled, passive", .environment = STATS, .rank = 2, .passive = true},
    {.name = "nothing pooled, no table", .environment = "CUPOOL_STATS=timer:2s", .rank = 2},
    {.name = "nothing pooled, no stderr", .environment = STATS, .rank = 2, .closed = true},
    {.name = "a job", .environment = STATS, .rank = -1, .job = true},
};

static void before(const struct table *table)
{
    static const struct job_row rows[] = {
        {.host = "node",
         .rank = 0,
         .device = 1,
         .ended = true,
         .allocs = 10,
         .hits = 3,
         .driver_ns = 123456789,
         .peak_live = MIB,
         .peak_held = 2 * MIB},
        {.host = "node",
         .rank = 1,
         .device = 0,
         .ended = true,
         .allocs = 1000,
         .hits = 995,
         .driver_ns = 123456789012345678,
         .peak_live = 3},
        {.host = "a name of a host that is long",
         .rank = -1,
         .device = -1,
         .allocs = 0,
         .hits = 0,
         .driver_ns = 49999,
         .peak_live = 52429,
         .peak_held = 0},
    };

    stub = (struct stub){.devices = table->devices,
                         .rank = table->rank,
                         .stats = counters,
                         .bypassed = 11,
                         .host = pinned,
                         .has_host = table->host,
                         .has_nccl = table->nccl,
                         .has_vmm = table->vmm,
                         .guard_own = table->own,
                         .begun = table->begun,
                         .closed = table->closed,
                         .passive = table->passive,
                         .nccl = {.ops = 1,
                                  .mixed = 2,
                                  .outside = 3,
                                  .unsafe = 4,
                                  .attached = 5,
                                  .detached = 6,
                                  .renewed = 7,
                                  .failed = 8,
                                  .comms = 9,
                                  .segments = 10,
                                  .parked = 11,
                                  .quarantined = 12},
                         .vmm = {.hits = 7, .misses = 5, .kept = 3 * MIB, .peak_kept = 4 * MIB, .returned = MIB},
                         .facts = {.hook = HOOK_RUNTIME},
                         .path = table->path ? "/tmp/t.jsonl" : NULL};
    stub.quiet = table->devices > 2; /* the events would be as many */
    stub.job = table->job ? rows : NULL;
    stub.job_count = 3;
    if (table->driver_path)
        system_library = table->driver_path;
    atomic_store(&guard_mode, table->guard);
    if (table->unpooled) {
        unpooled_took(UNPOOLED_CREATE, 6 * MIB);
        unpooled_took(UNPOOLED_CREATE, MIB);
        unpooled_took(UNPOOLED_ASYNC, 0);
    }
}

static void handler(int number)
{
    printf("the program's handler of %d\n", number);
}

static int table(const void *arg)
{
    const struct table *table = arg;
    struct sigaction now;

    before(table);
    if (!table->begun)
        return 0; /* the rest comes at exit */
    system_ns = 1000000000;
    now =
        (struct sigaction){.sa_handler = table->ignored ? SIG_IGN : handler, .sa_flags = table->info ? SA_SIGINFO : 0};
    if (table->signal)
        sigaction(table->signal, &now, NULL);
    system_handler = table->late ? handler : NULL;
    stats_start();
    printf("due %lld\n", (long long)stats_due(system_ns));
    stats_tick(system_ns + 1999999999);
    system_ns += 1250000000;
    raise(SIGUSR2);
    stats_tick(system_ns);
    stats_tick(system_ns);
    system_ns += 2000000000;
    stats_tick(system_ns);
    printf("due %lld\n", (long long)stats_due(system_ns));
    system_ns += 500000000000000000;
    raise(SIGUSR2);
    stats_tick(system_ns);
    stats_finish();
    stats_forget();
    sigaction(SIGUSR2, NULL, &now);
    printf("its handler is %s\n", now.sa_handler == SIG_DFL   ? "none"
                                  : now.sa_handler == SIG_IGN ? "to ignore it"
                                  : now.sa_handler == handler ? "the program's"
                                                              : "the library's");
    return 0;
}

const char golden_name[] = "report/tables";

void golden_cases(void)
{
    static const struct golden again[] = {{"out of memory again", NULL, oom_again, NULL},
                                          {"out of memory on three devices", NULL, oom_devices, NULL},
                                          {"out of pinned memory", NULL, oom_host, NULL}};
    struct golden golden;

    stub.begun = true; /* of this process nothing is said */
    for (size_t i = 0; i < sizeof(ooms) / sizeof(ooms[0]); i++) {
        golden = (struct golden){ooms[i].name, ooms[i].environment, oom, &ooms[i]};
        golden_run(&golden);
    }
    for (size_t i = 0; i < sizeof(again) / sizeof(again[0]); i++)
        golden_run(&again[i]);
    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        golden = (struct golden){tables[i].name, tables[i].environment, table, &tables[i]};
        golden_run(&golden);
    }
}
