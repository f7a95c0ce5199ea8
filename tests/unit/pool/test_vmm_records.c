/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_vmm_records.c - the cache of virtual memory's records: many of them, those of several devices and threads, those
 * that other threads wait for, and none for lack of host memory. Serving and settling: test_vmm_cache.c.
 */
#include "cases.h"
#include "vmm_buffers.h"
#include "vmm_unit.h"

#include <malloc.h>

extern _Thread_local void (*lock_hook)(struct lock *lock); /* of checked_lock.h */

/* More handles than buckets. */
CASE(test_many_handles)
{
    enum { MANY = 2 * VMM_BUCKETS };
    static uint64_t handle[MANY];

    for (unsigned int i = 0; i < MANY; i++)
        OK(side_create(side, UNIT, 1, &handle[i]));
    assert_int_equal(stats_of(side).live, MANY * UNIT);
    for (unsigned int i = 0; i < MANY; i++)
        OK(side_release(side, handle[i]));
    assert_int_equal(stats_of(side).live, 0);
    assert_int_equal(side->driver->taken, 0);
}

/* Each device has an account, a bound and a beginning of its own. */
CASE(test_devices)
{
    struct buffer a = take(side, UNIT), b;

    side->device = 1;
    b = take(side, 3 * UNIT);
    give(side, &b);
    assert_int_equal(side->begun, 1);
    assert_int_equal(side->device_begun, 1);
    side->device = 0;
    give(side, &a);
    assert_int_equal(side->begun, 2);
    assert_int_equal(side->device_begun, 0);
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 1), 3 * UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 2), 0);
    assert_int_equal(vmm_cache_kept(side->cache, VMM_ALL_DEVICES), 4 * UNIT);
    assert_int_equal(vmm_cache_trim(side->cache, 0, UINT64_MAX), UNIT);
    assert_int_equal(side->device_returned, 0);
    assert_int_equal(stats_of(side).returned, UNIT);
    assert_int_equal(vmm_cache_trim(side->cache, VMM_ALL_DEVICES, UINT64_MAX), 3 * UNIT);
    assert_int_equal(side->device_returned, 1);
    assert_int_equal(stats_of(side).returned, 4 * UNIT);
}

/* Of what the program has nothing is kept later, either. */
CASE(test_forget_all)
{
    struct buffer a = take(side, UNIT), b = take(side, UNIT), c = take(side, UNIT);

    give(side, &a);
    OK(side_unmap(side, b.addr, UNIT));
    vmm_cache_forget_all(side->cache);
    assert_int_equal(side->cache->count, 0);
    assert_int_equal(side->driver->taken, 2 * UNIT);
    assert_int_equal(side->driver->calls[UNMAP], 2);
    give(side, &c);
    OK(side_release(side, b.handle));
    OK(side_unreserve(side, b.addr, UNIT));
    assert_int_equal(side->driver->taken, 0);
}

/* Devices whose numbers differ by VMM_DEVICES share an account; the last one of its own does not. */
CASE(test_device_numbers)
{
    static const unsigned int devices[] = {0, VMM_DEVICES - 1, VMM_DEVICES};

    for (int i = 0; i < 3; i++) {
        struct buffer b;

        side->device = devices[i];
        b = take(side, (1 + i) * UNIT);
        give(side, &b);
    }
    assert_int_equal(vmm_cache_kept(side->cache, 0), 4 * UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 63), 2 * UNIT);
}

/* Another device's idle memory does not go back for this one's. */
CASE(test_bound_of_each_device)
{
    struct buffer a[2], b;

    for (int i = 0; i < 2; i++) {
        side->device = (unsigned int)i;
        a[i] = take(side, 20 * UNIT);
    }
    for (int i = 0; i < 2; i++)
        give(side, &a[i]);
    assert_int_equal(side->driver->taken, 40 * UNIT);
    b = take(side, 40 * UNIT); /* 120 MiB may be held, and 152 beyond */
    assert_int_equal(vmm_cache_kept(side->cache, 0), 20 * UNIT);
    give(side, &b);
    b = take(side, 50 * UNIT); /* with 100 MiB at most, 174 may be held, and would be 220 */
    assert_int_equal(vmm_cache_kept(side->cache, 0), 20 * UNIT);
    assert_true(vmm_cache_kept(side->cache, 1) < 60 * UNIT);
    give(side, &b);
}

/* The bound may be met, and not exceeded by a byte. */
CASE(test_bound_is_met)
{
    struct buffer a = take(side, 30 * UNIT), b;

    give(side, &a);
    b = take(side, 20 * UNIT); /* 60 and 40: the bound is 60, 6 and 64 */
    assert_int_equal(vmm_cache_kept(side->cache, 0), 30 * UNIT);
    OK(side_release(side, b.handle));
    a = take(side, 10 * UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 0), 30 * UNIT); /* 120 of 130 */
    take(side, 5 * UNIT);                                        /* 130 of 141 */
    assert_int_equal(vmm_cache_kept(side->cache, 0), 30 * UNIT);
    vmm_cache_make_room(side->cache, 0, 12 * UNIT); /* 154 of 167.4 */
    assert_int_equal(vmm_cache_kept(side->cache, 0), 30 * UNIT);
}

/* A thread goes on with the buffer that it has begun to take, whoever had it before. */
CASE(test_threads_take)
{
    static const char threads[3];
    struct buffer a, b;
    unsigned int made;

    side->thread = &threads[0];
    a = take(side, UNIT);
    b = take(side, UNIT);
    give(side, &a);
    give(side, &b);
    made = calls(side);
    side->thread = &threads[1];
    OK(side_reserve(side, UNIT, ALIGN, &a.addr));
    side->thread = &threads[2];
    OK(side_create(side, UNIT, 1, &b.handle));
    OK(side_reserve(side, UNIT, ALIGN, &b.addr));
    assert_int_not_equal(a.addr, b.addr);
    side->thread = &threads[1];
    OK(side_create(side, UNIT, 1, &a.handle));
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    side->thread = &threads[2];
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    assert_int_equal(calls(side), made);
    /* Another thread's calls do not settle it. */
    OK(side_unmap(side, a.addr, UNIT));
    side->thread = &threads[1];
    OK(side_unmap(side, b.addr, UNIT));
    OK(side_release(side, b.handle));
    OK(side_unreserve(side, b.addr, UNIT));
    assert_int_equal(calls(side), made);
    side->thread = &threads[2];
    OK(side_release(side, a.handle));
    OK(side_unreserve(side, a.addr, UNIT));
    assert_int_equal(calls(side), made);
}

/* A thread that takes addresses, or memory, goes on: also if the buffer that it leaves was the driver's first. */
CASE(test_goes_on)
{
    struct buffer a = take(side, UNIT), b = {.size = 2 * UNIT};

    assert_int_equal(a.handle, 1);
    for (unsigned int i = 1; i < 3; i++) {
        OK(side_unmap(side, a.addr, UNIT));
        OK(i == 1 ? side_reserve(side, b.size, ALIGN, &b.addr) : side_create(side, b.size, 1, &b.handle));
        assert_int_equal(side->driver->calls[UNMAP], i);
        OK(side_map(side, a.addr, UNIT, 0, a.handle));
        OK(side_access(side, a.addr, UNIT, 0, 3));
    }
    OK(side_map(side, b.addr, b.size, 0, b.handle));
    give(side, &a);
    give(side, &b);
}

/* The table of ranges grows, and has room for as many as it says. */
CASE(test_many_ranges)
{
    enum { MANY = 300 };
    static uint64_t addr[MANY];

    for (unsigned int i = 0; i < MANY; i++) {
        OK(side_reserve(side, UNIT, ALIGN, &addr[i]));
        assert_true(side->cache->room * sizeof(void *) <= malloc_usable_size(side->cache->ranges));
        assert_true(side->cache->count == i + 1 && side->cache->count <= side->cache->room);
    }
    for (unsigned int i = 0; i < MANY; i++) {
        vmm_cache_forget_range(side->cache, addr[i], UNIT);
        assert_int_equal(side->cache->count, MANY - 1 - i);
    }
}

/* --- what is going back is waited for --- */

static struct vmm_cache *beside;
static atomic_bool unmaps, waited_for;
static _Thread_local unsigned int looks;

static int unmap_slowly(void *arg, uint64_t addr, size_t size)
{
    atomic_store(&unmaps, true);
    while (!atomic_load(&waited_for))
        sched_yield();
    return 0;
}

static int succeeds(void *arg, uint64_t handle)
{
    return 0;
}

static int unreserves(void *arg, uint64_t addr, size_t size)
{
    return 0;
}

static void ignores(void *arg, unsigned int device)
{
}

static void returns(void *arg, unsigned int device, uint64_t addr, size_t size)
{
}

static const struct vmm_ops slow_ops = {
    .unmap = unmap_slowly, .release = succeeds, .unreserve = unreserves, .begins = ignores, .returned = returns};

static void *settles(void *arg)
{
    vmm_cache_settle_range(beside, UNIT, UNIT);
    return NULL;
}

/* A waiting thread takes the lock again and again. */
static void look(struct lock *lock)
{
    if (++looks == 4)
        atomic_store(&waited_for, true);
}

static void by_range(void)
{
    assert_false(vmm_cache_unmap(beside, &looks, UNIT, UNIT, true, 1));
}

static void by_handle(void)
{
    assert_false(vmm_cache_release(beside, &looks, 7, false, 1));
}

static void by_any(void)
{
    assert_false(vmm_cache_hides_access(beside, UNIT + 5, 0, 0));
}

static void by_waiting(void)
{
    assert_true(vmm_cache_wait(beside));
}

UNIT_CASE(test_waits)
{
    static void (*const ways[])(void) = {by_range, by_handle, by_any, by_waiting};
    static const struct vmm_key key;

    for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
        pthread_t thread;

        atomic_store(&unmaps, false);
        atomic_store(&waited_for, false);
        looks = 0;
        OK(vmm_cache_new(&slow_ops, NULL, 64 * MIB, &beside));
        vmm_cache_reserved(beside, UNIT, UNIT, ALIGN);
        vmm_cache_created(beside, 7, UNIT, &key);
        vmm_cache_mapped(beside, UNIT, UNIT, 7, true);
        assert_true(vmm_cache_unmap(beside, &looks, UNIT, UNIT, true, 1));
        OK(pthread_create(&thread, NULL, settles, NULL));
        while (!atomic_load(&unmaps))
            sched_yield();
        lock_hook = look;
        ways[i]();
        lock_hook = NULL;
        assert_true(atomic_load(&waited_for));
        OK(pthread_join(thread, NULL));
        assert_false(vmm_cache_wait(beside));
        vmm_cache_destroy(beside);
    }
}

/* --- no host memory --- */

UNIT_CASE(test_no_memory_for_a_cache)
{
    struct vmm_cache *cache = NULL;

    fake_no_memory = true;
    assert_int_equal(vmm_cache_new(&slow_ops, NULL, 0, &cache), -ENOMEM);
    fake_no_memory = false;
    assert_null(cache);
}

/* A buffer that could not be recorded is the driver's. */
CASE(test_no_memory_for_a_record)
{
    struct buffer a = {.size = UNIT};

    fake_no_growth = true;
    a = take(side, UNIT);
    give(side, &a);
    fake_no_growth = false;
    assert_int_equal(side->driver->taken, 0);
    fake_no_memory = true;
    a = take(side, UNIT);
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
    OK(side_reserve(side, UNIT, ALIGN, &a.addr));
    fake_no_memory = false;
    OK(side_create(side, UNIT, 1, &a.handle));
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
    /* A mapping that goes leaves two records, or one. */
    for (int i = 0; i < 2; i++) {
        a = take(side, UNIT);
        OK(side_unmap(side, a.addr, UNIT));
        fake_no_memory = true;
        vmm_cache_settle_partial(side->cache, UINT64_MAX);
        fake_no_memory = false;
        assert_int_equal(stats_of(side).live, 0);
        OK(side_map(side, a.addr, UNIT, 0, a.handle));
        give(side, &a);
        assert_int_equal(side->driver->taken, 0);
    }
    a = take(side, UNIT);
    side->captures = true;
    fake_no_memory = true;
    OK(side_unmap(side, a.addr, UNIT));
    fake_no_memory = false;
    side->captures = false;
    assert_int_equal(stats_of(side).live, 0);
    OK(side_release(side, a.handle));
    OK(side_unreserve(side, a.addr, UNIT));
    assert_int_equal(side->driver->taken, 0);
}
