/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_ends.c - communicators that are aborted, revoked or made while threads are in calls; a part of
 * test_nccl_reg. */
#include "nccl_unit.h"
#include "wrapped.h"

static void *settle_thread(void *arg)
{
    nccl_reg_retry_parked(reg, -1);
    return NULL;
}

static void *op_thread(void *arg)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(0), 0);
    struct nccl_reg_comm *used;

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
CASE(aborted_under_calls)
{
    pthread_t thread;

    for (unsigned int i = 0; i < 4; i++)
        segment(i, 0);
    comm_new(0, 0, false);
    atomic_store(&nccl_fake.stuck_in, nccl_fake_comm(0));
    assert_int_equal(pthread_create(&thread, NULL, op_thread, NULL), 0);
    wait_until_stuck();
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ false), 0);
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

static void *unstick(void *arg)
{
    usleep(20000);
    atomic_store(&nccl_fake.stuck, false);
    return arg;
}

/* One that is closed while the segment goes keeps it. */
CASE(closed_under_a_trim)
{
    pthread_t thread;

    segment(0, 0);
    for (unsigned int i = 0; i < 2; i++) {
        comm_new(i, 0, false);
        collective(i, AT(0), 0);
    }
    thread = stuck_trim();
    nccl_reg_comm_close(reg, nccl_fake_comm(1));
    atomic_store(&nccl_fake.stuck, false);
    pthread_join(thread, NULL);
    assert_int_equal(nccl_fake.detaches, 1);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(stats().parked, UNIT);
    nccl_fake_comm_destroy(1, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(1)), 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
}

/* Nor does an operation begin meanwhile, also one for which nothing is left to be done. */
CASE(used_under_a_trim)
{
    pthread_t thread, other;

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
}

/* Revoked: no call, and its memory stays until the end of it. */
CASE(closed)
{
    comm_new(0, 0, false);
    comm_new(1, 0, false);
    segment(0, 0);
    collective(0, AT(0), 0);
    collective(1, AT(0), 0); /* it keeps this, too */
    nccl_reg_comm_close(reg, nccl_fake_comm(0));
    atomic_store(&nccl_fake.comms[0].ready, false);
    segment(1, 0); /* it has none of this */
    nccl_fake_finish();
    remove_segment(0);
    remove_segment(1);
    assert_int_equal(nccl_fake.releases, 1);
    assert_int_equal(stats().parked, UNIT);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ true), -EPIPE);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), 0);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_fake.detaches, 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    /* Here the communicator is not ready when the segment is to go. */
    comm_new(0, 0, false);
    nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
    segment(0, 0);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    atomic_store(&nccl_fake.comms[0].ready, false);
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ true), -EPIPE);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 2);
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
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
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    assert_int_equal(nccl_fake.releases, 4);
}

/* The next calls of malloc, calloc and realloc until one is refused; 0: none is. */
static atomic_uint until_refused;

static bool refused(void)
{
    return atomic_load(&until_refused) && atomic_fetch_sub(&until_refused, 1) == 1;
}

WRAPPED_ALLOCATIONS(refused())

/* Each allocation of host memory is refused once. No rule of NCCL's is broken, and after the next change all is
 * registered. */
CASE(no_host_memory)
{
    unsigned int n = 0;

    do {
        const struct nccl_reg_comm_info info = {.arg = &nccl_fake, .careful = true};
        const struct nccl_reg_op send = op_of(NCCL_REG_POINT_TO_POINT, AT(0), 0);
        int comm, segments[2];

        nccl_reg_destroy(reg);
        nccl_fake_reset();
        nccl_fake.front = UNIT;
        nccl_fake_comm_make(0, 0, true);
        assert_int_equal(nccl_reg_create(&nccl_fake_ops, &reg), 0);
        atomic_store(&until_refused, ++n);
        comm = nccl_reg_comm_add(reg, nccl_fake_comm(0), &info);
        for (unsigned int i = 0; i < 2; i++)
            segments[i] = nccl_fake_segment_add(reg, AT(i), UNIT, 0);
        op_with(0, &send, 0);
        collective(0, 0, 0);
        assert_true(comm == 0 || comm == -ENOMEM);
        n = atomic_exchange(&until_refused, 0) ? 0 : n;
        segment(2, 0);
        if (!comm && !segments[0] && !segments[1])
            assert_int_equal(collective(0, AT(0), AT(1)), 0);
        nccl_fake_finish();
        for (unsigned int i = 0; i < 2; i++)
            assert_int_equal(segments[i] ? segments[i] : nccl_reg_segment_remove(reg, AT(i), nccl_fake_release, NULL),
                             segments[i] ? -ENOMEM : 0);
        assert_int_equal(comm ? 0 : nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), 0);
        nccl_fake_comm_destroy(0, false);
        assert_string_equal(nccl_fake.fault, "");
    } while (n);
}

/* Parked segments of one device stay parked while another's are settled. */
CASE(each_device_settles_alone)
{
    struct nccl_reg_comm *used[2];

    for (unsigned int i = 0; i < 2; i++) {
        comm_new(i, (int)i, false);
        segment(i, (int)i);
        nccl_reg_before_call(reg, nccl_fake_comm(i), &used[i]);
    }
    for (unsigned int i = 0; i < 2; i++)
        remove_segment(i);
    for (unsigned int i = 0; i < 2; i++)
        nccl_reg_after_op(used[i]);
    assert_int_equal(nccl_fake.releases, 0);
    assert_int_equal(nccl_reg_retry_parked(reg, 2), 0);
    assert_int_equal(nccl_reg_retry_parked(reg, 0), UNIT);
    assert_int_equal(nccl_reg_retry_parked(reg, 0), 0);
    assert_int_equal(nccl_reg_retry_parked(reg, 1), UNIT);
}

/* A call that is no operation keeps others from the communicator as well. */
CASE(not_within_a_call)
{
    struct nccl_reg_comm *used;

    comm_new(0, 0, false);
    segment(0, 0);
    nccl_reg_before_call(reg, nccl_fake_comm(0), &used);
    assert_non_null(used);
    assert_int_equal(nccl_fake.attaches, 0);
    remove_segment(0);
    assert_int_equal(nccl_fake.releases, 0);
    nccl_reg_after_op(used);
    assert_int_equal(nccl_reg_retry_parked(reg, -1), UNIT);
    nccl_reg_before_call(reg, nccl_fake_comm(1), &used);
    assert_null(used);
}

/* The answers to questions about a communicator, until it has ended. */
CASE(asked)
{
    comm_new(0, 0, false);
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(0)), 0);
    atomic_store(&nccl_fake.comms[0].ready, false);
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(0)), -EINPROGRESS);
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(1)), -EPIPE);
    nccl_reg_comm_close(reg, nccl_fake_comm(0));
    nccl_fake_comm_destroy(0, true);
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(0)), -EPIPE);
    assert_int_equal(nccl_reg_comm_gone(reg, nccl_fake_comm(0)), 0);
    assert_int_equal(nccl_reg_comm_ask(reg, nccl_fake_comm(0)), -EPIPE);
}

/* Calls on a communicator that was never added, or is there already. */
CASE(unknown)
{
    struct nccl_reg_comm_info info;
    void *comm = nccl_fake_comm(0);

    assert_int_equal(nccl_reg_comm_get(reg, comm, &info), -ENOENT);
    assert_int_equal(nccl_reg_comm_remove(reg, comm, true), -ENOENT);
    assert_int_equal(nccl_reg_comm_remove(reg, comm, false), -ENOENT);
    assert_int_equal(nccl_reg_comm_finalize(reg, comm), -ENOENT);
    assert_int_equal(nccl_reg_comm_gone(reg, comm), -ENOENT);
    assert_int_equal(nccl_reg_comm_ask(reg, comm), -EPIPE);
    assert_int_equal(nccl_reg_user_add(reg, comm, &info, AT(0), UNIT), -ENOENT);
    assert_int_equal(nccl_reg_user_remove(reg, comm, &info), -ENOENT);
    assert_false(nccl_reg_user_known(reg, comm, &info));
    nccl_reg_comm_nonblocking(reg, comm);
    nccl_reg_comm_close(reg, comm);
    nccl_reg_comm_reopen(reg, comm);
    assert_false(nccl_reg_comm_is_open(reg, comm));
    segment(0, 3);
    comm_new(0, 3, false);
    nccl_reg_comm_reopen(reg, comm); /* of one that is not closed */
    assert_true(nccl_reg_comm_is_open(reg, comm));
    assert_int_equal(nccl_reg_comm_gone(reg, comm), -ENOENT);
    assert_int_equal(nccl_reg_user_remove(reg, comm, &info), -ENOENT);
    assert_int_equal(nccl_reg_comm_add(reg, comm, &(struct nccl_reg_comm_info){.device = 5}), 0);
    assert_int_equal(nccl_reg_comm_get(reg, comm, &info), 0);
    assert_int_equal(info.device, 3);
    comm_end(0);
    assert_int_equal(nccl_reg_comm_remove(reg, comm, true), -ENOENT);
}

/* Another device's communicators may be in a call. */
CASE(lost_beside_others)
{
    pthread_t thread;

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
}
