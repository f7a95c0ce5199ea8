/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_app_past.c - scenarios of nccl_app: memory that the pool does not serve.
 *
 * The other sources use the pool's memory. See nccl_app.h.
 */
#include "nccl_app.h"

#include <cuda.h>

/* Physical memory that is mapped, as expandable segments are: the addresses stay, the memory there comes and goes. */
struct mapped {
    CUdeviceptr at;
    size_t size;
};

static struct mapped reserve(size_t size)
{
    struct mapped m = {.size = size};

    OK(cuMemAddressReserve(&m.at, size, 0, 0, 0));
    return m;
}

static CUmemGenericAllocationHandle create(const struct rank *r, size_t size, CUmemAllocationHandleType types)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = types,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = r->rank}};
    CUmemGenericAllocationHandle handle;

    OK(cuMemCreate(&handle, size, &properties, 0));
    return handle;
}

/* The handle is given up: the mapping stays. */
static char *map_at(const struct rank *r, const struct mapped *m, CUmemGenericAllocationHandle handle, size_t offset)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = r->rank},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    OK(cuMemMap(m->at, m->size, offset, handle, 0));
    OK(cuMemSetAccess(m->at, m->size, &access, 1));
    OK(cuMemRelease(handle));
    return (char *)(uintptr_t)m->at; /* NOLINT(performance-no-int-to-ptr) */
}

static char *map(const struct rank *r, const struct mapped *m, CUmemGenericAllocationHandle handle)
{
    return map_at(r, m, handle, 0);
}

static char *map_new(const struct rank *r, const struct mapped *m)
{
    return map(r, m, create(r, m->size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static void unmap(const struct mapped *m)
{
    OK(cuMemUnmap(m->at, m->size));
}

static void give_up(const struct mapped *m)
{
    unmap(m);
    OK(cuMemAddressFree(m->at, m->size));
}

/* Other memory at the same addresses, with two communicators; one has gone when the last of it does. */
SCENARIO(mapped)
{
    const struct mapped m = reserve(4 * MIB), n = reserve(8 * MIB);
    ncclComm_t first, second;
    char *from, *to;

    comm_make(r, 0);
    first = r->comm;
    comm_make(r, 1);
    second = r->comm;
    to = map_new(r, &n);
    for (int i = 0; i < 3; i++) {
        from = map_new(r, &m);
        r->comm = i % 2 ? second : first;
        all_gather(r, from, to);
        ring(r, from + MIB, from);
        r->comm = second;
        all_gather(r, from, to);
        OK(cuMemFree(m.at) != CUDA_ERROR_INVALID_VALUE); /* that is for memory of cuMemAlloc */
        unmap(&m);
    }
    from = map_new(r, &m);
    all_gather(r, from, to);
    r->comm = first;
    all_gather(r, from, to);
    comm_end(r);
    give_up(&m);
    r->comm = second;
    comm_end(r);
    give_up(&n);
}

/* As mapped, with memory that cudaMalloc gives past the pool; of a second communicator, too, which goes first. */
SCENARIO(reused)
{
    char *from, *to = get(8 * MIB), *was = NULL;
    ncclComm_t first, second;

    comm_make(r, 0);
    first = r->comm;
    comm_make(r, 1);
    second = r->comm;
    for (int i = 0; i < 4; i++) {
        from = get(4 * MIB);
        if (was && from != was)
            FAIL("another address");
        was = from;
        for (int j = 0; j < 2; j++) {
            r->comm = j ? second : first;
            if (i == 3 && j)
                comm_end(r);
            else
                all_gather(r, from, to);
        }
        if (cudaFree(from + 4096) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
            FAIL("it is freed from inside");
        CU(cudaFree(from));
        if (cudaFree(from) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
            FAIL("it is freed twice");
    }
    r->comm = first;
    comm_end(r);
    CU(cudaFree(to));
}

static size_t left(void)
{
    size_t bytes, total;

    CU(cudaMemGetInfo(&bytes, &total));
    return bytes;
}

/* Freed within a group, by a stream under work that waits for what the host does next, and in a capture: it goes later,
 * and is not freed again. */
SCENARIO(later)
{
    static atomic_int called;
    char *at = get(8 * MIB), *other;
    cudaGraph_t graph;
    size_t before;

    comm_make(r, 0);
    all_gather(r, at, at + MIB);
    before = left();
    for (int i = 0; i < 3; i++) {
        other = get(4 * MIB);
        all_gather(r, other, at);
        fill(other, r->rank, COUNT);
        if (i == 0) {
            NC(ncclGroupStart());
            NC(ncclAllGather(other, at, COUNT, ncclFloat, r->comm, r->stream));
            CU(cudaFree(other));
        } else if (i == 1) {
            while (r->rank != 0 && !called)
                usleep(100);
            NC(ncclAllGather(other, at, COUNT, ncclFloat, r->comm, r->stream));
            CU(cudaFreeAsync(other, r->stream));
            if (r->rank == 0)
                called = 1;
        } else {
            CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
            if (cudaFreeAsync(other, r->stream) == cudaSuccess || cudaGetLastError() == cudaSuccess)
                FAIL("a graph frees what none has allocated");
            CU(cudaFree(other));
        }
        if (cudaFree(other) != cudaErrorInvalidValue || cudaGetLastError() != cudaErrorInvalidValue)
            FAIL("it is freed twice");
        if (i == 0)
            NC(ncclGroupEnd());
        if (i == 2) {
            CU(cudaStreamEndCapture(r->stream, &graph));
            CU(cudaGraphDestroy(graph));
        } else {
            for (int j = 0; j < ranks; j++)
                expect(r, at + (size_t)j * BYTES, j, "all_gather");
        }
        /* The next to be used takes it along. */
        all_gather(r, at, at + MIB);
        other = get(4 * MIB);
        all_gather(r, other, at);
        CU(cudaFree(other));
        if (left() != before)
            FAIL("%zu bytes are not free again", before - left());
    }
    comm_end(r);
    CU(cudaFree(at));
}

/* Unmapped within a group, and something else there afterwards. */
SCENARIO(unmapped)
{
    const struct mapped m = reserve(4 * MIB);
    char *at = get(8 * MIB), *from = map_new(r, &m);

    comm_make(r, 0);
    all_gather(r, from, at);
    NC(ncclGroupStart());
    NC(ncclAllGather(at, at + MIB, COUNT, ncclFloat, r->comm, r->stream));
    unmap(&m);
    NC(ncclGroupEnd());
    from = map_new(r, &m);
    all_gather(r, from, at);
    comm_end(r);
    give_up(&m);
    CU(cudaFree(at));
}

/* An unmapping of a part is refused: all of it stays. */
SCENARIO(not_unmapped)
{
    const struct mapped m = reserve(4 * MIB);
    char *at = get(8 * MIB), *from = map_new(r, &m);

    comm_make(r, 0);
    all_gather(r, from, at);
    OK(cuMemUnmap(m.at + 2 * MIB, 2 * MIB) != CUDA_ERROR_INVALID_VALUE);
    all_gather(r, from, at);
    comm_end(r);
    give_up(&m);
    CU(cudaFree(at));
}

/* Unmapped while another thread calls NCCL for the same device. */
static void *others_ops(void *arg)
{
    struct rank *r = arg;
    char *at;

    CU(cudaSetDevice(r->rank));
    CU(cudaStreamCreate(&r->stream));
    at = get(8 * MIB);
    comm_make(r, 1);
    for (int i = 0; i < 1000; i++) {
        NC(ncclAllGather(at, at + MIB, 1000, ncclFloat, r->comm, r->stream));
        if (i % 10 == 0)
            CU(cudaStreamSynchronize(r->stream));
    }
    comm_end(r);
    CU(cudaFree(at));
    return NULL;
}

SCENARIO(beside)
{
    const struct mapped m = reserve(4 * MIB);
    char *at = get(8 * MIB);
    struct rank others = *r;
    pthread_t other;

    pthread_create(&other, NULL, others_ops, &others);
    comm_make(r, 0);
    for (int i = 0; i < 50; i++) {
        all_gather(r, map_new(r, &m), at);
        unmap(&m);
    }
    pthread_join(other, NULL);
    comm_end(r);
    OK(cuMemAddressFree(m.at, m.size));
    CU(cudaFree(at));
}

/* The driver's own free, which no preload sees. */
static __typeof__(&cuMemFree_v2) driver_free(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const __typeof__(&cuMemFree_v2) found = driver ? (__typeof__(&cuMemFree_v2))dlsym(driver, "cuMemFree_v2") : NULL;

    if (!found || found == cuMemFree_v2)
        FAIL("no other cuMemFree_v2");
    return found;
}

/* Freed by a caller that no preload sees, and other memory there afterwards. */
SCENARIO(unseen)
{
    char *at = get(8 * MIB), *from = get(4 * MIB), *was = from;
    const __typeof__(&cuMemFree_v2) free_past = driver_free();

    comm_make(r, 0);
    all_gather(r, from, at);
    OK(free_past((uintptr_t)from));
    from = get(4 * MIB);
    if (from != was)
        FAIL("another address");
    all_gather(r, from, at);
    comm_end(r);
    CU(cudaFree(from));
    CU(cudaFree(at));
}

/* Freed in a group, so that it goes later, and before that by a caller that no preload sees: what is there now stays.
 */
SCENARIO(unseen_later)
{
    char *at = get(8 * MIB), *from = get(4 * MIB), *was = from;
    const __typeof__(&cuMemFree_v2) free_past = driver_free();

    comm_make(r, 0);
    all_gather(r, from, at);
    NC(ncclGroupStart());
    CU(cudaFree(from));
    OK(free_past((uintptr_t)from));
    from = get(4 * MIB);
    NC(ncclGroupEnd());
    if (from != was)
        FAIL("another address");
    all_gather(r, from, at);
    comm_end(r);
    CU(cudaFree(from));
    CU(cudaFree(at));
}

/* The context goes with what was used in it, and what was freed in a capture and is still kept; other memory is there
 * next. */
SCENARIO(reset)
{
    char *at, *other, *was = NULL;
    cudaStream_t stream;
    cudaGraph_t graph;

    for (int i = 0; i < 3; i++) {
        at = get(8 * MIB);
        if (i == 1)
            CU(cudaMallocAsync((void **)&other, 4 * MIB, r->stream));
        else
            other = get(4 * MIB);
        if (was && other != was)
            FAIL("another address");
        was = other;
        fill(other, r->rank, COUNT);
        comm_make(r, i);
        all_gather(r, at, at + MIB);
        expect(r, other, r->rank, "memory that nobody freed");
        if (i != 1)
            all_gather(r, other, at);
        comm_end(r);
        if (i != 1) {
            CU(cudaStreamCreate(&stream));
            CU(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed));
            CU(cudaFreeAsync(other, stream)); /* nothing is waited for beside a capture */
            CU(cudaStreamEndCapture(r->stream, &graph));
            CU(cudaGraphDestroy(graph));
        }
        CU(cudaDeviceReset());
        CU(cudaStreamCreate(&r->stream));
    }
}

/* Send and receive first, then collectives, in memory that nothing lies in front of. */
SCENARIO(past_kinds)
{
    const struct mapped m = reserve(8 * MIB);
    char *at = map_new(r, &m);

    comm_make(r, 0);
    ring(r, at, at + MIB);
    all_gather(r, at + 2 * MIB, at + 4 * MIB);
    ring(r, at, at + MIB);
    comm_end(r);
    give_up(&m);
}

/* Memory whose end is not certain to be seen, that others cannot map, or that shares its pages: all but the last time
 * with a buffer in registered memory. */
SCENARIO(never)
{
    const struct mapped m[2] = {reserve(4 * MIB), reserve(4 * MIB)};
    CUmemGenericAllocationHandle handle, imported;
    char *at = get(8 * MIB), *other;
    int fd;

    comm_make(r, 0);
    CU(cudaMallocAsync((void **)&other, 4 * MIB, r->stream));
    all_gather(r, at, other);
    CU(cudaFreeAsync(other, r->stream));
    CU(cudaMallocManaged((void **)&other, 4 * MIB, cudaMemAttachGlobal));
    all_gather(r, at, other);
    CU(cudaFree(other));
    other = get(MIB);
    all_gather(r, at, other);
    CU(cudaFree(other));
    all_gather(r, at, map(r, &m[0], create(r, m[0].size, CU_MEM_HANDLE_TYPE_NONE)));
    handle = create(r, m[1].size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemRelease(handle));
    all_gather(r, at, map(r, &m[1], imported));
    comm_end(r);
    for (int i = 0; i < 2; i++)
        give_up(&m[i]);
    CU(cudaFree(at));
}

/* Parts of physical memory: the rest may be mapped elsewhere. And memory of another device. */
SCENARIO(parts)
{
    static const size_t offsets[] = {0, 2 * MIB, 4 * MIB};
    char *at = get(8 * MIB), *far;

    comm_make(r, 0);
    for (int i = 0; i < 3; i++) {
        const struct mapped m = reserve(4 * MIB);

        all_gather(r, map_at(r, &m, create(r, 8 * MIB, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), offsets[i]), at);
        give_up(&m);
    }
    CU(cudaSetDevice((r->rank + 1) % ranks));
    far = get(4 * MIB);
    CU(cudaSetDevice(r->rank));
    all_gather(r, far, at);
    comm_end(r);
    CU(cudaFree(at));
    CU(cudaFree(far));
}

/* A buffer of which one allocation has the first part only. The stand-in has no such memory, and refuses the call. */
SCENARIO(in_two)
{
    const struct mapped both = reserve(8 * MIB), first = {both.at, 4 * MIB}, second = {both.at + 4 * MIB, 4 * MIB};
    char *at;

    comm_make(r, 0);
    map_new(r, &first);
    at = map_new(r, &second) - BYTES / 2;
    if (!ncclAllGather(at, at, COUNT, ncclFloat, r->comm, r->stream))
        FAIL("it is not refused");
    comm_end(r);
    unmap(&first);
    unmap(&second);
    OK(cuMemAddressFree(both.at, both.size));
}

/* Memory is freed past the library, and what comes to its address, by a call that is not watched, is smaller. */
SCENARIO(unseen_smaller)
{
    const __typeof__(&cuMemFree_v2) free_past = driver_free();
    char *at = get(8 * MIB), *was, *now;
    size_t pitch;

    comm_make(r, 0);
    was = get(8 * MIB);
    OK(free_past((uintptr_t)was));
    for (int i = 0; !i || (now != was && i < 16); i++) /* others lie where there was room before */
        CU(cudaMallocPitch((void **)&now, &pitch, 4096, 1024));
    if (now != was)
        FAIL("another address");
    all_gather(r, now, at);
    CU(cudaFree(now));
    comm_end(r);
    CU(cudaFree(at));
}

/* Two allocations that were used are freed past the library, and one comes to the addresses of both. */
SCENARIO(unseen_larger)
{
    const __typeof__(&cuMemFree_v2) free_past = driver_free();
    char *at = get(8 * MIB), *first, *second, *both;

    comm_make(r, 0);
    first = get(64 * MIB); /* where there was no room before */
    second = get(64 * MIB);
    if (second != first + 64 * MIB)
        FAIL("nothing to see");
    all_gather(r, first, at);
    all_gather(r, second, at);
    OK(free_past((uintptr_t)first));
    OK(free_past((uintptr_t)second));
    both = get(128 * MIB);
    if (both != first)
        FAIL("another address");
    all_gather(r, both + 64 * MIB, at);
    all_gather(r, both, at);
    comm_end(r);
    CU(cudaFree(both));
    CU(cudaFree(at));
}
