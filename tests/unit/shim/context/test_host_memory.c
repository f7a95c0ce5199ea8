/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_memory.c - shim/context/host_memory.c and shim/serve/pinned_requests.c: when pinned memory that has become
 * idle goes back to the driver, on the fake clock. tests/unit/pool/test_host_pool.c has the pool itself. */
#include "base/process.h"
#include "context/free_gate.h"
#include "pinned.h"

/* Each free is put in order on the device, but for relaxed ones. */
static void put_in_order(unsigned int waits)
{
    start();
    put(get(LARGE));
    assert_int_equal(fake_calls(FN(cuCtxWaitEvent)), waits);
    assert_int_equal(fake_calls(FN(cuCtxSynchronize)), 0);
}

ISOLATED_CASE(test_ordered, .environment = DECAY)
{
    put_in_order(1);
}

ISOLATED_CASE(test_relaxed, .environment = "CUPOOL_HOST_POOL=1 CUPOOL_FREE=relaxed")
{
    put_in_order(0);
}

/* It goes back after CUPOOL_DECAY seconds, and not long before; what is live or was used meanwhile stays. */
ISOLATED_CASE(test_decay, .environment = DECAY)
{
    uint64_t live, used, idle;

    start();
    live = get(LARGE);
    used = get(LARGE + MIB);
    idle = get(LARGE + 2 * MIB);
    assert_int_equal(fake.clocks, 1);
    run_for(3 * SECOND_NS);
    put(used);
    put(idle);
    run_for(6 * SECOND_NS);
    assert_int_equal(pinned.returned, 0);
    assert_int_equal(get(LARGE + MIB), used);
    put(used);
    run_for(2 * SECOND_NS);
    assert_int_equal(pinned.returned, 1);
    assert_int_equal(pinned.freed, idle);
    /* The event has the time when the call began: the address may have been handed out anew before it returned. */
    assert_non_null(strstr(fake.traced, "\"n\":5242880,\"b\":\"host\",\"us\":5000.0"));
    assert_int_equal(fake.traced_at, pinned.at);
    run_for(6 * SECOND_NS);
    assert_int_equal(pinned.returned, 2);
    assert_int_equal(pinned.freed, used);
    run_for(60 * SECOND_NS);
    assert_int_equal(pinned.returned, 2);
    put(live);
    run_for(8 * SECOND_NS);
    assert_int_equal(pinned.returned, 3);
}

/* While a stream captures, the driver gets the program's own call, which the capture may forbid; not one of the pool's,
 * for a slab. */
ISOLATED_CASE(test_captured, .environment = DECAY)
{
    uint64_t addr = 0;

    start();
    put(get(LARGE));
    atomic_fetch_add(&fake.ns, SECOND_NS);
    atomic_store(&capture_count, 1);
    assert_int_equal(serve_host_alloc(0, 1000, (const void *)(uintptr_t)get, &addr), SERVE_FORWARD);
    assert_int_equal(serve_host_alloc(0, LARGE, (const void *)(uintptr_t)get, &addr), SERVE_FORWARD);
    assert_int_equal(pinned.taken, 1);
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
    atomic_store(&capture_count, 0);
    get(1000);
    assert_int_equal(pinned.taken, 2);
}

/* Memory that the device may still use is not handed out again before its work is over. */
ISOLATED_CASE(test_work_under_way, .environment = DECAY)
{
    uint64_t addr, other;

    start();
    addr = get(LARGE);
    fake.contexts[0].launched++;
    put(addr);
    atomic_fetch_add(&fake.ns, SECOND_NS);
    other = get(LARGE);
    assert_int_not_equal(other, addr);
    fake.contexts[0].over = fake.contexts[0].launched;
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_equal(get(LARGE), addr);
}

/* Memory serves again once the work before its own free is over, whatever has been freed since. */
ISOLATED_CASE(test_each_free_has_its_own_token, .environment = DECAY)
{
    uint64_t first, second;

    start();
    first = get(LARGE);
    second = get(LARGE);
    fake.contexts[0].launched++;
    put(first);
    fake.contexts[0].over = fake.contexts[0].launched++;
    put(second);
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_equal(get(LARGE), first);
}

/* A free of another thread's waits in the driver, in another context: a record there would be held up. */
ISOLATED_CASE(test_beside_a_free_in_the_driver, .environment = DECAY)
{
    struct context *other;
    unsigned int records;
    uint64_t addr;

    start();
    other = pooled(1);
    addr = get(LARGE);
    assert_true(free_gate_close(other));
    records = fake_calls(FN(cuCtxRecordEvent));
    put(addr);
    assert_int_equal(fake_calls(FN(cuCtxRecordEvent)) - records, 2); /* its own order, and of the token one event */
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
    assert_int_not_equal(get(LARGE), addr);
    free_gate_open(other);
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_equal(get(LARGE), addr);
    assert_int_equal(atomic_load(&other->inside) + atomic_load(&pooled(0)->inside), 0);
}

/* So would be the question by which idle memory goes back. */
ISOLATED_CASE(test_decay_beside_a_free_in_the_driver, .environment = DECAY)
{
    unsigned int records;

    start();
    put(get(LARGE));
    records = fake_calls(FN(cuCtxRecordEvent));
    assert_true(free_gate_close(pooled(0)));
    run_for(60 * SECOND_NS);
    assert_int_equal(pinned.returned, 0);
    assert_int_equal(fake_calls(FN(cuCtxRecordEvent)), records);
    free_gate_open(pooled(0));
    run_for(SECOND_NS);
    assert_int_equal(pinned.returned, 1);
    assert_int_equal(atomic_load(&pooled(0)->inside), 0);
}

/* A call that may end a context is under way, and in the end it does not: the free is covered by a later token. */
ISOLATED_CASE(test_a_context_that_may_end, .environment = DECAY)
{
    struct context *other;
    uint64_t addr;

    start();
    other = pooled(1);
    addr = get(LARGE);
    fake.contexts[1].launched = 1;
    atomic_store(&other->leaving, true);
    put(addr);
    atomic_store(&other->leaving, false);
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_not_equal(get(LARGE), addr);
    fake.contexts[1].over = 1;
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_equal(get(LARGE), addr);
}

/* Events go with their context; a later one in its place has its own. */
ISOLATED_CASE(test_a_context_after_another, .environment = DECAY)
{
    struct context *other;
    unsigned int made;

    start();
    other = pooled(1);
    put(get(LARGE));
    atomic_fetch_add(&fake.ns, SECOND_NS);
    get(LARGE);
    made = fake.events_made;
    context_gone(context_leaving(fake_context(1)), true);
    put(get(2 * LARGE));
    assert_int_equal(fake.events_made, made); /* the one that stays keeps its event */
    atomic_fetch_add(&fake.ns, SECOND_NS);
    get(2 * LARGE);
    assert_ptr_equal(pooled(4), other);
    put(get(3 * LARGE));
    assert_int_equal(fake.events_made, made + 1);
}

/* The work of a context that has ended is over, and the driver is not asked about its event. */
ISOLATED_CASE(test_work_that_has_ended, .environment = DECAY)
{
    unsigned int asked;
    uint64_t addr;

    start();
    pooled(1);
    addr = get(LARGE);
    fake.contexts[1].launched = 1;
    put(addr);
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_not_equal(get(LARGE), addr);
    context_gone(context_leaving(fake_context(1)), true);
    asked = fake_calls(FN(cuEventQuery));
    atomic_fetch_add(&fake.ns, SECOND_NS);
    assert_int_equal(get(LARGE), addr);
    assert_int_equal(fake_calls(FN(cuEventQuery)), asked);
}

/* The event cannot be recorded: the error is told, and the driver does not get the pool's memory as its own. */
ISOLATED_CASE(test_no_event, .environment = DECAY)
{
    uint64_t addr;

    start();
    addr = get(LARGE);
    fake_fail(FN(cuCtxRecordEvent), CUDA_ERROR_UNKNOWN, 9);
    assert_int_equal(serve_host_free(addr), SERVE_FAILED);
    assert_int_equal(pinned.returned, 0);
}

/* More often than there are tokens. */
ISOLATED_CASE(test_tokens_come_back, .environment = DECAY)
{
    start();
    for (unsigned int i = 1; i <= 150; i++) {
        put(get(LARGE));
        run_for(10 * SECOND_NS);
        assert_int_equal(pinned.returned, i);
    }
}

/* The driver's free would wait for the context's work, so it comes later. */
ISOLATED_CASE(test_decay_beside_work, .environment = DECAY)
{
    uint64_t addr;

    start();
    addr = get(LARGE);
    put(addr);
    fake.contexts[0].launched++;
    run_for(60 * SECOND_NS);
    assert_int_equal(pinned.returned, 0);
    fake.contexts[0].over = fake.contexts[0].launched;
    run_for(SECOND_NS);
    assert_int_equal(pinned.returned, 1);
}

/* The driver's free may wait for work that comes after a capture's begin. The begin waits for such a free with a limit,
 * and for the thread that has the slot next without one. */
ISOLATED_CASE(test_a_capture_begins_beside_it, .environment = DECAY)
{
    start();
    put(get(LARGE));
    fake.relax_step = MS;
    pinned.captures = true;
    run_for(10 * SECOND_NS);
    assert_int_equal(pinned.returned, 1);
    for (unsigned int i = 0; i < SLOTS_ALL; i++)
        assert_false(atomic_load(&pooled(0)->slots[i].waits));
}

/* It counts among the frees in the driver, beside which no thread asks, also where it waits. */
ISOLATED_CASE(test_frees_in_the_driver_count, .environment = DECAY " CUPOOL_HOST_LIMIT=1M")
{
    start();
    put(get(LARGE));
    assert_int_equal(pinned.returned, 1);
    assert_int_equal(pinned.freeing, 1);
    assert_int_equal(atomic_load(&pooled(0)->freeing), 0);
    assert_true(free_gate_close(pooled(0))); /* this thread is in another one: it counts once */
    put(get(LARGE));
    assert_int_equal(pinned.returned, 2);
    assert_int_equal(pinned.freeing, 1);
    assert_int_equal(atomic_load(&pooled(0)->freeing), 1);
    free_gate_open(pooled(0));
}

/* The driver keeps it, and the program is told once. */
ISOLATED_CASE(test_driver_keeps_it, .environment = DECAY)
{
    start();
    put(get(LARGE));
    pinned.result = CUDA_ERROR_UNKNOWN;
    run_for(20 * SECOND_NS);
    assert_int_equal(pinned.returned, 1);
    assert_non_null(strstr(fake.said, "pinned memory could not be given back (error 999)"));
}

ISOLATED_CASE(test_no_decay, .environment = "CUPOOL_HOST_POOL=1 CUPOOL_FREE=ordered CUPOOL_DECAY=off")
{
    start();
    put(get(LARGE));
    assert_true(serve_host_due(now()) == UINT64_MAX);
    run_for(1000 * SECOND_NS);
    assert_int_equal(pinned.returned, 0);
}

/* Without seconds to wait, within one. */
ISOLATED_CASE(test_decay_at_once, .environment = "CUPOOL_HOST_POOL=1 CUPOOL_FREE=ordered CUPOOL_DECAY=0")
{
    const int before = dup(STDIN_FILENO);
    int after;

    close(before);
    start();
    put(get(LARGE));
    run_for(SECOND_NS);
    assert_int_equal(pinned.returned, 1);
    after = dup(STDIN_FILENO);
    assert_int_equal(after, before); /* no file stays open, such as the one that has the nodes */
    close(after);
}

/* Without one of these functions there is no pool of pinned memory, and the program is told why. */
static const size_t needed[] = {
    offsetof(struct real_driver, cuCtxRecordEvent),  offsetof(struct real_driver, cuEventQuery),
    offsetof(struct real_driver, cuMemAllocHost_v2), offsetof(struct real_driver, cuMemHostAlloc),
    offsetof(struct real_driver, cuMemFreeHost),
};

ISOLATED_ROWS(test_older_driver, needed, .environment = DECAY)
{
    uint64_t addr = 0;

    start();
    memset((char *)&fake.driver + *(const size_t *)*state, 0, sizeof(void *));
    assert_int_equal(serve_host_alloc(0, LARGE, (const void *)(uintptr_t)get, &addr), SERVE_FORWARD);
    assert_non_null(strstr(fake.said, "CUPOOL_HOST_POOL has no effect"));
    assert_int_equal(pinned.taken, 0);
    assert_null(host_memory_pool());
}

/* Natively a free waits for its own context. So a request does not wait for another one's work, which may wait for this
 * thread, but asks for a short time whether it is over. */
ISOLATED_CASE(test_work_of_another_context, .environment = DECAY " CUPOOL_HOST_LIMIT=4M")
{
    uint64_t addr, began;

    start();
    pooled(1);
    addr = get(LARGE);
    fake.contexts[1].launched = 1;
    put(addr);
    began = now();
    get(2 * MIB);
    assert_in_range(now() - began, 0, SECOND_NS / 2);
    assert_int_equal(pinned.taken, 2);
    assert_int_equal(pinned.returned, 0);
}

/* With several contexts the free need not have been of this one, whose work may wait for this thread. */
ISOLATED_CASE(test_work_of_one_of_two_contexts, .environment = DECAY " CUPOOL_HOST_LIMIT=4M")
{
    uint64_t addr, began;

    start();
    pooled(1);
    addr = get(LARGE);
    fake.contexts[0].launched = 1;
    put(addr);
    began = now();
    get(2 * MIB);
    assert_in_range(now() - began, SECOND_NS, 2 * SECOND_NS);
    assert_int_equal(pinned.returned, 0);
}

/* began: NULL, or the work ends three seconds later. */
static void work_ends(void *began)
{
    if (!began || now() - *(const uint64_t *)began > 3 * SECOND_NS)
        fake.contexts[0].over = fake.contexts[0].launched;
}

/* Natively a free waits for its own context, however long. */
ISOLATED_CASE(test_work_of_the_only_context, .environment = DECAY " CUPOOL_HOST_LIMIT=4M")
{
    uint64_t addr, began;

    start();
    addr = get(LARGE);
    fake.contexts[0].launched = 1;
    put(addr);
    began = now();
    fake_before(FN(cuEventQuery), work_ends, &began);
    get(2 * MIB);
    assert_int_equal(pinned.returned, 1);
}
