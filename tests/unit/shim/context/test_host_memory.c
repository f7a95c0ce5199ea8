/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_memory.c - shim/context/host_memory.c and shim/serve/pinned_requests.c: when pinned memory that has become
 * idle goes back to the driver, on the fake clock. tests/unit/pool/test_host_pool.c has the pool itself. */
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/process.h"
#include "context/host_memory.h"
#include "context/host_populate.h"
#include "context/numa_key.h"
#include "ready.h"
#include "serve/pinned_requests.h"

#define DECAY "CUPOOL_HOST_POOL=1 CUPOOL_FREE=ordered CUPOOL_DECAY=8"
#define LARGE (3 * MIB)

static struct {
    uint64_t next, freed, at; /* at: of the last free, which takes 5 ms */
    size_t taken, returned;   /* calls */
    bool captures;            /* one begins during the next free */
    CUresult result;          /* of a free */
} pinned;

static CUresult host_alloc(void **ptr, size_t size, unsigned int flags)
{
    *ptr = (void *)(uintptr_t)(UINT64_C(0x7e0000000000) + pinned.next);
    pinned.next += (size + MIB - 1) / MIB * MIB;
    pinned.taken++;
    return CUDA_SUCCESS;
}

static CUresult alloc_host(void **ptr, size_t size)
{
    return host_alloc(ptr, size, 0);
}

static CUresult free_host(void *ptr)
{
    pinned.freed = (uintptr_t)ptr;
    pinned.at = now();
    if (pinned.captures)
        capture_begin(fake_stream(0, 0));
    atomic_fetch_add(&fake.ns, 5 * MS);
    pinned.returned++;
    return pinned.result;
}

static void start(void)
{
    ready();
    fake.driver.cuMemAllocHost_v2 = alloc_host;
    fake.driver.cuMemHostAlloc = host_alloc;
    fake.driver.cuMemFreeHost = free_host;
}

static uint64_t get_with(unsigned int flags, size_t size)
{
    uint64_t addr = 0;

    assert_int_equal(serve_host_alloc(flags, size, (const void *)(uintptr_t)get_with, &addr), SERVE_DONE);
    return addr;
}

static uint64_t get(size_t size)
{
    return get_with(0, size);
}

static void put(uint64_t addr)
{
    assert_int_equal(serve_host_free(addr), SERVE_DONE);
}

/* The background thread, for so long. */
static void run_for(uint64_t ns)
{
    const uint64_t end = now() + ns;

    while (serve_host_due(now()) <= end) {
        atomic_store(&fake.ns, serve_host_due(now()) > now() ? serve_host_due(now()) : now());
        serve_host_tick(now());
    }
    atomic_store(&fake.ns, end);
}

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

/* Every page is there before: the driver would make them one after the other. */
static CUresult registered(void *p, size_t size, unsigned int flags)
{
    const size_t pages = size / (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *there = malloc(pages);

    assert_int_equal(mincore(p, size, there), 0);
    for (size_t i = 0; i < pages; i++)
        assert_true(there[i] & 1);
    free(there);
    return p && size && !flags ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool is_mapped(uint64_t addr)
{
    return msync((void *)(uintptr_t)addr, 4096, MS_ASYNC) == 0;
}

static CUresult not_registered(void *p)
{
    return p ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE;
}

/* The program has undone the registration: nothing of the driver's uses the memory, and its pages go. */
ISOLATED_CASE(test_not_registered_any_more, .environment = DECAY " CUPOOL_HOST_POPULATE=1")
{
    uint64_t addr = 0;

    start();
    fake.driver.cuMemHostRegister_v2 = registered;
    fake.driver.cuMemHostUnregister = not_registered;
    assert_int_equal(host_populate(&fake.driver, 1, 0, 256 * MIB, &addr), 0);
    assert_true(is_mapped(addr));
    assert_int_equal(host_populated_free(&fake.driver, addr), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_false(is_mapped(addr));
}

static CUresult unregistered(void *p)
{
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A call past the pool has freed the driver's memory that was there before: the fresh memory, which the kernel mostly
 * maps there too, stays. */
ISOLATED_CASE(test_populated_where_memory_was, .environment = DECAY " CUPOOL_HOST_POPULATE=1 CUPOOL_HOST_LIMIT=300M")
{
    uint64_t addr, other;

    start();
    fake.driver.cuMemHostRegister_v2 = registered;
    fake.driver.cuMemHostUnregister = unregistered;
    addr = get(256 * MIB);
    for (unsigned int i = 0; i < 8; i++) {
        put(addr);
        host_pool_trim(host_memory_pool(), /* may_wait: */ true);
        assert_false(is_mapped(addr));
        pinned.next = addr - UINT64_C(0x7e0000000000);
        assert_int_equal(get_with(CU_MEMHOSTALLOC_WRITECOMBINED, 256 * MIB), addr);
        other = get(256 * MIB);
        assert_true(is_mapped(other));
        assert_true(host_populated(other));
        if (other == addr)
            break;
        addr = other;
    }
}

/* A context takes its own memory along. */
ISOLATED_CASE(test_populated_of_two_contexts, .environment = DECAY " CUPOOL_HOST_POPULATE=1")
{
    uint64_t addr, other;

    start();
    fake.driver.cuMemHostRegister_v2 = registered;
    fake.driver.cuMemHostUnregister = unregistered;
    addr = get(256 * MIB);
    pooled(1);
    fake_current(fake_context(1));
    other = get(256 * MIB);
    fake_current(fake_context(0));
    context_gone(context_leaving(fake_context(1)), true);
    assert_true(is_mapped(addr));
    assert_false(is_mapped(other));
}

/* It waits for the current context's work. */
static CUresult waits_and_unregisters(void *p)
{
    CUcontext current = NULL;

    fake.driver.cuCtxGetCurrent(&current);
    fake_context_of(current)->over = fake_context_of(current)->launched;
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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

/* Such memory goes when the program wants it to: the driver waits for the work of its context, and for no other work.
 */
ISOLATED_CASE(test_populated_beside_work, .environment = DECAY " CUPOOL_HOST_POPULATE=1")
{
    uint64_t addr;

    start();
    fake.driver.cuMemHostRegister_v2 = registered;
    fake.driver.cuMemHostUnregister = waits_and_unregisters;
    addr = get(256 * MIB);
    assert_true(host_populated(addr));
    put(addr);
    pooled(1);
    fake_current(fake_context(1));
    fake.contexts[0].launched = fake.contexts[1].launched = 1;
    assert_int_equal(host_pool_trim(host_memory_pool(), /* may_wait: */ true), 256 * MIB);
    assert_false(host_populated(addr));
    assert_int_equal(fake.contexts[0].over, 1);
    assert_int_equal(fake.contexts[1].over, 0);
}

/* --- nodes --- */

static unsigned int node_of_this;

/* In place of glibc's. */
int getcpu(unsigned int *cpu, unsigned int *node)
{
    *cpu = 0;
    *node = node_of_this;
    return 0;
}

/* Memory is asked for on the node that the thread is on, if its number has a bit in the kernel's mask. */
ISOLATED_CASE(test_preferred_node)
{
    static const struct {
        unsigned int node;
        int bound;
    } rows[] = {{0, 1}, {5, 6}, {1023, 0}, {1024, -1}, {1025, -1}};
    char root[] = "/tmp/cupool-test-XXXXXX", path[128] = "";
    static char memory[4096];
    FILE *file;

    assert_non_null(mkdtemp(root));
    for (const char *part = "/sys/devices/system/node/"; *part; part++) {
        snprintf(path + strlen(path), sizeof(path) - strlen(path), "%s%c", *path ? "" : root, *part);
        if (part[1] == '/')
            assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path + strlen(path), sizeof(path) - strlen(path), "online");
    file = fopen(path, "w");
    assert_true(file && fputs("0-1\n", file) >= 0 && fclose(file) == 0);
    start();
    fake.root = root;
    for (size_t i = 0; i < COUNT(rows); i++) {
        node_of_this = rows[i].node;
        fake.binds = 0;
        numa_prefer(memory, sizeof(memory));
        assert_int_equal(fake.binds, rows[i].bound >= 0);
        if (fake.binds)
            assert_int_equal(fake.bound, rows[i].bound);
        fake.policy_hidden = i % 2;
        errno = 77;
        assert_int_equal(numa_key(), rows[i].node + 1);
        assert_int_equal(errno, 77); /* whatever the kernel has answered */
        fake.policy_hidden = false;
    }
    assert_int_equal(unlink(path), 0);
    for (char *end; strcmp(path, root) != 0;) {
        end = strrchr(path, '/');
        *end = '\0';
        assert_int_equal(rmdir(path), 0);
    }
}
