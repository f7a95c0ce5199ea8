/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto.h - the auto_*.c programs share this: device work that outlasts the host's next steps, the two races, a table
 * of tests, a process for each test, and a main.
 *
 * Natively cudaFree waits until the device is idle, so all work launched before it has happened when it returns: on the
 * host, on other devices, in other contexts and processes. CUPOOL_FREE=ordered lets the device wait instead, and these
 * programs notice: each "hazard" gives the right result natively and has to with CUPOOL_FREE=auto and strict, and a
 * wrong one with ordered. With --expect-wrong a program demands the wrong result, which shows that the test can see the
 * hazard. Then held work stays held until the test has looked, so that the answer does not depend on time. Each test
 * runs in a process of its own, because the library remembers a hazard for the rest of the process.
 *
 * There are no kernels here. Other behaviour programs hold a stream by a host function, but a host function by itself
 * makes auto wait; these use simgpu_kernel on the simulated GPU and many copies on a real one.
 */
#ifndef BEHAVIOUR_AUTO_H
#define BEHAVIOUR_AUTO_H

#define BT_OWN_MAIN
#include "behaviour.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

#define AUTO_WRONG 2  /* the result that shows the hazard */
#define AUTO_LIMIT 60 /* seconds for one test */

typedef int auto_copy_fn(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s);
typedef int auto_write_fn(char *u, size_t n, int byte);
typedef int auto_read_fn(const char *w, size_t n, int byte);

struct auto_test {
    int line; /* tests run in the order of their lines */
    const char *name;
    int (*fn)(void);
    bool hazard; /* else: right under every policy */
    /* Arguments for fn, which finds them in auto_now; fn's file says which ones it needs. */
    int (*setup)(void); /* runs before fn */
    int (*launch)(void);
    int (*captured)(void);
    int (*make)(void);
    int (*release)(void);
    auto_copy_fn *copy;
    enum cudaMemcpyKind kind;
    size_t n;
    auto_write_fn *write;
    auto_read_fn *read;
    const char *object;
};

static const struct auto_test *auto_now;
static bool auto_expect_wrong;

#define WRONG(...) (snprintf(bt_why, sizeof(bt_why), __VA_ARGS__), AUTO_WRONG)

/* --- device work that is long enough --- */

#define HOLD_RACE_US (auto_expect_wrong ? 10000000u : 100000u) /* where others have to come up to it first */
#define HOLD_US      (auto_expect_wrong ? 10000000u : 30000u)  /* at the latest; hold_release ends it */
#define HOLD_COPY_US (auto_expect_wrong ? 400000u : 40000u)    /* where nothing can end it early */
#define HOLD_BYTES   (512 * BT_MIB)                            /* so that few enough copies do for a GPU's queue */
#define HOLD_ROUNDS  64

static int hold_go[HOLD_ROUNDS], hold_round;

/* A real GPU: copies, as many as it takes. */
static int hold_copies(cudaStream_t s)
{
    static char *buffer;
    static uint64_t each_ns;
    uint64_t begin;

    if (!buffer) {
        OK(cudaMalloc((void **)&buffer, 2 * HOLD_BYTES));
        OK(cudaMemsetAsync(buffer, 0, 2 * HOLD_BYTES, s));
        OK(cudaMemcpyAsync(buffer, buffer + HOLD_BYTES, HOLD_BYTES, cudaMemcpyDeviceToDevice, s));
        OK(cudaStreamSynchronize(s));
        begin = bt_ns();
        for (int i = 0; i < 16; i++)
            OK(cudaMemcpyAsync(buffer, buffer + HOLD_BYTES, HOLD_BYTES, cudaMemcpyDeviceToDevice, s));
        OK(cudaStreamSynchronize(s));
        each_ns = (bt_ns() - begin) / 16 + 1;
    }
    for (uint64_t ns = 0; ns < (uint64_t)HOLD_COPY_US * 1000; ns += each_ns)
        OK(cudaMemcpyAsync(buffer, buffer + HOLD_BYTES, HOLD_BYTES, cudaMemcpyDeviceToDevice, s));
    return 0;
}

/* Can work be held until hold_release, and not only for a time? */
BT_UNUSED static bool hold_is_exact(void)
{
    return bt_driver("simgpu_kernel") != NULL;
}

/* Keep a stream busy with device work that touches nothing of interest and never needs the host. */
BT_UNUSED static int hold_for(cudaStream_t s, unsigned int us)
{
    int (*kernel)(void *, const int *, unsigned int) =
        (int (*)(void *, const int *, unsigned int))bt_driver("simgpu_kernel");

    if (!kernel)
        return hold_copies(s);
    OK(kernel(s, &hold_go[hold_round % HOLD_ROUNDS], us));
    return 0;
}

BT_UNUSED static int hold(cudaStream_t s)
{
    return hold_for(s, HOLD_US);
}

/* Lets the held work go on. */
BT_UNUSED static void hold_release(void)
{
    __atomic_store_n(&hold_go[hold_round++ % HOLD_ROUNDS], 1, __ATOMIC_RELEASE);
}

/* The bytes of device memory that are not what they should be; -1: cannot be read. */
BT_UNUSED static long auto_count(const void *p, size_t n, int byte)
{
    unsigned char *host = (unsigned char *)malloc(n);
    long bad = -1;

    if (host && cudaMemcpy(host, p, n, cudaMemcpyDeviceToHost) == cudaSuccess) {
        bad = 0;
        for (size_t i = 0; i < n; i++)
            bad += host[i] != (unsigned char)byte;
    }
    free(host);
    return bad;
}

/* The race that matters for everything past the context's queue: the context's older work still reads and writes t; the
 * host frees t and gets u, most likely the same memory; write(u, n, byte) has another party fill u and returns when
 * that is done. Natively cudaFree has waited for the older work, so neither sees the other. */
BT_UNUSED static int auto_race(auto_write_fn *write)
{
    const size_t n = 4 * BT_MIB; /* a driver allocation of its own, also where the library pools */
    cudaStream_t a;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    for (int round = 0; round < 2; round++) { /* in the second, the library has seen before what there is to see */
        char *t, *u, *out;
        long read, written;

        OK(cudaMalloc((void **)&out, n));
        TRY(bt_fill(out, n, 0));
        OK(cudaMalloc((void **)&t, n));
        TRY(bt_fill(t, n, 7));
        TRY(hold_for(a, HOLD_RACE_US));
        OK(cudaMemcpyAsync(out, t, n, cudaMemcpyDeviceToDevice, a));
        OK(cudaMemsetAsync(t, 9, n, a));
        OK(cudaFree(t));
        OK(cudaMalloc((void **)&u, n));
        if (auto_expect_wrong && u != t)
            return BT_FAIL("the freed memory was not used again: nothing to see");
        TRY(write(u, n, 0xee));
        hold_release();
        OK(cudaDeviceSynchronize());
        read = auto_count(out, n, 7);
        written = auto_count(u, n, 0xee);
        CHECK(read >= 0 && written >= 0);
        OK(cudaFree(out));
        OK(cudaFree(u));
        if (read || written)
            return WRONG("round %d: %ld bytes were overwritten before the old owner read them, %ld by the old owner",
                         round, read, written);
    }
    OK(cudaStreamDestroy(a));
    return 0;
}

/* The other way round: the context's work writes w late, the host frees something else, and then read(w, n, byte) has a
 * party look at w that is not ordered by the context. Natively cudaFree has waited for the write. read answers
 * AUTO_WRONG if w was not all byte. */
BT_UNUSED static int auto_stale_in(char *w, size_t n, auto_read_fn *read)
{
    cudaStream_t a;
    int rc = 0;
    char *x;

    OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    for (int round = 0; round < 2 && !rc; round++) {
        OK(cudaMalloc((void **)&x, 1000));
        TRY(bt_fill(w, n, 1));
        TRY(hold(a));
        OK(cudaMemsetAsync(w, 5 + round, n, a));
        OK(cudaFree(x));
        rc = read(w, n, 5 + round);
        hold_release();
        OK(cudaStreamSynchronize(a));
    }
    if (rc)
        return rc;
    OK(cudaFree(w));
    OK(cudaStreamDestroy(a));
    return 0;
}

BT_UNUSED static int auto_stale(auto_read_fn *read)
{
    char *w;

    OK(cudaMalloc((void **)&w, 4 * BT_MIB));
    return auto_stale_in(w, 4 * BT_MIB, read);
}

/* Rows that run one of the two races. */
BT_UNUSED static int auto_race_row(void)
{
    return auto_race(auto_now->write);
}

BT_UNUSED static int auto_stale_row(void)
{
    return auto_stale(auto_now->read);
}

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names and initialisers */
/* Puts a test into a section of the program, which auto_main goes through: no list can forget it. */
#define AUTO_ADD(name_, ...)                                                                                           \
    static const struct auto_test name_##_test = {.line = __LINE__, .name = #name_, __VA_ARGS__};                      \
    static const struct auto_test *const name_##_place __attribute__((used, section("auto_tests"))) = &name_##_test;
#define RACE(name_, write_, ...) AUTO_ADD(name_, .fn = auto_race_row, .hazard = true, .write = write_, __VA_ARGS__)
#define STALE(name_, read_, ...) AUTO_ADD(name_, .fn = auto_stale_row, .hazard = true, .read = read_, __VA_ARGS__)
/* The head of a test; RIGHT: under every policy. */
#define AUTO_TEST(name_, ...)                                                                                          \
    static int name_(void);                                                                                            \
    AUTO_ADD(name_, .fn = name_, __VA_ARGS__)                                                                          \
    static int name_(void)
#define HAZARD(name_, ...) AUTO_TEST(name_, .hazard = true, __VA_ARGS__)
#define RIGHT(name_, ...)  AUTO_TEST(name_, .hazard = false, __VA_ARGS__)
/* NOLINTEND(bugprone-macro-parentheses) */

/* A stream of a new green context with all processors of device 0. */
BT_UNUSED static int auto_green(CUcontext *ret_context, CUstream *ret_stream)
{
#if CUDA_VERSION >= 12050
    CUdevResourceDesc desc;
    CUdevResource all;
    CUgreenCtx green;
    int rc = (int)cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM);

    if (rc)
        SKIP("no green contexts here (%d)", rc);
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(ret_context, green));
    OK(cuGreenCtxStreamCreate(ret_stream, green, CU_STREAM_NON_BLOCKING, 0));
    return 0;
#else
    SKIP("needs CUDA 12.5");
#endif
}

/* A library of auto_standin.c, from the folder of this program. */
BT_UNUSED static int auto_library(const char *name, void **ret)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    char *base;

    CHECK(n > 0);
    path[n] = 0;
    base = strrchr(path, '/') + 1;
    snprintf(base, sizeof(path) - (size_t)(base - path), "%s", name);
    *ret = dlopen(path, RTLD_NOW);
    return *ret ? 0 : BT_FAIL("%s", dlerror());
}

/* --- running --- */

static int auto_run(const struct auto_test *t)
{
    int rc;

    (void)alarm(AUTO_LIMIT);
    auto_expect_wrong = auto_expect_wrong && t->hazard;
    auto_now = t;
    rc = t->setup ? t->setup() : 0;
    if (!rc)
        rc = t->fn();
    if (rc == AUTO_WRONG && auto_expect_wrong) {
        printf("ok %s: wrong, as expected: %s\n", t->name, bt_why);
        return 0;
    }
    if (rc == 0 && auto_expect_wrong) {
        printf("FAIL %s: the result was right, so this test does not see the hazard\n", t->name);
        return 1;
    }
    if (rc == 0)
        printf("ok %s\n", t->name);
    else if (rc == BT_SKIP)
        printf("skip %s: %s\n", t->name, bt_why);
    else
        printf("FAIL %s: %s\n", t->name, bt_why);
    return rc == 0 || rc == BT_SKIP ? rc : 1;
}

/* A test in a new process: its exit status, or 1. */
static int auto_spawn(const struct auto_test *t)
{
    char *argv[] = {(char *)"auto", (char *)t->name, auto_expect_wrong ? (char *)"--expect-wrong" : NULL, NULL};
    int status = 0;
    pid_t pid;

    (void)fflush(stdout);
    pid = fork();
    if (pid == 0) {
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (pid > 0 && WIFEXITED(status))
        return WEXITSTATUS(status);
    printf("FAIL %s: killed by signal %d (%d: longer than %d s)\n", t->name, WTERMSIG(status), SIGALRM, AUTO_LIMIT);
    return 1;
}

extern const struct auto_test *const __start_auto_tests[];
extern const struct auto_test *const __stop_auto_tests[];

static int auto_by_line(const void *a, const void *b)
{
    return (*(const struct auto_test *const *)a)->line - (*(const struct auto_test *const *)b)->line;
}

/* PROGRAM [NAME] [--expect-wrong] */
static int auto_main(int argc, char **argv)
{
    const size_t n = ((uintptr_t)__stop_auto_tests - (uintptr_t)__start_auto_tests) / sizeof(void *);
    const struct auto_test *tests[BT_TESTS_MAX];
    const char *only = NULL;
    int found = 0, failed = 0, passed = 0;

    if (n > BT_TESTS_MAX)
        abort();
    memcpy(tests, __start_auto_tests, n * sizeof(void *));
    qsort(tests, n, sizeof(void *), auto_by_line);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--expect-wrong") == 0)
            auto_expect_wrong = true;
        else
            only = argv[i];
    }
    for (size_t i = 0; i < n; i++) {
        int rc;

        if (only && strcmp(only, tests[i]->name) != 0)
            continue;
        found++;
        rc = only ? auto_run(tests[i]) : auto_spawn(tests[i]);
        failed += rc != 0 && rc != BT_SKIP;
        passed += rc == 0;
    }
    if (!found)
        fprintf(stderr, "no test called %s\n", only ? only : "anything");
    return failed || !found ? 1 : passed ? 0 : BT_SKIP;
}

#ifndef AUTO_OWN_MAIN
int main(int argc, char **argv)
{
    return auto_main(argc, argv);
}
#endif

#endif
