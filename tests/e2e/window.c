/* SPDX-License-Identifier: Apache-2.0 */
/* window.c - a program that asks cupool for windows of NCCL: window SCENARIO RANKS. The ranks are threads, each with a
 * device of its own; each prints what it was told, "RANK WHAT ANSWER". Data is checked. Exit status 0: all was
 * right. */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "../program.h"
#include "cupool.h"

#define MIB       ((size_t)1 << 20)
#define COUNT     5000
#define RANKS_MAX 8
static int ranks;
static ncclUniqueId id;

struct rank {
    int rank;
    cudaStream_t stream;
    ncclComm_t comm;
};

static char *get(size_t size)
{
    void *ptr;

    OK(cudaMalloc(&ptr, size));
    return ptr;
}

static void say(const struct rank *r, const char *what, long long answer)
{
    printf("%d %s %lld\n", r->rank, what, answer);
}

static void *window(const struct rank *r, const char *what, const void *ptr, size_t size)
{
    void *made = NULL;

    say(r, what, cupool_window_register(r->comm, ptr, size, &made));
    return made;
}

static void sum(const struct rank *r, char *at)
{
    const int others = ranks * (ranks - 1) / 2;
    float host[COUNT];

    for (int i = 0; i < COUNT; i++)
        host[i] = (float)(r->rank + i);
    OK(cudaMemcpy(at, host, sizeof(host), cudaMemcpyHostToDevice));
    OK(ncclAllReduce(at, at, COUNT, ncclFloat, ncclSum, r->comm, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    OK(cudaMemcpy(host, at, sizeof(host), cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        OK(host[i] != (float)(ranks * i + others));
}

/* One, used; another buffer of the same segment; then both go. */
static void agree(struct rank *r)
{
    char *first = get(3 * MIB), *second = get(4 * MIB);
    void *of_first, *of_second;

    OK(cudaFree(get(8 * MIB))); /* idle memory, which stays */
    of_first = window(r, "first", first, 3 * MIB);
    sum(r, first);
    of_second = window(r, "second", second + MIB, 100);
    sum(r, second);
    say(r, "undone", cupool_window_deregister(r->comm, of_first));
    say(r, "again", cupool_window_deregister(r->comm, of_first));
    sum(r, first);
    say(r, "undone", cupool_window_deregister(r->comm, of_second));
    OK(cudaFree(first));
    OK(cudaFree(second));
}

/* Memory that lies elsewhere on rank 1, in a segment as large. */
static void differ(struct rank *r)
{
    char *before = r->rank == 1 ? get(64 * 1024) : NULL, *at = get(64 * 1024);

    window(r, "register", at, 64);
    sum(r, at);
    OK(cudaFree(at));
    OK(cudaFree(before));
}

/* Memory that begins alike, in a larger segment on rank 1. */
static void larger(struct rank *r)
{
    char *at = get((r->rank == 1 ? 12 : 4) * MIB);

    window(r, "register", at, MIB);
    sum(r, at);
    OK(cudaFree(at));
}

/* Rank 1 has what can be no window. */
static void kinds(struct rank *r)
{
    static char host[64];
    char *at = get(3 * MIB), *large = get(30 * MIB);

    window(r, "end", large + 29 * MIB, r->rank == 1 ? 30 * MIB : MIB); /* as large as its segment, and behind its end */
    OK(cudaFree(large));
    window(r, "host", r->rank == 1 ? host : at, 64);
    window(r, "beyond", at, r->rank == 1 ? 300 * MIB : 64);
    window(r, "nothing", at, r->rank == 1 ? 0 : 64);
    OK(cudaMallocAsync((void **)&large, 3 * MIB, r->stream));
    OK(cudaStreamSynchronize(r->stream));
    window(r, "async", r->rank == 1 ? large : at, 64);
    OK(cudaFreeAsync(large, r->stream));
    sum(r, at);
    OK(cudaFree(at));
}

/* Where no rank can make one. */
static void nowhere(struct rank *r)
{
    char *at = get(3 * MIB);
    cudaGraph_t graph;

    OK(ncclGroupStart());
    window(r, "group", at, MIB);
    OK(ncclGroupEnd());
    OK(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    window(r, "capture", at, MIB);
    say(r, "deregister", cupool_window_deregister(r->comm, at));
    OK(cudaStreamEndCapture(r->stream, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaSetDevice((r->rank + 1) % ranks));
    window(r, "device", at, MIB);
    OK(cudaSetDevice(r->rank));
    say(r, "null", cupool_window_register(NULL, at, MIB, (void **)&at));
    say(r, "unknown", cupool_window_deregister(r->comm, at));
    OK(cudaFree(at));
}

/* The buffer goes before its window. */
static void stays(struct rank *r)
{
    char *at = get(30 * MIB);
    void *made = window(r, "register", at, MIB);

    sum(r, at);
    OK(cudaFree(at));
    cupool_trim(r->rank);
    OK(cudaMemset(at, 1, MIB));  /* for this program to see, not to copy */
    OK(cudaDeviceSynchronize()); /* unmapping does not wait for it */
    say(r, "undone", cupool_window_deregister(r->comm, made));
    cupool_trim(r->rank);
    say(r, "gone", cudaMemset(at, 1, MIB) != cudaSuccess);
}

static void *give_up(void *arg)
{
    const struct rank *r = arg;

    usleep(300000);
    OK(cudaSetDevice(r->rank));
    OK(ncclCommAbort(r->comm));
    return NULL;
}

/* The last rank never comes, so that another thread gives the communicator up. */
static void alone(struct rank *r)
{
    char *at = get(3 * MIB);
    pthread_t thread;

    OK(pthread_create(&thread, NULL, give_up, r));
    if (r->rank != ranks - 1)
        window(r, "register", at, MIB);
    else
        say(r, "register", -EIO);
    OK(pthread_join(thread, NULL));
    r->comm = NULL;
    OK(cudaFree(at));
}

/* The handle of ncclCommRegister is no window. */
static void handles(struct rank *r)
{
    char *at = get(3 * MIB);
    void *handle;

    OK(ncclCommRegister(r->comm, at, MIB, &handle));
    say(r, "undone", cupool_window_deregister(r->comm, handle));
    OK(ncclCommDeregister(r->comm, handle));
    OK(cudaFree(at));
}

static const struct {
    const char *name;
    void (*run)(struct rank *r);
} scenarios[] = {{"agree", agree},     {"differ", differ}, {"larger", larger}, {"kinds", kinds},
                 {"nowhere", nowhere}, {"stays", stays},   {"alone", alone},   {"handles", handles}};

static void (*scenario)(struct rank *r);
static bool blocking;

static void *run(void *arg)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    struct rank r = {.rank = (int)(size_t)arg};
    ncclResult_t result;

    config.blocking = blocking;
    OK(cudaSetDevice(r.rank));
    OK(cudaStreamCreate(&r.stream));
    result = ncclCommInitRankConfig(&r.comm, ranks, id, r.rank, &config);
    for (; result == ncclInProgress; usleep(100))
        OK(ncclCommGetAsyncError(r.comm, &result));
    OK(result);
    scenario(&r);
    OK(cudaStreamSynchronize(r.stream));
    OK(ncclCommDestroy(r.comm));
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[RANKS_MAX];

    for (size_t i = 0; argc > 2 && i < sizeof(scenarios) / sizeof(scenarios[0]); i++)
        if (strcmp(scenarios[i].name, argv[1]) == 0)
            scenario = scenarios[i].run;
    ranks = argc > 2 ? atoi(argv[2]) : 0;
    if (!scenario || ranks < 2 || ranks > RANKS_MAX)
        return 2;
    blocking = argc == 3;
    OK(ncclGetUniqueId(&id));
    for (int i = 0; i < ranks; i++)
        pthread_create(&threads[i], NULL, run, (void *)(size_t)i);
    join_all(threads, ranks);
    return 0;
}
