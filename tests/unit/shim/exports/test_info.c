/* SPDX-License-Identifier: Apache-2.0 */
/* test_info.c - shim/exports/memory.c: what cudaMemGetInfo and cuMemGetInfo say is free. tests/behaviour/meminfo.c has
 * programs that ask. */
#include "base/process.h"
#include "context/ready.h"

static int result; /* what the real function returns */

static size_t driver_free;
static unsigned int questions;

static int next_info(size_t *free, size_t *total)
{
    questions++;
    if (free)
        *free = driver_free;
    if (total)
        *total = FAKE_CAPACITY;
    return result;
}

static const struct info {
    size_t driver, idle, told, used;
} infos[] = {
    {100 * MIB, 0, 100 * MIB, 0},
    {100 * MIB, 4 * MIB, 104 * MIB, 0},
    {FAKE_CAPACITY - 4 * MIB, 4 * MIB, FAKE_CAPACITY, 0},
    {FAKE_CAPACITY - 4 * MIB + 1, 4 * MIB, FAKE_CAPACITY, 0}, /* never more than there is */
    {FAKE_CAPACITY, 4 * MIB, FAKE_CAPACITY, 0},
    {FAKE_CAPACITY - 8 * MIB, 4 * MIB, FAKE_CAPACITY - 6 * MIB, 6 * MIB}, /* nor what is used */
    {FAKE_CAPACITY, 0, FAKE_CAPACITY, 4 * MIB},                           /* nor less than the driver says */
};

ISOLATED_ROWS(test_info, infos, .environment = ORDERED)
{
    const struct info *row = *state;
    struct context *context = ready();
    size_t free, total;

    fake.next_of[REAL_cudaMemGetInfo] = (void *)next_info;
    fake.next_of[REAL_cuMemGetInfo_v2] = (void *)next_info;
    if (row->idle)
        assert_int_equal(pool_free(block(context, row->idle)), 0);
    if (row->used)
        block(context, row->used);
    for (unsigned int i = 0; i < 2; i++) {
        driver_free = row->driver;
        result = free = total = 0;
        assert_int_equal(i ? (int)cudaMemGetInfo(&free, &total) : (int)cuMemGetInfo_v2(&free, &total), 0);
        assert_int_equal(free, row->told);
        assert_int_equal(total, FAKE_CAPACITY);
        free = 0;
        assert_int_equal(i ? (int)cudaMemGetInfo(&free, NULL) : (int)cuMemGetInfo_v2(&free, NULL), 0);
        assert_int_equal(free, row->driver + row->idle);
        assert_int_equal(i ? (int)cudaMemGetInfo(NULL, &total) : (int)cuMemGetInfo_v2(NULL, &total), 0);
        result = 1;
        assert_int_equal(i ? (int)cudaMemGetInfo(&free, &total) : (int)cuMemGetInfo_v2(&free, &total), 1);
        assert_int_equal(free, row->driver);
    }
}

/* Inside one of our own calls, and switched off: as the driver says. */
READY_CASE(test_info_passive, .environment = ORDERED)
{
    size_t free, total;

    fake.next_of[REAL_cudaMemGetInfo] = (void *)next_info;
    fake.next_of[REAL_cuMemGetInfo_v2] = (void *)next_info;
    driver_free = MIB;
    assert_int_equal(pool_free(block(context, 4 * MIB)), 0);
    process_bypass_begin();
    assert_int_equal(cudaMemGetInfo(&free, &total), 0);
    assert_int_equal(free, MIB);
    assert_int_equal(cuMemGetInfo_v2(&free, &total), 0);
    assert_int_equal(free, MIB);
    process_bypass_end();
}

static int next_info_arrives(size_t *free, size_t *total)
{
    if (questions < 3)
        context_arrived();
    return next_info(free, total);
}

/* Memory that arrived while the driver was asked would count twice. */
ISOLATED_CASE(test_info_again, .environment = ORDERED)
{
    size_t free, total;

    ready();
    fake.next_of[REAL_cuMemGetInfo_v2] = (void *)next_info_arrives;
    assert_int_equal(cuMemGetInfo_v2(&free, &total), 0);
    assert_int_equal(questions, 4);
}

static int next_info_over(size_t *free, size_t *total)
{
    fake.streams[0].over = fake.streams[0].launched;
    return next_info(free, total);
}

/* And so would memory that arrives unseen meanwhile. */
READY_CASE(test_info_beside_an_arrival, .environment = ORDERED)
{
    size_t free, total;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(pool_free(block(context, 4 * MIB)), 0);
        fake.streams[0].launched += i; /* the second time it does not arrive */
        assert_true(context_trim(context_arrivals()));
    }
    fake.next_of[REAL_cuMemGetInfo_v2] = (void *)next_info_over;
    driver_free = 100 * MIB;
    assert_int_equal(cuMemGetInfo_v2(&free, &total), 0);
    assert_int_equal(questions, 2);
    assert_int_equal(free, driver_free);
}
