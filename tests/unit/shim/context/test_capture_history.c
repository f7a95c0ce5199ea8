/* SPDX-License-Identifier: Apache-2.0 */
/* test_capture_history.c - which of NCCL's segments were there during a capture: capture_history.c alone, with counters
 * of the test's. */
#include "cases.h"

#include "context/capture_gate.h"
#include "context/capture_history.h"

#define SEGMENTS 200u

atomic_uint capture_count, capture_total;

/* Begin 'b' and end 'e' a capture, ask for 'a' and get 'g' a segment, lose 'l' it with its context. */
static const struct {
    const char *course;
    bool captured;
} rows[] = {{"ag", false},      {"beag", false},    {"agbe", true},     {"agb", true},    {"bag", true},
            {"bage", true},     {"bebage", true},   {"abg", true},      {"abeg", true},   {"bbag", true},
            {"bbagee", true},   {"beagbebe", true}, {"agbelag", false}, {"baglag", true}, {"bagelag", false},
            {"aglbeag", false}, {"g", false},       {"be", true}};

static bool captured(const char *course, uint64_t addr)
{
    unsigned int time = 0;

    atomic_store(&capture_count, 0);
    atomic_store(&capture_total, 0);
    for (; *course; course++) {
        atomic_fetch_add(&capture_total, *course == 'b');
        atomic_fetch_add(&capture_count, *course == 'b' ? 1u : *course == 'e' ? -1u : 0u);
        if (*course == 'a')
            time = capture_history_now();
        if (*course == 'g')
            capture_history_add(addr, time);
    }
    return capture_history_saw(addr);
}

UNIT_CASE(test_courses)
{
    for (unsigned int i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (captured(rows[i].course, 4096) != rows[i].captured)
            fail_msg("%s", rows[i].course);
}

/* Each has a time of its own, whichever goes first. */
UNIT_CASE(test_many)
{
    atomic_store(&capture_count, 0);
    for (unsigned int i = 0; i < SEGMENTS; i++)
        capture_history_add(i * 4096, i);
    for (unsigned int i = 0; i < SEGMENTS; i++) {
        const unsigned int one = i * 77 % SEGMENTS;

        atomic_store(&capture_total, one);
        assert_false(capture_history_saw(one * (uint64_t)4096));
        assert_int_equal(capture_history_saw(one * (uint64_t)4096), one != 0); /* forgotten */
    }
}
