/* SPDX-License-Identifier: Apache-2.0 */
/* test_digits.c - numbers as text are what printf makes of them, and nothing behind their room is touched. */
#include <inttypes.h>

#include "trace/digits.h"
#include "trace/trace.h"
#include "unit.h"

static void same(uint64_t n)
{
    char text[DIGITS_ROOM + 1], want[DIGITS_ROOM];
    char *end;

    text[DIGITS_ROOM] = 'x';
    end = digits_decimal(text, n);
    assert_int_equal(end - text, snprintf(want, sizeof(want), "%" PRIu64, n));
    assert_memory_equal(text, want, (size_t)(end - text));
    end = digits_hexadecimal(text, n);
    assert_int_equal(end - text, snprintf(want, sizeof(want), "%" PRIx64, n));
    assert_memory_equal(text, want, (size_t)(end - text));
    assert_int_equal(text[DIGITS_ROOM], 'x');
}

/* Around every number at which another digit begins, in either base. */
UNIT_CASE(test_edges)
{
    uint64_t ten = 1;

    for (int i = 0; i < 20; i++, ten *= 10)
        for (uint64_t d = 0; d < 3; d++)
            same(ten + d - 1);
    for (int i = 0; i < 64; i++)
        for (uint64_t d = 0; d < 3; d++)
            same(((uint64_t)1 << i) + d - 1);
    same(UINT64_MAX);
}

UNIT_CASE(test_many)
{
    uint64_t n = 0x9e3779b97f4a7c15;

    for (unsigned int i = 0; i < 300000; i++) {
        same(n >> i % 64);
        n ^= n << 13;
        n ^= n >> 7;
        n ^= n << 17;
    }
    for (n = 0; n < 20000; n++)
        same(n);
}

/* A duration of the trace. */
UNIT_CASE(test_microseconds)
{
    static const struct {
        uint64_t ns;
        const char *text;
    } rows[] = {{0, "0.0"},
                {99, "0.0"},
                {100, "0.1"},
                {999, "0.9"},
                {1000, "1.0"},
                {1234567, "1234.5"},
                {UINT64_MAX, "18446744073709551.6"}};
    char text[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(text, sizeof(text), "%llu.%llu", TRACE_US(rows[i].ns));
        assert_string_equal(text, rows[i].text);
    }
}
