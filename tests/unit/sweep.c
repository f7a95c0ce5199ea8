/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - see sweep.h. */
#include "sweep.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "cases.h"

/* errno of the program, which a call of the library may keep. */
#define OWN_ERRNO 97
/* No row takes that long. */
#define SECONDS 60
/* No story has more rows. */
#define MOST 2000

bool sweep_on;
enum sweep_kind sweep_kind;

static struct {
    unsigned int fails; /* the way, counted from 1, in which the one call fails; 0: none does */
    unsigned int ways;  /* in which calls could have failed until now */
    char failed[64];
    bool tells;
    uint64_t digest;
    char said[2048];
} state;

static void into_digest(const char *text)
{
    for (; *text; text++)
        state.digest = (state.digest ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
}

void sweep_note(const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 does not follow va_start into a call */
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    into_digest(text);
    if (state.tells)
        fprintf(stderr, "%s\n", text);
}

void sweep_say(const char *format, ...)
{
    const size_t at = strlen(state.said);
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as above */
    vsnprintf(state.said + at, sizeof(state.said) - at, format, args);
    va_end(args);
    into_digest(state.said + at);
    if (state.tells)
        fprintf(stderr, "  says:%s\n", state.said + at);
}

unsigned int sweep_bytes(const void *data, size_t len)
{
    const unsigned char *bytes = data;
    uint32_t hash = 0x811c9dc5;

    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 0x01000193;
    return hash;
}

int sweep_error(const char *name, const int *ways)
{
    int way = 0;

    if (!sweep_on)
        return 0;
    for (unsigned int i = 0; ways[i] && sweep_kind == SWEEP_CALLS; i++)
        if (++state.ways == state.fails) {
            way = ways[i];
            snprintf(state.failed, sizeof(state.failed), "%s %d", name, way);
        }
    sweep_note("%s%s", name, way ? " fails" : "");
    return way;
}

bool sweep_is_zero(void)
{
    if (sweep_kind != SWEEP_DESCRIPTORS || ++state.ways != state.fails)
        return false;
    strcpy(state.failed, "descriptor 0");
    return true;
}

void sweep_enter(void)
{
    errno = OWN_ERRNO;
    sweep_on = true;
}

void sweep_leave(void)
{
    const int error = errno;
    int before;

    sweep_on = false;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
    sweep_note("errno %s%s", error == OWN_ERRNO ? "kept" : "changed",
               before == PTHREAD_CANCEL_ENABLE ? "" : ", not cancelled any more");
    if (before != PTHREAD_CANCEL_ENABLE)
        sweep_say(" cancellation stays disabled");
    errno = OWN_ERRNO;
}

static void tell(const struct sweep_story *story, unsigned int fails, int output)
{
    const char *traced = getenv("CUPOOL_TEST_TELL");
    char name[128], text[4096];
    static const int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};

    /* cmocka's handlers would go on with the test, in this process. */
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], SIG_DFL);
    snprintf(name, sizeof(name), "%s:%u", story->name, fails);
    alarm(SECONDS);
    sweep_kind = story->kind;
    state.fails = fails;
    state.digest = UINT64_C(0xcbf29ce484222325);
    state.tells = traced && strcmp(traced, name) == 0;
    story->tell();
    sweep_on = false;
    snprintf(text, sizeof(text), "%s %s:\t%s\t| %08x", name, fails ? state.failed : "all succeed", state.said,
             (unsigned int)(state.digest ^ state.digest >> 32));
    if (!fails || *state.failed)
        (void)!write(output, text, strlen(text));
}

/* Of two texts, the length of the words that begin both. */
static size_t same_begin(const char *a, const char *b)
{
    size_t same = 0;

    for (size_t i = 0; a[i] && a[i] == b[i]; i++)
        same = a[i] == ' ' ? i : same;
    return same;
}

/* And of those that end both. */
static size_t same_end(const char *a, const char *b)
{
    const size_t a_len = strlen(a), b_len = strlen(b);
    size_t same = 0;

    for (size_t i = 1; i <= a_len && i <= b_len && a[a_len - i] == b[b_len - i]; i++)
        same = a[a_len - i] == ' ' ? i : same;
    return same;
}

struct row {
    char text[4096];
    char whole[4096]; /* what the story's first row says; kept from row to row */
};

/* The words by which a row differs from its story's first one. text: "head TAB words TAB digest". */
static void row_shorten(struct row *row, bool first)
{
    char text[4096], *rest = text;
    const char *head, *said, *digest;
    size_t begin = 0, end = 0;

    snprintf(text, sizeof(text), "%s", row->text);
    head = strsep(&rest, "\t");
    said = strsep(&rest, "\t");
    digest = rest;
    if (!said || !digest)
        return;
    if (first) {
        snprintf(row->whole, sizeof(row->whole), "%s", said);
    } else if (strcmp(said, row->whole) == 0) {
        begin = strlen(said);
    } else {
        begin = same_begin(said, row->whole);
        end = same_end(said + begin, row->whole + begin);
    }
    snprintf(row->text, sizeof(row->text), "%s%s%.*s%s %s", head, begin ? " .." : "", (int)(strlen(said) - begin - end),
             said + begin, end ? " .." : "", digest);
}

/* The row of a story in which one call fails. False: it has fewer. */
static bool row_make(const struct sweep_story *story, unsigned int fails, struct row *row)
{
    int ends[2], status = -1;
    ssize_t n = 0, more;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        close(ends[0]);
        tell(story, fails, ends[1]);
        exit(0); /* so that gcov's counts are written */
    }
    close(ends[1]);
    while ((more = read(ends[0], row->text + n, sizeof(row->text) - 1 - (size_t)n)) > 0)
        n += more;
    row->text[n] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (status && fails > MOST) /* it always ends so */
        n = 0;
    else if (status)
        n = snprintf(row->text, sizeof(row->text), "%s:%u ends with status %#x", story->name, fails,
                     (unsigned int)status);
    else
        row_shorten(row, !fails);
    return n > 0;
}

static void record(const struct sweep *sweep, const char *path)
{
    FILE *file = fopen(path, "w");
    struct row row;

    assert_non_null(file);
    fprintf(file, "/* SPDX-License-Identifier: Apache-2.0 */\n/* Rows written by the test that includes this. */\n"
                  "/* clang-format off */\n");
    for (size_t i = 0; i < sweep->story_count; i++)
        for (unsigned int fails = 0; row_make(&sweep->stories[i], fails, &row); fails++) {
            fprintf(file, "\"");
            for (const char *c = row.text; *c; c++)
                fprintf(file, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
            fprintf(file, "\",\n");
        }
    fprintf(file, "/* clang-format on */\n");
    assert_int_equal(fclose(file), 0);
}

void sweep_test(const struct sweep *sweep)
{
    const char *path = getenv("CUPOOL_TEST_RECORD");
    unsigned int wrong = 0;
    size_t at = 0;
    struct row row;

#if !__GLIBC_PREREQ(2, 33)
    skip(); /* fstat is no function there that the linker could replace */
#endif
    if (path) {
        record(sweep, path);
        return;
    }
    for (size_t i = 0; i < sweep->story_count && !wrong; i++)
        for (unsigned int fails = 0; wrong < 3 && row_make(&sweep->stories[i], fails, &row); fails++) {
            const char *recorded = at < sweep->row_count ? sweep->rows[at++] : "nothing";

            if (strcmp(row.text, recorded) == 0)
                continue;
            print_error("recorded: %s\nnow:      %s\n", recorded, row.text);
            wrong++;
        }
    if (wrong)
        fail_msg("something is done otherwise; CUPOOL_TEST_TELL=STORY:N prints all of row N");
    assert_int_equal(at, sweep->row_count);
}
