/* SPDX-License-Identifier: Apache-2.0 */
/*
 * auto_host.c - after cudaFree the host may count on every copy, host function and event that was launched before.
 *
 * Each hazard holds a stream (auto_debts.h). meson builds it a second time with -DCUDA_API_PER_THREAD_DEFAULT_STREAM.
 * Graphs are in auto_graph.c, memory that the device writes without a copy in auto_mapped.c, other devices in
 * auto_peer.c, other processes in auto_ipc.c.
 */
#include "auto_debts.h"

static int free_victim_driver(void)
{
    OK(cuMemFree(BT_ADDRESS(victim)));
    return 0;
}

static int free_victim_device(void)
{
    TRY(bt_devices(2));
    OK(cudaSetDevice(1));
    TRY(free_victim());
    OK(cudaSetDevice(0));
    return 0;
}

/* While another thread's stream captures. The capture must not suffer. */
static int free_beside_capture(void)
{
    cudaGraph_t graph_made;
    cudaStream_t c;

    OK(cudaStreamCreateWithFlags(&c, cudaStreamNonBlocking));
    OK(cudaStreamBeginCapture(c, cudaStreamCaptureModeThreadLocal));
    TRY(free_victim_thread());
    OK(cudaStreamEndCapture(c, &graph_made));
    OK(cudaGraphDestroy(graph_made));
    OK(cudaStreamDestroy(c));
    return 0;
}

static int pinned_legacy(void)
{
    TRY(pinned());
    s = cudaStreamLegacy;
    return 0;
}

static int pinned_per_thread(void)
{
    TRY(pinned());
    s = cudaStreamPerThread;
    return 0;
}

static int pinned_green(void)
{
    CUcontext context;
    CUstream stream;

    TRY(pinned());
    TRY(auto_green(&context, &stream));
    s = (cudaStream_t)stream;
    return 0;
}

/* Memory of the program's own that was pinned afterwards. */
static int registered(void)
{
    host = (unsigned char *)aligned_alloc(4096, N);
    CHECK(host);
    OK(cudaHostRegister(host, N, cudaHostRegisterDefault));
    return setup();
}

/* From other pinned memory. */
static int to_host_from_host(void)
{
    static unsigned char *from;

    if (!from)
        OK(cudaMallocHost((void **)&from, N));
    memset(from, 0x11, N);
    OK(cudaMemcpyAsync(host, from, N, cudaMemcpyHostToHost, s));
    return 0;
}

/* Another stream copies to the host, too, and that one is waited for. */
static int other_sync(bool before)
{
    static cudaStream_t other;
    static unsigned char *there;

    if (!other) {
        OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        OK(cudaMallocHost((void **)&there, N));
    }
    if (before)
        OK(cudaMemcpyAsync(there, dev, N, cudaMemcpyDeviceToHost, other));
    TRY(copy_async(host, dev, N, cudaMemcpyDeviceToHost, s));
    if (!before)
        OK(cudaMemcpyAsync(there, dev, N, cudaMemcpyDeviceToHost, other));
    OK(cudaStreamSynchronize(other));
    return 0;
}

static int to_host_and_sync(void)
{
    return other_sync(false);
}

static int sync_and_to_host(void)
{
    return other_sync(true);
}

/* As cublasGetVectorAsync does. */
static int (*library_fetch)(void *, CUdeviceptr, size_t, CUstream);

static int pinned_library(void)
{
    void *lib;

    TRY(auto_library("libcublas_standin.so", &lib));
    library_fetch = (int (*)(void *, CUdeviceptr, size_t, CUstream))dlsym(lib, "standin_fetch");
    CHECK(library_fetch);
    return pinned();
}

static int to_host_library(void)
{
    OK(library_fetch(host, BT_ADDRESS(dev), N, (CUstream)s));
    return 0;
}

static void CUDART_CB fill_cb(cudaStream_t stream, cudaError_t status, void *arg)
{
    memset(arg, 0x11, N);
}

static int call_cb(void)
{
    OK(cudaStreamAddCallback(s, fill_cb, host, 0));
    return 0;
}

/* --- events --- */

/* Events recorded before a cudaFree are complete after it: the time between them is known. */
RIGHT(elapsed, .setup = pinned)
{
    cudaEvent_t begin, end;

    OK(cudaEventCreate(&begin));
    OK(cudaEventCreate(&end));
    for (int round = 0; round < 2; round++) {
        float ms = -1;
        int rc;

        OK(cudaEventRecord(begin, s));
        TRY(hold(s));
        OK(cudaEventRecord(end, s));
        TRY(free_victim());
        rc = (int)cudaEventElapsedTime(&ms, begin, end);
        hold_release();
        OK(cudaDeviceSynchronize());
        if (rc == cudaErrorNotReady) {
            LAST(cudaSuccess);
            return WRONG("round %d: not ready after cudaFree", round);
        }
        OK(rc);
        CHECK(ms >= 0);
        OK(cudaMalloc(&victim, 1000));
    }
    return 0;
}

LANDS(d2h, pinned, TO_HOST(copy_async))
LANDS(d2h_default, pinned, .copy = copy_async, .kind = cudaMemcpyDefault)
LANDS(d2h_as_device, pinned, TO_HOST(copy_as_device))
LANDS(d2h_2d_as_device, pinned, TO_HOST(copy_2d_as_device))
LANDS(d2h_3d_as_device, pinned, TO_HOST(copy_3d_as_device))
LANDS(d2h_3d_peer, pinned, TO_HOST(copy_3d_peer))
LANDS(d2h_driver, pinned, TO_HOST(copy_driver), .release = free_victim_driver)
LANDS(d2h_thread, pinned, TO_HOST(copy_async), .release = free_victim_thread)
LANDS(d2h_device, pinned, TO_HOST(copy_async), .release = free_victim_device)
LANDS(d2h_green, pinned_green, TO_HOST(copy_async))
LANDS(d2h_then_sync, pinned, .launch = to_host_and_sync)
LANDS(d2h_after_sync, pinned, .launch = sync_and_to_host)
/* Right with every policy: beside a capture each free waits. */
AUTO_ADD(d2h_beside_capture, .fn = lands, .setup = pinned, TO_HOST(copy_async), .release = free_beside_capture)
LANDS(d2h_library, pinned_library, .launch = to_host_library)
LANDS(d2h_2d, pinned, TO_HOST(copy_2d))
LANDS(d2h_3d, pinned, TO_HOST(copy_3d))
LANDS(d2h_batch, pinned, TO_HOST(copy_batch))
LANDS(d2h_batch_3d, pinned, TO_HOST(copy_batch_3d))
LANDS(d2h_legacy, pinned_legacy, TO_HOST(copy_async))
LANDS(d2h_per_thread, pinned_per_thread, TO_HOST(copy_async))
LANDS(d2h_registered, registered, TO_HOST(copy_async))
LANDS(h2h, pinned, .launch = to_host_from_host)
TAKEN(h2d, pinned, TO_DEV(copy_async))
TAKEN(h2d_driver, pinned, TO_DEV(copy_driver))
TAKEN(h2d_2d_as_device, pinned, TO_DEV(copy_2d_as_device))
TAKEN(h2d_2d, pinned, TO_DEV(copy_2d))
TAKEN(h2d_3d, pinned, TO_DEV(copy_3d))
TAKEN(h2d_batch, pinned, TO_DEV(copy_batch))
TAKEN(h2d_registered, registered, TO_DEV(copy_async))
LANDS(host_func, pinned, .launch = call_fn)
LANDS(callback, pinned, .launch = call_cb)
