/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reach.h - what unit tests of strict devices start from: contexts on two devices, and memory of each kind.
 *
 * Only tests/unit/shim/context includes it. Threads: a test's own.
 */
#ifndef CUPOOL_TESTS_SHIM_REACH_H
#define CUPOOL_TESTS_SHIM_REACH_H

#include "exports/hazards.h"
#include "isolated.h"
#include "room.h"

#define HOST    0x10000
#define NEAR    0x20000 /* the driver's memory, on device 0 */
#define FAR     0x30000 /* on device 1 */
#define MANAGED 0x40000
#define UNKNOWN 0x50000
#define POOLED  1 /* of context 0's pool */

static uint64_t block;

/* Contexts 0 and 1, primary, of devices 0 and 1; the first is current. */
static inline struct context *ready(void)
{
    struct context *context;

    fake_start();
    fake.devices = 3;
    fake_current(fake_context(1));
    assert_non_null(context_current(&fake.driver));
    fake_current(fake_context(0));
    context = context_current(&fake.driver);
    assert_non_null(context);
    fake_range_add(HOST, 4096, CU_MEMORYTYPE_HOST, 0);
    fake_range_add(NEAR, 4096, CU_MEMORYTYPE_DEVICE, 0);
    fake_range_add(FAR, 4096, CU_MEMORYTYPE_DEVICE, 1);
    fake_range_add(MANAGED, 4096, CU_MEMORYTYPE_UNIFIED, 1);
    assert_int_equal(pool_alloc(context->pool, 1000, &block), 0);
    fake.traced[0] = fake.said[0] = '\0';
    fake_log();
    return context;
}

/* Which of the devices 0, 1, ... are strict: bits. */
static inline unsigned int strict(void)
{
    unsigned int found = 0;
    const char *why;

    for (int i = 0; i < 32; i++) {
        struct policy policy = {0};

        policy_init(&policy, i, true, &why);
        found |= (unsigned int)policy_is_strict(&policy) << i;
    }
    return found;
}

#define ALL UINT32_MAX

static inline CUdeviceptr address(CUdeviceptr name)
{
    return name == POOLED ? block + 512 : name;
}

#endif
