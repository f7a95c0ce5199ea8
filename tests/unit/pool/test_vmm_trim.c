/* SPDX-License-Identifier: Apache-2.0 */
/* test_vmm_trim.c - the cache of virtual memory: when memory goes back, what a refused call leaves, and access. */

#include <unistd.h>

#include "cases.h"
#include "clock.h"
#include "give_way.h"
#include "vmm_buffers.h"
#include "vmm_unit.h"

CASE(test_access)
{
    struct buffer a = take(side, UNIT), b;

    OK(side_access(side, a.addr, UNIT, 1, 3));
    give(side, &a);
    b = take(side, UNIT);
    assert_int_equal(b.addr, a.addr);
    assert_int_equal(side->driver->calls[ACCESS], 2);
    assert_int_equal(side_get_access(side, b.addr, 1), 0); /* as far as the program knows */
    OK(side_access(side, b.addr, UNIT, 1, 1));             /* other flags: the driver's */
    assert_int_equal(side->driver->calls[ACCESS], 3);
    OK(side_access(side, b.addr, UNIT, 2, 3));
    assert_int_equal(side->driver->calls[ACCESS], 4);
    OK(side_access(side, b.addr, UNIT, 0, 0));
    assert_int_equal(side_get_access(side, b.addr, 0), 0);
    give(side, &b);
}

/* A signal handler may have interrupted the holder of the lock: the numbers are there after a while, and the lock is
 * still the holder's. */
CASE(test_stats_beside_a_holder)
{
    struct buffer a = take(side, UNIT);
    struct vmm_stats stats;

    alarm(60); /* a wait without an end fails the test */
    lock_take(&side->cache->lock);
    stats = stats_of(side);
    assert_false(lock_try(&side->cache->lock));
    lock_give(&side->cache->lock);
    alarm(0);
    assert_int_equal(stats.misses, 1);
    assert_int_equal(stats.live, UNIT);
    give(side, &a);
}

/* A buffer whose access is not known, or is not of all of it, is kept no more. */
CASE(test_access_unknown)
{
    struct buffer a = take(side, UNIT);

    side->driver->refuses = ACCESS;
    side->driver->times = 1;
    assert_int_equal(side_access(side, a.addr, UNIT, 4, 3), REFUSED);
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
    a = take(side, 2 * UNIT);
    assert_int_equal(side_access(side, a.addr, UNIT, 0, 3), BAD);
    give(side, &a);
    a = take(side, UNIT);
    for (uint32_t i = 0; i < VMM_ACCESS_MAX + 1; i++)
        OK(side_access(side, a.addr, UNIT, i, 3));
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
}

CASE(test_bound)
{
    struct buffer b[100];

    for (int i = 0; i < 100; i++)
        b[i] = take(side, UNIT);
    for (int i = 0; i < 100; i++)
        give(side, &b[i]);
    assert_int_equal(side->driver->taken, 100 * UNIT);
    b[0] = take(side, 10 * UNIT); /* the peak is 200 MiB: 284 may be held */
    assert_int_equal(side->driver->taken, 110 * UNIT);
    for (int i = 1; i < 5; i++) {
        b[i] = take(side, 10 * UNIT);
        assert_true(side->driver->taken <= 284 * MIB);
    }
    assert_true(side->driver->taken > 280 * MIB);
    for (int i = 0; i < 5; i++)
        give(side, &b[i]);
}

CASE(test_decay)
{
    struct buffer a = take(side, UNIT), b = take(side, UNIT);

    side->now = 10;
    give(side, &a);
    side->now = 20;
    give(side, &b);
    assert_int_equal(vmm_cache_trim(side->cache, 0, 9), 0);
    assert_int_equal(vmm_cache_trim(side->cache, 1, 10), 0);
    assert_int_equal(vmm_cache_trim(side->cache, 0, 10), UNIT);
    b = take(side, UNIT);
    assert_int_equal(stats_of(side).hits, 1);
    give(side, &b);
}

/* Somebody is told in time who gives memory back later, although the program keeps the addresses. */
CASE(test_begins)
{
    struct buffer a = take(side, UNIT);

    assert_int_equal(side->begun, 0);
    OK(side_unmap(side, a.addr, UNIT));
    OK(side_release(side, a.handle));
    assert_int_equal(side->begun, 1);
    side->now = 1;
    vmm_cache_settle_partial(side->cache, 0);
    assert_int_equal(side->driver->taken, 0);
    OK(side_unreserve(side, a.addr, UNIT));
}

static atomic_bool enough;
static atomic_uint threads;

static int nap_unmap(void *arg, uint64_t addr, size_t size)
{
    nap_ns(1000000);
    return 0;
}

static int nap_release(void *arg, uint64_t handle)
{
    return 0;
}

static void nap_begins(void *arg, unsigned int device)
{
}

static void nap_returned(void *arg, unsigned int device, uint64_t addr, size_t size)
{
}

static const struct vmm_ops nap_ops = {
    .unmap = nap_unmap, .release = nap_release, .unreserve = nap_unmap, .begins = nap_begins, .returned = nap_returned};

/* Gives memory back all the time. */
static void *gives_back(void *arg)
{
    static const struct vmm_key key;
    struct vmm_cache *cache = arg;
    const uint64_t addr = UNIT * (1 + atomic_fetch_add(&threads, 1));

    vmm_cache_reserved(cache, addr, UNIT, ALIGN);
    while (!atomic_load(&enough)) {
        vmm_cache_created(cache, addr, UNIT, &key);
        vmm_cache_mapped(cache, addr, UNIT, addr, true);
        vmm_cache_unmap(cache, &addr, addr, UNIT, true, 1);
        vmm_cache_release(cache, &addr, addr, true, 1);
        vmm_cache_settle_range(cache, addr, UNIT);
    }
    return NULL;
}

/* To wait for what is going back is to wait for what began before, not until nothing goes back any more. */
CASE_WITH(test_waits_for_what_began_before, setup, teardown)
{
    struct vmm_cache *cache;
    pthread_t thread[16];

    OK(vmm_cache_new(&nap_ops, NULL, 64 * MIB, &cache));
    for (int i = 0; i < 16; i++)
        pthread_create(&thread[i], NULL, gives_back, cache);
    for (int i = 0; i < 20; i++)
        while (!vmm_cache_wait(cache))
            give_way();
    atomic_store(&enough, true);
    join_all(thread, 16);
    assert_false(vmm_cache_wait(cache));
    vmm_cache_destroy(cache);
}

/* The driver has mapped memory a second time, while the cache unmaps it elsewhere. */
#define OTHER (4 * UNIT)

static struct vmm_cache *beside;
static atomic_bool unmaps;

static int unmap_beside(void *arg, uint64_t addr, size_t size)
{
    atomic_store(&unmaps, true);
    nap_ns(20000000); /* the other thread waits for this buffer; if it is late, the test sees less */
    vmm_cache_forget_range(beside, OTHER, UNIT);
    nap_ns(1000000);
    return 0;
}

static void *settles(void *arg)
{
    vmm_cache_settle_range(beside, UNIT, UNIT);
    return NULL;
}

/* A range that is forgotten while a thread waits for the memory that it has mapped there is not known any more. */
UNIT_CASE(test_a_range_goes_while_its_memory_is_waited_for)
{
    static const struct vmm_ops ops = {.unmap = unmap_beside,
                                       .release = nap_release,
                                       .unreserve = nap_unmap,
                                       .begins = nap_begins,
                                       .returned = nap_returned};
    static const struct vmm_key key;
    struct vmm_stats stats;
    pthread_t thread;

    OK(vmm_cache_new(&ops, NULL, 64 * MIB, &beside));
    vmm_cache_reserved(beside, OTHER, UNIT, ALIGN);
    vmm_cache_reserved(beside, UNIT, UNIT, ALIGN);
    vmm_cache_created(beside, 7, UNIT, &key);
    vmm_cache_mapped(beside, UNIT, UNIT, 7, true);
    assert_true(vmm_cache_unmap(beside, &thread, UNIT, UNIT, true, 1));
    OK(pthread_create(&thread, NULL, settles, NULL));
    while (!atomic_load(&unmaps))
        give_way();
    vmm_cache_mapped(beside, OTHER, UNIT, 7, true);
    OK(pthread_join(thread, NULL));
    vmm_cache_stats_get(beside, &stats);
    assert_int_equal(stats.live, 0);
    vmm_cache_destroy(beside);
}

/* A thread has got a part of a buffer when its memory goes: the rest comes from the driver. */
CASE(test_trimmed_while_forming)
{
    struct buffer a = take(side, UNIT), b = {.size = UNIT};

    give(side, &a);
    OK(side_reserve(side, UNIT, ALIGN, &b.addr));
    assert_int_equal(b.addr, a.addr);
    assert_int_equal(vmm_cache_trim(side->cache, 0, UINT64_MAX), UNIT);
    assert_int_equal(side->driver->taken, 0);
    OK(side_create(side, UNIT, 1, &b.handle));
    assert_int_not_equal(b.handle, a.handle);
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    give(side, &b);
    OK(side_create(side, UNIT, 1, &b.handle));
    assert_int_equal(vmm_cache_trim(side->cache, 0, UINT64_MAX), 0); /* the program has the memory */
    OK(side_release(side, b.handle));
}

/* The driver refuses what was deferred: the program's later calls work as far as they can. */
CASE(test_refused)
{
    for (enum fake_call call = UNMAP; call <= UNRESERVE; call++) {
        struct buffer a = take(side, UNIT);
        const uint64_t taken = side->driver->taken;

        give(side, &a);
        side->driver->refuses = call;
        side->driver->times = 1;
        vmm_cache_trim(side->cache, 0, UINT64_MAX);
        assert_int_equal(side->driver->times, 0);
        assert_int_equal(side->driver->taken, call == UNRESERVE ? taken - UNIT : taken);
        assert_int_equal(vmm_cache_kept(side->cache, 0), 0);
        assert_int_equal(side_taken(side), side->driver->taken);
    }
}

CASE(test_captures)
{
    struct buffer a = take(side, UNIT), b;

    give(side, &a);
    side->captures = true;
    b = take(side, UNIT);
    assert_int_not_equal(b.addr, a.addr);
    give(side, &b);
    assert_int_equal(side->driver->taken, UNIT);
    side->captures = false;
    b = take(side, UNIT);
    OK(side_release(side, b.handle));
    side->captures = true;
    OK(side_unmap(side, b.addr, UNIT));
    assert_int_equal(side->driver->taken, 0);
    OK(side_unreserve(side, b.addr, UNIT));
    side->captures = false;
    b = take(side, UNIT);
    OK(side_unmap(side, b.addr, UNIT));
    side->captures = true;
    OK(side_release(side, b.handle));
    assert_int_equal(side->driver->taken, 0);
    OK(side_unreserve(side, b.addr, UNIT));
    side->captures = false;
    b = take(side, UNIT);
    side->captures = true;
    OK(side_unmap(side, b.addr, UNIT)); /* by the driver: the memory is known, and kept later */
    side->captures = false;
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    OK(side_access(side, b.addr, UNIT, 0, 3));
    give(side, &b);
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
}
