/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decoder.c - trains a small decoder, each of whose operations allocates its output with cudaMalloc and frees it with
 * cudaFree.
 *
 * Usage: decoder [OPTION N]...                        one GPU
 *        decoder --gpus 1,2,4                         a thread for each GPU; one world after the other
 *        mpirun -n 4 decoder                          a process for each
 *        torchrun --no-python --nproc-per-node 4 decoder     likewise (or RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
 *                                                     MASTER_PORT set by hand, or --id FILE where they meet)
 *
 * Build: nvcc -O3 -arch=native -o decoder kernels.cu decoder.c model.c blocks.c ops.c data.c -I.. -lnccl -lpthread
 *        with MPI: the same with -DHAVE_MPI and MPI's paths and libraries.
 *        For simulated GPUs: gcc -O2 with kernels_host.c in place of kernels.cu, -lcudart -lm -ldl.
 *
 * Here: the training loop that cupool began with. Each step prints the mean loss of all ranks, as a number to
 * compare bit for bit. The table at the end has tokens per second by world size, and how much of a step the host spent
 * in cudaMalloc and cudaFree. The digest is one of all parameters.
 *
 * Not here: fast natively. cudaMalloc and cudaFree wait for each other in all threads of a process. That is what
 * it is to show.
 *
 * Threads: one for each GPU, which share nothing but the options.
 */
#include "../job.h" /* before nccl.h: without the communicators of programs with one thread */

#include "decoder.h"

#include <pthread.h>

#define WORLDS_MAX 16
#define RANKS_MAX  64
#define UNTIMED    2 /* first steps, in which pools fill and NCCL connects */

static struct {
    struct sizes s;
    int steps, worlds, world[WORLDS_MAX];
    float rate;
    const char *id;
} opt = {.s = {.layers = 12, .width = 384, .heads = 6, .seq = 256, .batch = 8, .words = 8192},
         .steps = 10,
         .worlds = 1,
         .world = {1},
         .rate = 1e-3f};

/* A rank's training: what it is told, and what comes of it. */
struct training {
    struct rank r;
    int device, on_thread;
    ncclUniqueId id;
    pthread_t thread;
    double seconds; /* of the timed steps */
    uint64_t digest;
};

struct row {
    int ranks;
    double tokens, step, requests, waited; /* per second; ms; number; ms */
    uint64_t digest;
};

static struct row rows[WORLDS_MAX];

static void train_begin(struct training *t)
{
    CUDA(cudaSetDevice(t->device));
    CUDA(cudaStreamCreateWithFlags(&t->r.stream, cudaStreamNonBlocking));
    if (t->r.ranks > 1)
        NCCL(ncclCommInitRank(&t->r.comm, t->r.ranks, t->id, t->r.rank));
}

static void *train(void *arg)
{
    struct training *t = (struct training *)arg;
    int untimed = opt.steps > UNTIMED ? UNTIMED : 0;
    struct model model;
    double start = 0;

    train_begin(t);
    model_begin(&model, &t->r, &opt.s);
    for (int step = 0; step < opt.steps; step++) {
        float loss;

        if (step == untimed) {
            t->r.requests = 0;
            t->r.seconds = 0;
            start = decoder_now();
        }
        loss = model_step(&model, &t->r, step, opt.rate);
        if (t->r.rank == 0)
            printf("world %d step %d loss %a (%.4f)\n", t->r.ranks, step, (double)loss, (double)loss);
    }
    t->seconds = (decoder_now() - start) / (opt.steps - untimed);
    t->r.requests /= (unsigned long)(opt.steps - untimed);
    t->r.seconds /= opt.steps - untimed;
    t->digest = model_digest(&model, &t->r);
    model_end(&model, &t->r);
    if (t->r.comm)
        NCCL(ncclCommDestroy(t->r.comm));
    CUDA(cudaStreamDestroy(t->r.stream));
    return NULL;
}

/* Rank 0's figures; the others wait for it in each step. */
static struct row row_of(const struct training *t)
{
    return (struct row){t->r.ranks,         (double)opt.s.rows * t->r.ranks / t->seconds,
                        t->seconds * 1e3,   (double)t->r.requests,
                        t->r.seconds * 1e3, t->digest};
}

static void table_print(int n)
{
    printf("%5s %12s %7s %10s %9s %13s  %s\n", "GPUs", "tokens/s", "times", "ms a step", "requests", "ms in them",
           "digest");
    for (int i = 0; i < n; i++)
        printf("%5d %12.0f %7.2f %10.2f %9.0f %13.3f  %016llx\n", rows[i].ranks, rows[i].tokens,
               rows[i].tokens / rows[0].tokens, rows[i].step, rows[i].requests, rows[i].waited,
               (unsigned long long)rows[i].digest);
}

/* A thread for each GPU. */
static struct row world_run(int ranks, int devices)
{
    static struct training training[RANKS_MAX];
    ncclUniqueId id;

    if (ranks > 1)
        NCCL(ncclGetUniqueId(&id));
    for (int i = 0; i < ranks; i++) {
        struct training *t = &training[i];

        *t = (struct training){.r = {.rank = i, .ranks = ranks}, .device = i % devices};
        if (ranks > 1)
            t->id = id;
        if (pthread_create(&t->thread, NULL, train, t))
            decoder_fail(__FILE__, __LINE__, "pthread_create", "no thread");
    }
    for (int i = 0; i < ranks; i++)
        (void)pthread_join(training[i].thread, NULL);
    return row_of(&training[0]);
}

/* This process is one rank of job.ranks. */
static void process_run(int devices)
{
    struct training t = {.r = {.rank = job.rank, .ranks = job.ranks}, .device = job.local % devices};

    if (job.rank == 0)
        NCCL(ncclGetUniqueId(&t.id));
    job_share(&t.id, sizeof(t.id), opt.id);
    (void)train(&t);
    if (job.rank == 0 && opt.id && !job.mpi)
        (void)unlink(opt.id);
    rows[0] = row_of(&t);
    if (job.rank == 0)
        table_print(1);
}

static int worlds_parse(const char *list)
{
    opt.worlds = 0;
    while (opt.worlds < WORLDS_MAX) {
        char *end;
        long n = strtol(list, &end, 10);

        if (end == list || n < 1 || n > RANKS_MAX)
            return -1;
        opt.world[opt.worlds++] = (int)n;
        if (!*end)
            return 0;
        if (*end != ',')
            return -1;
        list = end + 1;
    }
    return -1;
}

static int option_parse(const char *name, const char *value)
{
    const struct {
        const char *name;
        int *to;
    } numbers[] = {{"--layers", &opt.s.layers}, {"--width", &opt.s.width}, {"--heads", &opt.s.heads},
                   {"--seq", &opt.s.seq},       {"--batch", &opt.s.batch}, {"--words", &opt.s.words},
                   {"--steps", &opt.steps}};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (strcmp(name, numbers[i].name) == 0) {
            *numbers[i].to = atoi(value);
            return *numbers[i].to < 1 ? -1 : 0;
        }
    if (strcmp(name, "--gpus") == 0)
        return worlds_parse(value);
    if (strcmp(name, "--id") == 0)
        opt.id = value;
    else if (strcmp(name, "--rate") == 0)
        opt.rate = strtof(value, NULL);
    else
        return -1;
    return 0;
}

static int options_parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || option_parse(argv[i], argv[i + 1]))
            return -1;
    /* A row of each head's scores is a block of the y or z direction, or a tile of it. */
    if (opt.s.width % opt.s.heads || opt.s.width > 65536 || opt.s.words > 1 << 24 || opt.s.seq > 65536 ||
        (long)opt.s.batch * opt.s.heads > 65535 || (long)opt.s.batch * opt.s.seq > 1 << 22)
        return -1;
    opt.s.rows = opt.s.batch * opt.s.seq;
    return 0;
}

/* The first step may take long, and every line has to be seen at once, also in a pipe. */
static void start_print(void)
{
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (job.rank == 0)
        printf("decoder: %d layers of width %d, %d steps of %d words on each GPU; a line for each step\n", opt.s.layers,
               opt.s.width, opt.steps, opt.s.rows);
}

int main(int argc, char **argv)
{
    int devices;

    job_init(&argc, &argv);
    if (options_parse(argc, argv)) {
        (void)fprintf(stderr,
                      "usage: decoder [--gpus N,...] [--layers N] [--width N] [--heads N] [--seq N] [--batch N] "
                      "[--words N] [--steps N] [--rate R] [--id FILE]\n");
        return 2;
    }
    CUDA(cudaGetDeviceCount(&devices));
    start_print();
    if (job.ranks > 1) {
        process_run(devices);
    } else {
        for (int i = 0; i < opt.worlds; i++)
            rows[i] = world_run(opt.world[i], devices);
        table_print(opt.worlds);
    }
    job_fini();
    return 0;
}
