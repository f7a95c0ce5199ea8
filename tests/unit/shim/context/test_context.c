/* SPDX-License-Identifier: Apache-2.0 */
/* test_context.c - shim/context/lifetime.c: which contexts are pooled, from the first sight of one, and what a pool is
 * made with. test_lookup.c has how they are found; test_ending.c, how they end. */

#include "ready.h"

#define NEVER (SIZE_MAX / 2)

static void gone(unsigned int i)
{
    context_gone(context_leaving(fake_context(i)), true);
}

/* --- first sight --- */

ISOLATED_CASE(test_first_sight)
{
    struct context *context;

    context = context_current(&fake.driver);
    assert_non_null(context);
    assert_string_equal(fake_log(), "retain:0 release:0");
    assert_ptr_equal(context_handle(context), fake_context(0));
    assert_int_equal(context_device(context), 0);
    assert_ptr_equal(context->driver, &fake.driver);
    assert_true(context->primary && context->defers);
    assert_int_equal(context->id, 1);
    assert_int_equal(context->capacity, FAKE_CAPACITY);
    assert_int_equal(context->device_free, FAKE_CAPACITY);
    assert_ptr_equal(pool_arg(context_pool(context)), context);
    assert_ptr_equal(context_of(context_pool(context)), context);
    assert_string_equal(fake.traced,
                        "device:\"d\":0,\"name\":\"Fake \",\"uuid\":\"00112233-4455-6677-8899-aabbccddeeff\",\"total\":"
                        "8589934592\npolicy:\"d\":0,\"free\":\"ordered\",\"why\":\"default\"\n");
    assert_int_equal(fake.opened, 1);
    fake.scripts[FN(cuCtxGetDevice)].calls = 0;
    assert_ptr_equal(context_current(&fake.driver), context);
    assert_int_equal(fake_calls(FN(cuCtxGetDevice)), 0);
    assert_int_equal(atomic_load(&contexts.count), 1);
}

static const struct told {
    const char *environment;
    size_t lacks;
    const char *text;
} told[] = {
    {"CUPOOL_FREE=strict", FNS, "\"free\":\"strict\",\"why\":\"CUPOOL_FREE\""},
    {"CUPOOL_FREE=relaxed", FNS, "\"free\":\"relaxed\",\"why\":\"CUPOOL_FREE\""},
    {"CUPOOL_FREE=ordered", FNS, "\"free\":\"ordered\",\"why\":\"CUPOOL_FREE\""},
    {"CUPOOL_FREE=relaxed", FN(cuCtxWaitEvent), "\"free\":\"strict\",\"why\":\"driver older than 12.5\""},
    {"", FN(cuDeviceGetName), "\"name\":\"\",\"uuid\":\"0011"},
    {"", FN(cuDeviceGetUuid_v2), "\"name\":\"Fake \",\"uuid\":\"\",\"total\":8589934592"},
};

ISOLATED_OWN(test_told, told)
{
    const struct told *row = *state;

    if (row->lacks < FNS)
        fake_lack(row->lacks);
    assert_non_null(context_current(&fake.driver));
    assert_non_null(strstr(fake.traced, row->text));
}

/* The primary context goes with its last reference, any other one by a call that names it. */
static const struct primary {
    unsigned int context;
    bool active;
    size_t lacks, fails;
    bool pooled, primary;
    const char *log;
} primaries[] = {
    {0, true, FNS, FNS, true, true, "retain:0 release:0"},
    {4, true, FNS, FNS, true, false, "retain:0 release:0"},
    {4, false, FNS, FNS, true, false, ""}, /* not to be brought to life */
    {0, true, FN(cuDevicePrimaryCtxGetState), FNS, true, false, ""},
    {0, true, FN(cuDevicePrimaryCtxRetain), FNS, true, false, ""},
    {0, true, FN(cuDevicePrimaryCtxRelease_v2), FNS, true, false, ""},
    {0, true, FNS, FN(cuDevicePrimaryCtxGetState), false, false, ""}, /* it cannot be said now */
    {0, true, FNS, FN(cuDevicePrimaryCtxRetain), false, false, "retain:0"},
    {0, true, FNS, FN(cuCtxGetDevice), false, false, ""},
    {0, true, FNS, FN(cuMemGetInfo_v2), false, false, ""},
    {0, true, FNS, FN(cuCtxGetCurrent), false, false, ""},
};

ISOLATED_ROWS(test_primary, primaries)
{
    const struct primary *row = *state;
    struct context *context;

    fake.contexts[0].active = row->active;
    fake_current(fake_context(row->context));
    if (row->lacks < FNS)
        fake_lack(row->lacks);
    if (row->fails < FNS)
        fake_fail(row->fails, CUDA_ERROR_UNKNOWN, 1);
    context = context_current(&fake.driver);
    assert_int_equal(context != NULL, row->pooled);
    assert_string_equal(fake_log(), row->log);
    assert_int_equal(atomic_load(&contexts.probing[0]), 0);
    if (context)
        assert_int_equal(context->primary, row->primary);
    assert_non_null(context_current(&fake.driver)); /* what failed is not remembered */
}

static void probed(void *arg)
{
    *(unsigned int *)arg = atomic_load(&contexts.probing[0]);
}

/* A thread that looks whether the primary context has gone waits until our reference is given back. */
ISOLATED_CASE(test_probing_is_said)
{
    unsigned int during = 0, after = 0;

    fake_before(FN(cuDevicePrimaryCtxRetain), probed, &during);
    fake_before(FN(cuDevicePrimaryCtxRelease_v2), probed, &after);
    assert_non_null(context_current(&fake.driver));
    assert_int_equal(during, 1);
    assert_int_equal(after, 1);
}

ISOLATED_CASE(test_no_id)
{
    fake_fail(FN(cuCtxGetId), CUDA_ERROR_UNKNOWN, 2);
    assert_int_equal(context_current(&fake.driver)->id, 0);
    fake_fail(FN(cuCtxGetId), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(context_id(&fake.driver, fake_context(0)), fake.contexts[0].id);
    fake_lack(FN(cuCtxGetId));
    assert_int_equal(context_id(&fake.driver, fake_context(0)), 0);
}

/* --- what a pool is made with --- */

static const struct config {
    const char *environment;
    bool pools; /* the device has the driver's pools */
    int version;
    bool fills;
    size_t limit, excess, bound, slack;
    unsigned int percent;
} configs[] = {
    {"", true, 13000, false, 0, 32 * MIB, 64 * MIB, 0, 0},
    {"", false, 13000, false, 0, NEVER, NEVER, 0, 0},
    {"CUPOOL_BACKEND=nccl", true, 13000, false, 0, NEVER, NEVER, 0, 0}, /* ranks have to agree */
    {"CUPOOL_FILL=native", true, 13000, true, 0, 32 * MIB, 64 * MIB, 0, 0},
    {"CUPOOL_FILL=0x00", true, 13000, true, 0, 32 * MIB, 64 * MIB, 0, 0},
    {"CUPOOL_LIMIT=7M", true, 13000, false, 7 * MIB, 32 * MIB, 64 * MIB, 0, 0},
    {"CUPOOL_FREE=ordered CUPOOL_SLACK=5", true, 13000, false, 0, 32 * MIB, 64 * MIB, 0, 0},
    {"CUPOOL_FREE=relaxed", true, 13000, false, 0, 32 * MIB, 64 * MIB, 64 * MIB, 10},
    {"CUPOOL_FREE=relaxed", true, 12040, false, 0, 32 * MIB, 64 * MIB, 0, 0},
    {"CUPOOL_FREE=relaxed CUPOOL_SLACK=0", true, 13000, false, 0, 32 * MIB, 64 * MIB, 64 * MIB, 0},
    {"CUPOOL_FREE=relaxed CUPOOL_SLACK=999", true, 13000, false, 0, 32 * MIB, 64 * MIB, 64 * MIB, 999},
    {"CUPOOL_FREE=relaxed CUPOOL_SLACK=1001", true, 13000, false, 0, 32 * MIB, 64 * MIB, 64 * MIB, 1000},
};

ISOLATED_OWN(test_config, configs)
{
    const struct config *row = *state;

    fake.pools = row->pools;
    fake.version = row->version;
    assert_non_null(context_current(&fake.driver));
    assert_ptr_equal(fake.config.backend, &segment_ops);
    assert_ptr_equal(fake.config.order, row->fills ? &order_filling_ops : &order_ops);
    assert_non_null(fake.config.observer);
    assert_int_equal(fake.config.limit, row->limit);
    assert_int_equal(fake.config.break_max, FAKE_CAPACITY / 16);
    assert_int_equal(fake.config.capacity, FAKE_CAPACITY);
    assert_int_equal(fake.config.kind, BACKEND_CUDA);
    assert_int_equal(fake.config.excess_min, row->excess);
    assert_int_equal(fake.config.bound_min, row->bound);
    assert_int_equal(fake.config.deferred_min, row->slack);
    assert_int_equal(fake.config.deferred_percent, row->percent);
}

ISOLATED_CASE(test_no_pool)
{
    fake.pools_refused = 1;
    assert_null(context_current(&fake.driver));
    assert_null(context_find(fake_context(0)));
    assert_null(context_policy(fake_context(0)));
    assert_int_equal(atomic_load(&contexts.count), 1); /* known, and not tried again and again */
    assert_null(context_current(&fake.driver));
    assert_int_equal(fake.opened, 1);
}

/* An entry that another context had: nothing of that is left. */
READY_CASE(test_entry_again)
{
    for (unsigned int i = 0; i < SLOTS_ALL; i++)
        atomic_store(&context->slots[i].event, (CUevent)&fake.events[i]);
    for (unsigned int i = 0; i < SLOTS; i++) {
        atomic_store(&context->batches[i].event, (CUevent)&fake.events[i]);
        atomic_store(&context->batches[i].seq, 5);
        atomic_store(&context->batches[i].own_seq, 5);
    }
    atomic_store(&context->stream, fake_stream(0, 0));
    atomic_store(&context->kept_byte, 1);
    atomic_store(&context->given, 100);
    atomic_store(&context->gave_up[0], 100);
    atomic_store(&context->gave_up[1], 100);
    atomic_store(&context->failed, true);
    atomic_store(&context->undecided, true);
    atomic_store(&context->free_unsure, true);
    atomic_store(&context->device_free, 1);
    context_bypassed(context);
    gone(0);
    fake.contexts[4].device = 1;
    fake.contexts[4].id = 44;
    fake.pools = false;
    assert_ptr_equal(pooled(4), context);
    assert_int_equal(atomic_load(&contexts.count), 1);
    for (unsigned int i = 0; i < SLOTS_ALL; i++)
        assert_null(atomic_load(&context->slots[i].event));
    for (unsigned int i = 0; i < SLOTS; i++) {
        assert_null(atomic_load(&context->batches[i].event));
        assert_int_equal(context->batches[i].seq + context->batches[i].own_seq, 0);
    }
    assert_null(atomic_load(&context->stream));
    assert_false(atomic_load(&context->kept_byte));
    assert_int_equal(context->arrived, 100);
    assert_int_equal(context->gave_up[0] + context->gave_up[1] + context->bypassed, 0);
    assert_false(context->failed || context->undecided || context->primary || context->defers || context->free_unsure);
    assert_int_equal(context->device, 1);
    assert_int_equal(context->id, 44);
    assert_int_equal(context->device_free, FAKE_CAPACITY);
}

/* An entry whose context is gone and whose pool is still in use is not for others. */
READY_CASE(test_entry_in_use)
{
    gone(0);
    atomic_store(&context->ending, true);
    assert_ptr_not_equal(pooled(0), context);
    assert_int_equal(atomic_load(&contexts.count), 2);
}

ISOLATED_CASE(test_crowd, .environment = ORDERED)
{
    for (unsigned int i = 0; i < CONTEXTS_MAX; i++)
        assert_non_null(pooled(i));
    assert_string_equal(fake.said, "");
    fake_current(fake_context(CONTEXTS_MAX));
    assert_null(context_current(&fake.driver));
    assert_non_null(strstr(fake.said, "2:more than 256 contexts at a time; the others are not pooled\n"));
    gone(7);
    assert_non_null(context_current(&fake.driver)); /* there is room again */
}

READY_CASE(test_second_on_device)
{
    assert_false(policy_is_strict(&context->policy));
    pooled(1);
    assert_false(policy_is_strict(&context->policy));
    pooled(4);
    assert_true(policy_is_strict(&context->policy));
    assert_non_null(strstr(fake.traced, "\"why\":\"a second context on the device\""));
}

/* --- contexts that are not pooled --- */

READY_CASE(test_exempt)
{
    fake.no_memory = true; /* for an entry: the context is as unknown as before */
    context_exempt(fake_context(10));
    assert_null(context_entry_find(fake_context(10)));
    fake.no_memory = false;
    context_exempt(fake_context(10));
    fake_current(fake_context(10));
    assert_null(context_current(&fake.driver));
    assert_int_equal(atomic_load(&contexts.count), 2);
    assert_null(context_find(fake_context(10)));
    assert_null(context_policy(fake_context(10)));
    assert_false(context_pin(context_entry_find(fake_context(10))));
    context_exempt(fake_context(10)); /* once more */
    assert_int_equal(atomic_load(&contexts.count), 2);
    fake_current(fake_context(0));
    context_exempt(fake_context(0)); /* it is pooled: so it stays */
    assert_ptr_equal(context_current(&fake.driver), context);
    assert_ptr_equal(context_find(fake_context(0)), context);
    gone(10);
    assert_non_null(pooled(10)); /* its handle comes back for one that is pooled */
    gone(0);
    context_exempt(fake_context(0)); /* in place of one that was: the entry has nothing of it */
    assert_ptr_equal(context_entry_find(fake_context(0)), context);
    assert_false(context->primary || context->pool);
}

/* A call that takes long and may end a context: one wait, and not one for each request. */
READY_CASE(test_slow_ending)
{
    uint64_t start = now();

    fake_current(fake_context(1));
    atomic_store(&contexts.endings, 1);
    for (unsigned int i = 0; i < 3; i++)
        assert_null(context_current(&fake.driver));
    assert_in_range(now() - start, SECOND_NS, SECOND_NS + SECOND_NS / 2);
    atomic_store(&contexts.endings, 2); /* another one begins */
    start = now();
    assert_null(context_current(&fake.driver));
    assert_in_range(now() - start, SECOND_NS, SECOND_NS + SECOND_NS / 2);
    atomic_store(&contexts.endings, 0);
    assert_non_null(context_current(&fake.driver));
}

ISOLATED_CASE(test_none_current)
{
    struct pins *own = NULL;

    ready();
    fake_current(NULL);
    fake.scripts[FN(cuCtxGetDevice)].calls = 0;
    assert_null(context_current(&fake.driver));
    assert_null(context_begin(&fake.driver, false, &own));
    assert_int_equal(fake_calls(FN(cuCtxGetDevice)), 0);
    assert_null(context_find(NULL));
    assert_null(context_policy(NULL));
    assert_null(context_find(fake_context(9)));
}

/* --- the kind of new segments --- */

READY_CASE(test_back)
{
    context_exempt(fake_context(10));
    assert_false(context_backed_by_nccl(context));
    context_back(BACKEND_NCCL);
    assert_true(context_backed_by_nccl(context));
    assert_true(context_backed_by_nccl(pooled(1))); /* new ones, too */
    assert_int_equal(fake.config.kind, BACKEND_NCCL);
    context_back(BACKEND_CUDA);
    assert_false(context_backed_by_nccl(context));
}

/* The limit of one device is not another's, and holds for its later contexts. */
ISOLATED_CASE(test_limit_of_one_device, .environment = ORDERED)
{
    struct context *first, *second;
    uint64_t addr;

    fake_start();
    fake.devices = 2;
    first = context_current(&fake.driver);
    context_limit_set(1, 4 * MIB);
    assert_int_equal(pool_alloc(first->pool, 8 * MIB, &addr), 0);
    fake_current(fake_context(1));
    second = context_current(&fake.driver);
    assert_int_equal(fake.config.limit, 4 * MIB);
    assert_int_equal(pool_alloc(second->pool, 8 * MIB, &addr), -EAGAIN);
    context_limit_set(CONTEXT_ALL, 6 * MIB);
    assert_int_equal(pool_alloc(second->pool, 6 * MIB, &addr), 0);
    assert_int_equal(pool_alloc(first->pool, 2 * MIB, &addr), -EAGAIN);
}
