/* SPDX-License-Identifier: Apache-2.0 */
/* test_ending.c - shim/context/context_end.c: how contexts end, which calls end which, and what is left of them.
 * test_pins.c has the threads that are in calls meanwhile; test_context.c, how contexts begin. */

#include "ready.h"
#include "serve/serve.h"

/* --- a context goes --- */

ISOLATED_CASE(test_goes)
{
    struct context *context = ready(), *found;
    const uint64_t addr = block(context, 1000);
    const unsigned int epoch = atomic_load(&contexts.epoch), ended = atomic_load(&contexts.ended);

    capture_begun(capture_begin(fake_stream(0, 0)), fake_stream(0, 0), true);
    fake_log();
    found = context_leaving(fake_context(0));
    assert_ptr_equal(found, context);
    assert_int_equal(context->leaving, 1);
    assert_int_equal(atomic_load(&contexts_closing), 1);
    assert_int_equal(atomic_load(&contexts.endings), 1);
    assert_int_equal(context_endings, 1);
    assert_int_not_equal(atomic_load(&contexts.epoch), epoch);
    assert_non_null(pool_of(addr));
    context_gone(found, true);
    assert_null(pool_of(addr));
    assert_null(context->pool);
    assert_null(atomic_load(&context->handle));
    assert_false(context->ending || context->leaving || capture_active());
    assert_int_equal(atomic_load(&contexts_closing), 0);
    assert_int_equal(atomic_load(&contexts.endings), 0);
    assert_int_equal(atomic_load(&contexts.ended), ended + 1);
    assert_int_equal(context_endings, 0);
    assert_null(context_entry_find(fake_context(0)));
    assert_string_equal(fake_log(), ""); /* the driver has it no more */
    assert_int_equal(fake.relaxes, 0);
}

/* Threads that wait for an ending go before the next one, which has patience with them, but not for ever. */
READY_CASE(test_threads_that_wait_on)
{
    struct context *found;

    atomic_store(&context_waiters, 1);
    found = context_leaving(fake_context(0));
    assert_ptr_equal(found, context);
    assert_int_not_equal(fake.relaxes, 0);
    context_gone(found, true);
}

/* The next one of the device is the only one, and its frees need not wait. */
READY_CASE(test_goes_alone)
{
    context_gone(context_leaving(fake_context(0)), true);
    assert_false(policy_is_strict(&pooled(4)->policy));
    context_gone(context_leaving(fake_context(4)), false);
    assert_true(policy_is_strict(&pooled(5)->policy));
}

READY_CASE(test_stays)
{
    const uint64_t addr = block(context, 1000);
    unsigned int epoch;

    capture_begun(capture_begin(fake_stream(0, 0)), fake_stream(0, 0), true);
    assert_ptr_equal(context_leaving(fake_context(0)), context);
    epoch = atomic_load(&contexts.epoch);
    context_gone(context, false);
    assert_int_not_equal(atomic_load(&contexts.epoch), epoch);
    assert_ptr_equal(context_current(&fake.driver), context);
    assert_ptr_equal(pool_of(addr), context->pool);
    assert_true(capture_active());
    assert_int_equal(
        context->leaving + atomic_load(&contexts_closing) + atomic_load(&contexts.endings) + context_endings, 0);
}

/* A capture that began while it went is another one's, at the same handle. */
/* After a call that gives up one reference of perhaps several: the handle may be current still, of a context that has
 * gone or of a later one. */
READY_CASE(test_is_over)
{
    const CUcontext handle = fake_context(0);

    assert_false(context_is_over(context, handle));
    fake.contexts[0].id++;
    assert_true(context_is_over(context, handle));
    assert_false(context_is_over(NULL, handle));
    fake_current(fake_context(1));
    assert_true(context_is_over(NULL, handle));
}

READY_CASE(test_captures_since)
{
    capture_begun(capture_begin(fake_stream(0, 0)), fake_stream(0, 0), true);
    context_leaving(fake_context(0));
    capture_begun(capture_begin(fake_stream(1, 0)), fake_stream(1, 0), true);
    context_gone(context, true);
    assert_int_equal(atomic_load(&capture_count), 1);
}

ISOLATED_CASE(test_unknown)
{
    const bool gone = *state != NULL;
    struct context *found;

    ready();
    fake.streams[0].captures = fake.streams[1].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(capture_begin(fake_stream(0, 0)), fake_stream(0, 0), true);
    capture_begun(capture_begin(fake_stream(1, 9)), fake_stream(1, 9), true);
    found = context_leaving(gone ? fake_context(9) : NULL);
    assert_non_null(found);
    assert_int_equal(atomic_load(&contexts.endings), 1); /* one may be about to be seen */
    assert_int_equal(atomic_load(&contexts_closing), 0);
    context_gone(found, gone);
    assert_int_equal(atomic_load(&capture_count), 2); /* the other one may be pooled later */
    assert_int_equal(atomic_load(&contexts.endings) + context_endings, 0);
    context_gone(NULL, true);
    context_primary_gone(NULL);
    assert_int_equal(context_endings, 0);
    context_primary_gone(context_leaving_primary(3));
    assert_int_equal(atomic_load(&capture_count), 2);
    assert_int_equal(atomic_load(&contexts.endings) + context_endings, 0);
}
ISOLATED_AGAIN(test_unknown, gone, .row = "gone")

ISOLATED_CASE(test_exempt_goes)
{
    struct context *found;

    ready();
    context_exempt(fake_context(10));
    found = context_leaving(fake_context(10));
    assert_ptr_equal(found, context_entry_find(fake_context(10)));
    context_gone(found, true);
    assert_null(context_entry_find(fake_context(10)));
    assert_false(found->ending);
}

/* Two threads see one go. */
READY_CASE(test_goes_twice)
{
    assert_ptr_equal(context_leaving(fake_context(0)), context);
    assert_ptr_equal(context_leaving(fake_context(0)), context);
    assert_int_equal(atomic_load(&contexts_closing), 2);
    context_gone(context, true);
    assert_int_equal(atomic_load(&contexts_closing), 1);
    assert_int_equal(context->leaving, 1);
    assert_ptr_not_equal(context_entry_new(), context); /* the other thread still has it */
    context_gone(context, true);
    assert_int_equal(atomic_load(&contexts_closing) + context->leaving + atomic_load(&contexts.endings), 0);
    assert_ptr_equal(pooled(0), context);
}

static atomic_bool over;

static void *change_handle(void *arg)
{
    struct context *context = arg;

    while (!atomic_load(&over)) {
        atomic_store(&context->handle, fake_context(9));
        atomic_store(&context->handle, fake_context(0));
    }
    return NULL;
}

/* The thread sanitizer makes each round a hundred times as long. */
#ifdef __SANITIZE_THREAD__
enum { ROUNDS = 50000 };
#else
enum { ROUNDS = 3000000 };
#endif

/* The entry comes to mean another context and back, often between two looks at it. */
READY_CASE(test_goes_while_it_changes)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, change_handle, context), 0);
    for (unsigned int i = 0; i < ROUNDS; i++)
        context_gone(context_leaving(fake_context(0)), false);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&context->leaving), 0);
    assert_int_equal(atomic_load(&contexts_closing) + atomic_load(&contexts.endings), 0);
}

/* --- the primary context --- */

static const struct end {
    bool active; /* after the call */
    unsigned long long id;
    unsigned int fails; /* so often it cannot be asked */
    bool lacks;
    bool stays, undecided;
} ends[] = {
    {true, 1, 0, false, true, false}, {false, 1, 0, false, false, false}, {true, 2, 0, false, false, false},
    {true, 0, 0, false, true, false}, {false, 1, 1, false, false, false}, {true, 1, 1, false, true, false},
    {false, 1, 2, false, true, true}, {true, 1, 0, true, true, false},    {false, 1, 0, true, true, false},
};

ISOLATED_ROWS(test_primary, ends, .environment = ORDERED)
{
    const struct end *row = *state;
    struct context *context = ready(), *found;

    serve_had_context = true;
    found = context_leaving_primary(0);
    assert_ptr_equal(found, context);
    fake.contexts[0].active = row->active;
    fake.contexts[0].id = row->id;
    if (row->lacks)
        fake_lack(FN(cuDevicePrimaryCtxGetState));
    fake_fail(FN(cuDevicePrimaryCtxGetState), CUDA_ERROR_UNKNOWN, row->fails);
    context_primary_gone(found);
    assert_int_equal(context_entry_find(fake_context(0)) != NULL, row->stays);
    assert_int_equal(context->undecided, row->undecided); /* nothing is served from what may be gone */
    assert_int_equal(context->leaving, row->undecided);
    assert_int_equal(atomic_load(&contexts.endings) + context_endings, 0);
    assert_int_equal(serve_had_context, row->stays && !row->undecided); /* else the next free asks the driver anew */
}

/* The driver could not number it at its first sight: it stays, with the blocks that the program has. */
READY_CASE(test_primary_without_number, .environment = ORDERED)
{
    context->id = 0;
    context_primary_gone(context_leaving_primary(0));
    assert_ptr_equal(context_entry_find(fake_context(0)), context);
    fake.contexts[0].active = false;
    context_primary_gone(context_leaving_primary(0));
    assert_null(context_entry_find(fake_context(0)));
}

static void probe_ends(void *arg)
{
    if (fake.relaxes == 12)
        atomic_store((atomic_uint *)arg, 0);
}

/* A thread of ours has a reference for a moment: with that it would not be the last one that was given back. */
ISOLATED_CASE(test_primary_probed)
{
    struct context *found;

    ready();
    found = context_leaving_primary(0);
    atomic_store(&contexts.probing[0], 1);
    atomic_store(&contexts.probing[1], 1);
    fake.relax = probe_ends;
    fake.relax_arg = &contexts.probing[0];
    context_primary_gone(found);
    assert_int_equal(fake.relaxes, 12);
}

ISOLATED_CASE(test_which_primary)
{
    struct context *context = ready(), *second, *unknown;

    fake.contexts[1].active = true;
    second = pooled(1);
    pooled(4);
    assert_ptr_equal(context_leaving_primary(1), second);
    context_gone(second, false);
    context_gone(context_leaving(fake_context(0)), true);
    unknown = context_leaving_primary(0); /* its other context is none */
    assert_ptr_not_equal(unknown, context);
    assert_ptr_not_equal(unknown, context_find(fake_context(4)));
    context_gone(unknown, false);
    assert_int_equal(context_endings, 0);
}

/* A reset of nobody knows which. */
ISOLATED_CASE(test_sweep)
{
    struct context *context = ready(), *second = pooled(1), *third = pooled(4);
    struct context_sweep sweep;

    fake.contexts[1].active = true;
    context_exempt(fake_context(10));
    memset(&sweep, 0xff, sizeof(sweep));
    context_sweep_begin(&sweep);
    assert_int_equal(context->leaving + second->leaving, 1); /* context 1 was not active when it was seen */
    assert_int_equal(atomic_load(&contexts.endings), 1);
    second->primary = true;
    context_sweep_end(&sweep);
    context_sweep_begin(&sweep);
    assert_int_equal(context->leaving + second->leaving, 2);
    assert_int_equal(third->leaving, 0);
    assert_int_equal(sweep.marked[0], 3);
    assert_int_equal(sweep.marked[1] | sweep.marked[2] | sweep.marked[3], 0);
    fake.contexts[1].active = false;
    context_sweep_end(&sweep);
    assert_non_null(context_find(fake_context(0)));
    assert_null(context_find(fake_context(1)));
    assert_non_null(context_find(fake_context(4)));
    assert_int_equal(context->leaving + second->leaving + atomic_load(&contexts.endings) + context_endings, 0);
}

/* Of many contexts, those that are primary. */
ISOLATED_CASE(test_sweep_many)
{
    struct context_sweep sweep;

    ready();
    for (unsigned int i = 10; i < 90; i++)
        pooled(i)->primary = i % 32 == 15;
    context_sweep_begin(&sweep);
    for (unsigned int i = 10; i < 90; i++)
        assert_int_equal(context_find(fake_context(i))->leaving, i % 32 == 15);
    assert_int_equal(sweep.marked[0], 1 | UINT64_C(1) << (15 - 9) | UINT64_C(1) << (47 - 9));
    assert_int_equal(sweep.marked[1], UINT64_C(1) << (79 - 9 - 64));
    fake.contexts[0].active = false;
    context_sweep_end(&sweep);
    for (unsigned int i = 10; i < 90; i++)
        assert_int_equal(context_find(fake_context(i)) != NULL, i % 32 != 15);
}

/* --- beside such a call --- */

static void decided(void *arg)
{
    struct context *context = arg;

    if (fake.relaxes != 9)
        return;
    atomic_store(&context->ending, fake.relax_step == 7);
    atomic_store(&context->leaving, 0);
}

READY_CASE(test_may_free)
{
    const uint64_t addr = block(context, 1000), later = now() + 100;

    assert_int_equal(context_may_free(addr, later), FREE_NOW);
    assert_int_equal(context_may_free(0x1000, 0), FREE_NOW);
    atomic_store(&context->leaving, 1);
    assert_int_equal(context_may_free(addr, later), FREE_WAIT);
    assert_int_equal(context_may_free(addr, now() + 1), FREE_WAIT);
    assert_int_equal(context_may_free(addr, now()), FREE_LATER);
    assert_int_equal(context_may_free(0x1000, 0), FREE_NOW);
    context_endings = 1;
    assert_int_equal(context_may_free(addr, later), FREE_LATER);
    atomic_store(&contexts_closing, 1);
    fake_log();
    assert_int_equal(serve_free(addr), SERVE_DONE);
    assert_string_equal(fake_log(), ""); /* no call in a context that may be gone */
    assert_int_equal(pool_live_size(addr), 0);
    assert_int_equal(serve_free(addr), SERVE_INVALID);
    context_endings = 0;
    atomic_store(&context->undecided, true);
    assert_int_equal(context_may_free(addr, later), FREE_NOW);
    atomic_store(&context->undecided, false);
    atomic_store(&context->ending, true);
    assert_int_equal(context_may_free(addr, later), FREE_NEVER);
    atomic_store(&context->leaving, 0);
    assert_int_equal(context_may_free(addr, later), FREE_NEVER);
    /* The driver may have given the address to somebody else meanwhile. */
    assert_int_equal(serve_free(addr), SERVE_FORWARD);
}

static void asleep(void *arg)
{
    assert_true(atomic_load(&pins_own->sleeps)); /* it asks the driver for nothing until that is decided */
    decided(arg);
}

READY_CASE(test_context_stays)
{
    struct pins *own = pin_begin((uintptr_t)context);

    assert_true(context_stays(context));
    atomic_store(&context->leaving, 1);
    context_endings = 1;
    assert_false(context_stays(context));
    context_endings = 0;
    atomic_store(&context->undecided, true);
    assert_true(context_stays(context));
    atomic_store(&context->undecided, false);
    fake.relax = asleep;
    fake.relax_arg = context;
    assert_true(context_stays(context));
    assert_int_equal(fake.relaxes, 9);
    assert_false(atomic_load(&own->sleeps));
    atomic_store(&context->leaving, 1);
    fake.relaxes = 0;
    fake.relax_step = 7;
    assert_false(context_stays(context));
    assert_int_equal(fake.relaxes, 9);
    pin_end(own);
}

/* --- counters --- */

static struct seen {
    unsigned int devices;
    struct pool_stats stats[2];
    uint64_t bypassed[2];
} seen;

static void see(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    assert_ptr_equal(arg, &seen);
    seen.devices |= 1u << device;
    seen.stats[device] = *stats;
    seen.bypassed[device] = bypassed;
}

static void look(bool ending)
{
    memset(&seen, 0, sizeof(seen));
    context_stats_each(ending, see, &seen);
}

ISOLATED_CASE(test_stats, .environment = ORDERED)
{
    struct context *context, *beside;

    ready();
    context_gone(context_leaving(fake_context(0)), true);
    look(false);
    assert_int_equal(seen.devices, 1); /* by what it has been */
    context = pooled(0);
    beside = pooled(4);
    block(context, 3 * MIB);
    block(beside, 5 * MIB);
    context_bypassed(context);
    context_bypassed(context);
    context_bypassed(beside);
    look(false);
    assert_int_equal(seen.devices, 1);
    assert_int_equal(seen.stats[0].allocs, 2);
    assert_int_equal(seen.stats[0].live, 8 * MIB);
    assert_int_equal(seen.stats[0].peak_live, 8 * MIB); /* both were there at a time */
    assert_int_equal(seen.bypassed[0], 3);
    context_gone(context_leaving(fake_context(0)), true);
    look(false);
    assert_int_equal(seen.stats[0].allocs, 2);
    assert_int_equal(seen.stats[0].live, 5 * MIB);
    assert_int_equal(seen.stats[0].peak_live, 8 * MIB);
    assert_int_equal(seen.stats[0].segments_alloc, seen.stats[0].segments_free + 1);
    assert_int_equal(seen.bypassed[0], 3);
    context_gone(context_leaving(fake_context(4)), true);
    look(true);
    assert_int_equal(seen.stats[0].held + seen.stats[0].live + seen.stats[0].idle, 0);
    assert_int_equal(seen.stats[0].peak_live, 8 * MIB); /* not the sum over contexts one after the other */
    assert_in_range(seen.stats[0].peak_held, 8 * MIB, 16 * MIB);
    assert_int_equal(seen.stats[0].segments_alloc, seen.stats[0].segments_free);
    context = pooled(1);
    block(context, 9 * MIB);
    look(false);
    assert_int_equal(seen.devices, 3);
    assert_int_equal(seen.stats[1].live, 9 * MIB);
    assert_int_equal(seen.stats[1].allocs, 1);
    assert_int_equal(seen.bypassed[1], 0);
}

READY_CASE(test_stats_beside, .environment = ORDERED)
{
    block(context, 1000);
    atomic_store(&context->ending, true);
    look(false);
    assert_int_equal(seen.devices, 0);
    look(true);
    assert_int_equal(seen.devices, 0);
    atomic_store(&context->ending, false);
    for (unsigned int i = 1; i < PINS_MAX; i++)
        assert_true(context_pin(context));
    look(false); /* it cannot be made to stay */
    assert_int_equal(seen.devices, 0);
    look(true); /* at exit that is not waited for */
    assert_int_equal(seen.devices, 1);
    assert_int_equal(seen.stats[0].allocs, 1);
}
