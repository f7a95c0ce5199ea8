/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_reg.c - registrations: when they are made and undone, and when not. Operations of different kinds are in
 * test_nccl_kinds.c, communicators that begin or end under calls in test_nccl_ends.c. */
#include "nccl_unit.h"

CASE(early_and_late)
{
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

CASE(unknown)
{
    struct nccl_reg_comm *used;
    const struct nccl_reg_op op = {.kind = NCCL_REG_COLLECTIVE};

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

/* Whether it is the first one or there is nothing left to be done for it. */
CASE(not_within_an_operation)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

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
        assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
        nccl_reg_after_op(used);
        assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
        assert_int_equal(nccl_fake.releases, i + 1);
        assert_int_equal(stats().parked, 0);
    }
}

CASE(not_within_a_group)
{
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
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    nccl_reg_group_end(false);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    nccl_reg_group_end(false); /* one that was never begun */
    assert_int_equal(nccl_reg_group_depth(), 0);
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 2);
}

/* A communicator that ends in a group: what the group is to use of it stays registered, that of others does not. */
CASE(not_before_the_group)
{
    for (unsigned int i = 0; i < 2; i++)
        comm_new(i, 0, false);
    segment(0, 0);
    for (unsigned int i = 0; i < 2; i++)
        collective(i, AT(0), 0);
    nccl_fake_finish();
    nccl_reg_group_start();
    collective(0, AT(0), 0);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ true), -EPIPE);
    assert_int_equal(nccl_fake.detaches, 0);
    comm_end(1);
    nccl_reg_group_end(false);
    nccl_fake_finish();
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 1);
}

CASE(a_communicator_goes)
{
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
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ false), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_fake.attaches + nccl_fake.detaches + nccl_fake.waits, 0);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 1);
}

CASE(a_registration_fails)
{
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
}

CASE(a_deregistration_fails)
{
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
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    /* At the end of a communicator, too, such memory stays. */
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

CASE(users)
{
    comm_new(0, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), (void *)1, AT(0) - 4096, 8192), 0);
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), (void *)2, AT(0), UNIT), 0);
    remove_segment(0);
    assert_true(nccl_reg_user_known(reg, nccl_fake_comm(0), (void *)1));
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), (void *)1), 0);
    assert_false(nccl_reg_user_known(reg, nccl_fake_comm(0), (void *)1));
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), (void *)1), -ENOENT);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    assert_int_equal(nccl_reg_user_remove(reg, nccl_fake_comm(0), (void *)2), 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
}

/* The program asks for the state of a communicator. */
static void poll_with(unsigned int comm, int state)
{
    nccl_reg_poll_end(reg, nccl_fake_comm(comm), nccl_reg_poll_begin(reg, nccl_fake_comm(comm)), state);
}

/* A release does not ask, whichever thread makes it: it goes by what the program has seen. */
CASE(polled)
{
    const struct nccl_reg_op outside = op_of(NCCL_REG_COLLECTIVE, 0x1000, 0);
    const struct nccl_reg_comm_info info = {.arg = &nccl_fake, .nonblocking = true};
    unsigned int begun;

    comm_new(0, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
    remove_segment(0);
    poll_with(1, 0); /* it is not known */
    poll_with(0, -EINPROGRESS);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    poll_with(0, 0);
    poll_with(0, -EIO);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    /* Work begins between the question and the answer. */
    begun = nccl_reg_poll_begin(reg, nccl_fake_comm(0));
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
    nccl_reg_poll_end(reg, nccl_fake_comm(0), begun, 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    begun = nccl_reg_poll_begin(reg, nccl_fake_comm(0));
    nccl_reg_group_start();
    op_with(0, &outside, 0);
    nccl_reg_group_end(/* goes_on: */ true);
    nccl_reg_poll_end(reg, nccl_fake_comm(0), begun, 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    poll_with(0, 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    /* The answer is of another communicator that had this place. */
    begun = nccl_reg_poll_begin(reg, nccl_fake_comm(0));
    comm_end(0);
    nccl_fake_comm_make(0, 0, true);
    assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(0), &info), 0);
    nccl_reg_poll_end(reg, nccl_fake_comm(0), begun, 0);
    segment(0, 0);
    remove_segment(0);
    assert_int_equal(stats().parked, UNIT);
}

CASE(nonblocking)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

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
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0)); /* at work on its own thread */
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    /* The end of a group may tell, too. */
    comm_new(1, 0, false);
    nccl_reg_group_start();
    segment(1, 0);
    collective(1, AT(1), 0);
    nccl_reg_group_end(/* goes_on: */ true);
    nccl_fake_finish();
    remove_segment(1);
    assert_int_equal(nccl_fake.releases, 1);
    comm_end(1);
    atomic_store(&nccl_fake.comms[0].ready, false);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), -EPIPE);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_fake.detaches, 2);
    nccl_fake_comm_destroy(0, true);
}

/* With its owner: nobody is asked anything, and nothing is given back. */
CASE(lost)
{
    static char owner, other;

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
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    nccl_reg_segment_lost(reg, AT(0), &other);
    nccl_reg_segment_lost(reg, AT(4), &owner);
    assert_int_equal(stats().segments, 4);
    nccl_reg_segment_lost(reg, AT(0), &owner);
    assert_int_equal(stats().segments, 3);
    nccl_reg_owner_lost(reg, &owner);
    assert_int_equal(stats().segments, 1);
    assert_int_equal(stats().parked, 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    assert_int_equal(nccl_fake.detaches, 0);
    assert_int_equal(nccl_fake.releases, 0);
    remove_segment(3);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(atomic_load(&nccl_fake.held), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), false), 0);
    assert_int_equal(nccl_fake.detaches, 1);
}

/* Its owner is about to end: no communicator keeps it, or registers it, unless the owner stays. */
CASE(owner_ends)
{
    static char owner;

    nccl_fake.owner = &owner;
    comm_new(0, 0, false);
    segment(0, 0);
    nccl_fake.owner = NULL;
    segment(1, 0);
    collective(0, AT(0), AT(1));
    nccl_fake_finish();
    nccl_reg_owner_ends(reg, &owner);
    assert_int_equal(nccl_fake.detaches, 1);
    assert_int_equal(nccl_fake.waits, 1);
    segment(2, 0);
    assert_int_equal(collective(0, AT(1), AT(2)), 0);
    assert_int_equal(nccl_fake.attaches, 3);
    nccl_reg_owner_stays(reg, &owner);
    assert_int_equal(collective(0, AT(0), AT(2)), 0);
    assert_int_equal(nccl_fake.attaches, 4);
    nccl_fake_finish();
    /* Its work does not end: NCCL keeps what it may use. */
    atomic_store(&nccl_fake.wait_rc, -EBUSY);
    nccl_reg_owner_ends(reg, &owner);
    assert_int_equal(nccl_fake.detaches, 1);
    nccl_reg_owner_stays(reg, &owner);
    atomic_store(&nccl_fake.wait_rc, 0);
    nccl_reg_owner_ends(reg, &owner);
    nccl_reg_owner_lost(reg, &owner);
    assert_int_equal(nccl_fake.detaches, 2);
    assert_int_equal(stats().segments, 2);
    nccl_reg_owner_ends(reg, &owner); /* it has none: nothing to wait for */
    assert_int_equal(nccl_fake.waits, 3);
}

/* A deregistration that has failed is not tried again when the owner of the memory ends. */
CASE(owner_of_quarantined_ends)
{
    static char owner;

    comm_new(0, 0, false);
    nccl_fake.owner = &owner;
    nccl_fake.own = true;
    segment(0, 0);
    nccl_fake.owner = NULL;
    nccl_fake.own = false;
    collective(0, AT(0), 0);
    nccl_fake_finish();
    nccl_fake.detach_fails = 1;
    remove_segment(0);
    assert_int_equal(stats().quarantined, UNIT);
    nccl_reg_owner_ends(reg, &owner);
    assert_int_equal(nccl_fake.detaches, 1);
    nccl_reg_owner_lost(reg, &owner);
    assert_int_equal(stats().quarantined, 0);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), false), 0);
    nccl_fake_comm_destroy(0, true);
}

/* Memory that comes where another was shows that this one is lost; and it is registered, also with who knows the old
 * one. */
CASE(replaced)
{
    static char owner;

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
