/* SPDX-License-Identifier: Apache-2.0 */
/* test_frees.c - shim/context/free_order.c: waiting for the work that came before frees, one's own and others', whoever
 * has ordered them and in whichever slot. */
#include "ready.h"

/* --- what came before frees --- */

ISOLATED_CASE(test_no_context, .environment = ORDERED)
{
    assert_false(context_wait_frees(CONTEXT_ALL, true));
    ready_all();
    assert_true(context_wait_frees(1, true));
    assert_false(context_wait_frees(2, true));
    fake_lack(FN(cuEventQuery));
    assert_true(context_wait_frees(CONTEXT_ALL, true));
    assert_true(fake_thread_is_clean(fake_context(0)));
}

/* One's own, for as long as it takes; once. */
ALL_CASE(test_own, .environment = ORDERED)
{
    works(0, 5000);
    free_one(context);
    works(0, 1); /* what was launched since is not waited for */
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 5000);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}

/* However many batches there have been. */
ALL_CASE(test_own_after_many, .environment = ORDERED)
{
    static const uint64_t many[] = {BATCH_SEQ_MASK - 1, BATCH_SEQ_MASK + 1, 2 * (BATCH_SEQ_MASK + 1) + 2000};
    uint64_t before;

    for (unsigned int i = 0; i < 3; i++) {
        atomic_store(&context->slots[SLOT_COMBINER].seq, many[i]);
        works(0, 5000);
        before = fake.contexts[0].launched;
        free_one(context);
        works(0, 1);
        elsewhere(free_one, context);
        assert_int_equal(order_batch_own(context), many[i] + 1);
        fake.contexts[0].over = 0;
        assert_true(context_wait_frees(0, false));
        assert_int_equal(fake.contexts[0].over, before);
    }
}

/* Other threads' only if asked, for a second. */
ALL_CASE(test_others, .environment = ORDERED)
{
    uint64_t start = now();

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

ALL_CASE(test_own_recorded_again, .environment = ORDERED)
{
    uint64_t start;

    works(0, 5000);
    free_one(context); /* turn 1 of the lead, which this thread's event stands for */
    atomic_store(&context->batches[1].seq, 0);
    elsewhere(free_again, context); /* a later one, by another thread: the first that is known */
    start = now();
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now() - start, SECOND_NS);
}

/* The first turn that is known from one's own on, whoever has recorded it. */
ALL_CASE(test_led_found, .environment = ORDERED)
{
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

ALL_CASE(test_context_goes, .environment = ORDERED)
{
    fake.contexts[0].launched = 1;
    free_one(context);
    fake.relax = context_goes;
    fake.relax_arg = context;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.relaxes, 7);
}

static void *begins_to_end(void *arg)
{
    const struct context *context = arg;

    assert_ptr_equal(context_leaving(context->handle), arg);
    return NULL;
}

/* Another thread's call that may end a context is waited for only where this thread has freed, and once. */
ALL_CASE(test_beside_an_end, .environment = ORDERED)
{
    struct context *other = context_find(fake_context(1));
    uint64_t start = now();

    fake.contexts[1].launched = 1;
    elsewhere(free_one, other);
    elsewhere(begins_to_end, other);
    assert_true(context_wait_frees(CONTEXT_ALL, false));
    assert_int_equal(now(), start);
    atomic_store(&other->leaving, 0);
    free_one(other);
    fake_current(fake_context(0));
    for (unsigned int call = 0; call < 2; call++) {
        elsewhere(begins_to_end, other);
        for (unsigned int i = 0; i < 3; i++)
            assert_true(context_wait_frees(CONTEXT_ALL, false));
        assert_int_equal(now() - start, (call + 1) * SECOND_NS);
        atomic_store(&other->leaving, 0);
    }
    works(1, 9);
    assert_true(context_wait_frees(CONTEXT_ALL, false)); /* it has stayed */
    assert_int_equal(fake.contexts[1].over, 1);
}

/* An earlier context's slot says nothing of the entry's new one. */
ALL_CASE(test_beside_an_end_reused, .environment = ORDERED)
{
    const uint64_t start = now();

    free_one(context); /* gives this thread a number */
    order_batch_own_set(context, 0);
    atomic_store(&context->slots[5].user, 1);
    elsewhere(begins_to_end, context);
    assert_true(context_wait_frees(CONTEXT_ALL, false));
    assert_int_equal(now(), start);
}

/* --- frees that found the lead taken, each with a slot and an event of its own --- */

static void lead_take(struct context *context)
{
    atomic_store(&context->slots[SLOT_COMBINER].seq, 1);
}

ALL_CASE(test_own_slot, .environment = ORDERED)
{
    lead_take(context);
    works(0, 10000);
    free_one(context);
    fake.relaxes = 0;
    fake.contexts[0].over = 0;
    fake.contexts[0].launched++;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 10000);
}

/* A query that fails once says nothing: the work may be under way, and the memory that it uses is about to go. */
ISOLATED_CASE(test_query_fails_once, .environment = ORDERED)
{
    struct context *context = ready_all();

    if (*state)
        lead_take(context);
    fake.contexts[0].launched = 10;
    free_one(context);
    works(0, 0);
    fake_fail(FN(cuEventQuery), CUDA_ERROR_UNKNOWN, 1);
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake.contexts[0].over, 10);
    works(0, 5);
    fake_fail(FN(cuEventQuery), CUDA_ERROR_UNKNOWN, 1);
    assert_true(order_wait_until(context, now() + 10 * MS));
}
ISOLATED_AGAIN(test_query_fails_once, in_a_slot, .environment = ORDERED, .row = "in a slot")

/* A record made there for another purpose is no free's. */
ALL_CASE(test_own_slot_used, .environment = ORDERED)
{
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

    atomic_store(&context->batches[9].event, (CUevent)&fake.events[7]);
    atomic_store(&context->batches[9].seq, 3);
    fake.events[7] = (struct fake_event){.context = &fake.contexts[0], .at = 10};
    atomic_store(&context->slots[SLOT_COMBINER].done, 3);
    atomic_store(&context->slots[SLOT_COMBINER].seq, 4);
}

/* Another thread has ordered this one's free: its event is waited for, and not what it records later. */
ALL_CASE(test_own_by_another, .environment = ORDERED)
{
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
        atomic_store(&context->slots[1].seq, 4);
}

/* The slot has had another turn meanwhile: a second from then on. */
ALL_CASE(test_own_slot_recorded_again, .environment = ORDERED)
{
    uint64_t start;

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

ALL_CASE(test_others_slot, .environment = ORDERED)
{
    uint64_t start;

    lead_take(context);
    works(0, 0);
    fake.contexts[0].launched = 10;
    fake.relax = NULL;
    elsewhere(free_one, context);
    free_one(context); /* gives this thread a number */
    atomic_store(&context->slots[SLOT_COMBINER].seq, 2);
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
    /* The work that it was about to record: 3 units, which end one after the other. */
    atomic_store(&context->slots[0].event, (CUevent)&fake.events[7]);
    fake.events[7] = (struct fake_event){.context = &fake.contexts[0], .at = 3};
    fake.contexts[0].launched = 3;
    atomic_store(&context->slots[0].seq, 2);
    fake.relax = device_moves;
    fake.relax_arg = fake_context(0);
}

/* Another thread is about to record. */
ALL_CASE(test_others_about_to_record, .environment = ORDERED)
{
    uint64_t start;

    atomic_store(&context->slots[0].seq, 1);
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
    atomic_store(&context->batches[9].event, (CUevent)&fake.events[7]);
    atomic_store(&context->batches[9].seq, 1);
    fake.events[7] = (struct fake_event){.context = &fake.contexts[0], .at = 3};
    fake.contexts[0].launched = 3;
    atomic_store(&context->slots[SLOT_COMBINER].done, 1);
    atomic_store(&context->slots[SLOT_COMBINER].seq, 2);
    fake.relax = device_moves;
    fake.relax_arg = fake_context(0);
}

ALL_CASE(test_lead_about_to_record, .environment = ORDERED)
{
    uint64_t start;

    lead_take(context);
    start = now();
    assert_true(context_wait_frees(0, false));
    assert_int_equal(now(), start);
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
    atomic_store(&context->slots[SLOTS - 1].seq, 1); /* one second for the slots and the lead */
    start = now();
    assert_true(context_wait_frees(0, true));
    assert_int_equal(now() - start, SECOND_NS);
    atomic_store(&context->slots[SLOTS - 1].seq, 2);
    fake.relaxes = 0;
    fake.relax = lead_records;
    fake.relax_arg = context;
    assert_true(context_wait_frees(0, true));
    assert_int_equal(fake.relaxes, 8);
}

/* --- one's own, told apart --- */

ALL_CASE(test_order_wait_own, .environment = ORDERED)
{
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
    /* Deferred frees, ordered together: this thread's alone, or several threads'. */
    assert_int_equal(order_ops.order(context, POOL_ORDER_DEVICE), 0);
    assert_false(order_wait_own(context));
    assert_int_equal(order_ops.order(context, POOL_ORDER_OWN), 0);
    assert_true(order_wait_own(context));
    assert_true(fake_thread_is_clean(fake_context(0)));
    elsewhere(free_one, context);
    context->policy.strict = true;
    free_one(context); /* a wait on the host: all that others have ordered is over, too */
    assert_true(order_wait_own(context));
    context->policy.strict = false;
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 2);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    free_one(context);
    fake_fail(FN(cuCtxGetCurrent), CUDA_ERROR_UNKNOWN, 2);
    assert_true(order_wait_own(context));
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}

/* A wait on the host leaves nothing to wait for. */
ALL_CASE(test_nothing_after_a_wait, .environment = ORDERED)
{
    works(0, 10);
    free_one(context);
    context->policy.strict = true;
    free_one(context);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    assert_true(context_wait_frees(0, false));
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}
/* Another thread's free is put in order on the device while a call of this thread's is made. */
static void other_orders(void *arg)
{
    struct context *context = arg;
    const bool strict = context->policy.strict;

    fake_before(FN(cuCtxSynchronize), NULL, NULL);
    fake_before(FN(cuCtxRecordEvent), NULL, NULL);
    context->policy.strict = false;
    elsewhere(free_one, context);
    context->policy.strict = strict;
}

/* The wait may have begun before the other's work. */
ALL_CASE(test_not_own_during_a_wait, .environment = ORDERED)
{
    elsewhere(free_one, context);
    context->policy.strict = true;
    fake_before(FN(cuCtxSynchronize), other_orders, context);
    free_one(context);
    assert_false(order_is_own(context));
    free_one(context);
    assert_true(order_is_own(context));
}

ALL_CASE(test_not_own_in_a_slot, .environment = ORDERED)
{
    lead_take(context);
    free_one(context);
    assert_true(order_is_own(context));
    elsewhere(free_one, context);
    assert_false(order_is_own(context));
    free_one(context);
    assert_true(order_is_own(context));
    fake_before(FN(cuCtxRecordEvent), other_orders, context);
    free_one(context);
    assert_false(order_is_own(context));
}
