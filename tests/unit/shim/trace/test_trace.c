/* SPDX-License-Identifier: Apache-2.0 */
/* test_trace.c - what allocation events have in the trace. shim/trace/records.c: what is stamped with the processor's
 * counter gets times between those of a clock whose rate to the counter changes from moment to moment;
 * tests/unit/test_records.c has the rest, with the clock as it is. shim/trace/stacks.c: who called, where there is no
 * unwinder. shim/context/pool_observer.c: what the pool tells of. shim/report/oom.c: how often all is told. And what
 * writes files leaves a thread as it was. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "context/pool_observer.h"
#include "context/room.h"
#include "isolated.h"
#include "report/oom.h"
#include "report/stats.h"
#include "report/stats_file.h"
#include "serve/serve.h"
#include "trace/records.h"
#include "trace/stacks.h"
#include "trace/trace.h"
#include "trace/trace_file.h"

/* The clock's time, so large that what is counted from 0 in place of a moment is far off. */
#define START UINT64_C(4000000000000000000)
#define MS    UINT64_C(1000000)

void __real_trace_open(void);
void __real_trace_event(const char *name, const char *format, ...);
void __real_trace_frequent(const char *name, const char *format, ...);

ISOLATED_CASE(test_rate)
{
    static const struct {
        uint64_t passes; /* while the record is there */
        bool rated;      /* long enough for a rate of its own; else only that the time is no earlier */
    } rows[] = {{MS, true},      {1000000000 * MS, true}, {MS, true},          {2 * MS, true},
                {MS - 1, false}, {2 * MS, true},          {100000 * MS, true}, {MS, true},
                {MS / 2, false}, {MS / 4, false},         {MS, true}};
    uint64_t since = 0; /* what the time is counted from */

    fake_start();
    atomic_store(&fake.ns, START);
    records_start(START);
    for (size_t i = 0; i < COUNT(rows); i++) {
        unsigned long long t = 0;
        char text[RECORDS_ROOM];
        uint32_t turn;
        struct record *record = records_reserve(&turn);

        record->clock = records_clock();
        record->tid = (int)i; /* a thread's own times never go back */
        records_publish(record, turn);
        atomic_fetch_add(&fake.ns, rows[i].passes);
        records_begin();
        text[records_take(text, sizeof(text), /* wait: */ false)] = '\0';
        assert_int_equal(sscanf(text, "{\"t\":%llu,", &t), 1);
        assert_true(t >= since);
        if (rows[i].rated) {
            assert_true(t <= atomic_load(&fake.ns) - START);
            since = atomic_load(&fake.ns) - START;
        }
    }
}

/* Stacks that were asked for too late for the unwinder to be loaded: the caller alone. */
ISOLATED_CASE(test_frames, .environment = "CUPOOL_TRACE_STACKS=1")
{
    char text[4 * RECORDS_ROOM];
    const char *frame;

    records_start(0);
    stacks_alloc(3, 0x1000, 4096, (const void *)test_frames);
    stacks_alloc(3, 0x2000, 4096, (const void *)test_frames);
    records_begin();
    text[records_take(text, sizeof(text) - 1, /* wait: */ false)] = '\0';
    assert_int_equal(strncmp(fake.traced, "object:\"o\":1,", strlen("object:\"o\":1,")), 0);
    frame = strstr(fake.traced, "\nframe:\"f\":");
    assert_non_null(frame);
    assert_non_null(strstr(frame, ",\"o\":1,\"at\":"));
    assert_null(strstr(frame + 2, "frame:")); /* told once */
    assert_null(strstr(fake.traced + 1, "object:"));
    assert_non_null(strstr(text, ",\"p\":\"0x1000\",\"n\":4096,\"f\":["));
    assert_non_null(strstr(text, ",\"p\":\"0x2000\",\"n\":4096,\"f\":["));
}

/* The size of the block, where it is not the requested size rounded up. */
ISOLATED_CASE(test_block_size)
{
    static const struct {
        size_t requested;
        const char *told;
    } rows[] = {{1000, NULL}, {1024, NULL}, {513, NULL}, {512, ",\"block\":1024"}, {1025, ",\"block\":1024"}};
    struct context *context;
    uint64_t addr;

    fake_start();
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, 1000, &addr), 0);
    records_start(0);
    for (size_t i = 0; i < COUNT(rows); i++) {
        char text[RECORDS_ROOM], *found;

        stacks_alloc(0, addr, rows[i].requested, (const void *)test_block_size);
        records_begin();
        text[records_take(text, sizeof(text), /* wait: */ false)] = '\0';
        found = strstr(text, ",\"block\":");
        assert_int_equal(found != NULL, rows[i].told != NULL);
        if (found && rows[i].told)
            assert_memory_equal(found, rows[i].told, strlen(rows[i].told));
    }
}

ISOLATED_CASE(test_observe)
{
    struct context *context;

    context = context_current(&fake.driver);
    fake.traced[0] = '\0';
    observe_ops.segment_alloc(context, BACKEND_CUDA, 0x1000, 4096, 1234567);
    observe_ops.segment_free(context, BACKEND_NCCL, 0x1000, 4096);
    observe_ops.trim(context, 4096, 1234567, "why");
    for (unsigned int count = 1; count <= 5; count++)
        observe_ops.bound(context, 3, 4, 7654321, count);
    assert_string_equal(fake.traced, "segment_alloc:\"d\":0,\"p\":\"0x1000\",\"n\":4096,\"b\":\"cuda\",\"us\":1234.5\n"
                                     "segment_free:\"d\":0,\"p\":\"0x1000\",\"n\":4096,\"b\":\"nccl\"\n"
                                     "trim:\"d\":0,\"n\":4096,\"us\":1234.5,\"why\":\"why\"\n"
                                     "bound:\"d\":0,\"held\":3,\"bound\":4,\"us\":7654.3,\"count\":1\n"
                                     "bound:\"d\":0,\"held\":3,\"bound\":4,\"us\":7654.3,\"count\":2\n"
                                     "bound:\"d\":0,\"held\":3,\"bound\":4,\"us\":7654.3,\"count\":4\n");
}

static const struct {
    const char *environment;
    uint64_t bytes;
} decays[] = {{"CUPOOL_DECAY=10", 1}, {"CUPOOL_DECAY=0", 3}};

/* For the advice: memory that goes back because it is idle, not because the device is full or the program wants it. */
ISOLATED_OWN(test_decayed, decays)
{
    const __typeof__(decays[0]) *row = *state;
    struct context *context = context_current(&fake.driver);

    observe_ops.trim(context, 1, 0, "decay");
    observe_ops.trim(context, 2, 0, "reserve");
    observe_ops.trim(context, 4, 0, "api");
    assert_int_equal(observe_decayed(), row->bytes);
}

/* Is all told of a refusal, or only that there was one? */
static bool oom_is_told(void)
{
    fake.traced[0] = '\0';
    oom_report(MIB);
    assert_non_null(strstr(fake.traced, "oom:"));
    return strstr(fake.traced, ",\"largest\":") != NULL;
}

/* The first time, after so many doublings, and each second; of each device. */
ISOLATED_CASE(test_oom)
{
    fake.step = 0;
    for (unsigned int time = 1; time <= 1100; time++)
        assert_int_equal(oom_is_told(), time == 1 || time == 1024);
    atomic_fetch_add(&fake.ns, SECOND_NS - 1);
    assert_false(oom_is_told());
    atomic_fetch_add(&fake.ns, 1);
    assert_true(oom_is_told());
    assert_false(oom_is_told());
    fake.contexts[0].device = 63;
    assert_true(oom_is_told());
}

/* The counters of a context that cannot be made to stay are not read, except at exit. */
ISOLATED_CASE(test_tick, .environment = "CUPOOL_STATS=signal:USR2")
{
    struct context *context;

    serve_begin();
    context = context_current(&fake.driver);
    for (unsigned int i = 1; i < PINS_MAX; i++)
        assert_true(context_pin(context));
    fake.traced[0] = '\0';
    raise(SIGUSR2);
    stats_tick(0);
    assert_string_equal(fake.traced, "");
    context_unpin(context);
    raise(SIGUSR2);
    stats_tick(0);
    assert_non_null(strstr(fake.traced, ",\"why\":\"signal\"\n"));
}

/* With every file and with none: a thread can be cancelled behind it if it could before, and errno is the program's. */
ISOLATED_CASE(test_thread_stays, .environment = "CUPOOL_TRACE_FILE=/dev/null CUPOOL_STATS_FILE=/dev/null")
{
    static void (*const functions[])(void) = {stats_page_open, stats_page_finish, __real_trace_open, trace_close};
    int before, after;

    for (size_t i = 0; i < 2 * COUNT(functions); i++) {
        const int cancel = i % 2 ? PTHREAD_CANCEL_DISABLE : PTHREAD_CANCEL_ENABLE;

        pthread_setcancelstate(cancel, &before);
        errno = 77;
        functions[i / 2]();
        assert_int_equal(errno, 77);
        pthread_setcancelstate(before, &after);
        assert_int_equal(after, cancel);
    }
}

static bool signalled;
static volatile sig_atomic_t heard;

static void hear(int number)
{
    heard++;
}

/* In place of libc's: a signal comes for the program while its file is written. */
ssize_t pwrite64(int fd, const void *data, size_t len, off_t at)
{
    if (signalled)
        raise(SIGPIPE);
    return syscall(SYS_pwrite64, fd, data, len, at);
}

/* A write that succeeds has raised no signal, so the one that is there is the program's. */
ISOLATED_CASE(test_signal_of_the_programs)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64];
    int fd;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/page", folder);
    setenv("CUPOOL_STATS_FILE", path, 1);
    fake_start();
    signal(SIGPIPE, hear);
    signalled = true;
    stats_page_open();
    assert_true(heard > 0);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_not_equal(flock(fd, LOCK_SH | LOCK_NB), 0);
    stats_page_finish();
    assert_int_equal(flock(fd, LOCK_SH | LOCK_NB), 0); /* so readers see that the program has ended */
    close(fd);
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* Whether a line is lost, when the disk is full just before its newline, or when it is too long for an event. */
ISOLATED_CASE(test_dropped, .count = 2)
{
    static const char line[] = "{\"e\":\"test\"}\n";
    const bool is_long = *state;
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], text[4096] = "";
    FILE *file;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    __real_trace_open();
    fake.writes_short = !is_long;
    if (is_long)
        __real_trace_event("test", "\"n\":%1000d", 1);
    else
        trace_file_put_event(line, strlen(line), 0);
    trace_close();
    file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(strstr(text, "\n{\"e\":\"test\"}\n") != NULL, !is_long);
    assert_non_null(strstr(text, is_long ? ",\"dropped\":1}" : ",\"dropped\":0}"));
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

static struct record *unpublished;
static uint32_t turn_of_it;

static void publish(void *arg)
{
    if (fake.relaxes == 3)
        records_publish(unpublished, turn_of_it);
}

/* Signals that interrupt writes lose no line, and the end no record that another thread is making. */
ISOLATED_CASE(test_interrupted, .environment = "CUPOOL_TRACE_EVENTS=segment,alloc")
{
    static const char line[] = "{\"e\":\"test\"}\n";
    static const char behind[] = "{\"e\":\"test\"}\n\n"; /* the last byte is not of the line */
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], text[4096] = "";
    FILE *file;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    __real_trace_open();
    fake.writes_interrupted = 3;
    trace_file_put_event(behind, strlen(line), 0);
    assert_int_equal(fake.writes_interrupted, 0);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof(text) - 1, file) > strlen(line));
    assert_string_equal(text + strlen(text) - strlen(line), line);
    unpublished = records_reserve(&turn_of_it);
    unpublished->clock = records_clock();
    fake.relax = publish;
    trace_close();
    rewind(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    assert_non_null(strstr(text, "\"e\":\"alloc\""));
    assert_non_null(strstr(text, "\"e\":\"end\""));
    fclose(file);
    assert_string_equal(fake.said, "");
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* Where the ring is full, the thread that needs a record writes those of all, and none is lost. */
ISOLATED_CASE(test_full_ring, .environment = "CUPOOL_TRACE_EVENTS=segment,alloc")
{
    const unsigned int count = 20000; /* some times as many as it holds */
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], line[1024];
    unsigned int records = 0, ends = 0;
    FILE *file;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    __real_trace_open();
    for (unsigned int i = 0; i < count; i++)
        trace_block(TRACE_BLOCK_ALLOC, &(struct trace_block){.addr = 512 * i, .size = 512, .block = 512});
    trace_close();
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        records += strstr(line, "\"e\":\"alloc\"") != NULL;
        ends += strstr(line, "\"e\":\"end\"") && strstr(line, "\"dropped\":0}");
    }
    fclose(file);
    assert_int_equal(records, count);
    assert_int_equal(ends, 1);
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* Where no file is open, the thread that finds the ring full loses its records; it does not wait for room. */
ISOLATED_CASE(test_full_ring_without_a_file, .environment = "CUPOOL_TRACE_EVENTS=segment,alloc")
{
    fake_start();
    records_start(0);
    for (unsigned int i = 0; i < 20000; i++)
        trace_block(TRACE_BLOCK_ALLOC, &(struct trace_block){.addr = 512 * i, .size = 512, .block = 512});
}

/* Behind the limit of the file frequent events are left out, and others are still written. */
ISOLATED_CASE(test_limit_is_for_frequent_events, .environment = "CUPOOL_TRACE_LIMIT=64K")
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], text[1 << 17] = "";
    FILE *file;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    __real_trace_open();
    for (unsigned int i = 0; i < 2000; i++)
        __real_trace_frequent("frequent", "\"n\":%u", i);
    __real_trace_event("rare", "\"n\":1");
    trace_close();
    file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    assert_null(strstr(text, "\"n\":1999}"));
    assert_non_null(strstr(text, "\"e\":\"rare\""));
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* Where allocation events reach the limit of the file, the gap has a time that is not before its begin. */
ISOLATED_CASE(test_time_of_the_gap, .environment = "CUPOOL_TRACE_EVENTS=segment,alloc CUPOOL_TRACE_LIMIT=64K")
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], line[1024];
    unsigned long long t, since;
    unsigned int gaps = 0;
    FILE *file;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    atomic_store(&fake.ns, START);
    __real_trace_open();
    atomic_store(&fake.ns, START + 5 * MS);
    for (unsigned int i = 0; i < 20000; i++)
        trace_block(TRACE_BLOCK_ALLOC, &(struct trace_block){.addr = 512 * i, .size = 512, .block = 512});
    trace_close();
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "{\"t\":%llu,\"e\":\"gap\",\"why\":\"limit\",\"since\":%llu,", &t, &since) == 2) {
            assert_true(since >= 5 * MS && t >= since && t < START / 2);
            gaps++;
        }
    }
    fclose(file);
    assert_int_equal(gaps, 2); /* its begin, and its end at the file's */
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* A header that was written in part and cannot be taken away makes no trace. Its file serves the next run, though a
 * child still has it. */
ISOLATED_CASE(test_part_of_a_header)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64];
    int fd;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    fake.disk_full = fake.append_only = true;
    __real_trace_open();
    assert_null(trace_path());
    assert_non_null(strstr(fake.said, "/t has part of a header and is no trace"));
    fd = open(path, O_RDONLY);
    assert_true(fcntl(fake.shortened, F_GETFD) >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    close(fd);
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* A program that has closed its standard input, with no descriptors but the low ones: its trace has number 0. */
ISOLATED_CASE(test_lowest_descriptor)
{
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64];
    struct rlimit low;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &low), 0);
    low.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    close(STDIN_FILENO);
    __real_trace_open();
    assert_non_null(trace_path());
    assert_string_equal(trace_path(), path);
    trace_close();
    assert_null(trace_path());
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}

/* Lines that the file did not take use none of its limit up, and the end says how many they were. */
ISOLATED_CASE(test_lost_lines, .environment = "CUPOOL_TRACE_LIMIT=64K")
{
    static const char line[] = "{\"e\":\"test\"}\n";
    char folder[] = "/tmp/cupool-test-XXXXXX", path[64], text[8192] = "", end[64];
    struct rlimit none, before;
    unsigned int lost = 0;
    struct stat st;
    FILE *file;
    off_t full;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/t", folder);
    setenv("CUPOOL_TRACE_FILE", path, 1);
    fake_start();
    __real_trace_open();
    assert_int_equal(stat(path, &st), 0);
    full = st.st_size;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 1;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    for (; lost * strlen(line) < 65536; lost++)
        trace_file_put_event(line, strlen(line), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(stat(path, &st) || st.st_size != full, 0);
    trace_file_put_frequent(GAP_OTHERS, line, strlen(line), 0, NULL);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size >= full + (off_t)strlen(line));
    assert_null(strstr(fake.said, "limit"));
    trace_close();
    file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    fclose(file);
    snprintf(end, sizeof(end), ",\"dropped\":%u}", lost);
    assert_non_null(strstr(text, end));
    assert_int_equal(unlink(path) | rmdir(folder), 0);
}
