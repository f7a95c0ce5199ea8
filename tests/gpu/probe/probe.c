/* SPDX-License-Identifier: Apache-2.0 */
/*
 * probe.c - runs the cases, each in a process of its own with a time limit, and prints their facts.
 *
 *   probe [GROUP | CASE]...   all cases by default; a group is the first part of a case's name
 *   probe --list              the cases
 *
 * Each case has a process because many of them leave a context that is good for nothing. The child is this program
 * again with --case NAME (not a fork alone: a forked child has no CUDA). It writes facts, and "?NAME" before a call
 * that may not come back; when it hangs or crashes, the parent writes that fact.
 */
#include "probe.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <time.h>

#define LIMIT_MS 30000

const char *const block_names[] = {"hostfn", "waitvalue"};

/* --- in the child --- */

void fact(const char *name, const char *item, const char *answer, ...)
{
    char text[512];
    va_list list;

    va_start(list, answer);
    vsnprintf(text, sizeof(text), answer, list);
    va_end(list);
    printf("%s.%s\t%s\n", name, item, text);
    fflush(stdout);
}

void ask(const char *name, const char *item)
{
    printf("?%s.%s\n", name, item);
    fflush(stdout);
}

void need_(const char *name, int line, int result)
{
    if (!result)
        return;
    fprintf(stderr, "probe: %s: line %d: %d\n", name, line, result);
    fact(name, "setup", "error %d", result);
    exit(0);
}

void nap_ms(unsigned int ms)
{
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&t, NULL);
}

const char *size_name(size_t size, char *text, size_t n)
{
    if (size % MIB == 0)
        snprintf(text, n, "%zuM", size / MIB);
    else if (size % KIB == 0)
        snprintf(text, n, "%zuK", size / KIB);
    else
        snprintf(text, n, "%zu", size);
    return text;
}

bool page_readable(const void *p)
{
    int pipes[2];
    bool yes;

    if (pipe(pipes))
        return false;
    yes = write(pipes[1], p, 1) == 1;
    close(pipes[0]);
    close(pipes[1]);
    return yes;
}

CUcontext probe_primary(const char *name)
{
    CUcontext context;
    CUdeviceptr p;
    void *q;

    NEED(cudaFree(NULL));
    NEED(cuCtxGetCurrent(&context));
    /* Loads the driver's own kernels for fills and copies, which would otherwise wait for the context's work. */
    NEED(cuMemAlloc(&p, 3 * MIB));
    for (size_t n = 64; n <= 2 * MIB; n *= 32) {
        NEED(cuMemsetD8(p, 0, n));
        NEED(cuMemsetD8Async(p, 0, n, CU_STREAM_PER_THREAD));
        NEED(cuMemcpyDtoD(p, p + n / 2, n / 2));
    }
    NEED(cudaMalloc(&q, 1000));
    NEED(cudaFree(q));
    NEED(cudaDeviceSynchronize());
    NEED(cuMemFree(p));
    return context;
}

static void CUDART_CB block_fn(void *word)
{
    for (int i = 0; i < PATIENCE_MS && !atomic_load((_Atomic(uint32_t) *)word); i++)
        nap_ms(1);
}

struct block block_new(const char *name, enum block_kind kind)
{
    struct block b = {kind, NULL};
    void *p;

    /* Without DEVICEMAP, which is another thing to ask for: with unified addresses the device sees it all the same. */
    NEED(cuMemHostAlloc(&p, 4096, 0));
    b.word = p;
    atomic_store(b.word, 0);
    return b;
}

CUresult block_start(struct block *b, CUstream stream)
{
    atomic_store(b->word, 0);
    if (b->kind == BLOCK_HOSTFN)
        return cuLaunchHostFunc(stream, block_fn, (void *)b->word);
    return cuStreamWaitValue32(stream, addr_of(b->word), 1, CU_STREAM_WAIT_VALUE_GEQ);
}

void block_end(struct block *b)
{
    atomic_store(b->word, 1);
}

struct call {
    CUcontext context;
    int (*fn)(void *arg);
    void *arg;
    int result;
    atomic_bool started, done;
};

static void *call_main(void *arg)
{
    struct call *c = arg;
    int result = (int)cuCtxSetCurrent(c->context);

    atomic_store(&c->started, true);
    c->result = result ? result : c->fn(c->arg);
    atomic_store(&c->done, true);
    return NULL;
}

bool call_waits(const char *name, CUcontext context, int (*fn)(void *arg), void *arg, struct block *b, int *result)
{
    struct call c = {.context = context, .fn = fn, .arg = arg};
    pthread_t thread;
    bool waits;

    NEED(pthread_create(&thread, NULL, call_main, &c));
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&c.started); i++)
        nap_ms(1);
    for (int i = 0; i < CALL_MS && !atomic_load(&c.done); i++)
        nap_ms(1);
    waits = !atomic_load(&c.done);
    if (b)
        block_end(b);
    NEED(pthread_join(thread, NULL));
    *result = c.result;
    return waits;
}

struct later {
    struct block *block;
    unsigned int ms;
};

static void *later_main(void *arg)
{
    struct later *l = arg;

    nap_ms(l->ms);
    block_end(l->block);
    free(l);
    return NULL;
}

void block_end_later(const char *name, struct block *b, unsigned int ms)
{
    struct later *l = malloc(sizeof(*l));
    pthread_t thread;

    NEED(l ? 0 : ENOMEM);
    *l = (struct later){b, ms};
    NEED(pthread_create(&thread, NULL, later_main, l));
    NEED(pthread_detach(thread));
}

/* --- in the parent --- */

static const struct probe_case *const lists[] = {cover_cases,  work_cases,    capture_cases,    hostfn_cases,
                                                 sticky_cases, context_cases, memory_cases,     host_cases,
                                                 busy_cases,   pinned_cases,  pinned_call_cases};

/* The case of that number, or NULL. */
static const struct probe_case *case_at(size_t number)
{
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        for (const struct probe_case *c = lists[i]; c->name; c++)
            if (number-- == 0)
                return c;
    return NULL;
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* One line of the child's: print it, or remember what was asked. */
static void line_take(char *line, char *asked, size_t size)
{
    const size_t n = strcspn(line, "\t");

    if (line[0] == '?') {
        snprintf(asked, size, "%s", line + 1);
        return;
    }
    if (strlen(asked) == n && strncmp(asked, line, n) == 0)
        asked[0] = 0;
    puts(line);
}

static void case_run(const struct probe_case *c)
{
    char text[8192], asked[256] = "";
    const int64_t end = now_ms() + LIMIT_MS;
    size_t have = 0;
    int pipes[2], status = 0;
    bool late = false;
    pid_t child;

    if (pipe(pipes) || (child = fork()) < 0) {
        perror("probe");
        exit(2);
    }
    if (child == 0) {
        dup2(pipes[1], STDOUT_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        execl("/proc/self/exe", "probe", "--case", c->name, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    for (;;) {
        struct pollfd fd = {pipes[0], POLLIN, 0};
        const int64_t left = end - now_ms();
        ssize_t n;
        char *line = text, *stop;

        if (left <= 0 || poll(&fd, 1, (int)left) == 0) {
            late = true;
            break;
        }
        n = read(pipes[0], text + have, sizeof(text) - 1 - have);
        if (n <= 0)
            break;
        have += (size_t)n;
        text[have] = 0;
        for (; (stop = strchr(line, '\n')); line = stop + 1) {
            *stop = 0;
            line_take(line, asked, sizeof(asked));
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
    }
    close(pipes[0]);
    if (late)
        kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (late)
        printf("%s\thangs\n", asked[0] ? asked : c->name);
    else if (WIFSIGNALED(status))
        printf("%s\tdies of signal %d\n", asked[0] ? asked : c->name, WTERMSIG(status));
    else if (WEXITSTATUS(status))
        printf("%s\tends with %d\n", asked[0] ? asked : c->name, WEXITSTATUS(status));
    fflush(stdout);
}

/* Is the case the one that is named, or of the group that is named? */
static bool chosen(const char *name, const char *wanted)
{
    const size_t n = strlen(wanted);

    return strncmp(name, wanted, n) == 0 && (name[n] == 0 || name[n] == '.');
}

int main(int argc, char **argv)
{
    const struct probe_case *c;
    bool found = false;

    for (size_t n = 0; (c = case_at(n)); n++) {
        bool want = argc == 1;

        if (argc == 3 && strcmp(argv[1], "--case") == 0 && strcmp(c->name, argv[2]) == 0) {
            c->fn(c->name, c->arg);
            fflush(stdout);
            _exit(0); /* what a case leaves behind may not survive an orderly end */
        }
        for (int i = 1; i < argc; i++)
            want = want || chosen(c->name, argv[i]);
        if (argc == 2 && strcmp(argv[1], "--list") == 0)
            puts(c->name);
        else if (want)
            case_run(c);
        else
            continue;
        found = true;
    }
    if (!found)
        fprintf(stderr, "probe: no such case\n");
    return found ? 0 : 2;
}
