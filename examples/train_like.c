/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_like.c - a program shaped like training.
 *
 * Usage: mpirun -n 2 train_like [--steps N] [--layers L] [--width BYTES] [--temps T] [--delay-us U]
 *
 * Here: each rank has a model of L layers on its GPU. Each step allocates activations and workspaces with
 * cudaMalloc going forward, frees them with cudaFree going backward, and has streams of its own working on them
 * meanwhile; ranks add up their gradients over MPI. Prints one JSON line per rank with a digest of all parameters, the
 * time of a step and the number of calls of cudaMalloc and cudaFree. The digest depends on every byte that was ever
 * copied, so it is the same bit for bit in every right run. It is the kind of program that a careless pool breaks: each
 * buffer is freed right after its use on a slow stream was enqueued, and a buffer of the same size is allocated and
 * overwritten on another stream at once. Natively that is right, because cudaFree waits for the GPU.
 *
 * Not here: arithmetic on the GPU. There are no kernels, so that the same binary runs on the simulated GPU. Host
 * functions in the streams update small pinned states that are copied into the buffers. Built without MPI it takes its
 * rank from the environment and adds up nothing.
 */
#include <cuda_runtime_api.h>

#include "job.h"

#define STATE      256u /* bytes of pinned state of a layer and direction */
#define LAYERS_MAX 256

static struct {
    int steps, layers, temps, delay_us;
    size_t width;
} opt = {.steps = 20, .layers = 12, .temps = 8, .delay_us = 150, .width = 256 << 10};

static unsigned long calls; /* of cudaMalloc and cudaFree */

/* A host function's work: what to make of which pinned words. */
struct task {
    uint64_t *state;
    uint64_t key;
};

struct layer {
    size_t n;          /* bytes of its activation */
    char *param, *act; /* on the device; act lives from forward to backward */
    char *side;        /* what the slow stream saved of workspace, activation and gradient: 3 x n */
    uint64_t *state[2];
    struct task task[2];
};

static struct layer layers[LAYERS_MAX];
static cudaStream_t compute, slow;
static cudaEvent_t ready;

static void *device_get(size_t n)
{
    void *p;

    calls++;
    CU(cudaMalloc(&p, n));
    return p;
}

static void device_put(void *p)
{
    calls++;
    CU(cudaFree(p));
}

/* In the compute stream: one step of a generator over a layer's state. */
static void CUDART_CB task_fn(void *arg)
{
    const struct task *t = (const struct task *)arg;

    for (unsigned i = 0; i < STATE / 8; i++)
        t->state[i] = job_mix(t->state[i] + t->key + i);
}

/* In the slow stream: a kernel that takes its time. */
static void CUDART_CB delay_fn(void *arg)
{
    struct timespec t = {0, (long)(intptr_t)arg * 1000};

    (void)nanosleep(&t, NULL);
}

/* The slow stream saves a buffer once the compute stream has made it; in one layer of four it takes its time before. */
static void side_save(int k, char *side, const char *p, size_t n)
{
    CU(cudaEventRecord(ready, compute));
    CU(cudaStreamWaitEvent(slow, ready, 0));
    if (k % 4 == 0)
        CU(cudaLaunchHostFunc(slow, delay_fn, (void *)(intptr_t)opt.delay_us));
    CU(cudaMemcpyAsync(side, p, n, cudaMemcpyDeviceToDevice, slow));
}

/* 'Compute' into p on the compute stream: from src, with a fresh state written over its ends. */
static void compute_into(struct layer *l, int way, uint64_t key, char *p, const char *src)
{
    l->task[way].key = key;
    CU(cudaMemcpyAsync(p, src, l->n, cudaMemcpyDeviceToDevice, compute));
    CU(cudaLaunchHostFunc(compute, task_fn, &l->task[way]));
    CU(cudaMemcpyAsync(p, l->state[way], STATE, cudaMemcpyHostToDevice, compute));
    CU(cudaMemcpyAsync(p + l->n - STATE, l->state[way], STATE, cudaMemcpyHostToDevice, compute));
}

/* Real layers have many buffers that live for one operation. The first has the size of what was just freed.
 */
static void temporaries(int step, int k)
{
    for (int i = 0; i < opt.temps; i++) {
        size_t n = layers[k].n >> (i % 4);
        void *p = device_get(n);

        CU(cudaMemsetAsync(p, ~(step + k + i), n, compute));
        device_put(p);
    }
}

static void forward(int step, int k)
{
    struct layer *l = &layers[k];
    char *workspace = (char *)device_get(l->n);

    CU(cudaMemsetAsync(workspace, step * 31 + k * 7 + job.rank, l->n, compute));
    l->act = (char *)device_get(l->n);
    compute_into(l, 0, (uint64_t)step, l->act, l->param);
    CU(cudaMemcpyAsync(workspace, l->act, l->n / 2, cudaMemcpyDeviceToDevice, compute));
    side_save(k, l->side, workspace, l->n);
    device_put(workspace); /* the slow stream has yet to read it */
    temporaries(step, k);
}

static void backward(int step, int k)
{
    struct layer *l = &layers[k];
    char *grad = (char *)device_get(l->n);

    compute_into(l, 1, (uint64_t)step << 8, grad, l->act);
    side_save(k, l->side + l->n, l->act, l->n);
    device_put(l->act);
    side_save(k, l->side + 2 * l->n, grad, l->n);
    device_put(grad);
    temporaries(step, k);
}

/* Ranks exchange this of a layer: a sum over everything that the slow stream saved. */
static uint64_t gradient_of(struct layer *l, uint64_t *host)
{
    uint64_t sum = 0;

    CU(cudaMemcpy(host, l->side, 3 * l->n, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < 3 * l->n / 8; i++)
        sum += job_mix(host[i] ^ i); /* each on its own: the processor can do several at a time */
    return sum;
}

static void gradients_add(uint64_t *grad)
{
#ifdef HAVE_MPI
    if (job.mpi)
        MPI_Allreduce(MPI_IN_PLACE, grad, opt.layers, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
#else
    (void)grad;
#endif
}

/* The optimizer: the sum moves every layer's parameters. */
static void update(struct layer *l, uint64_t grad, uint64_t *host)
{
    CU(cudaMemcpy(host, l->param, l->n, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < l->n / 8; i++)
        host[i] = job_mix(host[i] + grad + i);
    CU(cudaMemcpy(l->param, host, l->n, cudaMemcpyHostToDevice));
}

static void step_run(int step, uint64_t *host)
{
    uint64_t grad[LAYERS_MAX];

    for (int k = 0; k < opt.layers; k++)
        forward(step, k);
    for (int k = opt.layers - 1; k >= 0; k--)
        backward(step, k);
    CU(cudaStreamSynchronize(slow));
    CU(cudaStreamSynchronize(compute));
    for (int k = 0; k < opt.layers; k++)
        grad[k] = gradient_of(&layers[k], host);
    gradients_add(grad);
    for (int k = 0; k < opt.layers; k++)
        update(&layers[k], grad[k], host);
}

static void model_init(uint64_t *host)
{
    for (int k = 0; k < opt.layers; k++) {
        struct layer *l = &layers[k];

        l->n = opt.width << (k % 3);
        l->param = (char *)device_get(l->n);
        l->side = (char *)device_get(3 * l->n);
        for (int way = 0; way < 2; way++) {
            CU(cudaMallocHost((void **)&l->state[way], STATE));
            for (unsigned i = 0; i < STATE / 8; i++)
                l->state[way][i] = job_mix((uint64_t)(k * 2 + way) << 32 | i);
            l->task[way].state = l->state[way];
        }
        for (size_t i = 0; i < l->n / 8; i++)
            host[i] = job_mix((uint64_t)k << 40 | i);
        CU(cudaMemcpy(l->param, host, l->n, cudaMemcpyHostToDevice));
    }
}

static uint64_t model_fini(uint64_t *host)
{
    uint64_t digest = 0xcbf29ce484222325u;

    for (int k = 0; k < opt.layers; k++) {
        struct layer *l = &layers[k];

        CU(cudaMemcpy(host, l->param, l->n, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < l->n / 8; i++)
            digest = (digest ^ host[i]) * 0x100000001b3u;
        device_put(l->param);
        device_put(l->side);
        CU(cudaFreeHost(l->state[0]));
        CU(cudaFreeHost(l->state[1]));
    }
    return digest;
}

static int options_parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return -1;
        if (strcmp(argv[i], "--steps") == 0)
            opt.steps = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--layers") == 0)
            opt.layers = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--width") == 0)
            opt.width = strtoull(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--temps") == 0)
            opt.temps = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--delay-us") == 0)
            opt.delay_us = atoi(argv[i + 1]);
        else
            return -1;
    }
    opt.width &= ~(size_t)7;
    return opt.steps < 1 || opt.layers < 1 || opt.layers > LAYERS_MAX || opt.width < 2 * STATE || opt.delay_us < 0 ||
                   opt.delay_us > 999999
               ? -1
               : 0;
}

/* One write, so that lines of several ranks do not mix. */
static void result_print(uint64_t digest, double seconds)
{
    char line[512];
    int n = snprintf(
        line, sizeof(line),
        "{\"train_like\":1,\"rank\":%d,\"ranks\":%d,\"steps\":%d,\"layers\":%d,\"width\":%zu,\"digest\":\"%016llx\","
        "\"step_ms\":%.3f,\"calls\":%lu}\n",
        job.rank, job.ranks, opt.steps, opt.layers, opt.width, (unsigned long long)digest, seconds * 1e3 / opt.steps,
        calls);

    fwrite(line, 1, (size_t)n, stdout);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    uint64_t *host, digest;
    double start, seconds;
    int devices = 0;

    job_init(&argc, &argv);
    if (options_parse(argc, argv)) {
        fprintf(stderr, "usage: train_like [--steps N] [--layers L] [--width BYTES] [--temps T] [--delay-us U]\n");
        return 2;
    }
    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(job.rank % devices));
    CU(cudaMallocHost((void **)&host, opt.width * 12));
    CU(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&slow, cudaStreamNonBlocking));
    CU(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    model_init(host);
    start = job_now();
    for (int step = 0; step < opt.steps; step++)
        step_run(step, host);
    seconds = job_now() - start;
    digest = model_fini(host);
    CU(cudaEventDestroy(ready));
    CU(cudaStreamDestroy(slow));
    CU(cudaStreamDestroy(compute));
    CU(cudaFreeHost(host));
    result_print(digest, seconds);
    job_fini();
    return 0;
}
