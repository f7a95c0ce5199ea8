/* SPDX-License-Identifier: Apache-2.0 */
/* trace.c - see trace.h. No locks but the file's. */
#include "trace/trace.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "pool.h"
#include "trace/records.h"

/* Lines of `host_stats`, the longest, have 700 bytes if all numbers are long. */
#define LINE_MAX_ 768

typedef unsigned long long ull;

/* The ring is full: the thread that needs a record makes room. Other threads may take that room first, again and
 * again. */
static struct record *record_reserve_late(uint32_t *ret_seq)
{
    const int saved = errno;
    struct record *record = NULL;
    bool more = true;
    int cancel;

    while (!record && more && trace_file_lock(&cancel)) {
        more = trace_file_is_open() && trace_file_flush(/* wait: */ true);
        trace_file_unlock(cancel);
        record = records_reserve(ret_seq);
    }
    if (!record)
        trace_file_lose();
    errno = saved;
    return record;
}

void trace_block(enum trace_block_event event, const struct trace_block *block)
{
    uint64_t clock = records_clock();
    const bool outer = trace_recording; /* this call interrupts another one, below a signal handler */
    struct record *record;
    uint32_t seq;

    trace_recording = true;
    atomic_signal_fence(memory_order_seq_cst);
    record = records_reserve(&seq);
    if (!record) {
        trace_recording = outer;
        record = record_reserve_late(&seq);
        trace_recording = true;
        clock = records_clock();
    }
    if (record) {
        record->tid = trace_tid();
        record->clock = clock;
        record->addr = block->addr;
        record->size = block->size;
        record->block = (uint32_t)(block->block / POOL_GRANULE);
        record->device = (uint16_t)block->device;
        record->event = event;
        record->frames_count = (uint8_t)block->frames_count;
        for (unsigned int i = 0; i < block->frames_count; i++)
            record->frames[i] = block->frames[i];
        records_publish(record, seq);
    }
    atomic_signal_fence(memory_order_seq_cst);
    trace_recording = outer;
}

/* An event to be written. */
struct event {
    const char *name;
    uint64_t clock; /* its time, in nanoseconds of the monotonic clock; 0: now, which is no earlier than the time of
                       any line before it */
    bool frequent;
    const struct trace_segment *segment; /* the segment that the event is about, or NULL */
};

static void event_write(const struct event *event, const char *format, va_list args)
{
    const int saved = errno;
    char line[LINE_MAX_];
    uint64_t t;
    int used, cancel;

    if (!trace_file_lock(&cancel)) {
        trace_file_lose();
        return;
    }
    if (trace_file_is_open()) {
        trace_file_flush(/* wait: */ true);
        t = event->clock ? event->clock : now_ns();
        t = records_time(trace_tid(), trace_file_since(t));
        used = snprintf(line, sizeof(line), "{\"t\":%llu,\"e\":\"%s\",\"tid\":%d,", (ull)t, event->name, trace_tid());
        /* The callers have called va_start. NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized) */
        used += vsnprintf(line + used, sizeof(line) - (size_t)used, format, args);
        used = used + 3 < (int)sizeof(line) ? used + 2 : 0;
        if (!used)
            trace_file_drop();
        else
            memcpy(line + used - 2, "}\n", 3);
        if (event->frequent || event->segment)
            trace_file_put_frequent(event->segment ? GAP_SEGMENTS : GAP_OTHERS, line, (size_t)used, t, event->segment);
        else
            trace_file_put_event(line, (size_t)used, t);
    }
    trace_file_unlock(cancel);
    errno = saved;
}

#define EVENT_WRITE(...)                                                                                               \
    do {                                                                                                               \
        va_list args_;                                                                                                 \
                                                                                                                       \
        va_start(args_, format);                                                                                       \
        event_write(&(struct event){__VA_ARGS__}, format, args_);                                                      \
        va_end(args_);                                                                                                 \
    } while (0)

void trace_event(const char *event, const char *format, ...)
{
    EVENT_WRITE(.name = event);
}

void trace_frequent(const char *event, const char *format, ...)
{
    EVENT_WRITE(.name = event, .frequent = true);
}

void trace_frequent_at(uint64_t clock, const char *event, const char *format, ...)
{
    EVENT_WRITE(.name = event, .clock = clock, .frequent = true);
}

void trace_segment(const struct trace_segment *segment, const char *event, const char *format, ...)
{
    EVENT_WRITE(.name = event, .segment = segment);
}

void trace_segment_at(uint64_t clock, const struct trace_segment *segment, const char *event, const char *format, ...)
{
    EVENT_WRITE(.name = event, .clock = clock, .segment = segment);
}
