/* SPDX-License-Identifier: Apache-2.0 */
/*
 * count.c - counts the driver's own allocation calls on a real GPU, from outside.
 *
 * A CUPTI injection library sees the driver-API calls that reach the driver, whatever makes them, so it is an
 * independent witness of the calls that cupool saved. At exit it appends `PID NAME COUNT` lines to the file that
 * GPU_COUNTS names, as the simulated GPU does for SIMGPU_COUNTS. It is no part of the library or of the usual build,
 * and no profiler.
 *
 * Build:  gcc -std=gnu11 -O2 -fPIC -shared -I/usr/local/cuda/include -I/usr/local/cuda/extras/CUPTI/include -o
 * libcount.so tests/gpu/count.c -L/usr/local/cuda/extras/CUPTI/lib64 -L/usr/local/cuda/lib64 -lcupti Use:
 * GPU_COUNTS=counts.txt CUDA_INJECTION64_PATH=$PWD/libcount.so ./program
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <cupti.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int InitializeInjection(void);

static struct counter {
    CUpti_CallbackId id;
    const char *name;
    atomic_ulong calls;
} counters[] = {
    {CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, "cuMemAlloc_v2", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, "cuMemFree_v2", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2, "cuMemAllocPitch_v2", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged, "cuMemAllocManaged", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync, "cuMemAllocAsync", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz, "cuMemAllocAsync_ptsz", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync, "cuMemFreeAsync", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz, "cuMemFreeAsync_ptsz", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemCreate, "cuMemCreate", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuMemRelease, "cuMemRelease", 0},
    {CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, "cuCtxSynchronize", 0},
};
#define COUNTERS (sizeof(counters) / sizeof(counters[0]))

static CUpti_SubscriberHandle subscriber;

static void CUPTIAPI callback(void *arg, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data)
{
    const CUpti_CallbackData *call = (const CUpti_CallbackData *)data;

    if (domain != CUPTI_CB_DOMAIN_DRIVER_API || call->callbackSite != CUPTI_API_ENTER)
        return;
    for (size_t i = 0; i < COUNTERS; i++)
        if (counters[i].id == id)
            atomic_fetch_add_explicit(&counters[i].calls, 1, memory_order_relaxed);
}

static void counts_write(void)
{
    const char *path = getenv("GPU_COUNTS");
    int fd = path && *path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

    if (fd < 0)
        return;
    for (size_t i = 0; i < COUNTERS; i++) {
        unsigned long calls = atomic_load(&counters[i].calls);

        if (calls)
            dprintf(fd, "%d %s %lu\n", (int)getpid(), counters[i].name, calls);
    }
    close(fd);
}

/* The driver calls this when it starts. Not 1: the injection failed, the program goes on without. */
int InitializeInjection(void)
{
    if (cuptiSubscribe(&subscriber, callback, NULL) != CUPTI_SUCCESS) {
        fprintf(stderr, "count: cuptiSubscribe failed; is another profiler attached?\n");
        return 0;
    }
    for (size_t i = 0; i < COUNTERS; i++)
        if (cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, counters[i].id) != CUPTI_SUCCESS)
            fprintf(stderr, "count: %s cannot be counted\n", counters[i].name);
    atexit(counts_write);
    return 1;
}
