/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_life.h - what the parts of test_nccl_life share: addresses, and random numbers. nccl_fake.c says what is right:
 * it holds NCCL's rules against every call. Each part has a registry of its own.
 *
 * Threads: at and fine are for all.
 */
#ifndef CUPOOL_TESTS_NCCL_LIFE_H
#define CUPOOL_TESTS_NCCL_LIFE_H

#include "cases.h"

#include "nccl_fake.h"
#include "seeded.h"

#define UNIT    ((size_t)2 << 20)
#define DEVICES 2u
#define STEPS   12000u
/* With faults: so many calls fail in each of the ways that they can. */
#define FAIL_PER_MILLE 5u
#define GENERATIONS    4096u

static struct nccl_reg *reg;

static inline unsigned int below(uint64_t *rng, unsigned int n)
{
    return (unsigned int)(next(rng) >> 32) % n;
}

static inline uint64_t at(unsigned int n)
{
    return 0x7f0000000000u + n * 2 * UNIT + UNIT; /* in front of each there is room */
}

static inline void fine(void)
{
    if (*nccl_fake.fault)
        fail_msg("%s", nccl_fake.fault);
}

#endif
