/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_vmm_cache.c - the cache of virtual memory, call by call: what is served and what is settled.
 *
 * Not here: access, and memory that goes back (test_vmm_trim.c); long random programs (test_vmm_random.c).
 */
#include "cases.h"
#include "vmm_unit.h"

CASE(test_same_again)
{
    struct buffer a = take(side, UNIT), b;
    unsigned int made;

    made = calls(side);
    for (int i = 0; i < 10; i++) {
        give(side, &a);
        assert_int_equal(side_taken(side), 0);
        assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
        b = take(side, UNIT);
        assert_int_equal(b.addr, a.addr);
        assert_int_equal(b.handle, a.handle);
        assert_int_equal(side_taken(side), UNIT);
    }
    assert_int_equal(calls(side), made);
    assert_int_equal(side->begun, 1);
    assert_int_equal(stats_of(side).hits, 10);
    assert_int_equal(stats_of(side).misses, 1);
    assert_int_equal(stats_of(side).peak_kept, UNIT);
    assert_int_equal(stats_of(side).live, UNIT);
    give(side, &b);
}

/* In every order that gives all of it up, and takes it. */
CASE(test_orders)
{
    struct buffer a = take(side, UNIT), b = {.size = UNIT};
    const unsigned int made = calls(side);

    OK(side_release(side, a.handle));
    assert_int_equal(side->begun, 0); /* the mapping has the memory */
    OK(side_unmap(side, a.addr, UNIT));
    assert_int_equal(side->begun, 1);
    OK(side_unreserve(side, a.addr, UNIT));
    OK(side_create(side, UNIT, 1, &b.handle));
    OK(side_reserve(side, UNIT, ALIGN, &b.addr));
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    OK(side_access(side, b.addr, UNIT, 0, 3));
    OK(side_unmap(side, b.addr, UNIT));
    OK(side_unreserve(side, b.addr, UNIT));
    OK(side_release(side, b.handle));
    OK(side_reserve(side, UNIT, ALIGN, &b.addr));
    OK(side_unreserve(side, b.addr, UNIT)); /* nothing but addresses were wanted */
    a = take(side, UNIT);
    assert_int_equal(calls(side), made);
    give(side, &a);
}

CASE(test_other_kinds)
{
    struct buffer a = take(side, UNIT), b = {.size = UNIT};

    give(side, &a);
    OK(side_reserve(side, UNIT, 2 * ALIGN, &b.addr)); /* another alignment */
    assert_int_not_equal(b.addr, a.addr);
    OK(side_create(side, UNIT, 2, &b.handle)); /* other properties */
    assert_int_not_equal(b.handle, a.handle);
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
    give(side, &b);
    OK(side_reserve(side, UNIT, ALIGN, &b.addr)); /* that of a, with memory of the second kind */
    assert_int_equal(b.addr, a.addr);
    OK(side_create(side, UNIT, 2, &b.handle));
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    OK(side_access(side, b.addr, UNIT, 0, 3));
    assert_int_equal(side->driver->taken, UNIT); /* a's memory, and the second's range, have gone back */
    OK(side_write(side, b.addr, 5));
    give(side, &b);
    a = take(side, 2 * UNIT);
    assert_int_equal(stats_of(side).hits, 1);
    give(side, &a);
}

/* Of a buffer whose memory the thread has taken, and not its range. */
CASE(test_another_alignment)
{
    struct buffer a = take(side, UNIT), b = {.size = UNIT};

    give(side, &a);
    OK(side_create(side, UNIT, 1, &b.handle));
    assert_int_equal(b.handle, a.handle);
    OK(side_reserve(side, UNIT, 2 * ALIGN, &b.addr));
    assert_int_not_equal(b.addr, a.addr);
    OK(side_map(side, b.addr, UNIT, 0, b.handle));
    give(side, &b);
}

/* The driver frees a range as a whole. */
CASE(test_another_size)
{
    struct buffer a = take(side, UNIT);

    OK(side_unmap(side, a.addr, UNIT));
    OK(side_release(side, a.handle));
    assert_int_not_equal(side_unreserve(side, a.addr, 2 * UNIT), 0);
    OK(side_unreserve(side, a.addr, UNIT));
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
}

/* Calls about nothing, which the driver refuses, change nothing. */
CASE(test_no_size)
{
    struct buffer a = take(side, UNIT);

    assert_int_equal(side_unmap(side, a.addr, 0), BAD);
    assert_int_equal(side_access(side, a.addr, 0, 0, 3), BAD);
    vmm_cache_forget_range(side->cache, a.addr, 0);
    vmm_cache_mapped(side->cache, a.addr, 0, 0, true);
    give(side, &a);
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
    vmm_cache_settle_range(side->cache, a.addr, 0);
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
}

/* Two ranges that border on each other: each call is about one of them. */
CASE(test_neighbours)
{
    struct buffer a = take(side, UNIT), b = take(side, UNIT), c = take(side, UNIT);

    assert_int_equal(b.addr, a.addr + UNIT);
    assert_int_equal(c.addr, b.addr + UNIT);
    give(side, &a);
    give(side, &b);
    give(side, &c);
    vmm_cache_settle_range(side->cache, b.addr, UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 0), 2 * UNIT);
    vmm_cache_forget_range(side->cache, a.addr + 1, UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
    vmm_cache_settle_range(side->cache, b.addr, UNIT + 1);
    assert_int_equal(vmm_cache_kept(side->cache, 0), 0);
}

/* Of a buffer that is given up in part and then forgotten, neither part is known any more. */
CASE(test_forgotten_in_part)
{
    struct buffer a = take(side, UNIT), b = {.size = UNIT};

    OK(side_unmap(side, a.addr, UNIT));
    vmm_cache_forget_range(side->cache, a.addr, UNIT);
    assert_int_equal(stats_of(side).live, 0);
    OK(side_reserve(side, UNIT, ALIGN, &b.addr));
    OK(side_map(side, b.addr, UNIT, 0, a.handle)); /* memory that others may hold */
    b.handle = a.handle;
    give(side, &b);
    assert_int_equal(side->driver->taken, 0);
    OK(side_create(side, UNIT, 1, &a.handle));
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
}

/* Access to a part of the buffer is not known. */
CASE(test_access_to_a_part)
{
    const struct vmm_access access = {.location = 1, .id = 3, .flags = 3};
    struct buffer a = take(side, 2 * UNIT);

    vmm_cache_access_set(side->cache, a.addr, UNIT, &access, 1, true);
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
}

/* A call that names no location, or more than are known, is the driver's. */
CASE(test_access_of_nobody)
{
    const struct vmm_access access = {.location = 1, .id = 0, .flags = 3};
    struct buffer a = take(side, UNIT);

    assert_true(vmm_cache_set_access(side->cache, a.addr, UNIT, &access, 1, true));
    assert_false(vmm_cache_set_access(side->cache, a.addr, UNIT, &access, 0, true));
    give(side, &a);
}

/* All that is kept among these addresses, not the first of it alone. */
CASE(test_settle_range)
{
    struct buffer a = take(side, UNIT), b = take(side, UNIT);
    const uint64_t from = a.addr < b.addr ? a.addr : b.addr, last = a.addr < b.addr ? b.addr : a.addr;

    give(side, &a);
    give(side, &b);
    assert_int_equal(vmm_cache_kept(side->cache, 0), 2 * UNIT);
    vmm_cache_settle_range(side->cache, from, last + UNIT - from);
    assert_int_equal(vmm_cache_kept(side->cache, 0), 0);
}

/* Without the addresses, the memory goes back: the program keeps them, and others may have the memory (vLLM's sleep
 * mode). */
CASE(test_addresses_are_kept)
{
    struct buffer b[3];

    for (int i = 0; i < 3; i++)
        b[i] = take(side, UNIT);
    for (int i = 0; i < 3; i++) {
        OK(side_unmap(side, b[i].addr, UNIT));
        OK(side_release(side, b[i].handle));
        assert_int_equal(side->driver->taken, (3 - i) * UNIT);
    }
    assert_int_equal(side_taken(side), 0);
    side->now = 100;
    vmm_cache_settle_partial(side->cache, 0);
    assert_int_equal(side->driver->taken, 0);
    assert_int_equal(side->returned, 3 * UNIT);
    assert_int_equal(stats_of(side).returned, 3 * UNIT);
    assert_int_equal(stats_of(side).settled, 3);
    for (int i = 0; i < 3; i++) { /* and it wakes */
        OK(side_create(side, UNIT, 1, &b[i].handle));
        OK(side_map(side, b[i].addr, UNIT, 0, b[i].handle));
        OK(side_access(side, b[i].addr, UNIT, 0, 3));
    }
    for (int i = 0; i < 3; i++)
        give(side, &b[i]);
    assert_int_equal(vmm_cache_kept(side->cache, 0), 3 * UNIT);
}

CASE(test_not_yet_partial)
{
    struct buffer a = take(side, UNIT);

    side->now = 100;
    OK(side_unmap(side, a.addr, UNIT));
    vmm_cache_settle_partial(side->cache, 99);
    assert_true(side->driver->calls[UNMAP] == 0);
    vmm_cache_settle_partial(side->cache, 100);
    assert_int_equal(side->driver->calls[UNMAP], 1);
    assert_int_equal(side->returned, 0); /* the handle still has it */
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    give(side, &a);
    a = take(side, UNIT); /* nor is it different for a buffer that was kept */
    assert_int_equal(stats_of(side).hits, 1);
    OK(side_unmap(side, a.addr, UNIT));
    vmm_cache_settle_partial(side->cache, 100);
    assert_int_equal(side->driver->calls[UNMAP], 2);
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    give(side, &a);
}

/* Physical memory that is mapped again where it was keeps its contents, and has no access before it is given. */
CASE(test_mapped_again)
{
    struct buffer a = take(side, UNIT);
    int contents = 0;

    OK(side_write(side, a.addr, 7));
    OK(side_unmap(side, a.addr, UNIT));
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    assert_int_equal(side_get_access(side, a.addr, 0), 0);
    OK(side_access(side, a.addr, UNIT, 0, 3));
    assert_int_equal(side_get_access(side, a.addr, 0), 1);
    OK(side_read(side, a.addr, &contents));
    assert_int_equal(contents, 7);
    assert_int_equal(side->driver->calls[UNMAP], 0);
    give(side, &a);
}

CASE(test_retained)
{
    struct buffer a = take(side, UNIT);
    uint64_t again;

    OK(side_retain(side, a.addr + 5, &again));
    assert_int_equal(again, a.handle);
    assert_int_equal(stats_of(side).live, UNIT);
    OK(side_unmap(side, a.addr, UNIT));
    OK(side_release(side, a.handle));
    OK(side_unreserve(side, a.addr, UNIT));
    assert_int_equal(vmm_cache_kept(side->cache, 0), 0); /* the handle still has it */
    OK(side_release(side, again));
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
    a = take(side, UNIT);
    OK(side_release(side, a.handle)); /* deferred; the mapping has it */
    OK(side_retain(side, a.addr, &again));
    OK(side_unmap(side, a.addr, UNIT));
    OK(side_unreserve(side, a.addr, UNIT));
    OK(side_release(side, again));
    vmm_cache_trim(side->cache, 0, UINT64_MAX);
    assert_int_equal(side->driver->taken, 0);
}

/* Another thread has mapped other memory since the driver answered: the handle is not this memory's. */
CASE(test_retained_too_late)
{
    struct buffer a = take(side, UNIT);

    vmm_cache_retained(side->cache, a.addr, a.handle + 1000);
    give(side, &a);
    assert_int_equal(side->driver->taken, 0); /* it is the driver's from then on */
    a = take(side, UNIT);
    OK(side_unmap(side, a.addr, UNIT)); /* or this thread has given it up */
    vmm_cache_retained(side->cache, a.addr, a.handle);
    assert_int_equal(side->driver->calls[UNMAP], 2);
    OK(side_release(side, a.handle));
    OK(side_unreserve(side, a.addr, UNIT));
    OK(side_reserve(side, UNIT, ALIGN, &a.addr));
    vmm_cache_retained(side->cache, a.addr, 1); /* nothing is there any more */
    OK(side_create(side, UNIT, 1, &a.handle));
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    give(side, &a);
    assert_int_equal(side->driver->taken, UNIT);
}

/* The cache knows the buffer after an unmap that the driver refuses, and keeps it later. */
CASE(test_unmapped_twice)
{
    struct buffer a = take(side, UNIT);

    OK(side_unmap(side, a.addr, UNIT));
    assert_int_equal(side_unmap(side, a.addr, UNIT), BAD);
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    OK(side_access(side, a.addr, UNIT, 0, 3));
    give(side, &a);
    assert_int_equal(side->driver->taken, UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, 0), UNIT);
}

/* Natively these fail. */
CASE(test_given_up)
{
    struct buffer a = take(side, UNIT);
    uint64_t other;

    OK(side_unmap(side, a.addr, UNIT));
    assert_int_equal(side_unmap(side, a.addr, UNIT), BAD);
    assert_int_equal(side_retain(side, a.addr, &other), BAD);
    OK(side_map(side, a.addr, UNIT, 0, a.handle));
    assert_int_equal(side_map(side, a.addr, UNIT, 0, a.handle), BAD);
    assert_int_equal(side_unreserve(side, a.addr, UNIT), BAD);
    a = take(side, UNIT);
    OK(side_release(side, a.handle));
    assert_false(side_is_valid(side, a.handle));
    assert_int_equal(side_release(side, a.handle), BAD);
    OK(side_unmap(side, a.addr, UNIT));
    OK(side_unreserve(side, a.addr, UNIT));
    a = take(side, UNIT);
    OK(side_release(side, a.handle));
    OK(side_reserve(side, UNIT, ALIGN, &other));
    assert_int_equal(side_map(side, other, UNIT, 0, a.handle), BAD);
    OK(side_unreserve(side, other, UNIT));
    OK(side_unmap(side, a.addr, UNIT));
    OK(side_unreserve(side, a.addr, UNIT));
    a = take(side, UNIT);
    give(side, &a);
    assert_int_equal(side_access(side, a.addr, UNIT, 0, 3), BAD);
    a = take(side, UNIT);
    give(side, &a);
    assert_int_equal(side_unmap(side, a.addr, UNIT), BAD);
    assert_int_equal(side_unreserve(side, a.addr, UNIT), BAD);
    a = take(side, UNIT);
    give(side, &a);
    assert_int_equal(side_release(side, a.handle), BAD);
    a = take(side, UNIT);
    give(side, &a);
    assert_false(side_is_mapped(side, a.addr));
    assert_int_equal(side_map(side, a.addr, UNIT, 0, a.handle), BAD);
}

CASE(test_twice_and_in_part)
{
    struct buffer a = take(side, UNIT);
    uint64_t other, large;

    OK(side_reserve(side, UNIT, ALIGN, &other));
    OK(side_map(side, other, UNIT, 0, a.handle));
    OK(side_unmap(side, other, UNIT));
    OK(side_unreserve(side, other, UNIT));
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
    OK(side_reserve(side, 2 * UNIT, ALIGN, &large));
    OK(side_create(side, UNIT, 1, &a.handle));
    OK(side_map(side, large, UNIT, 0, a.handle));
    OK(side_release(side, a.handle));
    assert_int_equal(side->driver->calls[RELEASE], 2);
    OK(side_create(side, 2 * UNIT, 1, &a.handle)); /* in part, from the middle */
    OK(side_reserve(side, UNIT, ALIGN, &other));
    OK(side_map(side, other, UNIT, UNIT, a.handle));
    OK(side_unmap(side, other, UNIT));
    OK(side_release(side, a.handle));
    OK(side_unreserve(side, other, UNIT));
    assert_int_equal(side->driver->taken, UNIT);
    assert_int_equal(vmm_cache_kept(side->cache, VMM_ALL_DEVICES), 0);
}

/* Memory that others may hold is not kept. */
CASE(test_shared)
{
    struct buffer a = take(side, UNIT);

    vmm_cache_forget_handle(side->cache, a.handle);
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
    a = take(side, UNIT);
    vmm_cache_forget_range(side->cache, a.addr + UNIT - 1, 1);
    give(side, &a);
    assert_int_equal(side->driver->taken, 0);
    a = take(side, UNIT);
    OK(side_release(side, a.handle)); /* deferred */
    vmm_cache_forget_range(side->cache, a.addr, UNIT);
    assert_int_equal(side->driver->calls[RELEASE], 3);
    OK(side_unmap(side, a.addr, UNIT));
    assert_int_equal(side->driver->taken, 0);
    OK(side_unreserve(side, a.addr, UNIT));
}

/* Addresses at which the driver has left the memory stay reserved. */
CASE(test_addresses_stay_with_a_mapping_that_stays)
{
    struct buffer a = take(side, UNIT);

    give(side, &a);
    side->driver->refuses = UNMAP;
    side->driver->times = 1;
    vmm_cache_settle_range(side->cache, a.addr, UNIT);
    assert_int_equal(side->driver->calls[UNMAP], 1);
    assert_int_equal(side->driver->calls[UNRESERVE], 0);
}
