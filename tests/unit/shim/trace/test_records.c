/* SPDX-License-Identifier: Apache-2.0 */
/* test_records.c - allocation events on their way to the trace: records.c alone. */
#include <sys/syscall.h>
#include <time.h>

#include "cases.h"
#include "give_way.h"
#include "trace/records.h"

#define THREADS 4
#define EACH    20000
#define ALL     8192 /* records that fit */
/* The allowed difference of the two clocks, in nanoseconds: far more than the real one. */
#define CLOCKS 100000

static char text[64 << 10];
static uint64_t start;

/* So many readings of the clock are followed by a long nap, as on a machine that is busy. */
static unsigned int slow;

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    const int rc = (int)syscall(SYS_clock_gettime, clock, ts);

    if (slow && slow--)
        nanosleep(&nap, NULL);
    return rc;
}

static uint64_t monotonic_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static struct record *reserve(uint32_t *ret_turn)
{
    struct record *record = records_reserve(ret_turn);

    if (record) {
        memset((char *)record + sizeof(record->seq), 0, sizeof(*record) - sizeof(record->seq));
        record->clock = records_clock();
    }
    return record;
}

static bool add(int tid, uint64_t size)
{
    uint32_t turn;
    struct record *record = reserve(&turn);

    if (!record)
        return false;
    record->event = TRACE_BLOCK_ALLOC;
    record->tid = tid;
    record->size = size;
    record->addr = size;
    records_publish(record, turn);
    return true;
}

/* All that there is, as text. */
static const char *take(void)
{
    size_t used = 0, n;

    records_begin();
    while ((n = records_take(text + used, sizeof(text) - 1 - used, /* wait: */ false)))
        used += n;
    text[used] = '\0';
    return text;
}

UNIT_CASE(test_lines)
{
    unsigned long long t;
    struct record *record;
    const char *line;
    uint32_t turn;

    record = reserve(&turn);
    assert_non_null(record);
    record->tid = 77;
    record->device = 3;
    record->addr = 0x7f00deadbe00;
    record->size = 123456789012345;
    record->block = 5;
    record->event = TRACE_BLOCK_ALLOC;
    record->frames_count = TRACE_FRAMES;
    for (unsigned int i = 0; i < TRACE_FRAMES; i++)
        record->frames[i] = (uint16_t)(i * 1171);
    records_publish(record, turn);
    line = take();
    assert_int_equal(sscanf(line, "{\"t\":%llu", &t), 1);
    line = strchr(line, ',');
    assert_string_equal(
        line, ",\"e\":\"alloc\",\"tid\":77,\"d\":3,\"p\":\"0x7f00deadbe00\",\"n\":123456789012345,\"block\":2560,"
              "\"f\":[0,1171,2342,3513,4684,5855,7026,8197]}\n");

    for (unsigned int event = TRACE_BLOCK_FREE_REQUESTED; event <= TRACE_BLOCK_FREE_COMPLETED; event++) {
        record = reserve(&turn);
        assert_non_null(record);
        record->event = (uint8_t)event;
        records_publish(record, turn);
        line = strchr(take(), ',');
        assert_string_equal(line, event == TRACE_BLOCK_FREE_REQUESTED
                                      ? ",\"e\":\"free_requested\",\"tid\":0,\"d\":0,\"p\":\"0x0\",\"n\":0}\n"
                                      : ",\"e\":\"free_completed\",\"tid\":0,\"d\":0,\"p\":\"0x0\",\"n\":0}\n");
    }
}

/* The stamp of a record lies between the times of the other clock before and after it. */
static void assert_stamped(const struct timespec *nap)
{
    uint64_t before = monotonic_ns() - start, after;
    unsigned long long t;

    assert_true(add(1, 1));
    after = monotonic_ns() - start;
    nanosleep(nap, NULL);
    assert_int_equal(sscanf(take(), "{\"t\":%llu", &t), 1);
    assert_true(t + CLOCKS >= before);
    assert_true(t <= after + CLOCKS);
}

UNIT_CASE(test_clock)
{
    static const unsigned int naps_us[] = {0, 0, 10, 2000, 0, 500, 30000, 0, 1000, 0};

    for (unsigned int i = 0; i < sizeof(naps_us) / sizeof(naps_us[0]); i++) {
        const struct timespec nap = {.tv_nsec = naps_us[i] * 1000L};

        nanosleep(&nap, NULL);
        assert_stamped(&nap);
    }
}

/* Of several readings of both clocks, the one counts in which no time passed between them. */
UNIT_CASE(test_clock_while_busy)
{
    const struct timespec nap = {.tv_nsec = 100000000};

    nanosleep(&nap, NULL); /* so that times are counted from the next readings on */
    assert_true(add(1, 1));
    slow = 1;
    take();
    assert_stamped(&nap);
}

UNIT_CASE(test_full)
{
    unsigned int n = 0, lines = 0;
    size_t len;

    assert_int_equal(records_fill(), 0);
    while (add(1, 1))
        n++;
    assert_int_equal(n, ALL);
    assert_int_equal(records_fill(), RECORDS_PART);
    assert_false(add(1, 1));
    records_begin();
    len = records_take(text, RECORDS_ROOM, /* wait: */ false); /* one */
    assert_int_equal(strcspn(text, "\n"), len - 1);
    assert_true(add(1, 1));
    assert_false(add(1, 1));
    /* Not what came after the beginning. */
    while ((len = records_take(text, sizeof(text), /* wait: */ false)))
        for (size_t i = 0; i < len; i++)
            lines += text[i] == '\n';
    assert_int_equal(lines, ALL - 1);
    assert_int_equal(records_fill(), 1);
    take();
    assert_int_equal(records_fill(), 0);
}

/* A record that a thread has begun holds up those after it, and no reader for long; none is lost. */
UNIT_CASE(test_unfinished)
{
    struct record *record;
    uint32_t turn;

    assert_true(add(1, 11));
    record = reserve(&turn);
    assert_non_null(record);
    record->event = TRACE_BLOCK_ALLOC;
    record->size = 12;
    while (add(1, 13))
        ;
    assert_non_null(strstr(take(), "\"n\":11}"));
    assert_null(strstr(text, "\"n\":13}"));
    /* In vain once, and then not again: it would take hours. */
    for (unsigned int i = 0; i < 10000; i++) {
        records_begin();
        assert_int_equal(records_take(text, sizeof(text), /* wait: */ true), 0);
    }
    assert_false(add(1, 13) && add(1, 13));
    records_publish(record, turn);
    assert_non_null(strstr(take(), "\"n\":12}"));
    while (*take())
        ;
    assert_int_equal(records_fill(), 0);
}

static void *publishes(void *arg)
{
    const struct timespec nap = {.tv_nsec = 20000000};
    uint32_t turn;
    struct record *record = reserve(&turn);

    assert_non_null(record);
    atomic_store((atomic_bool *)arg, true);
    nanosleep(&nap, NULL);
    record->event = TRACE_BLOCK_ALLOC;
    record->size = 77;
    records_publish(record, turn);
    return NULL;
}

/* A thread that writes another line waits for the records that others have begun. */
UNIT_CASE(test_waited_for)
{
    atomic_bool reserved = false;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, publishes, &reserved), 0);
    while (!atomic_load(&reserved))
        give_way();
    records_begin();
    assert_true(records_take(text, sizeof(text), /* wait: */ true) > 0);
    assert_non_null(strstr(text, "\"n\":77}"));
    pthread_join(thread, NULL);
}

/* A record that is stamped long before it is added; others' lines are none of its business. */
UNIT_CASE(test_late)
{
    unsigned long long t, before;
    struct record *record;
    uint64_t early = records_clock();
    uint32_t turn;

    assert_true(add(5, 1));
    assert_int_equal(sscanf(take(), "{\"t\":%llu", &before), 1);
    for (int tid = 5; tid <= 6; tid++) {
        record = reserve(&turn);
        assert_non_null(record);
        record->tid = tid;
        record->clock = early;
        records_publish(record, turn);
        assert_int_equal(sscanf(take(), "{\"t\":%llu", &t), 1);
        assert_true(tid == 5 ? t == before : t <= before);
    }
    assert_int_equal(records_time(5, 1), before);
    assert_int_equal(records_time(5, before + 7), before + 7);
    assert_int_equal(records_time(5, before), before + 7);
    assert_int_equal(records_time(5 + (1 << 20), 1), 1); /* a thread whose times lie in the same place */
}

static void *adds(void *arg)
{
    const int tid = (int)(uintptr_t)arg;

    for (unsigned int i = 0; i < EACH; i++)
        while (!add(tid, i + 1))
            give_way();
    return NULL;
}

/* Each record once, those of a thread in their order, and its times never go back. */
UNIT_CASE(test_threads)
{
    unsigned long long t, last[THREADS + 1] = {0}, p, n;
    unsigned int seen[THREADS + 1] = {0}, all = 0, looks = 0;
    pthread_t threads[THREADS];
    int tid, used;

    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, adds, (void *)(uintptr_t)(i + 1)), 0);
    while (all < THREADS * EACH) {
        size_t len;

        records_begin();
        while ((len = records_take(text, sizeof(text) - 1, /* wait: */ false))) {
            text[len] = '\0';
            for (const char *at = text; *at; at += used) {
                used = 0;
                if (sscanf(at, "{\"t\":%llu,\"e\":\"alloc\",\"tid\":%d,\"d\":0,\"p\":\"0x%llx\",\"n\":%llu}\n%n", &t,
                           &tid, &p, &n, &used) != 4 ||
                    !used || tid < 1 || tid > THREADS)
                    fail_msg("%.100s", at);
                assert_int_equal(n, ++seen[tid]);
                assert_int_equal(p, n);
                assert_true(t >= last[tid]);
                last[tid] = t;
                all++;
            }
        }
        give_way_after(++looks);
    }
    join_all(threads, THREADS);
}

static atomic_uint turns;

/* The first of two threads has the even turns, the other one the odd ones. */
static void *takes_turns(void *arg)
{
    for (unsigned int i = (unsigned int)(uintptr_t)arg; i < EACH; i += 2) {
        for (unsigned int looks = 1; atomic_load_explicit(&turns, memory_order_acquire) != i; looks++)
            give_way_after(looks);
        while (!add((int)(uintptr_t)arg, i + 1))
            give_way();
        atomic_store_explicit(&turns, i + 1, memory_order_release);
    }
    return NULL;
}

/* A record added after its thread has seen an effect of another thread's later step comes after that thread's
 * record. */
UNIT_CASE(test_what_depends)
{
    unsigned long long n, last = 0;
    unsigned int looks = 0;
    pthread_t threads[2];

    for (uintptr_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, takes_turns, (void *)i), 0);
    while (last < EACH) {
        for (const char *at = take(); *at; at = strchr(at, '\n') + 1) {
            assert_int_equal(sscanf(strstr(at, "\"n\":"), "\"n\":%llu", &n), 1);
            assert_int_equal(n, last + 1);
            last = n;
        }
        give_way_after(++looks);
    }
    join_all(threads, 2);
}

int main(void)
{
    start = monotonic_ns();
    records_start(start);
    return cases_run();
}
