/* SPDX-License-Identifier: Apache-2.0 */
/* test_retry_often.c - shim/exports/retry.h: calls that the driver refuses again and again, because other threads or
 * processes take the memory that has gone back. */
#include "context/arrivals.h"
#include "context/capture_gate.h"
#include "context/room.h"
#include "exports/retry.h"
#include "isolated.h"

#define ORDERED "CUPOOL_FREE=ordered"

static unsigned int tries;
static CUdeviceptr answer;

static void idle_memory(struct context *context)
{
    uint64_t addr;

    assert_int_equal(pool_alloc(context->pool, MIB, &addr), 0);
    assert_int_equal(pool_free(addr), 0);
}

/* While the driver refuses, another thread takes what has gone back and frees it to the pool. */
static unsigned int takes;
static struct context *busy;

static CUresult is_taken(void)
{
    tries++;
    atomic_fetch_add(&fake.ns, 10000000);
    if (!takes)
        return CUDA_SUCCESS;
    takes--;
    idle_memory(busy);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult retains(void)
{
    CUcontext made;

    return cuDevicePrimaryCtxRetain(&made, 0);
}

static CUresult asks(void)
{
    return cuMemAllocAsync(&answer, MIB, NULL);
}

static const struct again_row {
    CUresult (*call)(void);
    enum real_symbol symbol;
    unsigned int device; /* whose memory is busy */
} again_rows[] = {
    {asks, REAL_cuMemAllocAsync, 0},
    {asks, REAL_cuMemAllocAsync, 1}, /* the stream may be of another device */
    {retains, REAL_cuDevicePrimaryCtxRetain, 0},
};

ISOLATED_ROWS(test_others_take_it, again_rows, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    const struct again_row *row = *state;

    fake_start();
    fake.devices = 2;
    process_start();
    fake_current(fake_context(row->device));
    busy = context_current(&fake.driver);
    fake_current(fake_context(0));
    fake.next_of[row->symbol] = (void *)is_taken;
    takes = 5;
    assert_int_equal(row->call(), CUDA_SUCCESS);
    assert_int_equal(tries, 6);
    tries = 0;
    takes = 1000;
    assert_int_equal(row->call(), CUDA_ERROR_OUT_OF_MEMORY);
    /* Not for ever; and once more where other devices have not given back yet. */
    assert_in_range(tries, ARRIVALS_OTHERS_NS / 10000000 + 1, ARRIVALS_OTHERS_NS / 10000000 + 2);
}

/* More than the driver has free, with all that goes back, is refused soon; so it is not if the driver has pools
 * of its own, which keep what they have gathered. */
static CUresult allocates(void)
{
    CUresult result;

    process_bypass_begin(); /* as after the pool's own refusal */
    result = cuMemAlloc_v2(&answer, 100 * MIB);
    process_bypass_end();
    return result;
}

static CUresult asks_lines(void)
{
    size_t pitch;

    return cuMemAllocPitch_v2(&answer, &pitch, MIB, 100, 4);
}

static CUresult creates(void)
{
    const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle handle = 0;

    return cuMemCreate(&handle, 100 * MIB, &properties, 0);
}

static CUresult asks_much(void)
{
    return cuMemAllocAsync(&answer, 100 * MIB, NULL);
}

static const struct hopeless_row {
    CUresult (*call)(void);
    enum real_symbol symbol;
    bool waits;
} hopeless_rows[] = {
    {allocates, REAL_cuMemAlloc_v2, false},
    {asks_lines, REAL_cuMemAllocPitch_v2, false},
    {creates, REAL_cuMemCreate, false},
    {asks_much, REAL_cuMemAllocAsync, true},
};

static unsigned int tries_beside(const struct hopeless_row *row, size_t free)
{
    struct pool_survey survey;

    pool_survey_get(busy->pool, &survey);
    fake.free = free - (survey.held - survey.live);
    tries = 0;
    takes = 1000;
    assert_int_equal(row->call(), CUDA_ERROR_OUT_OF_MEMORY);
    return tries;
}

ISOLATED_ROWS(test_hopeless, hopeless_rows, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    const unsigned int for_long = ARRIVALS_OTHERS_NS / 10000000 + 1;
    const struct hopeless_row *row = *state;

    fake_start();
    process_start();
    busy = context_current(&fake.driver);
    idle_memory(busy);
    fake.next_of[row->symbol] = (void *)is_taken;
    assert_in_range(tries_beside(row, 150 * MIB), for_long, for_long + 1);
    assert_in_range(tries_beside(row, 90 * MIB), row->waits ? for_long : RETRY_HOPES + 1,
                    row->waits ? for_long + 1 : RETRY_HOPES + 1);
    fake_fail(FN(cuMemGetInfo_v2), CUDA_ERROR_UNKNOWN, 1000); /* then it may have enough */
    assert_in_range(tries_beside(row, 90 * MIB), for_long, for_long + 1);
}

/* It goes back once if nobody frees any. */
static CUresult is_refused(void)
{
    tries++;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

ISOLATED_ROWS(test_refused_for_good, again_rows, .environment = ORDERED " CUPOOL_NEIGHBOURS=0")
{
    const struct again_row *row = *state;

    fake_start();
    fake.devices = 2;
    process_start();
    fake_current(fake_context(row->device));
    idle_memory(context_current(&fake.driver));
    fake_current(fake_context(0));
    fake.next_of[row->symbol] = (void *)is_refused;
    assert_int_equal(row->call(), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(tries, 2);
}

/* So do other processes with what one of them has given. */
static const struct neighbours_row {
    unsigned int neighbours, gives, refused;
    uint64_t answer_ns;
    CUresult result;
    unsigned int tries, questions;
} neighbours_rows[] = {
    {3, 1000, 5, 1000000, CUDA_SUCCESS, 6, 5},
    {3, 1000, 1000, 1000000, CUDA_ERROR_OUT_OF_MEMORY, 101, 100}, /* CUPOOL_NEIGHBOURS together */
    {3, 1000, 1000, 30000000, CUDA_ERROR_OUT_OF_MEMORY, 5, 4},    /* the last question waits for less */
    {3, 1000, 1000, SECOND_NS, CUDA_ERROR_OUT_OF_MEMORY, 2, 1},   /* late: perhaps it has given memory */
    {3, 2, 1000, 1000000, CUDA_ERROR_OUT_OF_MEMORY, 4, 3},        /* it may have come before the last question */
    {3, 0, 1, 1000000, CUDA_SUCCESS, 2, 1},                       /* before the first one */
    {3, 0, 1000, 1000000, CUDA_ERROR_OUT_OF_MEMORY, 2, 1},        /* what never fits does not wait for long */
    {0, 0, 1000, 1000000, CUDA_ERROR_OUT_OF_MEMORY, 1, 1},        /* nobody is there */
};
static const struct neighbours_row *beside_neighbours;

static CUresult refused_often(void)
{
    return tries++ < beside_neighbours->refused ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void with_neighbours(const struct neighbours_row *row)
{
    beside_neighbours = row;
    fake_start();
    process_start();
    fake.neighbours = row->neighbours;
    fake.gives = row->gives;
    fake.answer_ns = row->answer_ns;
}

ISOLATED_ROWS(test_neighbours_take_it, neighbours_rows, .environment = ORDERED)
{
    const struct neighbours_row *row = *state;
    uint64_t start;

    with_neighbours(row);
    context_current(&fake.driver);
    start = atomic_load(&fake.ns);
    fake.next_of[REAL_cuMemAllocAsync] = (void *)refused_often;
    assert_int_equal(asks(), row->result);
    assert_int_equal(tries, row->tries);
    assert_int_equal(fake.questions, row->questions);
    assert_true(atomic_load(&fake.ns) - start <= 100000000);
}

ISOLATED_ROWS(test_neighbours_take_it_on_device, neighbours_rows, .environment = ORDERED)
{
    const struct neighbours_row *row = *state;
    uint64_t start;

    with_neighbours(row);
    start = atomic_load(&fake.ns);
    fake.next_of[REAL_cuDevicePrimaryCtxRetain] = (void *)refused_often;
    assert_int_equal(retains(), row->result);
    assert_int_equal(tries, row->tries);
    assert_int_equal(fake.questions, row->questions);
    assert_true(atomic_load(&fake.ns) - start <= 100000000);
}

/* The pool's request asks as often, and the call of the driver that follows it not once more. */
ISOLATED_ROWS(test_neighbours_take_it_from_the_pool, neighbours_rows, .environment = ORDERED)
{
    const struct neighbours_row *row = *state;
    struct pool_stats stats;
    struct context *context;

    with_neighbours(row);
    context = context_current(&fake.driver);
    /* It tries twice before it asks. */
    fake_fail(FN(cuMemAlloc_v2), CUDA_ERROR_OUT_OF_MEMORY, row->refused + 1);
    fake.next_of[REAL_cuMemAlloc_v2] = (void *)is_refused;
    assert_int_equal(cuMemAlloc_v2(&answer, MIB), row->result);
    assert_int_equal(fake.questions, row->questions);
    assert_int_equal(tries, row->result ? 1 : 0);
    pool_stats_get(context->pool, &stats);
    assert_int_equal(stats.helped, row->gives != 0 && row->neighbours);
}

/* The runtime's cudaMalloc, by the driver's function that it has got. */
static int runtime_asks(void **ptr, size_t size)
{
    return cuMemAlloc_v2((CUdeviceptr *)ptr, size) ? cudaErrorMemoryAllocation : cudaSuccess;
}

/* Beside a capture the driver is asked first. Before other processes are, memory serves that is free in the pool,
 * beside a block that is in use; the pool still knows it then. */
ISOLATED_CASE(test_refused_beside_a_capture, .environment = ORDERED)
{
    uint64_t whole, halves[2], ignored;
    struct context *context;
    void *ptr;

    with_neighbours(&neighbours_rows[6]);
    context = context_current(&fake.driver);
    assert_int_equal(pool_alloc(context->pool, 16 * MIB, &whole), 0);
    assert_int_equal(pool_free(whole), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pool_alloc(context->pool, 8 * MIB, &halves[i]), 0);
    assert_int_equal(halves[0], whole);
    assert_int_equal(pool_free(halves[1]), 0);
    atomic_store(&capture_count, 1);
    fake.next_of[REAL_cuMemAlloc_v2] = (void *)is_refused;
    fake.next_of[REAL_cudaMalloc] = (void *)runtime_asks;
    assert_int_equal(cudaMalloc(&ptr, MIB / 2), cudaSuccess);
    assert_int_equal(cuMemAlloc_v2(&answer, MIB), CUDA_SUCCESS);
    assert_int_equal(pool_live_size((uintptr_t)ptr), MIB / 2);
    assert_int_equal(pool_live_size(answer), MIB);
    assert_int_equal(pool_live_size(halves[0]), 8 * MIB);
    assert_int_equal(fake.questions, 0);
    assert_int_equal(tries, 2);
    assert_int_equal(cudaMalloc(&ptr, 16 * MIB), cudaErrorMemoryAllocation);
    assert_int_equal(fake.questions, 1);
    /* The call is over, and what is no request gets nothing of the pool. */
    assert_false(serve_alloc_refused(512, &ignored));
}
