/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registered.c - what a program with NCCL pays for registration, and whether it leaves anything behind. One process
 * with a rank for each device.
 *
 *   registered churn [--devices N] [--times N]     make, use and destroy communicators; what is free in between
 *   registered many [--devices N] [--segments N] [--comms N] [--ops N] [--by-hand 1]
 *                                                  an all_reduce of 1 KiB among many segments: what a call that only
 *                                                  joins its group costs the host, what the whole operation does, and
 *                                                  how long it takes; by hand: the program itself takes the memory from
 *                                                  ncclMemAlloc and registers it
 *
 * The program does not know cupool, and tests nothing: tests/gpu/nccl runs it natively and preloaded and prints both.
 */
#include <cuda_runtime.h>
#include <nccl.h>

#include "../program.h"

#define DEVICES_MAX 16
#define COMMS_MAX   64
#define COUNT       256 /* floats of one operation */
#define SEGMENT     ((size_t)2 << 20)
#define BATCH       64 /* operations before somebody waits */

#define CU(call) OK(call)
#define NC(call) OK(call)

static struct {
    const char *what;
    int devices, times, comms, by_hand;
    long segments, ops;
} opt = {.what = "", .times = 100, .comms = 8, .segments = 1000, .ops = 20000};

static cudaStream_t streams[DEVICES_MAX];
static ncclComm_t comms[COMMS_MAX][DEVICES_MAX];

static void wait_all(void)
{
    for (int d = 0; d < opt.devices; d++)
        CU(cudaStreamSynchronize(streams[d]));
}

/* Returns the nanoseconds of the calls that only join the group: there a hook is not lost beside a launch. */
static double all_reduce(ncclComm_t *comm, float **buffers)
{
    double start, joined;

    NC(ncclGroupStart());
    start = now_us() * 1e3;
    for (int d = 0; d < opt.devices; d++)
        NC(ncclAllReduce(buffers[d], buffers[d], COUNT, ncclFloat, ncclSum, comm[d], streams[d]));
    joined = now_us() * 1e3 - start;
    NC(ncclGroupEnd());
    return joined;
}

static float *buffer_new(int device, size_t size)
{
    float *p = NULL;

    CU(cudaSetDevice(device));
    if (opt.by_hand)
        NC(ncclMemAlloc((void **)&p, size));
    else
        CU(cudaMalloc((void **)&p, size));
    CU(cudaMemset(p, 0, size));
    return p;
}

static void comms_make(ncclComm_t *made)
{
    NC(ncclCommInitAll(made, opt.devices, NULL));
}

static void comms_end(ncclComm_t *ended)
{
    NC(ncclGroupStart());
    for (int d = 0; d < opt.devices; d++)
        NC(ncclCommFinalize(ended[d]));
    NC(ncclGroupEnd());
    for (int d = 0; d < opt.devices; d++)
        NC(ncclCommDestroy(ended[d]));
}

static void churn(void)
{
    size_t free[DEVICES_MAX] = {0}, first[DEVICES_MAX] = {0}, total;
    float *buffers[DEVICES_MAX];

    for (int i = 1; i <= opt.times; i++) {
        comms_make(comms[0]);
        for (int d = 0; d < opt.devices; d++)
            buffers[d] = buffer_new(d, 32 * SEGMENT);
        for (int k = 0; k < 4; k++)
            all_reduce(comms[0], buffers);
        wait_all();
        for (int d = 0; d < opt.devices; d++) {
            CU(cudaSetDevice(d));
            CU(cudaFree(buffers[d]));
        }
        comms_end(comms[0]);
        for (int d = 0; d < opt.devices; d++) {
            CU(cudaSetDevice(d));
            CU(cudaMemGetInfo(&free[d], &total));
            if (i == 2) /* what the first one leaves behind stays */
                first[d] = free[d];
        }
    }
    for (int d = 0; d < opt.devices; d++)
        printf("churn: device %d: %d communicators, %.1f MiB less free after the last than after the second\n", d,
               opt.times, ((double)first[d] - (double)free[d]) / 1048576);
}

static void many(void)
{
    float **buffers = calloc((size_t)opt.segments * DEVICES_MAX, sizeof(*buffers));
    double start, host = 0, joins = 0, whole;
    void **handles = calloc((size_t)opt.segments * COMMS_MAX * DEVICES_MAX, sizeof(*handles)), **handle = handles;

    if (!buffers || !handles)
        FAIL("no memory");
    for (int c = 0; c < opt.comms; c++)
        comms_make(comms[c]);
    for (long s = 0; s < opt.segments; s++)
        for (int d = 0; d < opt.devices; d++)
            buffers[s * DEVICES_MAX + d] = buffer_new(d, SEGMENT);
    for (int c = 0; opt.by_hand && c < opt.comms; c++)
        for (long s = 0; s < opt.segments; s++)
            for (int d = 0; d < opt.devices; d++)
                NC(ncclCommRegister(comms[c][d], buffers[s * DEVICES_MAX + d], SEGMENT, handle++));
    /* The first use of each pays for what is not measured here. */
    for (int c = 0; c < opt.comms; c++)
        for (long s = 0; s < opt.segments; s++) {
            all_reduce(comms[c], &buffers[s * DEVICES_MAX]);
            if (s % BATCH == BATCH - 1)
                wait_all();
        }
    wait_all();
    for (long i = 0; i < opt.ops; i++) {
        start = now_us() * 1e3;
        joins += all_reduce(comms[i / BATCH % opt.comms], &buffers[i * 7 % opt.segments * DEVICES_MAX]);
        host += now_us() * 1e3 - start;
        if (i % BATCH == BATCH - 1)
            wait_all();
    }
    wait_all();
    start = now_us() * 1e3;
    for (long i = 0; i < opt.ops / 10; i++) {
        all_reduce(comms[i / BATCH % opt.comms], &buffers[i * 7 % opt.segments * DEVICES_MAX]);
        wait_all();
    }
    whole = now_us() * 1e3 - start;
    printf(
        "many: %ld segments, %d communicators, %d devices: %.0f ns of the host for the call, %.0f ns for an operation, "
        "%.2f us until it has ended\n",
        opt.segments, opt.comms, opt.devices, joins / (double)(opt.ops * opt.devices),
        host / (double)(opt.ops * opt.devices), whole / 1e3 / (double)(opt.ops / 10));
    handle = handles;
    for (int c = 0; opt.by_hand && c < opt.comms; c++)
        for (long i = 0; i < opt.segments * opt.devices; i++, handle++)
            NC(ncclCommDeregister(comms[c][i % opt.devices], *handle));
    for (int c = 0; c < opt.comms; c++)
        comms_end(comms[c]);
    free(handles);
    free(buffers);
}

static int options_parse(int argc, char **argv)
{
    if (argc < 2)
        return -1;
    opt.what = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        const long n = strtol(argv[i + 1], NULL, 0);

        if (strcmp(argv[i], "--devices") == 0)
            opt.devices = (int)n;
        else if (strcmp(argv[i], "--times") == 0)
            opt.times = (int)n;
        else if (strcmp(argv[i], "--segments") == 0)
            opt.segments = n;
        else if (strcmp(argv[i], "--comms") == 0)
            opt.comms = (int)n;
        else if (strcmp(argv[i], "--ops") == 0)
            opt.ops = n;
        else if (strcmp(argv[i], "--by-hand") == 0)
            opt.by_hand = (int)n;
        else
            return -1;
    }
    return argc % 2 || opt.comms < 1 || opt.comms > COMMS_MAX || opt.segments < 1 || opt.ops < 10 || opt.times < 2 ? -1
                                                                                                                   : 0;
}

int main(int argc, char **argv)
{
    int there;

    if (options_parse(argc, argv)) {
        fprintf(stderr, "usage: registered churn|many [options], see the source\n");
        return 2;
    }
    CU(cudaGetDeviceCount(&there));
    if (opt.devices < 1 || opt.devices > there)
        opt.devices = there;
    if (opt.devices > DEVICES_MAX)
        opt.devices = DEVICES_MAX;
    for (int d = 0; d < opt.devices; d++) {
        CU(cudaSetDevice(d));
        CU(cudaStreamCreateWithFlags(&streams[d], cudaStreamNonBlocking));
    }
    if (strcmp(opt.what, "churn") == 0)
        churn();
    else
        many();
    return 0;
}
