/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_waits.c - shim/order.c: what waits on the host, for all of a context's or device's work or for what came before
 * frees, for how long, and when it gives up. test_order.c has the frees themselves.
 */
#include <string.h>

#include "capture.h"
#include "context_internal.h"
#include "fake_driver.h"
#include "isolated.h"

#define ORDERED "CUPOOL_FREE=ordered"
#define MEMORY  "alloc:c0,1 free:0x7f0000000000"
#define ASK_NS  100000 /* a device is given so long to say that it is at rest */
#define MS      UINT64_C(1000000)

static struct context *pooled(unsigned int i)
{
    struct context *context;

    fake_current(fake_context(i));
    context = context_current(&fake.driver);
    assert_non_null(context);
    fake_current(fake_context(0));
    return context;
}

/* Contexts 0 and 4 of device 0, 1 of device 1. */
static struct context *ready(void)
{
    struct context *context;

    fake_start();
    fake.devices = 2;
    context = pooled(0);
    pooled(1);
    pooled(4);
    fake_log();
    return context;
}

static uint64_t now(void)
{
    return atomic_load(&fake.ns);
}

/* The device gets on while one waits. */
static void device_moves(void *arg)
{
    fake_context_of(arg)->over++;
}

static void works(unsigned int context, uint64_t work)
{
    fake.contexts[context].launched += work;
    fake.relax = device_moves;
    fake.relax_arg = fake_context(context);
}

static void *free_one(void *arg)
{
    const struct context *context = arg;

    fake_current(context->handle);
    assert_int_equal(order_ops.order(arg, POOL_ORDER_FREE), 0);
    return NULL;
}

/* --- all work of a context --- */

static void test_order_wait(void **state)
{
    struct context *context = ready();

    (void)state;
    assert_int_equal(order_wait(context), CUDA_SUCCESS);
    assert_string_equal(fake_log(), "sync:c0");
    assert_int_equal(context->slots[1].done, 1);
    atomic_store(&capture_count, 1);
    assert_int_equal(order_wait(context), CUDA_SUCCESS);
    assert_string_equal(fake_log(), MEMORY);
    assert_int_equal(context->slots[1].turn, 4);
    assert_int_equal(context->slots[1].done, 1);
    fake_lack(FN(cuThreadExchangeStreamCaptureMode));
    assert_int_equal(order_wait(context), CUDA_ERROR_NOT_READY);
    assert_string_equal(fake_log(), "");
    atomic_store(&capture_count, 0);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_LAUNCH_FAILED, 1);
    assert_int_equal(order_wait(context), CUDA_ERROR_LAUNCH_FAILED);
    assert_true(context_failed(context));
    assert_int_equal(context->slots[1].turn, 8);
    assert_int_equal(context->slots[1].done, 1); /* what failed orders nothing */
}

static void test_wait_device(void **state)
{
    struct context *context = ready();

    (void)state;
    assert_true(context_wait_device(0));
    assert_string_equal(fake_log(), "sync:c0 push:c4 sync:c4 pop");
    assert_true(context_wait_device(1));
    assert_string_equal(fake_log(), "push:c1 sync:c1 pop");
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 1);
    assert_false(context_wait_device(0)); /* and the others are waited for all the same */
    assert_string_equal(fake_log(), "sync:c0 push:c4 sync:c4 pop");
    assert_false(context_wait_device(2)); /* no context there */
    assert_string_equal(fake_log(), "");
    assert_true(context_pin(context)); /* what was pinned is not any more */
    context_unpin(context);
}

/* None of the device's contexts is pooled yet: the current one, which is then. */
static void test_wait_device_current(void **state)
{
    const bool limited = *state != NULL;

    fake_start();
    fake.devices = 2;
    assert_false(limited ? context_wait_device_for(1, 10) : context_wait_device(1));
    assert_null(strstr(fake_log(), "c0,e"));
    context_gone(context_leaving(fake_context(0)), true);
    fake_log();
    fake.absent = true;
    assert_false(limited ? context_wait_device_for(0, 10) : context_wait_device(0));
    fake.absent = false;
    assert_true(limited ? context_wait_device_for(0, 10) : context_wait_device(0));
    assert_non_null(strstr(fake_log(), limited ? "record:c0,e0" : "sync:c0"));
    fake_current(fake_context(1));
    fake.contexts[1].launched = 1;
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 1);
    assert_false(limited ? context_wait_device_for(1, 10) : context_wait_device(1));
    context_gone(context_leaving(fake_context(1)), true);
    fake_current(NULL);
    assert_false(limited ? context_wait_device_for(1, 10) : context_wait_device(1));
}

/* --- the same, for so long --- */

static void test_wait_until(void **state)
{
    struct context *context = ready();
    uint64_t start;

    (void)state;
    fake.relax_step = MS;
    assert_true(order_wait_until(context, 0));
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0");
    assert_int_equal(context->slots[1].done, 0); /* a free may record it again */
    works(0, 30);
    start = now();
    assert_true(order_wait_until(context, start + 30 * MS));
    assert_int_equal(now() - start, 30 * MS);
    works(0, 31);
    start = now();
    assert_false(order_wait_until(context, start + 30 * MS));
    assert_int_equal(now() - start, 30 * MS);
    fake.relax = NULL;
    fake.relax_step = 1000;
    start = now();
    assert_false(order_wait_until(context, 0)); /* asked for a while in any case */
    assert_int_equal(now() - start, ASK_NS);
    fake.relax_step = MS;
    fake_current(fake_context(1));
    assert_false(order_wait_until(context, 0));
    assert_true(fake_thread_is_clean(fake_context(1)));
}

static void test_wait_until_refused(void **state)
{
    static const size_t lacks[] = {FN(cuCtxRecordEvent), FN(cuEventQuery)};
    struct context *context;

    (void)state;
    for (size_t i = 0; i < COUNT(lacks); i++) {
        context = ready();
        fake_lack(lacks[i]);
        assert_false(order_wait_until(context, now() + MS));
        context_gone(context_leaving(context->handle), true);
    }
    context = ready();
    fake_fail(FN(cuCtxRecordEvent), CUDA_ERROR_UNKNOWN, 1);
    assert_false(order_wait_until(context, now() + MS));
    fake_fail_after(FN(cuCtxGetCurrent), 0, CUDA_ERROR_UNKNOWN, 1);
    assert_false(order_wait_until(context, now() + MS));
    fake_fail(FN(cuEventQuery), CUDA_ERROR_LAUNCH_FAILED, 1);
    assert_false(order_wait_until(context, now() + MS));
    assert_int_equal(fake.relaxes, 0);
}

static void capture_ends(void *arg)
{
    if (fake.relaxes == *(unsigned int *)arg)
        atomic_store(&capture_count, 0);
}

/* A capture is waited for, a second at most, and no longer than asked. */
static void test_wait_until_beside_capture(void **state)
{
    struct context *context = ready();
    unsigned int ends = 20;
    uint64_t start;

    (void)state;
    atomic_store(&capture_count, 1);
    start = now();
    assert_false(order_wait_until(context, start + 5 * MS));
    assert_int_equal(now() - start, 5 * MS);
    start = now();
    assert_false(order_wait_until(context, start + 5000 * MS));
    assert_int_equal(now() - start, SECOND_NS);
    assert_string_equal(fake_log(), "");
    fake.relaxes = 0;
    fake.relax = capture_ends;
    fake.relax_arg = &ends;
    assert_true(order_wait_until(context, now() + 5000 * MS));
    assert_int_equal(fake.relaxes, 20);
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0");
}

static void context_goes(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 7) {
        atomic_store(&context->leaving, 1);
        atomic_store(&context->ending, true);
    }
}

/* Its context goes: nothing is waited for any more. */
static void test_wait_until_context_goes(void **state)
{
    struct context *context = ready();

    fake.relax = context_goes;
    fake.relax_arg = context;
    fake.contexts[0].launched = 1;
    atomic_store(&capture_count, *state != NULL);
    assert_false(order_wait_until(context, now() + 500 * MS));
    assert_int_equal(fake.relaxes, 7);
}

static void test_wait_device_for(void **state)
{
    uint64_t start;

    (void)state;
    ready();
    fake.relax_step = MS;
    assert_true(context_wait_device_for(0, 10));
    assert_string_equal(fake_log(), "event:c0,2 record:c0,e0 push:c4 event:c4,2 pop record:c4,e1 push:c4 pop");
    works(0, 11);
    start = now();
    assert_false(context_wait_device_for(0, 10)); /* and the other one is asked all the same */
    assert_int_equal(now() - start, 10 * MS);
    assert_non_null(strstr(fake_log(), "record:c4,e1"));
    fake.contexts[0].over = fake.contexts[0].launched;
    works(1, 5);
    assert_true(context_wait_device_for(0, 10));
    assert_true(context_wait_device_for(1, 5));
    assert_false(context_wait_device_for(2, 5));
}

/* --- what came before frees --- */

static void test_no_context(void **state)
{
    (void)state;
    fake_start();
    assert_false(context_wait_frees(CONTEXT_ALL, true));
    ready();
    assert_true(context_wait_frees(1, true));
    assert_false(context_wait_frees(2, true));
    fake_lack(FN(cuEventQuery));
    assert_true(context_wait_frees(CONTEXT_ALL, true));
    assert_true(fake_thread_is_clean(fake_context(0)));
}

/* One's own, for as long as it takes; once. */
static void test_own(void **state)
{
    struct context *context = ready();

    (void)state;
    works(0, 5000);
    free_one(context);
    works(0, 1); /* what was launched since is not waited for */
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 5000);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}

/* Other threads' only if asked, for a second. */
static void test_others(void **state)
{
    struct context *context = ready();
    uint64_t start = now();

    (void)state;
    works(0, 5000);
    elsewhere(free_one, context);
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now(), start);
    assert_true(context_wait_frees(1, true)); /* another device's */
    assert_int_equal(now(), start);
    assert_true(context_wait_frees(CONTEXT_ALL, true));
    assert_int_equal(now() - start, SECOND_NS);
    start = now();
    fake.contexts[0].over = 4000;
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
    assert_int_equal(fake.contexts[0].over, 5000);
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
}

/* A thread has ordered this one's free, and has recorded more since: a second for that. */
static void *free_again(void *arg)
{
    struct context *context = arg;

    fake.contexts[0].launched = 100000;
    free_one(context);
    return NULL;
}

static void test_own_recorded_again(void **state)
{
    struct context *context = ready();
    uint64_t start;

    (void)state;
    works(0, 5000);
    free_one(context); /* turn 1 of the lead, which this thread's event stands for */
    atomic_store(&context->led[1].turn, 0);
    elsewhere(free_again, context); /* a later one, by another thread: the first that is known */
    start = now();
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now() - start, SECOND_NS);
}

/* The first turn that is known from one's own on, whoever has recorded it. */
static void test_led_found(void **state)
{
    struct context *context = ready();

    (void)state;
    fake.contexts[0].launched = 10;
    elsewhere(free_one, context);
    free_one(context);
    fake.contexts[0].launched = 20;
    elsewhere(free_one, context);
    works(0, 0);
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 10); /* the last one's work is another's */
    assert_true(context_wait_frees(0, true));
    assert_int_equal(fake.contexts[0].over, 20);
}

static void test_context_goes(void **state)
{
    struct context *context = ready();

    (void)state;
    fake.contexts[0].launched = 1;
    free_one(context);
    fake.relax = context_goes;
    fake.relax_arg = context;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.relaxes, 7);
}

/* --- frees that found the lead taken, each with a slot and an event of its own --- */

static void lead_take(struct context *context)
{
    atomic_store(&context->slots[SLOT_LEAD].turn, 1);
}

static void test_own_slot(void **state)
{
    struct context *context = ready();

    (void)state;
    lead_take(context);
    works(0, 10000);
    free_one(context);
    fake.relaxes = 0;
    fake.contexts[0].over = 0;
    fake.contexts[0].launched++;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 10000);
}

/* What was recorded there for something else is no free's. */
static void test_own_slot_used(void **state)
{
    struct context *context = ready();

    (void)state;
    lead_take(context);
    fake.contexts[0].launched = 10;
    free_one(context);
    assert_false(order_wait_until(context, 0));
    fake.relaxes = 0;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.relaxes, 0);
}

static void lead_covers(void *arg)
{
    struct context *context = arg;

    atomic_store(&context->led[9].event, (CUevent)&fake.events[7]);
    atomic_store(&context->led[9].turn, 3);
    fake.events[7] = (struct fake_event){.context = &fake.contexts[0], .at = 10};
    atomic_store(&context->slots[SLOT_LEAD].done, 3);
    atomic_store(&context->slots[SLOT_LEAD].turn, 4);
}

/* Another thread has ordered this one's free: its event is waited for, and not what it records later. */
static void test_own_by_another(void **state)
{
    struct context *context = ready();

    (void)state;
    lead_take(context);
    fake.relax = lead_covers;
    fake.relax_arg = context;
    fake.contexts[0].launched = 20;
    free_one(context);
    works(0, 0);
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 10);
}

static void turn_comes(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes == 10)
        atomic_store(&context->slots[1].turn, 4);
}

/* The slot has had another turn meanwhile: a second from then on. */
static void test_own_slot_recorded_again(void **state)
{
    struct context *context = ready();
    uint64_t start;

    (void)state;
    lead_take(context);
    fake.contexts[0].launched = 1;
    free_one(context);
    fake.relaxes = 0;
    fake.relax = turn_comes;
    fake.relax_arg = context;
    start = now();
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now() - start, SECOND_NS + 10 * MS);
}

static void test_others_slot(void **state)
{
    struct context *context = ready();
    uint64_t start;

    (void)state;
    lead_take(context);
    works(0, 0);
    fake.contexts[0].launched = 10;
    fake.relax = NULL;
    elsewhere(free_one, context);
    free_one(context); /* gives this thread a number */
    atomic_store(&context->slots[SLOT_LEAD].turn, 2);
    atomic_store(&context->slots[2].event, NULL);
    start = now();
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now(), start);
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
    fake.relax = context_goes;
    fake.relax_arg = context;
    fake.relaxes = 0;
    assert_true(context_wait_frees(0, true));
    assert_int_equal(fake.relaxes, 7);
}

static void slot_records(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes != 5)
        return;
    /* What it was about to record: 3 units of work, which end one after the other. */
    atomic_store(&context->slots[9].event, (CUevent)&fake.events[7]);
    fake.events[7] = (struct fake_event){.context = &fake.contexts[0], .at = 3};
    fake.contexts[0].launched = 3;
    atomic_store(&context->slots[9].turn, 2);
    fake.relax = device_moves;
    fake.relax_arg = fake_context(0);
}

/* Another thread is about to record. */
static void test_others_about_to_record(void **state)
{
    struct context *context = ready();
    uint64_t start;

    (void)state;
    atomic_store(&context->slots[9].turn, 1);
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.relaxes, 0);
    start = now();
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
    fake.relaxes = 0;
    fake.relax = slot_records;
    fake.relax_arg = context;
    assert_true(context_wait_frees(0, true));
    assert_int_equal(fake.relaxes, 8);
}

static void lead_records(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes != 5)
        return;
    atomic_store(&context->led[9].event, (CUevent)&fake.events[7]);
    atomic_store(&context->led[9].turn, 1);
    fake.events[7] = (struct fake_event){.context = &fake.contexts[0], .at = 3};
    fake.contexts[0].launched = 3;
    atomic_store(&context->slots[SLOT_LEAD].done, 1);
    atomic_store(&context->slots[SLOT_LEAD].turn, 2);
    fake.relax = device_moves;
    fake.relax_arg = fake_context(0);
}

static void test_lead_about_to_record(void **state)
{
    struct context *context = ready();
    uint64_t start;

    (void)state;
    lead_take(context);
    start = now();
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now(), start);
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
    fake.relaxes = 0;
    fake.relax = lead_records;
    fake.relax_arg = context;
    assert_true(context_wait_frees(0, true));
    assert_int_equal(fake.relaxes, 8);
}

/* --- one's own, told apart --- */

static void test_order_wait_own(void **state)
{
    struct context *context = ready();

    (void)state;
    assert_true(order_wait_own(context)); /* nobody has ordered anything */
    elsewhere(free_one, context);         /* the first thread that does: this one will be the second */
    assert_false(order_wait_own(context));
    works(0, 40);
    free_one(context);
    assert_true(order_wait_own(context));
    assert_int_equal(fake.contexts[0].over, 40);
    works(0, 40);
    elsewhere(free_one, context);
    assert_false(order_wait_own(context)); /* another one has since */
    assert_int_equal(fake.contexts[0].over, 40);
    free_one(context);
    assert_true(order_wait_own(context));
    assert_true(fake_thread_is_clean(fake_context(0)));
    elsewhere(free_one, context);
    context->policy.strict = true;
    free_one(context); /* a wait on the host: all that others have ordered is over, too */
    assert_true(order_wait_own(context));
    context->policy.strict = false;
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 1);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    free_one(context);
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 1);
    assert_true(order_wait_own(context));
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}

/* A wait on the host leaves nothing to wait for. */
static void test_nothing_after_a_wait(void **state)
{
    struct context *context = ready();

    (void)state;
    works(0, 10);
    free_one(context);
    context->policy.strict = true;
    free_one(context);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}

int main(int argc, char **argv)
{
    const struct isolated tests[] = {
        {ISOLATED(test_order_wait), .environment = ORDERED},
        {ISOLATED(test_wait_device), .environment = ORDERED},
        {ISOLATED(test_wait_device_current), .environment = ORDERED},
        {ISOLATED(test_wait_device_current), .environment = ORDERED, .row = "for so long"},
        {ISOLATED(test_wait_until), .environment = ORDERED},
        {ISOLATED(test_wait_until_refused), .environment = ORDERED},
        {ISOLATED(test_wait_until_beside_capture), .environment = ORDERED},
        {ISOLATED(test_wait_until_context_goes), .environment = ORDERED},
        {ISOLATED(test_wait_until_context_goes), .environment = ORDERED, .row = "beside a capture"},
        {ISOLATED(test_wait_device_for), .environment = ORDERED},
        {ISOLATED(test_no_context), .environment = ORDERED},
        {ISOLATED(test_own), .environment = ORDERED},
        {ISOLATED(test_others), .environment = ORDERED},
        {ISOLATED(test_own_recorded_again), .environment = ORDERED},
        {ISOLATED(test_led_found), .environment = ORDERED},
        {ISOLATED(test_context_goes), .environment = ORDERED},
        {ISOLATED(test_own_slot), .environment = ORDERED},
        {ISOLATED(test_own_slot_recorded_again), .environment = ORDERED},
        {ISOLATED(test_own_slot_used), .environment = ORDERED},
        {ISOLATED(test_own_by_another), .environment = ORDERED},
        {ISOLATED(test_others_slot), .environment = ORDERED},
        {ISOLATED(test_others_about_to_record), .environment = ORDERED},
        {ISOLATED(test_lead_about_to_record), .environment = ORDERED},
        {ISOLATED(test_order_wait_own), .environment = ORDERED},
        {ISOLATED(test_nothing_after_a_wait), .environment = ORDERED},
    };

    return isolated_run(tests, COUNT(tests), argc > 1 ? argv[1] : NULL);
}
