/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_order.c - scenes (sweep_scenes.h) of frees and of waits: each policy, other threads, captures, streams of
 * other contexts. */
#include "context/strict.h"
#include "host_work.h"
#include "scenes.h"

#define FREES(policy) "CUPOOL_FREE=" policy QUIET

/* Frees before and after work, by this thread and another one, in the current context and in another. */
static void *other_frees(void *arg)
{
    in(0);
    put(*(const uint64_t *)arg);
    return NULL;
}

static void frees(void)
{
    uint64_t addrs[6];

    fake.devices = 2;
    for (unsigned int i = 0; i < 6; i++)
        addrs[i] = get((i + 1) * 700 * KIB);
    put(addrs[0]);
    works(0, 3);
    put(addrs[5]);
    elsewhere(other_frees, &addrs[1]);
    in(1);
    put(addrs[4]);
    fake_current(NULL);
    put(addrs[2]);
    in(0);
    sweep_say("published");
    serve_publish();
    put(addrs[3]);
    put(addrs[3]);
    get(4 * MIB);
    tell(0);
    tell_order(0);
    tell_driver();
}

KNOWN_SCENE(frees_ordered, FREES("ordered"))
{
    frees();
}

KNOWN_SCENE(frees_strict, FREES("strict"))
{
    frees();
}

KNOWN_SCENE(frees_auto, FREES("auto"))
{
    frees();
}

KNOWN_SCENE(frees_relaxed, FREES("relaxed") " CUPOOL_SLACK=0")
{
    frees();
}

/* A driver that cannot order. */
SCENE(frees_old, FREES("auto"))
{
    fake.version = 12040;
    frees();
}

KNOWN_SCENE(deferred, FREES("relaxed"))
{
    uint64_t addrs[8];

    for (unsigned int i = 0; i < 8; i++)
        addrs[i] = get(10 * MIB);
    for (unsigned int i = 0; i < 7; i++)
        put(addrs[i]);
    works(0, 2);
    context_decay_all(3);
    sweep_say("decay");
    context_decay_all(3);
    sweep_say("decay");
    put(addrs[7]);
    sweep_say("release=%llu", (unsigned long long)serve_release(0, "test"));
    tell(0);
    tell_order(0);
    tell_driver();
}

/* --- host memory and other devices: auto --- */

KNOWN_SCENE(host_work, FREES("auto"))
{
    const uint64_t one = get(MIB), two = get(3 * MIB), three = get(MIB);
    const CUstream stream = fake_stream(3, 0);
    uint64_t seq;

    fake_range_add(0x10000, 4096, CU_MEMORYTYPE_HOST, 0);
    fake_range_add(0x20000, 4096, CU_MEMORYTYPE_DEVICE, 0);
    copied(0x20000, two, stream);
    put(one);
    copied(0x10000, two, stream);
    works(0, 2);
    put(two);
    copied(two, 0x10000, CU_STREAM_LEGACY);
    copied(0, 0x20000, stream);
    tell_order(0);
    seq = hazard_context_wait_begin(NULL);
    hazard_stream_wait_end(stream, seq);
    hazard_stream_gone(stream);
    hazard_context_wait_end(NULL, seq);
    put(three);
    hazard_graph_set(0x10000);
    graph_launched(stream);
    put(get(KIB));
    tell(0);
    tell_order(0);
    tell_driver();
}

KNOWN_SCENE(reached, FREES("auto"))
{
    uint64_t one, two;

    fake.devices = 2;
    in(1);
    one = get(MIB);
    in(0);
    two = get(MIB);
    fake_range_add(0x30000, 4096, CU_MEMORYTYPE_DEVICE, 1);
    put(get(KIB));
    works(0, 4);
    hazard_foreign_access(0x30000, fake_stream(3, 0));
    sweep_say("strict=%d,%d", policy_strict_why(0) != NULL, policy_strict_why(1) != NULL);
    put(two);
    hazard_foreign_access(two, fake_stream(4, 1));
    sweep_say("strict=%d,%d", policy_strict_why(0) != NULL, policy_strict_why(1) != NULL);
    policy_strict_memory(0x30000, "test");
    policy_frees_wait(true);
    put(one);
    tell(0);
    tell(1);
    tell_order(0);
    tell_driver();
}

/* A second context of the device. */
KNOWN_SCENE(second_context, FREES("auto"))
{
    const uint64_t one = get(MIB);
    uint64_t two;

    put(get(KIB));
    works(0, 2);
    in(4);
    two = get(MIB);
    put(one);
    in(0);
    put(two);
    tell(0);
    tell(4);
    tell_order(0);
    tell_order(4);
    tell_driver();
}

/* --- waits --- */

static void waits(struct context *context)
{
    bool late = false;

    fake.devices = 3;
    fake.contexts[2].active = true;
    in(1);
    put(get(MIB));
    in(0);
    put(get(MIB));
    works(0, 3);
    sweep_say("until=%d", order_wait_until(context, now() + 2 * MS));
    sweep_say("own=%d", order_wait_own(context));
    sweep_say("is own=%d", order_is_own(context));
    sweep_say("frees=%d", context_wait_frees(CONTEXT_ALL, true));
    sweep_say("device=%d", context_wait_device(0));
    sweep_say("device=%d", context_wait_device(2));
    works(0, 9);
    sweep_say("for=%d", context_wait_device_for(0, 4));
    sweep_say("all=%d", (int)context_wait_all(now() + 20 * MS, &late));
    sweep_say("all=%d", (int)context_wait_all(WAIT_NO_LIMIT, &late));
    sweep_say("late=%d primaries=%d", late, (int)context_wait_primaries());
    sweep_say("handle=%d", (int)context_wait_handle(fake_context(1)));
    sweep_say("handle=%d", (int)context_wait_handle(fake_context(5)));
    tell(0);
    tell_order(0);
    tell_driver();
}

KNOWN_SCENE(waits_ordered, FREES("ordered"))
{
    holds_context = true;
    waits(context);
}

KNOWN_SCENE(waits_beside_capture, FREES("ordered"))
{
    const CUstream stream = fake_stream(9, 0);

    holds_context = true;
    fake.streams[9].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(capture_begin(stream), stream, true);
    waits(context);
}

static void stream_moves(void *arg)
{
    fake.streams[2].over++;
}

KNOWN_SCENE(freed_on_streams, FREES("ordered"))
{
    uint64_t addrs[4];

    fake.devices = 2;
    for (unsigned int i = 0; i < 4; i++)
        addrs[i] = get(MIB);
    in(1);
    put(get(MIB));
    fake.streams[2].launched = 2;
    fake.relax = stream_moves;
    sweep_say("later=%d", (int)serve_free_later(addrs[0], fake_stream(2, 1)));
    in(0);
    sweep_say("later=%d", (int)serve_free_later(addrs[1], fake_stream(3, 0)));
    sweep_say("later=%d", (int)serve_free_later(addrs[2], (CUstream)5));
    in(1);
    sweep_say("later=%d", (int)serve_free_later(addrs[3], CU_STREAM_LEGACY));
    in(0);
    put(get(KIB));
    tell(0);
    tell_order(0);
    tell_driver();
}

/* --- captures --- */

static void captures(void)
{
    const CUstream stream = fake_stream(9, 0), other = fake_stream(10, 1);
    uint64_t one, two = get(3 * MIB), three = get(5 * MIB);

    one = get(MIB);
    put(one);
    fake.streams[9].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(capture_begin(stream), stream, true);
    sweep_say("begun");
    put(two);
    get(9 * MIB);
    sweep_say("later=%d", (int)serve_free_later(three, stream));
    sweep_say("release=%llu", (unsigned long long)serve_release(0, "test"));
    fake.streams[10].captures = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    capture_begun(capture_begin(other), other, true);
    capture_begun(capture_begin(CU_STREAM_PER_THREAD), CU_STREAM_PER_THREAD, false);
    sweep_say("on=%d", capture_active_on(stream));
    sweep_say("on=%d", capture_active_on(other));
    atomic_fetch_add(&fake.ns, 20 * MS);
    fake.streams[9].captures = CU_STREAM_CAPTURE_STATUS_NONE;
    sweep_say("active=%d", capture_active_now());
    capture_check(stream, false, atomic_load(&capture_total));
    capture_check(other, true, atomic_load(&capture_total));
    put(three);
    get(9 * MIB);
    put(get(KIB));
    tell(0);
    tell_order(0);
    tell_driver();
}

KNOWN_SCENE(captures_ordered, FREES("ordered"))
{
    captures();
}

KNOWN_SCENE(captures_strict, FREES("strict"))
{
    captures();
}

KNOWN_SCENE(captures_relaxed, FREES("relaxed") " CUPOOL_SLACK=0")
{
    captures();
}

/* The driver cannot change a thread's mode. */
SCENE(captures_old, FREES("strict"))
{
    fake_lack(FN(cuThreadExchangeStreamCaptureMode));
    captures();
}
