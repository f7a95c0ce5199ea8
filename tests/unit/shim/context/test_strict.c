/* SPDX-License-Identifier: Apache-2.0 */
/* test_strict.c - shim/context/strict.c: devices that become strict: what is said of it, what that waits for, a second
 * context on a device; and what waits in the same way without becoming strict. */

#include "reach.h"

/* --- strict --- */

READY_CASE(test_strict)
{
    policy_strict(1, "a reason");
    policy_strict(1, "another one");
    policy_strict(5, "no context there");
    policy_strict(64 + 2, "beyond what we tell apart");
    assert_int_equal(strict(), 1 << 1 | 1 << 2 | 1 << 5);
    assert_string_equal(fake.traced, "policy:\"d\":1,\"free\":\"strict\",\"why\":\"a reason\"\n");
    assert_non_null(strstr(fake.said, "3:device 1: frees wait on the host from now on: a reason\n"));
    assert_null(strstr(fake.said, "device 5: frees wait on the host from now on"));
    assert_null(strstr(fake.said, "from now on: another one"));
    policy_strict(POLICY_ALL, "everywhere");
    assert_int_equal(strict(), ALL);
    assert_string_equal(strchr(fake.traced, '\n'), "\npolicy:\"d\":0,\"free\":\"strict\",\"why\":\"everywhere\"\n");
}

ISOLATED_CASE(test_strict_no_effect, .environment = "CUPOOL_FREE=ordered")
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    ready();
    policy_strict(POLICY_ALL, "test");
    policy_strict_memory(NEAR, "test");
    hazard_foreign_access(FAR, CU_STREAM_LEGACY);
    hazard_access(NEAR, &access, 1);
    policy_context_seen(fake_context(4), 0);
    assert_string_equal(fake.traced, "");
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)), 0);
}
ISOLATED_AGAIN(test_strict_no_effect, relaxed, .environment = "CUPOOL_FREE=relaxed")

ISOLATED_CASE(test_strict_memory)
{
    static const CUdeviceptr none[] = {0, HOST, MANAGED, UNKNOWN};

    ready();
    for (size_t i = 0; i < COUNT(none); i++)
        policy_strict_memory(none[i], "test");
    assert_int_equal(strict(), 0);
    policy_strict_memory(FAR, "test");
    assert_int_equal(strict(), 2);
    fake.scripts[FN(cuPointerGetAttribute)].calls = 0;
    policy_strict_memory(address(POOLED), "test");
    assert_int_equal(strict(), 3);
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)), 0);
    fake.absent = true;
    policy_strict_memory(FAR, "test");
}

/* --- what was freed before --- */

#define LATE "the work before another thread's cudaFree has not ended within a second"

static void device_moves(void *context)
{
    fake_context_of(context)->over++;
}

static void *free_one(void *arg)
{
    fake_current(fake_context(0));
    assert_int_equal(order_ops.order(arg, POOL_ORDER_FREE), 0);
    return NULL;
}

/* Another thread's free, of memory that the device still works on. */
static void free_in(struct context *context)
{
    policy_synced(&context->policy, 1);
    fake_context_of(context->handle)->launched = 10;
    elsewhere(free_one, context);
}

static struct context *with_free(void)
{
    struct context *context = ready();

    free_in(context);
    fake.relax = device_moves;
    fake.relax_arg = context->handle;
    return context;
}

ISOLATED_CASE(test_waits_for_earlier_frees)
{
    with_free();
    policy_strict(1, "the other device");
    assert_int_equal(fake.contexts[0].over, 0);
    policy_strict(0, "test");
    assert_int_equal(fake.contexts[0].over, 10);
    fake.scripts[FN(cuEventQuery)].calls = 0;
    policy_strict(0, "test"); /* once */
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
    assert_null(strstr(fake.said, LATE));
}

/* Work that takes longer is left alone, and that is said once. */
static void late(void)
{
    const char *said;

    fake.relax = NULL;
    policy_frees_wait(/* others: */ true);
    said = strstr(fake.said, LATE);
    assert_non_null(said);
    policy_strict(0, "test");
    assert_null(strstr(said + 1, LATE));
}

ISOLATED_CASE(test_late)
{
    with_free();
    late();
}

/* The free was ordered in a slot, beside another one. */
ISOLATED_CASE(test_late_in_slot)
{
    struct context *context = with_free();
    CUevent event = NULL;

    for (unsigned int i = 0; i < SLOTS && !event; i++)
        event = atomic_load(&context->batches[i].event);
    atomic_store(&context->slots[0].event, event);
    atomic_store(&context->slots[SLOT_COMBINER].done, 0);
    late();
}

static void all_are_strict(void *arg)
{
    assert_int_equal(strict(), ALL);
}

/* On all devices at once: they are strict before the first wait, and the second is one for all of them. */
ISOLATED_CASE(test_one_second_for_all)
{
    uint64_t start;

    with_free();
    free_in(context_find(fake_context(1)));
    fake.relax = all_are_strict;
    start = atomic_load(&fake.ns);
    policy_strict(POLICY_ALL, "test");
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    assert_false(policy_is_quiesced(0) || policy_is_quiesced(1));
}

static void *strict_later(void *arg)
{
    const uint64_t start = atomic_load(&fake.ns);

    fake_current(fake_context(0));
    policy_strict(0, "another thread");
    assert_int_equal(atomic_load(&fake.ns) - start, SECOND_NS);
    return arg;
}

/* Work that takes longer than a second has not ended: another thread waits for it, too, and this one asks. */
ISOLATED_CASE(test_late_for_each_thread)
{
    uint64_t start;

    with_free();
    fake.relax = NULL;
    policy_strict(0, "test");
    assert_false(policy_is_quiesced(0));
    start = atomic_load(&fake.ns);
    policy_strict(0, "test");
    policy_frees_wait(/* others: */ true);
    assert_int_equal(atomic_load(&fake.ns), start);
    elsewhere(strict_later, NULL);
    fake.contexts[0].over = 10;
    policy_strict(0, "test");
    assert_true(policy_is_quiesced(0));
}

/* The work of each of them is waited for. */
ISOLATED_CASE(test_all_are_waited_for)
{
    with_free();
    free_in(context_find(fake_context(1)));
    fake.contexts[1].over = 10;
    policy_strict(POLICY_ALL, "test");
    assert_int_equal(fake.contexts[0].over, 10);
}

/* A texture goes: the current device's frees are waited for, and nothing becomes strict. */
ISOLATED_CASE(test_frees_wait)
{
    with_free();
    fake_current(fake_context(1));
    policy_frees_wait(/* others: */ true); /* another thread's, elsewhere */
    assert_int_equal(fake.contexts[0].over, 0);
    fake_current(fake_context(0));
    policy_frees_wait(/* others: */ true);
    assert_int_equal(fake.contexts[0].over, 10);
    assert_int_equal(strict(), 0);
    fake.absent = true;
    policy_frees_wait(/* others: */ true);
}

ISOLATED_CASE(test_frees_wait_no_effect, .environment = "CUPOOL_FREE=ordered")
{
    with_free();
    fake.scripts[FN(cuEventQuery)].calls = 0;
    policy_frees_wait(/* others: */ true);
    assert_int_equal(fake_calls(FN(cuEventQuery)), 0);
}
ISOLATED_AGAIN(test_frees_wait_no_effect, relaxed, .environment = "CUPOOL_FREE=relaxed")

static void *strict_too(void *arg)
{
    fake_current(fake_context(0));
    fake.relax = device_moves;
    policy_strict(0, "the second");
    assert_int_equal(fake.contexts[0].over, 10);
    return arg;
}

/* At the first question of the one that waits another thread does this. */
static void *(*beside)(void *arg);

static void meanwhile(void *arg)
{
    fake.relax = NULL;
    fake_before(FN(cuEventQuery), NULL, NULL);
    elsewhere(beside, arg);
}

/* A thread that comes while the first one waits, waits as well. */
ISOLATED_CASE(test_second_waits_too)
{
    with_free();
    beside = strict_too;
    fake_before(FN(cuEventQuery), meanwhile, NULL);
    policy_strict(0, "test");
    assert_int_equal(fake.contexts[0].over, 10);
    assert_non_null(strstr(fake.traced, "test"));
    assert_null(strstr(fake.traced, "second"));
}

static void *reach_too(void *arg)
{
    fake_current(fake_context(1));
    fake.relax = device_moves;
    hazard_foreign_access(NEAR, CU_STREAM_LEGACY);
    assert_int_equal(fake.contexts[0].over, 10);
    return arg;
}

ISOLATED_CASE(test_reach_waits_too)
{
    with_free();
    beside = reach_too;
    fake_before(FN(cuEventQuery), meanwhile, NULL);
    policy_strict(0, "test");
    assert_int_equal(strict(), 3);
}

/* --- contexts of a device --- */

ISOLATED_CASE(test_second_context)
{
    policy_context_seen(fake_context(0), 0);
    policy_context_seen(fake_context(0), 0);
    policy_context_seen(fake_context(1), 1);
    policy_context_seen(fake_context(2), -1);
    policy_context_seen(fake_context(2), 64);
    policy_context_seen(fake_context(3), -1);
    policy_context_seen(fake_context(3), 64);
    policy_context_seen(fake_context(2), 63);
    assert_int_equal(strict(), 0);
    policy_context_gone(NULL);
    policy_context_gone(fake_context(1));
    policy_context_seen(fake_context(5), 1); /* after the first: alone */
    policy_context_gone(fake_context(0));
    policy_context_seen(fake_context(8), 0);
    assert_int_equal(strict(), 0);
    policy_context_seen(fake_context(4), 0);
    assert_int_equal(strict(), 1);
    policy_context_gone(fake_context(2));
    policy_context_seen(fake_context(6), 63);
    policy_context_gone(fake_context(6));
    policy_context_seen(fake_context(7), 63);
    policy_context_seen(fake_context(7), 63);
    policy_context_seen(fake_context(6), 1);
    assert_int_equal(strict(), 3);
}
