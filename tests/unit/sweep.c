/* SPDX-License-Identifier: Apache-2.0 */
/* sweep.c - see sweep.h. */
#include "sweep.h"

#include <pthread.h>
#include <signal.h>

#include "cases.h"
#include "record.h"

/* errno of the program, which a call of the library may keep. */
#define OWN_ERRNO 97
/* No row takes that long. */
#define SECONDS 60
/* No story has more rows. */
#define MOST 2000
/* So many rows that are not as recorded are enough. */
#define ENOUGH 3

bool sweep_on;
enum sweep_kind sweep_kind;

static struct {
    unsigned int fails; /* the way, counted from 1, in which the one call fails; 0: none does */
    unsigned int ways;  /* in which calls could have failed until now */
    bool tells;
} state;

/* A story's process hands this back. */
static struct told {
    char failed[64];
    uint64_t digest;
    char said[2048];
} * told;

static void into_digest(const char *text)
{
    told->digest = record_digest(told->digest, text);
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
    const size_t at = strlen(told->said);
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as above */
    vsnprintf(told->said + at, sizeof(told->said) - at, format, args);
    va_end(args);
    into_digest(told->said + at);
    if (state.tells)
        fprintf(stderr, "  says:%s\n", told->said + at);
}

const char *sweep_words(const char *format, va_list args)
{
    static char text[256];

    vsnprintf(text, sizeof(text), format, args);
    return text;
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
            snprintf(told->failed, sizeof(told->failed), "%s %d", name, way);
        }
    sweep_note("%s%s", name, way ? " fails" : "");
    return way;
}

bool sweep_is_zero(void)
{
    if (sweep_kind != SWEEP_DESCRIPTORS || ++state.ways != state.fails)
        return false;
    strcpy(told->failed, "descriptor 0");
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

static int tell(void *arg)
{
    const struct sweep_story *story = arg;
    const char *traced = getenv("CUPOOL_TEST_TELL");
    char name[128];
    static const int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};

    /* cmocka's handlers would go on with the test, in this process. */
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        signal(signals[i], SIG_DFL);
    snprintf(name, sizeof(name), "%s:%u", story->name, state.fails);
    sweep_kind = story->kind;
    state.tells = traced && strcmp(traced, name) == 0;
    story->tell();
    sweep_on = false;
    return 0;
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

/* A row has the words by which it differs from its story's first one, which said `whole`. */
static bool row_add(const char *story, const char *whole)
{
    const unsigned int digest = (unsigned int)(told->digest ^ told->digest >> 32);
    const char *said = told->said;
    size_t begin = 0, end = 0;

    if (!state.fails)
        return record_add("%s:0 all succeed:%s | %08x\n", story, said, digest);
    if (strcmp(said, whole) == 0) {
        begin = strlen(said);
    } else {
        begin = same_begin(said, whole);
        end = same_end(said + begin, whole + begin);
    }
    return record_add("%s:%u %s:%s%.*s%s | %08x\n", story, state.fails, told->failed, begin ? " .." : "",
                      (int)(strlen(said) - begin - end), said + begin, end ? " .." : "", digest);
}

/* Add the rows of a story. False: enough of them are not as recorded. */
static bool story_add(const struct sweep_story *story)
{
    char whole[sizeof(told->said)] = "";
    unsigned int wrong = 0;

    for (state.fails = 0; wrong < ENOUGH; state.fails++) {
        int status;

        memset(told, 0, sizeof(*told));
        told->digest = RECORD_DIGEST;
        status = record_apart(tell, (void *)story, -1, SECONDS);
        if (status ? state.fails > MOST : state.fails && !*told->failed)
            return !wrong; /* all calls have failed, or it always ends so */
        if (status)
            wrong += !record_add("%s:%u ends with status %#x\n", story->name, state.fails, (unsigned int)status);
        else
            wrong += !row_add(story->name, whole);
        if (!state.fails)
            snprintf(whole, sizeof(whole), "%s", told->said);
    }
    return false;
}

void sweep_test(const char *name, const struct sweep_story *stories, size_t count)
{
#if !__GLIBC_PREREQ(2, 33)
    skip(); /* fstat is no function there that the linker could replace */
#endif
    told = record_shared(sizeof(*told));
    record_begin(name);
    for (size_t i = 0; i < count; i++)
        if (!story_add(&stories[i])) {
            record_partial();
            break;
        }
    if (!record_end())
        fail_msg("CUPOOL_TEST_TELL=STORY:N prints all of row N");
}
