/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_unit.h - what the parts of test_nccl_reg share: segments, communicators and operations by number, against
 * nccl_fake.h. Each part has a registry of its own. */
#ifndef CUPOOL_TESTS_NCCL_UNIT_H
#define CUPOOL_TESTS_NCCL_UNIT_H

#include "cases.h"

#include "nccl_fake.h"

#define UNIT  ((size_t)2 << 20)
#define AT(n) (0x7f0000000000u + (n)*8 * UNIT)

static struct nccl_reg *reg;

static inline int setup(void **state)
{
    alarm(60);
    nccl_fake_reset();
    return nccl_reg_create(&nccl_fake_ops, &reg);
}

static inline void segment(unsigned int n, int device)
{
    assert_int_equal(nccl_fake_segment_add(reg, AT(n), UNIT, device), 0);
}

static inline void comm_known(unsigned int comm, bool careful)
{
    const struct nccl_reg_comm_info info = {
        .arg = &nccl_fake, .device = nccl_fake.comms[comm].device, .careful = careful};

    assert_int_equal(nccl_reg_comm_add(reg, nccl_fake_comm(comm), &info), 0);
}

static inline void comm_new(unsigned int comm, int device, bool careful)
{
    nccl_fake_comm_make(comm, device, true);
    comm_known(comm, careful);
}

static inline void comm_end(unsigned int comm)
{
    assert_int_equal(nccl_reg_comm_remove(reg, nccl_fake_comm(comm), /* may_call: */ true), 0);
    nccl_fake_comm_destroy(comm, false);
}

/* An operation on two buffers; 0: there is none. Returns what before said. */
static inline int op_with(unsigned int comm, const struct nccl_reg_op *op, unsigned int registered)
{
    struct nccl_reg_comm *used;
    const int rc = nccl_reg_before_op(reg, nccl_fake_comm(comm), op, &used);

    nccl_fake_op(comm, op, registered);
    nccl_reg_after_op(used);
    return rc;
}

static inline struct nccl_reg_op op_of(enum nccl_reg_kind kind, uint64_t from, uint64_t to)
{
    return (struct nccl_reg_op){.kind = kind, .buffers = {{from, from ? 4096 : 0}, {to, to ? 4096 : 0}}};
}

static inline int collective(unsigned int comm, uint64_t from, uint64_t to)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_COLLECTIVE, from, to);

    return op_with(comm, &op, (from != 0) + (to != 0));
}

static inline int point_to_point(unsigned int comm, uint64_t at)
{
    const struct nccl_reg_op op = op_of(NCCL_REG_POINT_TO_POINT, at, 0);

    return op_with(comm, &op, 1);
}

static inline struct nccl_reg_stats stats(void)
{
    struct nccl_reg_stats now;

    nccl_reg_stats_get(reg, &now);
    return now;
}

static inline void remove_segment(unsigned int n)
{
    assert_int_equal(nccl_reg_segment_remove(reg, AT(n), nccl_fake_release, NULL), 0);
}

/* Work is over, and the communicators that are left go. */
static inline int teardown(void **state)
{
    nccl_fake_finish();
    for (unsigned int i = 0; i < FAKE_COMMS; i++)
        if (nccl_fake.comms[i].alive)
            comm_end(i);
    if (*nccl_fake.fault)
        fail_msg("%s", nccl_fake.fault);
    nccl_reg_destroy(reg);
    return 0;
}

#define CASE(name) CASE_WITH(name, setup, teardown)

#endif
