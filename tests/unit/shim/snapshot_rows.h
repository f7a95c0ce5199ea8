/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot_rows.h - what becomes of one program under many faults, a readable line for each, compared with the lines
 * recorded, or written to NAME.inc in the folder that CUPOOL_TEST_RECORD names. A line has the answers that differ from
 * those of the first one, which has no fault, and a digest of all else.
 *
 * Each line is played in a process of its own, because the library keeps its state. It knows nothing of the program.
 *
 * Threads: one.
 */
#ifndef CUPOOL_TESTS_SHIM_SNAPSHOT_ROWS_H
#define CUPOOL_TESTS_SHIM_SNAPSHOT_ROWS_H

#include <sys/mman.h>
#include <sys/wait.h>

#include "cases.h"

#define STEPS_MAX 128
#define LINE_MAX_ 2048

struct row {
    char name[64], end[256];
    struct {
        char name[16];
        long long value;
    } steps[STEPS_MAX];
    unsigned int count;
    uint64_t digest;
    bool more; /* there is a line after this one */
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
    for (; *text; text++)
        row->digest = (row->digest ^ (unsigned char)*text) * 0x100000001b3u;
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

/* The folder that CUPOOL_TEST_RECORD names, which tests with an environment of their own do not see any more. */
static const char *rows_folder;
__attribute__((constructor)) static void rows_folder_read(void)
{
    const char *folder = getenv("CUPOOL_TEST_RECORD");

    rows_folder = folder ? strdup(folder) : NULL;
}

/* Play the lines, the first without a fault, until one says that there is none after it. */
static inline void rows_test(void (*play)(struct row *row, unsigned int n), const char *const *recorded, size_t count,
                             const char *name)
{
    struct row *rows = mmap(NULL, 2 * sizeof(*rows), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char text[LINE_MAX_], path[4096];
    FILE *file = NULL;
    bool differ = false;
    unsigned int n = 0;
    int status = 1;
    pid_t pid;

    snprintf(path, sizeof(path), "%s/%s.inc", rows_folder ? rows_folder : "", name);
    if (rows_folder)
        file = fopen(path, "w");
    assert_true(rows != MAP_FAILED && (file || !rows_folder));
    if (file)
        fprintf(file, "/* SPDX-License-Identifier: Apache-2.0 */\n/* Lines written by the test that includes this. */\n"
                      "/* clang-format off */\n");
    do {
        struct row *row = &rows[n > 0];

        memset(row, 0, sizeof(*row));
        fflush(NULL);
        pid = fork();
        if (pid == 0) {
            play(row, n);
            exit(0);
        }
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (status)
            fail_msg("line %u ends with status %#x", n, (unsigned int)status);
        row_write(row, &rows[0], text, sizeof(text));
        if (file)
            fprintf(file, "\"%s\",\n", text);
        else if (n >= count || strcmp(text, recorded[n]) != 0)
            differ |= printf("line %u is\n  %s\nand was\n  %s\n", n, text, n < count ? recorded[n] : "none") > 0;
    } while (rows[n++ > 0].more);
    if (file)
        fprintf(file, "/* clang-format on */\n");
    assert_false(differ || (!file && n != count));
    assert_true(!file || fclose(file) == 0);
    munmap(rows, 2 * sizeof(*rows));
}

#endif
