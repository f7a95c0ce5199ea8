/* SPDX-License-Identifier: Apache-2.0 */
/* test_sweep_pinned.c - scenes (sweep_scenes.h) of pinned memory: requests and frees beside work, the background
 * thread, trim, the limit, several contexts and their ends. Populated memory: test_host_memory.c. */
#include "context/host_memory.h"
#include "scenes.h"
#include "serve/pinned_requests.h"

#define PINNED(free) "CUPOOL_HOST_POOL=1 CUPOOL_FREE=" free QUIET
#define DECAYS       PINNED("ordered") " CUPOOL_DECAY=8"

static struct {
    uint64_t next;
    unsigned int held, queries; /* allocations; queries of events */
    bool moves;                 /* each query ends some work */
} host;

/* A query takes so long, and one of so many ends some work, whatever it waits for. */
#define QUERY_NS (50 * UINT64_C(1000000))
#define QUERIES  50

/* In place of glibc's: threads stay on a node. */
int getcpu(unsigned int *cpu, unsigned int *node)
{
    *cpu = *node = 0;
    return 0;
}

static void host_give(void **ptr, size_t size)
{
    *ptr = (void *)(uintptr_t)(UINT64_C(0x7e0000000000) + host.next);
    host.next += (size + MIB - 1) / MIB * MIB;
    host.held++;
}

static CUresult host_alloc(void **ptr, size_t size, unsigned int flags)
{
    SCRIPTED(cuMemHostAlloc, "host_alloc:%zuK,%u", size >> 10, flags);
    host_give(ptr, size);
    return CUDA_SUCCESS;
}

static CUresult alloc_host(void **ptr, size_t size)
{
    SCRIPTED(cuMemAllocHost_v2, "alloc_host:%zuK", size >> 10);
    host_give(ptr, size);
    return CUDA_SUCCESS;
}

static CUresult free_host(void *ptr)
{
    SCRIPTED(cuMemFreeHost, "free_host:%p", ptr);
    host.held--;
    return CUDA_SUCCESS;
}

/* Before each query of an event. */
static void work_moves(void *arg)
{
    const bool ends = ++host.queries % QUERIES == 0 || host.moves;

    atomic_fetch_add(&fake.ns, QUERY_NS);
    for (unsigned int i = 0; i < FAKE_CONTEXTS; i++)
        fake.contexts[i].over += ends && fake.contexts[i].over < fake.contexts[i].launched;
}

static struct context *begin(void)
{
    struct context *context;

    sweep_count(false);
    context = pooled(0);
    sweep_count(true);
    fake.driver.cuMemHostAlloc = host_alloc;
    fake.driver.cuMemAllocHost_v2 = alloc_host;
    fake.driver.cuMemFreeHost = free_host;
    fake_before(FN(cuEventQuery), work_moves, NULL);
    return context;
}

static uint64_t take(unsigned int flags, size_t size)
{
    uint64_t addr = 0;
    const enum serve_verdict verdict = serve_host_alloc(flags, size, (const void *)(uintptr_t)take, &addr);

    sweep_say("take(%zuK,%x)=%d,%#llx", size >> 10, flags, (int)verdict, (unsigned long long)addr);
    return addr;
}

static void give(uint64_t addr)
{
    sweep_say("give(%#llx)=%d", (unsigned long long)addr, (int)serve_host_free(addr));
}

static void later(uint64_t ns)
{
    atomic_fetch_add(&fake.ns, ns);
}

/* The background thread, for so many seconds. */
static void run_for(unsigned int seconds)
{
    const uint64_t end = now() + seconds * SECOND_NS;
    unsigned int looks = 0;

    for (uint64_t due; (due = serve_host_due(now())) <= end && looks < 1000; looks++) {
        atomic_store(&fake.ns, due > now() ? due : now());
        serve_host_tick(now());
    }
    atomic_store(&fake.ns, end > now() ? end : now());
    sweep_say("looks=%u", looks);
}

static void tell_pinned(void)
{
    struct host_stats stats = {0};
    char wrong[256] = "";

    if (host_memory_stats(&stats))
        host_pool_check(host_memory_pool(), wrong, sizeof(wrong));
    sweep_say("pinned:n=%llu,%llu,%llu,%llu live=%lluK held=%lluK peak=%lluK,%lluK idle=%lluK segments=%llu,%llu "
              "waiting=%lluK refused=%llu passing=%lluK driver=%u%s",
              (unsigned long long)stats.allocs, (unsigned long long)stats.hits, (unsigned long long)stats.frees,
              (unsigned long long)stats.failed, (unsigned long long)stats.live >> 10,
              (unsigned long long)stats.held >> 10, (unsigned long long)stats.peak_live >> 10,
              (unsigned long long)stats.peak_held >> 10, (unsigned long long)stats.idle >> 10,
              (unsigned long long)stats.segments_alloc, (unsigned long long)stats.segments_free,
              (unsigned long long)stats.waiting >> 10, (unsigned long long)stats.refused,
              (unsigned long long)stats.passing >> 10, host.held, wrong);
    tell(0);
    tell_driver();
}

/* --- one context --- */

SCENE(pinned_begins, DECAYS)
{
    uint64_t plain, small, base = 0;
    size_t size = 0;
    bool found;

    begin();
    plain = take(HOST_MEMORY_PLAIN, 3 * MIB);
    small = take(0, 3 * KIB);
    take(1, 3 * KIB);
    give(small + 1);
    give(small);
    give(small);
    give(0x1000);
    found = serve_host_range(plain + KIB, &base, &size);
    sweep_say("range=%d,%#llx,%zuK", found, (unsigned long long)base, size >> 10);
    found = serve_host_range(small, &base, &size);
    sweep_say("range=%d,%zu", found, size);
    give(plain);
    tell_pinned();
}

/* For the library itself; and memory that the driver hands out although the pool has it. */
SCENE(pinned_wanted, DECAYS)
{
    uint64_t addr;

    begin();
    serve_host_wanted();
    sweep_say("due=%d", serve_host_due(now()) <= now());
    addr = take(0, 3 * MIB);
    serve_host_passed(addr + MIB, KIB);
    sweep_say("passed");
    give(addr);
    serve_host_passed(addr, 3 * MIB);
    sweep_say("passed");
    take(0, 3 * MIB);
    tell_pinned();
}

static void beside_work(void)
{
    uint64_t first, second;

    begin();
    first = take(0, 3 * MIB);
    second = take(0, 3 * MIB);
    fake.contexts[0].launched = 1;
    give(first);
    fake.contexts[0].launched = 2;
    give(second);
    later(SECOND_NS);
    take(0, 3 * MIB);
    fake.contexts[0].over = 1;
    later(SECOND_NS);
    take(0, 3 * MIB);
    later(SECOND_NS);
    take(0, 3 * MIB);
    fake.contexts[0].over = 2;
    later(SECOND_NS);
    take(0, 3 * MIB);
    tell_pinned();
}

SCENE(pinned_ordered, DECAYS)
{
    beside_work();
}

SCENE(pinned_strict, PINNED("strict"))
{
    beside_work();
}

SCENE(pinned_auto, PINNED("auto"))
{
    beside_work();
}

SCENE(pinned_decays, DECAYS)
{
    uint64_t one, two, live;

    begin();
    one = take(0, 3 * MIB);
    two = take(HOST_MEMORY_PLAIN, 5 * MIB);
    live = take(0, KIB);
    give(one);
    run_for(5);
    fake.contexts[0].launched = 2;
    give(two);
    run_for(5);
    tell_pinned();
    host.moves = true;
    run_for(20);
    give(live);
    run_for(20);
    tell_pinned();
}

SCENE(pinned_trims, DECAYS)
{
    uint64_t one, two;
    size_t bytes;

    begin();
    one = take(0, 3 * MIB);
    two = take(0, 5 * MIB);
    fake.contexts[0].launched = 1;
    give(one);
    give(two);
    bytes = host_pool_trim(host_memory_pool(), /* may_wait: */ false);
    sweep_say("trim=%zuK", bytes >> 10);
    host.moves = true;
    bytes = host_pool_trim(host_memory_pool(), /* may_wait: */ true);
    sweep_say("trim=%zuK", bytes >> 10);
    bytes = host_pool_trim(host_memory_pool(), /* may_wait: */ true);
    sweep_say("trim=%zuK", bytes >> 10);
    take(0, 3 * MIB);
    tell_pinned();
}

SCENE(pinned_captures, DECAYS)
{
    uint64_t one, two;

    begin();
    one = take(0, 3 * MIB);
    two = take(0, 5 * MIB);
    give(one);
    other_captures(NULL);
    give(two);
    later(SECOND_NS);
    take(0, 3 * MIB);
    take(0, 7 * MIB);
    run_for(20);
    other_has_captured(NULL);
    take(0, 3 * MIB);
    take(0, 5 * MIB);
    run_for(20);
    tell_pinned();
}

/* --- several contexts --- */

SCENE(pinned_limited, DECAYS " CUPOOL_HOST_LIMIT=8M")
{
    uint64_t one, two;

    begin();
    known(1);
    in(0);
    one = take(0, 3 * MIB);
    two = take(0, 5 * MIB);
    fake.contexts[1].launched = 1;
    give(one);
    take(0, 4 * MIB);
    fake.contexts[1].over = 1;
    give(two);
    take(0, 2 * MIB);
    host.moves = true;
    fake.contexts[0].launched = 3;
    take(0, 6 * MIB);
    tell_pinned();
}

/* Of a context without a pool no work is waited for. */
SCENE(pinned_exempt, DECAYS)
{
    uint64_t addr;

    begin();
    atomic_store(&known(1)->pool, NULL);
    in(0);
    addr = take(0, 3 * MIB);
    fake.contexts[1].launched = 1;
    give(addr);
    later(SECOND_NS);
    take(0, 3 * MIB);
    tell_pinned();
}

SCENE(pinned_ends, DECAYS)
{
    uint64_t one, two, other;

    begin();
    holds_context = true;
    known(1);
    in(1);
    other = take(0, 3 * MIB);
    in(0);
    one = take(0, 3 * MIB);
    two = take(0, 5 * MIB);
    fake.contexts[1].launched = 1;
    give(one);
    sweep_count(false);
    context_gone(context_leaving(fake_context(1)), true);
    sweep_count(true);
    later(SECOND_NS);
    take(0, 3 * MIB);
    give(other);
    known(4);
    in(4);
    other = take(0, 3 * MIB);
    fake.contexts[4].launched = 1;
    in(0);
    give(two);
    later(SECOND_NS);
    take(0, 5 * MIB);
    give(other);
    fake.contexts[4].over = 1;
    later(SECOND_NS);
    take(0, 5 * MIB);
    run_for(20);
    tell_pinned();
    tell(4);
}
