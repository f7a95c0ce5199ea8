/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_memory.c - shim/nccl/comms.c, window.c and shim/context/segment_driver.c: segments from ncclMemAlloc, and
 * which of them may not go back because a graph that was captured since may have them registered. */

#include "base/process.h"
#include "context/nccl_given.h"
#include "nccl/register_calls.h"
#include "nccl/window.h"
#include "nccl_reg_state.h"
#include "ready.h"

#define NCCL    ORDERED " CUPOOL_BACKEND=nccl"
#define SEGMENT (2 * MIB)

static struct {
    uint64_t next;
    unsigned int got, returned;
    ncclResult_t result;
} nccl;

static ncclResult_t nccl_alloc(void **ptr, size_t size)
{
    *ptr = nccl.result ? NULL : (void *)(uintptr_t)nccl.next;
    nccl.next += nccl.result ? 0 : size;
    nccl.got += !nccl.result;
    return nccl.result;
}

static ncclResult_t nccl_free(void *ptr)
{
    nccl.returned += ptr != NULL;
    return nccl.result;
}

static ncclResult_t nccl_version(int *version)
{
    *version = 23000;
    return ncclSuccess;
}

static const struct real_nccl copy = {
    .ncclGetVersion = nccl_version, .ncclMemAlloc = nccl_alloc, .ncclMemFree = nccl_free};

static struct context *with_nccl(void)
{
    struct context *context;

    nccl.next = 0x600000000000;
    fake_start();
    fake.nccl = &copy;
    context = pooled(0);
    assert_true((backend_chosen() == BACKEND_NCCL) && context_backed_by_nccl(context));
    assert_int_equal(nccl.got, 1); /* to see whether it can be shared */
    assert_int_equal(nccl.returned, 1);
    nccl.got = nccl.returned = 0;
    fake_log();
    return context;
}

static uint64_t born(struct context *context)
{
    uint64_t addr = 0;

    assert_int_equal(segment_ops.alloc(context, BACKEND_NCCL, SEGMENT, &addr), 0);
    return addr;
}

/* How many of these segments go back to NCCL. */
static unsigned int go_back(struct context *context, const uint64_t *addrs, unsigned int count)
{
    nccl.returned = 0;
    for (unsigned int i = 0; i < count; i++)
        segment_ops.free(context, BACKEND_NCCL, addrs[i], SEGMENT);
    return nccl.returned;
}

static void capture(void)
{
    const CUstream stream = fake_stream(0, 0);

    capture_begun(capture_begin(stream), stream, true);
    capture_check(stream, true, atomic_load(&capture_total));
}

static ncclResult_t nccl_alloc_nothing(void **ptr, size_t size)
{
    *ptr = NULL;
    return ncclSuccess;
}

static const struct real_nccl lacks_free = {.ncclMemAlloc = nccl_alloc}, lacks_alloc = {.ncclMemFree = nccl_free},
                              gives_nothing = {.ncclMemAlloc = nccl_alloc_nothing, .ncclMemFree = nccl_free},
                              gives_legacy = {.ncclMemAlloc = nccl_alloc, .ncclMemFree = nccl_free};

static const struct none {
    const struct real_nccl *nccl;
    ncclResult_t result;
    const char *why;
} nones[] = {
    {&lacks_free, ncclSuccess, "this NCCL has no ncclMemAlloc"},
    {&lacks_alloc, ncclSuccess, "this NCCL has no ncclMemAlloc"},
    {NULL, ncclSuccess, "no NCCL is loaded"},
    {&copy, (ncclResult_t)2, "ncclMemAlloc gives no memory"},
    {&gives_nothing, ncclSuccess, "ncclMemAlloc gives no memory"},
    {&gives_legacy, ncclSuccess, "ncclMemAlloc gives cudaMalloc's memory here"},
};

static CUresult legacy(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    *(unsigned int *)data = attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    return CUDA_SUCCESS;
}

ISOLATED_ROWS(test_none, nones, .environment = NCCL)
{
    const struct none *row = *state;

    fake.nccl = row->nccl;
    nccl.result = row->result;
    nccl.next = 0x600000000000;
    if (row->nccl == &gives_legacy)
        fake.driver.cuPointerGetAttribute = legacy;
    assert_false(context_backed_by_nccl(pooled(0)));
    assert_non_null(strstr(fake.said, "2:CUPOOL_BACKEND=nccl is not possible: "));
    assert_non_null(strstr(fake.said, row->why));
    assert_false((backend_chosen() == BACKEND_NCCL));
}

/* Asked for while the program runs (cupool_backend_set): not without a device, and not without NCCL. */
ISOLATED_CASE(test_asked_for_later)
{
    fake.nccl = NULL;
    pooled(0);
    fake_current(NULL);
    assert_int_equal(nccl_source.find(), -EAGAIN);
    assert_string_equal(fake.said, "");
    fake_current(fake_context(0));
    assert_int_equal(nccl_source.find(), -ENOTSUP);
    assert_non_null(strstr(fake.said, "memory from NCCL is not possible"));
}

ISOLATED_CASE(test_comes_and_goes, .environment = NCCL)
{
    struct context *context = with_nccl();
    const unsigned int arrivals = context_arrivals();
    uint64_t addr = born(context);

    assert_string_equal(fake_log(), "");
    assert_int_equal(addr, 0x600000000000 + SEGMENT);
    assert_int_equal(go_back(context, &addr, 1), 1);
    assert_string_equal(fake_log(), "sync:c0"); /* NCCL does not take it back behind the work that uses it */
    assert_int_equal(context_arrivals(), arrivals + 1);
    addr = born(context);
    fake_fail(FN(cuCtxSynchronize), CUDA_ERROR_UNKNOWN, 2);
    assert_int_equal(go_back(context, &addr, 1), 0);
    assert_non_null(strstr(fake.said, "cannot be waited for, and are not given back"));
    nccl.result = (ncclResult_t)2;
    assert_int_equal(segment_ops.alloc(context, BACKEND_NCCL, SEGMENT, &addr), -ENOMEM);
    fake_fail(FN(cuMemGetInfo_v2), CUDA_ERROR_UNKNOWN, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_NCCL, SEGMENT, &addr), -ENOMEM);
    /* The context's own error, for which no memory is given back. */
    fake_fail(FN(cuMemGetInfo_v2), CUDA_ERROR_LAUNCH_FAILED, 1);
    assert_int_equal(segment_ops.alloc(context, BACKEND_NCCL, SEGMENT, &addr), -EIO);
    nccl.result = ncclSuccess;
    nccl.next += 512; /* not as the pool needs it */
    nccl.returned = 0;
    assert_int_equal(segment_ops.alloc(context, BACKEND_NCCL, SEGMENT, &addr), -EIO);
    assert_int_equal(nccl.returned, 1);
    nccl.next -= 512;
    addr = born(context);
    assert_null(strstr(fake.said, "NCCL did not take back"));
    nccl.result = (ncclResult_t)2;
    assert_int_equal(go_back(context, &addr, 1), 1);
    assert_non_null(strstr(fake.said, "NCCL did not take back"));
    nccl.result = ncclSuccess;
    assert_true(fake_thread_is_clean(fake_context(0)));
}

/* Memory that was there during a capture stays; memory that came after it goes. */
ISOLATED_CASE(test_captured, .environment = NCCL)
{
    const bool stays = *state == NULL; /* else NCCL registers nothing for graphs */
    struct context *context = with_nccl();
    uint64_t before = born(context), beside, after, unknown = 0x700000000000;

    assert_int_equal(go_back(context, &unknown, 1), 1); /* no capture yet */
    capture_begun(capture_begin(fake_stream(0, 0)), fake_stream(0, 0), true);
    beside = born(context); /* while one is under way */
    capture_check(fake_stream(0, 0), true, atomic_load(&capture_total));
    after = born(context);
    assert_int_equal(go_back(context, &after, 1), 1);
    assert_string_equal(fake.said, "");
    assert_int_equal(go_back(context, &before, 1), !stays);
    assert_int_equal(go_back(context, &beside, 1), !stays);
    assert_int_equal(go_back(context, &unknown, 1), !stays);
    assert_int_equal(stays, strstr(fake.said, "2:memory that was there when a graph was captured") != NULL);
}
ISOLATED_AGAIN(test_captured, off, .environment = NCCL " NCCL_GRAPH_REGISTER=0", .row = "off")

/* An address that comes back, after its context went with it. */
ISOLATED_CASE(test_born_again, .environment = NCCL)
{
    struct context *context = with_nccl();
    const uint64_t addr = born(context);

    capture();
    nccl.next = addr;
    assert_int_equal(born(context), addr);
    assert_int_equal(go_back(context, &addr, 1), 1);
    assert_int_equal(go_back(context, &addr, 1), 0); /* that is forgotten */
}

/* A context that ends leaves its memory to the next one of the device, and of no other device. */
ISOLATED_CASE(test_left_by_a_context, .environment = NCCL)
{
    struct context *context = with_nccl();
    const uint64_t addr = born(context), gone = born(context);

    assert_int_equal(go_back(context, &gone, 1), 1); /* NCCL has it again, and gets it no second time */
    assert_int_equal(nccl_given_left(0), 0);
    context_gone(context_leaving(fake_context(0)), true);
    assert_int_equal(nccl_given_left(1), 0);
    assert_int_equal(nccl_given_left(0), addr);
    assert_int_equal(nccl_given_left(0), 0);
}

ISOLATED_CASE(test_many, .environment = NCCL)
{
    struct context *context = with_nccl();
    uint64_t addrs[200];

    for (unsigned int i = 0; i < COUNT(addrs); i++) {
        if (i == 130)
            capture();
        addrs[i] = born(context);
    }
    assert_int_equal(go_back(context, addrs + 130, 70), 70);
    assert_int_equal(go_back(context, addrs, 130), 0);
}

/* As cuCtxSetCurrent. */
static void set_current(CUcontext handle)
{
    CUcontext now;

    fake.driver.cuCtxGetCurrent(&now);
    if (now)
        fake.driver.cuCtxPopCurrent_v2(&now);
    if (handle)
        fake.driver.cuCtxPushCurrent_v2(handle);
}

/* NCCL may leave another context current; afterwards the one from before is current again. */
ISOLATED_CASE(test_visit)
{
    const CUcontext handles[] = {NULL, (fake_start(), fake_context(0)), fake_context(1)};
    struct nccl_visit visit;
    CUcontext now;

    fake_current(NULL);
    for (unsigned int i = 0; i < COUNT(handles) * COUNT(handles); i++) {
        set_current(handles[i % 3]);
        nccl_visit_begin(&visit);
        set_current(handles[i / 3]);
        nccl_visit_end(&visit);
        fake.driver.cuCtxGetCurrent(&now);
        assert_ptr_equal(now, handles[i % 3]);
        set_current(NULL);
        assert_true(fake_thread_is_clean(NULL));
    }
}

/* Where there is no driver, there is nothing to put back, and nothing to ask. */
ISOLATED_CASE(test_no_driver)
{
    struct nccl_visit visit;

    fake.absent = true;
    nccl_visit_begin(&visit);
    assert_true(process_is_inside());
    nccl_visit_end(&visit);
    assert_false(process_is_inside());
    assert_true(nccl_memory_is_shareable(0x1000));
}

/* NCCL that is loaded later may need it. */
ISOLATED_CASE(test_front_before_nccl)
{
    fake_start();
    fake.nccl = NULL;
    assert_int_equal(nccl_front_needed(), 0);
    fake.registers = true;
    assert_true(nccl_front_needed() > 0);
}

static ncclResult_t older_version(int *version)
{
    *version = NCCL_VERSION_MAPS;
    return ncclSuccess;
}

/* Memory is NCCL's if the driver's allocation begins so far in front of it. */
ISOLATED_CASE(test_front_of_memory, .environment = NCCL)
{
    static const struct real_nccl older = {
        .ncclGetVersion = older_version, .ncclMemAlloc = nccl_alloc, .ncclMemFree = nccl_free};
    const CUdeviceptr start = 0x610000000000;
    size_t front;

    nccl.next = 0x600000000000;
    fake_start();
    fake.nccl = &older;
    fake.registers = true;
    pooled(0);
    front = nccl_front_needed();
    assert_true(front > 0);
    fake_range_add(start, 2 * SEGMENT, CU_MEMORYTYPE_DEVICE, 0);
    assert_int_equal(nccl_memory_front(start + front), front);
    assert_int_equal(nccl_memory_front(start), 0);
    assert_int_equal(nccl_memory_front(start + 2 * front), 0);
    assert_int_equal(nccl_memory_front(0x1000), 0);
}

static struct {
    ncclResult_t result, now;
} asked;

static ncclResult_t tell_state(ncclComm_t comm, ncclResult_t *error)
{
    if (!asked.result)
        *error = asked.now;
    return asked.result;
}

/* No wait for the end of its work lasts for ever because NCCL does not say whether it is at work. */
ISOLATED_CASE(test_state)
{
    static const struct real_nccl its = {.ncclCommGetAsyncError = tell_state};
    static const struct {
        ncclResult_t result, now;
        int rc;
    } rows[] = {{ncclSuccess, ncclSuccess, 0},
                {ncclSuccess, ncclInProgress, -EINPROGRESS},
                {ncclSuccess, ncclInvalidArgument, -EIO},
                {ncclInvalidArgument, ncclSuccess, -EIO}};

    fake_start();
    for (unsigned int i = 0; i < COUNT(rows); i++) {
        asked.result = rows[i].result;
        asked.now = rows[i].now;
        assert_int_equal(nccl_comm_state(&its, NULL), rows[i].rc);
    }
}

static unsigned int users;

static ncclResult_t next_gather(void)
{
    users = atomic_load(&atomic_load(&nccl_registry()->all)->users);
    return ncclInvalidArgument;
}

static CUresult stream_destroy(CUstream stream)
{
    return CUDA_SUCCESS;
}

/* While the ranks agree about a window, no other thread deregisters memory of the communicator. */
ISOLATED_CASE(test_window)
{
    static const struct real_nccl its = {.next = {[REAL_NCCL_ncclAllGather] = (void *)next_gather,
                                                  [REAL_NCCL_ncclCommWindowRegister] = (void *)next_gather,
                                                  [REAL_NCCL_ncclCommWindowDeregister] = (void *)next_gather}};
    static const struct nccl_reg_ops ops;
    const struct nccl_reg_comm_info info = {.device = 0, .ranks = 1, .arg = (void *)&its};
    ncclWindow_t window = NULL;
    struct nccl_reg *reg;
    char comm[64];

    fake_start();
    fake.registers = true;
    fake.driver.cuStreamDestroy_v2 = stream_destroy;
    assert_int_equal(nccl_reg_create(&ops, &reg), 0);
    atomic_store(&nccl_registry_private, reg);
    assert_int_equal(nccl_reg_comm_add(nccl_registry(), comm, &info), 0);
    assert_int_equal(window_register((ncclComm_t)(void *)comm, 0x1000, 4096, &window), -EIO);
    assert_int_equal(users, 1);
    assert_int_equal(atomic_load(&atomic_load(&reg->all)->users), 0);
}
