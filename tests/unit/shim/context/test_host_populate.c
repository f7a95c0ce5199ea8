/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_populate.c - shim/context/host_populate.c and numa_key.c: pinned memory that the library maps itself, and
 * the node that it lies on. */
#include <sys/mman.h>
#include <sys/stat.h>

#include "context/host_populate.h"
#include "context/numa_key.h"
#include "pinned.h"

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
