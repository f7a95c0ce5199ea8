/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gap.c - see gap.h.
 *
 * Locking: the lock of trace.c.
 */
#include "trace/gap.h"

#include <stdio.h>
#include <string.h>

/* The longest line, in bytes. */
#define LINE   256
#define SECOND 1000000000u
#define FULL   ((uint64_t)GAP_BURST * SECOND)

typedef unsigned long long ull;

/* The held memory of a device from one backend, in bytes and segments. */
struct tally {
    int device;
    const char *backend;
    uint64_t held, segments;
};

static struct tally tallies[GAP_TALLIES];
static unsigned int tally_count;

void gap_start(struct gap *gap, uint64_t limit, bool rated, uint64_t now)
{
    *gap = (struct gap){.limit = limit, .rated = rated, .credit = FULL, .at = now};
}

/* The token bucket refills by time. */
static void fill(struct gap *gap, uint64_t now)
{
    const uint64_t passed = now > gap->at ? now - gap->at : 0;

    if (passed >= FULL / GAP_RATE_S || gap->credit + passed * GAP_RATE_S >= FULL)
        gap->credit = FULL;
    else
        gap->credit += passed * GAP_RATE_S;
    gap->at = now;
}

static void count(struct gap *gap, enum gap_kind kind, uint64_t events, size_t len)
{
    gap->events[kind] += events;
    gap->bytes += len;
}

static void begin(struct gap *gap, enum gap_why why, uint64_t now)
{
    gap->open = true;
    gap->why = why;
    gap->since = now;
    gap->reported = now;
}

/* Events are being left out: for how much longer? */
static enum gap_verdict judge_open(struct gap *gap, bool over, uint64_t now)
{
    if (gap->why == GAP_RATE && over)
        gap->why = GAP_LIMIT; /* and stays so */
    /* Half of the bucket, or every second event would begin a gap. After an error every event is tried. */
    if (!over && (gap->why == GAP_ERROR || (gap->why == GAP_RATE && gap->credit >= FULL / 2)))
        return GAP_RESUME;
    return now - gap->reported >= GAP_REPORT_NS ? GAP_REPORT : GAP_LEFT_OUT;
}

enum gap_verdict gap_judge(struct gap *gap, enum gap_kind kind, uint64_t events, size_t len, uint64_t now)
{
    const bool over = gap->limit && gap->written + len > gap->limit;
    const uint64_t price = gap->rated ? events * SECOND : 0;
    enum gap_verdict verdict = GAP_WRITE;

    fill(gap, now);
    if (gap->open) {
        verdict = judge_open(gap, over, now);
    } else if (over || price > gap->credit) {
        begin(gap, over ? GAP_LIMIT : GAP_RATE, now);
        verdict = GAP_REPORT;
    }
    if (verdict == GAP_LEFT_OUT || verdict == GAP_REPORT)
        count(gap, kind, events, len);
    else
        gap->credit -= price < gap->credit ? price : gap->credit;
    return verdict;
}

void gap_fail(struct gap *gap, uint64_t now)
{
    if (!gap->open)
        begin(gap, GAP_ERROR, now);
}

void gap_reported(struct gap *gap, uint64_t now)
{
    memset(gap->events, 0, sizeof(gap->events));
    gap->bytes = 0;
    gap->reported = now;
}

void gap_tally(int device, const char *backend, size_t size, bool got)
{
    struct tally *tally = tallies;

    while (tally < tallies + tally_count && (tally->device != device || strcmp(tally->backend, backend) != 0))
        tally++;
    if (tally == tallies + tally_count) {
        if (tally_count == GAP_TALLIES)
            return;
        tally_count++;
        *tally = (struct tally){.device = device, .backend = backend};
    }
    tally->held = got ? tally->held + size : tally->held > size ? tally->held - size : 0;
    tally->segments = got ? tally->segments + 1 : tally->segments ? tally->segments - 1 : 0;
}

size_t gap_text(const struct gap *gap, bool open, uint64_t t, uint64_t since, char *text, size_t room)
{
    static const char *const why[] = {"limit", "rate", "error"};
    char *at = text;

    at += snprintf(at, LINE,
                   "{\"t\":%llu,\"e\":\"gap\",\"why\":\"%s\",\"since\":%llu,\"segments\":%llu,\"blocks\":%llu,"
                   "\"others\":%llu,\"bytes\":%llu,\"open\":%d}\n",
                   (ull)t, why[gap->why], (ull)since, (ull)gap->events[GAP_SEGMENTS], (ull)gap->events[GAP_BLOCKS],
                   (ull)gap->events[GAP_OTHERS], (ull)gap->bytes, open);
    for (const struct tally *tally = tallies; tally < tallies + tally_count; tally++) {
        if (at + LINE > text + room)
            break;
        at += snprintf(at, LINE, "{\"t\":%llu,\"e\":\"%s\",\"d\":%d,\"b\":\"%s\",\"n\":%llu,\"segments\":%llu}\n",
                       (ull)t, strcmp(tally->backend, TRACE_HOST) == 0 ? "host_held" : "held", tally->device,
                       tally->backend, (ull)tally->held, (ull)tally->segments);
    }
    return (size_t)(at - text);
}
