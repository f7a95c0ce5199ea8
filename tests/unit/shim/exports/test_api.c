/* SPDX-License-Identifier: Apache-2.0 */
/* test_api.c - shim/exports/api.c: which arguments the functions of cupool.h refuse, when, and with what; what they
 * leave of errno and of the thread's state; and what they tell the trace. tests/e2e/test_api.py has their effects. */
#include "cupool.h"

#include "base/process.h"
#include "context/ready.h"
#include "nccl_reg.h"

static struct cupool_stats stats = {.size = sizeof(stats)};
static struct cupool_ticket ticket;
static void *result;
static size_t size;

/* --- refused --- */

#define CALL(name, call)                                                                                               \
    static int64_t name(void)                                                                                          \
    {                                                                                                                  \
        return (int64_t)(call);                                                                                        \
    }
CALL(trim, cupool_lib_trim(CUPOOL_ALL_DEVICES))
CALL(trim_below, cupool_lib_trim(CUPOOL_ALL_DEVICES - 1))
CALL(stats_get, cupool_lib_stats_get(CUPOOL_ALL_DEVICES, &stats))
CALL(stats_below, cupool_lib_stats_get(CUPOOL_ALL_DEVICES - 1, &stats))
CALL(stats_null, cupool_lib_stats_get(0, NULL))
CALL(mark, cupool_lib_mark("text"))
CALL(mark_null, cupool_lib_mark(NULL))
CALL(backend, cupool_lib_backend_set(CUPOOL_BACKEND_CUDA))
CALL(backend_below, cupool_lib_backend_set(-1))
CALL(backend_last, cupool_lib_backend_set(BACKEND_COUNT - 1))
CALL(backend_above, cupool_lib_backend_set(BACKEND_COUNT))
CALL(pause_keep, cupool_lib_pause(0, CUPOOL_KEEP))
CALL(pause_discard, cupool_lib_pause(DEVICES_MAX - 1, CUPOOL_DISCARD))
CALL(pause_below, cupool_lib_pause(-1, CUPOOL_KEEP))
CALL(pause_above, cupool_lib_pause(DEVICES_MAX, CUPOOL_KEEP))
CALL(pause_neither, cupool_lib_pause(0, 0))
CALL(pause_both, cupool_lib_pause(0, CUPOOL_KEEP | CUPOOL_DISCARD))
CALL(resume, cupool_lib_resume(DEVICES_MAX - 1))
CALL(resume_below, cupool_lib_resume(-1))
CALL(resume_above, cupool_lib_resume(DEVICES_MAX))
CALL(export_null, cupool_lib_export((void *)0x1000, NULL))
CALL(export_other, cupool_lib_export((void *)0x1000, &ticket))
CALL(import_null, cupool_lib_import(NULL, &size))
CALL(import_zeroes, cupool_lib_import(&ticket, &size))
CALL(import_close, cupool_lib_import_close(77))
CALL(reserve_null, cupool_lib_reserve(MIB, NULL))
CALL(reserve_none, cupool_lib_reserve(0, &result))
CALL(unreserve, cupool_lib_unreserve((void *)0x1000))
CALL(insert, cupool_lib_insert((void *)0x1000, 77))
CALL(withdraw, cupool_lib_withdraw((void *)0x1000))
CALL(window, cupool_lib_window_register((void *)0x100, (void *)0x1000, 64, &result))
CALL(window_no_comm, cupool_lib_window_register(NULL, (void *)0x1000, 64, &result))
CALL(window_no_place, cupool_lib_window_register((void *)0x100, (void *)0x1000, 64, NULL))
CALL(window_end, cupool_lib_window_deregister((void *)0x100, (void *)0x200))
CALL(window_end_no_comm, cupool_lib_window_deregister(NULL, (void *)0x200))
CALL(window_end_none, cupool_lib_window_deregister((void *)0x100, NULL))

/* Before the first pooled request, and after it. */
static const struct refusal {
    const char *name;
    int64_t (*call)(void);
    int64_t before, after;
} refusals[] = {
#define ROW(name, before, after)                                                                                       \
    {                                                                                                                  \
#name, name, before, after                                                                                     \
    }
    ROW(trim, 0, 0),
    ROW(trim_below, -EINVAL, -EINVAL),
    ROW(stats_get, 0, 0),
    ROW(stats_below, -EINVAL, -EINVAL),
    ROW(stats_null, -EINVAL, -EINVAL),
    ROW(mark, -EAGAIN, 0),
    ROW(mark_null, -EINVAL, -EINVAL),
    ROW(backend, -EAGAIN, 0),
    ROW(backend_below, -EINVAL, -EINVAL),
    ROW(backend_last, -EAGAIN, -ENOTSUP),
    ROW(backend_above, -EINVAL, -EINVAL),
    ROW(pause_keep, -EAGAIN, -ENOTSUP),
    ROW(pause_discard, -EAGAIN, -EINVAL),
    ROW(pause_below, -EINVAL, -EINVAL),
    ROW(pause_above, -EINVAL, -EINVAL),
    ROW(pause_neither, -EINVAL, -EINVAL),
    ROW(pause_both, -EINVAL, -EINVAL),
    ROW(resume, -EAGAIN, -EINVAL),
    ROW(resume_below, -EINVAL, -EINVAL),
    ROW(resume_above, -EINVAL, -EINVAL),
    ROW(export_null, -EINVAL, -EINVAL),
    ROW(export_other, -EINVAL, -EINVAL),
    ROW(import_null, -EINVAL, -EINVAL),
    ROW(import_zeroes, -EINVAL, -EINVAL),
    ROW(import_close, -ENOTSUP, -ENOTSUP),
    ROW(reserve_null, -EINVAL, -EINVAL),
    ROW(reserve_none, -EINVAL, -EINVAL),
    ROW(unreserve, -ENOTSUP, -ENOTSUP),
    ROW(insert, -ENOTSUP, -ENOTSUP),
    ROW(withdraw, -ENOTSUP, -ENOTSUP),
    ROW(window, -ENOTSUP, -ENOTSUP),
    ROW(window_no_comm, -EINVAL, -EINVAL),
    ROW(window_no_place, -EINVAL, -EINVAL),
    ROW(window_end, -ENOTSUP, -ENOTSUP),
    ROW(window_end_no_comm, -EINVAL, -EINVAL),
    ROW(window_end_none, -EINVAL, -EINVAL),
};

/* errno stays, and whether the thread may be cancelled. */
static void expect(const struct refusal *row, int64_t rc)
{
    int64_t returned;
    int cancel;

    errno = 123;
    size = 5;
    returned = row->call();
    if (returned != rc)
        fail_msg("%s returned %d, not %d", row->name, (int)returned, (int)rc);
    assert_int_equal(errno, 123);
    assert_int_equal(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &cancel), 0);
    assert_int_equal(cancel, PTHREAD_CANCEL_ENABLE);
    assert_int_equal(size, 5);
}

ISOLATED_ROWS(test_before_the_first_request, refusals)
{
    const struct refusal *row = *state;

    expect(row, row->before);
    assert_int_equal(cupool_lib_enabled(), 1);
    assert_string_equal(fake.traced, "");
}

ISOLATED_ROWS(test_after_the_first_request, refusals, .environment = ORDERED)
{
    const struct refusal *row = *state;

    ready();
    process_start();
    expect(row, row->after);
}

ISOLATED_ROWS(test_off, refusals, .environment = "CUPOOL_ENABLE=0")
{
    expect(*state, -ENOSYS);
    assert_int_equal(cupool_lib_enabled(), 0);
}

/* --- served --- */

/* A struct of another release is shorter or longer: what it has is written, nothing behind it. */
READY_CASE(test_stats, .environment = ORDERED)
{
    const size_t least = offsetof(struct cupool_stats, nccl_segments), all = sizeof(struct cupool_stats);
    const size_t sizes[] = {least, least + 8, all - 8, all, all + 8, all + 100};
    union {
        struct cupool_stats stats;
        unsigned char bytes[sizeof(struct cupool_stats) + 128];
    } of;
    struct pool_stats one, other;
    uint64_t bypassed = 3;

    block(context, 3 * MIB);
    block(pooled(1), 5 * MIB);
    atomic_store(&context->bypassed, bypassed);
    pool_stats_get(context->pool, &one);
    pool_stats_get(pooled(1)->pool, &other);
    of.stats.size = least - 1;
    assert_int_equal(cupool_lib_stats_get(0, &of.stats), -EINVAL);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        memset(&of, 0x77, sizeof(of));
        of.stats.size = sizes[i];
        assert_int_equal(cupool_lib_stats_get(0, &of.stats), 0);
        assert_int_equal(of.stats.size, sizes[i] < all ? sizes[i] : all);
        assert_int_equal(of.stats.held, one.held);
        assert_int_equal(of.stats.bypassed, bypassed);
        for (size_t j = all; j < sizeof(of); j++)
            assert_int_equal(of.bytes[j], j < sizes[i] ? 0 : 0x77);
        for (size_t j = sizes[i]; j < all; j++)
            assert_int_equal(of.bytes[j], 0x77);
    }
    assert_int_equal(cupool_lib_stats_get(1, &stats), 0);
    assert_int_equal(stats.held, other.held);
    assert_int_equal(stats.bypassed, 0);
    assert_int_equal(cupool_lib_stats_get(CUPOOL_ALL_DEVICES, &stats), 0);
    assert_int_equal(stats.held, one.held + other.held);
    assert_int_equal(stats.allocs, one.allocs + other.allocs);
    fake.devices = 3;
    assert_int_equal(cupool_lib_stats_get(2, &stats), 0);
    assert_int_equal(stats.held, 0);
    assert_int_equal(cupool_lib_stats_get(3, &stats), -EINVAL);
}

/* Of one device, or of all; not in a group, whose calls may use the memory yet. */
READY_CASE(test_trim, .environment = ORDERED)
{
    const uint64_t addr = block(context, 3 * MIB), other = block(pooled(1), 5 * MIB);

    process_start();
    assert_int_equal(pool_free(addr), 0);
    assert_int_equal(pool_free(other), 0);
    nccl_reg_group_start();
    assert_int_equal(cupool_lib_trim(CUPOOL_ALL_DEVICES), 0);
    assert_int_equal(cupool_lib_backend_set(CUPOOL_BACKEND_CUDA), 0);
    nccl_reg_group_end(false);
    fake.devices = 3;
    assert_int_equal(cupool_lib_trim(2), 0);
    assert_int_equal(cupool_lib_trim(3), -EINVAL);
    fake_fail(FN(cuDeviceGetCount), CUDA_ERROR_NOT_PERMITTED, 1); /* in a host function, which devices there are */
    assert_int_equal(cupool_lib_trim(3), 0);
    assert_int_equal(cupool_lib_trim(0), 4 * MIB);
    assert_int_equal(cupool_lib_trim(0), 0);
    assert_int_equal(cupool_lib_trim(CUPOOL_ALL_DEVICES), 6 * MIB);
}

READY_CASE(test_backend, .environment = ORDERED)
{
    process_start();
    assert_int_equal(pool_free(block(context, 3 * MIB)), 0);
    fake.traced[0] = '\0';
    assert_int_equal(cupool_lib_backend_set(CUPOOL_BACKEND_CUDA), 0);
    assert_non_null(strstr(fake.traced, "backend:\"b\":\"cuda\"\n"));
    assert_int_equal(cupool_lib_trim(0), 0); /* idle memory has gone back */
}

READY_CASE(test_mark, .environment = ORDERED)
{
    char text[1000];

    process_start();
    fake.traced[0] = '\0';
    assert_int_equal(cupool_lib_mark("a \"b\"\n"), 0);
    assert_string_equal(fake.traced, "mark:\"text\":\"a \\\"b\\\"\\u000a\"\n");
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    fake.traced[0] = '\0';
    assert_int_equal(cupool_lib_mark(text), 0);
    assert_int_equal(strlen(fake.traced), strlen("mark:\"text\":\"\"\n") + 383); /* as much as there is room for */
}

static CUresult refuses(void)
{
    errno = EIO;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver may change errno, which is the program's. */
READY_CASE(test_errno_of_the_driver, .environment = ORDERED)
{
    fake.driver.cuMemAddressReserve = (void *)refuses;
    fake.driver.cuMemAddressFree = (void *)refuses;
    fake.driver.cuMemMap = (void *)refuses;
    fake.driver.cuMemUnmap = (void *)refuses;
    fake.driver.cuMemSetAccess = (void *)refuses;
    fake.driver.cuMemRelease = (void *)refuses;
    fake.driver.cuDeviceGetUuid_v2 = (void *)refuses;
    errno = 123;
    assert_int_equal(cupool_lib_reserve(MIB, &result), -ENOMEM);
    assert_int_equal(errno, 123);
}

/* Why a device is not paused is said, and returned. */
READY_CASE(test_pause, .environment = ORDERED)
{
    process_start();
    fake.said[0] = '\0';
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_NOT_PERMITTED, 1);
    assert_int_equal(cupool_lib_pause(1, CUPOOL_KEEP), -EIO);
    assert_non_null(strstr(fake.said, "device 1 is not paused: "));
    fake.said[0] = '\0';
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_NOT_PERMITTED, 1);
    assert_int_equal(cupool_lib_resume(1), -EIO);
    assert_non_null(strstr(fake.said, "device 1 is not resumed: "));
    fake.said[0] = '\0';
    fake.absent = true;
    assert_int_equal(cupool_lib_pause(0, CUPOOL_DISCARD), -EIO);
    assert_int_equal(cupool_lib_resume(0), -EIO);
    assert_string_not_equal(fake.said, "");
    assert_non_null(cupool_lib_pause_reason());
}
