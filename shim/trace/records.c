/* SPDX-License-Identifier: Apache-2.0 */
/*
 * records.c - see records.h.
 *
 * Locking: the ring is lock-free; `times` needs the lock of trace.c.
 */
#include "trace/records.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include "clock.h"
#include "lock.h"
#include "pool.h"
#include "trace/digits.h"

#define RECORDS 8192u /* a power of two */
/* Prefetch a record this many records before it is needed. */
#define AHEAD 2u
/* The longest wait, in nanoseconds, for a record that its thread has not published. */
#define WAIT_NS 1000000000u
/* The number of threads whose last time is known, by thread ID modulo this. */
#define THREADS 1024u
/* The least interval, in nanoseconds, from which the counter's rate is computed. */
#define RATE_NS 1000000u
/* How often two clocks are read to get a close pair. */
#define TRIES 5u

_Static_assert(sizeof(struct record) == 64, "a record is a cache line");

static struct {
    _Atomic(uint64_t) head __attribute__((aligned(64))); /* number of the next record */
    _Atomic(uint64_t) tail __attribute__((aligned(64))); /* number of the first record that has not been taken */
    struct record records[RECORDS];
} ring;

/* Both clocks at one moment. */
struct moment {
    uint64_t counter, ns;
};

static bool counts; /* the clock is the processor's counter; else CLOCK_MONOTONIC. Written before the first record */

/* Guarded as records_begin is. */
static struct {
    uint64_t t0, end;    /* records before `end` are being taken */
    struct moment since; /* counter values are converted to times between this moment and the moment of taking */
    struct moment next;  /* the start for later counter values; ns 0: the same moment */
    uint64_t rate;       /* nanoseconds of CLOCK_MONOTONIC per 2^32 of the counter, from `since` on */
    bool rated;          /* the rate was computed over RATE_NS at least */
    uint64_t stuck;      /* number plus one of a record that was waited for in vain */
    struct {
        int tid;
        uint64_t t;
    } last[THREADS];
} times;

/* --- the clock --- */

#if defined(__x86_64__)
static uint64_t counter(void)
{
    return __rdtsc();
}

/* True if the counter runs during sleep and at a constant rate, and the kernel takes the time from it on all
 * processors. */
static bool counter_counts(void)
{
    static const char *const good[] = {"tsc\n", "hyperv_clocksource_tsc_page\n"};
    unsigned int a, b, c, d = 0;
    char name[32] = "";
    int fd;

    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8))
        return false;
    fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, name, sizeof(name) - 1) < 0)
            name[0] = '\0';
        close(fd);
    }
    for (unsigned int i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (strcmp(name, good[i]) == 0)
            return true;
    return false;
}
#elif defined(__aarch64__)
static uint64_t counter(void)
{
    uint64_t now;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
}

static bool counter_counts(void)
{
    return true; /* guaranteed by the architecture */
}
#else
static uint64_t counter(void)
{
    return 0;
}

static bool counter_counts(void)
{
    return false;
}
#endif

uint64_t records_clock(void)
{
    return counts ? counter() : now_ns();
}

/* Both clocks, read as close together as possible. */
static struct moment moment_now(void)
{
    struct moment best = {0};
    uint64_t width = UINT64_MAX;

    for (unsigned int i = 0; i < TRIES; i++) {
        const uint64_t before = records_clock(), ns = now_ns(), after = records_clock();

        if (after - before < width) {
            width = after - before;
            best = (struct moment){.counter = before + width / 2, .ns = ns};
        }
    }
    return best;
}

void records_start(uint64_t t0)
{
    memset(ring.records, 0, sizeof(ring.records)); /* so that no page fault comes later */
    counts = counter_counts();
    times.t0 = t0;
    times.since = moment_now();
}

/* Nanoseconds since t0. A record may be older than `since`. */
static uint64_t time_of(uint64_t clock)
{
    const int64_t past = (int64_t)(clock - times.since.counter);
    const int64_t t = (int64_t)(times.since.ns - times.t0) + (int64_t)((__int128)past * times.rate >> 32);

    if (!counts)
        return clock - times.t0;
    return t > 0 ? (uint64_t)t : 0;
}

uint64_t records_time(int tid, uint64_t t)
{
    const unsigned int i = (unsigned int)tid % THREADS;

    if (times.last[i].tid == tid && t < times.last[i].t)
        t = times.last[i].t;
    times.last[i].tid = tid;
    times.last[i].t = t;
    return t;
}

/* --- the ring --- */

struct record *records_reserve(uint32_t *ret_seq)
{
    uint64_t at = atomic_load_explicit(&ring.head, memory_order_relaxed);

    do {
        /* Signed, because other threads may have added and taken records since head was read. */
        if ((int64_t)(at - atomic_load_explicit(&ring.tail, memory_order_acquire)) >= (int64_t)RECORDS)
            return NULL;
    } while (
        !atomic_compare_exchange_weak_explicit(&ring.head, &at, at + 1, memory_order_relaxed, memory_order_relaxed));
    *ret_seq = (uint32_t)(at + 1);
    /* The thread that takes records was the last one to use that cache line. */
    __builtin_prefetch(&ring.records[(at + AHEAD) % RECORDS], 1);
    return &ring.records[at % RECORDS];
}

void records_publish(struct record *record, uint32_t seq)
{
    atomic_store_explicit(&record->seq, seq, memory_order_release);
}

unsigned int records_fill(void)
{
    const uint64_t tail = atomic_load(&ring.tail), head = atomic_load(&ring.head);

    return (unsigned int)(((head - tail) * RECORDS_PART + RECORDS - 1) / RECORDS);
}

/* --- lines --- */

#define LITERAL(at, text) ((char *)memcpy(at, text, sizeof(text) - 1) + sizeof(text) - 1)

/* The texts have equal room, so that a copy takes a few words; in the order of enum trace_block_event. */
static const struct {
    char text[40];
    unsigned int len;
} names[] = {
#define EVENT(name)                                                                                                    \
    {                                                                                                                  \
        ",\"e\":\"" name "\",\"tid\":", sizeof(",\"e\":\"" name "\",\"tid\":") - 1                                     \
    }
    EVENT("alloc"),
    EVENT("free_requested"),
    EVENT("free_completed"),
};

static char *line(char *at, const struct record *record)
{
    at = LITERAL(at, "{\"t\":");
    at = digits_decimal(at, records_time(record->tid, time_of(record->clock)));
    memcpy(at, names[record->event].text, sizeof(names[0].text));
    at += names[record->event].len;
    at = digits_decimal(at, (uint64_t)record->tid);
    at = LITERAL(at, ",\"d\":");
    at = digits_decimal(at, record->device);
    at = LITERAL(at, ",\"p\":\"0x");
    at = digits_hexadecimal(at, record->addr);
    at = LITERAL(at, "\",\"n\":");
    at = digits_decimal(at, record->size);
    if (record->block) {
        at = LITERAL(at, ",\"block\":");
        at = digits_decimal(at, (uint64_t)record->block * POOL_GRANULE);
    }
    for (unsigned int i = 0; i < record->frames_count; i++) {
        at = i ? LITERAL(at, ",") : LITERAL(at, ",\"f\":[");
        at = digits_decimal(at, record->frames[i]);
    }
    return record->frames_count ? LITERAL(at, "]}\n") : LITERAL(at, "}\n");
}

/* The times of a thread must never go back: counter values between two moments are converted along the line between
 * them, and the next interval starts where that line ends. */
void records_begin(void)
{
    struct moment now;
    uint64_t passed;

    /* All records added so far were stamped before now. */
    times.end = atomic_load(&ring.head);
    if (times.end == atomic_load_explicit(&ring.tail, memory_order_relaxed))
        return;
    now = moment_now();
    if (times.next.ns)
        times.since = times.next;
    passed = now.ns - times.since.ns;
    times.next.ns = 0;
    if (passed >= RATE_NS)
        times.next = now;
    if ((passed >= RATE_NS || !times.rated) && now.counter > times.since.counter) {
        times.rate = (uint64_t)(((unsigned __int128)passed << 32) / (now.counter - times.since.counter));
        times.rated = passed >= RATE_NS;
    }
}

static bool is_complete(const struct record *record, uint64_t number)
{
    return atomic_load_explicit(&record->seq, memory_order_acquire) == (uint32_t)(number + 1);
}

/* A record whose thread has ended or is stopped is waited for only once. */
static bool complete_wait(const struct record *record, uint64_t number)
{
    const uint64_t limit = now_ns() + WAIT_NS;
    bool complete;

    for (unsigned int i = 0; !(complete = is_complete(record, number)) && times.stuck != number + 1; i++) {
        if (now_ns() >= limit)
            times.stuck = number + 1;
        lock_relax(i);
    }
    return complete;
}

size_t records_take(char *text, size_t room, bool wait)
{
    uint64_t number = atomic_load_explicit(&ring.tail, memory_order_relaxed);
    char *at = text;

    for (; number < times.end && (size_t)(at - text) + RECORDS_ROOM <= room; number++) {
        const struct record *record = &ring.records[number % RECORDS];

        if (!is_complete(record, number) && !(wait && complete_wait(record, number)))
            break;
        at = line(at, record);
    }
    atomic_store_explicit(&ring.tail, number, memory_order_release);
    return (size_t)(at - text);
}
