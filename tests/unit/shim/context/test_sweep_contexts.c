/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_contexts.c - scenes (sweep_scenes.h) of how contexts begin and end, and of contexts in error. */
#include "context/counters.h"
#include "host_work.h"
#include "scenes.h"

static void count(void *arg, int device, const struct pool_stats *stats, uint64_t bypassed)
{
    sweep_say("device=%d allocs=%llu peak=%lluK,%lluK bypassed=%llu", device, (unsigned long long)stats->allocs,
              (unsigned long long)stats->peak_live >> 10, (unsigned long long)stats->peak_held >> 10,
              (unsigned long long)bypassed);
}

static void tell_all(void)
{
    tell(0);
    tell(1);
    tell(4);
    tell_driver();
    context_stats_each(false, count, NULL);
}

/* --- they begin --- */

SCENE(begins, ORDERED QUIET)
{
    fake.devices = 2;
    get(MIB);
    in(4);
    get(3 * MIB);
    in(1);
    get(KIB);
    context_exempt(fake_context(5));
    in(5);
    get(KIB);
    fake_current(NULL);
    get(KIB);
    in(0);
    sweep_say("lacks=%d", serve_lacks_context());
    sweep_say("had=%d", serve_had_context);
    tell_all();
}

/* The first request of the runtime. */
SCENE(runtime_comes, ORDERED QUIET)
{
    uint64_t addr = 0;

    for (unsigned int i = 0; i < 3; i++)
        sweep_say("get=%d", (int)serve_alloc(MIB, (const void *)(uintptr_t)get, /* by_runtime: */ true, &addr));
    tell_all();
}

/* A context ends while the driver says what it is, and is another one with its handle then. */
static void ends_meanwhile(void *arg)
{
    fake_before(FN(cuCtxGetId), NULL, NULL);
    fake.contexts[0].active = false;
    fake.contexts[0].id = 99;
    context_gone(context_leaving(fake_context(7)), true);
}

SCENE(begins_anew, ORDERED QUIET)
{
    fake_before(FN(cuCtxGetId), ends_meanwhile, NULL);
    get(MIB);
    tell_all();
}

SCENE(begins_without, ORDERED QUIET)
{
    fake_lack(FN(cuDevicePrimaryCtxRetain));
    fake_lack(FN(cuCtxGetId));
    fake_lack(FN(cuDeviceGetUuid_v2));
    fake_lack(FN(cuDeviceGetAttribute));
    put(get(MIB));
    tell_all();
}

/* --- they end --- */

SCENE(ends, ORDERED QUIET)
{
    uint64_t other, own;
    struct context *found;

    in(4);
    other = get(3 * MIB);
    in(0);
    own = get(MIB);
    put(get(KIB));
    found = context_leaving(fake_context(4));
    put(other);
    sweep_say("leaving");
    context_gone(found, false);
    found = context_leaving(fake_context(4));
    in(4);
    get(KIB);
    in(0);
    context_gone(found, true);
    sweep_say("gone");
    put(other);
    put(own);
    fake.contexts[4].id = 77;
    in(4);
    get(3 * MIB);
    in(0);
    tell_all();
}

SCENE(primary_ends, ORDERED QUIET)
{
    uint64_t own = get(MIB), other;
    struct context *found;

    fake.devices = 2;
    in(1);
    fake.contexts[1].active = true;
    other = get(MIB);
    in(0);
    found = context_leaving_primary(0);
    context_primary_gone(found);
    sweep_say("stays");
    put(own);
    own = get(MIB);
    found = context_leaving_primary(0);
    fake.contexts[0].active = false;
    context_primary_gone(found);
    sweep_say("gone");
    put(own);
    fake.contexts[0].active = true;
    fake.contexts[0].id = 55;
    get(MIB);
    found = context_leaving_primary(1);
    fake.contexts[1].id = 56; /* it has gone, and come back */
    context_primary_gone(found);
    put(other);
    context_primary_gone(context_leaving_primary(3));
    tell_all();
}

SCENE(sweeps, ORDERED QUIET)
{
    struct context_sweep sweep;
    uint64_t own = get(MIB), other;

    fake.devices = 2;
    fake.contexts[1].active = true;
    in(1);
    other = get(MIB);
    in(4);
    get(MIB);
    in(0);
    context_sweep_begin(&sweep);
    sweep_say("sweep");
    fake.contexts[1].active = false;
    context_sweep_end(&sweep);
    put(own);
    put(other);
    tell_all();
}

SCENE(is_over, ORDERED QUIET)
{
    struct context *found;

    get(MIB);
    found = context_leaving(fake_context(0));
    sweep_say("over=%d", context_is_over(found, fake_context(0)));
    fake.contexts[0].id = 44;
    sweep_say("over=%d", context_is_over(found, fake_context(0)));
    context_gone(found, true);
    found = context_leaving(fake_context(6));
    sweep_say("over=%d", context_is_over(found, fake_context(0)));
    context_gone(found, false);
    tell_all();
}

/* Without numbers there is nothing that tells a context from a later one. */
SCENE(is_over_without_numbers, ORDERED QUIET)
{
    struct context *found;

    fake_lack(FN(cuCtxGetId));
    get(MIB);
    found = context_leaving(fake_context(0));
    fake.driver.cuCtxGetId = NULL;
    sweep_say("over=%d", context_is_over(found, fake_context(0)));
    context_gone(found, false);
    tell_all();
}

/* A capture, host work and blocks that wait for their order go with the context. */
SCENE(ends_busy, "CUPOOL_FREE=auto" QUIET)
{
    const CUstream stream = fake_stream(9, 0);
    uint64_t own = get(MIB), other = get(3 * MIB);

    host_launched(stream);
    fake.streams[9].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(capture_begin(stream), stream, true);
    put(own);
    sweep_say("captures");
    context_gone(context_leaving(fake_context(0)), true);
    put(other);
    fake.contexts[0].id = 33;
    put(get(MIB));
    tell_order(0);
    tell_all();
}

/* --- errors from which a context does not recover --- */

static void fails(void)
{
    uint64_t one = get(MIB), two = get(3 * MIB), other;

    in(4);
    other = get(MIB);
    in(0);
    put(get(KIB));
    fake.contexts[0].error = CUDA_ERROR_ILLEGAL_ADDRESS;
    put(one);
    get(KIB);
    in(4);
    put(two);
    put(other);
    get(MIB);
    in(0);
    context_saw(CUDA_ERROR_ILLEGAL_ADDRESS);
    sweep_say("wait=%d", context_wait_device(0));
    tell_all();
}

SCENE(fails_ordered, ORDERED QUIET)
{
    fails();
}

SCENE(fails_strictly, "CUPOOL_FREE=strict" QUIET)
{
    fails();
}

SCENE(fails_relaxed, "CUPOOL_FREE=relaxed" QUIET)
{
    fails();
}

SCENE(saw, ORDERED QUIET)
{
    const uint64_t one = get(MIB);

    context_saw(CUDA_ERROR_OUT_OF_MEMORY);
    put(get(KIB));
    context_saw(CUDA_ERROR_ASSERT); /* of another context */
    put(get(KIB));
    fake.contexts[0].error = CUDA_ERROR_ASSERT;
    context_saw(CUDA_ERROR_ASSERT);
    put(one);
    get(KIB);
    fake.contexts[0].error = CUDA_SUCCESS;
    context_met_runtime(context_entry_find(fake_context(0)) ? context_entry_find(fake_context(0)) : pooled(0));
    tell_all();
}

/* --- limits --- */

SCENE(limited, ORDERED QUIET " CUPOOL_LIMIT=8M")
{
    uint64_t own = get(4 * MIB);

    fake.devices = 2;
    get(6 * MIB);
    context_limit_set(0, 16 * MIB);
    get(6 * MIB);
    put(own);
    context_limit_set(CONTEXT_ALL, 2 * MIB);
    in(1);
    get(4 * MIB);
    get(MIB);
    in(0);
    tell_all();
}
