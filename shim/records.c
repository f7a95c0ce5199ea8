/* SPDX-License-Identifier: Apache-2.0 */
/* records.c - see records.h. */
#include "records.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#include "digits.h"
#include "lock.h"
#include "pool.h"

#define RECORDS 8192u /* a power of two */
/* So many records before it is needed a line is asked for. */
#define AHEAD 2u
/* How often a record that its thread has not finished is looked at: a tenth of a second. */
#define LOOKS 2000u
/* The counter's rate is taken over so long at least. */
#define RATE_NS 1000000u
/* How often two clocks are read to be read close together. */
#define TRIES 5u

_Static_assert(sizeof(struct record) == 64, "a record is a cache line");

static struct {
    _Atomic(uint64_t) head __attribute__((aligned(64))); /* number of the next record */
    _Atomic(uint64_t) tail __attribute__((aligned(64))); /* and of the first that has not been taken */
    struct record records[RECORDS];
} ring;

/* Two clocks at one moment. */
struct moment {
    uint64_t counter, ns;
};

static bool counts; /* the processor's counter is the clock; else CLOCK_MONOTONIC is. Written before the first record */

/* Guarded as records_begin is. */
static struct {
    uint64_t t0, end;    /* records before this number are being taken */
    struct moment since; /* what is stamped with the counter is placed between this moment and the one of taking */
    struct moment next;  /* the same for what is stamped after that; ns 0: the same moment */
    double rate;         /* nanoseconds of CLOCK_MONOTONIC to one of the counter, from since on */
    bool rated;          /* taken over RATE_NS at least */
} times;

static uint64_t monotonic_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* --- the clock --- */

#if defined(__x86_64__)
static uint64_t counter(void)
{
    return __rdtsc();
}

/* It goes on in sleep and at one rate, and the kernel takes the time from it on all processors. */
static bool counter_counts(void)
{
    static const char *const good[] = {"tsc\n", "kvm-clock\n", "hyperv_clocksource_tsc_page\n"};
    unsigned int a, b, c, d = 0;
    char name[32] = "";
    FILE *file;

    if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || !(d & 1u << 8))
        return false;
    file = fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (file) {
        if (!fgets(name, sizeof(name), file))
            name[0] = '\0';
        fclose(file);
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
    return true; /* by the architecture */
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
    return counts ? counter() : monotonic_ns();
}

/* Both clocks, as close together as can be had. */
static struct moment moment_now(void)
{
    struct moment best = {0};
    uint64_t width = UINT64_MAX;

    for (unsigned int i = 0; i < TRIES; i++) {
        const uint64_t before = records_clock(), ns = monotonic_ns(), after = records_clock();

        if (after - before < width) {
            width = after - before;
            best = (struct moment){.counter = before + width / 2, .ns = ns};
        }
    }
    return best;
}

void records_start(uint64_t t0)
{
    memset(ring.records, 0, sizeof(ring.records)); /* no page of it comes late */
    counts = counter_counts();
    times.t0 = t0;
    times.since = moment_now();
}

/* Nanoseconds since t0. A record may be older than the moment that times are counted from. */
static uint64_t time_of(uint64_t clock)
{
    const int64_t past = (int64_t)(clock - times.since.counter);
    const int64_t t = (int64_t)(times.since.ns - times.t0) + (int64_t)((double)past * times.rate);

    if (!counts)
        return clock - times.t0;
    return t > 0 ? (uint64_t)t : 0;
}

/* --- the ring --- */

struct record *records_reserve(uint32_t *ret_turn)
{
    uint64_t at = atomic_load_explicit(&ring.head, memory_order_relaxed);

    do {
        if (at - atomic_load_explicit(&ring.tail, memory_order_acquire) >= RECORDS)
            return NULL;
    } while (
        !atomic_compare_exchange_weak_explicit(&ring.head, &at, at + 1, memory_order_relaxed, memory_order_relaxed));
    *ret_turn = (uint32_t)(at + 1);
    /* Who takes records has had that line last. */
    __builtin_prefetch(&ring.records[(at + AHEAD) % RECORDS], 1);
    return &ring.records[at % RECORDS];
}

void records_publish(struct record *record, uint32_t turn)
{
    atomic_store_explicit(&record->turn, turn, memory_order_release);
}

unsigned int records_fill(void)
{
    const uint64_t tail = atomic_load(&ring.tail), head = atomic_load(&ring.head);

    return (unsigned int)(((head - tail) * RECORDS_PART + RECORDS - 1) / RECORDS);
}

/* --- lines --- */

#define LITERAL(at, text) ((char *)memcpy(at, text, sizeof(text) - 1) + sizeof(text) - 1)

/* Of one length each, so that copying is a matter of some words; in the order of enum record_kind. */
static const struct {
    char text[40];
    unsigned int len;
} names[] = {
#define EVENT(name)                                                                                                    \
    {                                                                                                                  \
        ",\"e\":\"" name "\",\"tid\":", sizeof(",\"e\":\"" name "\",\"tid\":") - 1                                     \
    }
    EVENT("alloc"),
    EVENT("free_requested"), /* the first of two lines */
    EVENT("free_requested"),
    EVENT("free_completed"),
};

/* The beginning of a line, up to where its thread stands. */
static char *line_begin(char *at, uint64_t clock, enum record_kind kind)
{
    at = LITERAL(at, "{\"t\":");
    at = digits_decimal(at, time_of(clock));
    memcpy(at, names[kind].text, sizeof(names[kind].text));
    return at + names[kind].len;
}

/* One line, or two that end in the same. */
static char *lines(char *at, const struct record *record)
{
    char *rest;

    at = line_begin(at, record->clock, record->kind);
    rest = at;
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
    at = record->frames_count ? LITERAL(at, "]}\n") : LITERAL(at, "}\n");
    if (record->kind == RECORD_FREE) {
        const size_t len = (size_t)(at - rest);

        at = line_begin(at, record->later, RECORD_FREE_COMPLETED);
        memcpy(at, rest, len);
        at += len;
    }
    return at;
}

/* So that the times of a thread never go back: what is stamped from one moment to the next lies on a line between them,
 * and what the next time begins with is where that ends. */
void records_begin(void)
{
    struct moment now;
    uint64_t passed;

    /* What has been added so far was stamped before now. */
    times.end = atomic_load(&ring.head);
    now = moment_now();
    if (times.next.ns)
        times.since = times.next;
    passed = now.ns - times.since.ns;
    times.next.ns = 0;
    if (passed >= RATE_NS)
        times.next = now;
    if ((passed >= RATE_NS || !times.rated) && now.counter > times.since.counter) {
        times.rate = (double)passed / (double)(now.counter - times.since.counter);
        times.rated = passed >= RATE_NS;
    }
}

static bool is_complete(const struct record *record, uint64_t number)
{
    for (unsigned int i = 0; atomic_load_explicit(&record->turn, memory_order_acquire) != (uint32_t)(number + 1); i++) {
        if (i == LOOKS)
            return false;
        lock_relax(i);
    }
    return true;
}

size_t records_take(char *text, size_t room, uint64_t *ret_lost)
{
    uint64_t number = atomic_load_explicit(&ring.tail, memory_order_relaxed);
    char *at = text;

    for (; number < times.end && (size_t)(at - text) + RECORDS_ROOM <= room; number++) {
        const struct record *record = &ring.records[number % RECORDS];

        /* A thread that was cancelled there, or a signal handler of its own is here. */
        if (is_complete(record, number))
            at = lines(at, record);
        else
            ++*ret_lost;
    }
    atomic_store_explicit(&ring.tail, number, memory_order_release);
    return (size_t)(at - text);
}
