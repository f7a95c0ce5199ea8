/* SPDX-License-Identifier: Apache-2.0 */
/* test_log.c - shim/base/log.c: a message that is longer than there is room for loses its end, and its lines stay
 * whole; errno is the program's. Where messages go, and where they do not, is tested under the preload:
 * tests/e2e/test_stderr.py. */

#include "base/log.h"
#include "isolated.h"

void __real_log_write(enum conf_log_level level, const char *format, ...);

static const struct row {
    bool lines;             /* by log_lines */
    unsigned int parts;     /* of the message */
    const char *part;       /* each */
    unsigned int said, len; /* lines that come out, or more where some are cut; the longest that is allowed in all */
} rows[] = {
    {false, 1, "x", 1, 512},      {false, 200, "xy", 1, 512},    {false, 300, "xy", 1, 512},
    {true, 3, "xy\n", 4, 1600},   {true, 50, "xyz\n", 51, 1600}, {true, 200, "x\n", 52, 1600},
    {true, 1000, "\n", 52, 1600}, {true, 1000, "xy", 1, 1600},
};

ISOLATED_ROWS(test_rows, rows)
{
    const struct row *row = *state;
    void (*const log)(enum conf_log_level level, const char *format, ...) = row->lines ? log_lines : __real_log_write;
    char message[4096] = "", text[8192], first[64], next[64];
    unsigned int said = 0;
    int ends[2];
    ssize_t len;

    fake_start();
    for (unsigned int i = 0; i < row->parts; i++)
        snprintf(message + i * strlen(row->part), sizeof(message) - i * strlen(row->part), "%s", row->part);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    errno = 77;
    log(LOG_WARN, "%s", message);
    assert_int_equal(errno, 77);
    close(STDERR_FILENO);
    log(LOG_WARN, "%s", message);
    assert_int_equal(errno, 77);
    dup2(ends[1], STDERR_FILENO);
    len = read(ends[0], text, sizeof(text) - 1);
    assert_in_range(len, 1, row->len);
    text[len] = '\0';
    snprintf(first, sizeof(first), "cupool[%d]: warning: ", (int)getpid());
    snprintf(next, sizeof(next), "cupool[%d]:   ", (int)getpid());
    assert_int_equal(text[len - 1], '\n');
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *head = said++ ? next : first;

        *end = '\0';
        assert_memory_equal(line, head, strlen(head));
        assert_true(strstr(row->part, "\n") ? strncmp(line + strlen(head), row->part, strlen(line + strlen(head))) == 0
                                            : strlen(line) > strlen(head));
    }
    assert_true(said == row->said || (row->said > 51 && said > row->said));
}
