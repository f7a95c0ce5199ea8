/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_rows.h - what becomes of one program under many faults, a row (record.h) for each. A row has the answers
 * that differ from those of the first one, which has no fault, and a digest of all else.
 *
 * Each row is played in a process of its own, because the library keeps its state. It knows nothing of the program.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SHIM_SNAPSHOT_ROWS_H
#define CUPOOL_TESTS_SHIM_SNAPSHOT_ROWS_H

#include "cases.h"
#include "record.h"

#define STEPS_MAX 128
#define LINE_MAX_ 2048
#define SECONDS   60 /* no row takes that long */

struct row {
    char name[64], end[256];
    struct {
        char name[16];
        long long value;
    } steps[STEPS_MAX];
    unsigned int count;
    uint64_t digest;
    bool more; /* there is a row after this one */
};

/* An answer that the program got. */
#define STEP(row, name, value) row_step(row, name, (long long)(value))

static inline void row_step(struct row *row, const char *name, long long value)
{
    assert_true(row->count < STEPS_MAX);
    snprintf(row->steps[row->count].name, sizeof(row->steps[0].name), "%s", name);
    row->steps[row->count++].value = value;
}

static inline void row_digest(struct row *row, const char *text)
{
    row->digest = record_digest(row->digest, text);
}

/* The answer of the same name, as often as this one came before; NULL: none. */
static inline const long long *row_same(const struct row *row, const struct row *first, unsigned int step)
{
    unsigned int before = 0, found = 0;

    for (unsigned int i = 0; i < step; i++)
        before += strcmp(row->steps[i].name, row->steps[step].name) == 0;
    for (unsigned int i = 0; i < first->count; i++)
        if (strcmp(first->steps[i].name, row->steps[step].name) == 0 && found++ == before)
            return &first->steps[i].value;
    return NULL;
}

static inline void row_write(const struct row *row, const struct row *first, char *text, size_t size)
{
    size_t len = (size_t)snprintf(text, size, "%s:", row->name);

    for (unsigned int i = 0; i < row->count && len < size; i++) {
        const long long *same = row == first ? NULL : row_same(row, first, i);

        if (!same || *same != row->steps[i].value)
            len += (size_t)snprintf(text + len, size - len, " %s=%lld", row->steps[i].name, row->steps[i].value);
    }
    if (len < size)
        snprintf(text + len, size - len, " | %s | %016llx", row->end, (unsigned long long)row->digest);
}

struct row_play {
    void (*play)(struct row *row, unsigned int n);
    struct row *row;
    unsigned int n;
};

static inline int row_play(void *arg)
{
    const struct row_play *play = arg;

    play->play(play->row, play->n);
    return 0;
}

/* Play the rows, the first without a fault, until one says that there is none after it. name: for record_begin. */
static inline void rows_test(const char *name, void (*play)(struct row *row, unsigned int n))
{
    struct row *const rows = record_shared(2 * sizeof(*rows));
    struct row_play now = {.play = play, .row = rows};
    char text[LINE_MAX_];
    int status;

    record_begin(name);
    do {
        now.row = &rows[now.n > 0];
        memset(now.row, 0, sizeof(*now.row));
        status = record_apart(row_play, &now, -1, SECONDS);
        if (status)
            fail_msg("row %u ends with status %#x", now.n, (unsigned int)status);
        row_write(now.row, &rows[0], text, sizeof(text));
        record_add("%s\n", text);
    } while (rows[now.n++ > 0].more);
    assert_true(record_end());
}

#endif
