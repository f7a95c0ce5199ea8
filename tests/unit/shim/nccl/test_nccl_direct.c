/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_direct.c - shim/nccl/direct.c: memory that the program takes past the pool, with CUPOOL_REGISTER=use. Which
 * is used, and how it goes.
 */
#include <pthread.h>

#include "nccl/direct.h"
#include "nccl/pool_segments.h"
#include "nccl/register_calls.h"
#include "standin.h"

#define TYPE_INT8 0
#define USED      "CUPOOL_FREE=ordered CUPOOL_REGISTER=use"

static ncclResult_t reduce(ncclComm_t comm, uint64_t addr, size_t size)
{
    return ncclAllReduce((const void *)(uintptr_t)addr, (void *)(uintptr_t)addr, size, TYPE_INT8, 0, comm, NULL);
}

static ncclComm_t comm_begin(void)
{
    const ncclUniqueId id = {{0}};
    ncclComm_t comm = NULL;

    nccl_start();
    nccl_begin();
    assert_int_equal(ncclCommInitRank(&comm, 2, id, 1), 0);
    return comm;
}

/* Physical memory of this size is mapped as a whole. */
static void map(CUdeviceptr addr, size_t size)
{
    fake_range_add(addr, size, CU_MEMORYTYPE_DEVICE, 0);
    fake_range_of(addr)->shareable = true;
    direct_created(77, size);
    direct_mapped(addr, size, 77);
}

/* --- which is used --- */

/* It is used if the driver says the same of it as the calls that made it. */
static const struct usable {
    bool mapped, used;
    size_t size;         /* of the allocation, when it was made */
    int64_t start, more; /* the driver's answer: where it begins, and how much larger it is */
    int device;
    bool is_private;
} usables[] = {
    {.size = 2 * MIB, .used = true},
    {.size = 2 * MIB - 1},
    {.size = 2 * MIB, .more = 4096, .used = true}, /* rounded up */
    {.size = 2 * MIB, .more = -1},
    {.size = 4 * MIB, .start = -4096, .more = 4096},
    {.size = 2 * MIB, .device = 1},
    {.size = 2 * MIB, .is_private = true, .used = true},
    {.mapped = true, .size = 2 * MIB, .used = true},
    {.mapped = true, .size = 2 * MIB, .more = 4096},
    {.mapped = true, .size = 2 * MIB, .more = -4096},
    {.mapped = true, .size = 2 * MIB, .start = -4096, .more = 4096},
    {.mapped = true, .size = 2 * MIB, .device = 1},
    {.mapped = true, .size = 2 * MIB, .is_private = true},
};

ISOLATED_ROWS(test_usable, usables, .environment = USED)
{
    const struct usable *row = *state;
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};

    fake_range_add(addr + (CUdeviceptr)row->start, row->size + (size_t)row->more, CU_MEMORYTYPE_DEVICE, row->device);
    fake_range_of(addr)->shareable = !row->is_private;
    if (row->mapped) {
        direct_created(77, row->size);
        direct_mapped(addr, row->size, 77);
    } else {
        direct_allocated(addr, row->size);
    }
    assert_int_equal(reduce(comm, addr + row->size, 64), 0); /* behind it */
    assert_int_equal(reduce(comm, addr + row->size - 64, 65), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0);
    assert_int_equal(reduce(comm, addr + row->size - 64, 64), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, row->used);
    assert_int_equal(is.attached, row->used);
}

/* --- how it is freed --- */

/* Only the program's own cuMemFree may wait for the device, at once. Memory that goes later, or was freed on a stream,
 * goes through the library's own stream, whatever the device has to do by then. */
static const struct freed {
    bool waits, grouped, busy;
    CUresult result;
    unsigned int waited, later; /* calls of cuMemFree and cuMemFreeAsync */
} freed[] = {
    {.waits = true, .waited = 1},
    {.waits = true, .result = CUDA_ERROR_UNKNOWN, .waited = 1},
    {.waits = true, .grouped = true, .later = 1},
    {.later = 1},
    {.busy = true, .later = 1},
    {.grouped = true, .later = 1},
};

ISOLATED_ROWS(test_freed, freed, .environment = USED)
{
    const struct freed *row = *state;
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr addr = 0;

    assert_int_equal(fake.driver.cuMemAlloc_v2(&addr, 4 * MIB), CUDA_SUCCESS);
    direct_allocated(addr, 4 * MIB);
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(reduce(comm, addr, MIB), 0);
    if (!row->grouped)
        assert_int_equal(ncclGroupEnd(), 0);
    fake.contexts[0].launched += row->busy;
    fake_fail(FN(cuMemFree_v2), row->result, row->result ? 1 : 0);
    assert_true(direct_free(addr, row->waits, &result));
    assert_int_equal(result, row->result);
    if (row->grouped)
        assert_int_equal(ncclGroupEnd(), 0);
    fake.contexts[0].over = fake.contexts[0].launched;
    if (row->grouped)
        fake.contexts[0].launched++; /* it never ends */
    nccl_retry_parked(-1);
    assert_int_equal(fake_calls(FN(cuMemFree_v2)), row->waited);
    assert_int_equal(fake_calls(FN(cuMemFreeAsync)), row->later);
    assert_int_equal(fake_range_of(addr) == NULL, !row->result);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0);
    assert_int_equal(is.detached, 1);
}

/* While it is deregistered, another thread gets memory at its address: it has gone unseen. */
static void *other_memory(void *arg)
{
    fake_current(fake_context(0));
    direct_allocated(fake.ranges[0].addr, fake.ranges[0].size);
    return NULL;
}

static ncclResult_t detach_beside_other_memory(ncclComm_t comm, void *handle)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, other_memory, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return ncclSuccess;
}

ISOLATED_CASE(test_freed_beside_other_memory, .environment = USED)
{
    const ncclComm_t comm = comm_begin();
    CUresult result = CUDA_ERROR_UNKNOWN;
    CUdeviceptr addr = 0;

    assert_int_equal(fake.driver.cuMemAlloc_v2(&addr, 4 * MIB), CUDA_SUCCESS);
    assert_int_equal(addr, fake.ranges[0].addr);
    direct_allocated(addr, 4 * MIB);
    assert_int_equal(reduce(comm, addr, MIB), 0);
    nccl.functions.ncclCommDeregister = detach_beside_other_memory;
    assert_true(direct_free(addr, /* waits: */ true, &result));
    assert_int_equal(result, CUDA_SUCCESS);
    assert_non_null(fake_range_of(addr));
    assert_int_equal(fake_calls(FN(cuMemFree_v2)), 0);
}

/* Meanwhile another thread begins a call that may end its context: nothing is called for that. */
static ncclResult_t detach_beside_an_end(ncclComm_t comm, void *handle)
{
    atomic_store(&context_find(fake_context(0))->leaving, 1);
    return ncclSuccess;
}

static bool const ends[] = {false, true};

ISOLATED_ROWS(test_freed_beside_an_end, ends, .environment = USED)
{
    const ncclComm_t comm = comm_begin();
    CUresult result = CUDA_ERROR_UNKNOWN;
    struct context *context;
    CUdeviceptr addr = 0;

    assert_int_equal(fake.driver.cuMemAlloc_v2(&addr, 4 * MIB), CUDA_SUCCESS);
    direct_allocated(addr, 4 * MIB);
    assert_int_equal(reduce(comm, addr, MIB), 0);
    context = context_find(fake_context(0));
    nccl.functions.ncclCommDeregister = detach_beside_an_end;
    assert_true(direct_free(addr, /* waits: */ false, &result));
    assert_int_equal(result, CUDA_SUCCESS);
    atomic_store(&context->leaving, 0);
    assert_int_equal(fake_calls(FN(cuMemFree_v2)) + fake_calls(FN(cuMemFreeAsync)), 0);
    if (*(const bool *)*state)
        context_gone(context_leaving(fake_context(0)), true);
    nccl_retry_parked(-1);
    assert_int_equal(fake_calls(FN(cuMemFree_v2)), 0);
    assert_int_equal(fake_calls(FN(cuMemFreeAsync)), !*(const bool *)*state);
}

static CUresult refuse(CUdeviceptr addr)
{
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult refuse_later(CUdeviceptr addr, CUstream stream)
{
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* The driver refuses to free memory that is not used yet: it is registered with its next use all the same. */
ISOLATED_CASE(test_not_freed, .environment = USED)
{
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};
    CUdeviceptr addrs[3] = {0};

    fake.next_of[REAL_cuMemFree_v2] = (void *)refuse;
    fake.next_of[REAL_cuMemFreeAsync] = (void *)refuse_later;
    for (unsigned int i = 0; i < 3; i++) {
        assert_int_equal(fake.driver.cuMemAlloc_v2(&addrs[i], 4 * MIB), CUDA_SUCCESS);
        direct_allocated(addrs[i], 4 * MIB);
    }
    assert_int_equal(cuMemFree_v2(addrs[0]), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_int_equal(cuMemFreeAsync(addrs[1], NULL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    fake.next_of[REAL_cuMemFree_v2] = (void *)fake.driver.cuMemFree_v2;
    assert_int_equal(cuMemFree_v2(addrs[2]), CUDA_SUCCESS);
    for (unsigned int i = 0; i < 3; i++)
        assert_int_equal(reduce(comm, addrs[i], MIB), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 2);
    /* Nor does anything come back that its context has taken along. */
    assert_int_equal(fake.driver.cuMemAlloc_v2(&addrs[2], 4 * MIB), CUDA_SUCCESS);
    direct_allocated(addrs[2], 4 * MIB);
    assert_false(direct_free(addrs[2], /* waits: */ true, &(CUresult){0}));
    context_gone(context_leaving(fake_context(0)), true);
    direct_freed(addrs[2], /* done: */ false);
    assert_int_equal(reduce(comm, addrs[2], MIB), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0);
}

/* NCCL's memory at an address of a pool whose context has ended is deregistered before it goes. */
ISOLATED_CASE(test_of_nccl_and_once_of_the_pool, .environment = USED)
{
    const ncclComm_t comm = comm_begin();
    struct context *context = pooled(0);
    struct nccl_reg_stats is = {0};
    uint64_t addr = 0;

    assert_int_equal(pool_alloc(context->pool, 3 * MIB, &addr), 0);
    atomic_store(&contexts_closing, 1);
    atomic_store(&context->ending, true);
    nccl_user_memory(addr, 4 * MIB);
    assert_int_equal(reduce(comm, addr, MIB), 0);
    assert_int_equal(ncclMemFree((void *)(uintptr_t)addr), ncclSuccess);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0);
    assert_int_equal(is.detached, 1);
}

/* --- how it is unmapped --- */

/* It is unmapped while a group is open, which would be waited for in vain: nobody waits. */
ISOLATED_CASE(test_unmapped_in_a_group, .environment = USED)
{
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    uint64_t before;

    map(addr, 2 * MIB);
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(reduce(comm, addr, 64), 0);
    before = now();
    direct_range_ends(addr, 2 * MIB);
    assert_int_equal(now(), before);
    assert_non_null(strstr(fake.said, "go although NCCL has them registered"));
    assert_int_equal(ncclGroupEnd(), 0);
}

/* It could not be deregistered when it was unmapped, and then the pool gets memory there. */
ISOLATED_CASE(test_unmapped_and_of_the_pool_now, .environment = USED)
{
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};

    map(addr, 4 * MIB);
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(reduce(comm, addr, 64), 0);
    direct_unmaps(addr, 4 * MIB);
    direct_unmapped(addr, 4 * MIB, /* done: */ true);
    assert_int_equal(ncclGroupEnd(), 0);
    nccl_segment_add(pooled(0), 0, addr + 2 * MIB, 4 * MIB);
    assert_null(strstr(fake.said, "will not be registered"));
    assert_int_equal(reduce(comm, addr + 2 * MIB, 64), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 1);
    assert_int_equal(is.attached, 2);
    assert_int_equal(is.detached, 1);
}

/* Natively an unmapping waits for nothing, and the device may wait for this thread. */
ISOLATED_CASE(test_unmapped_beside_work_without_end, .environment = USED)
{
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};
    uint64_t before;

    map(addr, 2 * MIB);
    map(addr + 2 * MIB, 2 * MIB);
    assert_int_equal(reduce(comm, addr, 64), 0);
    assert_int_equal(reduce(comm, addr + 2 * MIB, 64), 0);
    fake.contexts[0].launched++;
    fake.relax_step = MS;
    before = now();
    direct_range_ends(addr, 4 * MIB);
    assert_in_range(now() - before, 1000 * MS, 1100 * MS); /* not for each of them */
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0);
    assert_int_equal(is.detached, 2);
}

/* Nor for a capture, which may be the thread's own: each is waited for once. Work without a capture is waited for each
 * time. */
ISOLATED_CASE(test_unmapped_beside_captures, .environment = USED)
{
    static const struct {
        unsigned int total, count, waits; /* captures so far, and now; how long the thread waits, in milliseconds */
    } unmaps[] = {{1, 1, 1000}, {1, 1, 0}, {1, 1, 0}, {2, 1, 1000}, {2, 1, 0}, {2, 0, 1000}, {2, 0, 1000}};
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    uint64_t before;

    fake.relax_step = MS;
    fake.contexts[0].launched++;
    for (size_t i = 0; i < COUNT(unmaps); i++) {
        map(addr + i * 2 * MIB, 2 * MIB);
        assert_int_equal(reduce(comm, addr + i * 2 * MIB, 64), 0);
        atomic_store(&capture_total, unmaps[i].total);
        atomic_store(&capture_count, unmaps[i].count);
        before = now();
        direct_range_ends(addr + i * 2 * MIB, 2 * MIB);
        assert_int_equal(now() - before, unmaps[i].waits * MS);
        atomic_store(&capture_count, 0);
    }
}

/* The driver refuses to unmap it: it is there as before, and registered anew with its next use. */
ISOLATED_CASE(test_not_unmapped, .environment = USED)
{
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};

    map(addr, 2 * MIB);
    map(addr + 2 * MIB, 2 * MIB); /* is not used yet */
    assert_int_equal(reduce(comm, addr, 64), 0);
    direct_unmaps(addr, 3 * MIB);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0); /* the driver's call comes after that */
    direct_unmapped(addr, 3 * MIB, /* done: */ false);
    assert_int_equal(reduce(comm, addr, 64), 0);
    assert_int_equal(reduce(comm, addr + 2 * MIB, 64), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 2);
    assert_int_equal(is.attached, 3);
    direct_unmaps(addr, 4 * MIB);
    direct_unmapped(addr, 4 * MIB, /* done: */ true);
    /* A refused call for these addresses brings nothing back that has gone. */
    direct_unmaps(addr, 4 * MIB);
    direct_unmapped(addr, 4 * MIB, /* done: */ false);
    assert_int_equal(reduce(comm, addr, 64), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.segments, 0);
    assert_int_equal(is.attached, 3);
}

/* Nor does it unmap memory of cuMemAlloc. */
ISOLATED_CASE(test_not_mapped, .environment = USED)
{
    const ncclComm_t comm = comm_begin();
    CUresult result = CUDA_ERROR_UNKNOWN;
    struct nccl_reg_stats is = {0};
    CUdeviceptr addr = 0;

    assert_int_equal(fake.driver.cuMemAlloc_v2(&addr, 4 * MIB), CUDA_SUCCESS);
    direct_allocated(addr, 4 * MIB);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(reduce(comm, addr, MIB), 0);
        direct_unmaps(addr, 4 * MIB);
        direct_unmapped(addr, 4 * MIB, /* done: */ false);
    }
    assert_int_equal(reduce(comm, addr, MIB), 0);
    nccl_stats_get(&is);
    assert_int_equal(is.attached, 3);
    assert_true(direct_free(addr, /* waits: */ true, &result));
    assert_int_equal(result, CUDA_SUCCESS);
    /* After a free nothing comes back. */
    direct_unmaps(addr, 4 * MIB);
    direct_unmapped(addr, 4 * MIB, /* done: */ false);
    assert_false(direct_free(addr, /* waits: */ true, &result));
}

/* Another thread has mapped other memory there since, at its end or at its beginning. */
ISOLATED_CASE(test_mapped_again, .environment = USED)
{
    const CUdeviceptr addr = 0x660000000000;
    const ncclComm_t comm = comm_begin();
    struct nccl_reg_stats is = {0};

    for (int i = 0; i < 4; i++) {
        const CUdeviceptr at = i < 2 ? addr + 2 * MIB : addr;

        map(addr, 4 * MIB);
        direct_unmaps(addr, 4 * MIB);
        fake_range_of(addr)->size = 0;
        map(at, 2 * MIB);
        direct_unmapped(addr, 4 * MIB, /* done: */ i % 2);
        assert_int_equal(reduce(comm, at, 64), 0);
        nccl_stats_get(&is);
        assert_int_equal(is.segments, 1);
        direct_unmaps(at, 2 * MIB);
        direct_unmapped(at, 2 * MIB, /* done: */ true);
        fake_range_of(at)->size = 0;
    }
}
