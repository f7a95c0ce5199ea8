/* SPDX-License-Identifier: Apache-2.0 */
/* isolated.c - see isolated.h. */
#include "isolated.h"

#include <assert.h>
#include <sys/mman.h>

#include "record.h"

/* No test takes that long: a deadlock, then. */
#define DEADLOCK_SECONDS 60
#define CASES_MAX        64

/* The section's ends, which the linker defines where there is one. */
extern const struct isolated *const __start_isolated_cases[] __attribute__((weak));
extern const struct isolated *const __stop_isolated_cases[] __attribute__((weak));

/* The words, and where gcov's library writes its counts: scripts/mutate wants to know which tests execute a line. */
void isolated_environment_set(const char *words)
{
    const char *const counts = getenv("GCOV_PREFIX");
    char text[4096], prefix[4096];

    snprintf(prefix, sizeof(prefix), "%s", counts ? counts : "");
    clearenv();
    if (counts)
        setenv("GCOV_PREFIX", prefix, 1);
    snprintf(text, sizeof(text), "%s", words ? words : "");
    for (char *rest = text, *word; (word = strsep(&rest, " "));) {
        char *value = strchr(word, '=');

        if (!value)
            continue;
        *value = '\0';
        setenv(word, value + 1, 1);
    }
}

static int child(void *arg)
{
    const struct isolated *test = arg;
    const struct CMUnitTest one[] = {{.name = test->name, .test_func = test->test, .initial_state = (void *)test->row}};

    isolated_environment_set(test->environment);
    fake_start();
    return cmocka_run_group_tests(one, NULL, NULL);
}

static void output_show(int output)
{
    char text[4096];
    ssize_t len;

    lseek(output, 0, SEEK_SET);
    while ((len = read(output, text, sizeof(text))) > 0)
        fwrite(text, 1, (size_t)len, stdout);
}

static bool passes(const struct isolated *test)
{
    const int output = memfd_create("output", MFD_CLOEXEC);
    const int status = record_apart(child, (void *)test, output, DEADLOCK_SECONDS);

    if (status) {
        output_show(output);
        printf("FAILED: %s (%s), status %#x\n", test->name, test->environment ? test->environment : "", status);
    }
    close(output);
    return !status;
}

int isolated_run(const struct isolated *tests, size_t count, const char *filter)
{
    bool failed = false;

    for (size_t i = 0; i < count; i++)
        if (!filter || strstr(tests[i].name, filter))
            failed |= !passes(&tests[i]);
    return failed;
}

static bool fails_some_row(struct isolated test, const char *filter)
{
    bool failed = false;

    for (size_t i = 0; i < test.count; i++) {
        test.row = test.rows ? (const char *)test.rows + i * test.size : (const void *)i;
        if (test.own && test.row)
            memcpy(&test.environment, (const char *)test.row + test.environment_at, sizeof(test.environment));
        if (isolated_run(&test, 1, filter)) {
            printf("FAILED: row %zu\n", i);
            failed = true;
        }
    }
    return failed;
}

static int by_line(const void *a, const void *b)
{
    return (*(const struct isolated *const *)a)->line - (*(const struct isolated *const *)b)->line;
}

int isolated_run_all(const char *filter)
{
    const struct isolated *tests[CASES_MAX];
    const size_t n = ((uintptr_t)__stop_isolated_cases - (uintptr_t)__start_isolated_cases) / sizeof(void *);
    bool failed = false;

    assert(n > 0 && n <= CASES_MAX);
    memcpy(tests, __start_isolated_cases, n * sizeof(void *));
    qsort(tests, n, sizeof(void *), by_line);
    for (size_t i = 0; i < n; i++)
        failed |= tests[i]->count ? fails_some_row(*tests[i], filter) : isolated_run(tests[i], 1, filter);
    return failed;
}

void elsewhere(void *(*function)(void *), void *arg)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, function, arg), 0);
    pthread_join(thread, NULL);
}
