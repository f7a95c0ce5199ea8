/* SPDX-License-Identifier: Apache-2.0 */
/* golden.c - see golden.h. No locks: one thread. */
#include "golden.h"

#include <errno.h>
#include <stdarg.h>

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_MAX (1u << 20)

const char *golden_failed;
void (*golden_after)(void);
static unsigned int fails_at, calls;

static char all[TEXT_MAX], one[TEXT_MAX], base[TEXT_MAX];
static size_t used;
static struct {
    const char *text, *by;
} replaced[64];
static size_t replaced_count;

void golden_replace(const char *text, const char *by)
{
    if (replaced_count < sizeof(replaced) / sizeof(replaced[0])) {
        replaced[replaced_count].text = strdup(text);
        replaced[replaced_count++].by = by;
    }
}

bool golden_call_fails(const char *what)
{
    if (++calls != fails_at)
        return false;
    golden_failed = what;
    return true;
}

static void add(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    used += (size_t)vsnprintf(all + used, TEXT_MAX - used, format, args);
    va_end(args);
    used = used < TEXT_MAX ? used : TEXT_MAX - 1;
}

/* Only a word of its own is replaced, so that a number is not found in another one. */
static void replace(char *text)
{
    for (size_t i = 0; i < replaced_count; i++) {
        const size_t len = strlen(replaced[i].text), by = strlen(replaced[i].by);

        for (char *at = strstr(text, replaced[i].text); at; at = strstr(at + 1, replaced[i].text)) {
            const bool begins = at == text || !strchr("0123456789", at[-1]);

            if (!begins || (at[len] >= '0' && at[len] <= '9'))
                continue;
            memmove(at + by, at + len, strlen(at + len) + 1);
            memcpy(at, replaced[i].by, by);
        }
    }
}

/* Write a piece of one or two characters that comes more than 20 times as "piece {times}". */
static void shorten(char *text)
{
    for (; *text; text++) {
        for (size_t period = 1; period <= 2; period++) {
            size_t times = 1, len;
            char count[24];

            while (strncmp(text, text + times * period, period) == 0 && text[times * period])
                times++;
            if (times <= 20)
                continue;
            len = (size_t)snprintf(count, sizeof(count), " {%zu}", times);
            memmove(text + period + len, text + times * period, strlen(text + times * period) + 1);
            memcpy(text + period, count, len);
            text += period + len;
        }
    }
}

/* The number of the process. */
static void replace_process(char *text)
{
    for (char *at = strstr(text, "cupool["); at; at = strstr(at + 1, "cupool[")) {
        const size_t digits = strspn(at + 7, "0123456789");

        if (!digits)
            continue;
        memmove(at + 7 + 1, at + 7 + digits, strlen(at + 7 + digits) + 1);
        at[7] = 'P';
    }
}

static void environment_set(const char *text)
{
    static const char *const kept[] = {"GCOV_PREFIX", "GCOV_PREFIX_STRIP", "ASAN_OPTIONS", "TSAN_OPTIONS",
                                       "UBSAN_OPTIONS"};
    const char *values[sizeof(kept) / sizeof(kept[0])];
    char *copy, *save = NULL;

    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        values[i] = getenv(kept[i]);
    clearenv();
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (values[i])
            setenv(kept[i], values[i], 1);
    setenv("PATH", "bin", 1);
    copy = strdup(text ? text : "");
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        char *equals = strchr(word, '=');

        for (char *c = word; *c; c++)
            *c = *c == '~' ? ' ' : *c;
        *equals = '\0';
        if (strcmp(equals + 1, "!") == 0)
            unsetenv(word);
        else
            setenv(word, equals + 1, 1);
    }
    free(copy);
}

static unsigned int descriptors(void)
{
    unsigned int count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Run a case, and put what it prints into text. fails: the number of the call that fails. Returns the name of the call
 * that failed. */
static const char *play(const struct golden *golden, unsigned int fails, char *text)
{
    static char failed[32];
    FILE *out = tmpfile();
    int status = 0, result[2];
    unsigned int open_before;
    size_t len;
    pid_t pid;
    const char *name;

    if (!out || pipe(result))
        exit(99);
    fflush(stdout);
    pid = fork();
    if (!pid) {
        fcntl(fileno(out), F_SETFL, O_APPEND); /* by which the log knows a place for messages */
        setvbuf(stdout, NULL, _IONBF, 0);
        dup2(fileno(out), STDOUT_FILENO);
        dup2(fileno(out), STDERR_FILENO);
        alarm(30);
        environment_set(golden->environment);
        fails_at = fails;
        open_before = descriptors();
        status = golden->run(golden->arg);
        if (golden_after)
            golden_after();
        if (descriptors() != open_before)
            printf("%d descriptors more than before\n", (int)(descriptors() - open_before));
        fflush(stdout);
        name = golden_failed ? golden_failed : "";
        if (write(result[1], name, strlen(name)) < 0)
            status = 98;
        exit(status);
    }
    close(result[1]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    memset(failed, 0, sizeof(failed));
    if (read(result[0], failed, sizeof(failed) - 1) < 0)
        failed[0] = '\0';
    close(result[0]);
    rewind(out);
    len = fread(text, 1, TEXT_MAX / 2, out);
    fclose(out);
    text[len] = '\0';
    replace(text);
    replace_process(text);
    shorten(text);
    len = strlen(text);
    if (WIFSIGNALED(status))
        snprintf(text + len, 64, "signal %d\n", WTERMSIG(status));
    else if (WEXITSTATUS(status))
        snprintf(text + len, 64, "exit status %d\n", WEXITSTATUS(status));
    return failed;
}

void golden_run(const struct golden *golden)
{
    play(golden, 0, one);
    add("== %s\n%s", golden->name, one);
}

/* The lines of text that other does not have. */
static void add_lines(const char *sign, const char *text, const char *other)
{
    for (size_t len; *text; text += len) {
        char line[1024];

        len = strcspn(text, "\n") + 1;
        snprintf(line, sizeof(line), "%.*s", (int)len, text);
        if (!strstr(other, line))
            add("%s%s", sign, line);
    }
}

void golden_sweep(const struct golden *golden)
{
    play(golden, 0, base);
    add("== %s, when each call fails in turn\n", golden->name);
    for (unsigned int n = 1; n < 2000; n++) {
        const char *name = play(golden, n, one);

        if (!*name && strcmp(one, base) == 0)
            break;
        if (strcmp(one, base) == 0) {
            add("%u %s\n", n, name);
            continue;
        }
        add("%u %s:\n", n, name);
        add_lines("    - ", base, one);
        add_lines("    + ", one, base);
    }
}

static char expected[PATH_MAX]; /* the file of whole texts */

static int compare(void)
{
    FILE *file = fopen(expected, "r");
    const char *a = all, *b = base;
    size_t len, line = 1;

    if (!file)
        return 99;
    len = fread(base, 1, TEXT_MAX - 1, file);
    fclose(file);
    base[len] = '\0';
    if (strcmp(a, b) == 0)
        return 0;
    while (strcspn(a, "\n") == strcspn(b, "\n") && strncmp(a, b, strcspn(a, "\n") + 1) == 0) {
        a += strcspn(a, "\n") + 1;
        b += strcspn(b, "\n") + 1;
        line++;
    }
    fprintf(stderr, "%s:%zu: expected: %.*s\nbut it is: %.*s\n", expected, line, (int)strcspn(b, "\n"), b,
            (int)strcspn(a, "\n"), a);
    return 1;
}

static int finish(void)
{
    FILE *file;

    if (!getenv("CUPOOL_TEST_RECORD"))
        return compare();
    file = fopen(expected, "w");
    if (!file || fwrite(all, 1, used, file) != used || fclose(file))
        return 99;
    return 0;
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/cupool-golden-XXXXXX", command[64];
    int status;

    /* The cases run in another folder. */
    if (argc != 2 || !realpath(argv[1], expected) || !mkdtemp(folder) || chdir(folder))
        return 99;
    golden_cases();
    status = finish();
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (chdir("/") || system(command))
        return 99;
    return status;
}
