/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_life.c - long random lives of segments and communicators, by one thread and by several. What is right is
 * said by nccl_fake.c, which holds NCCL's rules against every call.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences, and lengths: so many steps of each
 * of the lives, and of the threads together; 160000 make a million.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "nccl_fake.h"

#define UNIT     ((size_t)2 << 20)
#define SEGMENTS 64u
#define COMMS    8u
#define DEVICES  2u
#define THREADS  4u
#define QUEUE    64u
#define STEPS    12000u
/* With faults: so many calls fail in each of the ways that they can. */
#define FAIL_PER_MILLE 5u
#define GENERATIONS    4096u

static struct nccl_reg *reg;

static uint64_t env_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 0) : otherwise;
}

static uint64_t next(uint64_t *rng)
{
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    *rng ^= *rng << 17;
    return *rng;
}

static unsigned int below(uint64_t *rng, unsigned int n)
{
    return (unsigned int)(next(rng) >> 32) % n;
}

static uint64_t at(unsigned int n)
{
    return 0x7f0000000000u + n * 2 * UNIT + UNIT; /* in front of each there is room */
}

static void fine(void)
{
    if (*nccl_fake.fault)
        fail_msg("%s", nccl_fake.fault);
}

/* How often each has been given back since it was last there: 1, or 0: not yet. */
static unsigned int released[SEGMENTS * GENERATIONS];

/* The objects of one thread of the program. */
struct life {
    struct kind_of_life {
        bool careful, graphs, faults;
        size_t front;
    } is;
    bool alive[SEGMENTS]; /* in the program's hands */
    /* A segment that does not come back makes room for another one at another address. */
    unsigned int generation[SEGMENTS];
    bool comms[COMMS], hung[COMMS];
    unsigned int groups;
    uint64_t ops, mixed;
    /* Work for the end of the group. */
    struct queued {
        unsigned int comm, registered;
        struct nccl_reg_op op;
        bool old;
    } queue[QUEUE];
    unsigned int queued;
};

/* Collectives first, as NCCL does it. */
static void queue_run(struct life *life, bool careful)
{
    for (int kind = NCCL_REG_COLLECTIVE; kind <= NCCL_REG_POINT_TO_POINT; kind++)
        for (unsigned int i = 0; i < life->queued; i++) {
            const struct queued *queued = &life->queue[i];

            nccl_fake.old = queued->old;
            if ((int)queued->op.kind == kind)
                nccl_fake_op(queued->comm, &queued->op, queued->registered);
        }
    nccl_fake.old = careful;
    life->queued = 0;
}

static unsigned int device_of(unsigned int segment)
{
    return segment % DEVICES;
}

static unsigned int place(const struct life *life, unsigned int segment)
{
    return life->generation[segment] * SEGMENTS + segment;
}

/* A segment that was released, or has never been, may be there again. */
static void segment_step(struct life *life, uint64_t *rng)
{
    const unsigned int i = below(rng, SEGMENTS), n = place(life, i);

    if (life->alive[i]) {
        nccl_fake_finish(); /* whoever gives memory back has waited for the work */
        life->alive[i] = false;
        released[n] = 0;
        assert_int_equal(nccl_reg_segment_remove(reg, at(n), nccl_fake_release, &released[n]), 0);
    } else if (released[n]) {
        assert_int_equal(released[n], 1);
        assert_int_equal(nccl_fake_segment_add(reg, at(n), UNIT, (int)device_of(i)), 0);
        life->alive[i] = true;
    } else if (life->is.faults && below(rng, 4) == 0 && life->generation[i] < GENERATIONS - 1) {
        life->generation[i]++;
    }
}

static void comm_step(struct life *life, uint64_t *rng, bool careful)
{
    const unsigned int i = below(rng, COMMS);
    const struct nccl_reg_comm_info info = {
        .arg = &nccl_fake, .device = (int)(i % DEVICES), .careful = careful, .nonblocking = life->is.faults};
    const bool abort = below(rng, 4) == 0, revoke = life->is.faults && below(rng, 8) == 0;
    int rc;

    if (life->groups)
        return;
    if (!life->comms[i]) {
        nccl_fake_comm_make(i, info.device, true);
        assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(i), &info), 0);
    } else {
        if (revoke)
            nccl_reg_comm_close(reg, nccl_fake_comm(i));
        rc = nccl_reg_comm_remove(reg, nccl_fake_comm(i), !abort);
        /* With faults it may not be ready, or not say so. */
        assert_true(revoke && !abort ? rc == -EPIPE : rc == 0 || (life->is.faults && !abort && rc == -EPIPE));
        nccl_fake_comm_destroy(i, abort || rc || life->hung[i]);
        assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(i)), rc ? 0 : -ENOENT);
    }
    /* A fault that is still to come may be its. */
    life->hung[i] = life->is.faults;
    life->comms[i] = !life->comms[i];
}

static void op_step(struct life *life, uint64_t *rng, bool careful, bool graphs)
{
    const unsigned int i = below(rng, COMMS);
    struct nccl_reg_comm *used;
    struct nccl_reg_op op = {.kind = below(rng, 2), .captured = graphs && below(rng, 64) == 0};
    unsigned int inside = 0, outside = 0;
    int rc;

    if (!life->comms[i] || life->queued == QUEUE)
        return;
    for (unsigned int j = 0; j < NCCL_REG_BUFFERS; j++) {
        const unsigned int segment = below(rng, SEGMENTS);

        if (below(rng, 3) == 0)
            continue;
        op.buffers[j].size = 1 + below(rng, UNIT / 2);
        op.buffers[j].addr = at(place(life, segment)) + below(rng, UNIT / 2);
        if (life->alive[segment] && device_of(segment) == i % DEVICES)
            inside++;
        else
            op.buffers[j].addr = 4096; /* memory that nobody has heard of */
        outside += op.buffers[j].addr == 4096;
    }
    rc = nccl_reg_before_op(reg, nccl_fake_comm(i), &op, &used);
    /* Without faults everything that can be registered is, and what is old is cared for. */
    if (!life->hung[i])
        assert_int_equal(rc & NCCL_REG_MIXED, inside && outside ? NCCL_REG_MIXED : 0);
    if (!graphs && !life->hung[i])
        assert_int_equal(rc & NCCL_REG_UNSAFE, 0);
    /* Where it is said that the job may die, it lives on here. */
    life->queue[life->queued++] = (struct queued){
        .comm = i, .registered = life->hung[i] ? 0 : inside, .op = op, .old = careful && !(rc & NCCL_REG_UNSAFE)};
    if (!life->groups)
        queue_run(life, careful);
    nccl_reg_after_op(used);
    life->ops += inside || outside;
    life->mixed += inside && outside;
}

static void group_step(struct life *life, uint64_t *rng, bool careful)
{
    if (life->groups && below(rng, 2)) {
        if (life->groups == 1)
            queue_run(life, careful);
        nccl_reg_group_end(false);
        life->groups--;
    } else if (life->groups < 3) {
        nccl_reg_group_start();
        life->groups++;
    }
    assert_int_equal(nccl_reg_group_depth(), life->groups);
}

/* The program registers a part of a segment itself, and uses a communicator in other ways. */
static void own_step(struct life *life, uint64_t *rng)
{
    const unsigned int i = below(rng, COMMS), segment = below(rng, SEGMENTS);
    struct nccl_reg_comm *used;

    if (!life->comms[i] || life->groups)
        return;
    nccl_fake_finish();
    nccl_reg_before_call(reg, nccl_fake_comm(i), &used);
    assert_non_null(used);
    nccl_reg_retry_parked(reg, -1); /* while that is under way */
    nccl_reg_after_op(used);
    if (!life->alive[segment] || below(rng, 2))
        return;
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(i), life, at(place(life, segment)), 4096), 0);
    nccl_reg_retry_parked(reg, -1);
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(i), life), 0);
}

/* A context takes a segment with it; its registrations are nobody's any more. */
static void lose_step(struct life *life, uint64_t *rng)
{
    const unsigned int i = below(rng, SEGMENTS);

    if (!life->is.faults || !life->alive[i] || life->groups)
        return;
    nccl_reg_segment_lost(reg, at(place(life, i)), &nccl_fake);
    nccl_fake_forget(at(place(life, i)) - nccl_fake.front, UNIT + nccl_fake.front);
    life->alive[i] = false;
}

static void live(uint64_t seed, struct kind_of_life is)
{
    const bool careful = is.careful, graphs = is.graphs, faults = is.faults;
    const uint64_t steps = env_number("CUPOOL_TEST_OPS", STEPS);
    struct nccl_reg_stats stats;
    struct life life = {.is = is};
    uint64_t rng = seed * 2654435761u + 1, left = 0;

    alarm(600);
    nccl_fake_reset();
    nccl_fake.old = careful;
    nccl_fake.front = is.front;
    nccl_fake.owner = &nccl_fake;
    nccl_fake.rng = seed;
    atomic_store(&nccl_fake.fail_per_mille, faults ? FAIL_PER_MILLE : 0);
    assert_int_equal(nccl_reg_create(&nccl_fake_ops, &reg), 0);
    for (unsigned int i = 0; i < SEGMENTS * GENERATIONS; i++)
        released[i] = 1;
    for (uint64_t i = 0; i < steps; i++) {
        switch (below(&rng, 32)) {
        case 0:
            comm_step(&life, &rng, careful);
            break;
        case 1:
            group_step(&life, &rng, careful);
            break;
        case 2:
            nccl_fake_finish();
            nccl_reg_retry_parked(reg, -1);
            break;
        case 3:
            own_step(&life, &rng);
            lose_step(&life, &rng);
            break;
        case 4:
        case 5:
        case 6:
        case 7:
            segment_step(&life, &rng);
            break;
        default:
            op_step(&life, &rng, careful, graphs);
        }
        fine();
    }
    queue_run(&life, careful);
    while (life.groups) {
        nccl_reg_group_end(false);
        life.groups--;
    }
    for (unsigned int i = 0; i < COMMS; i++)
        if (life.comms[i]) {
            const int rc = nccl_reg_comm_remove(reg, nccl_fake_comm(i), true);

            nccl_fake_comm_destroy(i, rc || life.hung[i]);
            assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(i)), rc ? 0 : -ENOENT);
        }
    nccl_reg_retry_parked(reg, -1);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    for (unsigned int i = 0; i < SEGMENTS * GENERATIONS; i++) {
        assert_true(released[i] <= 1);
        left += !released[i];
    }
    nccl_reg_stats_get(reg, &stats);
    fine();
    assert_int_equal(stats.ops, life.ops);
    assert_int_equal(stats.comms, 0);
    assert_int_equal(stats.parked, 0);
    assert_int_equal(stats.quarantined, left * UNIT);
    assert_int_equal(stats.attached, nccl_fake.made);
    assert_int_equal(stats.detached, nccl_fake.undone);
    assert_int_equal(stats.failed, nccl_fake.failed);
    if (!faults) {
        assert_int_equal(left, 0);
        assert_int_equal(stats.mixed, life.mixed);
        assert_int_equal(stats.failed, 0);
    }
    if (careful)
        assert_true(stats.renewed > 0);
    assert_true(steps < 1000 || (stats.attached > 100 && stats.detached > 100));
    nccl_reg_destroy(reg);
}

static void random_lives(void **state)
{
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1);

    live(seed, (struct kind_of_life){0});
    live(seed + 1, (struct kind_of_life){.careful = true});
    live(seed + 2, (struct kind_of_life){.careful = true, .graphs = true});
    live(seed + 5, (struct kind_of_life){.careful = true, .graphs = true, .front = UNIT});
}

static void random_lives_with_faults(void **state)
{
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1);

    live(seed + 3, (struct kind_of_life){.faults = true});
    live(seed + 4, (struct kind_of_life){.careful = true, .graphs = true, .faults = true, .front = UNIT});
}

/* --- threads --- */

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

static void threads(void **state)
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
    for (unsigned int i = 0; i < THREADS; i++)
        pthread_join(ranks[i], NULL);
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

static void comings_and_goings(void **state)
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
    for (unsigned int i = 0; i < 2; i++)
        pthread_join(others[i], NULL);
    fine();
    nccl_reg_stats_get(reg, &stats);
    assert_int_equal(stats.comms, 0);
    assert_int_equal(stats.attached, lives);
    nccl_reg_destroy(reg);
}

/*
 * Several threads, each with a communicator and segments of its own, as programs are allowed to; and one that aborts
 * whichever it likes at any time, and lets memory go. Everything fails now and then.
 */
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

static void threads_with_faults(void **state)
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
    for (unsigned int i = 0; i < THREADS; i++)
        pthread_join(ranks[i], NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lives),       cmocka_unit_test(random_lives_with_faults), cmocka_unit_test(threads),
        cmocka_unit_test(comings_and_goings), cmocka_unit_test(threads_with_faults),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
