/* SPDX-License-Identifier: Apache-2.0 */
/* test_direct_table.c - shim/nccl/direct_table.c alone: what is found at and around each address, compared with a plain
 * list, whatever was added and deleted before. */

#include "cases.h"
#include "nccl/direct_table.h"
#include "seeded.h"

/* Allocations of up to 7 units on a small line of addresses. */
enum { LINE = 2000, UNITS_MAX = 7 };

static struct table table;
static struct entry known[LINE]; /* by address; size 0: none */

/* The model's entry that covers the address; NULL: none. */
static const struct entry *covering(size_t addr)
{
    for (size_t at = addr < UNITS_MAX ? 0 : addr - UNITS_MAX; at <= addr; at++)
        if (addr - at < known[at].size)
            return &known[at];
    return NULL;
}

static const struct entry *first_in(size_t addr, size_t size)
{
    const struct entry *found = NULL;

    for (size_t i = 0; i < size && !found && addr + i < LINE; i++)
        found = covering(addr + i);
    return found;
}

static void same(const struct entry *entry, const struct entry *wanted)
{
    assert_int_equal(entry != NULL, wanted != NULL);
    if (entry)
        assert_memory_equal(entry, wanted, sizeof(*entry));
}

static void check(size_t addr)
{
    const struct entry *before = NULL;
    size_t after = 0;

    for (size_t at = 0; at <= addr; at++) {
        after += known[at].size != 0;
        before = known[at].size ? &known[at] : before;
    }
    assert_int_equal(direct_after(&table, addr), after);
    same(direct_before(&table, addr), before);
    same(direct_at(&table, addr), known[addr].size ? &known[addr] : NULL);
    for (size_t size = 1; size <= 3 * UNITS_MAX; size++)
        same(direct_overlapping(&table, addr, size), first_in(addr, size));
}

static void add(size_t addr, size_t size, enum state state)
{
    const struct entry entry = {.addr = addr, .size = size, .device = (int)(addr % 5), .state = STATE_UNUSED};

    direct_add(&table, &entry);
    direct_set(&table, direct_at(&table, addr), state);
    memset(&known[addr], 0, sizeof(known[addr]));
    known[addr] = entry;
    known[addr].state = state;
}

UNIT_CASE(test_random)
{
    uint64_t rng = env_number("CUPOOL_TEST_SEED", 3);
    size_t deferred = 0, count = 0, most = 0;

    for (uint64_t op = env_number("CUPOOL_TEST_OPS", 6000); op; op--) {
        const size_t addr = next(&rng) % LINE, size = 1 + next(&rng) % UNITS_MAX;
        const enum state to = (enum state)(next(&rng) % 4);

        if (known[addr].size && next(&rng) % 4 == 0) {
            direct_set(&table, direct_at(&table, addr), to);
            known[addr].state = to;
        } else if (known[addr].size) {
            direct_delete(&table, direct_at(&table, addr));
            known[addr].size = 0;
        } else if (addr + size <= LINE && !first_in(addr, size)) {
            add(addr, size, to);
        }
        if (op % 16 == 0)
            check(next(&rng) % LINE);
        most = table.count > most ? table.count : most;
    }
    for (size_t addr = 0; addr < LINE; addr++) {
        check(addr);
        count += known[addr].size != 0;
        deferred += known[addr].size && known[addr].state == STATE_DEFERRED;
    }
    assert_int_equal(table.count, count);
    assert_int_equal(table.deferred, deferred);
    assert_true(most > 64 + 2 * 64); /* it has grown more than once */
    free(table.entries);
}
