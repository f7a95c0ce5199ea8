/* SPDX-License-Identifier: Apache-2.0 */
/* sweep_scenes.c - see sweep_scenes.h. */
#include "sweep_scenes.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include "sweep_text.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define EVERY 7u /* a process takes long: only every seventh call fails */
#else
#define EVERY 1u
#endif

#define DEADLOCK_SECONDS 30

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
    struct sweep_text text;
    unsigned int calls, requests; /* of the driver; for memory */
    char name[64];                /* of the call that failed */
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
    sweep_text_add(&told->text, "!memory ");
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
            sweep_text_add(&told->text, "%s%s ", mark, line);
    }
    lines[0] = '\0';
}

void sweep_say(const char *format, ...)
{
    const uint64_t ns = atomic_load(&fake.ns);
    char words[1024];
    va_list args;

    va_start(args, format);
    vsnprintf(words, sizeof(words), format, args);
    va_end(args);
    sweep_text_add(&told->text, "%s%s", fake_log(), " ");
    add_lines("<", fake.said);
    add_lines("#", fake.traced);
    if (ns != play.ns)
        sweep_text_add(&told->text, "+%lluus ", (unsigned long long)(ns - play.ns) / 1000);
    sweep_text_add(&told->text, "%s\n", words);
    play.ns = atomic_load(&fake.ns);
}

static void child(const struct sweep_scene *scene, enum mode mode, unsigned int at)
{
    alarm(DEADLOCK_SECONDS);
    isolated_environment_set(scene->environment);
    play.mode = mode;
    play.scene = scene;
    play.at = at;
    play.again = FNS;
    fake_each = each;
    fake_lacks_memory = lacks_memory;
    fake_start();
    play.ns = atomic_load(&fake.ns);
    play.outside = false;
    scene->play();
    sweep_say("end");
    play.outside = true;
    exit(0);
}

static const char *way(const struct sweep_scene *scene, enum mode mode)
{
    return mode < MEANWHILE ? mode_names[mode] : mode < MEMORY ? scene->meanwhile[mode - MEANWHILE].name : "memory";
}

static bool any_ended; /* a play, by a signal */

static void run(const struct sweep_scene *scene, enum mode mode, unsigned int at)
{
    char text[1000];
    int status = 1;
    ssize_t len;
    pid_t pid;

    memset(told, 0, offsetof(struct told, text.text) + 1);
    told->calls = told->requests = 0;
    told->name[0] = '\0';
    fflush(NULL);
    if (ftruncate(output, 0) || lseek(output, 0, SEEK_SET))
        abort();
    pid = fork();
    if (pid == 0) {
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        child(scene, mode, at);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (!status)
        return;
    printf("%s: %s %u: the process ended with status %#x\n", scene->name, way(scene, mode), at, status);
    any_ended = true;
    lseek(output, 0, SEEK_SET);
    len = read(output, text, sizeof(text));
    printf("%.*s\n", len > 0 ? (int)len : 0, text);
}

/* --- scenes --- */

/* One row. */
static void play_row(const struct sweep_scene *scene, struct sweep_record *record, const struct sweep_text *base,
                     enum mode first, enum mode last, unsigned int at)
{
    sweep_row_begin(record, at);
    for (enum mode mode = first; mode <= last; mode++) {
        run(scene, mode, at);
        sweep_outcome(record, base, &told->text, way(scene, mode), told->name);
    }
    sweep_row_end(record);
}

static bool play_all(const struct sweep_scene *scene, struct sweep_record *record)
{
    static struct sweep_text base;
    unsigned int calls, requests;

    run(scene, NONE, 0);
    calls = told->calls;
    requests = told->requests;
    base = told->text;
    sweep_base(record, &base);
    for (unsigned int at = EVERY; at <= calls; at += EVERY)
        play_row(scene, record, &base, ONCE, scene->meanwhile ? MEMORY - 1 : OTHERWISE, at);
    for (unsigned int at = EVERY; at <= requests; at += EVERY)
        play_row(scene, record, &base, MEMORY, MEMORY, at);
    return sweep_record_end(record);
}

/* For a debugger: one play, in this process. */
static void play_here(const struct sweep_scene *scene, const char *wanted, unsigned int at)
{
    for (enum mode mode = NONE; mode <= MEMORY; mode++)
        if (strcmp(way(scene, mode), wanted) == 0)
            child(scene, mode, at);
    fprintf(stderr, "there is no %s\n", wanted);
    exit(2);
}

int main(int argc, char **argv)
{
    const size_t n = ((uintptr_t)__stop_sweep_scenes - (uintptr_t)__start_sweep_scenes) / sizeof(void *);
    const char *const filter = argc > 2 ? argv[2] : NULL;
    bool failed = false;

    if (argc < 2) {
        fprintf(stderr, "usage: %s FOLDER [FILTER [WAY CALL]]\n", argv[0]);
        return 2;
    }
    output = memfd_create("output", MFD_CLOEXEC);
    told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < n; i++) {
        const struct sweep_scene *scene = __start_sweep_scenes[i];
        struct sweep_record *record;

        if (filter && !strstr(scene->name, filter))
            continue;
        if (argc > 4)
            play_here(scene, argv[3], (unsigned int)atoi(argv[4]));
        record = sweep_record_begin(argv[1], scene->name, EVERY == 1);
        failed |= !play_all(scene, record);
    }
    return failed || any_ended;
}
