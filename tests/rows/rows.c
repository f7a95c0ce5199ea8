/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rows.c - runs the tests of the rows of shim/hooks/: rows [--list] [SYMBOL...].
 *
 * It has the list of rows, calls of them, and a process for each test, or for many where one leaves nothing behind
 * that the next could mind. Prints "ok SYMBOL: EFFECT" or "FAIL SYMBOL: EFFECT: WHY" for each; --list prints the
 * effects of each row and runs nothing. A row without an expectation fails, and so does an expectation without a row.
 *
 * It has no effects.
 */
#include "rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define TEST_SECONDS 500 /* a process that takes longer hangs */

struct given given;
struct rows_arguments rows_sent;
struct rows_next *rows_next;
static char why[1024];

int fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang-tidy 14 misses the va_start above. */
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    return 1;
}

/* --- the rows --- */

#define ARGUMENT(name)                                                                                                 \
    memcpy(rows_sent.bytes + rows_sent.size, &(name), sizeof(name));                                                   \
    rows_sent.size += sizeof(name);
/* volatile: no tail call, which would hide who calls. */
#define CALL(symbol, names, words, ...)                                                                                \
    static int symbol##_call(void *hook_)                                                                              \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
        volatile int result_;                                                                                          \
                                                                                                                       \
        rows_sent.size = 0;                                                                                            \
        words result_ = (int)((__typeof__(&(symbol)))hook_)names;                                                      \
        return result_;                                                                                                \
    }
#ifdef ROWS_RUNTIME
#define RUNTIME_ROW(symbol, parameters, names, expected, words, ...) CALL(symbol, names, words, __VA_ARGS__)
#define DRIVER_ROW(...)
#else
#define RUNTIME_ROW(...)
#define DRIVER_ROW(symbol, parameters, names, expected, words, ...) CALL(symbol, names, words, __VA_ARGS__)
#endif
#define MISSING_ROW(symbol)
#include "list.h"
#undef RUNTIME_ROW
#undef DRIVER_ROW
#undef MISSING_ROW

/* A function of the runtime is the one that the program is linked to, whoever else has one of that name. */
static struct row rows[] = {
#ifdef ROWS_RUNTIME
#define RUNTIME_ROW(symbol, parameters, names, expected, words, ...)                                                   \
    {#symbol, (void *)(symbol), symbol##_call, expected, true},
#define DRIVER_ROW(...)
#else
#define RUNTIME_ROW(...)
#define DRIVER_ROW(symbol, parameters, names, expected, words, ...) {#symbol, NULL, symbol##_call, expected, false},
#endif
#define MISSING_ROW(symbol) {#symbol, NULL, NULL, NULL, false},
#include "list.h"
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))

const struct row *row_find(const char *symbol)
{
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].symbol, symbol) == 0)
            return &rows[i];
    return NULL;
}

bool row_is_answered(const struct row *row)
{
    Dl_info info;

    return rows_next && (!row->runtime || (dladdr(row->function, &info) && strstr(info.dli_fname, ".so")));
}

int row_call(const struct row *row)
{
    return row->call(row->function);
}

int row_call_answered(const struct row *row, int answer)
{
    int result;

    *rows_next = (struct rows_next){.symbol = row->symbol, .answers = {answer}, .answers_count = 1};
    result = row_call(row);
    rows_next->symbol = NULL;
    return result;
}

/* --- the trace --- */

static char folder[] = "/tmp/rows.XXXXXX";

static void path_of(char path[64], pid_t pid, const char *end)
{
    snprintf(path, 64, "%s/%d.%s", folder, (int)pid, end);
}

/* The whole of a small file; NULL: there is none. */
static char *text_of(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const off_t size = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    char *text = size < 0 ? NULL : calloc(1, (size_t)size + 1);

    if (text && pread(fd, text, (size_t)size, 0) != size)
        *text = '\0';
    if (fd >= 0)
        close(fd);
    return text;
}

bool trace_has(const char *event, const char *one, const char *other)
{
    char path[64], name[64];
    bool found = false;
    char *text, *line, *rest;

    path_of(path, getpid(), "jsonl");
    text = text_of(path);
    snprintf(name, sizeof(name), "\"e\":\"%s\"", event);
    for (line = text ? strtok_r(text, "\n", &rest) : NULL; line && !found; line = strtok_r(NULL, "\n", &rest))
        found = strstr(line, name) && strstr(line, one) && strstr(line, other);
    free(text);
    return found;
}

/* --- tests and their processes --- */

static const struct effect generic[] = {{"ways", ways, false, NULL}, {"arguments", arguments, false, NULL}};

/* The effect at *text, which is left behind it; false: there is none. */
static bool expectation_next(const struct row *row, const char **text, struct expectation *ret_e)
{
    *ret_e = (struct expectation){.row = row};
    *text += strspn(*text, "; ");
    if (!**text)
        return false;
    /* Both matches may be empty. */
    if (sscanf(*text, "%31[^ ;] %63[^;\"]", ret_e->word, ret_e->settings) == 2)
        ret_e->settings[strcspn(ret_e->settings, " ")] = '\0';
    *text += strcspn(*text, ";\"");
    if (**text == '"') {
        sscanf(*text, "\"%95[^\"]", ret_e->why);
        *text += strcspn(*text, ";");
    }
    return true;
}

static void name_of(char name[256], const struct expectation *e)
{
    snprintf(name, 256, "%s: %s%s%s%s%s", e->row->symbol, e->word, *e->settings ? " " : "", e->settings,
             *e->why ? " " : "", e->why);
}

static int run_one(const struct effect *effect, const struct expectation *e)
{
    char name[256];
    int rc;

    name_of(name, e);
    *why = '\0';
    given_reset();
    rc = effect->test(e);
    if (rc)
        printf("FAIL %s: %s\n", name, why);
    else if (!effect->after)
        printf("ok %s\n", name);
    fflush(stdout);
    return rc;
}

/* Run tests from the first one on, in this process, until one has failed; *done counts those that were begun. */
__attribute__((noreturn)) static void child_run(const struct effect *effect, const struct expectation *e, size_t count,
                                                volatile size_t *done)
{
    int rc = 0, fd;
    char path[64];

    alarm(TEST_SECONDS);
    path_of(path, getpid(), "stderr");
    if (effect->after)
        setenv("CUPOOL_STATS", "exit", 1);
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600); /* the library writes to no other file */
    dup2(fd, STDERR_FILENO);
    for (size_t i = 0; i < count && !rc; i++) {
        *done = i + 1;
        rc = i ? 0 : world_start();
        if (rc)
            printf("FAIL %s: %s\n", e[i].row->symbol, why);
        rc = rc ? rc : run_one(effect, &e[i]);
    }
    fflush(stdout);
    if (effect->after || getenv("GCOV_PREFIX")) /* scripts/mutate wants to know what the row has executed */
        exit(rc);
    _exit(rc);
}

/* A process for tests; how many of them it got to, and *ret_failed whether the last of those failed. */
static size_t process_run(const struct effect *effect, const struct expectation *e, size_t count, bool *ret_failed)
{
    volatile size_t *done = mmap(NULL, sizeof(*done), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[64], name[256];
    size_t began;
    int status = 0;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0)
        child_run(effect, e, count, done);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    began = *done ? *done : 1;
    munmap((void *)done, sizeof(*done));
    *ret_failed = status != 0;
    name_of(name, &e[began - 1]);
    if (WIFSIGNALED(status))
        printf("FAIL %s: %s\n", name, strsignal(WTERMSIG(status)));
    path_of(path, pid, "stderr");
    if (effect->after && !status) {
        char *text = text_of(path);

        *ret_failed = effect->after(e, text ? text : "");
        printf("%s %s%s%s\n", *ret_failed ? "FAIL" : "ok", name, *ret_failed ? ": " : "", *ret_failed ? why : "");
        free(text);
    }
    unlink(path);
    path_of(path, pid, "jsonl");
    unlink(path);
    return began;
}

static const struct effect *effect_of(const char *word)
{
    for (const struct effect *effect = effects; effect->word; effect++)
        if (strcmp(effect->word, word) == 0)
            return effect;
    return NULL;
}

static struct expectation expectations[4096];

/* All rows' expectations of one effect; NULL in generic ones' place: of each row. */
static size_t collect(const struct effect *effect, bool of_each, char **symbols)
{
    struct expectation e;
    size_t count = 0;

    for (size_t i = 0; i < ROWS; i++) {
        const char *text = rows[i].expected;
        bool wanted = !*symbols;

        for (char **symbol = symbols; *symbol; symbol++)
            wanted |= strcmp(*symbol, rows[i].symbol) == 0;
        if (!wanted || !text)
            continue;
        if (of_each) {
            expectations[count] = (struct expectation){.row = &rows[i]};
            snprintf(expectations[count++].word, sizeof(e.word), "%s", effect->word);
        }
        while (!of_each && expectation_next(&rows[i], &text, &e))
            if (strcmp(e.word, effect->word) == 0)
                expectations[count++] = e;
    }
    return count;
}

static size_t run_all(const struct effect *effect, bool of_each, char **symbols)
{
    const size_t count = collect(effect, of_each, symbols);
    size_t failed = 0;

    for (size_t i = 0; i < count;) {
        bool bad;

        i += process_run(effect, &expectations[i], effect->spoils ? 1 : count - i, &bad);
        failed += bad;
    }
    return failed;
}

/* The list itself: every row expects something, and something that is known. */
static size_t check_list(void)
{
    struct expectation e;
    size_t bad = 0;

    for (size_t i = 0; i < ROWS; i++) {
        const char *text = rows[i].expected;

        if (!text)
            bad += (size_t)printf("FAIL %s: expected, but shim/hooks/ has no such row\n", rows[i].symbol) > 0;
        else if (!*text)
            bad += (size_t)printf("FAIL %s: tests/rows/expected.txt expects nothing of it\n", rows[i].symbol) > 0;
        while (text && expectation_next(&rows[i], &text, &e))
            if (strcmp(e.word, "guard") != 0 && strcmp(e.word, "retry") != 0 && !effect_of(e.word))
                bad += (size_t)printf("FAIL %s: no such effect: %s\n", rows[i].symbol, e.word) > 0;
    }
    return bad;
}

static int list(void)
{
    struct expectation e;

    for (size_t i = 0; i < ROWS; i++) {
        const char *text = rows[i].expected;

        printf("%s: ways; arguments", rows[i].symbol);
        while (text && expectation_next(&rows[i], &text, &e))
            printf("; %s%s%s", e.word, *e.settings ? " " : "", e.settings);
        printf("\n");
    }
    return 0;
}

int main(int argc, char **argv)
{
    char trace[64];
    size_t failed;

    if (argc > 1 && strcmp(argv[1], "--list") == 0)
        return list();
    if (!mkdtemp(folder))
        return 2;
    snprintf(trace, sizeof(trace), "%s/%%p.jsonl", folder);
    setenv("CUPOOL_TRACE_FILE", trace, 1);
    for (size_t i = 0; i < ROWS; i++)
        if (!rows[i].function)
            rows[i].function = dlsym(RTLD_DEFAULT, rows[i].symbol);
    rows_next = dlsym(RTLD_DEFAULT, "rows_next_state");
    failed = check_list();
    for (size_t i = 0; i < sizeof(generic) / sizeof(generic[0]); i++)
        failed += run_all(&generic[i], /* of_each: */ true, argv + 1);
    for (const struct effect *effect = effects; effect->word; effect++)
        failed += run_all(effect, /* of_each: */ false, argv + 1);
    rmdir(folder);
    printf("%zu failed\n", failed);
    return failed != 0;
}
