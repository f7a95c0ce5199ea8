/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.c - what allocating and freeing costs the host. One measurement a run; scripts/bench runs them natively,
 * preloaded and against other allocators in alternation.
 *
 *   bench MEASUREMENT [--how cuda|async|order|FILE.so] [--size BYTES] [--pairs N] [--threads N] [--devices N] [--live
 * N]
 *                     [--max BYTES] [--cap BYTES] [--uniform] [--seed N]
 *
 * The values of --size, --threads (each on a device of its own, with --devices 0), --live and --max may be lists,
 * separated by commas: one measurement, and one line of output, for each.
 *
 *   pair     allocate and free one size, --threads threads on --devices devices; nanoseconds for a pair and thread
 *   work     the same with cudaMemsetAsync in between, and nothing waited for but the end
 *   live     the same while --live blocks of 512 B to 16 KiB are held
 *   mix      allocations (73 %) and frees of random size up to --max, log-uniform unless --uniform, with at most --cap
 *            bytes live; nanoseconds for a request
 *   slots    each thread has --live slots, and an operation frees what is in a random one or, if it is empty, allocates
 *            there, of random size from 256 B to --max; nanoseconds for an operation and thread
 *   count    nothing but --pairs pairs, for callgrind
 *   scatter  the same with operations of slots
 *
 * --how: cudaMalloc and cudaFree; cudaMallocAsync and cudaFreeAsync on a stream of each thread, with a pool that keeps
 * all; instead of a pair, what orders a free: cuCtxRecordEvent and cuCtxWaitEvent (the floor of CUPOOL_FREE=ordered);
 * or the functions bench_open, bench_take and bench_give of a library, which return 0 or an error (unsafe.c,
 * torch.cpp).
 *
 * It checks no bytes (tests/behaviour/stamp.c does), and measures nothing of the GPU's time.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "allocator.h"

#define THREADS_MAX 64

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int rc_ = (int)(call);                                                                                         \
        if (rc_) {                                                                                                     \
            fprintf(stderr, "bench: line %d: %s: %d\n", __LINE__, #call, rc_);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum how { CUDA, ASYNC, ORDER, LIBRARY };

/* The library of --how. */
static struct {
    __typeof__(&bench_open) open;
    __typeof__(&bench_take) take;
    __typeof__(&bench_give) give;
} library;

static struct {
    const char *what;
    enum how how;
    size_t size, max, cap;
    long pairs, live;
    int threads, devices;
    bool uniform;
    uint64_t seed;
} opt = {.what = "",
         .live = 1,
         .size = 4096,
         .pairs = 100000,
         .max = 64 << 20,
         .cap = (size_t)8 << 30,
         .threads = 1,
         .devices = 1,
         .seed = 1};

struct worker {
    pthread_t thread;
    int id;
    cudaStream_t stream;
    CUcontext context;
    CUevent event;
    double ns; /* for a pair */
};

static pthread_barrier_t line;

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static uint64_t draw(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1dull;
}

static void *take(struct worker *w, size_t size)
{
    void *p = NULL;

    if (opt.how == ASYNC)
        MUST(cudaMallocAsync(&p, size, w->stream));
    else if (opt.how == LIBRARY)
        MUST(library.take(size, &p));
    else
        MUST(cudaMalloc(&p, size));
    return p;
}

static void give(struct worker *w, void *p, size_t size)
{
    if (opt.how == ASYNC)
        MUST(cudaFreeAsync(p, w->stream));
    else if (opt.how == LIBRARY)
        MUST(library.give(size, p));
    else
        MUST(cudaFree(p));
}

static void pair(struct worker *w, bool work)
{
    void *p;

    if (opt.how == ORDER) {
        MUST(cuCtxRecordEvent(w->context, w->event));
        MUST(cuCtxWaitEvent(w->context, w->event));
        return;
    }
    p = take(w, opt.size);
    if (work)
        MUST(cudaMemsetAsync(p, 1, opt.size < 4096 ? opt.size : 4096, w->stream));
    give(w, p, opt.size);
}

static void open_worker(struct worker *w)
{
    const int device = opt.devices ? w->id % opt.devices : w->id;
    cudaMemPool_t pool;
    uint64_t all = UINT64_MAX;

    MUST(cudaSetDevice(device));
    MUST(cudaFree(NULL));
    MUST(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
    if (opt.how == ASYNC) {
        MUST(cudaDeviceGetDefaultMemPool(&pool, device));
        MUST(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
    }
    if (opt.how == LIBRARY)
        MUST(library.open(device, w->stream));
    if (opt.how == ORDER) {
        MUST(cuCtxGetCurrent(&w->context));
        MUST(cuEventCreate(&w->event, CU_EVENT_DISABLE_TIMING));
    }
}

static void *run_pairs(void *arg)
{
    const bool work = strcmp(opt.what, "work") == 0;
    struct worker *w = arg;
    double start;

    open_worker(w);
    /* Enough for what an allocator does until it has what it keeps for a thread, but no long wait natively. */
    for (long i = 0; i < 100 || i < opt.pairs / 10; i++)
        pair(w, work);
    MUST(cudaDeviceSynchronize());
    pthread_barrier_wait(&line);
    start = now_ns();
    for (long i = 0; i < opt.pairs; i++)
        pair(w, work);
    w->ns = (now_ns() - start) / (double)opt.pairs;
    MUST(cudaDeviceSynchronize());
    return NULL;
}

/* The slowest thread's. */
static double side_by_side(void *(*run)(void *))
{
    static struct worker workers[THREADS_MAX];
    double slowest = 0;

    pthread_barrier_init(&line, NULL, (unsigned int)opt.threads);
    for (int i = 0; i < opt.threads; i++) {
        workers[i].id = i;
        MUST(pthread_create(&workers[i].thread, NULL, run, &workers[i]));
    }
    for (int i = 0; i < opt.threads; i++) {
        pthread_join(workers[i].thread, NULL);
        if (workers[i].ns > slowest)
            slowest = workers[i].ns;
    }
    return slowest;
}

static double live(void)
{
    static struct worker w;
    struct {
        void *p;
        size_t n;
    } *held = calloc((size_t)opt.live + 1, sizeof(*held));
    uint64_t state = opt.seed;
    double ns;

    MUST(!held);
    open_worker(&w);
    /* The second time holes, as a program that has run for a while leaves them. */
    for (int step = 1; step <= 7; step += 6) {
        for (long i = 0; i < opt.live; i += step) {
            if (step > 1)
                give(&w, held[i].p, held[i].n);
            held[i].n = 512 + draw(&state) % (16384 - 512);
            held[i].p = take(&w, held[i].n);
        }
    }
    ns = side_by_side(run_pairs);
    for (long i = 0; i < opt.live; i++)
        give(&w, held[i].p, held[i].n);
    free(held);
    return ns;
}

/* 2^x for 0 <= x < 1, near enough, so that libm is not needed. */
static double power(double x)
{
    return 1 + x * (0.6951786 + x * (0.2261721 + x * 0.0786493));
}

static size_t random_size(uint64_t *state, double bits)
{
    const double u = (double)(draw(state) >> 11) / 9007199254740992.0;
    double exponent;

    if (opt.uniform)
        return 256 + (size_t)(u * (double)(opt.max - 256));
    exponent = 8 + u * (bits - 8);
    return (size_t)((double)(1ull << (unsigned int)exponent) * power(exponent - (double)(unsigned int)exponent));
}

static double bits_of(size_t max)
{
    double bits = 0;

    while ((size_t)1 << (unsigned int)(bits + 1) <= max)
        bits++;
    return bits;
}

static void scatter(struct worker *w, long operations)
{
    struct {
        void *p;
        size_t n;
    } *held = calloc((size_t)opt.live, sizeof(*held));
    uint64_t state = opt.seed + (uint64_t)w->id;
    const double bits = bits_of(opt.max);
    double start = 0;

    MUST(!held);
    /* A tenth before the clock starts: until the slots are half full, and the allocator has what it needs. */
    for (long i = opt.threads ? -operations / 10 : 0; i < operations; i++) {
        const long k = (long)(draw(&state) % (uint64_t)opt.live);

        if (i == 0 && opt.threads)
            pthread_barrier_wait(&line);
        if (i == 0)
            start = now_ns();
        if (held[k].p) {
            give(w, held[k].p, held[k].n);
            held[k].p = NULL;
        } else {
            held[k].n = random_size(&state, bits);
            held[k].p = take(w, held[k].n);
        }
    }
    w->ns = (now_ns() - start) / (double)operations;
    for (long k = 0; k < opt.live; k++)
        if (held[k].p)
            give(w, held[k].p, held[k].n);
    free(held);
}

static void *run_slots(void *arg)
{
    struct worker *w = arg;

    open_worker(w);
    scatter(w, opt.pairs);
    return NULL;
}

static double mix(void)
{
    static struct worker w;
    struct {
        void *p;
        size_t n;
    } *held = calloc(1 << 20, sizeof(*held));
    uint64_t state = opt.seed;
    const double bits = bits_of(opt.max);
    size_t bytes = 0;
    double start;
    long n = 0;

    MUST(!held);
    open_worker(&w);
    start = now_ns();
    for (long i = 0; i < opt.pairs; i++) {
        const size_t size = random_size(&state, bits);

        if (n < 1 << 20 && bytes + size <= opt.cap && draw(&state) % 100 < 73) {
            held[n].p = take(&w, size);
            held[n].n = size;
            bytes += size;
            n++;
        } else if (n) {
            const long k = (long)(draw(&state) % (uint64_t)n);

            give(&w, held[k].p, held[k].n);
            bytes -= held[k].n;
            held[k] = held[--n];
        }
    }
    start = (now_ns() - start) / (double)opt.pairs;
    while (n--)
        give(&w, held[n].p, held[n].n);
    free(held);
    return start;
}

static size_t bytes_of(const char *text, char **ret_end)
{
    const size_t n = strtoull(text, ret_end, 0);

    switch (**ret_end) {
    case 'K':
        ++*ret_end;
        return n << 10;
    case 'M':
        ++*ret_end;
        return n << 20;
    case 'G':
        ++*ret_end;
        return n << 30;
    default:
        return n;
    }
}

/* Where the measurements of one run differ, and the values there. */
static struct {
    size_t *size; /* one of these */
    long *count;
    int *threads;
    const char *values;
} vary = {.values = "1"};

static void parse_how(const char *value)
{
    void *handle;

    opt.how = !strcmp(value, "async") ? ASYNC : !strcmp(value, "order") ? ORDER : strchr(value, '/') ? LIBRARY : CUDA;
    if (opt.how != LIBRARY)
        return;
    handle = dlopen(value, RTLD_NOW);
    if (handle) {
        library.open = (__typeof__(library.open))dlsym(handle, "bench_open");
        library.take = (__typeof__(library.take))dlsym(handle, "bench_take");
        library.give = (__typeof__(library.give))dlsym(handle, "bench_give");
    }
    if (!library.open || !library.take || !library.give) {
        fprintf(stderr, "bench: %s\n", dlerror());
        exit(2);
    }
}

static void parse_one(const char *name, const char *value)
{
    char *end;

    if (!strcmp(name, "--how"))
        parse_how(value);
    else if (!strcmp(name, "--size"))
        opt.size = bytes_of(value, &end);
    else if (!strcmp(name, "--max"))
        opt.max = bytes_of(value, &end);
    else if (!strcmp(name, "--cap"))
        opt.cap = bytes_of(value, &end);
    else if (!strcmp(name, "--pairs"))
        opt.pairs = atol(value);
    else if (!strcmp(name, "--live"))
        opt.live = atol(value);
    else if (!strcmp(name, "--threads"))
        opt.threads = atoi(value);
    else if (!strcmp(name, "--devices"))
        opt.devices = atoi(value);
    else if (!strcmp(name, "--seed"))
        opt.seed = strtoull(value, NULL, 0);
    else {
        fprintf(stderr, "bench: %s?\n", name);
        exit(2);
    }
    if (!strchr(value, ','))
        return;
    vary.values = value;
    vary.size = !strcmp(name, "--size") ? &opt.size : !strcmp(name, "--max") ? &opt.max : NULL;
    vary.count = !strcmp(name, "--live") ? &opt.live : NULL;
    vary.threads = !strcmp(name, "--threads") ? &opt.threads : NULL;
}

static void parse(int argc, char **argv)
{
    if (argc > 1)
        opt.what = argv[1];
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "--uniform")) {
            opt.uniform = true;
            continue;
        }
        parse_one(argv[i], i + 1 < argc ? argv[i + 1] : "");
        i++;
    }
    if (opt.threads < 1 || opt.threads > THREADS_MAX || opt.devices < 0 || opt.pairs < 1) {
        fprintf(stderr, "bench: --threads 1 to %d, --pairs at least 1\n", THREADS_MAX);
        exit(2);
    }
}

/* The next of the values that vary. False: there are no more. */
static bool next_value(void)
{
    char *end = NULL;
    const size_t n = bytes_of(vary.values, &end);

    if (!*vary.values)
        return false;
    if (vary.size)
        *vary.size = n;
    if (vary.count)
        *vary.count = (long)n;
    if (vary.threads)
        *vary.threads = n < THREADS_MAX ? (int)n : THREADS_MAX;
    vary.values = *end == ',' ? end + 1 : "";
    return true;
}

static void count(void)
{
    struct worker w = {.id = 0};

    open_worker(&w);
    if (!strcmp(opt.what, "scatter")) {
        opt.threads = 0; /* nobody else is waited for */
        scatter(&w, 2 * opt.pairs);
        return;
    }
    for (long i = 0; i < opt.pairs; i++)
        pair(&w, false);
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    while (next_value()) {
        if (!strcmp(opt.what, "pair") || !strcmp(opt.what, "work")) {
            printf("%.1f\n", side_by_side(run_pairs));
        } else if (!strcmp(opt.what, "live")) {
            printf("%.1f\n", live());
        } else if (!strcmp(opt.what, "mix")) {
            printf("%.1f\n", mix());
        } else if (!strcmp(opt.what, "slots")) {
            printf("%.1f\n", side_by_side(run_slots));
        } else if (!strcmp(opt.what, "count") || !strcmp(opt.what, "scatter")) {
            count();
        } else {
            fprintf(stderr, "usage: bench pair|work|live|mix|slots|count|scatter [options], see the source\n");
            return 2;
        }
        fflush(stdout);
    }
    return 0;
}
