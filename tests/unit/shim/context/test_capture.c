/* SPDX-License-Identifier: Apache-2.0 */
/* test_capture.c - shim/context/capture_gate.c: from when on and until when the gate is closed, for which streams and
 * threads, and what is waited for before a capture begins. Not here: captures whose end no call tells of; see
 * test_capture_asks.c. */
#include <limits.h>

#include "captures.h"

READY_CASE(test_begin)
{
    assert_false(capture_active() || capture_active_now());
    assert_ptr_equal(capture_begin(s0), fake_context(0));
    assert_true(capture_active()); /* before the program's call is made */
    assert_int_equal(atomic_load(&capture_total), 1);
    capture_begun(fake_context(0), s0, false);
    assert_false(capture_active());
    assert_int_equal(atomic_load(&capture_total), 1);
    begin(other);
    assert_int_equal(closed(), 1);
    assert_int_equal(atomic_load(&capture_total), 2);
    assert_string_equal(fake_log(), "push:c1 pop"); /* no call that a capture could be disturbed by */
}

READY_CASE(test_end)
{
    begin(s0);
    capture_check(s0, false, 1); /* an end that failed: it still captures */
    assert_int_equal(closed(), 1);
    of(s0)->captures = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    capture_check(s0, false, 1);
    assert_int_equal(closed(), 1);
    fake_fail(FN(cuStreamIsCapturing), CUDA_ERROR_UNKNOWN, 1);
    capture_check(s0, false, 1);
    assert_int_equal(closed(), 1);
    end(s0);
    assert_int_equal(closed(), 0);
    end(s0); /* twice is once */
    assert_int_equal(closed(), 0);
}

READY_CASE(test_end_without_driver_question)
{
    begin(s0);
    fake_lack(FN(cuStreamIsCapturing));
    capture_check(s0, false, 1); /* it cannot be asked: the end is believed */
    assert_int_equal(closed(), 0);
}

READY_CASE(test_destroyed)
{
    begin(s0);
    fake.scripts[FN(cuStreamIsCapturing)].calls = 0;
    capture_check(s0, true, 1); /* its handle must not be asked about */
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 0);
    assert_int_equal(closed(), 0);
    capture_check(s1, true, 1);
    assert_int_equal(closed(), 0);
}

READY_CASE(test_several)
{
    begin(s0);
    begin(s1);
    begin(other);
    assert_int_equal(closed(), 3);
    end(s1);
    assert_int_equal(closed(), 2);
    end(s1);
    assert_int_equal(closed(), 2);
    end(other);
    end(s0);
    assert_int_equal(closed(), 0);
}

/* A handle comes back, for a stream that captures, before we hear that the first one is gone. */
ISOLATED_CASE(test_handle_reused)
{
    unsigned int before;

    ready();
    atomic_store(&capture_total, *state ? UINT_MAX - 1 : 0); /* the number may begin anew */
    begin(s0);
    before = atomic_load(&capture_total);
    begin(s0);
    capture_check(s0, true, before);
    assert_int_equal(closed(), 1);
    capture_check(s0, true, before + 1);
    assert_int_equal(closed(), 0);
}
ISOLATED_AGAIN(test_handle_reused, from_the_last_number, .row = "from the last number")

/* --- the per-thread stream --- */

static void *end_per_thread(void *arg)
{
    capture_check(CU_STREAM_PER_THREAD, false, atomic_load(&capture_total));
    return arg;
}

static void *begin_per_thread(void *arg)
{
    fake_current(fake_context(0));
    begin(CU_STREAM_PER_THREAD);
    return arg;
}

READY_CASE(test_per_thread)
{
    begin(CU_STREAM_PER_THREAD);
    elsewhere(begin_per_thread, NULL);
    assert_int_equal(closed(), 2);
    elsewhere(end_per_thread, NULL); /* a third thread's stream */
    assert_int_equal(closed(), 2);
    end_per_thread(NULL);
    assert_int_equal(closed(), 1);
}

READY_CASE(test_dead_thread)
{
    begin(s0);
    begin(CU_STREAM_PER_THREAD);
    assert_true(capture_active_now());
    assert_int_equal(closed(), 2);
    fake.dead_threads = true;
    errno = 123;
    assert_true(capture_active_now());
    assert_int_equal(errno, 123); /* of the program, whose request has asked */
    assert_int_equal(closed(), 1);
    end(s0);
    elsewhere(begin_per_thread, NULL);
    assert_false(capture_active_now());
    /* And before another capture begins. */
    elsewhere(begin_per_thread, NULL);
    capture_begin(s0);
    assert_int_equal(closed(), 1);
}

/* --- contexts --- */

ISOLATED_CASE(test_forget)
{
    unsigned int before;

    ready();
    begin(s0);
    before = atomic_load(&capture_total);
    begin(s1); /* in another context at the same handle */
    begin(other);
    capture_forget(fake_context(0), before);
    assert_int_equal(closed(), 2);
    end(s0);
    assert_int_equal(closed(), 2);
    end(s1);
    assert_int_equal(closed(), 1);
    capture_forget(fake_context(1), atomic_load(&capture_total));
    assert_int_equal(closed(), 0);
}

static CUcontext meanwhile;

static void next_begun(void *arg)
{
    capture_begun(meanwhile, arg, true);
}

/* The real function. Before it returns, another thread begins the next capture; the driver still says that there is
 * none when that has begun. */
static CUresult ends_and_begins(CUstream stream, CUgraph *graph)
{
    (void)graph;
    meanwhile = capture_begin(stream);
    fake.streams[0].captures = CU_STREAM_CAPTURE_STATUS_NONE;
    fake_before(FN(cuStreamIsCapturing), next_begun, stream);
    return CUDA_SUCCESS;
}

ISOLATED_CASE(test_next_one_begins_beside_the_end)
{
    const CUstream stream = (ready(), fake_stream(0, 0));

    begin(stream);
    fake.streams[0].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    fake.next_of[REAL_cuStreamEndCapture] = (void *)ends_and_begins;
    assert_int_equal(cuStreamEndCapture(stream, NULL), CUDA_SUCCESS);
    assert_int_equal(closed(), 1);
}

/* A context that is not known: it has no captures. */
READY_CASE(test_forget_none)
{
    capture_forget(NULL, 0);
    fake_current(NULL);
    begin(CU_STREAM_LEGACY);
    capture_forget(NULL, atomic_load(&capture_total));
    assert_int_equal(closed(), 1);
}

/* A thread without a context gets one by the call that begins the capture. */
READY_CASE(test_no_context)
{
    fake_current(NULL);
    assert_null(capture_begin(CU_STREAM_LEGACY));
    fake_current(fake_context(1));
    capture_begun(NULL, CU_STREAM_LEGACY, true);
    assert_int_equal(closed(), 1);
    capture_forget(fake_context(0), 1);
    assert_int_equal(closed(), 1);
    capture_forget(fake_context(1), 1);
    assert_int_equal(closed(), 0);
}

READY_CASE(test_no_driver)
{
    fake.absent = true;
    assert_null(capture_begin(s0));
    assert_int_equal(closed(), 1);
    capture_begun(NULL, s0, true);
    assert_int_equal(closed(), 1);
    assert_false(capture_active_on(s0));
    capture_check(s0, true, 1);
    assert_int_equal(closed(), 0);
}

/* --- one stream --- */

READY_CASE(test_active_on)
{
    of(s0)->captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    assert_false(capture_active_on(s0)); /* the gate is open: nothing is asked */
    assert_int_equal(fake_calls(FN(cuStreamIsCapturing)), 0);
    begin(s0);
    assert_true(capture_active_on(s0));
    assert_false(capture_active_on(s1));
    fake_fail(FN(cuStreamIsCapturing), CUDA_ERROR_UNKNOWN, 1);
    assert_false(capture_active_on(s1)); /* a free on it would be refused */
    of(s1)->captures = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    assert_true(capture_active_on(s1));
    of(s1)->captures = CU_STREAM_CAPTURE_STATUS_NONE;
    fake_fail(FN(cuStreamIsCapturing), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 2);
    assert_true(capture_active_on(s1));
    fake_lack(FN(cuStreamIsCapturing));
    assert_false(capture_active_on(s0));
}

/* --- calls in flight --- */

static struct context *busy;

static void slot_leave(void *left)
{
    if (--*(int *)left == 0)
        for (unsigned int i = 0; i < SLOTS_ALL; i++)
            if (slot_is_busy(&busy->slots[i]))
                atomic_fetch_add(&busy->slots[i].seq, 1);
}

/* The gate is closed first; then whoever was in a call that a capture would be disturbed by is waited for. */
ISOLATED_CASE(test_drains)
{
    static const unsigned int slots[] = {0, SLOTS - 1, SLOT_COMBINER, SLOT_ASK};
    int left;

    busy = ready();
    for (unsigned int i = 0; i < COUNT(slots); i++) {
        atomic_store(&busy->slots[slots[i]].seq, 2 * i + 1);
        fake.relax = slot_leave;
        fake.relax_arg = &left;
        left = 5000; /* for longer than any limit: it is not waiting, so it gets on */
        begin(s0);
        assert_int_equal(left, 0);
        end(s0);
    }
}

/* A capture reaches another context by an event that a stream there waits for. Its calls in flight are waited for, but
 * those that wait on the host are not, and none for long: it may be held up until the capturing thread goes on. */
ISOLATED_CASE(test_drains_other_contexts)
{
    uint64_t start;
    int left = 5;

    busy = ready();
    atomic_store(&busy->slots[7].seq, 1);
    atomic_store(&busy->slots[8].seq, 1);
    atomic_store(&busy->slots[8].waits, true);
    fake.relax = slot_leave;
    fake.relax_arg = &left;
    begin(other);
    assert_int_equal(left, 0);
    end(other);
    start = atomic_load(&fake.ns);
    atomic_store(&busy->slots[7].seq, 1);
    atomic_store(&busy->slots[9].seq, 1);
    begin(other);
    assert_int_equal(atomic_load(&fake.ns) - start, 10000000);
    end(other);
    atomic_store(&busy->slots[7].waits, true);
    atomic_store(&busy->slots[9].waits, true);
    fake.relaxes = 0;
    begin(other);
    assert_int_equal(fake.relaxes, 0);
}

/* A thread that has been waiting on the host disturbs no capture, and may wait for work after its begin: a second. */
ISOLATED_CASE(test_drains_waiters)
{
    uint64_t start;

    busy = ready();
    for (unsigned int i = 3; i < 6; i++) { /* a second for all of them together */
        atomic_store(&busy->slots[i].seq, 1);
        atomic_store(&busy->slots[i].waits, true);
    }
    start = atomic_load(&fake.ns);
    begin(s0);
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
}

/* A green context's stream is one of its device's primary context. */
ISOLATED_CASE(test_drains_for_green)
{
    CUstream green;
    uint64_t start;

    busy = ready();
    green = fake_stream(3, 10);
    atomic_store(&busy->slots[7].seq, 1);
    atomic_store(&busy->slots[7].waits, true);
    start = atomic_load(&fake.ns);
    begin(green);
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    assert_true(fake_thread_is_clean(fake_context(0)));
    end(green);
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_UNKNOWN, 2);
    start = atomic_load(&fake.ns);
    begin(green);
    assert_int_equal(atomic_load(&fake.ns) - start, 0);
}

ISOLATED_CASE(test_drains_all)
{
    int left = 3;

    busy = ready();
    fake_current(NULL); /* nobody knows which context the call will be in */
    atomic_store(&busy->slots[7].seq, 1);
    fake.relax = slot_leave;
    fake.relax_arg = &left;
    capture_begin(CU_STREAM_LEGACY);
    assert_int_equal(left, 0);
}
