/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_kinds.c - what an operation finds registered, by its kind and for graphs; a part of test_nccl_reg. */
#include "heap.h"
#include "nccl_unit.h"

CASE(kinds)
{
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
    assert_int_equal(stats().renewed, 7); /* for each: nobody says whether NCCL has made use of it for the first one */
    for (int i = 0; i < 3; i++)
        assert_int_equal(collective(0, AT(0), AT(1)), 0);
    assert_int_equal(stats().renewed, 7);
    assert_int_equal(stats().unsafe, 0);
}

/* At the end of a group collectives come first. What an earlier group has done counts. */
CASE(kinds_in_a_group)
{
    const struct nccl_reg_op both[] = {op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0), op_of(NCCL_REG_COLLECTIVE, AT(0), 0)};
    struct nccl_reg_comm *used;

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
    assert_int_equal(stats().renewed, 0);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(stats().renewed, 1);
    for (int i = 0; i < 2; i++) {
        nccl_reg_group_start();
        if (i == 0)
            assert_int_equal(point_to_point(0, AT(1)), 0);
        else
            assert_int_equal(collective(0, AT(1), 0), 0);
        nccl_reg_group_end(false);
    }
    assert_int_equal(stats().renewed, 2);
    /* Operations that the group made before a renewal come after it. */
    point_to_point(0, AT(0));
    nccl_reg_group_start();
    for (int i = 0; i < 2; i++)
        assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &both[i], &used), 0);
    nccl_fake_op(0, &both[1], 1);
    nccl_fake_op(0, &both[0], 1);
    nccl_reg_group_end(false);
    assert_int_equal(stats().renewed, 3);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(stats().renewed, 4);
}

CASE(kinds_that_cannot_be_cared_for)
{
    struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);

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
    nccl_fake_finish();
    assert_int_equal(op_with(0, &op, 1), 0);
    /* One that cannot be undone serves no collective under a new name. */
    segment(2, 0);
    point_to_point(0, AT(2));
    nccl_fake.detach_fails = 1;
    op.buffers[0].addr = AT(2);
    nccl_fake_finish();
    assert_int_equal(op_with(0, &op, 1), NCCL_REG_UNSAFE);
    nccl_fake_finish();
    remove_segment(2);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), 0);
    nccl_fake_comm_destroy(0, true);
}

/* With memory in front nobody waits, and what is in use stays as it is. */
CASE(kinds_with_a_front)
{
    struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, AT(3), 0);

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
    assert_int_equal(stats().renewed, 7);
    assert_int_equal(nccl_fake.waits + nccl_fake.detaches, 0);
    /* The program's own registration, and a graph, are in nobody's way. */
    point_to_point(0, AT(2));
    assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), &op, AT(2), 512), 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(stats().renewed, 8); /* in its place NCCL would take one of its own, for the graph alone */
    op = op_of(NCCL_REG_COLLECTIVE, AT(2), 0);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(collective(0, AT(2), 0), 0);
    nccl_fake.old = false; /* the graph's stays, and the program is told */
    assert_int_equal(collective(0, AT(3), 0), NCCL_REG_UNSAFE);
    nccl_fake.old = true;
    /* All of them go. */
    nccl_fake_finish();
    remove_segment(0);
    assert_int_equal(nccl_fake.detaches, 5);
    assert_int_equal(nccl_fake.releases, 1);
    comm_end(0);
    assert_int_equal(stats().attached, stats().detached);
}

/* A renewal beside work that does not end. The device is not waited for each time; once it was done, it is again. */
CASE(a_front_that_is_used_up_beside_work)
{
    uint64_t first;

    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    segment(0, 0);
    for (int i = 0; i < 16; i++) {
        point_to_point(0, AT(0));
        assert_int_equal(collective(0, AT(0), 0), 0);
    }
    point_to_point(0, AT(0));
    atomic_store(&nccl_fake.wait_rc, -EBUSY);
    nccl_fake.old = false; /* it is used all the same, and the program is told */
    assert_int_equal(collective(0, AT(0), 0), NCCL_REG_UNSAFE);
    first = nccl_fake.waited_ms;
    for (int i = 0; i < 100; i++)
        assert_int_equal(collective(0, AT(0), 0), NCCL_REG_UNSAFE);
    assert_true(first > 0);
    assert_int_equal(nccl_fake.waited_ms, first);
    nccl_fake.old = true;
    atomic_store(&nccl_fake.wait_rc, 0);
    nccl_fake_finish();
    for (int i = 0; i < 17; i++) {
        assert_int_equal(collective(0, AT(0), 0), 0);
        point_to_point(0, AT(0));
    }
    nccl_fake.waited_ms = 0;
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake.waited_ms, first);
}

/* The second one is refused, once; the first one stays and is waited for. */
CASE(a_front_that_is_refused)
{
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
}

/* A communicator that is not ready is not called: the operation may not use what it has. */
CASE(a_front_of_one_that_is_not_ready)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
    segment(0, 0);
    point_to_point(0, AT(0));
    atomic_store(&nccl_fake.comms[0].ready, false);
    assert_int_equal(nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used), NCCL_REG_UNSAFE);
    nccl_reg_after_op(used);
    assert_int_equal(nccl_fake.attaches, 1);
    atomic_store(&nccl_fake.comms[0].ready, true);
    assert_int_equal(collective(0, AT(0), 0), 0);
    assert_int_equal(nccl_fake.attaches, 2);
}

/* Without a front: there is none any more, and the operation that asked for it knows. */
CASE(a_renewal_that_is_refused)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);

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
}

/* The records of a segment's registrations go with it. */
CASE(fronts_leave_nothing_on_the_heap)
{
    size_t before = 0;

    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    for (unsigned int i = 0; i < 100; i++) {
        before = i == 50 ? heap_bytes() : before;
        segment(0, 0);
        point_to_point(0, AT(0));
        assert_int_equal(collective(0, AT(0), 0), 0);
        nccl_fake_finish();
        remove_segment(0);
        assert_int_equal(stats().renewed, i + 1);
        assert_int_equal(stats().segments, 0);
    }
    assert_true(heap_bytes() <= before + 64);
}

/* Nor does a registry that ends with communicators, registrations and the program's own in it. */
CASE(registries_leave_nothing_on_the_heap)
{
    size_t before = 0;

    for (unsigned int i = 0; i < 100; i++) {
        before = i == 50 ? heap_bytes() : before;
        assert_false(nccl_reg_comm_any(reg));
        comm_new(0, 0, true);
        assert_true(nccl_reg_comm_any(reg));
        assert_int_equal(nccl_reg_user_add(reg, nccl_fake_comm(0), &before, AT(1), 512), 0);
        segment(0, 0);
        assert_int_equal(collective(0, AT(0), 0), 0);
        remove_segment(0);
        nccl_reg_destroy(reg);
        (void)setup(NULL);
    }
    assert_true(heap_bytes() <= before + 64);
}

/* Memory that peers do not map needs no care. */
CASE(plain_memory)
{
    struct nccl_reg_comm_info info = {.arg = &nccl_fake, .careful = true};

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
}

/* No graph that uses it runs after the program has ended it, but until then its registration stays as it is. */
CASE(graphs_of_own_memory)
{
    const struct nccl_reg_segment_info info = {.addr = AT(0), .size = UNIT, .own = true};
    struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0);

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
}

CASE(buffers)
{
    const size_t half = UNIT / 2;

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
}

/* The cached lookup of a range holds only for buffers inside it, and as long as the registration does. */
CASE(places)
{
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
}

/* Where send/recv comes first, in a graph, all places of the registration are collectives' no more. */
CASE(places_of_a_graph)
{
    struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0);
    struct nccl_reg_comm *used;

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

/* Whatever has been found before: a graph's operation has a registration of the whole allocation. */
CASE(a_graph_after_others)
{
    struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);

    nccl_fake.old = true;
    nccl_fake.front = UNIT;
    comm_new(0, 0, true);
    segment(0, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(nccl_fake_records(0), 1);
    op.captured = true;
    assert_int_equal(op_with(0, &op, 1), 0);
    assert_int_equal(nccl_fake_records(0), 2);
}
