/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_app.c - a program that knows of cupool. Its arguments are commands, done in order; what the library answers is
 * printed, one line each:
 *
 *   version enabled
 *   stats:D trim:D       of device D (-1: all); stats as "stats RC {JSON}"
 *   mark:TEXT
 *   backend:N            an enum cupool_backend
 *   short:N long:N       stats into a struct that is N bytes shorter or longer than ours: RC, size, is the rest as it
 *                        should be
 *   wrong                calls with arguments that are none
 *   alloc:SIZE           one allocation, kept
 *   churn:N:SIZE         N times: allocate and free
 *   free                 all that was kept
 *   pin:SIZE unpin       pinned memory, kept; free the block that was got last
 *   device:D             from here on
 *   sleep:MS
 *   begin end            a relaxed capture
 *   comm uncomm          a communicator of this device alone, made and destroyed
 *   reduce               with it, the block that was got last
 *   group ungroup        of NCCL
 *   fork{ ... }          a child does the calls between; the parent waits
 *   elsewhere{ ... }     a thread that has never called CUDA does it
 *   atexit               an exit handler does stats, trim and mark; so does a destructor
 *   threads:N:ROUNDS     N threads allocate, free, mark, trim and ask, all at a time; what cannot be is said
 *   backends:N:ROUNDS    and switch the backend
 *   captures:N           so many times memory is got, freed and trimmed beside a thread that captures; bytes that are
 * lost releases:N           so many requests beside a thread that retains and releases the primary context
 *
 * Exit code 0; 5 for a word that is none, 6 where CUDA fails.
 */
#include <cuda_runtime_api.h>
#ifdef API_NCCL
#include <cuda.h>
#include <nccl.h>
#endif

#include "../program.h"
#include "cupool.h"

#define KEPT_MAX 64
#define CU(call)                                                                                                       \
    do {                                                                                                               \
        if (call)                                                                                                      \
            _exit(6);                                                                                                  \
    } while (0)

static struct {
    void *p[KEPT_MAX];
    int n;
} kept;
static void *pinned;
static cudaStream_t stream;
static bool at_exit;
#ifdef API_NCCL
static ncclComm_t comm;
#endif

/* The text behind the next colon. */
static const char *second(const char *arg)
{
    return arg + strcspn(arg, ":") + (strchr(arg, ':') != NULL);
}

static void stats_print(int device)
{
    struct cupool_stats s = {0};
    const int rc = cupool_stats_get(device, &s);

    printf("stats %d {\"size\":%llu", rc, (unsigned long long)s.size);
#define MEMBER(name) printf(",\"" #name "\":%llu", (unsigned long long)s.name)
    MEMBER(allocs);
    MEMBER(hits);
    MEMBER(misses);
    MEMBER(frees);
    MEMBER(failed);
    MEMBER(bypassed);
    MEMBER(live);
    MEMBER(held);
    MEMBER(idle);
    MEMBER(peak_live);
    MEMBER(peak_held);
    MEMBER(segments_alloc);
    MEMBER(segments_free);
    MEMBER(oom);
    MEMBER(order);
    MEMBER(kept);
    MEMBER(nccl_segments);
    MEMBER(nccl_registered);
    MEMBER(nccl_deregistered);
    MEMBER(nccl_failed);
    MEMBER(nccl_parked);
    MEMBER(bound);
#define HOST_COUNTER(name) MEMBER(host_##name);
#define HOST_OWN(name)     MEMBER(host_##name);
#include "host_counters.def"
#undef HOST_COUNTER
#undef HOST_OWN
#undef MEMBER
    printf("}\n");
}

/* As a program would that was built with another version of the header. */
static void other_size(long difference)
{
    _Alignas(struct cupool_stats) unsigned char buf[sizeof(struct cupool_stats) + 256];
    struct cupool_stats *stats = (struct cupool_stats *)buf;
    const size_t size = sizeof(*stats) + (size_t)difference;
    bool zeros = true, untouched = true;
    int rc;

    memset(buf, 0xee, sizeof(buf));
    stats->size = size;
    rc = cupool_lib_stats_get ? cupool_lib_stats_get(CUPOOL_ALL_DEVICES, stats) : -ENOSYS;
    for (size_t i = sizeof(*stats); i < size; i++)
        zeros = zeros && !buf[i];
    for (size_t i = size; i < sizeof(buf); i++)
        untouched = untouched && buf[i] == 0xee;
    printf("size %d %ld %d %d %llu\n", rc, (long)stats->size - (long)sizeof(*stats), zeros, untouched,
           (unsigned long long)stats->allocs);
}

static void wrong(void)
{
    struct cupool_stats stats;
    const int rc = cupool_stats_get(0, NULL), device = cupool_stats_get(-2, &stats), mark = cupool_mark(NULL);

    printf("wrong %d %d %d %lld\n", rc, device, mark, (long long)cupool_trim(-2));
}

static void *get(size_t size)
{
    void *p;

    CU(cudaMalloc(&p, size));
    return p;
}

static void last_words(void)
{
    stats_print(CUPOOL_ALL_DEVICES);
    printf("trim %lld\n", (long long)cupool_trim(CUPOOL_ALL_DEVICES));
    printf("mark %d\n", cupool_mark("last"));
    fflush(stdout);
}

/* Runs behind the exit handlers. */
__attribute__((destructor)) static void finish(void)
{
    if (at_exit)
        last_words();
}

struct work {
    pthread_t thread;
    unsigned int seed, rounds;
    bool switches; /* the backend, now and then */
};

static void *work(void *arg)
{
    struct work *w = arg;
    struct cupool_stats stats;
    void *p[8] = {NULL};
    char text[32];

    CU(cudaSetDevice((int)(w->seed % 2)));
    for (unsigned int i = 0; i < w->rounds; i++) {
        const unsigned int at = (unsigned int)rand_r(&w->seed) % 8;

        if (p[at])
            CU(cudaFree(p[at]));
        p[at] = get((size_t)(rand_r(&w->seed) % 64 + 1) << (rand_r(&w->seed) % 2 ? 18 : 9));
        switch (rand_r(&w->seed) % 16) {
        case 0:
            if (cupool_trim((int)(w->seed % 3) - 1) < 0)
                printf("trim failed\n");
            break;
        case 1:
            if (cupool_stats_get((int)(w->seed % 3) - 1, &stats) || stats.size != sizeof(stats) ||
                stats.idle > stats.peak_held || stats.held > stats.peak_held)
                printf("stats cannot be\n");
            break;
        case 2:
            snprintf(text, sizeof(text), "round \"%u\"", i);
            if (cupool_mark(text))
                printf("mark failed\n");
            break;
        case 3:
            if (w->switches && cupool_backend_set((int)(w->seed % 2)))
                printf("switch failed\n");
            break;
        default:
            break;
        }
    }
    for (int i = 0; i < 8; i++)
        if (p[i])
            CU(cudaFree(p[i]));
    return NULL;
}

static void threads(const char *arg, bool switches)
{
    struct work works[16];
    int n = atoi(arg);

    n = n > 16 ? 16 : n;
    for (int i = 0; i < n; i++) {
        works[i] =
            (struct work){.seed = (unsigned int)i + 1, .rounds = (unsigned int)atoi(second(arg)), .switches = switches};
        pthread_create(&works[i].thread, NULL, work, &works[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(works[i].thread, NULL);
}

#ifdef API_NCCL
static atomic_bool stop;

static void *capture_often(void *arg)
{
    cudaStream_t own;
    cudaGraph_t graph;

    CU(cudaStreamCreate(&own));
    while (!atomic_load(&stop)) {
        CU(cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed));
        usleep(200);
        CU(cudaStreamEndCapture(own, &graph));
        CU(cudaGraphDestroy(graph));
        usleep(1000);
    }
    CU(cudaStreamDestroy(own));
    return arg;
}

static void *release_often(void *arg)
{
    CUcontext context;

    while (!atomic_load(&stop)) {
        CU(cuDevicePrimaryCtxRetain(&context, 0));
        CU(cuDevicePrimaryCtxRelease(0));
    }
    return arg;
}

/* Memory comes and goes, beside this. */
static void beside(void *(*what)(void *arg), int rounds, bool trims)
{
    size_t before, after, total;
    pthread_t thread;
    void *p[16];

    CU(cudaFree(get(4 << 20)));
    cupool_trim(0);
    CU(cudaMemGetInfo(&before, &total));
    atomic_store(&stop, false);
    pthread_create(&thread, NULL, what, NULL);
    for (int i = 0; i < rounds; i++) {
        for (int j = 0; j < 16; j++)
            p[j] = get(4 << 20);
        for (int j = 0; j < 16; j++)
            CU(cudaFree(p[j]));
        if (trims)
            cupool_trim(0);
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    cupool_trim(0);
    CU(cudaMemGetInfo(&after, &total));
    printf("lost %lld\n", (long long)(before - after));
}
#endif

/* The commands between { and }, and the place where they end. */
struct words {
    char **first;
    int n;
};

static void run(char **words, int n);

static void *run_thread(void *arg)
{
    const struct words *between = arg;

    run(between->first, between->n);
    return NULL;
}

static int group(char **words, int n, bool child)
{
    struct words between = {.first = words + 1};
    pthread_t thread;
    pid_t pid;

    while (1 + between.n < n && strcmp(words[1 + between.n], "}") != 0)
        between.n++;
    fflush(stdout);
    if (!child) {
        pthread_create(&thread, NULL, run_thread, &between);
        pthread_join(thread, NULL);
    } else if ((pid = fork())) {
        waitpid(pid, NULL, 0);
    } else {
        run(between.first, between.n);
        exit(0);
    }
    return between.n + 1;
}

static void end(void)
{
    cudaGraph_t graph;

    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphDestroy(graph));
}

static bool ask(const char *word, const char *arg)
{
    if (strcmp(word, "version") == 0)
        printf("version %d\n", cupool_version());
    else if (strcmp(word, "enabled") == 0)
        printf("enabled %d\n", cupool_enabled());
    else if (strcmp(word, "stats") == 0)
        stats_print(atoi(arg));
    else if (strcmp(word, "trim") == 0)
        printf("trim %lld\n", (long long)cupool_trim(atoi(arg)));
    else if (strcmp(word, "mark") == 0)
        printf("mark %d\n", cupool_mark(arg));
    else if (strcmp(word, "backend") == 0)
        printf("backend %d\n", cupool_backend_set(atoi(arg)));
    else if (strcmp(word, "short") == 0)
        other_size(-atol(arg));
    else if (strcmp(word, "long") == 0)
        other_size(atol(arg));
    else if (strcmp(word, "wrong") == 0)
        wrong();
    else
        return false;
    return true;
}

static bool use(const char *word, const char *arg)
{
    if (strcmp(word, "alloc") == 0 && kept.n < KEPT_MAX) {
        kept.p[kept.n++] = get((size_t)atoll(arg));
    } else if (strcmp(word, "churn") == 0) {
        for (int i = 0; i < atoi(arg); i++)
            CU(cudaFree(get((size_t)atoll(second(arg)))));
    } else if (strcmp(word, "free") == 0) {
        while (kept.n)
            CU(cudaFree(kept.p[--kept.n]));
    } else if (strcmp(word, "pin") == 0) {
        CU(cudaMallocHost(&pinned, (size_t)atoll(arg)));
    } else if (strcmp(word, "unpin") == 0) {
        CU(cudaFreeHost(pinned));
    } else if (strcmp(word, "device") == 0) {
        CU(cudaSetDevice(atoi(arg)));
    } else if (strcmp(word, "sleep") == 0) {
        usleep((useconds_t)atoi(arg) * 1000);
    } else if (strcmp(word, "begin") == 0) {
        CU(stream ? cudaSuccess : cudaStreamCreate(&stream));
        CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    } else if (strcmp(word, "end") == 0) {
        end();
    } else if (strcmp(word, "atexit") == 0) {
        at_exit = true;
        atexit(last_words);
    } else if (strcmp(word, "threads") == 0 || strcmp(word, "backends") == 0) {
        threads(arg, word[0] == 'b');
#ifdef API_NCCL
    } else if (strcmp(word, "group") == 0) {
        CU(ncclGroupStart());
    } else if (strcmp(word, "ungroup") == 0) {
        CU(ncclGroupEnd());
    } else if (strcmp(word, "comm") == 0) {
        CU(ncclCommInitAll(&comm, 1, NULL));
    } else if (strcmp(word, "uncomm") == 0) {
        CU(ncclCommDestroy(comm));
    } else if (strcmp(word, "captures") == 0) {
        beside(capture_often, atoi(arg), /* trims: */ true);
    } else if (strcmp(word, "releases") == 0) {
        beside(release_often, atoi(arg), /* trims: */ false);
    } else if (strcmp(word, "reduce") == 0 && kept.n) {
        CU(ncclAllReduce(kept.p[kept.n - 1], kept.p[kept.n - 1], 16, ncclFloat, ncclSum, comm, NULL));
        CU(cudaDeviceSynchronize());
#endif
    } else {
        return false;
    }
    return true;
}

static void run(char **words, int n)
{
    for (int i = 0; i < n; i++) {
        char *const colon = strchr(words[i], ':'), *const arg = colon ? colon + 1 : words[i] + strlen(words[i]);

        if (colon)
            *colon = '\0';
        if (strcmp(words[i], "fork{") == 0 || strcmp(words[i], "elsewhere{") == 0)
            i += group(words + i, n - i, words[i][0] == 'f');
        else if (!ask(words[i], arg) && !use(words[i], arg))
            _exit(5);
    }
}

int main(int argc, char **argv)
{
    run(argv + 1, argc - 1);
    fflush(stdout);
    return 0;
}
