/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_life.c - long random lives of segments and communicators, by one thread and by several. What is right is
 * said by nccl_fake.c, which holds NCCL's rules against every call.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences and lengths.
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
#define STEPS    20000u

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
    return 0x7f0000000000u + n * UNIT;
}

static void fine(void)
{
    if (*nccl_fake.fault)
        fail_msg("%s", nccl_fake.fault);
}

/* What the program, one thread of it, has. */
struct life {
    bool alive[SEGMENTS]; /* in the program's hands */
    unsigned int released[SEGMENTS];
    bool comms[COMMS], hung[COMMS];
    unsigned int groups;
    uint64_t ops, mixed;
    /* What happens at the end of the group. */
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

/* A segment that was released, or has never been, may be there again. */
static void segment_step(struct life *life, uint64_t *rng)
{
    const unsigned int i = below(rng, SEGMENTS);

    if (life->alive[i]) {
        nccl_fake_finish(); /* whoever gives memory back has waited for the work */
        life->alive[i] = false;
        life->released[i] = 0;
        assert_int_equal(nccl_reg_segment_remove(reg, at(i), nccl_fake_release, &life->released[i]), 0);
    } else if (life->released[i]) {
        assert_int_equal(life->released[i], 1);
        assert_int_equal(nccl_fake_segment_add(reg, at(i), UNIT, (int)device_of(i)), 0);
        life->alive[i] = true;
    }
}

static void comm_step(struct life *life, uint64_t *rng, bool careful)
{
    const unsigned int i = below(rng, COMMS);
    const struct nccl_reg_comm_info info = {.arg = &nccl_fake, .device = (int)(i % DEVICES), .careful = careful};
    const bool abort = below(rng, 4) == 0;

    if (life->groups)
        return;
    if (!life->comms[i]) {
        nccl_fake_comm_make(i, info.device, true);
        assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(i), &info), 0);
    } else {
        assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(i), !abort), 0);
        nccl_fake_comm_destroy(i, abort || life->hung[i]);
    }
    /* A fault that is still to come may be its. */
    life->hung[i] = nccl_fake.attach_fails || nccl_fake.detach_fails;
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
        op.buffers[j].addr = at(segment) + below(rng, UNIT / 2);
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

static void live(uint64_t seed, bool careful, bool graphs, bool faults)
{
    const uint64_t steps = env_number("CUPOOL_TEST_OPS", STEPS);
    struct nccl_reg_stats stats;
    struct life life = {0};
    uint64_t rng = seed * 2654435761u + 1, left = 0;

    alarm(600);
    nccl_fake_reset();
    nccl_fake.old = careful;
    assert_int_equal(nccl_reg_create(&nccl_fake_ops, &reg), 0);
    for (unsigned int i = 0; i < SEGMENTS; i++)
        life.released[i] = 1;
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
            nccl_reg_settle(reg, -1);
            break;
        case 3:
            if (faults && below(&rng, 32) == 0) {
                *(below(&rng, 2) ? &nccl_fake.attach_fails : &nccl_fake.detach_fails) = 1 + below(&rng, 20);
                for (unsigned int j = 0; j < COMMS; j++)
                    life.hung[j] = true; /* from now on something of it may be missing, or left */
            }
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
            assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(i), true), 0);
            nccl_fake_comm_destroy(i, life.hung[i]);
        }
    nccl_reg_settle(reg, -1);
    for (unsigned int i = 0; i < SEGMENTS; i++)
        left += !life.alive[i] && !life.released[i];
    nccl_reg_stats_get(reg, &stats);
    fine();
    assert_int_equal(stats.ops, life.ops);
    assert_int_equal(stats.comms, 0);
    assert_int_equal(stats.parked, 0);
    assert_int_equal(stats.quarantined, left * UNIT);
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

    (void)state;
    live(seed, /* careful: */ false, /* graphs: */ false, /* faults: */ false);
    live(seed + 1, true, false, false);
    live(seed + 2, true, true, false);
}

static void random_lives_with_faults(void **state)
{
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1);

    (void)state;
    live(seed + 3, false, false, true);
    live(seed + 4, true, true, true);
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
    unsigned int released = 1;
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
            released = 0;
            addr = at(me * 1000);
            nccl_fake_finish();
            if (nccl_reg_segment_remove(reg, addr, nccl_fake_release, &released))
                nccl_fake_say("a segment could not be removed");
            /* Others may be in an operation; then it goes later, by whichever thread. */
            for (bool gone = false; !gone && !*nccl_fake.fault;) {
                nccl_fake_finish();
                nccl_reg_settle(reg, -1);
                pthread_mutex_lock(&nccl_fake.lock);
                gone = released == 1;
                pthread_mutex_unlock(&nccl_fake.lock);
            }
        }
        if (i % 100 == 99) {
            nccl_reg_comm_remove(reg, nccl_fake_comm(me), /* talk: */ true);
            nccl_fake_comm_destroy(me, false);
        }
    }
    return NULL;
}

static void *clock_thread(void *arg)
{
    struct nccl_reg_stats stats;

    (void)arg;
    while (!atomic_load(&stop)) {
        nccl_reg_settle(reg, -1);
        nccl_reg_stats_get(reg, &stats);
        usleep(50);
    }
    return NULL;
}

static void threads(void **state)
{
    pthread_t ranks[THREADS], other;
    struct nccl_reg_stats stats;

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lives),
        cmocka_unit_test(random_lives_with_faults),
        cmocka_unit_test(threads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
