/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_vmm_random.c - long random programs of virtual memory calls, natively and through the cache side by side: every
 * result, what is mapped, who has access and the contents are the same; and threads beside one that takes memory back.
 *
 * Addresses and handles may differ. A call with one that the program has given up is left out where the cache has
 * handed it out again; a driver may do that as well.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences and lengths.
 */
#include "cases.h"

#include "give_way.h"
#include "seeded.h"
#include "vmm_fake.h"

#define SLOTS   12u
#define THREADS 4u

enum { NATIVE, CACHED, SIDES };

/* A range, and a handle, on both sides; both stay after they have been given up. */
struct range {
    uint64_t addr[SIDES];
    size_t size, align;
    bool has;
    int written; /* its contents as the program knows them; 0: it does not */
};
struct memory {
    uint64_t handle[SIDES];
    size_t size;
    unsigned int refs;
    int written;
};

struct pair {
    struct side *sides[SIDES];
    struct range ranges[SLOTS];
    struct memory memory[SLOTS];
    unsigned int mapped[SLOTS]; /* 1 and the memory in this range; 0: none, or unknown */
    uint64_t rng;
    int contents;
};

static unsigned int below(struct pair *p, unsigned int n)
{
    return (unsigned int)(next(&p->rng) % n);
}

/* May the program use this value again, although it has given it up? Only if no other slot has got it. */
static bool range_is_stale(const struct pair *p, unsigned int r)
{
    for (unsigned int i = 0; i < SLOTS; i++)
        if (i != r && p->ranges[i].has && p->ranges[i].addr[CACHED] == p->ranges[r].addr[CACHED])
            return true;
    return !p->ranges[r].size;
}

static bool memory_is_stale(const struct pair *p, unsigned int m)
{
    for (unsigned int i = 0; i < SLOTS; i++)
        if (i != m && p->memory[i].handle[CACHED] == p->memory[m].handle[CACHED] &&
            (p->memory[i].refs || !p->memory[m].refs))
            return true;
    return !p->memory[m].size;
}

/* A value that a slot has given up and another has got: the slot knows it no more. */
static void values_forget(struct pair *p, const struct range *range, const struct memory *memory)
{
    for (unsigned int i = 0; i < SLOTS; i++) {
        if (range && &p->ranges[i] != range && p->ranges[i].addr[CACHED] == range->addr[CACHED])
            p->ranges[i].size = 0;
        if (memory && &p->memory[i] != memory && p->memory[i].handle[CACHED] == memory->handle[CACHED] &&
            !p->memory[i].refs)
            p->memory[i].size = 0;
    }
}

#define BOTH(results, call)                                                                                            \
    do {                                                                                                               \
        for (unsigned int s = 0; s < SIDES; s++)                                                                       \
            (results)[s] = (call);                                                                                     \
        assert_int_equal((results)[NATIVE], (results)[CACHED]);                                                        \
    } while (0)
#define SIDE p->sides[s]

static void do_reserve(struct pair *p, unsigned int r)
{
    struct range *range = &p->ranges[r];
    int rc[SIDES];

    if (range->has)
        return;
    range->size = (1 + below(p, 2)) * UNIT;
    range->align = below(p, 4) ? UNIT : 2 * UNIT;
    BOTH(rc, side_reserve(SIDE, range->size, range->align, &range->addr[s]));
    assert_int_equal(rc[0], 0);
    range->has = true;
    range->written = 0;
    values_forget(p, range, NULL);
    p->mapped[r] = 0;
}

/* A mapping of memory whose slot is taken by other memory stays in the driver, unknown to the program. */
static void do_create(struct pair *p, unsigned int m)
{
    struct memory *memory = &p->memory[m];
    const uint32_t kind = below(p, 6) == 0;
    int rc[SIDES];

    if (memory->refs)
        return;
    memory->size = p->ranges[m].has && below(p, 8) ? p->ranges[m].size : (1 + below(p, 2)) * UNIT;
    BOTH(rc, side_create(SIDE, memory->size, kind, &memory->handle[s]));
    assert_int_equal(rc[0], 0);
    memory->refs = 1;
    memory->written = 0;
    values_forget(p, NULL, memory);
    for (unsigned int r = 0; r < SLOTS; r++)
        if (p->mapped[r] == m + 1)
            p->mapped[r] = 0;
}

static void do_map(struct pair *p, unsigned int r, unsigned int m)
{
    const size_t size = below(p, 8) ? p->ranges[r].size : UNIT, offset = below(p, 8) ? 0 : UNIT;
    int rc[SIDES];

    if (range_is_stale(p, r) || memory_is_stale(p, m))
        return;
    BOTH(rc, side_map(SIDE, p->ranges[r].addr[s], size, offset, p->memory[m].handle[s]));
    if (!rc[0])
        p->mapped[r] = m + 1;
}

static void do_unmap(struct pair *p, unsigned int r)
{
    const size_t size = below(p, 8) ? p->ranges[r].size : UNIT;
    int rc[SIDES];

    if (range_is_stale(p, r))
        return;
    BOTH(rc, side_unmap(SIDE, p->ranges[r].addr[s], size));
    if (!rc[0])
        p->mapped[r] = 0;
}

static void do_access(struct pair *p, unsigned int r)
{
    const uint32_t location = below(p, 3), flags = below(p, 5) ? 3 : 0;
    int rc[SIDES];

    if (!range_is_stale(p, r))
        BOTH(rc, side_access(SIDE, p->ranges[r].addr[s], p->ranges[r].size, location, flags));
}

static void do_release(struct pair *p, unsigned int m)
{
    int rc[SIDES];

    if (memory_is_stale(p, m))
        return;
    BOTH(rc, side_release(SIDE, p->memory[m].handle[s]));
    if (!rc[0])
        p->memory[m].refs--;
}

static void do_unreserve(struct pair *p, unsigned int r)
{
    int rc[SIDES];

    if (range_is_stale(p, r))
        return;
    BOTH(rc, side_unreserve(SIDE, p->ranges[r].addr[s], p->ranges[r].size));
    if (!rc[0])
        p->ranges[r].has = false;
}

static void do_retain(struct pair *p, unsigned int r)
{
    const unsigned int m = p->mapped[r] - 1;
    uint64_t handle[SIDES] = {0};
    int rc[SIDES];

    if (range_is_stale(p, r) || !p->mapped[r] || p->memory[m].refs > 2 || memory_is_stale(p, m))
        return;
    BOTH(rc, side_retain(SIDE, p->ranges[r].addr[s], &handle[s]));
    if (rc[0])
        return;
    for (unsigned int s = 0; s < SIDES; s++)
        assert_int_equal(handle[s], p->memory[m].handle[s]);
    p->memory[m].refs++;
    values_forget(p, NULL, &p->memory[m]);
}

static void do_contents(struct pair *p, unsigned int r)
{
    int *written = p->mapped[r] ? &p->memory[p->mapped[r] - 1].written : NULL, got[SIDES] = {0}, rc[SIDES];

    if (range_is_stale(p, r) || !written)
        return;
    if (*written) {
        BOTH(rc, side_read(SIDE, p->ranges[r].addr[s], &got[s]));
        assert_int_equal(got[NATIVE], *written);
        assert_int_equal(got[CACHED], *written);
    }
    *written = ++p->contents;
    BOTH(rc, side_write(SIDE, p->ranges[r].addr[s], *written));
    assert_int_equal(rc[0], 0);
}

static void do_ask(struct pair *p, unsigned int r, unsigned int m)
{
    const uint32_t location = below(p, 3);
    int rc[SIDES];

    if (!range_is_stale(p, r))
        BOTH(rc, side_get_access(SIDE, p->ranges[r].addr[s], location));
    if (!memory_is_stale(p, m))
        BOTH(rc, side_is_valid(SIDE, p->memory[m].handle[s]));
}

/* A whole cycle, as most programs make it: it takes a buffer and gives it up. */
static void do_cycle(struct pair *p, unsigned int i)
{
    if (p->ranges[i].has || p->memory[i].refs)
        return;
    do_reserve(p, i);
    do_create(p, i);
    if (p->ranges[i].size == p->memory[i].size)
        do_map(p, i, i);
    do_access(p, i);
    do_contents(p, i);
    do_contents(p, i);
}

static void do_end(struct pair *p, unsigned int i)
{
    do_unmap(p, i);
    do_release(p, i);
    do_unreserve(p, i);
}

static void beside(struct pair *p, unsigned int r)
{
    struct side *side = p->sides[CACHED];

    switch (below(p, 6)) {
    case 0:
        vmm_cache_trim(side->cache, VMM_ALL_DEVICES, below(p, 2) ? UINT64_MAX : side->now - 20);
        break;
    case 1:
        vmm_cache_settle_partial(side->cache, side->now - 5);
        break;
    case 2:
        side->captures = !side->captures;
        break;
    case 3:
        if (p->ranges[r].size)
            vmm_cache_forget_range(side->cache, p->ranges[r].addr[CACHED], UNIT);
        break;
    default:
        side->captures = false;
    }
}

static void step(struct pair *p)
{
    const unsigned int r = below(p, SLOTS), m = below(p, 3) ? r : below(p, SLOTS);

    p->sides[CACHED]->now++;
    switch (below(p, 20)) {
    case 0:
        do_reserve(p, r);
        break;
    case 1:
        do_create(p, m);
        break;
    case 2:
    case 3:
        do_map(p, r, m);
        break;
    case 4:
        do_unmap(p, r);
        break;
    case 5:
        do_access(p, r);
        break;
    case 6:
        do_release(p, m);
        break;
    case 7:
        do_unreserve(p, r);
        break;
    case 8:
        do_retain(p, r);
        break;
    case 9:
    case 10:
        do_contents(p, r);
        break;
    case 11:
        do_ask(p, r, m);
        break;
    case 12:
        if (below(p, 5) == 0)
            beside(p, r);
        break;
    case 13:
    case 14:
    case 15:
    case 16:
        do_cycle(p, r);
        break;
    default:
        do_end(p, r);
    }
    assert_int_equal(side_taken(p->sides[NATIVE]), side_taken(p->sides[CACHED]));
}

UNIT_CASE(test_as_natively)
{
    const uint64_t seeds = env_number("CUPOOL_TEST_SEED", 0) ? 1 : 40, ops = env_number("CUPOOL_TEST_OPS", 20000);
    uint64_t hits = 0, settled = 0;
    struct vmm_stats stats;

    for (uint64_t seed = 1; seed <= seeds; seed++) {
        struct pair p = {.rng = env_number("CUPOOL_TEST_SEED", seed * 7919)};

        p.sides[NATIVE] = side_new(false, 0);
        p.sides[CACHED] = side_new(true, 8 * MIB);
        for (uint64_t i = 0; i < ops && p.sides[NATIVE]->driver->range_count < FAKE_MAX - 2 &&
                             p.sides[NATIVE]->driver->memory_count < FAKE_MAX - 2;
             i++)
            step(&p);
        vmm_cache_stats_get(p.sides[CACHED]->cache, &stats);
        hits += stats.hits;
        settled += stats.settled;
        vmm_cache_trim(p.sides[CACHED]->cache, VMM_ALL_DEVICES, UINT64_MAX);
        assert_int_equal(p.sides[NATIVE]->driver->taken, p.sides[CACHED]->driver->taken);
        assert_true(side_free(p.sides[CACHED])); /* the last one first: each counts what was there before */
        assert_true(side_free(p.sides[NATIVE]));
    }
    printf("%llu hits, %llu settled\n", (unsigned long long)hits, (unsigned long long)settled);
    assert_true(hits > 0 && settled > 0);
}

/* --- threads --- */

static struct {
    struct side *side;
    atomic_bool stop, wrong;
} shared;

/* Takes buffers and gives them up; no other thread has one of them meanwhile. */
static void *program(void *arg)
{
    uint64_t rng = 1 + (uintptr_t)arg, addr[4] = {0}, handle[4] = {0};
    struct side *side = shared.side;
    int contents;

    for (int round = 0; round < 800; round++) {
        const unsigned int n = 1 + next(&rng) % 4;
        const size_t size = (1 + next(&rng) % 2) * UNIT;

        for (unsigned int i = 0; i < n; i++) {
            const int mine = (int)(100000 * (uintptr_t)arg) + 4 * round + (int)i;

            if (side_reserve(side, size, UNIT, &addr[i]) || side_create(side, size, 1, &handle[i]) ||
                side_map(side, addr[i], size, 0, handle[i]) || side_access(side, addr[i], size, 0, 3) ||
                side_write(side, addr[i], mine))
                atomic_store(&shared.wrong, true);
        }
        for (unsigned int i = 0; i < n; i++) {
            const int mine = (int)(100000 * (uintptr_t)arg) + 4 * round + (int)i;

            if (side_read(side, addr[i], &contents) || contents != mine || side_unmap(side, addr[i], size))
                atomic_store(&shared.wrong, true);
            give_way_at_times();
            if (side_release(side, handle[i]) ||
                (next(&rng) % 8 ? side_unreserve(side, addr[i], size)
                                : side_reserve(side, UNIT, 1, &handle[i]) || side_unreserve(side, handle[i], UNIT) ||
                                      side_unreserve(side, addr[i], size)))
                atomic_store(&shared.wrong, true);
        }
    }
    return NULL;
}

static void *taker(void *arg)
{
    for (unsigned int i = 0; !atomic_load(&shared.stop); i++) {
        if (i % 64 == 0)
            vmm_cache_trim(shared.side->cache, VMM_ALL_DEVICES, UINT64_MAX);
        vmm_cache_settle_partial(shared.side->cache, UINT64_MAX);
        vmm_cache_wait(shared.side->cache);
    }
    return arg;
}

UNIT_CASE(test_threads)
{
    pthread_t threads[THREADS], beside;

    shared.side = side_new(true, 8 * MIB);
    shared.side->slow = true;
    pthread_create(&beside, NULL, taker, NULL);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, program, (void *)(i + 1)); /* NOLINT(performance-no-int-to-ptr) */
    join_all(threads, THREADS);
    atomic_store(&shared.stop, true);
    pthread_join(beside, NULL);
    vmm_cache_trim(shared.side->cache, VMM_ALL_DEVICES, UINT64_MAX);
    assert_false(atomic_load(&shared.wrong));
    assert_int_equal(shared.side->driver->taken, 0);
    assert_true(side_free(shared.side));
}
