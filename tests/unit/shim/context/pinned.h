/* SPDX-License-Identifier: Apache-2.0 */
/* pinned.h - a driver with pinned memory, and a program that takes it from the pool and frees it. */
#ifndef CUPOOL_TESTS_UNIT_PINNED_H
#define CUPOOL_TESTS_UNIT_PINNED_H

#include <sched.h>

#include "context/host_memory.h"
#include "ready.h"
#include "serve/pinned_requests.h"

#define DECAY "CUPOOL_HOST_POOL=1 CUPOOL_FREE=ordered CUPOOL_DECAY=8"
#define LARGE (3 * MIB)

static unsigned int node_of_this;

/* In place of glibc's: the node that the thread is on. */
int getcpu(unsigned int *cpu, unsigned int *node)
{
    *cpu = 0;
    *node = node_of_this;
    return 0;
}

static struct {
    uint64_t next, freed, at; /* at: of the last free, which takes 5 ms */
    size_t taken, returned;   /* calls */
    bool captures;            /* one begins during the next free */
    unsigned int freeing;     /* threads in frees of the driver's in context 0, during the last one */
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
    pinned.freeing = atomic_load(&pooled(0)->freeing);
    if (pinned.captures)
        capture_begin(fake_stream(0, 0));
    atomic_fetch_add(&fake.ns, 5 * MS);
    pinned.returned++;
    return pinned.result;
}

static inline void start(void)
{
    ready();
    fake.driver.cuMemAllocHost_v2 = alloc_host;
    fake.driver.cuMemHostAlloc = host_alloc;
    fake.driver.cuMemFreeHost = free_host;
}

static inline uint64_t get_with(unsigned int flags, size_t size)
{
    uint64_t addr = 0;

    assert_int_equal(serve_host_alloc(flags, size, (const void *)(uintptr_t)get_with, &addr), SERVE_DONE);
    return addr;
}

static inline uint64_t get(size_t size)
{
    return get_with(0, size);
}

static inline void put(uint64_t addr)
{
    assert_int_equal(serve_host_free(addr), SERVE_DONE);
}

/* The background thread, for so long. */
static inline void run_for(uint64_t ns)
{
    const uint64_t end = now() + ns;

    while (serve_host_due(now()) <= end) {
        atomic_store(&fake.ns, serve_host_due(now()) > now() ? serve_host_due(now()) : now());
        serve_host_tick(now());
    }
    atomic_store(&fake.ns, end);
}

#endif
