/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_memory_calls.c - shim/exports/runtime.c, driver.c, memory.c and pointers.c, and shim/serve/serve.c: one program
 * that allocates, asks, frees, also wrongly, fills the device and captures, in which each call of the driver fails in
 * turn. memory_*.txt has a row for each, as in test_nccl_calls.c.
 */
#include "base/process.h"
#include "context/ready.h"
#include "cupool.h"
#include "serve/serve.h"
#include "snapshot_rows.h"

static const char *const names[] = {
#define DRIVER_CALL(symbol, parameters) #symbol,
#include "real/calls.def"
};

/* --- the real functions --- */

static CUresult real_alloc(CUdeviceptr *ptr, size_t size)
{
    return ptr ? fake.driver.cuMemAlloc_v2(ptr, size) : CUDA_ERROR_INVALID_VALUE;
}

static int real_free(CUdeviceptr ptr)
{
    return ptr ? (int)fake.driver.cuMemFree_v2(ptr) : 0;
}

static int real_free_async(CUdeviceptr ptr, CUstream stream)
{
    return (int)fake.driver.cuMemFreeAsync(ptr, stream);
}

static int real_info(size_t *free, size_t *total)
{
    return (int)fake.driver.cuMemGetInfo_v2(free, total);
}

static CUresult real_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    return fake.driver.cuPointerGetAttribute(data, attribute, ptr);
}

static CUresult real_attributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    CUresult result = CUDA_SUCCESS;

    for (unsigned int i = 0; !result && i < count; i++)
        result = fake.driver.cuPointerGetAttribute(data[i], attributes[i], ptr);
    return result;
}

static CUresult real_range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr)
{
    const struct fake_range *range = fake_range_of(ptr);

    if (!range)
        return CUDA_ERROR_NOT_FOUND;
    *base = range->addr;
    *size = range->size;
    return CUDA_SUCCESS;
}

static unsigned int elapsed_asked;

static CUresult real_elapsed(float *ms, CUevent start, CUevent end)
{
    *ms = 3;
    return ++elapsed_asked % 2 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* --- the program --- */

static void ask(struct row *row, const char *block)
{
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    const CUdeviceptr addr = (uintptr_t)block;
    CUdeviceptr start = 0;
    unsigned long long types = 7;
    size_t size = 0, free = 0, total = 0;
    void *data[] = {&start, &size, &types, &total};

    STEP(row, "attribute", cuPointerGetAttribute(&start, attributes[0], addr + 5));
    STEP(row, "start", start - addr);
    STEP(row, "attributes", cuPointerGetAttributes(COUNT(attributes), attributes, data, addr + 5));
    STEP(row, "size", size);
    STEP(row, "types", types);
    STEP(row, "range", cuMemGetAddressRange_v2(&start, &size, addr + 7));
    STEP(row, "start", start - addr);
    STEP(row, "size", size);
    STEP(row, "info", cuMemGetInfo_v2(&free, &total));
    STEP(row, "free", free / MIB);
    STEP(row, "cuda_info", cudaMemGetInfo(&free, &total));
    STEP(row, "free", free / MIB);
}

static void capturing(struct row *row)
{
    const CUstream stream = fake_stream(4, 0);
    void *ptr = NULL;
    CUcontext own;

    STEP(row, "malloc", cudaMalloc(&ptr, 2000));
    own = capture_begin(stream);
    fake.streams[4].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(own, stream, true);
    STEP(row, "captured", ptr ? cudaFree(ptr) : 0);
    STEP(row, "malloc", cudaMalloc(&ptr, 30 * MIB));
    fake.streams[4].captures = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_check(stream, false, atomic_load(&capture_total));
    STEP(row, "after", cudaFree(ptr));
}

static void program(struct row *row)
{
    CUdeviceptr driver = 0;
    char *large = NULL, *small = NULL, *most = NULL;
    float ms = 0;

    STEP(row, "malloc", cudaMalloc((void **)&large, 3 * MIB));
    STEP(row, "malloc", cudaMalloc((void **)&small, 1000));
    STEP(row, "alloc", cuMemAlloc_v2(&driver, 5 * MIB));
    STEP(row, "nothing", cudaMalloc((void **)&most, 0));
    STEP(row, "nowhere", cuMemAlloc_v2(NULL, 1));
    if (small)
        ask(row, small);
    STEP(row, "cuda_free", cudaFree(small));
    STEP(row, "again", cudaFree(small));
    STEP(row, "inside", cudaFree(large + 512));
    STEP(row, "unknown", cudaFree((void *)0x123400));
    STEP(row, "none", cudaFree(NULL));
    STEP(row, "free_async", cudaFreeAsync(large, NULL));
    STEP(row, "free_async", cuMemFreeAsync(driver, NULL));
    STEP(row, "again", cuMemFree_v2(driver));
    STEP(row, "elapsed", cuEventElapsedTime(&ms, (CUevent)&fake.events[0], (CUevent)&fake.events[1]));
    STEP(row, "hit", cudaMalloc((void **)&small, 900));
    STEP(row, "cuda_free", cudaFree(small));
    STEP(row, "trim", cupool_lib_trim(0) / (long long)MIB);
    STEP(row, "large", cudaMalloc((void **)&large, 3 * MIB));
    STEP(row, "cuda_free", cudaFree(large));
    STEP(row, "most", cudaMalloc((void **)&most, FAKE_CAPACITY - 2 * MIB));
    STEP(row, "refused", cudaMalloc((void **)&large, 6 * MIB));
    STEP(row, "small", cudaMalloc((void **)&small, 700));
    STEP(row, "cuda_free", cudaFree(small));
    STEP(row, "most_free", most ? cudaFree(most) : 0);
    capturing(row);
}

static void play_fault(struct row *row, unsigned int n)
{
    struct context *context;
    struct pool_stats is;

    fake_start();
    fake.next_of[REAL_cudaMalloc] = fake.next_of[REAL_cuMemAlloc_v2] = (void *)real_alloc;
    fake.next_of[REAL_cudaFree] = fake.next_of[REAL_cuMemFree_v2] = (void *)real_free;
    fake.next_of[REAL_cudaFreeAsync] = fake.next_of[REAL_cuMemFreeAsync] = (void *)real_free_async;
    fake.next_of[REAL_cudaMemGetInfo] = fake.next_of[REAL_cuMemGetInfo_v2] = (void *)real_info;
    fake.next_of[REAL_cuPointerGetAttribute] = (void *)real_attribute;
    fake.next_of[REAL_cuPointerGetAttributes] = (void *)real_attributes;
    fake.next_of[REAL_cuMemGetAddressRange_v2] = (void *)real_range;
    fake.next_of[REAL_cuEventElapsedTime] = (void *)real_elapsed;
    context = pooled(0);
    process_start();
    fake.steps = 0;
    fake_log();
    fake.fault_at = n;
    fake.fault = CUDA_ERROR_UNKNOWN;
    fake.faulted = COUNT(names);
    program(row);
    row->more = !n || fake.steps >= n;
    fake.fault_at = 0;
    pool_stats_get(context->pool, &is);
    snprintf(row->name, sizeof(row->name), "%s", fake.faulted < COUNT(names) ? names[fake.faulted] : "all");
    snprintf(row->end, sizeof(row->end),
             "allocs %d hits %d frees %d order %d kept %d held %d idle %d oom %d free %d bypassed %d", (int)is.allocs,
             (int)is.hits, (int)is.frees, (int)is.order, (int)is.kept, (int)(is.held / MIB), (int)(is.idle / MIB),
             (int)is.oom, (int)(fake.free / MIB), (int)context->bypassed);
    row_digest(row, fake.log);
    row_digest(row, fake.traced);
    assert_true(fake.logged < sizeof(fake.log) - 1 && strlen(fake.traced) < sizeof(fake.traced) - 1);
}

ISOLATED_CASE(test_ordered, .environment = ORDERED)
{
    rows_test("shim/exports/memory_ordered", play_fault);
}

ISOLATED_CASE(test_auto, .environment = "CUPOOL_FREE=auto CUPOOL_TRACE_EVENTS=segment,alloc")
{
    rows_test("shim/exports/memory_auto", play_fault);
}

ISOLATED_CASE(test_relaxed, .environment = "CUPOOL_FREE=relaxed CUPOOL_DECAY=0")
{
    rows_test("shim/exports/memory_relaxed", play_fault);
}

ISOLATED_CASE(test_strict, .environment = "CUPOOL_FREE=strict CUPOOL_FILL=native")
{
    rows_test("shim/exports/memory_strict", play_fault);
}
