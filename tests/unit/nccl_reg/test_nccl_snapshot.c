/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nccl_snapshot.c - random programs against what this registry was seen to do: each call of the table with its
 * arguments, each result and each counter, in the order in which they come. They are added up to digests, one for every
 * so many steps, and compared with nccl_snapshot.txt.
 *
 * The test does not tell whether a decision is right; nccl_fake.c with test_nccl_life.c and the other tests do. A
 * change that is meant to decide otherwise fails here, too; look at the other failures, then record.
 *
 * One thread, and a clock that stands still until the program moves it. With MEANWHILE the program goes on inside the
 * table's functions, as another thread would.
 */
#define STEPS 16000u
#define EVERY 4000u /* steps for each digest, which is of all steps so far */

#include "snapshot.h"

#include "nccl_reg.h"
#include "still_clock.h"
#include "wrapped.h"

#define MIB  ((size_t)1 << 20)
#define UNIT (2 * MIB)

#define RESTART  1600u
#define SEGMENTS 24u
#define COMMS    6u
#define DEVICES  2u
#define USERS    8u

/* The state of the program. */
#define CAREFUL     1u  /* communicators are careful */
#define FRONTS      2u  /* segments have fronts */
#define OWNERS      4u  /* and owners, with whom they are lost */
#define GRAPHS      8u  /* operations are captured */
#define FAULTS      16u /* calls fail */
#define NONBLOCKING 32u
#define GROUPS      64u
#define MEANWHILE   128u /* other threads go on inside the table's functions */
#define WIDE        256u /* segments of thousands of ranges: more than the lookup cache holds */
#define NOMEM       512u /* the host's memory runs out now and then */

/* The shape of a program. */
static const struct setting {
    const char *name;
    unsigned int is;
} settings[] = {
    {"plain", 0},
    {"careful", CAREFUL | FRONTS},
    {"careful, no fronts, faults", CAREFUL | FAULTS | GROUPS},
    {"careful, graphs, groups", CAREFUL | FRONTS | GRAPHS | GROUPS},
    {"all", CAREFUL | FRONTS | OWNERS | GRAPHS | FAULTS | NONBLOCKING | GROUPS},
    {"owners, nonblocking", FRONTS | OWNERS | FAULTS | NONBLOCKING},
    {"groups, faults", CAREFUL | FRONTS | OWNERS | FAULTS | GROUPS},
    {"meanwhile", CAREFUL | FRONTS | FAULTS | MEANWHILE},
    {"meanwhile, nonblocking", CAREFUL | GRAPHS | NONBLOCKING | FAULTS | MEANWHILE},
    {"meanwhile, plain", MEANWHILE},
    {"wide", CAREFUL | WIDE},
    {"no memory", CAREFUL | FRONTS | GROUPS | NOMEM},
};
#define SETTINGS (sizeof(settings) / sizeof(*settings))

static struct run {
    const struct setting *is;
    struct nccl_reg *reg;
    uint64_t rng, digest, handles;
    size_t sizes[SEGMENTS]; /* 0: not there */
    unsigned int group;     /* depth */
    char owners[3];
    const void *going;  /* an owner that cannot be held */
    bool nested, fails; /* fails: the registry may get no memory */
    struct user_of {
        unsigned int comm;
        uintptr_t handle; /* 0: none */
    } users[USERS];
} run;

static void add(uint64_t number)
{
    digest_add(&run.digest, number);
}

static uint64_t next(void)
{
    run.rng ^= run.rng << 13;
    run.rng ^= run.rng >> 7;
    run.rng ^= run.rng << 17;
    return run.rng >> 11;
}

static unsigned int below(unsigned int bound)
{
    return (unsigned int)(next() % bound);
}

static uint64_t place(unsigned int segment)
{
    return 0x7f0000000000u + segment * (run.is->is & WIDE ? 4096 : 8) * UNIT;
}

static void *comm_of(unsigned int comm)
{
    return (void *)(uintptr_t)(0x55550000u + comm * 0x1340u);
}

static void segment_step(void);
static void op_on(unsigned int comm);

/* Another thread goes on while this one is inside a call on the communicator, whose lock it holds. */
static void meanwhile(const struct nccl_reg_comm_info *info)
{
    const unsigned int other = (unsigned int)info->rank ^ 1; /* of another device, so this thread has not its lock */

    if (!(run.is->is & MEANWHILE) || run.nested || below(4))
        return;
    run.nested = true;
    switch (below(8)) {
    case 0:
        nccl_reg_comm_close(run.reg, comm_of((unsigned int)info->rank));
        break;
    case 1:
        add((unsigned int)nccl_reg_comm_remove(run.reg, comm_of((unsigned int)info->rank), /* may_call: */ false));
        break;
    case 2:
        add(nccl_reg_retry_parked(run.reg, -1));
        break;
    case 3:
        add((unsigned int)nccl_reg_comm_remove(run.reg, comm_of(other), /* may_call: */ true));
        break;
    case 4:
        op_on(other);
        break;
    default:
        segment_step();
    }
    run.nested = false;
}

/* --- the table --- */

static bool fails(void)
{
    return (run.is->is & FAULTS) && below(50) == 0;
}

static int tell_attach(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void **ret_handle)
{
    add(1);
    add((uintptr_t)comm);
    add(addr);
    add(size);
    meanwhile(info);
    if (fails())
        return -EIO;
    *ret_handle = (run.is->is & FAULTS) && below(50) == 0 ? NULL : (void *)(uintptr_t)++run.handles;
    return 0;
}

static int tell_detach(const struct nccl_reg_comm_info *info, void *comm, uint64_t addr, size_t size, void *handle)
{
    add(2);
    add((uintptr_t)comm);
    add(addr);
    add(size);
    add((uintptr_t)handle);
    meanwhile(info);
    return fails() ? -EIO : 0;
}

static int tell_ask(const struct nccl_reg_comm_info *info, void *comm)
{
    static const int answers[4] = {0, 0, -EINPROGRESS, -EIO};

    add(3);
    add((uintptr_t)comm);
    meanwhile(info);
    return answers[below(4)];
}

static int tell_wait(const struct nccl_reg_comm_info *info, unsigned int ms)
{
    add(4);
    add((unsigned int)info->rank);
    add(ms);
    meanwhile(info);
    return below(4) ? 0 : -EBUSY;
}

static bool tell_hold(void *owner)
{
    add(5);
    return owner != run.going;
}

static void tell_drop(void *owner)
{
    add(6);
    add((uint64_t)((char *)owner - run.owners));
}

static const struct nccl_reg_ops ops = {tell_attach, tell_detach, tell_ask, tell_wait, tell_hold, tell_drop};

static void see_release(void *arg, uint64_t addr, size_t size)
{
    add(7);
    add(addr);
    add(size);
    run.sizes[(uintptr_t)arg] = 0;
}

static void add_stats(void)
{
    struct nccl_reg_stats stats;
    const uint64_t *number = (const uint64_t *)&stats;

    nccl_reg_stats_get(run.reg, &stats);
    for (size_t i = 0; i < sizeof(stats) / sizeof(*number); i++)
        add(number[i]);
}

/* Most operations take no lock. */
WRAPPED(int, pthread_mutex_lock, (pthread_mutex_t * mutex))
{
    add(8);
    return __real_pthread_mutex_lock(mutex);
}

/* --- the host's memory --- */

static bool memory_is_out(void)
{
    return run.fails && below(3) == 0;
}

WRAPPED_ALLOCATIONS(memory_is_out())

/* --- the program --- */

static void segment_step(void)
{
    const unsigned int i = below(SEGMENTS), way = below(16);
    void *owner = (run.is->is & OWNERS) && below(2) ? &run.owners[below(3)] : NULL;
    const struct nccl_reg_segment_info info = {.addr = place(i),
                                               .size = (1 + way % 3) * (run.is->is & WIDE ? 1000 : 1) * UNIT,
                                               .device = (int)(i % DEVICES),
                                               .front = (run.is->is & FRONTS) ? way % 4 * MIB : 0,
                                               .plain = way % 5 == 0,
                                               .own = way % 7 == 0,
                                               .owner = owner};

    if (!run.sizes[i] && nccl_reg_segment_add(run.reg, &info) == 0) {
        run.sizes[i] = info.size;
        add((unsigned int)-nccl_reg_segment_add(run.reg, &info));
    } else if ((run.is->is & OWNERS) && way == 0) {
        nccl_reg_segment_lost(run.reg, place(i), &run.owners[below(3)]);
    } else if ((run.is->is & OWNERS) && way == 1) {
        nccl_reg_range_lost(run.reg, place(i) - 4 * UNIT, 12 * UNIT);
    } else if ((run.is->is & OWNERS) && way == 2) {
        nccl_reg_owner_lost(run.reg, &run.owners[below(3)]);
    } else if ((run.is->is & OWNERS) && way == 3) {
        run.going = below(2) ? &run.owners[below(3)] : NULL;
    } else if (way < 10) {
        add((unsigned int)nccl_reg_segment_remove(run.reg, place(i), see_release, (void *)(uintptr_t)i));
    }
    for (unsigned int n = 0; n < SEGMENTS; n++) /* lost ones are not there any more */
        if (run.sizes[n]) {
            const struct nccl_reg_segment_info again = {.addr = place(n), .size = run.sizes[n], .device = 9};

            if (below(8) == 0 && nccl_reg_segment_add(run.reg, &again) == 0) {
                nccl_reg_segment_remove(run.reg, place(n), see_release, (void *)(uintptr_t)n);
                add(n);
            }
        }
}

static void comm_step(void)
{
    const unsigned int comm = below(COMMS), way = below(20);
    const struct nccl_reg_comm_info info = {.device = (int)(comm % DEVICES),
                                            .rank = (int)comm,
                                            .ranks = (int)COMMS,
                                            .nonblocking = (run.is->is & NONBLOCKING) && way % 2,
                                            .careful = (run.is->is & CAREFUL) && comm != 5,
                                            .maps_plain = comm == 2};
    struct nccl_reg_comm_info got = {.rank = -1};

    switch (way) {
    case 0:
        add((unsigned int)nccl_reg_comm_remove(run.reg, comm_of(comm), /* may_call: */ true));
        break;
    case 1:
        add((unsigned int)nccl_reg_comm_remove(run.reg, comm_of(comm), /* may_call: */ false));
        break;
    case 2:
        add((unsigned int)nccl_reg_comm_finalize(run.reg, comm_of(comm)));
        break;
    case 3:
        nccl_reg_comm_close(run.reg, comm_of(comm));
        break;
    case 4:
        nccl_reg_comm_reopen(run.reg, comm_of(comm));
        break;
    case 5:
        add((unsigned int)nccl_reg_comm_gone(run.reg, comm_of(comm)));
        break;
    case 6:
        add((unsigned int)nccl_reg_comm_ask(run.reg, comm_of(comm)));
        break;
    case 7:
        if ((run.is->is & NONBLOCKING))
            nccl_reg_comm_nonblocking(run.reg, comm_of(comm));
        break;
    case 8:
        add((unsigned int)nccl_reg_comm_get(run.reg, comm_of(comm), &got));
        add((unsigned int)got.rank + 2u * got.nonblocking + 8u * got.careful);
        break;
    case 9:
        add(nccl_reg_comm_is_open(run.reg, comm_of(comm)));
        break;
    default:
        add((unsigned int)nccl_reg_comm_add(run.reg, comm_of(comm), &info));
    }
}

/* A registration of the program's own. */
static void user_step(void)
{
    const unsigned int i = below(USERS), units = below(4);
    struct user_of *user = &run.users[i];

    if (user->handle) {
        add((unsigned int)nccl_reg_user_remove(run.reg, comm_of(user->comm), (void *)user->handle));
        user->handle = 0;
        return;
    }
    user->comm = below(COMMS);
    user->handle = 0x1000u + i;
    add((unsigned int)nccl_reg_user_add(run.reg, comm_of(user->comm), (void *)user->handle,
                                        place(below(SEGMENTS)) + units * UNIT, UNIT));
}

/* A buffer in or beside a segment: some end with it, some one byte behind it. */
static void buffer_draw(struct nccl_reg_op *op, unsigned int i, unsigned int device)
{
    const unsigned int any = below(SEGMENTS), way = below(12), other = below(10) == 0;
    const unsigned int segment = any / DEVICES * DEVICES + (device + other) % DEVICES;
    const uint64_t start = run.is->is & WIDE ? below(1000) * UNIT : below(4) * (uint64_t)(MIB / 2),
                   size = run.sizes[segment] ? run.sizes[segment] : UNIT;

    op->buffers[i].addr = place(segment) + (way < 10 ? start : 5 * UNIT);
    op->buffers[i].size = way == 11 ? 0 : way < 4 ? size - start : way == 4 ? size - start + 1 : 4096;
}

static void op_on(unsigned int comm)
{
    const unsigned int times = 1 + below(3);
    struct nccl_reg_op op = {.kind = below(3) ? NCCL_REG_COLLECTIVE : NCCL_REG_POINT_TO_POINT,
                             .captured = (run.is->is & GRAPHS) && below(12) == 0};
    struct nccl_reg_comm *used;

    buffer_draw(&op, 0, comm % DEVICES);
    buffer_draw(&op, 1, comm % DEVICES);
    for (unsigned int i = 0; i < times; i++) {
        add((unsigned int)nccl_reg_before_op(run.reg, comm_of(comm), &op, &used));
        add(used != NULL);
        if (!run.nested && below(10) == 0) /* while it is under way */
            segment_step();
        nccl_reg_after_op(used);
    }
}

static void group_step(void)
{
    if (run.group && below(2)) {
        run.group--;
        nccl_reg_group_end((run.is->is & NONBLOCKING) && below(4) == 0);
    } else if (run.group < 3) {
        run.group++;
        nccl_reg_group_start();
    }
    add(nccl_reg_group_depth());
}

static void step(void)
{
    struct nccl_reg_comm *used;
    const unsigned int way = below(40);

    if (way < 6)
        segment_step();
    else if (way < 8)
        comm_step();
    else if (way == 8)
        user_step();
    else if (way == 9 && (run.is->is & GROUPS))
        group_step();
    else if (way == 10)
        add(nccl_reg_retry_parked(run.reg, (int)below(DEVICES + 1) - 1));
    else if (way == 11)
        atomic_fetch_add(&now, 3300000000);
    else if (way == 12) {
        nccl_reg_before_call(run.reg, comm_of(below(COMMS)), &used);
        add(used != NULL);
        nccl_reg_after_op(used);
    } else
        op_on(below(COMMS));
}

/* Another registry, because some segments never go. */
static void restart(void)
{
    for (; run.group; run.group--)
        nccl_reg_group_end(false);
    if (run.reg)
        nccl_reg_destroy(run.reg);
    memset(run.sizes, 0, sizeof(run.sizes));
    memset(run.users, 0, sizeof(run.users));
    assert_int_equal(nccl_reg_create(&ops, &run.reg), 0);
}

/* The digests of a run. */
static void play(size_t setting, uint64_t ret_digests[DIGESTS])
{
    memset(&run, 0, sizeof(run));
    run.is = &settings[setting];
    run.rng = (uint64_t)setting + 88172645463325252u;
    for (unsigned int i = 0; i < STEPS; i++) {
        if (i % RESTART == 0)
            restart();
        run.fails = run.is->is & NOMEM && i % RESTART > RESTART / 4;
        step();
        run.fails = false;
        add_stats();
        if (i % EVERY == EVERY - 1)
            ret_digests[i / EVERY] = run.digest;
    }
    restart();
    nccl_reg_destroy(run.reg);
}

static void tick(void)
{
    atomic_fetch_add(&now, 100000000);
}

static const char *name(size_t setting)
{
    return settings[setting].name;
}

UNIT_CASE(decisions_are_those_recorded)
{
    on_wait = tick;
    snapshot_test("nccl_reg/nccl_snapshot", SETTINGS, name, play);
}

int main(void)
{
    alarm(120);
    return cases_run();
}
