/* SPDX-License-Identifier: Apache-2.0 */
/* test_retry.c - shim/exports/retry.h: calls that the driver refuses for lack of memory, and which are made again after
 * idle memory has gone back. */
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/device.h"
#include "context/room.h"
#include "exports/retry.h"
#include "isolated.h"

#define ORDERED "CUPOOL_FREE=ordered"

/* Memory that another thread has given back during the call may be what it lacked. */
static unsigned int tries;

static CUresult next_arrives(CUcontext *context, CUdevice device)
{
    *context = fake_context(0);
    context_arrived();
    return tries++ ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

ISOLATED_CASE(test_again_on_device, .environment = ORDERED)
{
    CUcontext context;

    fake_start();
    process_start();
    fake.next_of[REAL_cuDevicePrimaryCtxRetain] = (void *)next_arrives;
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(tries, 2);
}

static CUresult next_refused_once(CUcontext *context, CUdevice device)
{
    *context = fake_context(0);
    return tries++ ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void idle_memory(struct context *context)
{
    uint64_t addr;

    assert_int_equal(pool_alloc(context->pool, MIB, &addr), 0);
    assert_int_equal(pool_free(addr), 0);
}

/* The second of two devices has idle memory. */
static struct context *idle_on_second(void)
{
    struct context *context;

    fake_start();
    fake.devices = 2;
    process_start();
    fake_current(fake_context(1));
    context = context_current(&fake.driver);
    idle_memory(context);
    return context;
}

/* Idle memory of the device that lacks some goes back, and that of another one is of no use to it. */
ISOLATED_CASE(test_idle_of_the_device, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    CUcontext made;

    (void)idle_on_second();
    fake_current(fake_context(0));
    fake.next_of[REAL_cuDevicePrimaryCtxRetain] = (void *)next_refused_once;
    assert_int_equal(cuDevicePrimaryCtxRetain(&made, 0), CUDA_ERROR_OUT_OF_MEMORY);
    tries = 0;
    assert_int_equal(cuDevicePrimaryCtxRetain(&made, 1), CUDA_SUCCESS);
}

/* Calls that may take another device's memory than the current one's: its stream's, its graph's, its handle's. */
static CUresult refused_once(void)
{
    return tries++ ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult maps(void)
{
    return cuMemMap(0, 2 * MIB, 0, 7, 0);
}

static CUresult maps_arrays(void)
{
    return cuMemMapArrayAsync(NULL, 0, fake_stream(0, 1));
}

static CUresult takes_async(void)
{
    CUdeviceptr ptr;

    return cuMemAllocAsync(&ptr, MIB, fake_stream(0, 1));
}

static CUresult launches(void)
{
    return cuGraphLaunch(NULL, fake_stream(0, 1));
}

static CUresult takes_pitch(void)
{
    CUdeviceptr ptr;
    size_t pitch;

    return cuMemAllocPitch_v2(&ptr, &pitch, 512, 2, 4);
}

static const struct elsewhere_row {
    CUresult (*call)(void);
    enum real_symbol symbol;
    CUresult result;
} elsewhere_rows[] = {
    {maps, REAL_cuMemMap, CUDA_SUCCESS},
    {maps_arrays, REAL_cuMemMapArrayAsync, CUDA_SUCCESS},
    {takes_async, REAL_cuMemAllocAsync, CUDA_SUCCESS},
    {launches, REAL_cuGraphLaunch, CUDA_SUCCESS},
    {takes_pitch, REAL_cuMemAllocPitch_v2, CUDA_ERROR_OUT_OF_MEMORY}, /* of the current one, always */
};

ISOLATED_ROWS(test_idle_elsewhere, elsewhere_rows, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    const struct elsewhere_row *row = *state;

    (void)idle_on_second();
    fake_current(fake_context(0));
    fake.next_of[row->symbol] = (void *)refused_once;
    assert_int_equal(row->call(), row->result);
}

/* A request that no memory given back could make fit leaves idle memory where it is: it is for more than the device has
 * beside the blocks that are handed out. */
static CUdeviceptr answer;
static size_t request;

static CUresult is_refused(void)
{
    tries++;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult asks(void)
{
    CUresult result;

    process_bypass_begin(); /* as after the pool's own refusal */
    result = cuMemAlloc_v2(&answer, request);
    process_bypass_end();
    return result;
}

static CUresult asks_async(void)
{
    return cuMemAllocAsync(&answer, request, NULL);
}

static CUresult asks_async_on_other(void)
{
    return cuMemAllocAsync_ptsz(&answer, request, fake_stream(0, 1));
}

static CUresult asks_pool(void)
{
    return cuMemAllocFromPoolAsync(&answer, request, NULL, NULL);
}

static CUresult asks_pool_on_other(void)
{
    return cuMemAllocFromPoolAsync_ptsz(&answer, request, NULL, NULL);
}

static CUresult asks_lines(void)
{
    size_t pitch;

    return cuMemAllocPitch_v2(&answer, &pitch, request / 64, 64, 4);
}

static CUresult asks_lines_of_all(void)
{
    size_t pitch;

    return cuMemAllocPitch_v2(&answer, &pitch, (size_t)1 << 40, (size_t)1 << 24, 4); /* 0 in 64 bits */
}

static CUresult creates(void)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle = 0;

    return cuMemCreate(&handle, request, &properties, 0);
}

static CUresult creates_on_host(void)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
    CUmemGenericAllocationHandle handle = 0;

    return cuMemCreate(&handle, request, &properties, 0);
}

static CUresult asks_managed(void)
{
    return cuMemAllocManaged(&answer, request, CU_MEM_ATTACH_GLOBAL);
}

static const struct too_much_row {
    CUresult (*call)(void);
    enum real_symbol symbol;
    bool gives_never, gives_always;
} too_much_rows[] = {
    {.call = asks, .symbol = REAL_cuMemAlloc_v2},
    {.call = asks_async, .symbol = REAL_cuMemAllocAsync},
    {.call = asks_async_on_other, .symbol = REAL_cuMemAllocAsync_ptsz},
    {.call = asks_pool, .symbol = REAL_cuMemAllocFromPoolAsync},
    {.call = asks_pool_on_other, .symbol = REAL_cuMemAllocFromPoolAsync_ptsz},
    {.call = asks_lines, .symbol = REAL_cuMemAllocPitch_v2},
    {.call = asks_lines_of_all, .symbol = REAL_cuMemAllocPitch_v2, .gives_never = true},
    {.call = creates, .symbol = REAL_cuMemCreate},
    {.call = creates_on_host, .symbol = REAL_cuMemCreate, .gives_always = true},
    /* Natively it may be more than the device has. */
    {.call = asks_managed, .symbol = REAL_cuMemAllocManaged, .gives_always = true},
};

ISOLATED_ROWS(test_too_much, too_much_rows, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    const struct too_much_row *row = *state;
    struct context *context, *other;
    uint64_t live;

    fake_start();
    fake.devices = 2;
    process_start();
    fake_current(fake_context(1));
    other = context_current(&fake.driver);
    assert_int_equal(pool_alloc(other->pool, 100 * MIB, &live), 0);
    idle_memory(other);
    fake_current(fake_context(0));
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, 64 * MIB, &live), 0);
    idle_memory(context);
    fake.next_of[row->symbol] = (void *)is_refused;
    request = context->capacity - 64 * MIB + 64;
    assert_int_equal(row->call(), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(context->given != 0, row->gives_always);
    assert_int_equal(tries > 1, row->gives_always);
    request -= 64;
    assert_int_equal(row->call(), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(context->given != 0, !row->gives_never);
    assert_int_equal(other->given != 0, row->gives_always && row->symbol == REAL_cuMemAllocManaged);
}

static CUresult (*const busy_wanted[])(void) = {asks_async, launches};

/* The memory of another device is enough, the current one's is not. */
ISOLATED_CASE(test_fits_elsewhere, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    struct context *context, *other;
    uint64_t live;

    other = idle_on_second();
    fake_current(fake_context(0));
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, 64 * MIB, &live), 0);
    idle_memory(context);
    request = other->capacity;
    fake.next_of[REAL_cuMemAllocAsync] = (void *)refused_once;
    assert_int_equal(asks_async(), CUDA_SUCCESS);
    assert_int_equal(context->given, 0);
    assert_int_not_equal(other->given, 0);
}

/* A device that works, and idle memory, which another thread has freed. */
static void *busy_memory(void *handle)
{
    fake_current(handle);
    fake_context_of(handle)->launched = 1;
    idle_memory(context_current(&fake.driver));
    return NULL;
}

/* While others than the current one are waited for. */
static void all_have_begun(void *start)
{
    for (unsigned int i = 0; fake.ns > *(const uint64_t *)start + 340000000 && i < 4; i++)
        assert_int_not_equal(context_find(fake_context(i))->given, 0);
}

/* However many devices work, other threads' memory is waited for as long as that of two: the current one's, and then
 * all of it at once. */
ISOLATED_ROWS(test_busy_elsewhere, busy_wanted, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    uint64_t start;

    fake_start();
    fake.devices = 4;
    fake.relax_step = 1000000;
    process_start();
    for (unsigned int i = 0; i < 4; i++)
        elsewhere(busy_memory, fake_context(i));
    fake_current(fake_context(0));
    fake_fail(FN(cuStreamQuery), CUDA_ERROR_NOT_READY, 1000000);
    fake.next_of[REAL_cuMemAllocAsync] = fake.next_of[REAL_cuGraphLaunch] = (void *)is_refused;
    start = fake.ns;
    fake.relax = all_have_begun;
    fake.relax_arg = &start;
    request = MIB;
    assert_int_equal((*(CUresult(*const *)(void)) * state)(), CUDA_ERROR_OUT_OF_MEMORY);
    assert_in_range(fake.ns - start, 500000000, 650000000);
}

/* Blocks of a paused pool have no memory, so they take none from a request. */
ISOLATED_CASE(test_fits_beside_paused, .environment = ORDERED " CUPOOL_NEIGHBOURS=0 CUPOOL_BACKEND=vmm")
{
    struct context *context;
    uint64_t live;

    fake_start();
    process_start();
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, 64 * MIB, &live), 0);
    assert_false(device_may_fit(0, context->capacity));
    assert_int_equal(pool_suspend(context->pool, BACKEND_VMM), 0);
    pool_suspend_end(context->pool);
    assert_true(device_may_fit(0, context->capacity));
    assert_false(device_may_fit(0, context->capacity + 1));
    pool_resume_begin(context->pool);
    pool_resume_end(context->pool, true);
    assert_false(device_may_fit(0, context->capacity));
}

ISOLATED_CASE(test_more_than_there_is, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    struct context *context;
    struct retry retry;

    fake_start();
    process_start();
    context = context_current(&fake.driver);
    idle_memory(context);
    retry = (struct retry){.wanted = context->capacity + 1, .arrivals = serve_arrivals()};
    assert_false(retry_again(&retry, CUDA_ERROR_OUT_OF_MEMORY));
    assert_int_equal(context->given, 0);
    retry = (struct retry){.wanted = context->capacity, .arrivals = serve_arrivals()};
    assert_true(retry_again(&retry, CUDA_ERROR_OUT_OF_MEMORY));
    assert_int_not_equal(context->given, 0);
}

static CUresult create_refused_once(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p,
                                    unsigned long long flags)
{
    return tries++ ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Physical memory names its device, too; a capture keeps no idle memory from it, and neither does a call that may end
 * the context whose memory is idle, if it does not. */
static void *const beside[] = {"nothing", "a capture", "an end"};

static void stays(void *arg)
{
    if (fake.relaxes > 3)
        atomic_store(&((struct context *)arg)->leaving, 0);
}

ISOLATED_ROWS(test_create_on_another_device, beside, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
    CUmemGenericAllocationHandle handle = 0;
    struct context *context = idle_on_second();

    fake_current(NULL);
    fake.next_of[REAL_cuMemCreate] = (void *)create_refused_once;
    atomic_store(&capture_count, *state == &beside[1]);
    atomic_store(&context->leaving, *state == &beside[2]);
    fake.relax = stays;
    fake.relax_arg = context;
    assert_int_equal(cuMemCreate(&handle, 2 * MIB, &properties, 0), CUDA_SUCCESS);
    atomic_store(&capture_count, 0);
    properties.location.id = 0;
    tries = 0;
    assert_int_equal(cuMemCreate(&handle, 2 * MIB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

static unsigned int creations;

static int next_create_arrives(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *p,
                               unsigned long long flags)
{
    *handle = 7;
    if (creations++)
        return CUDA_SUCCESS;
    context_arrived(); /* another thread gives memory back */
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult next_ok(void)
{
    return CUDA_SUCCESS;
}

/* A thread without a context tries again all the same. */
ISOLATED_CASE(test_create_again, .environment = ORDERED " CUPOOL_VMM=1")
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle = 0;

    context_current(&fake.driver);
    fake_current(NULL);
    fake.driver.cuMemUnmap = fake.driver.cuMemAddressFree = (void *)next_ok;
    fake.driver.cuMemRelease = (void *)next_ok;
    fake.next_of[REAL_cuMemCreate] = (void *)next_create_arrives;
    assert_int_equal(cuMemCreate(&handle, 2 * MIB, &properties, 0), 0);
    assert_int_equal(creations, 2);
}
