/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_reg.c - registrations: when they are made, undone, made anew, and when not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "nccl_fake.h"

#define UNIT  ((size_t)2 << 20)
#define AT(n) (0x7f0000000000u + (n)*8 * UNIT)

static struct nccl_reg *reg;

static int setup(void **state)
{
    (void)state;
    alarm(60);
    nccl_fake_reset();
    return nccl_reg_create(&nccl_fake_ops, &reg);
}

static int teardown(void **state)
{
    (void)state;
    if (*nccl_fake.fault)
        fail_msg("%s", nccl_fake.fault);
    nccl_reg_destroy(reg);
    return 0;
}

static void segment(unsigned int n, int device)
{
    assert_int_equal(nccl_fake_segment_add(reg, AT(n), UNIT, device), 0);
}

static void comm_known(unsigned int comm, bool careful)
{
    const struct nccl_reg_comm_info info = {
        .arg = &nccl_fake, .device = nccl_fake.comms[comm].device, .careful = careful};

    assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(comm), &info), 0);
}

static void comm_new(unsigned int comm, int device, bool careful)
{
    nccl_fake_comm_make(comm, device, true);
    comm_known(comm, careful);
}

static void comm_end(unsigned int comm)
{
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(comm), /* talk: */ true), 0);
    nccl_fake_comm_destroy(comm, false);
}

/* An operation on two buffers; 0: there is none. Returns what before said. */
static int op_with(unsigned int comm, const struct nccl_reg_op *op, unsigned int registered)
{
    struct nccl_reg_comm *used;
    const int rc = nccl_reg_before_op(reg, nccl_fake_comm(comm), op, &used);

    nccl_fake_op(comm, op, registered);
    nccl_reg_after_op(used);
    return rc;
}

static struct nccl_reg_op op_of(enum nccl_reg_kind kind, uint64_t from, uint64_t to)
{
    return (struct nccl_reg_op){.kind = kind, .buffers = {{from, from ? 4096 : 0}, {to, to ? 4096 : 0}}};
}

static int collective(unsigned int comm, uint64_t from, uint64_t to)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, from, to);

    return op_with(comm, &op, (from != 0) + (to != 0));
}

static int point_to_point(unsigned int comm, uint64_t at)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, at, 0);

    return op_with(comm, &op, 1);
}

static struct nccl_reg_stats stats(void)
{
    struct nccl_reg_stats now;

    nccl_reg_stats_get(reg, &now);
    return now;
}

static void remove_segment(unsigned int n)
{
    assert_int_equal(nccl_reg_segment_remove(reg, AT(n), nccl_fake_release, NULL), 0);
}

static void early_and_late(void **state)
{
    (void)state;
    segment(0, 0);
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(1, 0);
    assert_int_equal(nccl_fake.attaches, 0); /* not before somebody needs it */
    assert_int_equal(collective(0, AT(0), AT(1)), 0);
    assert_int_equal(nccl_fake.attaches, 2);
    assert_int_equal(nccl_fake_records(1), 0);
    segment(2, 0);
    assert_int_equal(collective(0, AT(2), AT(1)), 0);
    assert_int_equal(collective(1, AT(2), AT(0)), 0);
    assert_int_equal(nccl_fake.attaches, 6);
    for (int i = 0; i < 10; i++)
        assert_int_equal(collective(0, AT(2), AT(1)), 0);
    assert_int_equal(nccl_fake.attaches, 6);
    assert_int_equal(stats().attached, 6);
    assert_int_equal(stats().ops, 13);
    nccl_fake_finish();
    comm_end(0);
    comm_end(1);
    assert_int_equal(stats().ops, 13); /* what is gone has counted, too */
    assert_int_equal(stats().comms, 0);
}

static void each_device_its_own(void **state)
{
    (void)state;
    segment(0, 0);
    segment(1, 1);
    comm_new(0, 0, false);
    comm_new(1, 1, false);
    collective(0, AT(0), 0);
    collective(1, AT(1), 0);
    assert_int_equal(nccl_fake_records(0), 1);
    assert_int_equal(nccl_fake_records(1), 1);
    /* Of another device nobody has to be at rest. */
    nccl_fake_finish();
    nccl_reg_group_start();
    nccl_reg_group_end(false);
    comm_end(0);
    comm_end(1);
}

static void unknown(void **state)
{
    struct nccl_reg_comm *used;
    const struct nccl_reg_op op = {.kind = NCCL_REG_COLLECTIVE};

    (void)state;
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used), -ENOENT);
    assert_null(used);
    assert_int_equal(nccl_reg_comm_get(reg, nccl_fake_comm(0), &(struct nccl_reg_comm_info){0}), -ENOENT);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), -ENOENT);
    assert_int_equal(nccl_reg_segment_remove(reg, AT(0), nccl_fake_release, NULL), -ENOENT);
    segment(0, 0);
    assert_int_equal(nccl_fake_segment_add(reg, AT(0) + UNIT - 1, UNIT, 0), -EEXIST);
    assert_int_equal(nccl_fake_segment_add(reg, AT(0) - UNIT + 1, UNIT, 0), -EEXIST);
    assert_int_equal(nccl_fake_segment_add(reg, AT(0) + UNIT, UNIT, 0), 0);
    assert_int_equal(nccl_reg_segment_remove(reg, AT(0) + 1, nccl_fake_release, NULL), -ENOENT);
    assert_int_equal(nccl_fake.releases, 0);
}

static void a_segment_goes(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(0, 0);
    segment(1, 0);
    collective(0, AT(0), AT(1));
    collective(1, AT(0), AT(1));
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(nccl_fake_records(0), 1);
    assert_int_equal(nccl_fake_records(1), 1);
    assert_int_equal(stats().detached, 2);
    assert_int_equal(stats().segments, 1);
    /* At the same address another one. */
    segment(0, 0);
    assert_int_equal(collective(0, AT(0), AT(1)), 0);
    assert_int_equal(nccl_fake_records(0), 2);
    nccl_fake_finish();
    comm_end(0);
    comm_end(1);
    remove_segment(1); /* nobody has it */
    assert_int_equal(nccl_fake.releases, 2);
}

/* Whether it is the first one or there is nothing left to be done for it. */
static void not_within_an_operation(void **state)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

    (void)state;
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(0, 0);
    for (unsigned int i = 0; i < 3; i++) {
        segment(1, 0);
        collective(1, AT(1), 0);
        if (i == 2)
            collective(0, AT(0), 0);
        nccl_fake_finish();
        assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used), 0);
        /* Not even one that this communicator has not used: they may share connections. */
        remove_segment(1);
        assert_int_equal(nccl_fake.releases, i);
        assert_int_equal(stats().parked, UNIT);
        assert_int_equal(nccl_reg_settle(reg, -1), 0);
        nccl_reg_after_op(used);
        assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
        assert_int_equal(nccl_fake.releases, i + 1);
        assert_int_equal(stats().parked, 0);
    }
    comm_end(0);
    comm_end(1);
}

static void not_within_a_group(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    segment(1, 0);
    nccl_reg_group_start();
    remove_segment(1); /* although nothing has used it yet */
    assert_int_equal(nccl_fake.releases, 0);
    nccl_reg_group_start();
    collective(0, AT(0), 0);
    nccl_reg_group_end(false);
    assert_int_equal(nccl_reg_group_depth(), 1);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    nccl_reg_group_end(false);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    nccl_reg_group_end(false); /* one that was never begun */
    assert_int_equal(nccl_reg_group_depth(), 0);
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 2);
    comm_end(0);
}

/* What another thread's group has used does not go. */
static void *in_a_group(void *arg)
{
    pthread_barrier_t *barrier = arg;

    nccl_reg_group_start();
    collective(0, AT(0), 0);
    pthread_barrier_wait(barrier);
    pthread_barrier_wait(barrier);
    nccl_reg_group_end(false);
    return NULL;
}

static void not_within_the_group_of_another(void **state)
{
    pthread_barrier_t barrier;
    pthread_t thread;

    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    pthread_barrier_init(&barrier, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, in_a_group, &barrier), 0);
    pthread_barrier_wait(&barrier);
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 0);
    pthread_barrier_wait(&barrier);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    comm_end(0);
}

static void a_communicator_goes(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    comm_end(0); /* waits for the work */
    assert_int_equal(nccl_fake.waits, 1);
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &(struct nccl_reg_op){0}, &(struct nccl_reg_comm *){0}),
                     -ENOENT);
    /* Another one at its address starts anew. */
    comm_new(0, 0, false);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake_records(0), 1);
    /* Aborted: no call. */
    nccl_fake.attaches = nccl_fake.detaches = nccl_fake.waits = 0;
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* talk: */ false), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_fake.attaches + nccl_fake.detaches + nccl_fake.waits, 0);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 1);
}

static void a_registration_fails(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    segment(1, 0);
    nccl_fake.attach_fails = 1;
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), 1}, {AT(1), 1}}}, 1), NCCL_REG_MIXED);
    for (int i = 0; i < 3; i++)
        op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), 1}}}, 0);
    assert_int_equal(nccl_fake.attaches, 2); /* not again */
    assert_int_equal(stats().failed, 1);
    assert_int_equal(stats().outside, 3);
    segment(2, 0);
    nccl_fake.attach_null = 1;
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(2), 1}}}, 0), 0);
    assert_int_equal(stats().failed, 1);
    nccl_fake_finish();
    for (unsigned int i = 0; i < 3; i++)
        remove_segment(i);
    assert_int_equal(nccl_fake.releases, 3);
    assert_int_equal(nccl_fake.detaches, 1);
    comm_end(0);
}

static void a_deregistration_fails(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    collective(1, AT(0), 0);
    nccl_fake_finish();
    nccl_fake.detach_fails = 1;
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(nccl_fake.detaches, 2); /* the other one is undone all the same */
    assert_int_equal(stats().quarantined, UNIT);
    assert_int_equal(stats().parked, 0);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    /* The same at the end of a communicator. */
    segment(1, 0);
    collective(1, AT(1), 0);
    nccl_fake.detach_fails = 1;
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(1), true), 0);
    nccl_fake_comm_destroy(1, true);
    remove_segment(1);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(stats().quarantined, 2 * UNIT);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), false), 0);
    nccl_fake_comm_destroy(0, true);
}

static void kinds(void **state)
{
    (void)state;
    nccl_fake.old = true;
    comm_new(0, 0, true);
    segment(0, 0);
    segment(1, 0);
    assert_int_equal(point_to_point(0, AT(0)), 0);
    assert_int_equal(nccl_fake.waits, 0);
    assert_int_equal(collective(0, AT(0) + 4096, AT(1)), 0); /* other blocks of the same segment */
    assert_int_equal(stats().renewed, 1);                    /* the second one has served nothing before */
    assert_int_equal(nccl_fake.waits, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(point_to_point(0, AT(0)), 0);
        assert_int_equal(point_to_point(0, AT(1)), 0);
        assert_int_equal(collective(0, AT(0), AT(1)), 0);
    }
    assert_int_equal(stats().renewed, 1); /* once and for all */
    assert_int_equal(stats().unsafe, 0);
    comm_end(0);
}

/* At the end of a group collectives come first. What an earlier group has done counts. */
static void kinds_in_a_group(void **state)
{
    const struct nccl_reg_op both[] = {op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0), op_of(NCCL_REG_COLLECTIVE, AT(0), 0)};
    struct nccl_reg_comm *used;

    (void)state;
    nccl_fake.old = true;
    comm_new(0, 0, true);
    segment(0, 0);
    segment(1, 0);
    nccl_reg_group_start();
    nccl_reg_group_start();
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &both[0], &used), 0);
    nccl_reg_group_end(false);
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &both[1], &used), 0);
    nccl_fake_op(0, &both[1], 1);
    nccl_fake_op(0, &both[0], 1);
    nccl_reg_group_end(false);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(stats().renewed, 0);
    for (int i = 0; i < 2; i++) {
        nccl_reg_group_start();
        if (i == 0)
            assert_int_equal(point_to_point(0, AT(1)), 0);
        else
            assert_int_equal(collective(0, AT(1), 0), 0);
        nccl_reg_group_end(false);
    }
    assert_int_equal(stats().renewed, 1);
    comm_end(0);
}

static void kinds_without_care(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    point_to_point(0, AT(0));
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(stats().renewed, 0);
    assert_int_equal(nccl_fake.waits, 0);
    comm_end(0);
}

static void kinds_that_cannot_be_cared_for(void **state)
{
    struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);

    (void)state;
    comm_new(0, 0, true);
    segment(0, 0);
    point_to_point(0, AT(0));
    atomic_store(&nccl_fake.wait_rc, -EBUSY); /* a capture is under way */
    assert_int_equal(op_with(0, &op, 1), NCCL_REG_UNSAFE);
    atomic_store(&nccl_fake.wait_rc, 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), NCCL_REG_UNSAFE);
    op.captured = false;
    assert_int_equal(op_with(0, &op, 1), NCCL_REG_UNSAFE); /* a graph may happen again */
    assert_int_equal(stats().unsafe, 3);
    assert_int_equal(nccl_fake.detaches, 0);
    /* The program has registered it itself, so that ours is no registration of its own. */
    segment(1, 0);
    point_to_point(0, AT(1));
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), &op, AT(1) + 4096, 512), 0);
    op.buffers[0].addr = AT(1);
    assert_int_equal(op_with(0, &op, 1), NCCL_REG_UNSAFE);
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), &op), 0);
    assert_int_equal(op_with(0, &op, 1), 0);
    /* One that cannot be undone serves no collective under a new name. */
    segment(2, 0);
    point_to_point(0, AT(2));
    nccl_fake.detach_fails = 1;
    op.buffers[0].addr = AT(2);
    assert_int_equal(op_with(0, &op, 1), NCCL_REG_UNSAFE);
    nccl_fake_finish();
    remove_segment(2);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), 0);
    nccl_fake_comm_destroy(0, true);
}

/* With memory in front nobody waits, and what is in use stays as it is. */
static void kinds_with_a_front(void **state)
{
    struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, AT(3), 0);

    (void)state;
    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    for (unsigned int i = 0; i < 4; i++)
        segment(i, 0);
    point_to_point(0, AT(0));
    assert_int_equal(collective(0, AT(0) + 4096, AT(1)), 0);
    assert_int_equal(nccl_fake.waits + nccl_fake.detaches, 0);
    assert_int_equal(nccl_fake_records(0), 5);
    for (int i = 0; i < 3; i++) {
        point_to_point(0, AT(0));
        point_to_point(0, AT(1));
        assert_int_equal(collective(0, AT(0), AT(1)), 0);
    }
    assert_int_equal(stats().renewed, 1);
    /* The program's own registration, and a graph, are in nobody's way. */
    point_to_point(0, AT(2));
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), &op, AT(2), 512), 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(stats().renewed, 2); /* in its place NCCL would take one of its own, for the graph alone */
    op = op_of(NCCL_REG_COLLECTIVE, AT(2), 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(collective(0, AT(2), 0), 0);
    /* Both go. */
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.detaches, 2);
    assert_int_equal(nccl_fake.releases, 1);
    comm_end(0);
    assert_int_equal(stats().attached, stats().detached);
}

/* The second one is refused, once; the first one stays and is waited for. */
static void a_front_that_is_refused(void **state)
{
    (void)state;
    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    segment(0, 0);
    point_to_point(0, AT(0));
    nccl_fake.attach_fails = 1;
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake.attaches, 3);
    assert_int_equal(nccl_fake.waits, 1);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake.attaches, 3);
    comm_end(0);
}

/* Without a front: there is none any more, and the operation that asked for it knows. */
static void a_renewal_that_is_refused(void **state)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);

    (void)state;
    comm_new(0, 0, true);
    segment(0, 0);
    point_to_point(0, AT(0));
    nccl_fake_finish();
    nccl_fake.attach_fails = 1;
    for (unsigned int i = 1; i < 4; i++) {
        assert_int_equal(op_with(0, &op, 0), 0);
        assert_int_equal(stats().outside, i);
    }
    assert_int_equal(stats().failed, 1);
    comm_end(0);
}

/* What peers do not map needs no care. */
static void plain_memory(void **state)
{
    struct nccl_reg_comm_info info = {.arg = &nccl_fake, .careful = true};

    (void)state;
    comm_new(0, 0, true);
    nccl_fake_comm_make(1, 0, true);
    info.maps_plain = true;
    assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(1), &info), 0);
    assert_int_equal(
        nccl_reg_segment_add(reg, &(struct nccl_reg_segment_info){.addr = AT(0), .size = UNIT, .plain = true}), 0);
    for (unsigned int i = 0; i < 2; i++) {
        point_to_point(i, AT(0));
        assert_int_equal(collective(i, AT(0), 0), 0);
        assert_int_equal(stats().renewed, i);
        assert_int_equal(nccl_fake.waits, i);
    }
    comm_end(0);
    comm_end(1);
}

static void *settle_thread(void *arg)
{
    (void)arg;
    nccl_reg_settle(reg, -1);
    return NULL;
}

static void *op_thread(void *arg)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

    (void)arg;
    nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used);
    nccl_reg_after_op(used);
    return NULL;
}

static void wait_until_stuck(void)
{
    while (!atomic_load(&nccl_fake.stuck))
        usleep(100);
}

/* It is not waited for, and the thread that comes out of its call makes no other one. */
static void aborted_under_calls(void **state)
{
    pthread_t thread;

    (void)state;
    for (unsigned int i = 0; i < 4; i++)
        segment(i, 0);
    comm_new(0, 0, false);
    atomic_store(&nccl_fake.stuck_in, nccl_fake_comm(0));
    assert_int_equal(pthread_create(&thread, NULL, op_thread, NULL), 0);
    wait_until_stuck();
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* talk: */ false), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), -ENOENT);
    /* Memory need not wait for the thread, either. */
    remove_segment(3);
    assert_int_equal(nccl_fake.releases, 1);
    atomic_store(&nccl_fake.stuck, false);
    pthread_join(thread, NULL);
    assert_int_equal(nccl_fake.attaches, 1);
    assert_int_equal(stats().comms, 0);
    assert_int_equal(stats().attached, 1);
    /* Its entry serves another one. */
    comm_new(0, 0, false);
    assert_int_equal(collective(0, AT(0), AT(1)), 0);
    comm_end(0);
}

/* A thread that lets segment 0 go, and is stuck in undoing its registration with communicator 0. */
static pthread_t stuck_trim(void)
{
    pthread_t thread;

    nccl_fake_finish();
    nccl_reg_group_start();
    remove_segment(0);
    nccl_reg_group_end(false);
    atomic_store(&nccl_fake.stuck_in, nccl_fake_comm(0));
    assert_int_equal(pthread_create(&thread, NULL, settle_thread, NULL), 0);
    wait_until_stuck();
    return thread;
}

/* The same while a segment goes: the other communicator's registration is undone, and the memory free. */
static void aborted_under_a_trim(void **state)
{
    pthread_t thread;

    (void)state;
    segment(0, 0);
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    collective(0, AT(0), 0);
    collective(1, AT(0), 0);
    thread = stuck_trim();
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(1), /* talk: */ false), 0);
    nccl_fake_comm_destroy(1, true);
    atomic_store(&nccl_fake.stuck, false);
    pthread_join(thread, NULL);
    assert_int_equal(nccl_fake.detaches, 1);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(stats().comms, 1);
    comm_end(0);
}

static void *unstick(void *arg)
{
    usleep(20000);
    atomic_store(&nccl_fake.stuck, false);
    return arg;
}

/* One that comes while a segment goes may share connections with those that rest for that: it begins afterwards. */
static void added_under_a_trim(void **state)
{
    const struct nccl_reg_comm_info info = {.arg = &nccl_fake};
    pthread_t thread, other;

    (void)state;
    segment(0, 0);
    comm_new(0, 0, false);
    collective(0, AT(0), 0);
    thread = stuck_trim();
    assert_int_equal(pthread_create(&other, NULL, unstick, NULL), 0);
    nccl_fake_comm_make(1, 0, true);
    assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(1), &info), 0);
    assert_false(atomic_load(&nccl_fake.stuck));
    pthread_join(other, NULL);
    pthread_join(thread, NULL);
    comm_end(1);
    comm_end(0);
}

/* Nor does an operation begin meanwhile, also one for which nothing is left to be done. */
static void used_under_a_trim(void **state)
{
    pthread_t thread, other;

    (void)state;
    for (unsigned int i = 0; i < 2; i++) {
        segment(i, 0);
        comm_new(i, 0, false);
        collective(i, AT(i), 0);
        collective(i, AT(i), 0);
    }
    thread = stuck_trim();
    assert_int_equal(pthread_create(&other, NULL, unstick, NULL), 0);
    assert_int_equal(collective(1, AT(1), 0), 0);
    assert_false(atomic_load(&nccl_fake.stuck));
    pthread_join(other, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(nccl_fake.releases, 1);
    nccl_fake_finish();
    comm_end(1);
    comm_end(0);
}

/* Revoked: no call, and its memory stays until the end of it. */
static void closed(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_reg_comm_close(reg, nccl_fake_comm(0));
    atomic_store(&nccl_fake.comms[0].ready, false);
    segment(1, 0); /* it has none of this */
    nccl_fake_finish();
    remove_segment(0);
    remove_segment(1);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(stats().parked, UNIT);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* talk: */ true), -EPIPE);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_fake.detaches, 0);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    /* The same for one that is not ready when it is to go. */
    comm_new(0, 0, false);
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    atomic_store(&nccl_fake.comms[0].ready, false);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* talk: */ true), -EPIPE);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 2);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    /* Aborted: the same until it is over. What has its address by then is another one. */
    comm_new(0, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), -ENOENT);
    nccl_reg_comm_close(reg, nccl_fake_comm(0));
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 3);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    comm_new(0, 0, false);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), -ENOENT);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    assert_int_equal(nccl_fake.releases, 4);
    comm_end(0);
    comm_end(1);
}

/* A call that is no operation keeps others from the communicator as well. */
static void not_within_a_call(void **state)
{
    struct nccl_reg_comm *used;

    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    nccl_reg_before_call(reg, nccl_fake_comm(0), &used);
    assert_non_null(used);
    assert_int_equal(nccl_fake.attaches, 0);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 0);
    nccl_reg_after_op(used);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    nccl_reg_before_call(reg, nccl_fake_comm(1), &used);
    assert_null(used);
    comm_end(0);
}

/* Another device's communicators may be in a call. */
static void lost_beside_others(void **state)
{
    pthread_t thread;

    (void)state;
    segment(0, 0);
    segment(1, 1);
    comm_new(0, 0, false);
    atomic_store(&nccl_fake.stuck_in, nccl_fake_comm(0));
    assert_int_equal(pthread_create(&thread, NULL, op_thread, NULL), 0);
    wait_until_stuck();
    nccl_reg_segment_lost(reg, AT(1), NULL);
    assert_int_equal(stats().segments, 1);
    atomic_store(&nccl_fake.stuck, false);
    pthread_join(thread, NULL);
    comm_end(0);
}

static void graphs(void **state)
{
    struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);

    (void)state;
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(0, 0);
    segment(1, 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    collective(0, AT(1), 0);
    collective(1, AT(0), 0);
    nccl_fake_finish();
    remove_segment(0);
    remove_segment(1);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    comm_end(1);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    comm_end(0);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    assert_int_equal(nccl_fake.releases, 2);
}

/* No graph that uses it runs after the program has ended it, but until then its registration stays as it is. */
static void graphs_of_own_memory(void **state)
{
    const struct nccl_reg_segment_info info = {.addr = AT(0), .size = UNIT, .own = true};
    struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0);

    (void)state;
    comm_new(0, 0, true);
    assert_int_equal(nccl_reg_segment_add(reg, &info), 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(collective(0, AT(0), 0), NCCL_REG_UNSAFE);
    assert_int_equal(nccl_fake.detaches, 0);
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.detaches, 1);
    assert_int_equal(nccl_fake.releases, 1);
    comm_end(0);
}

static void users(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), (void *)1, AT(0) - 4096, 8192), 0);
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), (void *)2, AT(0), UNIT), 0);
    remove_segment(0);
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), (void *)1), 0);
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), (void *)1), -ENOENT);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), (void *)2), 0);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    comm_end(0);
}

static void buffers(void **state)
{
    const size_t half = UNIT / 2;

    (void)state;
    comm_new(0, 0, false);
    segment(0, 0);
    assert_int_equal(nccl_fake_segment_add(reg, AT(0) + UNIT, UNIT, 0), 0);
    /* At the very end; behind it; over two segments, which is in neither; in front. */
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), UNIT}, {AT(0) + 2 * UNIT - 1, 1}}}, 2), 0);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), 1}, {AT(0) + 2 * UNIT, 1}}}, 1),
                     NCCL_REG_MIXED);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0) + half, UNIT}, {AT(0), 1}}}, 1),
                     NCCL_REG_MIXED);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0) - 1, 1}, {AT(0), 1}}}, 1), NCCL_REG_MIXED);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), SIZE_MAX}, {AT(0), 1}}}, 1), NCCL_REG_MIXED);
    assert_int_equal(stats().mixed, 4);
    /* One buffer, or none, is no mixture. */
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(5), 1}}}, 0), 0);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(5), 0}}}, 0), 0);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(0), 1}}}, 1), 0);
    assert_int_equal(stats().outside, 1);
    assert_int_equal(stats().mixed, 4);
    comm_end(0);
}

/* What is remembered of a place holds for what lies in it alone, and as long as the registration does. */
static void places(void **state)
{
    (void)state;
    comm_new(0, 0, false);
    assert_int_equal(nccl_fake_segment_add(reg, AT(1), 3 * UNIT, 0), 0);
    assert_int_equal(nccl_fake_segment_add(reg, AT(2), UNIT + 8192, 0), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(collective(0, AT(1), AT(1) + 3 * UNIT - 4096), 0);
        assert_int_equal(collective(0, AT(2), AT(2) + UNIT + 4096), 0);
    }
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(1) + 3 * UNIT - 1, 2}, {AT(1), 1}}}, 1),
                     NCCL_REG_MIXED);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(2) + UNIT + 8192, 1}, {AT(2), 1}}}, 1),
                     NCCL_REG_MIXED);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(1) + UNIT - 1, UNIT}, {AT(2), 1}}}, 2), 0);
    /* Others come before them, and they go. */
    segment(0, 0);
    assert_int_equal(collective(0, AT(1), AT(2)), 0);
    nccl_fake_finish();
    remove_segment(1);
    assert_int_equal(op_with(0, &(struct nccl_reg_op){.buffers = {{AT(1), 1}, {AT(2), 1}}}, 1), NCCL_REG_MIXED);
    assert_int_equal(collective(0, AT(0), AT(2)), 0);
    assert_int_equal(stats().outside, 0);
    comm_end(0);
}

/* Where send/recv comes first, in a graph, all places of the registration are collectives' no more. */
static void places_of_a_graph(void **state)
{
    struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0);
    struct nccl_reg_comm *used;

    (void)state;
    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    assert_int_equal(nccl_fake_segment_add(reg, AT(0), 2 * UNIT, 0), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(collective(0, AT(0), AT(0) + UNIT), 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    /* With NCCL it would not be asked for, but end the job. */
    op = op_of(NCCL_REG_COLLECTIVE, AT(0) + UNIT, 0);
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used), NCCL_REG_UNSAFE);
    nccl_reg_after_op(used);
}

static void nonblocking(void **state)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

    (void)state;
    nccl_fake_comm_make(0, 0, false);
    comm_known(0, false);
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
    segment(0, 0);
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used), 0);
    nccl_reg_after_op(used);
    assert_int_equal(nccl_fake.attaches, 0);
    atomic_store(&nccl_fake.comms[0].ready, true);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake.attaches, 1);
    nccl_fake_finish();
    atomic_store(&nccl_fake.comms[0].ready, false); /* at work on its own thread */
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 0);
    atomic_store(&nccl_fake.comms[0].ready, true);
    assert_int_equal(nccl_reg_settle(reg, -1), UNIT);
    /* The end of a group may tell, too. */
    comm_new(1, 0, false);
    nccl_reg_group_start();
    segment(1, 0);
    collective(1, AT(1), 0);
    nccl_reg_group_end(/* goes_on: */ true);
    nccl_fake_finish();
    atomic_store(&nccl_fake.comms[1].ready, false);
    remove_segment(1);
    assert_int_equal(nccl_fake.releases, 1);
    atomic_store(&nccl_fake.comms[1].ready, true);
    comm_end(1);
    atomic_store(&nccl_fake.comms[0].ready, false);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), -EPIPE);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_fake.detaches, 2);
}

/* With its owner: nobody is asked anything, and nothing is given back. */
static void lost(void **state)
{
    static char owner, other;

    (void)state;
    nccl_fake.owner = &owner;
    comm_new(0, 0, false);
    for (unsigned int i = 0; i < 3; i++)
        segment(i, 0);
    nccl_fake.owner = &other;
    segment(3, 0);
    collective(0, AT(0), AT(1));
    nccl_reg_group_start();
    remove_segment(1);
    nccl_reg_group_end(false);
    /* About to go, it is not touched any more. */
    atomic_store(&nccl_fake.going, &owner);
    nccl_fake_finish();
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    nccl_reg_segment_lost(reg, AT(0), &other);
    nccl_reg_segment_lost(reg, AT(4), &owner);
    assert_int_equal(stats().segments, 4);
    nccl_reg_segment_lost(reg, AT(0), &owner);
    assert_int_equal(stats().segments, 3);
    nccl_reg_owner_lost(reg, &owner);
    assert_int_equal(stats().segments, 1);
    assert_int_equal(stats().parked, 0);
    assert_int_equal(nccl_reg_settle(reg, -1), 0);
    assert_int_equal(nccl_fake.detaches, 0);
    assert_int_equal(nccl_fake.releases, 0);
    remove_segment(3);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(atomic_load(&nccl_fake.held), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), false), 0);
    assert_int_equal(nccl_fake.detaches, 1);
}

/* Memory that comes where another was shows that this one is lost; and it is registered, also with who knows the old
 * one. */
static void replaced(void **state)
{
    static char owner;

    (void)state;
    comm_new(0, 0, false);
    segment(5, 0);
    nccl_fake.owner = &owner;
    segment(0, 0);
    segment(1, 0);
    collective(0, AT(0), AT(1));
    assert_int_equal(nccl_fake_segment_add(reg, AT(0), UNIT, 0), -EEXIST);
    nccl_reg_range_lost(reg, AT(0) + UNIT / 2, AT(5) - AT(0));
    assert_int_equal(stats().segments, 1); /* the one that nobody owns */
    nccl_fake_forget(AT(0), UNIT);
    nccl_fake_finish();
    assert_int_equal(nccl_fake_segment_add(reg, AT(0), UNIT, 0), 0);
    nccl_fake.attaches = 0;
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake.attaches, 1);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), false), 0);
}

/* Many of both: no table is too small, and no look-up goes astray. */
static void many(void **state)
{
    (void)state;
    for (unsigned int i = 0; i < 8; i++)
        comm_new(i, 0, false);
    for (unsigned int i = 0; i < 300; i++) {
        segment((i * 7919) % 300, 0);
        if (i % 50 == 0)
            collective(i % 8, AT((i * 7919) % 300), 0);
    }
    for (unsigned int i = 0; i < 8; i++)
        for (unsigned int j = 0; j < 300; j++)
            assert_int_equal(collective(i, AT(j) + UNIT - 4096, AT(299 - j)), 0);
    assert_int_equal(nccl_fake.attaches, 8 * 300);
    nccl_fake_finish();
    for (unsigned int j = 0; j < 300; j += 2)
        remove_segment(j);
    for (unsigned int i = 0; i < 8; i++) {
        for (unsigned int j = 1; j < 300; j += 2)
            assert_int_equal(collective(i, AT(j), 0), 0);
        comm_end(i);
    }
    assert_int_equal(nccl_fake.releases, 150);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(early_and_late),
        TEST(each_device_its_own),
        TEST(unknown),
        TEST(a_segment_goes),
        TEST(not_within_an_operation),
        TEST(not_within_a_group),
        TEST(not_within_the_group_of_another),
        TEST(a_communicator_goes),
        TEST(a_registration_fails),
        TEST(a_deregistration_fails),
        TEST(kinds),
        TEST(kinds_in_a_group),
        TEST(kinds_without_care),
        TEST(kinds_that_cannot_be_cared_for),
        TEST(kinds_with_a_front),
        TEST(a_front_that_is_refused),
        TEST(a_renewal_that_is_refused),
        TEST(plain_memory),
        TEST(aborted_under_calls),
        TEST(aborted_under_a_trim),
        TEST(closed),
        TEST(not_within_a_call),
        TEST(lost_beside_others),
        TEST(graphs),
        TEST(graphs_of_own_memory),
        TEST(users),
        TEST(buffers),
        TEST(places),
        TEST(places_of_a_graph),
        TEST(nonblocking),
        TEST(lost),
        TEST(added_under_a_trim),
        TEST(used_under_a_trim),
        TEST(replaced),
        TEST(many),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
