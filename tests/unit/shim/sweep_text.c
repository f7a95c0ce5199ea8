/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_text.c - see sweep_text.h. */
#include "sweep_text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX 2000
#define SHORT     40   /* of a difference that is recorded; the digest is of all */
#define LONG      1500 /* of one that is printed */
#define WAYS_MAX  8
#define SHOWN     12 /* so many rows are printed */

struct sweep_record {
    char path[4096];
    const char *scene;
    char *recorded; /* the file; NULL: it is being written */
    FILE *file;
    const struct sweep_text *base;
    bool all;
    unsigned int wrong, rows;
    char row[160], digests[160];       /* of the row under way */
    struct sweep_text texts[WAYS_MAX]; /* its outcomes; while recording, what differs in the first */
    char ways[WAYS_MAX][16];
    unsigned int outcomes;
};

void sweep_text_add(struct sweep_text *text, const char *format, ...)
{
    va_list args;
    int added;

    va_start(args, format);
    added = vsnprintf(text->text + text->len, sizeof(text->text) - text->len, format, args);
    va_end(args);
    text->len += added > 0 ? (size_t)added : 0;
    if (text->len >= sizeof(text->text))
        text->len = sizeof(text->text) - 1;
}

static uint32_t digest_of(const char *text)
{
    uint64_t digest = 0xcbf29ce484222325u;

    for (; *text; text++)
        digest = (digest ^ (unsigned char)*text) * 0x100000001b3u;
    return (uint32_t)(digest ^ digest >> 32);
}

/* --- differences --- */

static size_t words_of(const struct sweep_text *text, struct sweep_text *copy, const char **words)
{
    size_t n = 0;

    *copy = *text;
    for (char *word, *rest = copy->text; (word = strsep(&rest, " \n")) && n < WORDS_MAX;)
        if (*word)
            words[n++] = word;
    return n;
}

/* The words that the second text lacks (-) and has in addition (+), in order: by the longest common subsequence. */
static void difference(const struct sweep_text *one, const struct sweep_text *other, struct sweep_text *ret)
{
    static struct sweep_text copies[2];
    static const char *a[WORDS_MAX], *b[WORDS_MAX];
    static uint16_t common[WORDS_MAX + 1][WORDS_MAX + 1]; /* of the words from here on */
    const size_t n = words_of(one, &copies[0], a), m = words_of(other, &copies[1], b);
    size_t i, k;

    for (i = n; i-- > 0;)
        for (k = m; k-- > 0;)
            common[i][k] = strcmp(a[i], b[k]) == 0               ? (uint16_t)(common[i + 1][k + 1] + 1)
                           : common[i + 1][k] > common[i][k + 1] ? common[i + 1][k]
                                                                 : common[i][k + 1];
    ret->len = 0;
    ret->text[0] = '\0';
    for (i = k = 0; i < n || k < m;) {
        if (i < n && k < m && strcmp(a[i], b[k]) == 0) {
            i++;
            k++;
        } else if (k == m || (i < n && common[i + 1][k] >= common[i][k + 1])) {
            sweep_text_add(ret, " -%s", a[i++]);
        } else {
            sweep_text_add(ret, " +%s", b[k++]);
        }
    }
}

/* --- the file --- */

static char *read_all(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t size = 0;

    if (!file || getdelim(&text, &size, '\0', file) < 0) {
        fprintf(stderr, "%s cannot be read\n", path);
        exit(1);
    }
    fclose(file);
    return text;
}

struct sweep_record *sweep_record_begin(const char *folder, const char *scene, bool all)
{
    static struct sweep_record record;

    record = (struct sweep_record){.scene = scene, .all = all};
    snprintf(record.path, sizeof(record.path), "%s/%s.txt", folder, scene);
    if (!getenv("CUPOOL_TEST_RECORD")) {
        record.recorded = read_all(record.path);
        return &record;
    }
    record.file = fopen(record.path, "w");
    if (!record.file) {
        fprintf(stderr, "%s cannot be written\n", record.path);
        exit(1);
    }
    return &record;
}

static bool shows(struct sweep_record *record)
{
    return record->wrong++ < SHOWN;
}

void sweep_base(struct sweep_record *record, const struct sweep_text *base)
{
    static struct sweep_text before, differs;
    const char *end;

    record->base = base;
    if (record->file) {
        fprintf(record->file, "%s\n", base->text);
        return;
    }
    end = strstr(record->recorded, "\n\n");
    before.len = 0;
    sweep_text_add(&before, "%.*s", end ? (int)(end - record->recorded) + 1 : 0, record->recorded);
    if (strcmp(before.text, base->text) == 0 || !shows(record))
        return;
    difference(&before, base, &differs);
    printf("%s, where nothing fails:%.*s\n", record->scene, LONG, differs.text);
}

/* Each way in which the digest is another one, and what differs there from where nothing fails. */
static void show_row(struct sweep_record *record, const char *recorded)
{
    static struct sweep_text differs;

    if (!shows(record))
        return;
    printf("%s: %s\n  recorded: %s\n", record->scene, record->row + 1, recorded);
    for (unsigned int i = 0; i < record->outcomes; i++) {
        char digest[16];

        snprintf(digest, sizeof(digest), "%.9s", record->digests + 9 * i);
        if (strstr(recorded, digest))
            continue;
        difference(record->base, &record->texts[i], &differs);
        printf("  %s:%.*s\n", record->ways[i], LONG, differs.text);
    }
}

void sweep_row_begin(struct sweep_record *record, unsigned int at)
{
    snprintf(record->row, sizeof(record->row), "\n%u", at);
    record->digests[0] = '\0';
    record->outcomes = 0;
}

void sweep_outcome(struct sweep_record *record, const struct sweep_text *base, const struct sweep_text *text,
                   const char *way, const char *name)
{
    const unsigned int n = record->outcomes++;
    size_t len = strlen(record->digests);

    if (n == 0)
        snprintf(record->row + strlen(record->row), 80, " %s", name);
    snprintf(record->digests + len, sizeof(record->digests) - len, " %08x", digest_of(text->text));
    snprintf(record->ways[n], sizeof(record->ways[n]), "%s", way);
    if (record->file && n == 0)
        difference(base, text, &record->texts[0]);
    else
        record->texts[n] = *text;
}

void sweep_row_end(struct sweep_record *record)
{
    char line[400], *mark = record->texts[0].text;
    const char *at;

    record->rows++;
    if (record->file) {
        mark = strncmp(mark, " +!", 3) == 0 ? mark + 3 + strcspn(mark + 3, " ") : mark; /* that it failed is known */
        fprintf(record->file, "%s%s%.*s%s\n", record->row + 1, record->digests, SHORT, mark,
                strlen(mark) > SHORT ? "..." : "");
        return;
    }
    snprintf(line, sizeof(line), "%s%s", record->row, record->digests);
    at = strstr(record->recorded, line);
    if (at && strchr(" \n", at[strlen(line)]))
        return;
    snprintf(line, sizeof(line), "%s ", record->row);
    at = strstr(record->recorded, line);
    snprintf(line, sizeof(line), "%.*s", at ? (int)strcspn(at + 1, "\n") : 0, at ? at + 1 : "");
    show_row(record, line);
}

/* Rows that are recorded, and that no call stands for any longer. */
static unsigned int rows_of(const char *text)
{
    unsigned int n = 0;

    for (text = strstr(text, "\n\n"); text && text[2]; text = strchr(text + 1, '\n'))
        n += text[1] && text[1] != '\n';
    return n;
}

bool sweep_record_end(struct sweep_record *record)
{
    if (record->file && fclose(record->file)) {
        fprintf(stderr, "%s cannot be written\n", record->path);
        exit(1);
    }
    if (record->recorded && record->all && rows_of(record->recorded) != record->rows)
        record->wrong++;
    free(record->recorded);
    if (record->wrong)
        printf("FAILED: %s: %u rows of %u are otherwise; tests/unit/shim/sweep_scenes.h says how to record\n",
               record->scene, record->wrong, record->rows);
    return !record->wrong;
}
