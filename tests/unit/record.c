/* SPDX-License-Identifier: Apache-2.0 */
/* record.c - see record.h. */
#include "record.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX   (1u << 20)
#define TOKENS_MAX 2000
#define SHOWN      12 /* so many rows that differ are printed */

/* Texts begin with a newline, so that each line has one before it. */
static struct {
    char path[PATH_MAX];
    char now[TEXT_MAX], recorded[TEXT_MAX];
    size_t len;      /* of now */
    const char *at;  /* recorded text before it has been found */
    bool partial;    /* not all rows are made */
    bool incomplete; /* there is no room for a row */
} record;

/* A test may clear its environment before it begins to record. */
static bool records;
__attribute__((constructor)) static void records_read(void)
{
    records = getenv("CUPOOL_TEST_RECORD") != NULL;
}

void record_begin(const char *name)
{
    size_t len = 1;
    FILE *file;

    snprintf(record.path, sizeof(record.path), RECORDED "/%s.txt", name);
    strcpy(record.now, "\n");
    strcpy(record.recorded, "\n");
    record.len = 1;
    record.at = record.recorded;
    record.partial = record.incomplete = false;
    file = records ? NULL : fopen(record.path, "r");
    if (!file)
        return; /* no row is recorded */
    len += fread(record.recorded + 1, 1, TEXT_MAX - 2, file);
    record.recorded[len] = '\0';
    fclose(file);
}

bool record_add(const char *format, ...)
{
    char *const text = record.now + record.len;
    const char *found;
    va_list args;
    int added;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 does not follow va_start into a call */
    added = vsnprintf(text, TEXT_MAX - record.len, format, args);
    va_end(args);
    if (added < 0 || (size_t)added >= TEXT_MAX - record.len) {
        *text = '\0';
        record.incomplete = true;
        return true;
    }
    record.len += (size_t)added;
    found = strstr(record.at, text - 1);
    if (found)
        record.at = found + added;
    return found || records;
}

void record_find(const char *begin, char *ret_line, size_t size)
{
    const char *line = record.recorded;

    do
        line = strchr(line, '\n');
    while (line && strncmp(++line, begin, strlen(begin)) != 0);
    snprintf(ret_line, size, "%.*s", line ? (int)strcspn(line, "\n") : 0, line ? line : "");
}

void record_partial(void)
{
    record.partial = true;
}

/* --- differences --- */

struct tokens {
    const char *at[TOKENS_MAX];
    size_t count;
};

/* From one list of tokens to another one: this token is in both (=), lacks (-), or is added (+). */
struct steps {
    struct step {
        char sign;
        const char *token;
    } at[2 * TOKENS_MAX];
    size_t count;
};

/* The tokens of a text, which is cut into them. */
static void tokens_of(char *text, const char *between, struct tokens *ret)
{
    ret->count = 0;
    for (char *token, *rest = text; (token = strsep(&rest, between)) && ret->count < TOKENS_MAX;)
        if (*token)
            ret->at[ret->count++] = token;
}

/* By the longest common subsequence. */
static void steps_of(const struct tokens *a, const struct tokens *b, struct steps *ret)
{
    static uint16_t common[TOKENS_MAX + 1][TOKENS_MAX + 1]; /* of the tokens from here on */
    size_t i, k;

    for (i = 0; i <= a->count; i++)
        common[i][b->count] = 0;
    for (k = 0; k <= b->count; k++)
        common[a->count][k] = 0;
    for (i = a->count; i-- > 0;)
        for (k = b->count; k-- > 0;)
            common[i][k] = strcmp(a->at[i], b->at[k]) == 0       ? (uint16_t)(common[i + 1][k + 1] + 1)
                           : common[i + 1][k] > common[i][k + 1] ? common[i + 1][k]
                                                                 : common[i][k + 1];
    ret->count = 0;
    for (i = k = 0; i < a->count || k < b->count;) {
        struct step *step = &ret->at[ret->count++];

        if (i < a->count && k < b->count && strcmp(a->at[i], b->at[k]) == 0) {
            *step = (struct step){'=', a->at[i++]};
            k++;
        } else if (k == b->count || (i < a->count && common[i + 1][k] >= common[i][k + 1])) {
            *step = (struct step){'-', a->at[i++]};
        } else {
            *step = (struct step){'+', b->at[k++]};
        }
    }
}

void record_difference(const char *one, const char *other, char *ret, size_t size)
{
    static struct tokens a, b;
    static struct steps steps;
    char *const copies[] = {strdup(one), strdup(other)};
    size_t len = 0;

    tokens_of(copies[0], " \n", &a);
    tokens_of(copies[1], " \n", &b);
    steps_of(&a, &b, &steps);
    ret[0] = '\0';
    for (size_t i = 0; i < steps.count && len < size; i++)
        if (steps.at[i].sign != '=')
            len += (size_t)snprintf(ret + len, size - len, " %c%s", steps.at[i].sign, steps.at[i].token);
    free(copies[0]);
    free(copies[1]);
}

/* --- rows that differ --- */

/* The number of a line of record.recorded or record.now, of which some lines end with zeros by now. */
static size_t number_of(const char *line)
{
    const char *at = line >= record.now && line < record.now + TEXT_MAX ? record.now : record.recorded;
    size_t number = 0;

    for (; at < line; at++)
        number += *at == '\n' || !*at;
    return number;
}

/* One of the rows: how it was recorded, and how it is; NULL: there is none. */
static void show(const char *recorded, const char *now, unsigned int *differ)
{
    char words[TEXT_MAX / 256];

    if (++*differ > SHOWN)
        return;
    if (recorded)
        fprintf(stderr, "line %zu, recorded: %s\n", number_of(recorded), recorded);
    if (now)
        fprintf(stderr, "line %zu, now:      %s\n", number_of(now), now);
    if (!recorded || !now)
        return;
    record_difference(recorded, now, words, sizeof(words));
    fprintf(stderr, "  differs by:%s\n", words);
}

static size_t same_begin(const char *a, const char *b)
{
    size_t same = 0;

    while (a[same] && a[same] == b[same])
        same++;
    return same;
}

/* Steps without one that is in both. Of a row that is added, the recorded one is that which begins most like it: rows
 * begin with their names. */
static void show_between(const struct step *steps, size_t count, unsigned int *differ)
{
    size_t at = 0; /* recorded rows before it have been shown */

    for (size_t i = 0; i < count; i++) {
        size_t best = 0, same = 0;

        if (steps[i].sign != '+')
            continue;
        for (size_t k = at; k < count; k++)
            if (steps[k].sign == '-' && same_begin(steps[k].token, steps[i].token) > same) {
                best = k;
                same = same_begin(steps[k].token, steps[i].token);
            }
        for (; same && at < best; at++)
            if (steps[at].sign == '-' && !record.partial)
                show(steps[at].token, NULL, differ);
        show(same ? steps[best].token : NULL, steps[i].token, differ);
        at = same ? best + 1 : at;
    }
    for (; at < count; at++)
        if (steps[at].sign == '-' && !record.partial)
            show(steps[at].token, NULL, differ);
}

/* How many rows differ. */
static unsigned int compare(void)
{
    static struct tokens a, b;
    static struct steps steps;
    unsigned int differ = 0;
    size_t same = same_begin(record.recorded, record.now), end;

    if (strcmp(record.recorded, record.now) == 0)
        return 0;
    while (same && record.now[same - 1] != '\n')
        same--;
    tokens_of(record.recorded + same, "\n", &a);
    tokens_of(record.now + same, "\n", &b);
    if (a.count == b.count) { /* many rows may be equal: their places say which is which */
        for (size_t i = 0; i < a.count; i++)
            if (strcmp(a.at[i], b.at[i]) != 0)
                show(a.at[i], b.at[i], &differ);
        return differ ? differ : 1; /* only empty lines do */
    }
    steps_of(&a, &b, &steps);
    for (size_t i = 0; i < steps.count; i = end + 1) {
        for (end = i; end < steps.count && steps.at[end].sign != '=';)
            end++;
        show_between(&steps.at[i], end - i, &differ);
    }
    return differ;
}

bool record_end(void)
{
    FILE *file;
    unsigned int differ;

    if (record.incomplete || (records && record.partial)) {
        fprintf(stderr, "%s: %s\n", record.path, record.partial ? "not all rows are made here" : "too many rows");
        return false;
    }
    if (records) {
        file = fopen(record.path, "w");
        if (file && fputs(record.now + 1, file) >= 0 && fclose(file) == 0)
            return true;
        fprintf(stderr, "%s cannot be written\n", record.path);
        return false;
    }
    differ = compare();
    if (differ)
        fprintf(stderr, "FAILED: %s: %u rows differ; to record them: CUPOOL_TEST_RECORD=1\n", record.path, differ);
    return !differ;
}

uint64_t record_digest(uint64_t digest, const char *text)
{
    for (; *text; text++)
        digest = (digest ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return digest;
}

/* --- processes --- */

int record_apart(int (*function)(void *arg), void *arg, int output, unsigned int seconds)
{
    int status = -1;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        if (output >= 0) {
            dup2(output, STDOUT_FILENO);
            dup2(output, STDERR_FILENO);
        }
        alarm(seconds);
        exit(function(arg)); /* not _exit, so that gcov's counts are written */
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

void *record_shared(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        exit(99);
    return memory;
}
