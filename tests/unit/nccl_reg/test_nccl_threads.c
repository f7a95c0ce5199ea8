/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_threads.c - long random lives of segments and communicators, by several threads at once. A part of
 * test_nccl_life, with the settings of that. */

#include "nccl_life.h"

#define THREADS 4u

static atomic_bool stop;

/* A rank of several in one process: a communicator of its own, memory that all communicators register. */
static void *rank(void *arg)
{
    const unsigned int me = (unsigned int)(uintptr_t)arg,
                       steps = (unsigned int)env_number("CUPOOL_TEST_OPS", STEPS) / 10;
    const struct nccl_reg_comm_info info = {.arg = &nccl_fake, .careful = true};
    uint64_t rng = me + 99, addr;
    unsigned int given_back = 1;
    struct nccl_reg_comm *used;

    for (unsigned int i = 0; i < steps && !*nccl_fake.fault; i++) {
        const struct nccl_reg_op op = {.kind = below(&rng, 2), .buffers = {{at(me * 1000), UNIT}}};

        if (i % 100 == 0) {
            nccl_fake_comm_make(me, 0, true);
            nccl_reg_comm_add(reg, nccl_fake_comm(me), &info);
        }
        if (i % 10 == 0 && nccl_fake_segment_add(reg, at(me * 1000), UNIT, 0))
            nccl_fake_say("a segment could not be added");
        if (i % 3 == 0)
            nccl_reg_group_start();
        if (nccl_reg_before_op(reg, nccl_fake_comm(me), &op, &used))
            nccl_fake_say("an operation that is not as it was");
        nccl_fake_op(me, &op, 1);
        nccl_reg_after_op(used);
        if (i % 3 == 0)
            nccl_reg_group_end(false);
        if (i % 10 == 9) {
            given_back = 0;
            addr = at(me * 1000);
            nccl_fake_finish();
            if (nccl_reg_segment_remove(reg, addr, nccl_fake_release, &given_back))
                nccl_fake_say("a segment could not be removed");
            /* Others may be in an operation; then it goes later, by whichever thread. */
            for (bool gone = false; !gone && !*nccl_fake.fault;) {
                nccl_fake_finish();
                nccl_reg_retry_parked(reg, -1);
                pthread_mutex_lock(&nccl_fake.lock);
                gone = given_back == 1;
                pthread_mutex_unlock(&nccl_fake.lock);
            }
        }
        if (i % 100 == 99) {
            nccl_reg_comm_remove(reg, nccl_fake_comm(me), /* may_call: */ true);
            nccl_fake_comm_destroy(me, false);
        }
    }
    return NULL;
}

static void *clock_thread(void *arg)
{
    struct nccl_reg_stats stats;

    while (!atomic_load(&stop)) {
        nccl_reg_retry_parked(reg, -1);
        nccl_reg_stats_get(reg, &stats);
        usleep(50);
    }
    return NULL;
}

UNIT_CASE(threads)
{
    pthread_t ranks[THREADS], other;
    struct nccl_reg_stats stats;

    alarm(600);
    nccl_fake_reset();
    nccl_fake.old = true;
    atomic_store(&stop, false);
    assert_int_equal(nccl_reg_create(&nccl_fake_ops, &reg), 0);
    for (unsigned int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&ranks[i], NULL, rank, (void *)(uintptr_t)i), 0);
    assert_int_equal(pthread_create(&other, NULL, clock_thread, NULL), 0);
    join_all(ranks, THREADS);
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    fine();
    nccl_reg_stats_get(reg, &stats);
    assert_int_equal(stats.ops, THREADS * (env_number("CUPOOL_TEST_OPS", STEPS) / 10));
    assert_int_equal(stats.segments + stats.comms + stats.parked + stats.quarantined, 0);
    nccl_reg_destroy(reg);
}

/* Communicators come and go at one address while others look at them: each begins without what the one before had. */
static void *onlooker(void *arg)
{
    struct nccl_reg_stats stats;

    while (!atomic_load(&stop))
        nccl_reg_stats_get(reg, &stats);
    return NULL;
}

UNIT_CASE(comings_and_goings)
{
    const struct nccl_reg_comm_info info = {.arg = &nccl_fake};
    const struct nccl_reg_op op = {.buffers = {{at(0), UNIT}}};
    const uint64_t lives = env_number("CUPOOL_TEST_OPS", STEPS);
    struct nccl_reg_comm *used;
    struct nccl_reg_stats stats;
    pthread_t others[2];

    alarm(600);
    nccl_fake_reset();
    atomic_store(&stop, false);
    assert_int_equal(nccl_reg_create(&nccl_fake_ops, &reg), 0);
    assert_int_equal(nccl_fake_segment_add(reg, at(0), UNIT, 0), 0);
    for (unsigned int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&others[i], NULL, onlooker, NULL), 0);
    for (uint64_t i = 0; i < lives && !*nccl_fake.fault; i++) {
        nccl_fake_comm_make(0, 0, true);
        assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(0), &info), 0);
        assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used), 0);
        nccl_fake_op(0, &op, 1);
        nccl_reg_after_op(used);
        assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ false), 0);
        nccl_fake_comm_destroy(0, /* aborted: */ true);
    }
    atomic_store(&stop, true);
    join_all(others, 2);
    fine();
    nccl_reg_stats_get(reg, &stats);
    assert_int_equal(stats.comms, 0);
    assert_int_equal(stats.attached, lives);
    nccl_reg_destroy(reg);
}

/* Several threads, each with a communicator and segments of its own, as programs are allowed to; and one that aborts
 * whichever it likes at any time, and lets memory go. Everything fails now and then. */
#define OWN 8u

static struct owner {
    pthread_mutex_t lock; /* guards state; held while the program is in NCCL */
    uint64_t ops;
    enum { DEAD, ALIVE, ENDING } state;
    unsigned int released[OWN], given; /* given: how many segments were to go */
} owners[THREADS];

static bool owner_take(unsigned int who, int from, int to)
{
    bool taken;

    pthread_mutex_lock(&owners[who].lock);
    taken = (int)owners[who].state == from;
    if (taken)
        owners[who].state = to;
    pthread_mutex_unlock(&owners[who].lock);
    return taken;
}

static void owner_end(unsigned int who, bool talk)
{
    bool left = !talk;

    if (!owner_take(who, ALIVE, ENDING))
        return;
    if (talk)
        left = nccl_reg_comm_remove(reg, nccl_fake_comm(who), /* may_call: */ true) == -EPIPE;
    else
        nccl_reg_comm_close(reg, nccl_fake_comm(who));
    pthread_mutex_lock(&owners[who].lock);
    nccl_fake_comm_destroy(who, /* aborted: */ true); /* what failed may be left */
    pthread_mutex_unlock(&owners[who].lock);
    if ((nccl_reg_comm_gone(reg, nccl_fake_comm(who)) == 0) != left)
        nccl_fake_say("a communicator that was closed is not known");
    owner_take(who, ENDING, DEAD);
}

static void owner_begin(unsigned int who, uint64_t *rng)
{
    const struct nccl_reg_comm_info info = {
        .arg = &nccl_fake, .careful = true, .nonblocking = below(rng, 2), .device = (int)(who % DEVICES)};

    if (!owner_take(who, DEAD, ENDING))
        return;
    nccl_fake_comm_make(who, info.device, true);
    if (nccl_reg_comm_add(reg, nccl_fake_comm(who), &info))
        nccl_fake_say("a communicator could not be added");
    owner_take(who, ENDING, ALIVE);
}

static void owner_op(unsigned int who, uint64_t addr, uint64_t *rng)
{
    const struct nccl_reg_op op = {.kind = below(rng, 2), .captured = below(rng, 256) == 0, .buffers = {{addr, UNIT}}};
    struct nccl_reg_comm *used;
    const int rc = nccl_reg_before_op(reg, nccl_fake_comm(who), &op, &used);

    if (rc >= 0)
        owners[who].ops++;
    pthread_mutex_lock(&owners[who].lock);
    if (owners[who].state == ALIVE && rc >= 0 && !(rc & NCCL_REG_UNSAFE))
        nccl_fake_op(who, &op, 0);
    pthread_mutex_unlock(&owners[who].lock);
    nccl_reg_after_op(used);
}

static void *owner_thread(void *arg)
{
    const unsigned int me = (unsigned int)(uintptr_t)arg;
    const uint64_t steps = env_number("CUPOOL_TEST_OPS", STEPS) / THREADS;
    struct owner *own = &owners[me];
    unsigned int generation[OWN] = {0};
    bool alive[OWN] = {false};
    uint64_t rng = me + env_number("CUPOOL_TEST_SEED", 1) * 7919;
    struct nccl_reg_comm *used;

    for (uint64_t i = 0; i < steps && !*nccl_fake.fault; i++) {
        const unsigned int n = below(&rng, OWN);
        const uint64_t addr = at((me * OWN + n) * GENERATIONS + generation[n]);

        owner_begin(me, &rng);
        switch (below(&rng, 16)) {
        case 0:
            if (below(&rng, 8) == 0)
                owner_end(me, /* may_call: */ true);
            break;
        case 1:
            nccl_reg_group_start();
            owner_op(me, addr, &rng);
            nccl_reg_group_end(false);
            break;
        case 2:
            nccl_reg_before_call(reg, nccl_fake_comm(me), &used);
            nccl_reg_after_op(used);
            break;
        case 3:
        case 4:
            if (alive[n]) {
                nccl_fake_finish();
                own->given++;
                /* At the same address another one comes only when this has gone. */
                if (nccl_reg_segment_remove(reg, addr, nccl_fake_release, &own->released[n]))
                    nccl_fake_say("a segment could not be removed");
                generation[n] = (generation[n] + 1) % GENERATIONS;
                alive[n] = false;
            } else {
                alive[n] = nccl_fake_segment_add(reg, addr, UNIT, (int)(me % DEVICES)) == 0;
            }
            break;
        default:
            if (alive[n])
                owner_op(me, addr, &rng);
        }
    }
    for (unsigned int n = 0; n < OWN; n++)
        if (alive[n]) {
            nccl_fake_finish();
            own->given++;
            nccl_reg_segment_remove(reg, at((me * OWN + n) * GENERATIONS + generation[n]), nccl_fake_release,
                                    &own->released[n]);
        }
    owner_end(me, /* may_call: */ true);
    return NULL;
}

static void *abort_thread(void *arg)
{
    struct nccl_reg_stats stats;
    uint64_t rng = 12345;

    while (!atomic_load(&stop)) {
        owner_end(below(&rng, THREADS), /* may_call: */ false);
        nccl_fake_finish();
        nccl_reg_retry_parked(reg, below(&rng, 2) ? -1 : 0);
        nccl_reg_stats_get(reg, &stats);
        usleep(20);
    }
    return NULL;
}

UNIT_CASE(threads_with_faults)
{
    unsigned int given = 0, gone = 0;
    pthread_t ranks[THREADS], other;
    struct nccl_reg_stats stats;
    uint64_t ops = 0;

    alarm(600);
    nccl_fake_reset();
    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    nccl_fake.owner = &nccl_fake;
    atomic_store(&nccl_fake.fail_per_mille, FAIL_PER_MILLE);
    atomic_store(&stop, false);
    assert_int_equal(nccl_reg_create(&nccl_fake_ops, &reg), 0);
    for (unsigned int i = 0; i < THREADS; i++) {
        owners[i] = (struct owner){.state = DEAD};
        pthread_mutex_init(&owners[i].lock, NULL);
    }
    for (unsigned int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&ranks[i], NULL, owner_thread, (void *)(uintptr_t)i), 0);
    assert_int_equal(pthread_create(&other, NULL, abort_thread, NULL), 0);
    join_all(ranks, THREADS);
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    for (unsigned int i = 0; i < THREADS; i++)
        owner_end(i, /* may_call: */ true);
    nccl_reg_retry_parked(reg, -1);
    fine();
    for (unsigned int i = 0; i < THREADS; i++) {
        given += owners[i].given;
        ops += owners[i].ops;
        for (unsigned int n = 0; n < OWN; n++)
            gone += owners[i].released[n];
    }
    nccl_reg_stats_get(reg, &stats);
    assert_int_equal(stats.ops, ops);
    assert_int_equal(stats.comms, 0);
    assert_int_equal(stats.parked, 0);
    assert_int_equal(stats.quarantined, (given - gone) * UNIT);
    assert_int_equal(stats.segments, given - gone);
    assert_int_equal(stats.attached, nccl_fake.made);
    assert_int_equal(stats.detached, nccl_fake.undone);
    assert_int_equal(stats.failed, nccl_fake.failed);
    assert_true(given > 10 && gone > given / 2);
    nccl_reg_destroy(reg);
}
