/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_nowait.c - calls that must not wait: for work that is launched after a cudaFree, for a cudaFree of another
 * thread, and, with auto, a cudaFree that owes the host nothing.
 *
 * auto_debts.h holds the streams. meson builds it a second time with -DCUDA_API_PER_THREAD_DEFAULT_STREAM.
 */
#include "auto_debts.h"

/* An event that is recorded after a cudaFree is not complete. */
RIGHT(elapsed_later, .setup = pinned)
{
    cudaEvent_t begin, end;
    float ms;

    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, s));
    TRY(free_victim());
    TRY(hold(s));
    OK(cudaEventRecord(end, s));
    EXPECT(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
    LAST(cudaSuccess);
    hold_release();
    OK(cudaStreamSynchronize(s));
    OK(cudaEventElapsedTime(&ms, begin, end));
    return 0;
}

/* A cudaFree of another thread makes this one not wait. Here, natively, that cudaFree is still waiting when this thread
 * asks, and the device waits for this thread. */
RIGHT(elapsed_other_thread, .setup = pinned)
{
    struct bt_thread thread;
    cudaEvent_t begin, end;
    float ms;
    int rc;

    if (!hold_is_exact())
        SKIP("needs the simulated GPU");
    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    OK(cudaEventRecord(begin, s));
    TRY(hold_for(s, 5000000));
    OK(cudaEventRecord(end, s));
    TRY(bt_thread_start(&thread, free_thread_main, NULL));
    bt_nap(20000); /* by now the thread is most likely in its cudaFree; if not, the test shows nothing */
    rc = (int)cudaEventElapsedTime(&ms, begin, end);
    hold_release();
    TRY(bt_thread_join(&thread));
    OK(cudaDeviceSynchronize());
    EXPECT(rc, cudaErrorNotReady);
    LAST(cudaSuccess);
    return 0;
}

/* Device work, launched after a cudaFree, waits for a flag that other device work sets later. No call that the program
 * makes in between waits natively; auto_now->launch is such a call. */
static int behind_flag(void)
{
    cudaStream_t b;

    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    TRY(bt_fill(dev, N, 0));
    TRY(free_victim());
    OK(cuStreamWaitValue32((CUstream)s, BT_ADDRESS(dev), 1, CU_STREAM_WAIT_VALUE_EQ));
    TRY(auto_now->launch());
    OK(cuStreamWriteValue32((CUstream)b, BT_ADDRESS(dev), 1, 0));
    OK(cudaStreamSynchronize(s));
    return 0;
}

static int begin_mapped(void)
{
    void *p;

    OK(cudaHostAlloc(&p, 4096, cudaHostAllocMapped));
    return 0;
}

static int begin_managed(void)
{
    void *p;

    OK(cudaMallocManaged(&p, 4096, cudaMemAttachGlobal));
    return 0;
}

static int begin_export(void)
{
    cudaIpcMemHandle_t handle;
    void *p;

    OK(cudaMalloc(&p, 4 * BT_MIB));
    if (bt_virtual())
        SKIP("virtual memory has no handle");
    OK(cudaIpcGetMemHandle(&handle, p));
    return 0;
}

/* With auto a cudaFree that owes the host nothing returns while the device is busy. About the library, not CUDA. */
static int ordered(void)
{
    const char *policy = getenv("CUPOOL_FREE");
    void *p;
    int rc;

    TRY(graph_row());
    if (!bt_preloaded() || (policy && *policy && strcmp(policy, "strict") == 0))
        SKIP("about CUPOOL_FREE=auto and ordered");
    /* A context's first free waits: the library did not see what was launched before. */
    OK(cudaMalloc(&p, 1000));
    OK(cudaFree(p));
    TRY(hold(s));
    TRY(launch_row());
    TRY(free_victim());
    rc = (int)cudaStreamQuery(s);
    hold_release();
    OK(cudaDeviceSynchronize());
    EXPECT(rc, cudaErrorNotReady);
    LAST(cudaSuccess);
    OK(cudaMalloc(&victim, 1000));
    return 0;
}

static int device_only(void)
{
    OK(cudaMemsetAsync(dev, 1, N / 2, s));
    OK(cudaMemcpyAsync(dev + N / 2, dev, N / 2, cudaMemcpyDeviceToDevice, s));
    return 0;
}

/* Streams of a device that wait for one another, by many events. */
static int device_event(void)
{
    cudaEvent_t events[200];
    cudaStream_t b;

    OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    for (int i = 0; i < 200; i++)
        OK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
    for (int i = 0; i < 200; i++) {
        OK(cudaEventRecord(events[i], s));
        OK(cudaStreamWaitEvent(b, events[i], 0));
    }
    return 0;
}

/* Device work alone is no debt, also after one that is paid. */
static int paid(void)
{
    TRY(pinned());
    OK(cudaMemcpyAsync(host, dev, N, cudaMemcpyDeviceToHost, s));
    OK(cudaLaunchHostFunc(s, fill_fn, host));
    TRY(free_victim());
    OK(cudaDeviceSynchronize());
    OK(cudaMalloc(&victim, 1000));
    return 0;
}

AUTO_ADD(flag_mapped, .fn = behind_flag, .setup = pinned, .launch = begin_mapped)
AUTO_ADD(flag_managed, .fn = behind_flag, .setup = pinned, .launch = begin_managed)
AUTO_ADD(flag_export, .fn = behind_flag, .setup = pinned, .launch = begin_export)
AUTO_ADD(ordered_device, .fn = ordered, .setup = pinned, .launch = device_only)
AUTO_ADD(ordered_graph, .fn = ordered, .setup = pinned, .captured = device_only)
AUTO_ADD(ordered_event, .fn = ordered, .setup = pinned, .launch = device_event)
AUTO_ADD(ordered_again, .fn = ordered, .setup = paid, .launch = device_only)
