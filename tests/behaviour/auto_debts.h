/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_debts.h - a held stream, behind it work that writes or reads host memory, a free of an unrelated block, and then
 * the host's look at the memory, or its overwriting, without a synchronisation.
 *
 * LANDS and TAKEN are rows of tests[]: setup makes the memory; the work is copy, launch, or the launch of a graph,
 * which make builds or which holds what captured does.
 */
#ifndef BEHAVIOUR_AUTO_DEBTS_H
#define BEHAVIOUR_AUTO_DEBTS_H

#include "auto_copies.h"

#define N (64 * BT_KIB) /* bytes that travel */

static cudaStream_t s;
static unsigned char *dev;  /* N bytes of device memory */
static unsigned char *host; /* N bytes that the host and the device share in some way, by default pinned */
static void *victim;        /* the block that is freed */
static cudaGraphExec_t graph;

BT_UNUSED static int setup(void)
{
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc((void **)&dev, N));
    OK(cudaMalloc(&victim, 1000));
    return 0;
}

BT_UNUSED static int pinned(void)
{
    OK(cudaMallocHost((void **)&host, N));
    return setup();
}

BT_UNUSED static int free_victim(void)
{
    OK(cudaFree(victim));
    return 0;
}

BT_UNUSED static int free_thread_main(void *arg)
{
    return free_victim();
}

BT_UNUSED static int free_victim_thread(void)
{
    struct bt_thread thread;

    TRY(bt_thread_start(&thread, free_thread_main, NULL));
    return bt_thread_join(&thread);
}

BT_UNUSED static void CUDART_CB fill_fn(void *arg)
{
    memset(arg, 0x11, N);
}

BT_UNUSED static int call_fn(void)
{
    OK(cudaLaunchHostFunc(s, fill_fn, host));
    return 0;
}

BT_UNUSED static int graph_launch(void)
{
    OK(cudaGraphLaunch(graph, s));
    return 0;
}

/* The graph of the work that launch would do. */
BT_UNUSED static int graph_capture(int (*launch)(void))
{
    cudaGraph_t g;

    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    TRY(launch());
    OK(cudaStreamEndCapture(s, &g));
    return graph_ready((CUgraph)g, &graph);
}

/* Bytes of host memory that are not this one, as they are now. */
BT_UNUSED static size_t host_count(size_t n, int byte)
{
    const volatile unsigned char *p = host;
    size_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad += p[i] != (unsigned char)byte;
    return bad;
}

static int launch_row(void)
{
    if (auto_now->copy)
        return auto_now->kind == cudaMemcpyHostToDevice ? auto_now->copy(dev, host, N, auto_now->kind, s)
                                                        : auto_now->copy(host, dev, N, auto_now->kind, s);
    return auto_now->launch ? auto_now->launch() : graph_launch();
}

static int graph_row(void)
{
    if (auto_now->captured)
        return graph_capture(auto_now->captured);
    return auto_now->make ? auto_now->make() : 0;
}

/* The device writes n bytes 0x11 to host memory: they are there when a cudaFree has returned. */
BT_UNUSED static int lands(void)
{
    const size_t n = auto_now->n ? auto_now->n : N;

    TRY(graph_row());
    for (int round = 0; round < 2; round++) {
        size_t missing;

        TRY(bt_fill(dev, N, 0x11));
        memset(host, 0, N);
        TRY(hold(s));
        TRY(launch_row());
        TRY(auto_now->release ? auto_now->release() : free_victim());
        missing = host_count(n, 0x11);
        hold_release();
        OK(cudaDeviceSynchronize());
        if (host_count(n, 0x11))
            return BT_FAIL("round %d: %zu bytes never came", round, host_count(n, 0x11));
        if (missing)
            return WRONG("round %d: %zu of %zu bytes were not there after cudaFree", round, missing, n);
        OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

/* The device reads N bytes of host memory: they may be overwritten when a cudaFree has returned. */
BT_UNUSED static int taken(void)
{
    TRY(graph_row());
    for (int round = 0; round < 2; round++) {
        long bad;

        TRY(bt_fill(dev, N, 0));
        memset(host, 0x11, N);
        TRY(hold(s));
        TRY(launch_row());
        TRY(free_victim());
        memset(host, 0x22, N);
        hold_release();
        OK(cudaDeviceSynchronize());
        bad = auto_count(dev, N, 0x11);
        CHECK(bad >= 0);
        if (bad)
            return WRONG("round %d: %ld bytes were read after cudaFree", round, bad);
        OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): the arguments are initialisers */
#define LANDS(name_, setup_, ...) AUTO_ADD(name_, .fn = lands, .hazard = true, .setup = setup_, __VA_ARGS__)
#define TAKEN(name_, setup_, ...) AUTO_ADD(name_, .fn = taken, .hazard = true, .setup = setup_, __VA_ARGS__)
#define TO_HOST(copy_)            .copy = copy_, .kind = cudaMemcpyDeviceToHost
#define TO_DEV(copy_)             .copy = copy_, .kind = cudaMemcpyHostToDevice
/* NOLINTEND(bugprone-macro-parentheses) */

#endif
