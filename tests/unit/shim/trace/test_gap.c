/* SPDX-License-Identifier: Apache-2.0 */
/* test_gap.c - which events the trace leaves out: gap.c alone, with a clock of the test's own. */

#include "cases.h"
#include "trace/gap.h"

#define SECOND 1000000000u
#define LEN    100u

static struct gap gap;
static uint64_t now;

static void start(uint64_t limit, bool rated)
{
    now = 5 * SECOND;
    gap_start(&gap, limit, rated, now);
}

/* Writes one line as trace.c does. */
static enum gap_verdict line(enum gap_kind kind)
{
    const enum gap_verdict verdict = gap_judge(&gap, kind, 1, LEN, now);

    if (verdict == GAP_WRITE || verdict == GAP_RESUME)
        gap.written += LEN;
    return verdict;
}

static void told(bool open)
{
    gap_reported(&gap, now);
    gap.open = open;
}

UNIT_CASE(test_no_limit)
{
    start(0, false);
    for (unsigned int i = 0; i < 10 * GAP_BURST; i++)
        assert_int_equal(line(GAP_SEGMENTS), GAP_WRITE);
}

UNIT_CASE(test_limit)
{
    start(10 * LEN, false);
    for (unsigned int i = 0; i < 10; i++)
        assert_int_equal(line(GAP_BLOCKS), GAP_WRITE);
    now += 7;
    assert_int_equal(line(GAP_SEGMENTS), GAP_REPORT);
    assert_true(gap.open && gap.why == GAP_LIMIT && gap.since == now);
    told(true);
    assert_int_equal(line(GAP_SEGMENTS), GAP_LEFT_OUT);
    assert_int_equal(line(GAP_BLOCKS), GAP_LEFT_OUT);
    assert_int_equal(gap_judge(&gap, GAP_OTHERS, 3, 50, now), GAP_LEFT_OUT);
    assert_int_equal(gap.events[GAP_SEGMENTS], 1);
    assert_int_equal(gap.events[GAP_BLOCKS], 1);
    assert_int_equal(gap.events[GAP_OTHERS], 3);
    assert_int_equal(gap.bytes, 2 * LEN + 50);
    /* Never again, but from time to time it is told what is held. */
    now += GAP_REPORT_NS - 1;
    assert_int_equal(line(GAP_SEGMENTS), GAP_LEFT_OUT);
    now++;
    assert_int_equal(line(GAP_SEGMENTS), GAP_REPORT);
    told(true);
    assert_int_equal(gap.events[GAP_SEGMENTS], 0);
    now += 1000ull * 3600 * SECOND;
    assert_int_equal(line(GAP_SEGMENTS), GAP_REPORT);
    assert_int_equal(gap.written, 10 * LEN);
}

UNIT_CASE(test_rate)
{
    start(0, true);
    for (unsigned int i = 0; i < GAP_BURST; i++)
        assert_int_equal(line(GAP_SEGMENTS), GAP_WRITE);
    assert_int_equal(line(GAP_SEGMENTS), GAP_REPORT);
    assert_true(gap.open && gap.why == GAP_RATE);
    told(true);
    /* Not with the next one that there is room for, or half of the lines would tell of gaps. */
    now += SECOND;
    assert_int_equal(line(GAP_SEGMENTS), GAP_LEFT_OUT);
    now += (uint64_t)(GAP_BURST / 2 / GAP_RATE_S) * SECOND;
    assert_int_equal(line(GAP_SEGMENTS), GAP_RESUME);
    assert_int_equal(gap.events[GAP_SEGMENTS], 1);
    told(false);
    assert_int_equal(line(GAP_OTHERS), GAP_WRITE);
}

UNIT_CASE(test_rate_that_is_bearable)
{
    start(0, true);
    for (unsigned int i = 0; i < 10 * GAP_BURST; i++) {
        now += SECOND / GAP_RATE_S;
        assert_int_equal(line(GAP_SEGMENTS), GAP_WRITE);
    }
}

UNIT_CASE(test_limit_ends_what_the_rate_began)
{
    start((uint64_t)LEN * (GAP_BURST + 1), true);
    for (unsigned int i = 0; i < GAP_BURST; i++)
        line(GAP_SEGMENTS);
    assert_int_equal(line(GAP_SEGMENTS), GAP_REPORT);
    assert_int_equal(gap.why, GAP_RATE);
    told(true);
    now += 3600ull * SECOND;
    assert_int_equal(gap_judge(&gap, GAP_SEGMENTS, 1, LEN + 1, now), GAP_REPORT);
    assert_int_equal(gap.why, GAP_LIMIT);
    told(true);
    assert_int_equal(line(GAP_SEGMENTS), GAP_LEFT_OUT); /* it would have room, but the trace has ended */
}

UNIT_CASE(test_error)
{
    start(0, false);
    gap_fail(&gap, now);
    assert_true(gap.open && gap.why == GAP_ERROR);
    assert_int_equal(line(GAP_SEGMENTS), GAP_RESUME);
    assert_int_equal(line(GAP_SEGMENTS), GAP_RESUME); /* telling it failed as well */
    told(false);
    assert_int_equal(line(GAP_SEGMENTS), GAP_WRITE);
}

UNIT_CASE(test_text)
{
    char text[2048];
    size_t len;

    start(LEN, false);
    line(GAP_SEGMENTS);
    line(GAP_SEGMENTS);
    gap_tally(0, "cuda", 100, true);
    gap_tally(0, "nccl", 10, true);
    gap_tally(1, "cuda", 7, true);
    gap_tally(0, "cuda", 20, true);
    gap_tally(0, "cuda", 100, false);
    gap_tally(0, TRACE_HOST, 5, true); /* no memory of a device */
    len = gap_text(&gap, true, 40, 30, text, sizeof(text));
    assert_int_equal(len, strlen(text));
    assert_string_equal(text, "{\"t\":40,\"e\":\"gap\",\"why\":\"limit\",\"since\":30,\"segments\":1,\"blocks\":0,"
                              "\"others\":0,\"bytes\":100,\"open\":1}\n"
                              "{\"t\":40,\"e\":\"held\",\"d\":0,\"b\":\"cuda\",\"n\":20,\"segments\":1}\n"
                              "{\"t\":40,\"e\":\"held\",\"d\":0,\"b\":\"nccl\",\"n\":10,\"segments\":1}\n"
                              "{\"t\":40,\"e\":\"held\",\"d\":1,\"b\":\"cuda\",\"n\":7,\"segments\":1}\n"
                              "{\"t\":40,\"e\":\"host_held\",\"d\":0,\"b\":\"host\",\"n\":5,\"segments\":1}\n");
}

/* The last one: what is tallied stays. */
UNIT_CASE(test_more_than_can_be_told)
{
    char text[4 * 256 + 1] = "";
    unsigned int lines = 0;
    size_t len;

    start(1, false);
    for (int i = 0; i < 2 * (int)GAP_TALLIES; i++)
        gap_tally(1000 + i, "cuda", 10, true);
    text[4 * 256] = 'x';
    len = gap_text(&gap, true, 40, 30, text, 4 * 256);
    assert_int_equal(len, strlen(text));
    for (const char *c = text; *c; c++)
        lines += *c == '\n';
    assert_in_range(lines, 4, 16);
    assert_int_equal(text[len - 1], '\n');
    assert_int_equal(text[4 * 256], 'x');
}

/* A line is written where there is room for the longest one, of 256 bytes with its zero, and nothing behind the room.
 */
UNIT_CASE(test_room)
{
    static char text[16384];
    size_t ends[GAP_TALLIES + 1] = {0}, count = 0, len;

    start(1, false);
    for (int i = 0; i < 3; i++)
        gap_tally(i, "cuda", 10, true);
    len = gap_text(&gap, true, 40, 30, text, sizeof(text));
    for (size_t i = 0; i < len; i++)
        if (text[i] == '\n')
            ends[count++] = i + 1;
    for (size_t room = 512; room < 4096; room++) {
        size_t lines = 1;

        while (lines < count && ends[lines - 1] + 256 <= room)
            lines++;
        memset(text, '#', sizeof(text));
        assert_int_equal(gap_text(&gap, true, 40, 30, text, room), ends[lines - 1]);
        assert_int_equal(text[ends[lines - 1]], '\0');
        assert_int_equal(text[ends[lines - 1] + 1], '#');
    }
}

/* Time that does not pass, or goes back, gives no credit. */
UNIT_CASE(test_a_clock_that_stands)
{
    start(0, true);
    for (unsigned int i = 1; i <= 10; i++) {
        now -= i / 5;
        assert_int_equal(line(GAP_SEGMENTS), GAP_WRITE);
        assert_int_equal(gap.credit, (uint64_t)(GAP_BURST - i) * SECOND);
    }
}
