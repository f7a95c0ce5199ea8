/* SPDX-License-Identifier: Apache-2.0 */
/*
 * freed_async.c - cudaMalloc's memory that was freed by cudaFreeAsync, beside work on another stream that does not end:
 * natively it is there once its own stream has come to the free, and nothing waits for the other stream. Memory that
 * was idle before that work is there, too.
 */
#include "work.h"

/* No test comes to the end of this, which is less than a thread waits for its own frees. */
#define LONG_US 20000000u

static struct {
    int release;
    cudaStream_t busy, stream;
    size_t free;
} all;

static int begin(void)
{
    size_t total;

    TRY(bt_work_begin());
    OK(cudaStreamCreateWithFlags(&all.busy, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&all.stream, cudaStreamNonBlocking));
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&all.free, &total));
    bt_work_reset(&all.release);
    return 0;
}

static int work(void)
{
    return bt_work(all.busy, &all.release, LONG_US);
}

/* The work has gone on until now. */
static int end(void)
{
    const cudaError_t busy = cudaStreamQuery(all.busy);

    bt_work_end(&all.release);
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(all.busy));
    OK(cudaStreamDestroy(all.stream));
    EXPECT(busy, cudaErrorNotReady);
    return 0;
}

static int free_behind(void *block)
{
    OK(cudaMemsetAsync(block, 1, 1024, all.stream));
    OK(cudaFreeAsync(block, all.stream));
    OK(cudaStreamSynchronize(all.stream));
    return 0;
}

/* Freed by this thread behind the work: cudaFreeAsync does not wait for that, nor do requests that do not fit. First,
 * because on an H200 a cudaMalloc that is refused natively waits for the device once streams have freed memory. */
BT_TEST(refused_behind_own_free)
{
    void *block, *other;
    cudaError_t error[2];

    TRY(begin());
    OK(cudaMalloc(&block, all.free / 8 * 5));
    OK(cudaDeviceSynchronize());
    TRY(work());
    OK(cudaFreeAsync(block, all.busy));
    error[0] = cudaMalloc(&other, all.free / 8 * 6);
    error[1] = cudaMallocAsync(&other, all.free / 8 * 6, all.stream);
    TRY(end()); /* the work has gone on */
    EXPECT(error[0], cudaErrorMemoryAllocation);
    EXPECT(error[1], cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    OK(cudaMalloc(&block, all.free / 8 * 6));
    OK(cudaFree(block));
    return 0;
}

/* Three times the device's memory, an eighth at a time. */
BT_TEST(again)
{
    void *block;

    TRY(begin());
    TRY(work());
    for (int i = 0; i < 24; i++) {
        OK(cudaMalloc(&block, all.free / 8));
        TRY(free_behind(block));
    }
    return end();
}

/* In turn on more streams than the library tells apart, and on one that is destroyed. */
BT_TEST(many_streams)
{
    cudaStream_t streams[80];
    void *block;

    TRY(begin());
    for (int i = 0; i < 80; i++)
        OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    TRY(work());
    for (int i = 0; i < 80; i++) {
        OK(cudaMalloc(&block, all.free / 8));
        OK(cudaMemsetAsync(block, 1, 1024, streams[i]));
        OK(cudaFreeAsync(block, streams[i]));
        OK(cudaStreamSynchronize(streams[i]));
    }
    for (int i = 0; i < 80; i++)
        OK(cudaStreamDestroy(streams[i]));
    OK(cudaMalloc(&block, all.free / 8));
    TRY(free_behind(block));
    return end();
}

/* Freed on two streams in turn, one of which always has work before its free: memory of the other one is there. */
BT_TEST(in_turn_on_busy_streams)
{
    static int gates[24];
    cudaStream_t streams[2];
    void *block;

    TRY(begin());
    streams[0] = all.stream;
    OK(cudaStreamCreateWithFlags(&streams[1], cudaStreamNonBlocking));
    TRY(work());
    for (int i = 0; i < 24; i++) {
        OK(cudaMalloc(&block, all.free / 8));
        TRY(bt_work(streams[i % 2], &gates[i], LONG_US));
        OK(cudaFreeAsync(block, streams[i % 2]));
        if (i) {
            bt_work_end(&gates[i - 1]);
            OK(cudaStreamSynchronize(streams[(i - 1) % 2]));
        }
    }
    bt_work_end(&gates[23]);
    OK(cudaStreamSynchronize(streams[1]));
    OK(cudaStreamDestroy(streams[1]));
    return end();
}

/* Freed on one stream behind work that goes on, and then again and again on another one. */
BT_TEST(beside_a_stream_that_takes_long)
{
    void *block;

    TRY(begin());
    OK(cudaMalloc(&block, all.free / 8));
    TRY(work());
    OK(cudaFreeAsync(block, all.busy));
    for (int i = 0; i < 24; i++) {
        OK(cudaMalloc(&block, all.free / 8));
        TRY(free_behind(block));
    }
    return end();
}

/* Nearly all memory for a call that asks the driver: the block before was freed by `how`. */
static int request_all(cudaError_t (*how)(void *), bool first)
{
    void *large, *small, *again;

    TRY(begin());
    OK(cudaMalloc(&large, all.free / 8 * 5));
    OK(cudaMalloc(&small, 70000));
    if (first)
        OK(how(large));
    TRY(work());
    if (first)
        TRY(free_behind(small));
    else
        TRY(free_behind(large));
    OK(cudaMallocAsync(&again, all.free / 8 * 6, all.stream));
    OK(cudaFreeAsync(again, all.stream));
    OK(cudaStreamSynchronize(all.stream));
    OK(cudaMalloc(&again, all.free / 8 * 6));
    TRY(free_behind(again));
    TRY(end());
    if (!first)
        OK(cudaFree(small));
    return 0;
}

BT_TEST(freed_while_idle)
{
    return request_all(cudaFree, true);
}

BT_TEST(freed_beside_work)
{
    return request_all(NULL, false);
}

static void *free_per_thread(void *block)
{
    return (void *)(uintptr_t)(cudaFreeAsync(block, cudaStreamPerThread) || cudaStreamSynchronize(cudaStreamPerThread));
}

/* Freed on the per-thread streams of two threads, one of which has ended. */
BT_TEST(freed_per_thread)
{
    pthread_t thread;
    void *block[2], *again, *failed;

    TRY(begin());
    for (int i = 0; i < 2; i++)
        OK(cudaMalloc(&block[i], all.free / 8 * 3));
    TRY(work());
    OK(pthread_create(&thread, NULL, free_per_thread, block[0]));
    OK(pthread_join(thread, &failed));
    CHECK(!failed && !free_per_thread(block[1]));
    OK(cudaMallocAsync(&again, all.free / 8 * 7, all.stream));
    OK(cudaFreeAsync(again, all.stream));
    OK(cudaStreamSynchronize(all.stream));
    return end();
}

/* Freed while another stream captures, which disturbs nothing. */
BT_TEST(freed_beside_capture)
{
    cudaStream_t captures;
    cudaGraph_t graph;
    void *block, *again;

    TRY(begin());
    OK(cudaStreamCreateWithFlags(&captures, cudaStreamNonBlocking));
    OK(cudaMalloc(&block, all.free / 8 * 5));
    TRY(work());
    OK(cudaStreamBeginCapture(captures, cudaStreamCaptureModeRelaxed));
    OK(cudaFreeAsync(block, all.stream));
    OK(cudaStreamEndCapture(captures, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaStreamDestroy(captures));
    OK(cudaStreamSynchronize(all.stream));
    OK(cudaMallocAsync(&again, all.free / 8 * 6, all.stream));
    OK(cudaFreeAsync(again, all.stream));
    OK(cudaStreamSynchronize(all.stream));
    return end();
}

/* Work that comes before the free although it is on another stream: the memory is not there yet. */
static int free_behind_other(cudaStream_t busy, cudaStream_t stream, bool waits)
{
    cudaEvent_t event;
    void *block, *other;

    OK(cudaMalloc(&block, 8 * BT_MIB));
    TRY(bt_work(busy, &all.release, LONG_US));
    if (waits) {
        OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        OK(cudaEventRecord(event, busy));
        OK(cudaStreamWaitEvent(stream, event, 0));
        OK(cudaEventDestroy(event));
    }
    OK(cudaFreeAsync(block, stream));
    OK(cudaMalloc(&other, 8 * BT_MIB));
    CHECK(other != block);
    bt_work_end(&all.release);
    OK(cudaFree(other));
    OK(cudaDeviceSynchronize());
    return 0;
}

BT_TEST(behind_the_legacy_stream)
{
    cudaStream_t blocking;

    TRY(begin());
    OK(cudaStreamCreate(&blocking));
    TRY(free_behind_other(NULL, blocking, false));
    return 0;
}

BT_TEST(behind_an_event)
{
    TRY(begin());
    TRY(free_behind_other(all.busy, all.stream, true));
    return 0;
}

/* The stream is of another device, whose legacy stream works: two blocks of this size do not fit beside each other.
 * Last, because memory that no stream has come to within a second is not used again. */
BT_TEST(behind_another_devices_legacy_stream)
{
    cudaStream_t blocking;
    void *block, *other;

    TRY(bt_devices(2));
    TRY(begin());
    OK(cudaMalloc(&block, all.free / 8 * 5));
    OK(cudaSetDevice(1));
    TRY(bt_work_begin());
    OK(cudaStreamCreate(&blocking));
    TRY(bt_work(NULL, &all.release, LONG_US));
    OK(cudaFreeAsync(block, blocking));
    OK(cudaSetDevice(0));
    EXPECT(cudaMalloc(&other, all.free / 8 * 5), cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    bt_work_end(&all.release);
    OK(cudaSetDevice(1));
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(blocking));
    return 0;
}
