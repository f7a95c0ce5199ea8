/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace_file.c - see trace_file.h.
 *
 * Locking: trace.lock guards the file and everything else in `trace`; the atomics are read without it.
 */
#include "trace/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/descriptor.h"
#include "base/launch.h"
#include "base/log.h"
#include "base/output_file.h"
#include "clock.h"
#include "lock.h"
#include "trace/json.h"
#include "trace/records.h"

/* The longest wait for the lock, in nanoseconds. The lock is held over one write(2) at most. */
#define LOCK_WAIT_NS 5000000000u

typedef unsigned long long ull;

atomic_int trace_prospect;       /* enum trace_prospect */
atomic_bool trace_allocs_wanted; /* and the file is open */

static struct {
    struct lock lock; /* guards the rest of this struct */
    int fd;           /* -1: not open */
    struct stat file; /* fstat of fd when it was opened, for file_state */
    char path[4096];
    uint64_t t0;
    uint64_t dropped;
    struct gap gap;
    bool torn; /* the last line in the file is incomplete */
    bool tried;
    char text[64 << 10]; /* lines made from records, for put() */
    char line[1 << 14];  /* in static memory because a thread's stack may be too small */
} trace = {.fd = -1};

static atomic_ullong lost; /* events dropped because the ring was full or the lock could not be taken */

__thread pid_t trace_thread_id __attribute__((tls_model("initial-exec")));
__thread bool trace_recording __attribute__((tls_model("initial-exec")));
static __thread bool inside __attribute__((tls_model("initial-exec"))); /* this thread holds or awaits the lock */

/*
 * Take the lock. False: this thread holds it already, below a signal handler, or the wait took too long. Until
 * lock_end() the thread must not be cancelled, or it would keep the lock for ever: code that may write the file
 * disables cancellation.
 */
static bool lock_begin(void)
{
    if (inside)
        return false;
    inside = true;
    if (lock_try(&trace.lock) || lock_take_within(&trace.lock, LOCK_WAIT_NS))
        return true;
    inside = false;
    return false;
}

static void lock_end(void)
{
    lock_give(&trace.lock);
    inside = false;
}

/* As lock_begin, for work that may write the file: disables cancellation of the thread until trace_unlock. */
bool trace_file_lock(int *ret_cancel)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, ret_cancel);
    if (lock_begin())
        return true;
    pthread_setcancelstate(*ret_cancel, NULL);
    return false;
}

void trace_file_unlock(int cancel)
{
    lock_end();
    pthread_setcancelstate(cancel, NULL);
}

static uint64_t lines_of(const char *data, size_t len)
{
    uint64_t lines = 0;

    for (size_t i = 0; i < len; i++)
        lines += data[i] == '\n';
    return lines;
}

/* Write whole lines. False: some were lost, and are counted. With the lock. */
static bool put(const char *data, size_t len)
{
    struct file_quiet quiet;
    bool started = false, failed = false;
    int state;
    ssize_t n;

    if (trace.fd < 0 || !len)
        return true;
    trace.gap.written += len;
    file_quiet_begin(&quiet);
    errno = EBADF;
    state = file_state(trace.fd, &trace.file);
    if (state == -ENOENT)
        log_once(LOG_WARN, "somebody has removed the trace %.300s: what is written from now on is lost", trace.path);
    if (state != -EBADF) {
        if (trace.torn) {
            failed = write(trace.fd, "\n", 1) != 1;
            trace.torn = failed;
        }
        while (!trace.torn && len) {
            n = write(trace.fd, data, len);
            if (n < 0 && errno == EINTR)
                continue;
            failed = n <= 0;
            if (failed)
                break;
            data += n;
            len -= (size_t)n;
            started = true;
        }
        trace.torn = trace.torn || (started && data[-1] != '\n');
        /* The line is complete but for its newline, which is written before the next line. */
        if (started && len && *data == '\n') {
            data++;
            len--;
        }
    }
    if (len)
        log_once(LOG_WARN, "cannot write the trace %s: %s; events are being lost", trace.path, strerror(errno));
    trace.gap.written -= len;
    trace.dropped += lines_of(data, len);
    file_quiet_end(&quiet, failed);
    if (len)
        gap_fail(&trace.gap, now_ns());
    return !len;
}

static uint64_t time_now(void)
{
    return records_time(trace_tid(), now_ns() - trace.t0);
}

/* Write the events that were left out as a gap. t: the time in the file, in nanoseconds. */
static bool gap_write(bool open, uint64_t t)
{
    const uint64_t dropped = trace.dropped;
    const size_t len = gap_text(&trace.gap, open, t, trace.gap.since - trace.t0, trace.line, sizeof(trace.line));

    if (!put(trace.line, len)) {
        trace.dropped = dropped; /* the lines of a gap are not events and do not count as dropped */
        return false;
    }
    gap_reported(&trace.gap, now_ns());
    trace.gap.open = open;
    return true;
}

static void tally(const struct trace_segment *segment)
{
    if (segment)
        gap_tally(segment->device, segment->backend, segment->size, segment->got);
}

/* Write lines of a kind that gap.h may leave out. segment: the segment that the line is about, or NULL; it counts as
 * held unless the line itself is written. t: the time of the line. Allocation events are many lines, perhaps older than
 * the lines before them; a gap around them has the time at which it was last written, or began. */
void trace_file_put_frequent(enum gap_kind kind, const char *data, size_t len, uint64_t t,
                             const struct trace_segment *segment)
{
    const uint64_t lines = lines_of(data, len);
    const enum gap_verdict verdict = gap_judge(&trace.gap, kind, lines, len, now_ns());

    if (kind == GAP_BLOCKS)
        t = trace.gap.reported - trace.t0;
    if (verdict == GAP_WRITE || (verdict == GAP_RESUME && gap_write(/* open: */ false, t)))
        put(data, len);
    else if (verdict == GAP_RESUME)
        trace.dropped += lines;
    tally(segment);
    if (verdict == GAP_REPORT)
        gap_write(/* open: */ true, t);
}

void trace_file_put_event(const char *data, size_t len, uint64_t t)
{
    if (trace.gap.open && trace.gap.why == GAP_ERROR && !gap_write(/* open: */ false, t))
        trace.dropped++;
    else
        put(data, len);
}

/* Write the records made so far to the file. wait: wait also for records that are being made. False: there were none.
 * With the lock. */
bool trace_file_flush(bool wait)
{
    bool any = false;
    size_t len;

    records_begin();
    while ((len = records_take(trace.text, sizeof(trace.text), wait && !trace_recording))) {
        trace_file_put_frequent(GAP_BLOCKS, trace.text, len, /* t: */ 0, NULL);
        any = true;
    }
    return any;
}

static bool header_write(const struct launch *launch)
{
    static char text[CONF_TEXT_MAX + 16]; /* static for the reason given at trace.line */
    char *const line = trace.line;
    const size_t room = sizeof(trace.line);
    char rank[16] = "null", local_rank[16] = "null", host[300], exe[300];
    size_t used;

    if (launch->rank >= 0)
        snprintf(rank, sizeof(rank), "%d", launch->rank);
    if (launch->local_rank >= 0)
        snprintf(local_rank, sizeof(local_rank), "%d", launch->local_rank);
    json_text(host, sizeof(host), launch->host);
    json_text(exe, sizeof(exe), launch->exe);
    used = (size_t)snprintf(line, room,
                            "{\"cupool\":1,\"version\":\"%s\",\"host\":\"%s\",\"pid\":%d,\"rank\":%s,\"local_rank\":%s,"
                            "\"rank_from\":\"%s\",\"exe\":\"%s\",\"t0_unix_ns\":%llu,\"events\":\"%s\",\"settings\":{",
                            CUPOOL_VERSION, host, (int)getpid(), rank, local_rank, launch->from, exe,
                            (ull)clock_ns(CLOCK_REALTIME), conf_get()->trace_events.text);
    for (unsigned int i = 0; i < conf_count; i++) {
        json_text(text, sizeof(text), conf_value_get(i)->text);
        if (used + strlen(text) + 80 > room)
            break;
        used += (size_t)snprintf(line + used, room - used, "%s\"%s\":\"%s\"", i ? "," : "", conf_rows[i].name, text);
    }
    used += (size_t)snprintf(line + used, room - used, "}}\n");
    return put(line, used);
}

/* True if the setting names a file. */
static bool is_wanted(const char *pattern)
{
    return *pattern && strcmp(pattern, "off") != 0;
}

bool trace_decide(void)
{
    const bool wanted = is_wanted(conf_get()->trace_file.text);

    if (!wanted)
        atomic_store(&trace_prospect, TRACE_NONE);
    return wanted;
}

/* A file without a header is no trace, whatever could be written later. Left empty, it serves the next run. */
static void give_up(void)
{
    if (file_state(trace.fd, &trace.file) != -EBADF && ftruncate(trace.fd, 0))
        log_write(LOG_WARN, "%.300s has part of a header and is no trace", trace.path);
    file_close(trace.fd, &trace.file, /* done: */ true);
    trace.fd = -1;
}

void trace_open(void)
{
    const struct conf *conf = conf_get();
    const char *pattern = conf->trace_file.text;
    static const struct file_kind kind = {"trace", "{\"cupool\":", "exists, and is no trace"};
    const int saved = errno;
    static char path[4096]; /* static for the reason given at trace.line */
    struct launch launch;
    int fd, cancel;

    if (!trace_file_lock(&cancel))
        return;
    if (!trace.tried && is_wanted(pattern)) {
        launch_detect(&launch);
        if (launch_expand(&launch, pattern, path, sizeof(path))) {
            log_write(LOG_WARN, "no trace: CUPOOL_TRACE_FILE is too long");
        } else if ((fd = file_create(path, &kind, O_APPEND, trace.path, sizeof(trace.path))) >= 0) {
            fstat(fd, &trace.file);
            trace.fd = fd;
            trace.t0 = now_ns();
            gap_start(&trace.gap, conf->trace_limit.number, conf->trace_events.number != TRACE_ALLOC, trace.t0);
            if (!header_write(&launch))
                give_up();
            else if (conf->trace_events.number == TRACE_ALLOC)
                records_start(trace.t0);
            atomic_store(&trace_allocs_wanted, trace.fd >= 0 && conf->trace_events.number == TRACE_ALLOC);
        }
    }
    if (!trace.tried)
        atomic_store(&trace_prospect, trace.fd >= 0 ? TRACE_THERE : TRACE_NONE);
    trace.tried = true;
    trace_file_unlock(cancel);
    errno = saved;
}

bool trace_file_is_open(void)
{
    return trace.fd >= 0;
}

uint64_t trace_file_since(uint64_t clock)
{
    return clock > trace.t0 ? clock - trace.t0 : 0;
}

void trace_file_drop(void)
{
    trace.dropped++;
}

void trace_file_lose(void)
{
    atomic_fetch_add(&lost, 1);
}

void trace_close(void)
{
    const int saved = errno;
    char line[128];
    int used, cancel;

    atomic_store(&trace_prospect, TRACE_NONE);
    atomic_store(&trace_allocs_wanted, false);
    if (!trace_file_lock(&cancel))
        return;
    if (trace.fd >= 0) {
        trace_file_flush(/* wait: */ true);
        if (trace.gap.open)
            gap_write(/* open: */ false, time_now());
        used = snprintf(line, sizeof(line), "{\"t\":%llu,\"e\":\"end\",\"tid\":%d,\"dropped\":%llu}\n", (ull)time_now(),
                        trace_tid(), (ull)trace.dropped + atomic_load(&lost));
        put(line, (size_t)used);
        file_close(trace.fd, &trace.file, /* done: */ true);
        trace.fd = -1;
    }
    trace_file_unlock(cancel);
    errno = saved;
}

void trace_forget(void)
{
    /* A thread of the parent may hold the lock for ever in this process, so this takes no lock, and nothing here takes
     * it again. An open descriptor would keep the file's own lock after the parent has ended. */
    atomic_store(&trace_prospect, TRACE_NONE);
    atomic_store(&trace_allocs_wanted, false);
    if (trace.fd >= 0)
        file_close(trace.fd, &trace.file, /* done: */ false);
    trace.fd = -1;
}

const char *trace_path(void)
{
    return trace.fd >= 0 ? trace.path : NULL;
}
