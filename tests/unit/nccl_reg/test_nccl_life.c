/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_life.c - long random lives of segments and communicators, by one thread; test_nccl_threads.c has those by
 * several.
 *
 * CUPOOL_TEST_SEED and CUPOOL_TEST_OPS in the environment choose other sequences, and lengths: so many steps of each
 * of the lives, and of the threads together; 160000 make a million.
 */
#include "nccl_life.h"

#define SEGMENTS 64u
#define COMMS    8u
#define QUEUE    64u

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

UNIT_CASE(random_lives)
{
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1);

    live(seed, (struct kind_of_life){0});
    live(seed + 1, (struct kind_of_life){.careful = true});
    live(seed + 2, (struct kind_of_life){.careful = true, .graphs = true});
    live(seed + 5, (struct kind_of_life){.careful = true, .graphs = true, .front = UNIT});
}

UNIT_CASE(random_lives_with_faults)
{
    const uint64_t seed = env_number("CUPOOL_TEST_SEED", 1);

    live(seed + 3, (struct kind_of_life){.faults = true});
    live(seed + 4, (struct kind_of_life){.careful = true, .graphs = true, .faults = true, .front = UNIT});
}
