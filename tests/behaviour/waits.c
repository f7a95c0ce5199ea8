/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waits.c - calls beside another thread's cudaFree, which natively waits: the device works until this thread, after its
 * call, lets it end, so a call that waits for that work never returns. cudaMemGetInfo returns at once, natively too. A
 * request natively waits with the cudaFree (probe: busy.stalled), and does not where that has returned. And a request
 * that natively waits for this thread's own work, and one that natively waits for nothing.
 */
#include "waits.h"

/* Memory that the other thread's pool has given back, and that has not arrived. */
BT_TEST(memory_info)
{
    struct bt_thread thread;
    size_t before, after, total;

    OK(cudaMemGetInfo(&before, &total));
    TRY(begin(&thread, 64 * BT_MIB, 120 * BT_MIB));
    OK(cudaMemGetInfo(&after, &total));
    TRY(end(&thread));
    /* Natively, and with strict, the 64 were in use then; else the 120 were and the 64 were not any more. */
    CHECK(before - after == 64 * BT_MIB || before - after == 120 * BT_MIB);
    return 0;
}

/* Refused at once: the memory is still in use. */
BT_TEST(refused_request)
{
    struct bt_thread thread;
    size_t avail, total, rest;
    void *ballast, *p = NULL;
    cudaError_t error;

    if (!bt_preloaded())
        SKIP("natively a request waits for another thread's cudaFree");
    OK(cudaMemGetInfo(&avail, &total));
    /* Where less than 1/128 of the device is left, the other thread's cudaFree waits as natively. */
    rest = total / 256 / BT_MIB * BT_MIB * 8;
    OK(cudaMalloc(&ballast, avail / (2 * BT_MIB) * (2 * BT_MIB) - rest));
    TRY(begin(&thread, rest / 8 * 5, 0));
    error = cudaMalloc(&p, rest / 8 * 7);
    (void)cudaGetLastError();
    TRY(end(&thread));
    EXPECT(error, cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, rest / 8 * 7));
    OK(cudaFree(p));
    OK(cudaFree(ballast));
    return 0;
}

/* A request that the driver serves; with CUPOOL_FILL too, whose fill the device does later. */
BT_TEST(served_request)
{
    struct bt_thread thread;
    void *p;

    if (!bt_preloaded())
        SKIP("natively a request waits for another thread's cudaFree");
    TRY(begin(&thread, 64 * BT_MIB, 120 * BT_MIB));
    OK(cudaMalloc(&p, 40 * BT_MIB));
    TRY(end(&thread));
    OK(cudaFree(p));
    return 0;
}

/* Natively this thread's frees wait for its work, however long that takes, and then the request is served. Small blocks
 * of segments of their own: CUPOOL_FREE=relaxed defers their frees, and none is large enough for the request. No
 * request is refused before, since frees soon after that are not deferred. */
BT_TEST(own_work)
{
    const size_t size = 6 * BT_MIB;
    void *blocks[256], *ballast, *p = NULL;
    size_t avail, total;
    int count = 0;

    TRY(bt_work_begin());
    bt_work_reset(&release);
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&ballast, (avail - 128 * size) / (2 * BT_MIB) * (2 * BT_MIB)));
    do
        OK(cudaMalloc(&blocks[count++], size));
    while (!cudaMemGetInfo(&avail, &total) && avail >= 2 * size && count < 256);
    CHECK(count > 64 && count < 256);
    TRY(bt_work(NULL, &release, OWN_US));
    OK(cudaFree(blocks[1]));
    OK(cudaFree(blocks[3]));
    OK(cudaMalloc(&p, 2 * size));
    OK(cudaFree(p));
    OK(cudaFree(ballast));
    for (int i = 0; i < count; i++)
        if (i != 1 && i != 3)
            OK(cudaFree(blocks[i]));
    return 0;
}

static cudaStream_t stream;

static cudaError_t wait_stream(void)
{
    return cudaStreamSynchronize(stream);
}

static cudaError_t wait_context(void)
{
    return (cudaError_t)cuCtxSynchronize();
}

/* Asks for what no memory but the freed block's leaves room for. */
static int asking_main(void *size)
{
    void *p;

    OK(cudaMalloc(&p, *(const size_t *)size));
    OK(cudaFreeAsync(p, NULL));
    return 0;
}

/* Memory that a stream has freed is there once a thread has waited for the stream, whatever is launched then: it counts
 * as free, and another thread's request gets it. */
static int freed_by_stream(const void *arg)
{
    cudaError_t (*const *wait)(void) = (cudaError_t(*const *)(void))arg;
    void *p, *ballast;
    size_t avail, total, before, after, wanted;
    struct bt_thread thread;
    cudaError_t busy;
    int rc;

    TRY(bt_work_begin());
    TRY(bt_usable(4096));
    bt_work_reset(&release);
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&ballast, avail / (2 * BT_MIB) * (2 * BT_MIB) - 256 * BT_MIB));
    OK(cudaMalloc(&p, 160 * BT_MIB));
    wanted = 224 * BT_MIB;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaFreeAsync(p, stream));
    OK((*wait)());
    TRY(bt_work(stream, &release, LONG_US));
    OK(cudaMemGetInfo(&after, &total));
    rc = bt_thread_start(&thread, asking_main, &wanted);
    rc = rc ? rc : bt_thread_join(&thread);
    busy = cudaStreamQuery(stream);
    bt_work_end(&release);
    OK(cudaDeviceSynchronize());
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(ballast));
    TRY(rc);
    EXPECT(busy, cudaErrorNotReady);
    CHECK(after == before + 160 * BT_MIB);
    return 0;
}
static cudaError_t (*const by_stream)(void) = wait_stream;
static cudaError_t (*const by_context)(void) = wait_context;
BT_ROW(freed_by_stream, freed_by_stream, &by_stream)
BT_ROW(freed_by_context, freed_by_stream, &by_context)

/* They go by a call that waits in the driver until the device's work is over; preloaded, the pool's memory does while a
 * stream captures. */
enum thing { POOLED, PITCHED, PINNED, REGISTERED, ARRAY, MIPMAPPED };

static void *pooled; /* the library serves no miss while a stream captures */

static int thing_get(enum thing thing, void **ret)
{
    const CUDA_ARRAY_DESCRIPTOR flat = {BT_KIB, BT_KIB, CU_AD_FORMAT_FLOAT, 1};
    const CUDA_ARRAY3D_DESCRIPTOR deep = {BT_KIB, BT_KIB, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    size_t pitch;

    *ret = &stream; /* for the arrays that the simulated GPU does not have */
    if (thing == POOLED)
        *ret = pooled;
    else if (thing == PITCHED)
        OK(cudaMallocPitch(ret, &pitch, BT_KIB, BT_KIB));
    else if (thing == PINNED)
        OK(cudaMallocHost(ret, BT_MIB));
    else if (thing == ARRAY && !bt_works.simulated)
        OK(((CUresult(*)(void **, const CUDA_ARRAY_DESCRIPTOR *))bt_driver("cuArrayCreate_v2"))(ret, &flat));
    else if (thing == MIPMAPPED && !bt_works.simulated)
        OK(((CUresult(*)(void **, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned int))bt_driver("cuMipmappedArrayCreate"))(
            ret, &deep, 2));
    else if (thing == REGISTERED)
        CHECK((*ret = aligned_alloc(4096, 4096)) && !cudaHostRegister(*ret, 4096, cudaHostRegisterDefault));
    return 0;
}

static int thing_put(enum thing thing, void *p)
{
    switch (thing) {
    case POOLED:
    case PITCHED:
        return cudaFree(p);
    case PINNED:
        return cudaFreeHost(p);
    case REGISTERED:
        return cudaHostUnregister(p);
    case ARRAY:
        return cudaFreeArray(p);
    default:
        return cudaFreeMipmappedArray(p);
    }
}

/* How another thread's question meets it. */
struct beside {
    enum thing thing;
    bool captures; /* it begins while a stream captures, and the question comes after that */
    bool first;    /* the library has given nothing back before */
};

static int passing_main(void *arg)
{
    const struct beside *beside = arg;
    void *p;

    OK(cudaFree(NULL)); /* the thread has a context */
    TRY(thing_get(beside->thing, &p));
    TRY(bt_work(NULL, &release, LONG_US));
    atomic_store(&launched, 1);
    OK(thing_put(beside->thing, p));
    if (beside->thing == REGISTERED)
        free(p);
    return 0;
}

/* Until a thread is in the driver, by then. */
static int passing_begin(struct bt_thread *thread, const struct beside *beside)
{
    cudaGraph_t graph;

    bt_work_reset(&release);
    atomic_store(&launched, 0);
    if (beside->captures)
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    TRY(bt_thread_start(thread, passing_main, (void *)(uintptr_t)beside));
    while (!atomic_load(&launched))
        bt_nap(100);
    bt_nap(50000);
    if (beside->captures)
        OK(cudaStreamEndCapture(stream, &graph));
    return 0;
}

/* A free in the driver holds up what other threads record, not cudaMemGetInfo nor requests of streams, also where a
 * stream has freed memory before. */
static int beside_driver(const void *arg)
{
    void *p, *stays;
    const struct beside *beside = arg;
    size_t avail, total, pitch, wanted;
    cudaError_t busy, refused;
    struct bt_thread thread;

    TRY(bt_work_begin());
    TRY(bt_usable(4096));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMallocPitch(&stays, &pitch, BT_MIB, 16));
    wanted = avail - 8 * BT_MIB;
    if (!beside->first)
        EXPECT(cudaMallocAsync(&p, wanted, stream), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 64 * BT_MIB));
    if (beside->thing == POOLED)
        OK(cudaMalloc(&pooled, BT_KIB));
    if (!beside->captures)
        OK(cudaFreeAsync(p, stream));
    TRY(passing_begin(&thread, beside));
    if (beside->captures) /* what is freed before goes when the capture begins */
        OK(cudaFreeAsync(p, stream));
    OK(cudaMemGetInfo(&avail, &total));
    refused = cudaMallocAsync(&p, wanted, stream);
    busy = cudaStreamQuery(NULL);
    bt_work_end(&release);
    TRY(bt_thread_join(&thread));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(stays));
    EXPECT(busy, cudaErrorNotReady);
    EXPECT(refused, cudaErrorMemoryAllocation);
    LAST(cudaErrorMemoryAllocation);
    return 0;
}
static const struct beside pitched = {.thing = PITCHED}, pinned = {.thing = PINNED}, registered = {.thing = REGISTERED},
                           array = {.thing = ARRAY}, mipmapped = {.thing = MIPMAPPED},
                           captured = {.thing = PITCHED, .captures = true},
                           captured_pooled = {.thing = POOLED, .captures = true},
                           first = {.thing = PITCHED, .first = true};
BT_ROW(beside_pitched_free, beside_driver, &pitched)
BT_ROW(beside_pinned_free, beside_driver, &pinned)
BT_ROW(beside_unregistering, beside_driver, &registered)
BT_ROW(beside_array_end, beside_driver, &array)
BT_ROW(beside_mipmapped_end, beside_driver, &mipmapped)
BT_ROW(beside_captured_free, beside_driver, &captured)
BT_ROW(beside_captured_pooled_free, beside_driver, &captured_pooled)
BT_ROW(first_beside_free, beside_driver, &first)

/* Ends the device's work. */
static int releasing_main(void *unused)
{
    bt_nap(1000000);
    bt_work_end(&release);
    return 0;
}

static int pair_main(void *unused)
{
    void *p;

    OK(cudaMalloc(&p, 6 * BT_MIB));
    OK(cudaFree(p));
    return 0;
}

/* Memory that this thread has freed before is there for a request of a stream, whatever another thread's free in the
 * driver waits for. With CUPOOL_FREE=relaxed the order of small blocks comes after that work, also where another thread
 * has freed the last of them. */
BT_TEST(freed_beside_free)
{
    const char *policy = getenv("CUPOOL_FREE");
    const bool relaxed = policy && !strcmp(policy, "relaxed");
    void *small[16], *p, *q = NULL;
    struct bt_thread thread, releasing;
    cudaError_t busy, served;
    size_t avail, total;

    TRY(bt_work_begin());
    TRY(bt_usable(4096));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&p, avail / 2));
    for (int i = 0; i < 16; i++)
        OK(cudaMalloc(&small[i], 6 * BT_MIB));
    OK(cudaFree(p));
    for (int i = 0; i < 16; i++)
        OK(cudaFree(small[i]));
    if (relaxed) { /* other policies' frees wait here, as natively */
        TRY(bt_thread_start(&releasing, pair_main, NULL));
        TRY(bt_thread_join(&releasing));
    }
    TRY(passing_begin(&thread, &pitched));
    if (relaxed)
        TRY(bt_thread_start(&releasing, releasing_main, NULL));
    served = cudaMallocAsync(&q, avail - 64 * BT_MIB, stream); /* the driver's own pool needs some more */
    busy = cudaStreamQuery(NULL);
    bt_work_end(&release);
    TRY(bt_thread_join(&thread));
    EXPECT(served, cudaSuccess);
    CHECK(relaxed || busy == cudaErrorNotReady);
    OK(cudaFreeAsync(q, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return relaxed ? bt_thread_join(&releasing) : 0;
}

/* Ends the device's work soon. */
static int soon_releasing_main(void *unused)
{
    bt_nap(20000); /* far less than a request waits, also on a busy machine */
    bt_work_end(&release);
    return 0;
}

/* Memory that a stream frees meanwhile is there once a thread has waited for the stream. The library learns that when
 * the free in the driver has returned. */
BT_TEST(freed_by_stream_beside_free)
{
    struct bt_thread thread, releasing;
    size_t avail, total;
    void *p, *q = NULL;
    cudaError_t served;

    TRY(bt_work_begin());
    TRY(bt_usable(4096));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaMemGetInfo(&avail, &total));
    OK(cudaMalloc(&p, avail / 2));
    TRY(passing_begin(&thread, &pinned));
    OK(cudaFreeAsync(p, stream));
    OK(cudaStreamSynchronize(stream));
    TRY(bt_thread_start(&releasing, soon_releasing_main, NULL));
    served = cudaMallocAsync(&q, avail - 64 * BT_MIB, stream); /* the driver's own pool needs some more */
    bt_work_end(&release);
    TRY(bt_thread_join(&thread));
    TRY(bt_thread_join(&releasing));
    EXPECT(served, cudaSuccess);
    OK(cudaFreeAsync(q, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaStreamDestroy(stream));
    return 0;
}

/* --- beside the end of another context --- */

#define END_MS 1500

static atomic_int ends; /* 1: another thread's context is there; 2: its end is about to begin; 3: it is over */

/* A context with a block, and with memory that was freed there. */
static int ending_main(void *freed)
{
    void (*slow)(const char *, unsigned int) = (void (*)(const char *, unsigned int))bt_driver("simgpu_slow");
    CUcontext context;
    CUdeviceptr p, q;

    TRY(bt_context(&context));
    OK(cuMemAlloc(&p, BT_MIB));
    if (*(const size_t *)freed) {
        OK(cuMemAlloc(&q, *(const size_t *)freed));
        OK(cuMemFree(q));
    }
    slow("cuCtxDestroy_v2", END_MS);
    atomic_store(&ends, 1);
    while (atomic_load(&ends) == 1)
        bt_nap(100);
    OK(cuCtxDestroy(context));
    atomic_store(&ends, 3);
    slow("", 0);
    return 0;
}

/* The end takes long: the free memory does not wait for it, nor does a request that is refused, where the context holds
 * no memory that natively would be free. */
static int beside_end(const void *freed)
{
    const bool any = *(const size_t *)freed;
    size_t before, after, total, pitch;
    cudaError_t refused[2];
    struct bt_thread thread;
    void *ballast, *p;
    uint64_t begun;
    int state;

    if (!bt_driver("simgpu_slow"))
        SKIP("only the simulated GPU has slow calls");
    TRY(bt_usable(4096));
    OK(cudaMallocPitch(&ballast, &pitch, BT_MIB, 512));
    atomic_store(&ends, 0);
    TRY(bt_thread_start(&thread, ending_main, (void *)(uintptr_t)freed));
    while (!atomic_load(&ends))
        bt_nap(100);
    OK(cudaMemGetInfo(&before, &total));
    atomic_store(&ends, 2);
    bt_nap(100000); /* the end has begun */
    begun = bt_ns();
    OK(cudaMemGetInfo(&after, &total));
    refused[0] = any ? cudaErrorMemoryAllocation : cudaMalloc(&p, before + 64 * BT_MIB);
    refused[1] = any ? cudaErrorMemoryAllocation : cudaMallocAsync(&p, before + 64 * BT_MIB, NULL);
    begun = bt_ns() - begun;
    state = atomic_load(&ends);
    TRY(bt_thread_join(&thread));
    (void)cudaGetLastError();
    OK(cudaFree(ballast));
    EXPECT(refused[0], cudaErrorMemoryAllocation);
    EXPECT(refused[1], cudaErrorMemoryAllocation);
    CHECK(after == before);
    CHECK(state == 2 && begun < 900000000);
    return 0;
}
static const size_t none, some = 64 * BT_MIB;
BT_ROW(beside_an_end, beside_end, &none)
BT_ROW(beside_an_end_of_freed, beside_end, &some)
