/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - see trace.h. */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "conf.h"
#include "file.h"
#include "launch.h"
#include "lock.h"
#include "log.h"
#include "pool.h"
#include "records.h"

#define LINE_MAX_ 512
/* How long the lock is waited for; it is held over one write(2) at most. */
#define LOCK_WAIT_NS 5000000000u
/* How long the writer sleeps when there is something to write, and when there is nothing for long. */
#define NAP_NS     1000000
#define NAP_MAX_NS 16000000

atomic_int trace_prospect;       /* enum trace_prospect */
atomic_bool trace_allocs_wanted; /* and the file is open */

static struct {
    struct lock lock; /* guards the rest of this struct */
    int fd;           /* -1: not open */
    struct stat file; /* what fd was when it was opened */
    char path[4096];
    uint64_t t0;
    uint64_t dropped;
    bool torn; /* the file ends in part of a line */
    bool tried;
    char text[64 << 10]; /* of records, on its way to put() */
} trace = {.fd = -1};

static atomic_ullong lost; /* events for which there was no room, or not the lock */

static __thread pid_t thread_id __attribute__((tls_model("initial-exec")));
/* Between reserving a record and publishing it: a signal handler of this thread does not wait for that. */
static __thread bool recording __attribute__((tls_model("initial-exec")));
static __thread bool inside __attribute__((tls_model("initial-exec"))); /* has the lock, or waits for it */

static int tid(void)
{
    if (!thread_id)
        thread_id = (pid_t)syscall(SYS_gettid);
    return (int)thread_id;
}

/* The bytes of the character of UTF-8 that text begins with; 0: it is none. */
static unsigned int utf8_length(const unsigned char *text)
{
    /* By the first byte: the length, and the least and the greatest second byte, which rule out overlong forms,
     * surrogates and what is beyond Unicode. */
    static const struct {
        unsigned char first, last, len, low, high;
    } forms[] = {{0x01, 0x7f, 1, 0, 0},       {0xc2, 0xdf, 2, 0x80, 0xbf}, {0xe0, 0xe0, 3, 0xa0, 0xbf},
                 {0xe1, 0xec, 3, 0x80, 0xbf}, {0xed, 0xed, 3, 0x80, 0x9f}, {0xee, 0xef, 3, 0x80, 0xbf},
                 {0xf0, 0xf0, 4, 0x90, 0xbf}, {0xf1, 0xf3, 4, 0x80, 0xbf}, {0xf4, 0xf4, 4, 0x80, 0x8f}};

    for (unsigned int i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (text[0] < forms[i].first || text[0] > forms[i].last)
            continue;
        if (forms[i].len > 1 && (text[1] < forms[i].low || text[1] > forms[i].high))
            return 0;
        for (unsigned int k = 2; k < forms[i].len; k++)
            if (text[k] >> 6 != 2)
                return 0;
        return forms[i].len;
    }
    return 0;
}

void trace_text(char *buf, size_t len, const char *text)
{
    size_t at = 0;

    while (*text) {
        const unsigned char c = (unsigned char)*text;
        const unsigned int whole = utf8_length((const unsigned char *)text);
        char one[8];
        int n;

        if (c < 32 || c == 127)
            n = snprintf(one, sizeof(one), "\\u%04x", c);
        else
            n = snprintf(one, sizeof(one), "%s%.*s", c == '"' || c == '\\' ? "\\" : "", whole ? (int)whole : 1,
                         whole ? text : "?");
        if (at + (size_t)n >= len)
            break;
        memcpy(buf + at, one, (size_t)n);
        at += (size_t)n;
        text += whole ? whole : 1;
    }
    buf[at] = '\0';
}

void trace_clean(char *text)
{
    for (; *text; text++)
        if (*text < 32 || *text > 126 || *text == '"' || *text == '\\')
            *text = '?';
}

/*
 * Take the lock. False: not to be had, because this thread holds it itself, below a signal handler. Between this and
 * lock_end() the thread must not be cancelled, or it keeps the lock for ever: what may write the file disables that.
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

/* The same for what takes its time, with the thread safe from cancellation in between. */
static bool trace_lock(int *ret_cancel)
{
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, ret_cancel);
    if (lock_begin())
        return true;
    pthread_setcancelstate(*ret_cancel, NULL);
    return false;
}

static void trace_unlock(int cancel)
{
    lock_end();
    pthread_setcancelstate(cancel, NULL);
}

/* write(2) all of data. What does not arrive is counted, by lines. */
static void put(const char *data, size_t len)
{
    struct file_quiet quiet;
    bool started = false;
    int state;
    ssize_t n;

    if (trace.fd < 0 || !len)
        return;
    file_quiet_begin(&quiet);
    errno = EBADF;
    state = file_state(trace.fd, &trace.file);
    if (state == -ENOENT)
        log_once(LOG_WARN, "somebody has removed the trace %.300s: what is written from now on is lost", trace.path);
    if (state != -EBADF) {
        if (trace.torn && write(trace.fd, "\n", 1) == 1)
            trace.torn = false;
        while (!trace.torn && len) {
            n = write(trace.fd, data, len);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                break;
            data += n;
            len -= (size_t)n;
            started = true;
        }
        trace.torn = trace.torn || (started && data[-1] != '\n');
        if (started && len && *data == '\n') { /* of that line nothing is lost: its end is written before the next */
            data++;
            len--;
        }
    }
    if (len)
        log_once(LOG_WARN, "cannot write the trace %s: %s; events are being lost", trace.path, strerror(errno));
    for (size_t i = 0; i < len; i++)
        trace.dropped += data[i] == '\n';
    file_quiet_end(&quiet);
}

/* What has been recorded until now goes to the file. wait: also what is being recorded. False: there was nothing. */
static bool flush(bool wait)
{
    bool any = false;
    size_t len;

    records_begin();
    while ((len = records_take(trace.text, sizeof(trace.text), wait && !recording))) {
        put(trace.text, len);
        any = true;
    }
    return any;
}

static void header_write(const struct launch *launch)
{
    /* Under the lock; a thread's stack may be no larger than that. */
    static char line[8192], text[CONF_TEXT_MAX + 16];
    char rank[16] = "null", local_rank[16] = "null", host[300], exe[300];
    size_t used;

    if (launch->rank >= 0)
        snprintf(rank, sizeof(rank), "%d", launch->rank);
    if (launch->local_rank >= 0)
        snprintf(local_rank, sizeof(local_rank), "%d", launch->local_rank);
    trace_text(host, sizeof(host), launch->host);
    trace_text(exe, sizeof(exe), launch->exe);
    used = (size_t)snprintf(line, sizeof(line),
                            "{\"cupool\":1,\"version\":\"%s\",\"host\":\"%s\",\"pid\":%d,\"rank\":%s,\"local_rank\":%s,"
                            "\"rank_from\":\"%s\",\"exe\":\"%s\",\"t0_unix_ns\":%llu,\"events\":\"%s\",\"settings\":{",
                            CUPOOL_VERSION, host, (int)getpid(), rank, local_rank, launch->from, exe,
                            (unsigned long long)clock_ns(CLOCK_REALTIME), conf_get()->trace_events.text);
    for (unsigned int i = 0; i < conf_count; i++) {
        trace_text(text, sizeof(text), conf_value_get(i)->text);
        if (used + strlen(text) + 80 > sizeof(line))
            break;
        used += (size_t)snprintf(line + used, sizeof(line) - used, "%s\"%s\":\"%s\"", i ? "," : "", conf_rows[i].name,
                                 text);
    }
    used += (size_t)snprintf(line + used, sizeof(line) - used, "}}\n");
    put(line, used);
}

/* As the setting says it. */
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

void trace_open(void)
{
    const struct conf *conf = conf_get();
    const char *pattern = conf->trace_file.text;
    static const struct file_kind kind = {"trace", "{\"cupool\":", "exists, and is no trace"};
    const int saved = errno;
    static char path[4096]; /* under the lock, as in header_write */
    struct launch launch;
    int fd, cancel;

    if (!trace_lock(&cancel))
        return;
    if (!trace.tried && is_wanted(pattern)) {
        launch_detect(&launch);
        if (launch_expand(&launch, pattern, path, sizeof(path))) {
            log_write(LOG_WARN, "no trace: CUPOOL_TRACE_FILE is too long");
        } else if ((fd = file_create(path, &kind, O_APPEND, trace.path, sizeof(trace.path))) >= 0) {
            fstat(fd, &trace.file);
            trace.fd = fd;
            trace.t0 = now_ns();
            header_write(&launch);
            if (conf->trace_events.number == TRACE_ALLOC)
                records_start(trace.t0);
            atomic_store(&trace_allocs_wanted, conf->trace_events.number == TRACE_ALLOC);
        }
    }
    if (!trace.tried)
        atomic_store(&trace_prospect, trace.fd >= 0 ? TRACE_THERE : TRACE_NONE);
    trace.tried = true;
    trace_unlock(cancel);
    errno = saved;
}

/* There is no room: whoever needs some makes it. Others may take it again and again. */
static struct record *record_reserve_late(uint32_t *ret_turn)
{
    const int saved = errno;
    struct record *record = NULL;
    bool more = true;
    int cancel;

    while (!record && more && trace_lock(&cancel)) {
        more = trace.fd >= 0 && flush(/* wait: */ true);
        trace_unlock(cancel);
        record = records_reserve(ret_turn);
    }
    if (!record)
        atomic_fetch_add(&lost, 1);
    errno = saved;
    return record;
}

void trace_block(enum trace_block_event event, const struct trace_block *block)
{
    uint64_t clock = records_clock();
    const bool outer = recording; /* below a signal handler */
    struct record *record;
    uint32_t turn;

    recording = true;
    atomic_signal_fence(memory_order_seq_cst);
    record = records_reserve(&turn);
    if (!record) {
        recording = outer;
        record = record_reserve_late(&turn);
        recording = true;
        clock = records_clock();
    }
    if (record) {
        record->tid = tid();
        record->clock = clock;
        record->addr = block->addr;
        record->size = block->size;
        record->block = (uint32_t)(block->block / POOL_GRANULE);
        record->device = (uint16_t)block->device;
        record->event = event;
        record->frames_count = (uint8_t)block->frames_count;
        for (unsigned int i = 0; i < block->frames_count; i++)
            record->frames[i] = block->frames[i];
        records_publish(record, turn);
    }
    atomic_signal_fence(memory_order_seq_cst);
    recording = outer;
}

/* clock: of the event; 0: now, which is then no earlier than that of any line before it. */
static void event_write(uint64_t clock, const char *event, const char *format, va_list args)
{
    const int saved = errno;
    char line[LINE_MAX_];
    int used, cancel;

    if (!trace_lock(&cancel)) {
        atomic_fetch_add(&lost, 1);
        return;
    }
    if (trace.fd >= 0) {
        flush(/* wait: */ true);
        clock = clock ? clock : now_ns();
        used = snprintf(line, sizeof(line), "{\"t\":%llu,\"e\":\"%s\",\"tid\":%d,",
                        (unsigned long long)records_time(tid(), clock > trace.t0 ? clock - trace.t0 : 0), event, tid());
        /* The callers have started it. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
        used += vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
        if (used + 3 < (int)sizeof(line)) {
            memcpy(line + used, "}\n", 3);
            put(line, (size_t)used + 2);
        } else {
            trace.dropped++;
        }
    }
    trace_unlock(cancel);
    errno = saved;
}

void trace_event(const char *event, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    event_write(0, event, format, args);
    va_end(args);
}

void trace_event_at(uint64_t clock, const char *event, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    event_write(clock, event, format, args);
    va_end(args);
}

/* Turns records into lines, so that the threads that cause them need not. */
static void *writer(void *arg)
{
    struct timespec nap = {.tv_nsec = NAP_NS};

    (void)arg;
    for (;;) { /* until the process ends */
        const unsigned int fill = records_fill();
        bool any = false;
        int cancel;

        nap.tv_nsec = fill ? NAP_NS : nap.tv_nsec < NAP_MAX_NS ? nap.tv_nsec * 2 : nap.tv_nsec;
        if (fill && trace_lock(&cancel)) {
            any = trace.fd >= 0 && flush(/* wait: */ false);
            trace_unlock(cancel);
        }
        if (!any || fill < RECORDS_PART / 4)
            nanosleep(&nap, NULL);
    }
    return NULL;
}

void trace_write_behind(void)
{
    static atomic_flag started = ATOMIC_FLAG_INIT;
    sigset_t all, before;
    pthread_t thread;
    int rc;

    if (!trace_allocs() || atomic_flag_test_and_set(&started))
        return;
    /* The program's signals are for its own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, NULL, writer, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        log_write(LOG_INFO, "no thread to be had (error %d): allocation events are written when they are many", rc);
        return;
    }
    pthread_setname_np(thread, "cupool-trace");
    pthread_detach(thread);
}

void trace_close(void)
{
    const int saved = errno;
    char line[128];
    int used, cancel;

    atomic_store(&trace_prospect, TRACE_NONE);
    atomic_store(&trace_allocs_wanted, false);
    if (!trace_lock(&cancel))
        return;
    if (trace.fd >= 0) {
        flush(/* wait: */ true);
        used = snprintf(line, sizeof(line), "{\"t\":%llu,\"e\":\"end\",\"tid\":%d,\"dropped\":%llu}\n",
                        (unsigned long long)records_time(tid(), now_ns() - trace.t0), tid(),
                        (unsigned long long)trace.dropped + atomic_load(&lost));
        put(line, (size_t)used);
        file_close(trace.fd, &trace.file, /* done: */ true);
        trace.fd = -1;
    }
    trace_unlock(cancel);
    errno = saved;
}

void trace_forget(void)
{
    /* Another thread of the parent may hold the lock for ever in this process; nothing here takes it again. */
    atomic_store(&trace_prospect, TRACE_NONE);
    atomic_store(&trace_allocs_wanted, false);
    if (trace.fd >= 0) /* or it would keep the file's lock when the parent is gone */
        file_close(trace.fd, &trace.file, /* done: */ false);
    trace.fd = -1;
}

const char *trace_path(void)
{
    return trace.fd >= 0 ? trace.path : NULL;
}
