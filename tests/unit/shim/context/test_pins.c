/* SPDX-License-Identifier: Apache-2.0 */
/* test_pins.c - shim/context/pins.c and what shim/context/context_end.c does with it: which threads are in calls on
 * which context, which of them are waited for when a context ends, and a pool that lingers because one does not come
 * out. */
#include <semaphore.h>

#include "ready.h"
#include "serve/serve.h"

/* --- another thread, in a call --- */

enum in { IN_CALL, IN_FREE, IN_PIN, IN_SLEEP };

static struct {
    enum in in;
    struct context *context;
    uint64_t addr; /* IN_FREE */
    sem_t begun, end;
    pthread_t thread;
    unsigned int after; /* looks, until it comes out; 0: not by itself */
} other;

static void *call(void *arg)
{
    struct pins *own = NULL;

    if (other.in == IN_PIN)
        assert_true(context_pin(other.context));
    else
        own = pin_begin(other.in == IN_FREE ? PIN_ADDRESS(other.addr) : (uintptr_t)other.context);
    if (other.in == IN_SLEEP)
        pin_sleep(other.context);
    sem_post(&other.begun);
    sem_wait(&other.end);
    if (other.in == IN_SLEEP)
        pin_wake();
    if (other.in == IN_PIN)
        context_unpin(other.context);
    else
        pin_end(own);
    return arg;
}

static void call_finish(void)
{
    sem_post(&other.end);
    pthread_join(other.thread, NULL);
}

static void call_relax(void *arg)
{
    if (fake.relaxes == other.after)
        call_finish();
}

static void call_start(enum in in, struct context *context, uint64_t addr)
{
    other.in = in;
    other.context = context;
    other.addr = addr;
    sem_init(&other.begun, 0, 0);
    sem_init(&other.end, 0, 0);
    fake.relax = call_relax;
    assert_int_equal(pthread_create(&other.thread, NULL, call, NULL), 0);
    sem_wait(&other.begun);
}

/* --- which threads are in calls --- */

ISOLATED_CASE(test_calls)
{
    struct context *context = ready(), *second = pooled(1);
    const uint64_t addr = block(context, 3 * MIB), far = block(second, 1000);
    struct pins *own;

    assert_false(busy(context, true));
    own = pin_begin((uintptr_t)context);
    assert_true(busy(context, true));
    assert_false(busy(second, true));
    assert_false(busy(context, false)); /* this thread may be below a signal handler */
    pin_end(own);
    assert_false(busy(context, true));
    own = pin_begin(PIN_ADDRESS(addr));
    assert_true(busy(context, true));
    assert_false(busy(second, true));
    pin_resolve(second); /* only while that is not known */
    assert_true(busy(second, true));
    assert_false(busy(context, true));
    pin_resolve(context);
    assert_true(busy(second, true));
    pin_end(own);
    pin_resolve(context);
    assert_false(busy(context, true));
    own = pin_begin(PIN_ADDRESS(0x1000)); /* of which nobody knows where it belongs */
    assert_true(busy(context, true) && busy(second, true));
    pin_end(own);
    own = pin_begin(PIN_ADDRESS(far));
    assert_false(busy(context, true));
    pin_end(own);
    pin_end(NULL);
}

ISOLATED_CASE(test_pins)
{
    struct context *context = ready(), *second = pooled(1);
    struct pins *own;

    own = pin_begin((uintptr_t)context);
    for (unsigned int i = 1; i < PINS_MAX; i++)
        assert_true(context_pin(i % 2 ? context : second));
    assert_false(context_pin(context)); /* at so many at a time, and no more */
    context_unpin(second);
    assert_true(context_pin(second));
    pin_end(own);
    for (unsigned int i = 1; i < PINS_MAX; i++) {
        assert_true(busy(i % 2 ? context : second, true));
        context_unpin(i % 2 ? context : second);
    }
    assert_false(busy(context, true) || busy(second, true));
    context_unpin(context); /* more often than pinned */
    assert_false(busy(context, true));
    own = pin_begin((uintptr_t)context);
    context_unpin(context); /* the call is no pin */
    assert_true(busy(context, true));
    pin_end(own);
}

READY_CASE(test_pin_refused)
{
    struct pool *pool = context->pool;

    atomic_store(&context->leaving, 1);
    assert_false(context_pin(context));
    atomic_store(&context->leaving, 0);
    context->pool = NULL;
    assert_false(context_pin(context));
    context->pool = pool;
    atomic_store(&context->handle, NULL);
    assert_false(context_pin(context));
    assert_false(busy(context, true)); /* what was refused leaves no mark */
    atomic_store(&context->handle, fake_context(0));
    assert_true(context_pin(context));
}

/* A thread that sleeps counts as being in a call only for the destruction of a pool. */
ISOLATED_CASE(test_sleepers)
{
    static const enum in ins[] = {IN_CALL, IN_FREE, IN_PIN, IN_SLEEP};
    struct context *context = ready();
    const uint64_t addr = block(context, 1000);

    for (size_t i = 0; i < COUNT(ins); i++) {
        call_start(ins[i], context, addr);
        assert_true(busy(context, true));
        assert_int_equal(busy(context, false), ins[i] != IN_SLEEP);
        call_finish();
        assert_false(busy(context, true));
    }
}

static struct {
    struct pins *record;
    pthread_key_t key; /* of the program: its destructor runs after ours */
    bool seen;
} ended;

static void after_ours(void *arg)
{
    ended.seen = pins_own == NULL && arg; /* not a record that may be another thread's by now */
}

static void *call_left_open(void *arg)
{
    ended.record = pin_begin((uintptr_t)arg);
    pin_sleep(arg);
    pthread_key_create(&ended.key, after_ours);
    pthread_setspecific(ended.key, arg);
    return NULL;
}

/* A thread that ends leaves nothing behind, and its record serves the next one; nobody else's does. */
READY_CASE(test_thread_ends)
{
    struct pins *own = pin_begin((uintptr_t)context), *first, *second;

    pin_end(own);
    elsewhere(call_left_open, context);
    first = ended.record;
    assert_true(ended.seen);
    assert_ptr_not_equal(first, own);
    assert_false(busy(context, true));
    assert_false(first->taken || first->sleeps);
    call_start(IN_CALL, context, 0);
    assert_true(busy(context, false)); /* awake */
    assert_true(first->taken);
    elsewhere(call_left_open, context);
    second = ended.record ? ended.record : own;
    assert_true(second != first && second != own);
    assert_ptr_equal(second->next, first);
    assert_ptr_equal(first->next, own);
    call_finish();
    elsewhere(call_left_open, context);
    assert_true(ended.record == first || ended.record == second);
    assert_null(own->next);
}

/* Once it sleeps, it is known whose memory a free is of. */
ISOLATED_CASE(test_sleep_resolves)
{
    struct context *context = ready(), *second = pooled(1);
    struct pins *own = pin_begin(PIN_ADDRESS(0x1000));

    assert_true(busy(second, true));
    pin_sleep(context);
    assert_true(busy(context, true));
    assert_false(busy(second, true));
    pin_wake();
    pin_end(own);
}

ISOLATED_CASE(test_barriers)
{
    const char *how = *state;

    ready();
    fake.fences = how && strcmp(how, "none") == 0;
    fake.barriers_refused = how && !fake.fences;
    pins_fence();
    pins_fence();
    assert_int_equal(fake.barriers, fake.fences ? 0 : 2);
    assert_int_equal(fake.registrations, fake.fences ? 0 : 1);
    assert_int_equal(now() - 1000 * SECOND_NS, fake.barriers_refused ? 40000000 : 0); /* a store's time */
}
ISOLATED_AGAIN(test_barriers, none, .row = "none")
ISOLATED_AGAIN(test_barriers, promised, .row = "promised")

/* A kernel without membarrier: each mark has a fence, and no record is at hand. */
ISOLATED_CASE(test_without_membarrier)
{
    struct context *context;
    struct pins *own;

    fake.fences = true;
    context = context_current(&fake.driver);
    own = pin_begin((uintptr_t)context);
    assert_non_null(own);
    assert_null(pins_own);
    assert_true(busy(context, true));
    pin_end(own);
    assert_ptr_equal(pin_begin((uintptr_t)context), own);
    pin_end(own);
    assert_true(context_pin(context));
    assert_true(busy(context, true));
    context_unpin(context);
    assert_false(busy(context, true));
    fake.barriers = 0;
    context_gone(context_leaving(context->handle), true);
    assert_int_equal(fake.barriers, 0);
    assert_null(context_find(fake_context(0)));
}

/* A thread for which there is no record: it pins nothing, and leaves nothing. */
static void *thread_without_record(void *arg)
{
    unsigned int from = 0;

    fake.no_memory = true;
    assert_null(context_next_staying(&from, CONTEXT_ALL)); /* and it returns */
    from = 0;
    assert_null(context_next_decided(&from, CONTEXT_ALL));
    assert_null(pin_begin((uintptr_t)arg));
    assert_false(context_pin(arg));
    context_unpin(arg);
    pin_sleep(arg);
    pin_wake();
    pin_end(NULL);
    fake.no_memory = false;
    assert_true(context_pin(arg));
    context_unpin(arg);
    return NULL;
}

READY_CASE(test_no_memory)
{
    elsewhere(thread_without_record, context);
    assert_false(busy(context, true));
}

/* --- other threads in calls --- */

/* Before the program's call: those that may hand its handles to the driver; for a second at most. */
ISOLATED_CASE(test_waits_before)
{
    static const struct {
        enum in in;
        unsigned int after, relaxes;
    } rows[] = {{IN_CALL, 5, 5}, {IN_FREE, 5, 5}, {IN_PIN, 5, 5}, {IN_CALL, 5000, 1000}, {IN_SLEEP, 5000, 0}};
    struct context *context = ready();

    for (size_t i = 0; i < COUNT(rows); i++) {
        const uint64_t start = now();

        other.after = rows[i].after;
        fake.relaxes = 0;
        call_start(rows[i].in, context, block(context, 1000));
        assert_ptr_equal(context_leaving(fake_context(0)), context);
        assert_int_equal(fake.relaxes, rows[i].relaxes);
        assert_int_equal(now() - start, rows[i].relaxes * 1000000);
        if (rows[i].after > rows[i].relaxes)
            call_finish();
        context_gone(context, false);
    }
}

/* After it: all. */
ISOLATED_CASE(test_waits_after)
{
    const enum in in = *state ? IN_CALL : IN_SLEEP;
    struct context *context = ready();
    const uint64_t addr = block(context, 1000);

    context_leaving(fake_context(0));
    other.after = 5;
    call_start(in, context, 0);
    context_gone(context, true);
    assert_int_equal(fake.relaxes, 5);
    assert_null(pool_of(addr));
}
ISOLATED_AGAIN(test_waits_after, in_a_call, .row = "in a call")

/* A thread does not come out: the pool lingers, and so does the entry, until somebody looks again. */
ISOLATED_CASE(test_lingers)
{
    struct context *context = ready(), *next;
    const uint64_t addr = block(context, 1000);
    struct pool *pool = context->pool;
    uint64_t start;

    other.after = 0;
    context_leaving(fake_context(0));
    call_start(IN_SLEEP, context, 0);
    start = now();
    context_gone(context, true);
    assert_int_equal(now() - start, SECOND_NS);
    assert_ptr_equal(pool_of(addr), pool); /* which that thread may be about to use */
    assert_ptr_equal(context->lingering, pool);
    assert_true(context->ending);
    assert_null(context_find(fake_context(0)));
    assert_int_equal(atomic_load(&contexts_closing), 1);
    assert_false(context_stays(context));
    assert_int_equal(context_may_free(addr, UINT64_MAX), FREE_NEVER);
    context_lingering_end();
    assert_ptr_equal(pool_of(addr), pool);
    next = pooled(0);
    assert_ptr_not_equal(next, context);
    call_finish();
    context_lingering_end();
    assert_null(pool_of(addr));
    assert_null(context->lingering);
    assert_false(context->ending);
    assert_int_equal(atomic_load(&contexts_closing), 0);
    context_lingering_end();
    assert_int_equal(atomic_load(&contexts_closing), 0);
    assert_ptr_equal(pooled(7), context);
}

/* The next context that comes, or goes, looks. */
ISOLATED_CASE(test_lingering_is_ended)
{
    struct context *context = ready();
    const uint64_t addr = block(context, 1000);

    other.after = 0;
    pooled(1);
    context_leaving(fake_context(0));
    call_start(IN_SLEEP, context, 0);
    context_gone(context, true);
    call_finish();
    assert_non_null(pool_of(addr));
    if (*state)
        pooled(2);
    else
        context_gone(context_leaving(fake_context(1)), false);
    assert_null(pool_of(addr));
}
ISOLATED_AGAIN(test_lingering_is_ended, comes, .row = "comes")

/* A free that has failed asks the runtime for its error. The thread that ends the context may hold the runtime's lock
 * meanwhile, so it does not wait for that free. */
ISOLATED_CASE(test_failed_free)
{
    struct context *context = ready();
    const uint64_t addr = block(context, 1000);
    struct serve_failed failed;

    if (*state)
        fake_current(NULL);
    serve_failed_begin(addr, &failed);
    assert_ptr_equal(failed.context, context);
    assert_int_equal(failed.visit.pushed, *state != NULL);
    context_gone(context_leaving(fake_context(0)), true);
    assert_int_equal(fake.relaxes, 0);
    assert_null(pool_of(addr));
    assert_null(context->lingering);
    serve_failed_end(&failed);
}
ISOLATED_AGAIN(test_failed_free, elsewhere, .row = "elsewhere")
