/* SPDX-License-Identifier: Apache-2.0 */
/* test_contents.c - what is in a trace and in a statistics file, and in the log, after each call of the system has
 * failed in turn: with an error, by a signal, with half of the bytes. */
#include "golden.h"
#include "stubs.h"
#include "system.h"
#include "tree.h"

#include <errno.h>

#include "report/stats_file.h"
#include "trace/trace.h"

static const char *page_path = "d/p";

/* Every kind of event once. */
static void events(void)
{
    const struct trace_segment got = {.device = 1, .backend = "cuda", .size = 4096, .got = true};
    const struct trace_segment back = {.device = 1, .backend = "cuda", .size = 4096};
    const uint16_t frames[] = {7, 8};
    const struct trace_block block = {
        .device = 2, .addr = 0x7000, .size = 100, .block = 512, .frames = frames, .frames_count = 2};

    system_ns += 1000;
    trace_event("one", "\"n\":%d", 1);
    system_ns += 1000;
    trace_segment(&got, "segment_alloc", "\"n\":%d", 2);
    system_ns += 1000;
    if (trace_allocs()) {
        trace_block(TRACE_BLOCK_ALLOC, &block);
        trace_block(TRACE_BLOCK_FREE_COMPLETED, &block);
    }
    system_ns += 1000;
    trace_frequent("often", "\"n\":%d", 3);
    system_ns += 1000;
    trace_segment_at(5000000004500, &back, "segment_free", "\"n\":%d", 4);
    system_ns += 1000;
    if (trace_allocs())
        trace_block(TRACE_BLOCK_FREE_REQUESTED, &block);
    system_ns += 1000;
    trace_frequent_at(1, "early", "\"n\":%d", 5);
    system_ns += 1000;
    trace_event("last", "\"n\":%d", 6);
    system_ns += 1000;
}

static int trace(const void *arg)
{
    const enum system_failure *how = arg;
    int copy;

    system_failure = how ? *how : FAILS_EIO;
    tree_file("clock", "hpet\n");
    tree_start();
    printf("expected %d\n", trace_expected());
    trace_open();
    trace_open();
    printf("path %s, expected %d, allocs %d\n", trace_path() ? trace_path() : "none", trace_expected(), trace_allocs());
    events();
    copy = trace_path() ? (open)(trace_path(), O_RDONLY | O_CLOEXEC) : -1;
    trace_close();
    trace_close();
    trace_event("after", "\"n\":%d", 7);
    printf("path %s, expected %d, allocs %d\n", trace_path() ? trace_path() : "none", trace_expected(), trace_allocs());
    if (copy >= 0)
        (close)(copy);
    tree_print();
    return 0;
}

/* The child of a fork has the same file, and leaves it alone. */
static int trace_child(const void *arg)
{
    int fd;

    (void)arg;
    tree_start();
    trace_open();
    trace_event("one", "\"n\":%d", 1);
    fd = (fcntl)(200, F_DUPFD_CLOEXEC, 3); /* the parent's */
    trace_forget();
    trace_event("two", "\"n\":%d", 2);
    trace_open();
    trace_close();
    printf("path %s, expected %d\n", trace_path() ? trace_path() : "none", trace_expected());
    tree_print(); /* locked: the parent has it */
    (close)(fd);
    return 0;
}

/* A line that is too long for the room is dropped whole; the longest one is written. */
static int long_lines(const void *arg)
{
    static char text[1000];

    (void)arg;
    memset(text, 'x', sizeof(text) - 1);
    tree_start();
    trace_open();
    for (int len = 710; len < 760; len += 5)
        trace_event("long", "\"l\":\"%.*s\"", len, text);
    for (int len = 720; len < 732; len++)
        trace_event("long", "\"l\":\"%.*s\"", len, text);
    trace_close();
    tree_print();
    return 0;
}

/* The file is removed, or its descriptor is another file's, before the events. */
static int trace_gone(const void *arg)
{
    tree_start();
    trace_open();
    if (arg)
        dup2((open)("clock", O_RDWR | O_CREAT | O_CLOEXEC, 0600), 200);
    else
        (unlink)("d/t");
    errno = TREE_ERRNO;
    events();
    trace_close();
    tree_print();
    tree_file("d/clock", "");
    return 0;
}

/* --- the statistics file --- */

static int page(const void *arg)
{
    const enum system_failure *how = arg;
    int copy, cancel;

    system_failure = how ? *how : FAILS_EIO;
    tree_start();
    stats_page_open();
    tree_errno("stats_page_open");
    printf("due %lld\n", (long long)stats_page_due(0));
    copy = (open)(page_path, O_RDONLY | O_CLOEXEC);
    /* The callers see to it that their thread is not cancelled: it is the library's own, or ends the process. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    system_ns += 1000;
    stats_page_tick(0);
    system_ns += 1000;
    stub_devices++;
    stats_page_tick(1);
    printf("due %lld\n", (long long)stats_page_due(0));
    stats_page_tick(999999999);
    system_ns += 1000;
    stub_host = true;
    stats_page_tick(1000000000);
    printf("due %lld\n", (long long)stats_page_due(0));
    system_ns += 1000;
    errno = TREE_ERRNO;
    stats_page_finish();
    stats_page_finish();
    tree_errno("stats_page_finish");
    printf("due %lld\n", (long long)stats_page_due(0));
    stats_page_tick(3000000000);
    pthread_setcancelstate(cancel, NULL);
    if (copy >= 0)
        (close)(copy);
    errno = TREE_ERRNO;
    tree_print();
    return 0;
}

/* For so many devices there is room, and for pinned memory. */
static int many_devices(const void *arg)
{
    stub_devices = *(const unsigned int *)arg - 1;
    stub_host = true;
    return page(NULL);
}

static int page_child(const void *arg)
{
    tree_start();
    stats_page_open();
    stub_devices = 3;
    stub_foreign = arg != NULL;
    if (!arg)
        stats_page_forget();
    stats_page_tick(2000000000);
    if (!arg)
        stats_page_finish();
    errno = TREE_ERRNO;
    tree_print();
    return 0;
}

static int page_elsewhere(const void *arg)
{
    (void)arg;
    stub_elsewhere = true;
    return page(NULL);
}

#define TRACE  "CUPOOL_TRACE_FILE=d/t CUPOOL_STATS_FILE=d/p RANK=3 LOCAL_RANK=1"
#define ALLOCS TRACE " CUPOOL_TRACE_EVENTS=segment,alloc"

static void held(void)
{
    if (system_held)
        printf("%d mutexes are held\n", system_held);
}

const char golden_name[] = "files/contents";

void golden_cases(void)
{
    static const enum system_failure hows[] = {FAILS_EIO,   FAILS_EINTR, FAILS_HALF,    FAILS_NOTHING,
                                               FAILS_LARGE, FAILS_TORN,  FAILS_BUT_ONE, FAILS_LINE};
    static const unsigned int devices[] = {1, 62, 63, 64, 65};
    const struct golden single[] = {
        {"no trace", "CUPOOL_TRACE_FILE=off", trace, NULL},
        {"an empty name", "CUPOOL_TRACE_FILE=", trace, NULL},
        {"a name of all letters", "CUPOOL_TRACE_FILE=d/%h.%r.%l.%p.%e.%% OMPI_COMM_WORLD_RANK=5", trace, NULL},
        {"a trace without a rank", "CUPOOL_TRACE_FILE=d/t CUPOOL_CTL=d/\"x\\\x7f", trace, NULL},
        {"a trace of allocations", ALLOCS, trace, NULL},
        {"a trace with a limit", ALLOCS " CUPOOL_TRACE_LIMIT=1", trace, NULL},
        {"a trace in a child", TRACE, trace_child, NULL},
        {"long lines", TRACE, long_lines, NULL},
        {"a trace that is removed", TRACE, trace_gone, NULL},
        {"a trace whose descriptor is another file's", TRACE, trace_gone, ""},
        {"no statistics file", "CUPOOL_STATS_FILE=off", page, NULL},
        {"an empty name of a statistics file", "CUPOOL_STATS_FILE=", page, NULL},
        {"a statistics file", TRACE, page, NULL},
        {"a statistics file elsewhere", TRACE, page_elsewhere, NULL},
        {"a statistics file in a child", TRACE, page_child, NULL},
        {"a statistics file in a child without a fork handler", TRACE, page_child, ""},
    };
    char name[64];

    umask(022);
    golden_after = held;
    golden_replace(CUPOOL_VERSION, "VERSION");
    golden_replace(program_invocation_short_name, "PROGRAM");
    for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++)
        golden_run(&single[i]);
    for (size_t i = 0; i < sizeof(devices) / sizeof(devices[0]); i++) {
        const struct golden golden = {name, TRACE, many_devices, &devices[i]};

        snprintf(name, sizeof(name), "%u devices", devices[i]);
        golden_run(&golden);
    }
    for (size_t i = 0; i < sizeof(hows) / sizeof(hows[0]); i++) {
        static const char *const words[] = {"an error",
                                            "a signal",
                                            "half",
                                            "no byte",
                                            "a limit",
                                            "half and an error",
                                            "all but a byte and two errors",
                                            "a line without its end and an error"};
        const struct golden swept[] = {{name, ALLOCS, trace, &hows[i]}, {name, TRACE, page, &hows[i]}};

        snprintf(name, sizeof(name), "a trace, by %s", words[i]);
        golden_sweep(&swept[0]);
        snprintf(name, sizeof(name), "a statistics file, by %s", words[i]);
        golden_sweep(&swept[1]);
    }
}
