/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_memory.c - scenes (sweep_scenes.h) of segments: growth, refusal, release, trim, arrival, fill. */
#include "context/device_free.h"
#include "scenes.h"

/* --- requests --- */

SCENE(grows, ORDERED QUIET)
{
    uint64_t small, large, larger;

    small = get(3 * KIB);
    large = get(3 * MIB);
    larger = get(40 * MIB);
    put(large);
    put(larger);
    large = get(3 * MIB);
    put(small);
    small = get(5 * KIB);
    put(large);
    put(small);
    tell(0);
    tell_driver();
}

/* Memory of another context of the device helps; then none does. */
KNOWN_SCENE(refused, ORDERED QUIET)
{
    uint64_t other, own;

    fake.devices = 2;
    in(4);
    other = get(12 * MIB);
    put(other);
    in(0);
    own = get(6 * MIB);
    put(own);
    fake.free = 0;
    own = get(14 * MIB);
    sweep_say("asked=%d", serve_has_asked());
    sweep_say("back=%d", serve_give_back(serve_arrivals(), 0, false));
    get(64 * MIB);
    sweep_say("asked=%d", serve_has_asked());
    sweep_say("would=%d", serve_bypass_failed((const void *)(uintptr_t)get));
    put(own);
    tell(0);
    tell(4);
    tell_driver();
}

/* The memory arrives late. */
KNOWN_SCENE(arrives, ORDERED QUIET)
{
    uint64_t addr = get(6 * MIB), other = get(4 * MIB);
    size_t arriving = 0;

    holds_context = true;
    put(addr);
    put(other);
    sweep_say("trim=%zu", pool_trim(context->pool, "test"));
    fake.streams[0].launched = 3;
    sweep_say("collected=%d", segment_ops.collected(context, &arriving));
    sweep_say("arriving=%zu", arriving);
    works(0, 2);
    segment_ops.collect(context);
    sweep_say("collect");
    fake.streams[0].over = 3;
    segment_ops.reclaim(context);
    sweep_say("reclaim");
    segment_ops.collect(context);
    sweep_say("collect");
    tell(0);
    tell_driver();
}

/* --- without a request --- */

KNOWN_SCENE(releases, ORDERED QUIET)
{
    uint64_t idle, used, addr;

    fake.devices = 2;
    in(1);
    put(get(4 * MIB));
    in(0);
    addr = get(8 * MIB);
    put(get(6 * MIB));
    sweep_say("release=%llu", (unsigned long long)context_release(0, "test"));
    put(addr);
    idle = context_idle_bytes(CONTEXT_ALL, &used);
    sweep_say("idle=%llu,%llu", (unsigned long long)idle, (unsigned long long)used);
    sweep_say("yield=%llu", (unsigned long long)device_yield(0, now() + MS));
    sweep_say("trim=%d", device_trim(1, NULL));
    addr = get(3 * MIB);
    put(addr);
    sweep_say("trim=%d", context_trim(context_arrivals()));
    tell(0);
    tell(1);
    tell_driver();
}

KNOWN_SCENE(decays, ORDERED QUIET " CUPOOL_DECAY=5")
{
    uint64_t addr = get(4 * MIB), other = get(20 * MIB);

    put(addr);
    for (unsigned int i = 0; i < 3; i++) {
        context_decay_all(2);
        sweep_say("decay");
    }
    put(other);
    fake.free = FAKE_CAPACITY / 200;
    context_decay_all(2);
    sweep_say("decay");
    context_decay_all(0);
    sweep_say("decay");
    tell(0);
    tell_driver();
}

/* Others have taken the memory of the device. */
KNOWN_SCENE(scarce, ORDERED QUIET)
{
    uint64_t addr = get(4 * MIB), other = get(8 * MIB);

    holds_context = true;
    fake.free = FAKE_CAPACITY / 200;
    device_free_taken(0);
    sweep_say("scarce=%d", segment_ops.scarce(context));
    works(0, 3);
    put(addr);
    put(other);
    fake.free = FAKE_CAPACITY / 2;
    sweep_say("scarce=%d", segment_ops.scarce(context));
    device_free_taken(FAKE_CAPACITY);
    sweep_say("scarce=%d", segment_ops.scarce(context));
    serve_collect();
    sweep_say("collect");
    tell(0);
    tell_driver();
}

KNOWN_SCENE(at_once, ORDERED QUIET " CUPOOL_DECAY=0")
{
    const uint64_t addr = get(4 * MIB), other = get(3 * MIB);

    put(addr);
    works(0, 5);
    put(other);
    put(get(1 * KIB));
    tell(0);
    tell_driver();
}

/* Memory goes from a thread that is in another context, and without the driver's pools. */
KNOWN_SCENE(elsewhere_freed, ORDERED QUIET)
{
    uint64_t addr = get(4 * MIB);

    fake.devices = 2;
    in(1);
    put(addr);
    sweep_say("release=%llu", (unsigned long long)context_release(0, "test"));
    fake_current(NULL);
    sweep_say("release=%llu", (unsigned long long)context_release(0, "test"));
    in(0);
    tell(0);
    tell(1);
    tell_driver();
}

SCENE(no_pools, ORDERED QUIET)
{
    uint64_t addr;

    fake.pools = false;
    addr = get(4 * MIB);
    put(addr);
    sweep_say("release=%llu", (unsigned long long)context_release(0, "test"));
    sweep_say("yield=%llu", (unsigned long long)device_yield(0, now() + MS));
    tell(0);
    tell_driver();
}

/* A communicator may have registered it. */
KNOWN_SCENE(registered, ORDERED QUIET)
{
    uint64_t addr = 0;

    holds_context = true;
    sweep_say("alloc=%d", segment_ops.alloc(context, BACKEND_CUDA, 2 * MIB, &addr));
    fake.registers = true;
    sweep_say("frozen=%d", segment_ops.gives_frozen(context));
    segment_ops.free(context, BACKEND_CUDA, addr, 2 * MIB);
    sweep_say("free");
    fake.parked = 7;
    sweep_say("trim=%d", context_trim(context_arrivals()));
    tell(0);
    tell_driver();
}

KNOWN_SCENE(misaligned, ORDERED QUIET)
{
    fake.next += 512;
    put(get(4 * MIB));
    fake.next -= 512;
    put(get(4 * MIB));
    tell(0);
    tell_driver();
}

/* --- contents --- */

static void fill(void)
{
    uint64_t addr = get(3 * KIB), other = get(3 * MIB);

    put(addr);
    put(other);
    addr = get(3 * KIB);
    other = get(3 * MIB);
    fake.streams[0].launched = 2;
    put(other);
    put(addr);
    get(4 * KIB);
    tell(0);
    tell_driver();
}

KNOWN_SCENE(fills, ORDERED QUIET " CUPOOL_FILL=0x5a")
{
    fill();
}

KNOWN_SCENE(fills_natively, ORDERED QUIET " CUPOOL_FILL=native")
{
    fill();
}

KNOWN_SCENE(fills_strictly, "CUPOOL_FREE=strict CUPOOL_FILL=0x5a" QUIET)
{
    fill();
}

KNOWN_SCENE(guards, ORDERED QUIET " CUPOOL_DEBUG=guard")
{
    uint64_t addr = get(3 * KIB), other = get(3 * MIB);

    put(addr);
    in(1);
    put(other);
    in(0);
    get(3 * KIB);
    tell(0);
    tell_driver();
}

KNOWN_SCENE(writes, ORDERED QUIET)
{
    char read[8] = "";

    holds_context = true;
    sweep_say("write=%d", context_write(context, 0x1000, 7, 99));
    works(0, 3);
    sweep_say("read=%d", context_read(context, 0x1000, read, 8, now() + MS));
    sweep_say("read=%d", context_read(context, 0x1000, read, 8, 0));
    in(1);
    sweep_say("read=%d", context_read(context, 0x1000, read, 8, now()));
    sweep_say("read=%02x", (unsigned int)read[0]);
    in(0);
    tell(0);
    tell_driver();
}
