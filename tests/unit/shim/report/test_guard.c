/* SPDX-License-Identifier: Apache-2.0 */
/* test_guard.c - shim/report/guard.c: the table of blocks against one that is plain, how much guard a block gets, that
 * the report at exit leaves no lock held, and that what is known stays known where there is no memory. The words of the
 * report are tested under the preload: tests/e2e/test_contents.py. */

#include "context/room.h"
#include "isolated.h"
#include "report/guard.h"
#include "serve/serve.h"

#define BLOCKS 3000u
#define STEPS  200000u

static void started(void)
{
    fake_start();
    serve_begin();
}

ISOLATED_CASE(test_table, .environment = "CUPOOL_DEBUG=1")
{
    static size_t sizes[BLOCKS]; /* 0: there is no such block */
    static uint64_t addrs[BLOCKS];
    unsigned int seed = 17, next, look;

    started();
    for (unsigned int i = 0; i < BLOCKS; i++)
        addrs[i] = ((uint64_t)rand_r(&seed) << 12 | (i + 1)) * 512;
    for (unsigned int step = 0; step < STEPS; step++) {
        next = (unsigned int)rand_r(&seed) % BLOCKS;
        look = (unsigned int)rand_r(&seed) % BLOCKS;
        /* More and more, then fewer and fewer. */
        if ((unsigned int)rand_r(&seed) % STEPS > step) {
            sizes[next] = 1 + step;
            guard_alloc(NULL, addrs[next], sizes[next], NULL);
        } else {
            sizes[next] = 0;
            guard_free(addrs[next], /* may_wait: */ true);
        }
        for (unsigned int i = 0; i < 2; i++) {
            const unsigned int of = i ? look : next;
            size_t size = 0;

            guard_block_size(addrs[of], &size);
            assert_int_equal(size, sizes[of]);
        }
    }
}

static atomic_bool waited, done;
static pthread_t other;

static void waits(void *arg)
{
    atomic_store(&waited, true);
    fake.relaxes = 0; /* the other thread goes on */
    sched_yield();
}

static void *frees(void *arg)
{
    guard_free(0x1000, /* may_wait: */ true);
    atomic_store(&done, true);
    return NULL;
}

static void meanwhile(void)
{
    fake.allocates = NULL;
    assert_int_equal(pthread_create(&other, NULL, frees, NULL), 0);
    while (!atomic_load(&waited) && !atomic_load(&done))
        sched_yield();
}

/* A thread that frees waits while another one makes the table larger. */
ISOLATED_CASE(test_threads, .environment = "CUPOOL_DEBUG=1")
{
    size_t size = 0;

    started();
    fake.relax = waits;
    fake.allocates = meanwhile;
    guard_alloc(NULL, 0x1000, 100, NULL);
    pthread_join(other, NULL);
    assert_true(waited);
    guard_block_size(0x1000, &size);
    assert_int_equal(size, 0);
}

/* A context that has gone takes nothing of the others with it: their guard bytes are still read. */
ISOLATED_CASE(test_context_gone, .environment = "CUPOOL_DEBUG=guard")
{
    struct context *of[2];

    started();
    for (unsigned int i = 0; i < 2; i++) {
        fake_current(fake_context(i));
        of[i] = context_current(&fake.driver);
        guard_alloc(of[i], (i + 1) * MIB, 100, NULL);
    }
    guard_context_gone(of[0]);
    guard_free(MIB, /* may_wait: */ true);
    assert_int_equal(fake_calls(FN(cuMemcpyDtoHAsync_v2)), 0);
    guard_free(2 * MIB, /* may_wait: */ true);
    assert_int_equal(fake_calls(FN(cuMemcpyDtoHAsync_v2)), 1);
}

/* A block whose context is not known has a place in the table, and no guard bytes that could be looked at. */
ISOLATED_CASE(test_no_context, .environment = "CUPOOL_DEBUG=guard")
{
    size_t size = 0;

    started();
    guard_alloc(NULL, MIB, 100, NULL);
    guard_block_size(MIB, &size);
    assert_int_equal(size, 100);
    guard_free(MIB, /* may_wait: */ true);
    assert_int_equal(fake_calls(FN(cuMemsetD8Async)), 0);
    assert_int_equal(fake_calls(FN(cuMemcpyDtoHAsync_v2)), 0);
}

/* Guard bytes that could not be written are not looked at. */
ISOLATED_CASE(test_not_written, .environment = "CUPOOL_DEBUG=guard")
{
    started();
    fake_fail(FN(cuMemsetD8Async), CUDA_ERROR_UNKNOWN, 1);
    guard_alloc(context_current(&fake.driver), MIB, 100, NULL);
    assert_int_equal(fake_calls(FN(cuMemsetD8Async)), 1);
    guard_free(MIB, /* may_wait: */ true);
    assert_int_equal(fake_calls(FN(cuMemcpyDtoHAsync_v2)), 0);
}

/* Without guards only the table is kept. */
ISOLATED_CASE(test_no_guards, .environment = "CUPOOL_DEBUG=1")
{
    started();
    guard_alloc(context_current(&fake.driver), MIB, 100, NULL);
    guard_free(MIB, /* may_wait: */ true);
    assert_int_equal(fake_calls(FN(cuMemsetD8Async)), 0);
    assert_int_equal(fake_calls(FN(cuMemcpyDtoHAsync_v2)), 0);
}

static void recorded_look(void)
{
    if (fake_calls(FN(cuCtxRecordEvent)) != 1)
        _exit(1);
}

/* Where a context cannot be waited for at exit, that is tried once, not for each of its blocks. */
ISOLATED_CASE(test_no_wait_again, .environment = "CUPOOL_DEBUG=guard")
{
    struct context *context;

    atexit(recorded_look); /* behind the report */
    started();
    context = context_current(&fake.driver);
    for (unsigned int i = 1; i <= 5; i++)
        guard_alloc(context, i * MIB, 100, NULL);
    assert_int_equal(fake_calls(FN(cuCtxRecordEvent)), 0);
    fake_fail(FN(cuCtxRecordEvent), CUDA_ERROR_UNKNOWN, 5);
}

ISOLATED_CASE(test_padded, .environment = "CUPOOL_DEBUG=guard")
{
    started();
    for (size_t size = 1; size < 5000; size++) {
        assert_int_equal(guard_padded(size) % 512, 0);
        assert_in_range(guard_padded(size), size + 256, size + 256 + 511);
    }
    assert_true(guard_padded(SIZE_MAX / 2 + 1) == SIZE_MAX / 2 + 1);
}

static void frees_after_that(void)
{
    guard_free(0x1000, /* may_wait: */ true);
}

/* A program's exit handler that is older than ours runs behind it, and may free. */
ISOLATED_CASE(test_exit, .environment = "CUPOOL_DEBUG=1")
{
    atexit(frees_after_that);
    started();
    guard_alloc(NULL, 0x1000, 100, (const void *)test_exit);
}

static bool expected;

static void said_look(void)
{
    if (!strstr(fake.said, "this is not all: there was no memory to keep account") != !expected)
        _exit(1);
}

/* Without room for more, what is known stays so, and the report at exit says that it is not complete. */
ISOLATED_CASE(test_no_memory, .environment = "CUPOOL_DEBUG=1")
{
    size_t size = 0;

    expected = *state != NULL;
    atexit(said_look); /* behind the report */
    started();
    fake.no_memory = expected;
    guard_alloc(NULL, 0x1000, 100, NULL);
    fake.no_memory = false;
    for (unsigned int i = 2; i <= 513; i++)
        guard_alloc(NULL, i * 0x1000, i, NULL);
    fake.no_memory = expected;
    guard_alloc(NULL, 514 * 0x1000, 514, NULL);
    for (unsigned int i = 1; i <= 514; i++, size = 0) {
        guard_block_size(i * 0x1000, &size);
        assert_int_equal(size, expected && (i == 1 || i == 514) ? 0 : i == 1 ? 100 : i);
    }
}
ISOLATED_AGAIN(test_no_memory, none, .environment = "CUPOOL_DEBUG=1", .row = "none")
