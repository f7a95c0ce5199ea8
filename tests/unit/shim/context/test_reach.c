/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_reach.c - shim/policy.c: what makes devices strict, which ones, and what that waits for. test_policy.c has the
 * rest of CUPOOL_FREE.
 */
#include <string.h>

#include "context_internal.h"
#include "fake_driver.h"
#include "isolated.h"
#include "policy.h"

#define HOST    0x10000
#define NEAR    0x20000 /* the driver's memory, on device 0 */
#define FAR     0x30000 /* on device 1 */
#define MANAGED 0x40000
#define UNKNOWN 0x50000
#define POOLED  1 /* of context 0's pool */

static uint64_t block;

/* Contexts 0 and 1, primary, of devices 0 and 1; the first is current. */
static struct context *ready(void)
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
static unsigned int strict(void)
{
    unsigned int found = 0;
    const char *why;

    for (int i = 0; i < 64 && i < 32; i++) {
        struct policy policy = {0};

        policy_init(&policy, i, true, &why);
        found |= (unsigned int)policy_is_strict(&policy) << i;
    }
    return found;
}

#define ALL UINT32_MAX

static CUdeviceptr address(CUdeviceptr name)
{
    return name == POOLED ? block + 512 : name;
}

/* --- work on a stream touches memory --- */

static const struct reach {
    CUdeviceptr addr;
    unsigned int context; /* of the stream */
    unsigned int strict;  /* devices, bits */
} reaches[] = {
    {POOLED, 0, 0},
    {POOLED, 1, 3},
    {POOLED, 4, 1},  /* another context of the device, not pooled */
    {POOLED, 2, 5},  /* of a third device, not pooled */
    {NEAR, 0, 0},
    {NEAR, 1, 3},
    {NEAR, 4, 0},
    {FAR, 0, 3},
    {FAR, 1, 0},
    {FAR, 2, 6},
    {HOST, 1, 0},
    {MANAGED, 0, 0}, /* its own calls make all strict */
    {UNKNOWN, 1, 0},
    {0, 1, 0},
};

static void test_reach(void **state)
{
    const struct reach *row = *state;

    ready();
    fake.devices = 1; /* there is no other to reach */
    policy_reach(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(strict(), 0);
    policy_reach(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(fake_calls(FN(cuDeviceGetCount)), 1);
    assert_true(fake_thread_is_clean(fake_context(0)));
}

static void test_reach_other(void **state)
{
    const struct reach *row = *state;

    ready();
    policy_reach(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(strict(), row->strict);
    assert_true(fake_thread_is_clean(fake_context(0)));
    policy_reach(address(row->addr), fake_stream(0, row->context));
    assert_int_equal(strict(), row->strict);
    assert_int_equal(fake_calls(FN(cuDeviceGetCount)), 1);
}

/* The device of a context that is not pooled cannot be told: then the memory's alone. */
static void test_reach_untold(void **state)
{
    const char *how = *state;

    ready();
    if (strcmp(how, "push") == 0)
        fake_fail(FN(cuCtxPushCurrent_v2), CUDA_ERROR_INVALID_CONTEXT, 1);
    if (strcmp(how, "device") == 0)
        fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_INVALID_CONTEXT, 1);
    if (strcmp(how, "none") == 0)
        fake_current(NULL);
    policy_reach(address(POOLED), strcmp(how, "none") == 0 ? CU_STREAM_LEGACY : fake_stream(0, 2));
    assert_int_equal(strict(), 1);
    assert_true(fake_thread_is_clean(strcmp(how, "none") == 0 ? NULL : fake_context(0)));
}

/* The stream's context is current, and not pooled. */
static void test_reach_current(void **state)
{
    (void)state;
    ready();
    fake_current(fake_context(2));
    policy_reach(FAR, CU_STREAM_LEGACY);
    assert_int_equal(strict(), 6);
    assert_string_equal(fake_log(), "push:c1 pop"); /* to wait for earlier frees; nowhere else */
}

static void test_reach_unanswered(void **state)
{
    ready();
    if (*state)
        fake_fail(FN(cuDeviceGetCount), CUDA_ERROR_UNKNOWN, 1);
    else
        fake_lack(FN(cuDeviceGetCount));
    policy_reach(FAR, CU_STREAM_LEGACY);
    assert_int_equal(strict(), 3);
}

/* A driver that cannot say where memory is, and one that fails to. */
static void test_device_unanswered(void **state)
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

static void test_reach_many(void **state)
{
    CUdeviceptr to[] = {NEAR, NEAR, HOST}, from[] = {HOST, NEAR, NEAR};
    CUstream stream;

    (void)state;
    ready();
    stream = fake_stream(0, 0);
    policy_reach_many(to, from, 3, stream);
    policy_reach_many(NULL, from, 3, stream);
    policy_reach_many(to, NULL, 3, stream);
    assert_int_equal(strict(), 0);
    to[2] = FAR;
    policy_reach_many(to, from, 2, stream);
    policy_reach_many(to, NULL, 3, stream);
    assert_int_equal(strict(), 0);
    policy_reach_many(to, from, 3, stream);
    assert_int_equal(strict(), 3);
}

static void test_reach_many_from(void **state)
{
    const CUdeviceptr to[] = {NEAR, NEAR}, from[] = {HOST, FAR};

    (void)state;
    ready();
    policy_reach_many(to, from, 2, fake_stream(0, 0));
    assert_int_equal(strict(), 3);
}

static void test_reach_batch(void **state)
{
    CUDA_MEMCPY3D_BATCH_OP operations[2] = {{.dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER}}};
    CUstream stream;

    ready();
    stream = fake_stream(0, 0);
    operations[0].dst.op.ptr.ptr = NEAR;
    operations[0].src = operations[1].dst = operations[1].src = operations[0].dst;
    policy_reach_batch(operations, 2, stream);
    policy_reach_batch(NULL, 2, stream);
    (*state ? &operations[1].src : &operations[1].dst)->op.ptr.ptr = FAR;
    policy_reach_batch(operations, 1, stream);
    (*state ? &operations[1].src : &operations[1].dst)->type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    policy_reach_batch(operations, 2, stream);
    assert_int_equal(strict(), 0);
    (*state ? &operations[1].src : &operations[1].dst)->type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    policy_reach_batch(operations, 2, stream);
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
    {FAR, ON, 0, NONE, NULL},
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

static void test_access(void **state)
{
    const struct access *row = *state;
    const CUmemAccessDesc access[2] = {{.location = {.type = ON, .id = 1}, .flags = NONE},
                                       {.location = {.type = (CUmemLocationType)row->type, .id = row->id},
                                        .flags = row->flags}};
    const char *why = NULL;
    struct policy policy = {0};

    ready();
    policy_access(row->addr, NULL, 2);
    policy_access(row->addr, access, 1);
    assert_int_equal(strict(), 0);
    policy_access(row->addr, access, 2);
    assert_int_equal(strict(), row->why ? ALL : 0);
    policy_init(&policy, 63, true, &why);
    assert_string_equal(why, row->why ? row->why : "default");
}

static void test_access_alone(void **state)
{
    const CUmemAccessDesc there = {.location = {.type = ON, .id = 1}, .flags = RW};
    const CUmemAccessDesc host = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}, .flags = RW};

    (void)state;
    ready();
    fake.devices = 1;
    policy_access(NEAR, &there, 1);
    policy_access(0, &there, 1);
    assert_int_equal(strict(), 0);
    policy_access(NEAR, &host, 1);
    assert_int_equal(strict(), ALL);
}

/* Neither the memory's device nor the current one can be told: it may be any. */
static void test_access_untold(void **state)
{
    const CUmemAccessDesc access = {.location = {.type = ON, .id = 0}, .flags = RW};

    (void)state;
    ready();
    fake_fail(FN(cuCtxGetDevice), CUDA_ERROR_INVALID_CONTEXT, 1);
    policy_access(UNKNOWN, &access, 1);
    assert_int_equal(strict(), ALL);
}

static void test_places(void **state)
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

    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const CUmemLocation location = {.type = (CUmemLocationType)rows[i].type, .id = rows[i].id};

        assert_int_equal(policy_location_device(&location), rows[i].device);
        assert_int_equal(policy_is_host(&location, CU_MEM_ALLOCATION_TYPE_PINNED), rows[i].host);
        assert_true(policy_is_host(&location, CU_MEM_ALLOCATION_TYPE_MANAGED));
    }
}

/* --- strict --- */

static void test_strict(void **state)
{
    (void)state;
    ready();
    policy_strict(1, "a reason");
    policy_strict(1, "another one");
    policy_strict(5, "no context there");
    policy_strict(64 + 2, "beyond what we tell apart");
    assert_int_equal(strict(), 1 << 1 | 1 << 2 | 1 << 5);
    assert_string_equal(fake.traced, "policy:\"d\":1,\"free\":\"strict\",\"why\":\"a reason\"\n");
    assert_non_null(strstr(fake.said, "3:device 1: frees wait on the host from now on: a reason\n"));
    assert_null(strstr(fake.said, "device 5: frees wait on the host from now on"));
    assert_null(strstr(fake.said, "from now on: another one"));
    policy_strict(POLICY_ALL, "everywhere");
    assert_int_equal(strict(), ALL);
    assert_string_equal(strchr(fake.traced, '\n'),
                        "\npolicy:\"d\":0,\"free\":\"strict\",\"why\":\"everywhere\"\n");
}

static void test_strict_no_effect(void **state)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_HOST}, .flags = RW};

    (void)state;
    ready();
    policy_strict(POLICY_ALL, "test");
    policy_strict_memory(NEAR, "test");
    policy_reach(FAR, CU_STREAM_LEGACY);
    policy_access(NEAR, &access, 1);
    policy_context_seen(fake_context(4), 0);
    assert_string_equal(fake.traced, "");
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)), 0);
}

static void test_strict_memory(void **state)
{
    static const CUdeviceptr none[] = {0, HOST, MANAGED, UNKNOWN};

    (void)state;
    ready();
    for (size_t i = 0; i < COUNT(none); i++)
        policy_strict_memory(none[i], "test");
    assert_int_equal(strict(), 0);
    policy_strict_memory(FAR, "test");
    assert_int_equal(strict(), 2);
    fake.scripts[FN(cuPointerGetAttribute)].calls = 0;
    policy_strict_memory(address(POOLED), "test");
    assert_int_equal(strict(), 3);
    assert_int_equal(fake_calls(FN(cuPointerGetAttribute)), 0);
    fake.absent = true;
    policy_strict_memory(FAR, "test");
}

/* --- what was freed before --- */

static void device_moves(void *context)
{
    fake_context_of(context)->over++;
}

static void *free_one(void *arg)
{
    fake_current(fake_context(0));
    assert_int_equal(order_ops.order(arg, POOL_ORDER_FREE), 0);
    return NULL;
}

/* Another thread's free, of memory that the device still works on. */
static struct context *with_free(void)
{
    struct context *context = ready();

    policy_pay(&context->policy, 1);
    fake_context_of(context->handle)->launched = 10;
    elsewhere(free_one, context);
    fake.relax = device_moves;
    fake.relax_arg = context->handle;
    return context;
}

static void test_waits_for_earlier_frees(void **state)
{
    (void)state;
    with_free();
    policy_strict(1, "the other device");
    assert_int_equal(fake.contexts[0].over, 0);
    policy_strict(0, "test");
    assert_int_equal(fake.contexts[0].over, 10);
    fake.contexts[0].launched = 20;
    policy_strict(0, "test"); /* once */
    assert_int_equal(fake.contexts[0].over, 10);
}

static void *strict_too(void *arg)
{
    fake_current(fake_context(0));
    fake.relax = device_moves;
    policy_strict(0, "the second");
    assert_int_equal(fake.contexts[0].over, 10);
    return arg;
}

static void meanwhile(void *arg)
{
    fake.relax = NULL;
    fake_before(FN(cuEventQuery), NULL, NULL);
    elsewhere(strict_too, arg);
}

/* Whoever comes while the first one waits, waits as well. */
static void test_second_waits_too(void **state)
{
    (void)state;
    with_free();
    fake_before(FN(cuEventQuery), meanwhile, NULL);
    policy_strict(0, "test");
    assert_int_equal(fake.contexts[0].over, 10);
    assert_non_null(strstr(fake.traced, "test"));
    assert_null(strstr(fake.traced, "second"));
}

static void *reach_too(void *arg)
{
    fake_current(fake_context(1));
    fake.relax = device_moves;
    policy_reach(NEAR, CU_STREAM_LEGACY);
    assert_int_equal(fake.contexts[0].over, 10);
    return arg;
}

static void reach_meanwhile(void *arg)
{
    fake.relax = NULL;
    fake_before(FN(cuEventQuery), NULL, NULL);
    elsewhere(reach_too, arg);
}

static void test_reach_waits_too(void **state)
{
    (void)state;
    with_free();
    fake_before(FN(cuEventQuery), reach_meanwhile, NULL);
    policy_strict(0, "test");
    assert_int_equal(strict(), 3);
}

/* --- contexts of a device --- */

static void test_second_context(void **state)
{
    (void)state;
    fake_start();
    policy_context_seen(fake_context(0), 0);
    policy_context_seen(fake_context(0), 0);
    policy_context_seen(fake_context(1), 1);
    policy_context_seen(fake_context(2), -1);
    policy_context_seen(fake_context(2), 64);
    policy_context_seen(fake_context(2), 63);
    assert_int_equal(strict(), 0);
    policy_context_gone(NULL);
    policy_context_gone(fake_context(1));
    policy_context_seen(fake_context(5), 1); /* after the first: alone */
    assert_int_equal(strict(), 0);
    policy_context_seen(fake_context(4), 0);
    assert_int_equal(strict(), 1);
    policy_context_gone(fake_context(2));
    policy_context_seen(fake_context(6), 63);
    policy_context_gone(fake_context(6));
    policy_context_seen(fake_context(7), 63);
    policy_context_seen(fake_context(7), 63);
    policy_context_seen(fake_context(6), 1);
    assert_int_equal(strict(), 3);
}

int main(int argc, char **argv)
{
    struct isolated tests[2 * COUNT(reaches) + COUNT(accesses) + 32];
    size_t n = 0;

    for (size_t i = 0; i < COUNT(reaches); i++) {
        tests[n++] = (struct isolated){ISOLATED(test_reach), .row = &reaches[i]};
        tests[n++] = (struct isolated){ISOLATED(test_reach_other), .row = &reaches[i]};
    }
    for (size_t i = 0; i < COUNT(accesses); i++)
        tests[n++] = (struct isolated){ISOLATED(test_access), .row = &accesses[i]};
    tests[n++] = (struct isolated){ISOLATED(test_reach_untold), .row = "push"};
    tests[n++] = (struct isolated){ISOLATED(test_reach_untold), .row = "device"};
    tests[n++] = (struct isolated){ISOLATED(test_reach_untold), .row = "none"};
    tests[n++] = (struct isolated){ISOLATED(test_reach_current)};
    tests[n++] = (struct isolated){ISOLATED(test_reach_unanswered)};
    tests[n++] = (struct isolated){ISOLATED(test_reach_unanswered), .row = "fails"};
    for (uintptr_t i = 0; i < 3; i++)
        tests[n++] = (struct isolated){ISOLATED(test_device_unanswered), .row = (const void *)i};
    tests[n++] = (struct isolated){ISOLATED(test_reach_many)};
    tests[n++] = (struct isolated){ISOLATED(test_reach_many_from)};
    tests[n++] = (struct isolated){ISOLATED(test_reach_batch)};
    tests[n++] = (struct isolated){ISOLATED(test_reach_batch), .row = "source"};
    tests[n++] = (struct isolated){ISOLATED(test_access_alone)};
    tests[n++] = (struct isolated){ISOLATED(test_access_untold)};
    tests[n++] = (struct isolated){ISOLATED(test_places)};
    tests[n++] = (struct isolated){ISOLATED(test_strict)};
    tests[n++] = (struct isolated){ISOLATED(test_strict_no_effect), .environment = "CUPOOL_FREE=ordered"};
    tests[n++] = (struct isolated){ISOLATED(test_strict_no_effect), .environment = "CUPOOL_FREE=relaxed"};
    tests[n++] = (struct isolated){ISOLATED(test_strict_memory)};
    tests[n++] = (struct isolated){ISOLATED(test_waits_for_earlier_frees)};
    tests[n++] = (struct isolated){ISOLATED(test_second_waits_too)};
    tests[n++] = (struct isolated){ISOLATED(test_reach_waits_too)};
    tests[n++] = (struct isolated){ISOLATED(test_second_context)};
    return isolated_run(tests, n, argc > 1 ? argv[1] : NULL);
}
