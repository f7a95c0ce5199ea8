/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pipeline.c - a model whose layers are spread over ranks, trained as Megatron does: one forward, one backward.
 *
 * Usage: mpirun -n 4 pipeline [--steps N] [--micros M] [--width BYTES]
 *        torchrun --no-python --nproc-per-node 4 pipeline ...          (or RANK, WORLD_SIZE, LOCAL_RANK set by hand)
 *
 * Build: mpicc -O2 -DHAVE_MPI pipeline.c -o pipeline -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -lnccl
 *        or without MPI: gcc -O2 pipeline.c -o pipeline with the same paths and libraries.
 *
 * Here: each rank is a stage. A step has M micro-batches; for each a stage takes a receive buffer with
 * cudaMalloc, receives from the stage before, computes, sends to the stage after, and the gradients go back the same
 * way. NCCL works on a stream of its own beside the computing one, and what was sent is freed as soon as the send was
 * enqueued: natively that is right, because cudaFree waits for the GPU; a careless pool hands such a buffer to the next
 * receive, which overwrites it. A step ends with an all_reduce of all gradients. Their digest, which depends on nearly
 * every byte that went through a buffer and goes into the next step's parameters, is the same in every right run with
 * the same number of ranks and options. Rank 0 prints it, and the time of a step of the slowest rank.
 *
 * Not here: arithmetic. Layers are copies on the device, so that the same binary runs on the simulated GPU.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "job.h"

#define NOBODY (-1)
#define SHIFT  1024u /* how far a layer moves its input, in bytes */

static struct {
    int steps, micros;
    size_t width;
    const char *id;
} opt = {.steps = 10, .micros = 8, .width = 1 << 20};

static ncclComm_t comm;
static cudaStream_t compute, network;
static cudaEvent_t ready;
static int before, after;   /* neighbours, or NOBODY */
static char *param;         /* of this stage, opt.width bytes */
static char *gradients;     /* opt.width bytes of each micro-batch */
static char **inputs;       /* of the micro-batches whose backward is to come */
static uint64_t *host;      /* room for all gradients */
static uint64_t bytes_sent; /* to neighbours */
static unsigned long requests;

static void *device_get(size_t size)
{
    void *p;

    requests++;
    CU(cudaMalloc(&p, size));
    return p;
}

static void device_put(void *p)
{
    requests++;
    CU(cudaFree(p));
}

/* Later work of one stream waits for what the other has so far. */
static void stream_wait(cudaStream_t waits, cudaStream_t other)
{
    CU(cudaEventRecord(ready, other));
    CU(cudaStreamWaitEvent(waits, ready, 0));
}

/*
 * A layer: the input moved by SHIFT, with parameters where it left room, in the first half; in the second half what
 * saved has there, if there is something. By way of a workspace that is freed while the stream has yet to use it.
 */
static char *layer(const char *in, const char *saved, size_t param_at)
{
    size_t half = opt.width / 2;
    char *workspace = (char *)device_get(opt.width), *out;

    CU(cudaMemcpyAsync(workspace, in + SHIFT, opt.width - SHIFT, cudaMemcpyDeviceToDevice, compute));
    CU(cudaMemcpyAsync(workspace + opt.width - SHIFT, param + param_at, SHIFT, cudaMemcpyDeviceToDevice, compute));
    out = (char *)device_get(opt.width);
    CU(cudaMemcpyAsync(out, workspace, opt.width, cudaMemcpyDeviceToDevice, compute));
    if (saved)
        CU(cudaMemcpyAsync(out + half, saved + half, half, cudaMemcpyDeviceToDevice, compute));
    device_put(workspace);
    return out;
}

static char *forward(int micro, char *in)
{
    inputs[micro] = in;
    return layer(in, NULL, (size_t)micro * SHIFT % (opt.width - SHIFT));
}

/* From the gradient of its output to that of its input. */
static char *backward(int micro, char *grad)
{
    char *out = layer(grad, inputs[micro], (size_t)(micro + 1) * SHIFT % (opt.width - SHIFT));

    CU(cudaMemcpyAsync(gradients + (size_t)micro * opt.width, grad, opt.width, cudaMemcpyDeviceToDevice, compute));
    device_put(grad);
    device_put(inputs[micro]);
    return out;
}

/* The first stage's input. */
static char *data_load(void)
{
    char *in = (char *)device_get(opt.width);

    CU(cudaMemcpyAsync(in, param, opt.width, cudaMemcpyDeviceToDevice, compute));
    return in;
}

/* In one group, send out to a neighbour and receive from one. What was sent is freed, what came is in a buffer of its
 * own. */
static void exchange(char *out, int to, char **ret_in, int from)
{
    if (out)
        stream_wait(network, compute);
    if (ret_in)
        *ret_in = (char *)device_get(opt.width);
    NC(ncclGroupStart());
    if (out && to != NOBODY) {
        NC(ncclSend(out, opt.width, ncclUint8, to, comm, network));
        bytes_sent += opt.width;
    }
    if (ret_in)
        NC(ncclRecv(*ret_in, opt.width, ncclUint8, from, comm, network));
    NC(ncclGroupEnd());
    if (ret_in)
        stream_wait(compute, network);
    if (out)
        device_put(out);
}

/* Gradients go to the stage before, from which the next input comes. */
static char *backward_done(char *grad, int more)
{
    char *in = NULL;

    exchange(grad, before, more && before != NOBODY ? &in : NULL, before);
    return more && before == NOBODY ? data_load() : in;
}

static char *first_input(void)
{
    return backward_done(NULL, 1);
}

/* The last stage's output is its loss, from which gradients begin. */
static char *forward_done(char *out)
{
    char *grad;

    if (after == NOBODY)
        return out;
    exchange(out, after, &grad, after);
    return grad;
}

/* The schedule: as many forwards as there are stages behind, then one forward and one backward, then the backwards
 * left. */
static void micros_run(void)
{
    int ahead = job.ranks - 1 - job.rank < opt.micros ? job.ranks - 1 - job.rank : opt.micros;
    char *in, *grad;

    for (int i = 0; i < ahead; i++)
        exchange(forward(i, first_input()), after, NULL, NOBODY);
    in = ahead < opt.micros ? first_input() : NULL;
    for (int i = ahead; i < opt.micros; i++) {
        grad = forward_done(forward(i, in));
        in = backward_done(backward(i - ahead, grad), i + 1 < opt.micros);
    }
    for (int i = opt.micros - ahead; i < opt.micros; i++) {
        exchange(NULL, NOBODY, &grad, after);
        backward_done(backward(i, grad), 0);
    }
}

/* A generator's numbers. Stages differ. */
static void param_make(uint64_t digest)
{
    for (size_t i = 0; i < opt.width / sizeof(*host); i++)
        host[i] = job_mix(digest + ((uint64_t)job.rank << 56) + i);
    CU(cudaMemcpy(param, host, opt.width, cudaMemcpyHostToDevice));
}

/* A step, and the optimizer. Returns the digest of all gradients. */
static uint64_t step_run(uint64_t digest)
{
    size_t size = (size_t)opt.micros * opt.width;

    param_make(digest);
    micros_run();
    stream_wait(network, compute);
    NC(ncclAllReduce(gradients, gradients, size / sizeof(*host), ncclUint64, ncclSum, comm, network));
    CU(cudaStreamSynchronize(network));
    CU(cudaMemcpy(host, gradients, size, cudaMemcpyDeviceToHost));
    digest = 0;
    for (size_t i = 0; i < size / sizeof(*host); i++)
        digest += job_mix(host[i] ^ i); /* each on its own: the processor can do several at a time */
    return digest;
}

/* Of all ranks, by op: what `value` is. */
static uint64_t reduce(uint64_t value, ncclRedOp_t op)
{
    uint64_t *device = (uint64_t *)device_get(sizeof(value));

    CU(cudaMemcpy(device, &value, sizeof(value), cudaMemcpyHostToDevice));
    NC(ncclAllReduce(device, device, 1, ncclUint64, op, comm, network));
    CU(cudaStreamSynchronize(network));
    CU(cudaMemcpy(&value, device, sizeof(value), cudaMemcpyDeviceToHost));
    device_put(device);
    return value;
}

static int options_parse(int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc)
            return -1;
        if (strcmp(argv[i], "--steps") == 0)
            opt.steps = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--micros") == 0)
            opt.micros = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--width") == 0)
            opt.width = strtoull(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--id") == 0)
            opt.id = argv[i + 1];
        else
            return -1;
    }
    return opt.steps < 1 || opt.micros < 1 || opt.micros > 4096 || opt.width < 4 * SHIFT || opt.width % 16 ||
                   opt.width > (size_t)1 << 34
               ? -1
               : 0;
}

static void begin(void)
{
    int devices;

    CU(cudaGetDeviceCount(&devices));
    CU(cudaSetDevice(job.local % devices));
    CU(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&network, cudaStreamNonBlocking));
    CU(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CU(cudaMallocHost((void **)&host, (size_t)opt.micros * opt.width));
    inputs = (char **)calloc((size_t)opt.micros, sizeof(*inputs));
    if (!inputs)
        job_fail(__FILE__, __LINE__, "calloc", strerror(errno));
    comm = job_comm(opt.id);
    before = job.rank > 0 ? job.rank - 1 : NOBODY;
    after = job.rank + 1 < job.ranks ? job.rank + 1 : NOBODY;
    param = (char *)device_get(opt.width);
    gradients = (char *)device_get((size_t)opt.micros * opt.width);
}

static void end(void)
{
    device_put(gradients);
    device_put(param);
    free(inputs);
    NC(ncclCommDestroy(comm));
    CU(cudaFreeHost(host));
    CU(cudaEventDestroy(ready));
    CU(cudaStreamDestroy(network));
    CU(cudaStreamDestroy(compute));
    job_fini();
}

/* By rank 0, of all ranks: the slowest one's time, what all have sent. Do they agree? */
static int result_print(uint64_t digest, double seconds)
{
    double step = (double)reduce((uint64_t)(seconds * 1e9), ncclMax) / 1e9 / opt.steps;
    double sent = (double)reduce(bytes_sent, ncclSum) / opt.steps;
    unsigned long per_step = requests / (unsigned long)opt.steps;
    int agree = reduce(digest, ncclMin) == reduce(digest, ncclMax);

    if (job.rank == 0) {
        printf("pipeline: %d stages, %d steps of %d micro-batches of %zu bytes\n", job.ranks, opt.steps, opt.micros,
               opt.width);
        printf("pipeline: %.3f ms a step, %.3f GB/s between all stages, %lu requests a step of rank 0\n", step * 1e3,
               sent / step / 1e9, per_step);
        printf("pipeline: %s, digest %016llx\n", agree ? "all ranks agree" : "RANKS DISAGREE",
               (unsigned long long)digest);
    }
    return agree;
}

int main(int argc, char **argv)
{
    uint64_t digest = 0;
    double start;
    int agree;

    job_init(&argc, &argv);
    if (options_parse(argc, argv)) {
        fprintf(stderr, "usage: pipeline [--steps N] [--micros M] [--width BYTES] [--id FILE]\n");
        return 2;
    }
    begin();
    digest = step_run(digest); /* NCCL connects, pools fill: not timed */
    requests = bytes_sent = 0;
    start = job_now();
    for (int i = 0; i < opt.steps; i++)
        digest = step_run(digest);
    agree = result_print(digest, job_now() - start);
    end();
    return !agree;
}
