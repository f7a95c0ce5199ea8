/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cycle.c - the seven calls by which a program takes a buffer of virtual memory and gives it up: microseconds for each
 * call and for a buffer, and what the driver does that CUPOOL_VMM=1 depends on.
 *
 *   cc -O2 -I/usr/local/cuda/include cycle.c -lcuda -o cycle
 *   ./cycle [ROUNDS]; CUPOOL_VMM=1 LD_PRELOAD=libcupool.so ./cycle [ROUNDS]
 *
 * The facts come first and are read natively; under the preload those that begin with `contents` and `after` may differ
 * (docs/differences.md). Only CUDA's own errors end it.
 */
#include <cuda.h>

#include "../../program.h"

#define UNIT ((size_t)2 << 20)
static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemAccessDesc access_all = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                           .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const char *const names[] = {"reserve", "create", "map", "access", "unmap", "release", "free"};

struct buffer {
    CUdeviceptr at;
    size_t size;
    CUmemGenericAllocationHandle handle;
};

/* Make a call and add its time. */
#define TIMED(i, call)                                                                                                 \
    do {                                                                                                               \
        const double start_ = now_us();                                                                                \
        OK(call);                                                                                                      \
        us[i] += now_us() - start_;                                                                                    \
    } while (0)

static struct buffer take(size_t size, double us[7])
{
    struct buffer b = {.size = size};

    TIMED(0, cuMemAddressReserve(&b.at, size, UNIT, 0, 0));
    TIMED(1, cuMemCreate(&b.handle, size, &properties, 0));
    TIMED(2, cuMemMap(b.at, size, 0, b.handle, 0));
    TIMED(3, cuMemSetAccess(b.at, size, &access_all, 1));
    return b;
}

static void give(const struct buffer *b, double us[7])
{
    TIMED(4, cuMemUnmap(b->at, b->size));
    TIMED(5, cuMemRelease(b->handle));
    TIMED(6, cuMemAddressFree(b->at, b->size));
}

/* One buffer, or several at a time. */
static void measure(size_t size, int count, int rounds)
{
    struct buffer b[64];
    double us[7] = {0}, all = 0;

    for (int round = -rounds / 10; round < rounds; round++) {
        if (round == 0)
            memset(us, 0, sizeof(us));
        for (int i = 0; i < count; i++)
            b[i] = take(size, us);
        for (int i = 0; i < count; i++)
            give(&b[i], us);
    }
    printf("%5zu MiB, %2d at a time, us:", size >> 20, count);
    for (int i = 0; i < 7; i++) {
        printf(" %s %.2f", names[i], us[i] / rounds / count);
        all += us[i] / rounds / count;
    }
    printf(", a buffer %.2f\n", all);
}

static const char *contents(const struct buffer *b)
{
    unsigned char *host = malloc(b->size);
    const char *what = "zeros";

    OK(cuMemcpyDtoH(host, b->at, b->size));
    for (size_t i = 0; i < b->size; i++)
        if (host[i])
            what = "not zeros";
    free(host);
    return what;
}

static void facts(void)
{
    double us[7];
    struct buffer b = take(UNIT, us), c;
    CUmemGenericAllocationHandle again = 0;
    unsigned long long flags = 99;
    unsigned int type = 0;
    CUresult result;

    printf("contents of the first: %s\n", contents(&b));
    OK(cuMemsetD8(b.at, 7, UNIT));
    OK(cuCtxSynchronize());
    result = cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)b.at);
    printf("retained: %d, the same handle: %d\n", (int)result, again == b.handle);
    OK(cuMemRelease(again));
    give(&b, us);
    printf("after it was given up: attribute %d, copy %d, map %d\n",
           (int)cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, b.at), (int)cuMemcpyDtoH(&type, b.at, 4),
           (int)cuMemMap(b.at, UNIT, 0, b.handle, 0));
    c = take(UNIT, us);
    printf("contents of the next: %s, the same address: %d, the same handle: %d\n", contents(&c), c.at == b.at,
           c.handle == b.handle);
    OK(cuMemUnmap(c.at, UNIT));
    OK(cuMemMap(c.at, UNIT, 0, c.handle, 0));
    result = cuMemGetAccess(&flags, &access_all.location, c.at);
    printf("mapped again: access %d, %llu\n", (int)result, flags);
    give(&c, us);
}

/* The results of these calls, and of the capture, in each mode. */
static void captures(void)
{
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    static const char *const mode_names[] = {"global", "thread_local", "relaxed"};

    for (int i = 0; i < 3; i++) {
        struct buffer b = {.size = UNIT};
        CUstream stream;
        CUgraph graph = NULL;
        int rc[7];

        OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        OK(cuStreamBeginCapture(stream, modes[i]));
        rc[0] = cuMemAddressReserve(&b.at, UNIT, UNIT, 0, 0);
        rc[1] = cuMemCreate(&b.handle, UNIT, &properties, 0);
        rc[2] = cuMemMap(b.at, UNIT, 0, b.handle, 0);
        rc[3] = cuMemSetAccess(b.at, UNIT, &access_all, 1);
        rc[4] = cuMemUnmap(b.at, UNIT);
        rc[5] = cuMemRelease(b.handle);
        rc[6] = cuMemAddressFree(b.at, UNIT);
        printf("capture %s:", mode_names[i]);
        for (int k = 0; k < 7; k++)
            printf(" %s %d", names[k], rc[k]);
        printf(", end %d\n", (int)cuStreamEndCapture(stream, &graph));
        if (graph)
            OK(cuGraphDestroy(graph));
        OK(cuStreamDestroy(stream));
    }
}

/* Does a mapping outlive the reset of the primary context? */
static void reset(CUdevice device, CUcontext *context)
{
    double us[7];
    struct buffer b = take(UNIT, us);
    CUresult result;

    OK(cuMemsetD8(b.at, 7, UNIT));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxReset(device));
    OK(cuDevicePrimaryCtxRetain(context, device));
    OK(cuCtxSetCurrent(*context));
    result = cuMemsetD8(b.at, 8, UNIT);
    printf("after a reset: memset %d", (int)result);
    printf(", synchronize %d", (int)cuCtxSynchronize());
    printf(", unmap %d release %d free %d\n", (int)cuMemUnmap(b.at, UNIT), (int)cuMemRelease(b.handle),
           (int)cuMemAddressFree(b.at, UNIT));
}

/* Does unmapping wait for work, and what do later calls return if not? The last step: the context is lost. */
static void under_work(void)
{
    double us[7];
    struct buffer b = take(512 * UNIT, us), c = {.size = UNIT};
    CUresult rc[4];

    for (int i = 0; i < 200; i++)
        OK(cuMemsetD8Async(b.at, (unsigned char)i, b.size, NULL));
    rc[0] = cuMemUnmap(b.at, b.size);
    rc[1] = cuCtxSynchronize();
    rc[2] = cuMemAddressReserve(&c.at, UNIT, UNIT, 0, 0);
    rc[3] = cuMemCreate(&c.handle, UNIT, &properties, 0);
    printf("unmapped under work: unmap %d, synchronize %d; then reserve %d create %d", (int)rc[0], (int)rc[1],
           (int)rc[2], (int)rc[3]);
    printf(" map %d", (int)cuMemMap(c.at, UNIT, 0, c.handle, 0));
    printf(" access %d\n", (int)cuMemSetAccess(c.at, UNIT, &access_all, 1));
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 500;
    size_t before, after, total;
    CUcontext context;
    CUdevice device;

    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    facts();
    captures();
    OK(cuMemGetInfo(&before, &total));
    measure(UNIT, 1, rounds);
    measure(UNIT, 32, rounds / 10);
    measure(64 * UNIT, 1, rounds / 5);
    measure(512 * UNIT, 1, rounds / 20);
    OK(cuMemGetInfo(&after, &total));
    printf("free memory as before: %d\n", before == after);
    reset(device, &context);
    under_work();
    return 0;
}
