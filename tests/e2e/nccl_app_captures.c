/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app_captures.c - scenarios of nccl_app: operations in graphs, and memory and communicators that go beside
 * captures.
 *
 * Memory past the pool is in nccl_app_past.c. See nccl_app.h.
 */
#include "nccl_app.h"

/* A graph that is launched again and again, and memory that has to stay for it although the program has freed it. */
SCENARIO(graph)
{
    char *at = get(8 * MIB), *large;
    cudaGraphExec_t exec;
    cudaGraph_t made;

    comm_make(r, 0);
    all_gather(r, at, at + MIB); /* connects */
    CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    CU(cudaStreamEndCapture(r->stream, &made));
    CU(cudaGraphInstantiate(&exec, made, 0));
    for (int i = 0; i < 3; i++) {
        fill(at, r->rank, COUNT);
        CU(cudaGraphLaunch(exec, r->stream));
        for (int j = 0; j < ranks; j++)
            expect(r, at + MIB + (size_t)j * BYTES, j, "all_gather of a graph");
    }
    CU(cudaFree(at));
    large = get(60 * MIB); /* asks for all that can go back; the device has 72 MiB */
    all_gather(r, large, large + MIB);
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(made));
    comm_end(r);
    CU(cudaFree(large));
    large = get(64 * MIB);
    CU(cudaFree(large));
}

/* As graph, but more memory is needed than is left while the graph is there. The device has 96 MiB. */
SCENARIO(graph_trim)
{
    char *at = get(8 * MIB);
    cudaGraphExec_t exec;
    cudaGraph_t made;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    CU(cudaStreamEndCapture(r->stream, &made));
    CU(cudaGraphInstantiate(&exec, made, 0));
    CU(cudaGraphLaunch(exec, r->stream));
    CU(cudaStreamSynchronize(r->stream));
    CU(cudaFree(at));
    /* Two at a time, each less than the pool has to give back, so that the first one above goes, too. */
    for (int i = 0; i < 3; i++) {
        char *other = get((30 + (size_t)i * 5) * MIB);

        at = get((30 + (size_t)i * 5) * MIB);
        all_gather(r, at, at + MIB);
        CU(cudaFree(other));
        CU(cudaFree(at));
    }
    CU(cudaGraphExecDestroy(exec));
    CU(cudaGraphDestroy(made));
    comm_end(r);
}

/* A communicator ends under its last operation, while this thread captures something else, and beside work that waits
 * for what the host does after that. */
SCENARIO(beside_capture)
{
    static atomic_int flag[RANKS_MAX];
    char *at = get(8 * MIB);
    cudaStream_t other, third;
    cudaGraph_t graph;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    CU(cudaStreamCreateWithFlags(&third, cudaStreamNonBlocking));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaLaunchHostFunc(third, on_flag, &flag[r->rank]));
    CU(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    if (r->rank == 0)
        usleep(50000);
    NC(ncclAllGather(at, at + 4 * MIB, COUNT, ncclFloat, r->comm, r->stream));
    NC(ncclCommFinalize(r->comm));
    CU(cudaStreamEndCapture(other, &graph));
    atomic_store(&flag[r->rank], 1);
    CU(cudaStreamSynchronize(third));
    NC(ncclCommDestroy(r->comm));
    CU(cudaGraphDestroy(graph));
    for (int i = 0; i < ranks; i++)
        expect(r, at + 4 * MIB + (size_t)i * BYTES, i, "all_gather");
    CU(cudaFree(at));
}

struct capture {
    int device;
    atomic_int begun;
};

static void *capture(void *arg)
{
    struct capture *c = arg;
    cudaStream_t stream;
    cudaGraph_t graph;

    CU(cudaSetDevice(c->device));
    CU(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CU(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    atomic_store(&c->begun, 1);
    usleep(30000);
    CU(cudaStreamEndCapture(stream, &graph));
    CU(cudaGraphDestroy(graph));
    return NULL;
}

/* A communicator ends while another thread captures. */
SCENARIO(beside_others_capture)
{
    struct capture c = {.device = r->rank};
    char *at = get(8 * MIB);
    pthread_t thread;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(pthread_create(&thread, NULL, capture, &c));
    while (!atomic_load(&c.begun))
        usleep(100);
    comm_end(r);
    CU(pthread_join(thread, NULL));
    CU(cudaFree(at));
}

/* Registered memory is freed under the work that uses it, while this thread captures, and something larger needs it. */
SCENARIO(freed_beside_capture)
{
    char *at = get(20 * MIB);
    cudaStream_t other;
    cudaGraph_t graph;

    CU(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    CU(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
    if (r->rank == 0)
        usleep(50000);
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    CU(cudaFree(at));
    at = get(48 * MIB);
    CU(cudaStreamEndCapture(other, &graph));
    CU(cudaGraphDestroy(graph));
    CU(cudaFree(at));
    comm_end(r);
}
