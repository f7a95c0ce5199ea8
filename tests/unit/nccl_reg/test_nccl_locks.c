/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_locks.c - operations that take no lock, because their buffers are prepared; calls whose communicator goes
 * just before they have its lock; and which users keep a segment from going.
 *
 * The linker's --wrap sends pthread_mutex_lock and pthread_mutex_trylock here, so each lock that this thread takes is
 * counted, and a test can have something happen before one.
 */
#include "entries.h" /* first: nccl_unit.h has names of its own */

#include "nccl_unit.h"
#include "wrapped.h"

#include <malloc.h>

static _Thread_local unsigned int locks;
static _Thread_local void (*before_lock)(void);

WRAPPED(int, pthread_mutex_lock, (pthread_mutex_t * lock))
{
    void (*const hook)(void) = before_lock;

    locks++;
    before_lock = NULL;
    if (hook)
        hook();
    return __real_pthread_mutex_lock(lock);
}

static _Thread_local unsigned int tries; /* of trylock until before_try is called; 0: it is not */
static _Thread_local void (*before_try)(void);

WRAPPED(int, pthread_mutex_trylock, (pthread_mutex_t * lock))
{
    if (tries && --tries == 0)
        before_try();
    return __real_pthread_mutex_trylock(lock);
}

/* --- operations without a turn */

/* How many locks an operation takes before it begins. What lies behind it is no buffer of it. */
static unsigned int locks_of(enum nccl_reg_kind kind, uint64_t from, uint64_t to)
{
    const struct {
        struct nccl_reg_op op;
        uint64_t beyond[2];
    } what = {op_of(kind, from, to), {AT(7), 4096}};
    struct nccl_reg_comm *used;

    locks = 0;
    assert_true(nccl_reg_before_op(reg, nccl_fake_comm(0), &what.op, &used) >= 0);
    nccl_reg_after_op(used);
    return locks;
}

CASE(prepared_operation_takes_no_lock)
{
    comm_new(0, 0, false);
    for (unsigned int i = 0; i < 3; i++) {
        segment(i, 0);
        assert_true(locks_of(NCCL_REG_COLLECTIVE, AT(i), AT(0)));
        for (unsigned int kind = NCCL_REG_COLLECTIVE; kind <= NCCL_REG_POINT_TO_POINT; kind++) {
            assert_int_equal(locks_of(kind, AT(i), AT(0)), 0);
            assert_int_equal(locks_of(kind, 0, AT(i) + UNIT - 4096), 0);
        }
    }
    assert_true(locks_of(NCCL_REG_COLLECTIVE, AT(0), AT(5))); /* which nobody knows */
}

/* As many places of one set as it has ways are known at a time, whichever they are, and each by its last record. */
CASE(near_keeps_the_last_places_of_a_set)
{
    uint64_t addrs[LOOKUP_WAYS + 1] = {AT(0)}, addr = AT(0);
    unsigned int last[LOOKUP_WAYS + 1] = {0}, known = 0;
    struct lookup near = {.count = 0};

    lookup_enter(&near, addr, 0, 0);
    for (unsigned int i = 1; i <= LOOKUP_WAYS; i++) {
        do {
            addr += RANGE_SIZE;
        } while (lookup_set_of(&near, addr) != lookup_set_of(&near, AT(0)));
        addrs[i] = addr;
    }
    for (unsigned int step = 0; step < 100; step++) { /* all of them one after the other, then hither and thither */
        const unsigned int at = step < LOOKUP_WAYS ? step : step * step % 29 % LOOKUP_WAYS;

        last[at] = step;
        lookup_enter(&near, addrs[at] + step, step, step % 4);
        for (unsigned int i = 0; i < LOOKUP_WAYS && i <= step; i++) {
            const uint64_t word = lookup_get(&near, addrs[i] + RANGE_SIZE - 1);

            assert_int_equal(LOOKUP_RANGE(word), addrs[i] >> RANGE_SHIFT);
            assert_int_equal(LOOKUP_INDEX(word), last[i]);
            assert_int_equal(word & 3, last[i] % 4);
        }
    }
    lookup_enter(&near, addrs[LOOKUP_WAYS], 1000, 3);
    for (unsigned int i = 0; i <= LOOKUP_WAYS; i++)
        known += lookup_get(&near, addrs[i]) != 0;
    assert_int_equal(known, LOOKUP_WAYS);
    assert_int_equal(LOOKUP_INDEX(lookup_get(&near, addrs[LOOKUP_WAYS])), 1000);
    lookup_clear(&near);
    for (unsigned int i = 0; i <= LOOKUP_WAYS; i++)
        assert_int_equal(lookup_get(&near, addrs[i]), 0);
    lookup_free(&near);
}

/* A cache that is cleared knows no place, in no way of any set. */
CASE(near_is_cleared_everywhere)
{
    struct lookup near = {.count = 0};

    for (uint64_t addr = 0; addr < 64 * LOOKUP_SETS * RANGE_SIZE; addr += RANGE_SIZE)
        lookup_enter(&near, AT(0) + addr, 1, 3);
    for (unsigned int i = 0; i < LOOKUP_SETS * LOOKUP_WAYS; i++)
        assert_true(near.sets[i / LOOKUP_WAYS][i % LOOKUP_WAYS] != 0);
    lookup_clear(&near);
    for (unsigned int i = 0; i < LOOKUP_SETS * LOOKUP_WAYS; i++)
        assert_int_equal(near.sets[i / LOOKUP_WAYS][i % LOOKUP_WAYS], 0);
    lookup_free(&near);
}

/* A send from one place of a registration matters to collectives in its others. */
CASE(each_place_knows_of_a_send)
{
    nccl_fake.old = true;
    comm_new(0, 0, true);
    assert_int_equal(nccl_fake_segment_add(reg, AT(0), 4 * UNIT, 0), 0);
    for (unsigned int i = 0; i < 4; i++)
        assert_int_equal(collective(0, AT(0) + i * UNIT, 0), 0);
    nccl_fake_finish();
    assert_int_equal(point_to_point(0, AT(0) + UNIT), 0);
    assert_int_equal(collective(0, AT(0) + 3 * UNIT, 0), 0); /* the job would die */
    assert_int_equal(stats().renewed, 1);
}

/* --- calls that come too late */

static void goes(void)
{
    nccl_reg_comm_close(reg, nccl_fake_comm(0));
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
}

static int before_op(void *comm)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(1), 0);
    struct nccl_reg_comm *used;
    const int rc = nccl_reg_before_op(reg, comm, &op, &used);

    assert_null(used);
    return rc;
}

static int before_call(void *comm)
{
    struct nccl_reg_comm *used;

    nccl_reg_before_call(reg, comm, &used);
    assert_null(used);
    return -ENOENT;
}

/* clang-format off */
static int ask(void *comm) { return nccl_reg_comm_ask(reg, comm); }
static int user_add(void *comm) { return nccl_reg_user_add(reg, comm, comm, AT(0), UNIT); }
static int user_remove(void *comm) { return nccl_reg_user_remove(reg, comm, comm); }
static int user_known(void *comm) { return nccl_reg_user_known(reg, comm, comm); }
static int leave(void *comm) { return nccl_reg_comm_remove(reg, comm, /* may_call: */ true); }
static int finalize(void *comm) { return nccl_reg_comm_finalize(reg, comm); }
/* clang-format on */

CASE(gone_before_its_turn)
{
    static const struct {
        int (*call)(void *comm);
        int rc;
    } calls[] = {{before_op, -ENOENT},   {before_call, -ENOENT}, {ask, -EPIPE},    {user_add, -ENOENT},
                 {user_remove, -ENOENT}, {user_known, false},    {leave, -ENOENT}, {finalize, -ENOENT}};

    segment(0, 0);
    for (unsigned int i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
        comm_new(0, 0, false);
        assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), nccl_fake_comm(0), AT(3), UNIT), 0);
        before_lock = goes;
        assert_int_equal(calls[i].call(nccl_fake_comm(0)), calls[i].rc);
        assert_null(before_lock);
        assert_int_equal(stats().comms, 0);
        assert_null(atomic_load(&reg->all)->next_all); /* one entry serves them all: nothing uses it for ever */
    }
    assert_int_equal(nccl_fake.attaches, 0);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 1);
}

/* Another thread clears the entry. */
static void cleared(void)
{
    remove_segment(1);
    assert_int_equal(stats().comms, 0);
}

CASE(entry_is_cleared_once)
{
    comm_new(0, 0, false);
    segment(0, 0);
    segment(1, 0);
    before_try = cleared;
    tries = 2; /* the first one is for the call, the second one to clear the entry */
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ false), 0);
    assert_int_equal(tries, 0);
    assert_int_equal(stats().comms, 0);
    nccl_fake_comm_destroy(0, true);
}

/* And a third thread adds a communicator at the same address. */
static void cleared_and_added(void)
{
    cleared();
    nccl_fake_comm_destroy(0, true);
    comm_new(0, 0, false);
}

/* The thread that ends a communicator finds its entry in use for another one, which it leaves alone. */
CASE(added_again_before_the_entry_is_cleared)
{
    struct nccl_reg_comm_info info;

    comm_new(0, 0, false);
    segment(0, 0);
    segment(1, 0);
    before_try = cleared_and_added;
    tries = 2; /* the first one is for the call, the second one to clear the entry */
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ false), 0);
    assert_int_equal(tries, 0);
    assert_int_equal(stats().comms, 1);
    assert_int_equal(nccl_reg_comm_get(reg, nccl_fake_comm(0), &info), 0);
    collective(0, AT(0), 0);
    assert_int_equal(nccl_fake_records(0), 1);
    comm_end(0);
    assert_int_equal(stats().comms, 0);
}

/* A communicator that was finalized is known, makes no call, and says so when it goes. */
CASE(finalized)
{
    struct nccl_reg_comm_info info;

    comm_new(0, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    assert_int_equal(nccl_reg_comm_finalize(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_fake_records(0), 0);
    assert_int_equal(nccl_reg_comm_get(reg, nccl_fake_comm(0), &info), 0);
    assert_false(nccl_reg_comm_is_open(reg, nccl_fake_comm(0)));
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(0)), -EPIPE);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), -EALREADY);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), -ENOENT);
    nccl_fake_comm_destroy(0, false);
}

/* --- what keeps a segment */

/* A registration of the program's own keeps the segments that it touches, until it is undone or its communicator
 * goes. */
CASE(users_keep_what_they_touch)
{
    static const struct {
        int64_t from; /* of the segment */
        size_t size;
        bool keeps;
    } cases[] = {
        {-(int64_t)UNIT, UNIT, false},
        {-(int64_t)UNIT, UNIT + 1, true},
        {0, 1, true},
        {UNIT / 2, 512, true},
        {UNIT - 1, UNIT, true},
        {UNIT, UNIT, false},
        {0, UNIT, true},
    };
    char handle[2];

    for (unsigned int i = 0; i < 2 * sizeof(cases) / sizeof(*cases); i++) {
        const bool keeps = cases[i / 2].keeps;
        const unsigned int before = nccl_fake.releases;

        comm_new(0, 0, false);
        segment(0, 0);
        collective(0, AT(0), 0);
        nccl_fake_finish();
        assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), &handle[0], AT(5), UNIT), 0);
        assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), &handle[1], AT(0) + (uint64_t)cases[i / 2].from,
                                           cases[i / 2].size),
                         0);
        remove_segment(0);
        assert_int_equal(nccl_fake.releases - before, !keeps);
        if (i % 2) /* else its communicator goes first */
            assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), &handle[1]), 0);
        else
            comm_end(0);
        assert_int_equal(nccl_reg_retry_parked(reg, -1), keeps ? UNIT : 0);
        if (i % 2)
            comm_end(0);
    }
    /* The next communicator in this place has none of them. */
    comm_new(0, 0, false);
    segment(5, 0);
    remove_segment(5);
    assert_int_equal(stats().parked, 0);
}

/* A communicator that is closed keeps what it has registered, and not what NCCL has refused it. */
CASE(closed_ones_keep_what_they_have)
{
    for (unsigned int refused = 0; refused < 2; refused++) {
        comm_new(0, 0, false);
        segment(0, 0);
        nccl_fake.attach_fails = refused;
        op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), 1}}}, !refused);
        nccl_fake_finish();
        nccl_reg_comm_close(reg, nccl_fake_comm(0));
        remove_segment(0);
        assert_int_equal(stats().parked, refused ? 0 : UNIT);
        nccl_fake_comm_destroy(0, true);
        assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
        assert_int_equal(nccl_reg_retry_parked(reg, -1), refused ? 0 : UNIT);
    }
    assert_int_equal(nccl_fake.releases, 2);
}

/* For a graph NCCL registers memory by itself, also where our registration was refused or had no effect. */
CASE(graphs_keep_what_has_no_registration)
{
    const struct nccl_reg_op op = {.captured = true, .buffers = {{AT(0), 4096}}};

    for (unsigned int refused = 0; refused < 2; refused++) {
        comm_new(0, 0, false);
        segment(0, 0);
        *(refused ? &nccl_fake.attach_fails : &nccl_fake.attach_null) = 1;
        op_with(0, &op, 0);
        nccl_fake_finish();
        assert_int_equal(nccl_fake_records(0), 0);
        remove_segment(0);
        assert_int_equal(nccl_fake.releases, refused);
        assert_int_equal(stats().parked, UNIT);
        comm_end(0);
        assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    }
}

/* Of several registrations of one segment some are undone and then one is not: the end of the communicator undoes what
 * is left, and nothing twice. */
CASE(what_is_undone_stays_so)
{
    for (unsigned int fails = 1; fails <= 3; fails++) {
        nccl_fake.old = true;
        nccl_fake.front = UNIT;
        comm_new(0, 0, true);
        segment(fails, 0);
        for (unsigned int i = 0; i < 2; i++) {
            point_to_point(0, AT(fails));
            collective(0, AT(fails), 0);
        }
        assert_int_equal(nccl_fake_records(0), 3);
        nccl_fake_finish();
        nccl_fake.detach_fails = fails;
        remove_segment(fails);
        assert_int_equal(nccl_fake_records(0), 4 - fails);
        comm_end(0);
        assert_int_equal(stats().quarantined, fails * UNIT);
    }
    assert_int_equal(nccl_fake.releases, 0);
}

/* A registration that one communicator could not undo is not undone with the others, either, when the segment is to
 * go. */
CASE(what_never_goes_is_left_alone)
{
    for (unsigned int i = 0; i < 2; i++)
        comm_new(i, 0, false);
    segment(0, 0);
    for (unsigned int i = 0; i < 2; i++)
        collective(i, AT(0), 0);
    nccl_fake_finish();
    nccl_fake.detach_fails = 1;
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(1), /* may_call: */ true), 0);
    nccl_fake_comm_destroy(1, true);
    assert_int_equal(nccl_fake.detaches, 1);
    remove_segment(0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    assert_int_equal(nccl_fake.detaches, 1);
    assert_int_equal(stats().quarantined, UNIT);
}

/* A registration that could not be undone is used as it is from then on. */
CASE(what_cannot_be_undone_stays)
{
    comm_new(0, 0, true);
    segment(0, 0);
    nccl_fake.detach_fails = 1;
    for (unsigned int i = 0; i < 3; i++) {
        point_to_point(0, AT(0));
        nccl_fake_finish();
        assert_int_equal(collective(0, AT(0), 0), NCCL_REG_UNSAFE);
        assert_int_equal(nccl_fake.detaches, 1);
    }
}

/* Communicators of one bucket are all known. */
CASE(buckets_hold_many)
{
    const struct nccl_reg_comm_info info = {.arg = &nccl_fake};
    struct nccl_reg_comm_info got;
    char *comms[4] = {(char *)nccl_fake_comm(0)};

    for (unsigned int i = 0; i < 4; i++) {
        while (i && bucket_of(comms[i]) != bucket_of(comms[0]))
            comms[i] += 512;
        assert_int_equal(nccl_reg_comm_add(reg, comms[i], &info), 0);
        for (unsigned int k = 0; k <= i; k++)
            assert_int_equal(nccl_reg_comm_get(reg, comms[k], &got), 0);
        if (i < 3)
            comms[i + 1] = comms[i] + 512;
    }
    for (unsigned int i = 0; i < 4; i++)
        assert_int_equal(nccl_reg_comm_remove(reg, comms[i], /* may_call: */ false), 0);
    assert_int_equal(stats().comms, 0);
}

/* For graphs all of the front is registered, once. */
CASE(graphs_widen_once)
{
    const struct nccl_reg_op op = {.captured = true, .buffers = {{AT(0), 4096}}};

    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    segment(0, 0);
    for (unsigned int i = 0; i < 3; i++)
        assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(nccl_fake_records(0), 2);
}

/* Addresses that lie as communicators and places do come to most buckets and sets. */
CASE(hashes_spread)
{
    unsigned int buckets[BUCKETS] = {0}, used = 0;
    const _Atomic(uint64_t) *sets[LOOKUP_SETS];
    struct lookup near = {.count = 0};

    for (uint64_t i = 0; i < 1024; i++)
        used += !buckets[bucket_of((void *)(uintptr_t)(0x555500001000u + i * 8208))]++;
    assert_in_range(used, BUCKETS / 4 * 3, BUCKETS);
    lookup_enter(&near, AT(0), 0, 0);
    used = 0;
    for (uint64_t i = 0; i < LOOKUP_SETS; i++) {
        bool is_new = true;

        sets[i] = lookup_set_of(&near, AT(0) + i * RANGE_SIZE);
        for (uint64_t k = 0; k < i && is_new; k++)
            is_new = sets[k] != sets[i];
        used += is_new;
    }
    assert_in_range(used, LOOKUP_SETS / 2, LOOKUP_SETS);
    lookup_free(&near);
}

int main(void)
{
    mallopt(M_PERTURB, 0x5a); /* memory from the heap is not empty by chance */
    return cases_run();
}
