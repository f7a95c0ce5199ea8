/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_waits.c - what is waited for in nccl_reg, and for how long: calls of other threads, and the device.
 *
 * The clock is the test's, linked in the place of the system's: it stands still until the test moves it. A wait is seen
 * to have begun by its looks at the clock.
 */
#include "give_way.h"
#include "nccl_reg_state.h"
#include "nccl_unit.h"

#include "still_clock.h"

static void later(uint64_t ns)
{
    atomic_fetch_add(&now, ns);
}

static void much_later(void)
{
    later(5000000000);
}

static void the_call_returns(void)
{
    atomic_store(&nccl_fake.stuck, false);
}

static void *settles(void *arg)
{
    nccl_reg_retry_parked(reg, -1);
    return arg;
}

static void *asks(void *arg)
{
    nccl_reg_comm_ask(reg, nccl_fake_comm(0));
    return arg;
}

static void *operates(void *arg)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, AT(1), 0);
    struct nccl_reg_comm *used;

    nccl_reg_before_op(reg, nccl_fake_comm(0), &op, &used);
    nccl_reg_after_op(used);
    return arg;
}

static void closes(void)
{
    nccl_reg_comm_close(reg, nccl_fake_comm(0));
}

static void aborts(void)
{
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), /* may_call: */ false), 0);
}

static void adds(void)
{
    comm_known(0, false); /* it is known already, and nothing is waited for */
    assert_true(looks < LOOKS);
    nccl_fake_comm_make(1, 0, true);
    comm_known(1, false);
}

/* The call in which another thread is stuck, and the one that waits for it. */
static const struct {
    void *(*stuck)(void *arg);
    void (*waits)(void);
} scenes[] = {{asks, closes},     {asks, aborts},    {operates, closes},
              {operates, aborts}, {settles, closes}, {settles, adds}};

/* The end of a communicator waits for a call on it, and a new one for a segment that goes; neither does for ever. */
CASE(calls_are_waited_for)
{
    for (unsigned int i = 0; i < 2 * sizeof(scenes) / sizeof(*scenes); i++) {
        const bool returns = i % 2;
        pthread_t thread;

        teardown(state);
        setup(state);
        segment(0, 0);
        comm_new(0, 0, false);
        collective(0, AT(0), 0);
        nccl_fake_finish();
        if (scenes[i / 2].stuck == operates)
            segment(1, 0);
        if (scenes[i / 2].stuck == settles) {
            nccl_reg_group_start();
            remove_segment(0);
            nccl_reg_group_end(false);
        }
        atomic_store(&nccl_fake.stuck_in, nccl_fake_comm(0));
        assert_int_equal(pthread_create(&thread, NULL, scenes[i / 2].stuck, NULL), 0);
        while (!atomic_load(&nccl_fake.stuck))
            give_way();
        looks = 0;
        on_wait = returns ? the_call_returns : much_later;
        scenes[i / 2].waits();
        on_wait = NULL;
        if (returns && scenes[i / 2].waits != adds) {
            pthread_mutex_lock(&nccl_fake.lock);
            nccl_fake.comms[0].alive = false; /* what comes from now on is too late */
            pthread_mutex_unlock(&nccl_fake.lock);
        }
        assert_true(looks >= LOOKS);
        assert_int_equal(atomic_load(&nccl_fake.stuck), !returns);
        the_call_returns();
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (scenes[i / 2].waits == adds) {
            comm_end(1);
            comm_end(0);
        } else {
            nccl_fake_comm_destroy(0, true);
            nccl_reg_comm_gone(reg, nccl_fake_comm(0));
        }
        assert_int_equal(stats().comms, 0);
    }
}

/* The program's question does not wait for a call of another thread, which may be stuck. */
CASE(questions_wait_for_nothing)
{
    pthread_t thread;
    unsigned int begun;

    segment(0, 0);
    comm_new(0, 0, false);
    collective(0, AT(0), 0);
    nccl_fake_finish();
    nccl_reg_group_start();
    remove_segment(0);
    nccl_reg_group_end(false);
    atomic_store(&nccl_fake.stuck_in, nccl_fake_comm(0));
    assert_int_equal(pthread_create(&thread, NULL, settles, NULL), 0);
    while (!atomic_load(&nccl_fake.stuck))
        give_way();
    begun = nccl_reg_poll_begin(reg, nccl_fake_comm(0));
    nccl_reg_poll_end(reg, nccl_fake_comm(0), begun, 0);
    assert_true(atomic_load(&nccl_fake.stuck));
    the_call_returns();
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(nccl_fake.releases, 1);
}

/* Statistics wait for the registry, but not for ever: a signal handler may have interrupted the lock's holder. */
CASE(statistics_wait_with_a_limit)
{
    comm_new(0, 0, false);
    pthread_mutex_lock(&reg->lock);
    looks = 0;
    on_wait = much_later;
    assert_int_equal(stats().comms, 1);
    on_wait = NULL;
    assert_int_equal(looks, LOOKS);
    pthread_mutex_unlock(&reg->lock);
    comm_end(0);
}

#define ANEW UINT64_MAX

/* An operation waits five seconds for the device; if that was in vain, none does for ten. A communicator that comes to
 * the place of another knows nothing of its waits. */
CASE(the_device_is_waited_for_now_and_then)
{
    static const struct {
        uint64_t passes; /* ANEW: the communicator ends first, and another one comes */
        int wait_rc;
        uint64_t waits; /* in milliseconds, so long */
        int rc;
    } steps[] = {
        {0, -EBUSY, 5000, NCCL_REG_UNSAFE},
        {0, -EBUSY, 0, NCCL_REG_UNSAFE},
        {9999999999, -EBUSY, 0, NCCL_REG_UNSAFE},
        {1, -EBUSY, 5000, NCCL_REG_UNSAFE},
        {10000000000, -EBUSY, 5000, NCCL_REG_UNSAFE},
        {1000, 0, 0, 0},
        {0, -EBUSY, 5000, NCCL_REG_UNSAFE},
        {10000000000, 0, 5000, 0},
        {0, 0, 5000, 0},
        {0, -EBUSY, 5000, NCCL_REG_UNSAFE},
        {ANEW, -EBUSY, 5000, NCCL_REG_UNSAFE},
        {0, -EBUSY, 0, NCCL_REG_UNSAFE},
    };

    comm_new(0, 0, true);
    segment(0, 0);
    for (unsigned int i = 0; i < sizeof(steps) / sizeof(*steps); i++) {
        uint64_t before;
        unsigned int waits;

        if (steps[i].passes == ANEW) {
            atomic_store(&nccl_fake.wait_rc, 0);
            comm_end(0);
            comm_new(0, 0, true);
        }
        before = nccl_fake.waited_ms;
        waits = nccl_fake.waits;
        point_to_point(0, AT(0));
        nccl_fake_finish();
        later(steps[i].passes == ANEW ? 0 : steps[i].passes);
        atomic_store(&nccl_fake.wait_rc, steps[i].wait_rc);
        assert_int_equal(collective(0, AT(0), 0), steps[i].rc);
        assert_int_equal(nccl_fake.waits - waits, 1);
        assert_int_equal(nccl_fake.waited_ms - before, steps[i].waits);
        nccl_fake_finish();
    }
    atomic_store(&nccl_fake.wait_rc, 0);
}

/* The end of a communicator waits for the device where something has been used, but not where nothing may block. */
CASE(ends_wait_for_what_was_used)
{
    segment(0, 0);
    for (unsigned int i = 0; i < 8; i++) {
        const bool used = i & 1, blocks = i & 2, busy = i & 4;
        const struct nccl_reg_op outside = op_of(NCCL_REG_COLLECTIVE, AT(5), 0);
        const unsigned int waits = nccl_fake.waits;
        const uint64_t ms = nccl_fake.waited_ms;

        comm_new(0, 0, false);
        if (!blocks)
            nccl_reg_comm_nonblocking(reg, nccl_fake_comm(0));
        op_with(0, &outside, 0); /* all is registered */
        if (used)
            collective(0, AT(0), 0);
        nccl_fake_finish();
        atomic_store(&nccl_fake.wait_rc, busy ? -EBUSY : 0);
        assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(0), true), used && busy ? -EPIPE : 0);
        assert_int_equal(nccl_fake.waits - waits, used);
        assert_int_equal(nccl_fake.waited_ms - ms, used && blocks ? 1000 : 0);
        nccl_fake_comm_destroy(0, true);
        nccl_reg_comm_gone(reg, nccl_fake_comm(0));
    }
    atomic_store(&nccl_fake.wait_rc, 0);
}
