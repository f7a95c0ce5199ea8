/* SPDX-License-Identifier: Apache-2.0 */
/* test_reach.c - shim/context/free_policy.c: work that touches another device's or context's memory, memory that
 * becomes accessible, and which devices are strict by that. test_strict.c has what that means; test_policy.c, the rest
 * of CUPOOL_FREE. */

#include "reach.h"

/* --- work on a stream touches memory --- */

static const struct reach {
    CUdeviceptr addr;
    unsigned int context; /* of the stream */
    unsigned int strict;  /* devices, bits */
} reaches[] = {
    {POOLED, 0, 0},  {POOLED, 1, 3}, {POOLED, 4, 1}, /* another context of the device, not pooled */
    {POOLED, 2, 5},                                  /* of a third device, not pooled */
    {NEAR, 0, 0},    {NEAR, 1, 3},   {NEAR, 4, 0},   {FAR, 0, 3},
    {FAR, 1, 0},     {FAR, 2, 6},    {HOST, 1, 0},   {MANAGED, 0, 0}, /* its own calls make all strict */
    {UNKNOWN, 1, 0}, {0, 1, 0},
};

ISOLATED_ROWS(test_reach, reaches)
{
    const struct reach *row = *state;

    ready();
    fake.devices = 1; /* there is no other to reach */
    hazard_foreign_access(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(strict(), 0);
    hazard_foreign_access(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(fake_calls(FN(cuDeviceGetCount)), 1);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

ISOLATED_ROWS(test_reach_other, reaches)
{
    const struct reach *row = *state;

    ready();
    hazard_foreign_access(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(strict(), row->strict);
    assert_true(fake_thread_is_clean(fake_context(0)));
    hazard_foreign_access(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(strict(), row->strict);
    assert_int_equal(fake_calls(FN(cuDeviceGetCount)), 1);
}

/* The device of a context that is not pooled cannot be told: then the memory's alone. */
ISOLATED_CASE(test_reach_untold, .row = "push")
{
    const char *how = *state;

    ready();
    if (strcmp(how, "push") == 0)
        fake_fail(FN(cuCtxPushCurrent_v2), CUDA_ERROR_INVALID_CONTEXT, 1);
    if (strcmp(how, "device") == 0)
        fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_INVALID_CONTEXT, 1);
    if (strcmp(how, "none") == 0)
        fake_current(NULL);
    hazard_foreign_access(address(POOLED), strcmp(how, "none") == 0 ? CU_STREAM_LEGACY : fake_stream(0, 2));
    assert_int_equal(strict(), 1);
    assert_true(fake_thread_is_clean(strcmp(how, "none") == 0 ? NULL : fake_context(0)));
}
ISOLATED_AGAIN(test_reach_untold, device, .row = "device")
ISOLATED_AGAIN(test_reach_untold, none, .row = "none")

/* The stream's context is current, and not pooled. */
/* The context of the pool that had the address has ended, and the driver has given it to others. */
READY_CASE(test_reach_of_ended)
{
    atomic_store(&contexts_closing, 1);
    atomic_store(&context->ending, true);
    fake_range_of(address(POOLED))->device = 1;
    hazard_foreign_access(address(POOLED), fake_stream(0, 1));
    assert_int_equal(strict(), 0);
    fake_range_of(address(POOLED))->type = CU_MEMORYTYPE_HOST;
    assert_non_null(hazard_copy_begin(address(POOLED), address(POOLED), CU_STREAM_LEGACY));
}

READY_CASE(test_reach_current)
{
    fake_current(fake_context(2));
    hazard_foreign_access(FAR, CU_STREAM_LEGACY);
    assert_int_equal(strict(), 6);
    assert_string_equal(fake_log(), "push:c1 pop"); /* to wait for earlier frees; nowhere else */
}

ISOLATED_CASE(test_reach_unanswered)
{
    ready();
    if (*state)
        fake_fail(FN(cuDeviceGetCount), CUDA_ERROR_UNKNOWN, 1);
    else
        fake_lack(FN(cuDeviceGetCount));
    hazard_foreign_access(FAR, CU_STREAM_LEGACY);
    assert_int_equal(strict(), 3);
}
ISOLATED_AGAIN(test_reach_unanswered, fails, .row = "fails")

/* A driver that cannot say where memory is, and one that fails to. */
ISOLATED_CASE(test_device_unanswered, .count = 3)
{
    const uintptr_t skipped = (uintptr_t)*state;

    ready();
    if (skipped)
        fake_fail_after(FN(cuPointerGetAttribute), (unsigned int)skipped - 1, CUDA_ERROR_UNKNOWN, 1);
    else
        fake_lack(FN(cuPointerGetAttribute));
    policy_strict_memory(FAR, "test");
    assert_int_equal(strict(), 0);
}

ISOLATED_CASE(test_reach_many)
{
    CUdeviceptr to[] = {NEAR, NEAR, HOST}, from[] = {HOST, NEAR, NEAR};
    CUstream stream;

    ready();
    stream = fake_stream(0, 0);
    hazard_foreign_accesses(to, from, 3, stream);
    hazard_foreign_accesses(NULL, from, 3, stream);
    hazard_foreign_accesses(to, NULL, 3, stream);
    assert_int_equal(strict(), 0);
    to[2] = FAR;
    hazard_foreign_accesses(to, from, 2, stream);
    hazard_foreign_accesses(to, NULL, 3, stream);
    assert_int_equal(strict(), 0);
    hazard_foreign_accesses(to, from, 3, stream);
    assert_int_equal(strict(), 3);
}

ISOLATED_CASE(test_reach_many_from)
{
    const CUdeviceptr to[] = {NEAR, NEAR}, from[] = {HOST, FAR};

    ready();
    hazard_foreign_accesses(to, from, 2, fake_stream(0, 0));
    assert_int_equal(strict(), 3);
}

/* Each operand of each operation counts. */
ISOLATED_CASE(test_reach_batch, .count = 4)
{
    const uintptr_t which = (uintptr_t)*state;
    CUDA_MEMCPY3D_BATCH_OP operations[2] = {{.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER}}};
    CUmemcpy3DOperand *operand = which & 1 ? &operations[which / 2].src : &operations[which / 2].dst;
    CUstream stream;

    ready();
    stream = fake_stream(0, 0);
    operations[0].dst.op.ptr.ptr = NEAR;
    operations[0].src = operations[1].dst = operations[1].src = operations[0].dst;
    hazard_foreign_accesses_3d(operations, 2, stream);
    hazard_foreign_accesses_3d(NULL, 2, stream);
    operand->op.ptr.ptr = FAR;
    hazard_foreign_accesses_3d(operations, which / 2, stream);
    operand->type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    hazard_foreign_accesses_3d(operations, 2, stream);
    assert_int_equal(strict(), 0);
    operand->type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    hazard_foreign_accesses_3d(operations, 2, stream);
    assert_int_equal(strict(), 3);
}

/* --- memory becomes accessible --- */

#define RW   CU_MEM_ACCESS_FLAGS_PROT_READWRITE
#define NONE CU_MEM_ACCESS_FLAGS_PROT_NONE
#define ON   CU_MEM_LOCATION_TYPE_DEVICE
#define PART 6 /* of a device, of CUDA 13.5 */

static const struct access {
    CUdeviceptr addr;
    int type, id;
    CUmemAccess_flags flags;
    const char *why; /* NULL: nothing becomes strict */
} accesses[] = {
    {NEAR, ON, 0, RW, NULL},
    {NEAR, ON, 1, RW, "memory of other devices"},
    {FAR, ON, 1, RW, NULL},
    {FAR, ON, 0, CU_MEM_ACCESS_FLAGS_PROT_READ, "memory of other devices"},
    {FAR, ON, 0, NONE, "memory that goes without a wait"},
    {NEAR, PART, 0x100, NONE, "memory that goes without a wait"},
    {UNKNOWN, ON, 0, RW, NULL}, /* most likely the current device's */
    {UNKNOWN, ON, 1, RW, "memory of other devices"},
    {0, ON, 0, RW, "memory of other devices"}, /* a pool of the driver's: its own needs nobody to say so */
    {NEAR, PART, 0x100, RW, NULL},
    {NEAR, PART, 0x101, RW, "memory of other devices"},
    {NEAR, CU_MEM_LOCATION_TYPE_HOST, 0, RW, "mapped host memory"},
    {NEAR, CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, RW, "mapped host memory"},
    {NEAR, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ, "mapped host memory"},
    {NEAR, CU_MEM_LOCATION_TYPE_HOST, 0, NONE, NULL},
    {NEAR, CU_MEM_LOCATION_TYPE_INVALID, 1, RW, NULL},
    {NEAR, 5, 1, RW, NULL},
};

ISOLATED_ROWS(test_access, accesses)
{
    const struct access *row = *state;
    const CUmemAccessDesc access[2] = {
        {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}, .flags = NONE},
        {.location = {.type = (CUmemLocationType)row->type, .id = row->id}, .flags = row->flags}};
    const char *why = NULL;
    struct policy policy = {0};

    ready();
    hazard_access(row->addr, NULL, 2);
    hazard_access(row->addr, access, 1);
    assert_int_equal(strict(), 0);
    hazard_access(row->addr, access, 2);
    assert_int_equal(strict(), row->why ? ALL : 0);
    policy_init(&policy, 63, true, &why);
    assert_string_equal(why, row->why ? row->why : "default");
}

ISOLATED_CASE(test_access_alone)
{
    const CUmemAccessDesc there = {.location = {.type = ON, .id = 1}, .flags = RW};
    const CUmemAccessDesc host = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}, .flags = RW};

    ready();
    fake.devices = 1;
    hazard_access(NEAR, &there, 1);
    hazard_access(0, &there, 1);
    assert_int_equal(strict(), 0);
    hazard_access(NEAR, &host, 1);
    assert_int_equal(strict(), ALL);
}

/* It is the memory's device that counts, not the current one. */
ISOLATED_CASE(test_access_elsewhere)
{
    const CUmemAccessDesc access = {.location = {.type = ON, .id = 0}, .flags = RW};

    ready();
    fake_current(fake_context(1));
    hazard_access(NEAR, &access, 1);
    assert_int_equal(strict(), 0);
    hazard_access(UNKNOWN, &access, 1);
    assert_int_equal(strict(), ALL);
}

/* Neither the memory's device nor the current one can be told: it may be any. */
ISOLATED_CASE(test_access_untold)
{
    const CUmemAccessDesc access = {.location = {.type = ON, .id = 0}, .flags = RW};

    ready();
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_INVALID_CONTEXT, 1);
    hazard_access(UNKNOWN, &access, 1);
    assert_int_equal(strict(), ALL);
}

ISOLATED_CASE(test_places)
{
    static const struct {
        int type, id, device;
        bool host;
    } rows[] = {
        {CU_MEM_LOCATION_TYPE_INVALID, 3, -1, false},
        {ON, 0, 0, false},
        {ON, 7, 7, false},
        {CU_MEM_LOCATION_TYPE_HOST, 7, -1, true},
        {CU_MEM_LOCATION_TYPE_HOST_NUMA, 1, -1, true},
        {CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 1, -1, true},
        {5, 1, -1, false},
        {PART, 0x205, 5, false},
        {7, 1, -1, false},
    };

    for (size_t i = 0; i < COUNT(rows); i++) {
        const CUmemLocation location = {.type = (CUmemLocationType)rows[i].type, .id = rows[i].id};

        assert_int_equal(hazard_location_device(&location), rows[i].device);
        assert_int_equal(hazard_is_host(&location, CU_MEM_ALLOCATION_TYPE_PINNED), rows[i].host);
        assert_true(hazard_is_host(&location, CU_MEM_ALLOCATION_TYPE_MANAGED));
    }
}
