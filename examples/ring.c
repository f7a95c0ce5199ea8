/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - every rank sends to its right neighbour and receives from its left one, by NCCL.
 *
 * Usage: mpirun -n 4 ring [--iters N] [--min BYTES] [--max BYTES]
 *        torchrun --no-python --nproc-per-node 4 ring ...              (or RANK, WORLD_SIZE, LOCAL_RANK set by hand)
 *
 * Build: mpicc -O2 -DHAVE_MPI ring.c -o ring -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -lnccl
 *        or without MPI: gcc -O2 ring.c -o ring with the same paths and libraries.
 *
 * Here: for sizes from 1 KiB to 64 MiB, some iterations that each take two buffers with cudaMalloc, exchange,
 * look at every word that came, and give the buffers back with cudaFree. Rank 0 prints, for each size and the slowest
 * rank, the time that an iteration spent in cudaMalloc and cudaFree, that of the exchange, and bytes per second in each
 * direction. The first iteration of a size is not timed. Exit status 1 if a word was wrong. The digest depends on every
 * word that any rank received, so it is the same in every right run with these options.
 *
 * Not here: aware of registration. That is what it is to show.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "job.h"

static struct {
    int iters;
    size_t min, max;
    const char *id;
} opt = {.iters = 5, .min = 1 << 10, .max = 64 << 20};

static ncclComm_t comm;
static cudaStream_t stream;
static uint64_t *host; /* pinned; what is sent, then what came */

struct result {
    uint64_t wrong, digest;
    double allocation, exchange; /* seconds, of all timed iterations */
};

/* A rank sends these words in one iteration. No two words of a run are equal, but by chance. */
static uint64_t word(uint64_t key, size_t i)
{
    return key + i * 0x9e3779b97f4a7c15u;
}

static uint64_t key_of(int rank, size_t size, int iter)
{
    return job_mix(((uint64_t)rank << 48) ^ ((uint64_t)iter << 40) ^ size);
}

static void check(size_t size, int iter, struct result *result)
{
    uint64_t key = key_of((job.rank + job.ranks - 1) % job.ranks, size, iter);

    for (size_t i = 0; i < size / sizeof(*host); i++) {
        result->wrong += host[i] != word(key, i);
        result->digest += job_mix(host[i] ^ i);
    }
}

static void exchange(const void *from, void *to, size_t size)
{
    NC(ncclGroupStart());
    NC(ncclSend(from, size, ncclUint8, (job.rank + 1) % job.ranks, comm, stream));
    NC(ncclRecv(to, size, ncclUint8, (job.rank + job.ranks - 1) % job.ranks, comm, stream));
    NC(ncclGroupEnd());
    CU(cudaStreamSynchronize(stream));
}

static void iteration(size_t size, int iter, struct result *result)
{
    double start, got, ready, done, checked;
    void *from, *to;

    start = job_now();
    CU(cudaMalloc(&from, size));
    CU(cudaMalloc(&to, size));
    got = job_now();
    for (size_t i = 0; i < size / sizeof(*host); i++)
        host[i] = word(key_of(job.rank, size, iter), i);
    CU(cudaMemcpyAsync(from, host, size, cudaMemcpyHostToDevice, stream));
    CU(cudaMemsetAsync(to, 0xee, size, stream)); /* what does not come is wrong */
    CU(cudaStreamSynchronize(stream));
    ready = job_now();
    exchange(from, to, size);
    done = job_now();
    CU(cudaMemcpy(host, to, size, cudaMemcpyDeviceToHost));
    check(size, iter, result);
    checked = job_now();
    CU(cudaFree(from));
    CU(cudaFree(to));
    if (iter > 0) {
        result->allocation += got - start + job_now() - checked;
        result->exchange += done - ready;
    }
}

/* All ranks' figures together: the sum of counts, the longest times. */
static void result_reduce(struct result *result)
{
    uint64_t counts[2] = {result->wrong, result->digest};
    double times[2] = {result->allocation, result->exchange};
    char *device;

    CU(cudaMalloc((void **)&device, sizeof(counts) + sizeof(times)));
    CU(cudaMemcpy(device, counts, sizeof(counts), cudaMemcpyHostToDevice));
    CU(cudaMemcpy(device + sizeof(counts), times, sizeof(times), cudaMemcpyHostToDevice));
    NC(ncclAllReduce(device, device, 2, ncclUint64, ncclSum, comm, stream));
    NC(ncclAllReduce(device + sizeof(counts), device + sizeof(counts), 2, ncclFloat64, ncclMax, comm, stream));
    CU(cudaStreamSynchronize(stream));
    CU(cudaMemcpy(counts, device, sizeof(counts), cudaMemcpyDeviceToHost));
    CU(cudaMemcpy(times, device + sizeof(counts), sizeof(times), cudaMemcpyDeviceToHost));
    CU(cudaFree(device));
    *result = (struct result){counts[0], counts[1], times[0], times[1]};
}

static struct result size_run(size_t size)
{
    struct result result = {0, 0, 0, 0};

    for (int iter = 0; iter <= opt.iters; iter++)
        iteration(size, iter, &result);
    result_reduce(&result);
    if (job.rank == 0)
        printf("%12zu %18.1f %14.1f %9.3f %6llu\n", size, result.allocation * 1e6 / opt.iters,
               result.exchange * 1e6 / opt.iters, (double)size * opt.iters / result.exchange / 1e9,
               (unsigned long long)result.wrong);
    return result;
}

static int options_parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return -1;
        if (strcmp(argv[i], "--iters") == 0)
            opt.iters = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--min") == 0)
            opt.min = strtoull(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--max") == 0)
            opt.max = strtoull(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--id") == 0)
            opt.id = argv[i + 1];
        else
            return -1;
    }
    return opt.iters < 1 || opt.min < 8 || opt.min % 8 || opt.max < opt.min || opt.max > (size_t)1 << 40 ? -1 : 0;
}

static void begin(void)
{
    int devices, version;

    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(job.local % devices));
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU(cudaMallocHost((void **)&host, opt.max));
    comm = job_comm(opt.id);
    NC(ncclGetVersion(&version));
    if (job.rank == 0)
        printf("ring: %d ranks, %d iterations of each size, NCCL %d.%d.%d\n%12s %18s %14s %9s %6s\n", job.ranks,
               opt.iters, version / 10000, version / 100 % 100, version % 100, "bytes", "malloc+free us", "exchange us",
               "GB/s", "wrong");
}

int main(int argc, char **argv)
{
    uint64_t wrong = 0, digest = 0;

    job_init(&argc, &argv);
    if (options_parse(argc, argv)) {
        fprintf(stderr, "usage: ring [--iters N] [--min BYTES] [--max BYTES] [--id FILE]\n");
        return 2;
    }
    begin();
    for (size_t size = opt.min; size <= opt.max; size *= 4) {
        struct result result = size_run(size);

        wrong += result.wrong;
        digest = job_mix(digest + result.digest);
    }
    if (job.rank == 0)
        printf("ring: %llu wrong, digest %016llx\n", (unsigned long long)wrong, (unsigned long long)digest);
    NC(ncclCommDestroy(comm));
    CU(cudaFreeHost(host));
    CU(cudaStreamDestroy(stream));
    job_fini();
    return wrong != 0;
}
