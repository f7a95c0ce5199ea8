/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_trace.c - what allocation events have in the trace. shim/records.c: what is stamped with the processor's counter
 * gets times between those of a clock whose rate to the counter changes from moment to moment;
 * tests/unit/test_records.c has the rest, with the clock as it is. shim/frames.c: who called, where there is no
 * unwinder.
 */
#include <stdio.h>
#include <string.h>

#include "fake_driver.h"
#include "frames.h"
#include "isolated.h"
#include "records.h"

/* The clock's time, so large that what is counted from 0 in place of a moment is far off. */
#define START UINT64_C(4000000000000000000)
#define MS    UINT64_C(1000000)

static void test_rate(void **state)
{
    static const struct {
        uint64_t passes; /* while the record is there */
        bool rated;      /* long enough for a rate of its own; else only that the time is no earlier */
    } rows[] = {{MS, true},      {1000000000 * MS, true}, {MS, true},          {2 * MS, true},
                {MS - 1, false}, {2 * MS, true},          {100000 * MS, true}, {MS, true},
                {MS / 2, false}, {MS / 4, false},         {MS, true}};
    uint64_t since = 0; /* what the time is counted from */

    (void)state;
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
static void test_frames(void **state)
{
    char text[4 * RECORDS_ROOM];

    (void)state;
    fake_start();
    records_start(0);
    frames_alloc(3, 0x1000, 4096, (const void *)test_frames);
    frames_alloc(3, 0x2000, 4096, (const void *)test_frames);
    records_begin();
    text[records_take(text, sizeof(text) - 1, /* wait: */ false)] = '\0';
    assert_int_equal(strncmp(fake.traced, "frame:\"f\":", strlen("frame:\"f\":")), 0);
    assert_null(strstr(strchr(fake.traced, '\n') + 1, "frame:")); /* told once */
    assert_non_null(strstr(text, ",\"p\":\"0x1000\",\"n\":4096,\"f\":["));
    assert_non_null(strstr(text, ",\"p\":\"0x2000\",\"n\":4096,\"f\":["));
}

int main(int argc, char **argv)
{
    const struct isolated tests[] = {{ISOLATED(test_rate)},
                                     {ISOLATED(test_frames), .environment = "CUPOOL_TRACE_STACKS=1"}};

    return isolated_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
