/* SPDX-License-Identifier: Apache-2.0 */
/* golden.c - see golden.h. No locks: one thread. */
#include "golden.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "record.h"

#define TEXT_MAX (1u << 19)
#define SECONDS  30 /* no case takes that long */

const char *golden_failed;
void (*golden_after)(void);
static unsigned int fails_at, calls;

static char one[TEXT_MAX + 64], base[TEXT_MAX + 64];
static char *failed; /* the name of the function whose call failed; the case's process writes it */
#define FAILED_MAX 32
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

static int run(void *arg)
{
    const struct golden *golden = arg;
    unsigned int open_before;
    int status;

    setvbuf(stdout, NULL, _IONBF, 0);
    environment_set(golden->environment);
    open_before = descriptors();
    status = golden->run(golden->arg);
    if (golden_after)
        golden_after();
    if (descriptors() != open_before)
        printf("%d descriptors more than before\n", (int)(descriptors() - open_before));
    fflush(stdout);
    snprintf(failed, FAILED_MAX, "%s", golden_failed ? golden_failed : "");
    return status;
}

/* Run a case, and put what it prints into text. fails: the number of the call that fails. */
static void play(const struct golden *golden, unsigned int fails, char *text)
{
    FILE *out = tmpfile();
    size_t len;
    int status;

    if (!out)
        exit(99);
    fcntl(fileno(out), F_SETFL, O_APPEND); /* by which the log knows a place for messages */
    fails_at = fails;
    failed[0] = '\0';
    status = record_apart(run, (void *)golden, fileno(out), SECONDS);
    rewind(out);
    len = fread(text, 1, TEXT_MAX, out);
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
}

void golden_run(const struct golden *golden)
{
    play(golden, 0, one);
    record_add("== %s\n%s", golden->name, one);
}

/* The lines of text that other does not have. */
static void add_lines(const char *sign, const char *text, const char *other)
{
    for (size_t len; *text; text += len) {
        char line[1024];

        len = strcspn(text, "\n") + 1;
        snprintf(line, sizeof(line), "%.*s", (int)len, text);
        if (!strstr(other, line))
            record_add("%s%s", sign, line);
    }
}

void golden_sweep(const struct golden *golden)
{
    play(golden, 0, base);
    record_add("== %s, when each call fails in turn\n", golden->name);
    for (unsigned int n = 1; n < 2000; n++) {
        play(golden, n, one);
        if (!*failed && strcmp(one, base) == 0)
            break;
        if (strcmp(one, base) == 0) {
            record_add("%u %s\n", n, failed);
            continue;
        }
        record_add("%u %s:\n", n, failed);
        add_lines("    - ", base, one);
        add_lines("    + ", one, base);
    }
}

int main(void)
{
    char folder[] = "/tmp/cupool-golden-XXXXXX", command[64];
    bool same;

    /* The cases run in another folder. */
    if (!mkdtemp(folder) || chdir(folder))
        return 99;
    failed = record_shared(FAILED_MAX);
    record_begin(golden_name);
    golden_cases();
    same = record_end();
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    if (chdir("/") || system(command))
        return 99;
    return !same;
}
