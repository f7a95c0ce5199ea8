/* SPDX-License-Identifier: Apache-2.0 */
/*
 * behaviour.h - what the behaviour programs share: how tests are found, the checks, slow work without kernels.
 *
 * A test states how CUDA behaves without cupool; it has to hold natively and preloaded, on the simulated and on real
 * GPUs. Tests about the pool itself skip themselves when it is not preloaded. There are no kernels, so no nvcc is
 * needed: a host function that sleeps keeps a stream busy.
 */
#ifndef BEHAVIOUR_H
#define BEHAVIOUR_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BT_SKIP    77
#define BT_UNUSED  __attribute__((unused))
#define BT_KIB     ((size_t)1 << 10)
#define BT_MIB     ((size_t)1 << 20)
#define BT_GIB     ((size_t)1 << 30)
#define BT_SLOW_US 20000

/* fn, or with for rows that are one function with different arguments: 0, 1 (failed, bt_why says why) or BT_SKIP. */
struct bt_test {
    int line; /* tests run in the order of their lines */
    const char *name;
    int (*fn)(void);
    int (*with)(const void *arg);
    const void *arg;
};

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are names and initialisers */
/* Puts a test into a section of the program, which bt_main goes through: no list can forget it. */
#define BT_ADD(name_, ...)                                                                                             \
    static const struct bt_test name_##_test = {.line = __LINE__, .name = #name_, __VA_ARGS__};                        \
    static const struct bt_test *const name_##_place __attribute__((used, section("bt_tests"))) = &name_##_test;
/* The head of a test. */
#define BT_TEST(name)                                                                                                  \
    static int name(void);                                                                                             \
    BT_ADD(name, .fn = name)                                                                                           \
    static int name(void)
/* One that calls with(arg). */
#define BT_ROW(name_, with_, arg_) BT_ADD(name_, .with = with_, .arg = arg_)
/* NOLINTEND(bugprone-macro-parentheses) */

/* Per thread: a test that runs threads copies a thread's text out (bt_thread). */
static __thread char bt_why[512];

/* Fails or skips the current test; used as `return`'s operand. */
#define BT_FAIL(...) (snprintf(bt_why, sizeof(bt_why), __VA_ARGS__), 1)
#define SKIP(...)    return (snprintf(bt_why, sizeof(bt_why), __VA_ARGS__), BT_SKIP)

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond))                                                                                                   \
            return BT_FAIL("line %d: %s", __LINE__, #cond);                                                            \
    } while (0)

/* Works for cudaError_t and CUresult alike: their numbers agree where both exist. */
#define EXPECT(call, want)                                                                                             \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_ != (int)(want))                                                                                        \
            return BT_FAIL("line %d: %s: %d, expected %d", __LINE__, #call, rc_, (int)(want));                         \
    } while (0)

#define OK(call) EXPECT(call, 0)

/* The calling thread's last error, which this clears. */
#define LAST(want) EXPECT(cudaGetLastError(), want)

/* Run another function that answers as a test does. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int try_ = (call);                                                                                             \
        if (try_)                                                                                                      \
            return try_;                                                                                               \
    } while (0)

BT_UNUSED static bool bt_preloaded(void)
{
    const char *preload = getenv("LD_PRELOAD");

    return preload && strstr(preload, "libcupool");
}

/* Is memory virtual (CUPOOL_BACKEND=vmm)? Such memory has no IPC handle, no SYNC_MEMOPS, and cuMemFree does not know
 * it. */
BT_UNUSED static bool bt_virtual(void)
{
    const char *backend = getenv("CUPOOL_BACKEND");

    return bt_preloaded() && backend && strcmp(backend, "vmm") == 0;
}

BT_UNUSED static uint64_t bt_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

BT_UNUSED static void bt_nap(uint64_t us)
{
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};

    nanosleep(&t, NULL);
}

#define BT_ADDRESS(p) ((CUdeviceptr)(uintptr_t)(p))

/* A function of the driver or of the simulated GPU; NULL: there is none, the GPU is a real one. From the driver's
 * library itself: a program that calls no driver function is not linked with it, and a static cudart loads it for
 * itself alone. */
BT_UNUSED static void *bt_driver(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    return driver ? dlsym(driver, name) : NULL;
}

/* Skips with fewer devices. */
BT_UNUSED static int bt_devices(int n)
{
    int devices = 0;

    OK(cudaGetDeviceCount(&devices));
    if (devices < n)
        SKIP("needs %d devices", n);
    return 0;
}

/* A new context on device 0, which is current afterwards. */
BT_UNUSED static int bt_context(CUcontext *ret)
{
    CUdevice dev;

    OK(cuDeviceGet(&dev, 0));
#if CUDA_VERSION >= 13000
    OK(cuCtxCreate(ret, NULL, 0, dev));
#else
    OK(cuCtxCreate(ret, 0, dev));
#endif
    return 0;
}

/* An option of a program: a number, which may end in K, M or G. */
struct bt_option {
    const char *name;
    uint64_t *value;
};

BT_UNUSED static int bt_option(const struct bt_option *options, const char *name, const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 0);

    for (; options->name; options++)
        if (strcmp(name, options->name) == 0) {
            *options->value = *end == 'G' ? n << 30 : *end == 'M' ? n << 20 : *end == 'K' ? n << 10 : n;
            return 0;
        }
    return -1;
}

/* A small generator of one's own: the same numbers everywhere. */
BT_UNUSED static uint64_t bt_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Most device memory that a test may take; keeps the suite quick on large GPUs. */
BT_UNUSED static size_t bt_max_mem(void)
{
    const char *max = getenv("BEHAVIOUR_MAX_MEM");

    return max && *max ? strtoull(max, NULL, 0) : 4 * BT_GIB;
}

BT_UNUSED static void CUDART_CB bt_sleep_fn(void *us)
{
    bt_nap((uint64_t)(uintptr_t)us);
}

/* Keep a stream busy for a while. */
BT_UNUSED static int bt_slow(cudaStream_t stream, uint64_t us)
{
    OK(cudaLaunchHostFunc(stream, bt_sleep_fn, (void *)(uintptr_t)us));
    return 0;
}

/* Are all n bytes at p the given byte? Reads them back with a plain cudaMemcpy. */
BT_UNUSED static int bt_verify(const void *p, size_t n, int byte)
{
    unsigned char *host = (unsigned char *)malloc(n);
    int rc = host ? (int)cudaMemcpy(host, p, n, cudaMemcpyDeviceToHost) : 2;
    size_t i = 0;

    if (rc) {
        free(host);
        return BT_FAIL("reading %zu bytes back: %d", n, rc);
    }
    /* All at once: a sanitizer looks at each access. */
    if (n && host[0] == (unsigned char)byte && memcmp(host, host + 1, n - 1) == 0)
        i = n;
    while (i < n && host[i] == (unsigned char)byte)
        i++;
    if (i < n)
        rc = BT_FAIL("byte %zu of %zu is 0x%02x, expected 0x%02x", i, n, host[i], byte & 0xff);
    free(host);
    return rc;
}

/* Fill with a byte and wait. */
BT_UNUSED static int bt_fill(void *p, size_t n, int byte)
{
    OK(cudaMemset(p, byte, n));
    OK(cudaDeviceSynchronize());
    return 0;
}

/* Memory can be had, written, read and given back: the sanity check after every disturbance. */
BT_UNUSED static int bt_usable(size_t n)
{
    void *p = NULL;

    OK(cudaMalloc(&p, n));
    CHECK(p);
    TRY(bt_fill(p, n, 0x5a));
    TRY(bt_verify(p, n, 0x5a));
    OK(cudaFree(p));
    return 0;
}

/* Some threads of a test: each runs fn(arg), which answers as a test does; the first bad answer is the whole's. */
struct bt_thread {
    pthread_t id;
    int (*fn)(void *arg);
    void *arg;
    int rc;
    char why[512];
};

BT_UNUSED static void *bt_thread_main(void *arg)
{
    struct bt_thread *t = (struct bt_thread *)arg;

    t->rc = t->fn(t->arg);
    memcpy(t->why, bt_why, sizeof(t->why));
    return NULL;
}

BT_UNUSED static int bt_thread_start(struct bt_thread *t, int (*fn)(void *arg), void *arg)
{
    t->fn = fn;
    t->arg = arg;
    CHECK(pthread_create(&t->id, NULL, bt_thread_main, t) == 0);
    return 0;
}

BT_UNUSED static int bt_thread_join(struct bt_thread *t)
{
    CHECK(pthread_join(t->id, NULL) == 0);
    if (t->rc)
        memcpy(bt_why, t->why, sizeof(bt_why));
    return t->rc;
}

/* Runs after a test that failed, so that the next one does not fail for it. */
static void (*bt_cleanup)(void);

#define BT_TESTS_MAX 64

extern const struct bt_test *const __start_bt_tests[] __attribute__((weak));
extern const struct bt_test *const __stop_bt_tests[] __attribute__((weak));

static int bt_by_line(const void *a, const void *b)
{
    return (*(const struct bt_test *const *)a)->line - (*(const struct bt_test *const *)b)->line;
}

/* All tests of the program, in their order; returns how many. */
BT_UNUSED static size_t bt_all_tests(const struct bt_test *tests[BT_TESTS_MAX])
{
    const size_t n = ((uintptr_t)__stop_bt_tests - (uintptr_t)__start_bt_tests) / sizeof(void *);

    if (n > BT_TESTS_MAX)
        abort();
    memcpy(tests, __start_bt_tests, n * sizeof(void *));
    qsort(tests, n, sizeof(void *), bt_by_line);
    return n;
}

BT_UNUSED static int bt_main(int argc, char **argv)
{
    const struct bt_test *tests[BT_TESTS_MAX];
    const size_t n = bt_all_tests(tests);
    int failed = 0, passed = 0, found = 0;

    for (size_t i = 0; i < n; i++) {
        const struct bt_test *t = tests[i];
        int rc;

        if (argc > 1 && strcmp(argv[1], t->name) != 0)
            continue;
        found++;
        bt_why[0] = 0;
        rc = t->fn ? t->fn() : t->with(t->arg);
        if (rc == 0) {
            passed++;
            printf("ok %s\n", t->name);
        } else if (rc == BT_SKIP) {
            printf("skip %s: %s\n", t->name, bt_why);
        } else {
            failed++;
            printf("FAIL %s: %s\n", t->name, bt_why);
            if (bt_cleanup)
                bt_cleanup();
            (void)cudaGetLastError(); /* the next test starts clean */
        }
        fflush(stdout);
    }
    if (!found)
        fprintf(stderr, "no test called %s\n", argv[1]);
    return failed || !found ? 1 : passed ? 0 : BT_SKIP;
}

/* A program may define BT_BEGIN, done before the tests; or BT_OWN_MAIN, and a main of its own. */
#ifndef BT_BEGIN
#define BT_BEGIN() (void)0
#endif
#ifndef BT_OWN_MAIN
int main(int argc, char **argv)
{
    BT_BEGIN();
    return bt_main(argc, argv);
}
#endif

#endif
