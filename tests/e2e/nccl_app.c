/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app.c - a program that has never heard of registration: nccl_app SCENARIO RANKS [RANK FILE].
 *
 * With RANK it is one of so many processes, which meet by FILE; without, all ranks are threads, each with a device of
 * its own. Every operation's data is checked. Exit status 0: all was right; 1: not, with a line that says what.
 */
#include "nccl_app.h"

int ranks;
ncclUniqueId ids[4];

void *get(size_t size)
{
    void *ptr;

    CU(cudaMalloc(&ptr, size));
    return ptr;
}

/* There is not so much now, and that is all that comes of it. */
void get_refused(size_t size)
{
    void *ptr;

    if (cudaMalloc(&ptr, size) != cudaErrorMemoryAllocation || cudaGetLastError() != cudaErrorMemoryAllocation)
        FAIL("%zu bytes were not refused", size);
}

static float value(int rank, int i)
{
    return (float)(rank * 7 + i % 1000);
}

void fill(void *to, int rank, int count)
{
    float *host = malloc((size_t)count * sizeof(float));

    for (int i = 0; host && i < count; i++)
        host[i] = value(rank, i);
    CU(cudaMemcpy(to, host, (size_t)count * sizeof(float), cudaMemcpyHostToDevice));
    free(host);
}

void expect(const struct rank *r, const void *at, int rank, const char *what)
{
    float *host = malloc(BYTES);

    CU(cudaStreamSynchronize(r->stream));
    CU(cudaMemcpy(host, at, BYTES, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++)
        if (!host || host[i] != value(rank, i))
            FAIL("rank %d: %s: element %d from rank %d is %g", r->rank, what, i, rank, host ? (double)host[i] : 0);
    free(host);
}

void all_gather(const struct rank *r, void *from, char *to)
{
    fill(from, r->rank, COUNT);
    NC(ncclAllGather(from, to, COUNT, ncclFloat, r->comm, r->stream));
    for (int i = 0; i < ranks; i++)
        expect(r, to + (size_t)i * BYTES, i, "all_gather");
}

void ring(const struct rank *r, void *from, void *to)
{
    fill(from, r->rank, COUNT);
    NC(ncclGroupStart());
    NC(ncclSend(from, COUNT, ncclFloat, (r->rank + 1) % ranks, r->comm, r->stream));
    NC(ncclRecv(to, COUNT, ncclFloat, (r->rank + ranks - 1) % ranks, r->comm, r->stream));
    NC(ncclGroupEnd());
    expect(r, to, (r->rank + ranks - 1) % ranks, "send/recv");
}

void broadcast(const struct rank *r, void *at)
{
    fill(at, r->rank, COUNT);
    NC(ncclBcast(at, COUNT, ncclFloat, 1, r->comm, r->stream));
    expect(r, at, 1, "bcast");
}

/* Of equal values, so that each rank's part is known. */
void others(const struct rank *r, char *from, char *to)
{
    fill(from, r->rank, COUNT);
    NC(ncclBroadcast(from, to, COUNT, ncclFloat, 0, r->comm, r->stream));
    expect(r, to, 0, "broadcast");
    fill(from, 3, COUNT);
    NC(ncclAllReduce(from, to, COUNT, ncclFloat, ncclMax, r->comm, r->stream));
    expect(r, to, 3, "all_reduce");
    NC(ncclReduce(from, to, COUNT, ncclFloat, ncclMax, 1, r->comm, r->stream));
    if (r->rank == 1)
        expect(r, to, 3, "reduce");
    for (int i = 0; i < ranks; i++)
        fill(from + (size_t)i * BYTES, i, COUNT);
    NC(ncclReduceScatter(from, to, COUNT, ncclFloat, ncclMin, r->comm, r->stream));
    expect(r, to, r->rank, "reduce_scatter");
    for (int i = 0; i < ranks; i++)
        fill(from + (size_t)i * BYTES, r->rank, COUNT);
    NC(ncclAlltoAll(from, to, COUNT, ncclFloat, r->comm, r->stream));
    for (int i = 0; i < ranks; i++)
        expect(r, to + (size_t)i * BYTES, i, "alltoall");
    NC(ncclGather(from, to, COUNT, ncclFloat, 0, r->comm, r->stream));
    for (int i = 0; r->rank == 0 && i < ranks; i++)
        expect(r, to + (size_t)i * BYTES, i, "gather");
    for (int i = 0; r->rank == 0 && i < ranks; i++)
        fill(from + (size_t)i * BYTES, i, COUNT);
    NC(ncclScatter(from, to, COUNT, ncclFloat, 0, r->comm, r->stream));
    expect(r, to, r->rank, "scatter");
}

void comm_make(struct rank *r, int id)
{
    NC(ncclCommInitRank(&r->comm, ranks, ids[id], r->rank));
}

void comm_end(struct rank *r)
{
    CU(cudaStreamSynchronize(r->stream));
    NC(ncclCommDestroy(r->comm));
}

void on_flag(void *flag)
{
    while (!atomic_load((atomic_int *)flag))
        usleep(100);
}

/* --- which of them, and on how many ranks --- */

/* The section's ends, which the linker defines. */
extern const struct scenario *const __start_scenarios[] __attribute__((visibility("hidden")));
extern const struct scenario *const __stop_scenarios[] __attribute__((visibility("hidden")));

static void (*scenario)(struct rank *r);

static void *run(void *arg)
{
    struct rank r = {.rank = (int)(size_t)arg};

    CU(cudaSetDevice(r.rank));
    CU(cudaStreamCreate(&r.stream));
    scenario(&r);
    return NULL;
}

/* The ids reach the other processes by a file, whole or not at all. */
static void meet(int rank, const char *file)
{
    char name[4096];
    FILE *f;

    snprintf(name, sizeof(name), "%s.new", file);
    if (rank == 0) {
        f = fopen(name, "w");
        if (!f || fwrite(ids, sizeof(ids), 1, f) != 1 || fclose(f) || rename(name, file))
            FAIL("cannot write %s", file);
        return;
    }
    while (!(f = fopen(file, "r")))
        usleep(1000);
    if (fread(ids, sizeof(ids), 1, f) != 1)
        FAIL("cannot read %s", file);
    fclose(f);
}

#ifdef PLUGIN
#define main plugin_run
int plugin_run(int argc, char **argv);
#endif

int main(int argc, char **argv)
{
    pthread_t threads[RANKS_MAX];
    const int rank = argc > 4 ? atoi(argv[3]) : 0;

    for (size_t i = ((uintptr_t)__stop_scenarios - (uintptr_t)__start_scenarios) / sizeof(void *); i-- && argc > 2;)
        if (strcmp(__start_scenarios[i]->name, argv[1]) == 0)
            scenario = __start_scenarios[i]->run;
    ranks = argc > 2 ? atoi(argv[2]) : 0;
    if (!scenario || ranks < 2 || ranks > RANKS_MAX)
        FAIL("usage: nccl_app SCENARIO RANKS [RANK FILE]");
    for (int i = 0; rank == 0 && i < 4; i++)
        NC(ncclGetUniqueId(&ids[i]));
    if (argc > 4) {
        meet(rank, argv[4]);
        run((void *)(size_t)rank);
        return 0;
    }
    for (int i = 0; i < ranks; i++)
        pthread_create(&threads[i], NULL, run, (void *)(size_t)i);
    join_all(threads, ranks);
    return 0;
}
