/* SPDX-License-Identifier: Apache-2.0 */
/* test_capture_asks.c - shim/context/capture_gate.c: ends of captures that no call tells of. The driver is asked about
 * each stream, but not while another thread may destroy it. */

#include "captures.h"
#include "give_way.h"

#define ASK_NS  10000000u /* the driver is asked so often what still captures */
#define ASK_MAX 16

/* --- captures that nobody told of --- */

READY_CASE(test_ask)
{
    begin(s0);
    begin(s1);
    fake.scripts[FN(cuStreamIsCapturing)].calls = 0;
    atomic_fetch_add(&fake.ns, ASK_NS);
    assert_true(capture_active_now());
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 2);
    of(s0)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    atomic_fetch_add(&fake.ns, ASK_NS - 1);
    assert_true(capture_active_now()); /* not each time */
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 2);
    assert_int_equal(closed(), 2);
    atomic_fetch_add(&fake.ns, 1);
    assert_true(capture_active_now());
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 4);
    assert_int_equal(closed(), 1);
    of(s1)->captures = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    atomic_fetch_add(&fake.ns, ASK_NS);
    assert_true(capture_active_now());
    fake_fail(FN(cuStreamIsCapturing), CUDA_ERROR_UNKNOWN, 1);
    atomic_fetch_add(&fake.ns, ASK_NS);
    assert_true(capture_active_now());
    fake_fail(FN(cuStreamIsCapturing), CUDA_ERROR_INVALID_HANDLE, 1);
    atomic_fetch_add(&fake.ns, ASK_NS);
    assert_false(capture_active_now());
}

READY_CASE(test_ask_some)
{
    begin(CU_STREAM_PER_THREAD); /* which only its own thread can ask about */
    for (unsigned int i = 0; i < ASK_MAX + 1; i++)
        begin(fake_stream(i, 0));
    begin(CU_STREAM_PER_THREAD);
    for (unsigned int i = 0; i < ASK_MAX + 1; i++)
        of(fake_stream(i, 0))->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    fake.scripts[FN(cuStreamIsCapturing)].calls = 0;
    atomic_fetch_add(&fake.ns, ASK_NS);
    assert_true(capture_active_now());
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), ASK_MAX);
    assert_int_equal(closed(), 3);
}

READY_CASE(test_ask_nobody)
{
    begin(s0);
    of(s0)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    atomic_fetch_add(&fake.ns, ASK_NS);
    fake.absent = true;
    assert_true(capture_active_now());
    fake.absent = false;
    fake_lack(FN(cuStreamIsCapturing));
    assert_true(capture_active_now());
    assert_int_equal(closed(), 1);
}

/* A free sees the end before it decides how to wait: otherwise every free would wait on the host. */
ISOLATED_CASE(test_free_asks, .environment = "CUPOOL_FREE=ordered")
{
    struct context *context = ready();

    for (int i = 0; i < 2; i++) {
        begin(i ? CU_STREAM_PER_THREAD : s0); /* the thread ends, or the stream's capture */
        assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
        assert_non_null(strstr(fake_log(), "free:"));
        of(s0)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
        atomic_fetch_add(&fake.ns, i ? 0 : ASK_NS);
        fake.dead_threads = i;
        assert_int_equal(order_ops.order(context, POOL_ORDER_FREE), 0);
        assert_null(strstr(fake_log(), "free:"));
        assert_int_equal(closed(), 0);
    }
}

/* --- streams that other threads destroy --- */

static struct {
    atomic_int thread;  /* its number, once it runs */
    atomic_bool paused; /* it may destroy the stream */
    pthread_t destroyer;
} race;

static void *destroy(void *arg)
{
    atomic_store(&race.thread, gettid());
    capture_asks_pause();
    atomic_store(&race.paused, true);
    capture_asks_resume();
    return arg;
}

/* True if the thread sleeps. */
static bool sleeps(int thread)
{
    char path[64], line[256] = "";
    const char *state;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread);
    file = fopen(path, "re");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    state = strrchr(line, ')');
    return state && state[1] == ' ' && state[2] == 'S';
}

/* While the driver is asked about a stream, another thread is about to destroy it. */
static void beside_destroy(void *arg)
{
    assert_int_equal(pthread_create(&race.destroyer, NULL, destroy, NULL), 0);
    while (!atomic_load(&race.thread) || (!sleeps(atomic_load(&race.thread)) && !atomic_load(&race.paused)))
        give_way();
    assert_false(atomic_load(&race.paused));
}

READY_CASE(test_ask_beside_destroy)
{
    begin(s0);
    atomic_fetch_add(&fake.ns, ASK_NS);
    fake.scripts[FN(cuStreamIsCapturing)].before = beside_destroy;
    assert_true(capture_active_now());
    assert_int_equal(pthread_join(race.destroyer, NULL), 0);
    assert_true(atomic_load(&race.paused));
}

/* Nobody asks until the last of several such calls is over. */
READY_CASE(test_ask_paused)
{
    begin(s0);
    of(s0)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    capture_asks_pause();
    capture_asks_pause();
    for (int i = 0; i < 2; i++) {
        atomic_fetch_add(&fake.ns, ASK_NS);
        assert_true(capture_active_now());
        assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 0);
        capture_asks_resume();
    }
    atomic_fetch_add(&fake.ns, ASK_NS);
    assert_false(capture_active_now());
}

/* The end of a context destroys its streams. */
ISOLATED_CASE(test_ask_beside_context_end)
{
    struct context *context;

    ready();
    for (int primary = 0; primary < 2; primary++) {
        begin(other);
        fake.scripts[FN(cuStreamIsCapturing)].calls = 0;
        context = primary ? context_leaving_primary(0) : context_leaving(fake_context(0));
        atomic_fetch_add(&fake.ns, ASK_NS);
        assert_true(capture_active_now());
        assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 0);
        if (primary)
            context_primary_gone(context);
        else
            context_gone(context, false);
        atomic_fetch_add(&fake.ns, ASK_NS);
        assert_true(capture_active_now());
        assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 1);
        end(other);
    }
}

/* Before the next one begins. */
READY_CASE(test_begin_asks)
{
    begin(s0);
    of(s0)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    atomic_fetch_add(&fake.ns, ASK_NS);
    begin(s1);
    assert_int_equal(closed(), 1);
    end(s1);
    assert_int_equal(closed(), 0);
}
