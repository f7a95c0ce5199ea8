/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_scenes.c - see sweep_scenes.h. */
#include "sweep_scenes.h"

#include <sys/mman.h>

#include "record.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EVERY 7u /* a process takes long: only every seventh call fails */
#else
#define EVERY 1u
#endif

#define DEADLOCK_SECONDS 30
#define SHORT            40   /* of a difference that is recorded; the digest is of all */
#define LONG             1500 /* of one that is printed */
#define SHOWN            12   /* so many rows that differ are explained */

extern const struct sweep_scene *const __start_sweep_scenes[];
extern const struct sweep_scene *const __stop_sweep_scenes[];

/* How a call fails. */
enum mode {
    NONE,
    ONCE,      /* with an error that no code knows */
    TWICE,     /* and the next call of the same function */
    STICKY,    /* with an error from which a context does not recover */
    OTHERWISE, /* as this function fails in use: no memory, not ready, ... */
    MEANWHILE, /* none; another thread does something before it: these, SWEEP_MEANWHILE of them */
    MEMORY = MEANWHILE + SWEEP_MEANWHILE, /* a request for memory of the host fails, no call */
};
static const char *const mode_names[] = {"none", "once", "twice", "sticky", "otherwise"};

/* The outcome, which the play's process writes. */
static struct told {
    unsigned int calls, requests; /* of the driver; for memory */
    char name[64];                /* of the call that failed */
    size_t len;
    char text[1 << 18];
} * told;

static struct {
    enum mode mode;
    unsigned int at;
    const struct sweep_scene *scene;
    size_t again; /* the function whose next call fails, too */
    bool outside; /* of the scene */
    uint64_t ns;
} play = {.outside = true};

static const char *const names[] = {
#define DRIVER_CALL(symbol, parameters) [FN(symbol)] = #symbol,
#include "real/calls.def"
};

static int output; /* of the process */

/* To the outcome, as far as there is room. */
__attribute__((format(printf, 1, 2))) static void add(const char *format, ...)
{
    va_list args;
    int added;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): clang 14 does not follow va_start into a call */
    added = vsnprintf(told->text + told->len, sizeof(told->text) - told->len, format, args);
    va_end(args);
    told->len += added > 0 ? (size_t)added : 0;
    if (told->len >= sizeof(told->text))
        told->len = sizeof(told->text) - 1;
}

/* --- calls --- */

static CUresult otherwise(size_t function)
{
    if (function == FN(cuEventQuery) || function == FN(cuStreamQuery) || function == FN(cuCtxSynchronize))
        return CUDA_ERROR_NOT_READY;
    if (function == FN(cuCtxGetCurrent) || function == FN(cuPointerGetAttribute))
        return CUDA_ERROR_NOT_PERMITTED;
    if (function == FN(cuMemFree_v2) || function == FN(cuMemFreeAsync) || function == FN(cuMemUnmap) ||
        function == FN(cuMemRelease))
        return CUDA_ERROR_DEINITIALIZED;
    return function == FN(cuMemCreate) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The calls of the other thread are none of the scene's. */
static void meanwhile(const struct sweep_meanwhile *other, const char *name)
{
    void *(*const now)(void *arg) = told->calls == play.at ? other->begin : other->end;

    if (!now || (other->never_at && strcmp(other->never_at, name) == 0))
        return;
    play.outside = true;
    elsewhere(now, NULL);
    play.outside = false;
}

static CUresult result_of(size_t function, const char *name)
{
    const bool again = function < FNS && play.again == function;

    if (play.outside)
        return CUDA_SUCCESS;
    told->calls++;
    if (play.mode >= MEANWHILE && play.mode < MEMORY) {
        if (told->calls == play.at || told->calls == play.at + 2)
            meanwhile(&play.scene->meanwhile[play.mode - MEANWHILE], name);
        return CUDA_SUCCESS;
    }
    if (again)
        play.again = FNS;
    if (again)
        return CUDA_ERROR_UNKNOWN;
    if (play.mode == NONE || play.mode == MEMORY || told->calls != play.at)
        return CUDA_SUCCESS;
    snprintf(told->name, sizeof(told->name), "%s", name);
    if (play.mode == TWICE)
        play.again = function;
    if (play.mode == STICKY)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    return play.mode == OTHERWISE ? otherwise(function) : CUDA_ERROR_UNKNOWN;
}

static CUresult each(size_t function)
{
    return result_of(function, names[function]);
}

bool sweep_fails(const char *name)
{
    return result_of(FNS, name) != CUDA_SUCCESS;
}

void sweep_count(bool counts)
{
    play.outside = !counts;
}

static bool lacks_memory(void)
{
    if (play.outside || ++told->requests != play.at || play.mode != MEMORY)
        return false;
    snprintf(told->name, sizeof(told->name), "memory");
    add("!memory ");
    return true;
}

/* --- a play --- */

/* Where code lies is the compiler's. */
static void code_hide(char *line)
{
    for (char *at; (at = strstr(line, "+0x"));)
        memmove(at, at + 3 + strspn(at + 3, "0123456789abcdef"),
                strlen(at + 3 + strspn(at + 3, "0123456789abcdef")) + 1);
}

/* Words, of which each line has become one. */
static void add_lines(const char *mark, char *lines)
{
    for (char *line, *rest = lines; (line = strsep(&rest, "\n"));) {
        code_hide(line);
        for (char *at = line; (at = strchr(at, ' '));)
            *at = '_';
        if (*line && !strstr(line, "_is_active")) /* that one has a version */
            add("%s%s ", mark, line);
    }
    lines[0] = '\0';
}

void sweep_say(const char *format, ...)
{
    const uint64_t ns = atomic_load(&fake.ns);
    char words[1024];
    va_list args;

    va_start(args, format);
    /* NOLINTNEXTLINE(clang-analyzer-valist.Uninitialized): as above */
    vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    add("%s%s", fake_log(), " ");
    add_lines("<", fake.said);
    add_lines("#", fake.traced);
    if (ns != play.ns)
        add("+%lluus ", (unsigned long long)(ns - play.ns) / 1000);
    add("%s\n", words);
    play.ns = atomic_load(&fake.ns);
}

/* One, in this process. */
static int play_one(void *arg)
{
    const struct sweep_scene *scene = arg;

    play.scene = scene;
    isolated_environment_set(scene->environment);
    play.again = FNS;
    fake_each = each;
    fake_lacks_memory = lacks_memory;
    fake_start();
    play.ns = atomic_load(&fake.ns);
    play.outside = false;
    scene->play();
    sweep_say("end");
    play.outside = true;
    return 0;
}

static const char *way(const struct sweep_scene *scene, enum mode mode)
{
    return mode < MEANWHILE ? mode_names[mode] : mode < MEMORY ? scene->meanwhile[mode - MEANWHILE].name : "memory";
}

static bool any_ended; /* a play, by a signal */

static void run(const struct sweep_scene *scene, enum mode mode, unsigned int at)
{
    char text[1000];
    ssize_t len;
    int status;

    told->calls = told->requests = 0;
    told->len = 0;
    told->text[0] = told->name[0] = '\0';
    play.mode = mode;
    play.at = at;
    if (ftruncate(output, 0) || lseek(output, 0, SEEK_SET))
        abort();
    status = record_apart(play_one, (void *)scene, output, DEADLOCK_SECONDS);
    if (!status)
        return;
    printf("%s: %s %u: the process ended with status %#x\n", scene->name, way(scene, mode), at, status);
    any_ended = true;
    lseek(output, 0, SEEK_SET);
    len = read(output, text, sizeof(text));
    printf("%.*s\n", len > 0 ? (int)len : 0, text);
}

/* --- scenes --- */

static char base[sizeof(told->text)];    /* the outcome where nothing fails */
static char differs[sizeof(told->text)]; /* what differs from it */

/* The row is not as recorded: play the ways again in which the outcome is another one, and print what differs there
 * from where nothing fails. */
static void explain(const struct sweep_scene *scene, enum mode first, unsigned int at, const char *name,
                    const char *digests)
{
    char begin[80], recorded[400], digest[16];

    snprintf(begin, sizeof(begin), "%u %s ", at, name);
    record_find(begin, recorded, sizeof(recorded));
    for (unsigned int i = 0; digests[9 * i]; i++) {
        const enum mode mode = (enum mode)(first + i);

        snprintf(digest, sizeof(digest), "%.9s", digests + 9 * i);
        if (strstr(recorded, digest))
            continue;
        run(scene, mode, at);
        record_difference(base, told->text, differs, sizeof(differs));
        printf("%s, %s %u:%.*s\n", scene->name, way(scene, mode), at, LONG, differs);
    }
}

/* One row: a call that fails, with an outcome for each way in which it does. Of the first way it says what differs, in
 * short, for readers. */
static void play_row(const struct sweep_scene *scene, enum mode first, enum mode last, unsigned int at)
{
    static unsigned int explained;
    char name[sizeof(told->name)], digests[9 * MEMORY + 1] = "";
    const char *mark = differs;
    bool same;

    run(scene, first, at);
    snprintf(name, sizeof(name), "%s", told->name);
    record_difference(base, told->text, differs, sizeof(differs));
    if (strncmp(mark, " +!", 3) == 0) /* that it failed is known */
        mark += 3 + strcspn(mark + 3, " ");
    for (enum mode mode = first; mode <= last; mode++) {
        uint64_t digest;

        if (mode != first)
            run(scene, mode, at);
        digest = record_digest(RECORD_DIGEST, told->text);
        snprintf(digests + strlen(digests), sizeof(digests) - strlen(digests), " %08x",
                 (unsigned int)(uint32_t)(digest ^ digest >> 32));
    }
    same = record_add("%u %s%s%.*s%s\n", at, name, digests, SHORT, mark, strlen(mark) > SHORT ? "..." : "");
    if (!same && explained++ < SHOWN)
        explain(scene, first, at, name, digests);
}

static bool play_all(const struct sweep_scene *scene)
{
    unsigned int calls, requests;
    char name[128];

    snprintf(name, sizeof(name), "shim/sweep/%s", scene->name);
    record_begin(name);
    if (EVERY > 1)
        record_partial();
    run(scene, NONE, 0);
    calls = told->calls;
    requests = told->requests;
    snprintf(base, sizeof(base), "%s", told->text);
    record_add("%s\n", base);
    for (unsigned int at = EVERY; at <= calls; at += EVERY)
        play_row(scene, ONCE, scene->meanwhile ? MEMORY - 1 : OTHERWISE, at);
    for (unsigned int at = EVERY; at <= requests; at += EVERY)
        play_row(scene, MEMORY, MEMORY, at);
    return record_end();
}

/* For a debugger: one play, in this process. */
static void play_here(const struct sweep_scene *scene, const char *wanted, unsigned int at)
{
    play.at = at;
    for (play.mode = NONE; play.mode <= MEMORY; play.mode++)
        if (strcmp(way(scene, play.mode), wanted) == 0)
            exit(play_one((void *)scene));
    fprintf(stderr, "there is no %s\n", wanted);
    exit(2);
}

int main(int argc, char **argv)
{
    const size_t n = ((uintptr_t)__stop_sweep_scenes - (uintptr_t)__start_sweep_scenes) / sizeof(void *);
    const char *const filter = argc > 1 ? argv[1] : NULL;
    bool failed = false;

    output = memfd_create("output", MFD_CLOEXEC);
    told = record_shared(sizeof(*told));
    for (size_t i = 0; i < n; i++) {
        const struct sweep_scene *scene = __start_sweep_scenes[i];

        if (filter && !strstr(scene->name, filter))
            continue;
        if (argc > 3)
            play_here(scene, argv[2], (unsigned int)atoi(argv[3]));
        failed |= !play_all(scene);
    }
    return failed || any_ended;
}
